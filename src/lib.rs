//! Atlas: one binary per hardware, model and quantisation, serving it over HTTP.
//!
//! [`Engine`] is the model inside of another program; see [`embed`]. All other modules are parts of
//! the server, and change as it does.

pub mod bench;
pub mod cli;
pub mod embed;
pub mod start;
#[cfg(test)]
mod trials;

pub use embed::{Engine, Error, Finish, Piece, Reply, Request, Stream, ToolCall, Usage};
