//! The model of one target: its constants and shapes, the computation in terms of [`ops`], the
//! devices that run the operations, and the weights.

pub mod backend;
pub mod blocks;
mod decoder;
pub mod ledger;
pub mod ops;
mod pools;
mod runner;
pub mod shapes;
mod stacks;
pub mod target;
#[cfg(feature = "testing")]
pub mod testing;
pub mod weights;

#[cfg(has = "experts")]
pub use blocks::experts::sources as expert_sources;
pub use blocks::{AnyBlock, Loader, Memory, ROUTED, ROUTER_LOGITS, ROWS_NVFP4, Runs};
pub use decoder::{HookPoint, Layer, Scratch};
pub use ledger::{Plan, TooLittle};
pub use runner::{Runner, Taker};
pub use stacks::{Stack, stacks};
