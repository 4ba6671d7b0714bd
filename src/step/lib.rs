//! The seam between serving and models: what an engine asks of a model on a device, and what
//! serving must know of the target that a binary is built for.

pub mod executor;
mod facts;
mod ids;
pub mod ranking;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transfer;
mod window;

pub use facts::{Facts, ToolFormat, agents};
pub use window::{SPLIT, Window};

/// Tokens of a KV page in every target; also the grid on which prompts are cut.
pub const PAGE: usize = 64;
/// Rows of a cell of a sequence that a model takes one by one, at most. If a step has more of a
/// cell, from its first position on, a backend may take them together, in other arithmetic: the
/// choice depends on the prompt alone. Decode and verification never have more.
pub const ONE_BY_ONE: usize = 8;

/// Host memory of the server beside the model, bytes at most: requests on their
/// way, replies that are waited for, stored responses, texts and grammars that were met before, and
/// the program itself. `http::limits` adds up its part.
pub const SERVER_BYTES: u64 = 392 << 20;
/// Addresses that stacks of threads reserve whose work goes deep by calling itself, bytes;
/// `text::grammar::limits` adds them up.
pub const DEEP_STACKS_BYTES: u64 = 256 << 20;
