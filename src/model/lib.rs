//! The model of one target: its constants, its shapes, what is computed in terms of [`ops`], the
//! devices that run those, and the weights.

pub mod backend;
mod blocks;
pub mod check;
mod decoder;
pub mod ledger;
pub mod ops;
mod pools;
mod runner;
pub mod shapes;
mod stacks;
pub mod target;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod weights;

pub use blocks::{ROUTER_LOGITS, ROWS_NVFP4, Runs};
pub use ledger::{Plan, TooLittle};
pub use runner::Runner;
pub use stacks::{Stack, stacks};
