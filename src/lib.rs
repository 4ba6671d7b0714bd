//! Atlas: one binary per hardware, model and quantisation, serving it over HTTP.
//!
//! [`Engine`] is the model inside of another program; see [`embed`]. All other modules are parts of
//! the server, and change as it does.

pub mod bench;
pub mod cli;
pub mod embed;
#[cfg(test)]
mod equivalence_tests;
pub mod start;

pub use embed::{Engine, Error, Finish, Piece, Reply, Request, Stream, ToolCall, Usage};
