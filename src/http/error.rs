//! Errors in the shape of the OpenAI API: `{"error": {message, type, param, code}}`.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::limits::{RETRY_AFTER_FULL_S, RETRY_AFTER_UNAVAILABLE_S};

/// What a client is told when its request is not answered.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// The field at fault, as a path: `messages[2].content`.
    pub param: Option<String>,
    pub code: Option<&'static str>,
    pub retry_after_s: Option<u64>,
    /// The connection cannot be used further.
    pub close: bool,
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            message: message.into(),
            param: None,
            code: None,
            retry_after_s: None,
            close: false,
        }
    }

    /// The field `param` has a value that is not served.
    pub fn field(param: impl Into<String>, problem: impl AsRef<str>) -> ApiError {
        let param = param.into();
        let message = format!("{param}: {}", problem.as_ref());
        ApiError {
            param: Some(param),
            code: Some("invalid_value"),
            ..ApiError::new(StatusCode::BAD_REQUEST, message)
        }
    }

    /// The request cannot be read as HTTP or JSON.
    pub fn malformed(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// Prompt and reply do not fit.
    pub fn context(param: &str, limit: usize, problem: &str) -> ApiError {
        let message =
            format!("This model's maximum context length is {limit} tokens. However, {problem}");
        ApiError {
            param: Some(param.to_string()),
            code: Some("context_length_exceeded"),
            ..ApiError::new(StatusCode::BAD_REQUEST, message)
        }
    }

    /// All places in the queue are taken.
    pub fn full() -> ApiError {
        ApiError {
            code: Some("queue_full"),
            retry_after_s: Some(RETRY_AFTER_FULL_S),
            ..ApiError::new(
                StatusCode::TOO_MANY_REQUESTS,
                "the queue is full; try again in a moment",
            )
        }
    }

    /// The server is starting or stopping.
    pub fn unavailable(code: &'static str, message: &str) -> ApiError {
        ApiError {
            code: Some(code),
            retry_after_s: Some(RETRY_AFTER_UNAVAILABLE_S),
            ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }

    /// The same error, after which the connection is closed.
    pub fn closing(mut self) -> ApiError {
        self.close = true;
        self
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            _ => "server_error",
        }
    }

    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        }})
    }
}
