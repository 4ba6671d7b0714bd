//! Atlas: one binary per hardware, model and quantisation, serving it over HTTP.
//!
//! [`Engine`] is the model inside of another program; see [`embed`]. All other modules are parts of
//! the server, and change as it does.

pub mod bench;
pub mod cli;
pub mod embed;
#[cfg(test)]
mod trials;

pub use host::log;
pub use model::{backend, ops, shapes, target, weights};
pub use step::executor;
pub use {engine, http, model, text};

pub use embed::{Engine, Error, Finish, Piece, Reply, Request, Stream, ToolCall, Usage};
