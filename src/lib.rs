//! Atlas: one binary per hardware, model and quantisation, serving it over HTTP.
//!
//! [`Engine`] is the model inside of another program; see [`embed`]. All other modules are parts of
//! the server, and change as it does.
//!
//! Without the feature `server` this is the model alone: what golden tokens of further targets are
//! compared with, each in a build of its own.

pub mod backend;
#[cfg(feature = "server")]
pub mod bench;
pub mod beneath;
#[cfg(feature = "server")]
pub mod calendar;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod embed;
pub mod engine;
pub mod executor;
pub mod histogram;
#[cfg(feature = "server")]
pub mod http;
pub mod log;
pub mod model;
pub mod operator_file;
pub mod ops;
pub mod output;
pub mod ranking;
pub mod shapes;
pub mod target;
#[cfg(feature = "server")]
pub mod text;
pub mod threads;
pub mod weights;

#[cfg(feature = "server")]
pub use embed::{Engine, Error, Finish, Piece, Reply, Request, Stream, ToolCall, Usage};
