//! The HTTP/1.1 server: connections, limits, routes, and the dialects of the APIs.
//!
//! A connection's bytes pass [`wire`] on their way to the HTTP library; [`routes`] finds the
//! handler of a request; [`chat`], [`completions`], [`messages`] and [`responses`] read requests
//! and write answers, [`generate`] has what all dialects share. Nothing here touches the model:
//! requests go to the engine through its handle, events come back through a channel per reply.

pub mod body;
pub mod call;
pub mod chat;
pub mod completions;
pub mod error;
pub mod fields;
pub mod figures;
pub mod files;
#[cfg(test)]
#[path = "gemma_tests.rs"]
mod gemma;
pub mod generate;
#[cfg(test)]
#[path = "harmony_tests.rs"]
mod harmony;
pub mod hosts;
pub mod journal;
pub mod json;
pub mod keys;
pub mod limits;
pub mod listener;
pub mod messages;
pub mod metrics;
pub mod offline;
pub mod openapi;
pub mod origins;
pub mod parsing;
pub mod peer;
pub mod random;
#[cfg(test)]
#[path = "rechunk_tests.rs"]
mod rechunk;
pub mod recording;
mod refusal;
pub mod responses;
pub mod routes;
pub mod seal;
pub mod server;
pub mod settings;
pub mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod thinking;
pub mod threads;
pub mod tls;
pub mod tokenize;
pub mod wire;
