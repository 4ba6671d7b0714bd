//! Why there is no reply.

use hyper::StatusCode;

use crate::start::exit::Failure;
use http::error::ApiError;

/// Why there is no model or no reply.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The model cannot be loaded: what is wrong and its fix.
    #[error("{0}")]
    Open(String),
    /// The request cannot be answered as it is.
    #[error("{problem}")]
    Request {
        /// The field at fault, by its name in the chat completions API: `messages[0].role`.
        field: Option<String>,
        problem: String,
    },
    /// The queue of requests is full; begin another once a reply is complete.
    #[error("as many requests wait as may; wait for a reply")]
    Busy,
    /// The model failed; this engine answers nothing any more.
    #[error("{0}")]
    Engine(String),
}

impl Error {
    pub(super) fn open(failure: Failure) -> Error {
        Error::Open(failure.message)
    }

    /// The error of a request over HTTP as one of this library.
    pub(super) fn of(error: ApiError) -> Error {
        match error.status {
            StatusCode::TOO_MANY_REQUESTS => Error::Busy,
            status if status.is_client_error() => Error::Request {
                field: error.param,
                problem: error.message,
            },
            _ => Error::Engine(error.message),
        }
    }

    /// Error for the field `name`, whose effect a [`super::Reply`] cannot represent.
    pub(super) fn field(name: &str, problem: &str) -> Error {
        Error::of(ApiError::field(name, problem))
    }
}
