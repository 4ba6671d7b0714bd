//! Reasons why there is no reply.

use hyper::StatusCode;

use crate::start::exit::Failure;
use http::error::ApiError;

/// Reason why there is no model or no reply.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The model cannot be loaded; the text has the fault and its fix.
    #[error("{0}")]
    Open(String),
    /// The request cannot be answered as it is.
    #[error("{problem}")]
    Request {
        /// Field at fault, named as in the chat completions API, such as `messages[0].role`.
        field: Option<String>,
        problem: String,
    },
    /// The queue of requests is full; send the request again once a reply is complete.
    #[error("as many requests wait as may; wait for a reply")]
    Busy,
    /// The model failed; this engine answers no further requests.
    #[error("{0}")]
    Engine(String),
}

impl Error {
    pub(super) fn open(failure: Failure) -> Error {
        Error::Open(failure.message)
    }

    /// Error of this library for the error of a request over HTTP.
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
