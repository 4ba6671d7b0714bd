//! The seam between serving and models: what an engine asks of a model on a device, and what
//! serving must know of the target that a binary is built for.

pub mod executor;
mod facts;
mod ids;
pub mod random;
pub mod ranking;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transfer;
mod window;

pub use facts::{Facts, ToolFormat, agents};
pub use window::{SPLIT, Window};

/// Number of tokens of a KV page in every target; prompts are cut into chunks at multiples of it.
pub const PAGE: usize = 64;
/// Number of rows of a cell (a page of positions) up to which a model computes each row by itself.
/// If a step has more rows of a cell, from the cell's first position on, a backend may compute them
/// together, with other rounding. The bits still depend on the prompt alone: decoding and
/// verification never have more rows, and chunks of prompts end at multiples of [`PAGE`].
pub const ONE_BY_ONE: usize = 8;

/// Largest host memory of the server beside the model, bytes: requests, replies and stored
/// responses, cached texts and grammars, and the program itself. `http::limits` adds up its part.
pub const SERVER_BYTES: u64 = 392 << 20;
/// Address space of the stacks of threads that run recursive code, bytes; `text::grammar::limits`
/// checks the sum.
pub const DEEP_STACKS_BYTES: u64 = 256 << 20;
