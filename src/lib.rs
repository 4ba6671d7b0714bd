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
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod embed;
pub mod model;
pub mod ops;
pub mod shapes;
pub mod target;
pub mod weights;

pub use engine;
pub use host::log;
pub use http;
pub use step::executor;
pub use text;

#[cfg(feature = "server")]
pub use embed::{Engine, Error, Finish, Piece, Reply, Request, Stream, ToolCall, Usage};
