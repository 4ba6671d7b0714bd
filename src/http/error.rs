//! Errors that a client gets in place of an answer, in the form of its route's API.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::limits::{RETRY_AFTER_FULL_S, RETRY_AFTER_UNAVAILABLE_S};

/// API in whose form a route reports errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `{"error": {message, type, param, code}}`
    OpenAi,
    /// `{"type": "error", "error": {type, message}, "request_id": …}`
    Anthropic,
    /// `{"error": message}`; paths of that API are known only to be refused.
    Ollama,
}

/// Error code by which libraries of the Anthropic API recognise that threads are not stored.
const THREAD_UNSUPPORTED: &str = "thread_unsupported_request";

/// Error that a client gets in place of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// The field at fault, as a path: `messages[2].content`.
    pub param: Option<String>,
    pub code: Option<&'static str>,
    /// Requested tokens and the limit, if the context is too short.
    pub context: Option<(usize, usize)>,
    pub retry_after_s: Option<u64>,
    /// Whether the connection must be closed after the error.
    pub close: bool,
    /// Whether the answer asks a browser for a password.
    pub asks_password: bool,
}

/// Error of a request that failed through no fault of its own.
pub fn internal(problem: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, problem)
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            message: message.into(),
            param: None,
            code: None,
            context: None,
            retry_after_s: None,
            close: false,
            asks_password: false,
        }
    }

    /// Error for a value of the field `param` that is not served.
    pub fn field(param: impl Into<String>, problem: impl AsRef<str>) -> ApiError {
        let param = param.into();
        let message = format!("{param}: {}", problem.as_ref());
        ApiError {
            param: Some(param),
            code: Some("invalid_value"),
            ..ApiError::new(StatusCode::BAD_REQUEST, message)
        }
    }

    /// Error for a request that cannot be read as HTTP or JSON.
    pub fn malformed(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// Error for a prompt and reply that exceed the context: tokens wanted, and the limit.
    pub fn context(param: &str, (tokens, limit): (usize, usize), problem: &str) -> ApiError {
        let message =
            format!("This model's maximum context length is {limit} tokens. However, {problem}");
        ApiError {
            param: Some(param.to_string()),
            code: Some("context_length_exceeded"),
            context: Some((tokens, limit)),
            ..ApiError::new(StatusCode::BAD_REQUEST, message)
        }
    }

    /// Error for a conversation that would have to be stored. Clients read the code, and then send
    /// whole conversations.
    pub fn thread(param: &str) -> ApiError {
        let problem = "conversations are not kept here; send the whole of one without it";
        ApiError::field(param, problem).coded(THREAD_UNSUPPORTED)
    }

    /// Error for a request without a key that the server knows.
    pub fn unauthorized(message: &str) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, message).coded("invalid_api_key")
    }

    /// Error for a request that finds the queue full.
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

    /// Error of a server that is starting or stopping.
    pub fn unavailable(code: &'static str, message: &str) -> ApiError {
        ApiError {
            code: Some(code),
            retry_after_s: Some(RETRY_AFTER_UNAVAILABLE_S),
            ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }

    /// Error of a server that is stopping.
    pub fn draining() -> ApiError {
        ApiError::unavailable("draining", "the server is shutting down")
    }

    /// The error with a `code`, which programs read.
    pub fn coded(mut self, code: &'static str) -> ApiError {
        self.code = Some(code);
        self
    }

    /// The error, marked to close the connection after it.
    pub fn closing(mut self) -> ApiError {
        self.close = true;
        self
    }

    /// Body of the error in the form of `dialect`.
    pub fn body(&self, dialect: Dialect) -> Value {
        match dialect {
            Dialect::OpenAi => json!({"error": {
                "message": self.message,
                "type": self.open_ai_type(),
                "param": self.param,
                "code": self.code,
            }}),
            Dialect::Ollama => json!({"error": self.message}),
            Dialect::Anthropic => {
                let mut error = json!({
                    "type": self.anthropic_type(),
                    "message": self.anthropic_message(),
                });
                if self.code == Some(THREAD_UNSUPPORTED) {
                    let unsupported: Vec<_> = self.param.iter().collect();
                    error["details"] =
                        json!({"error_code": THREAD_UNSUPPORTED, "unsupported": unsupported});
                }
                json!({"type": "error", "error": error})
            }
        }
    }

    fn open_ai_type(&self) -> &'static str {
        match self.status {
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            StatusCode::NOT_IMPLEMENTED => "not_implemented_error",
            _ => "server_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            _ => "api_error",
        }
    }

    /// Message for Anthropic clients, which start a compaction when they read "prompt is too long".
    fn anthropic_message(&self) -> String {
        match self.context {
            Some((tokens, limit)) => {
                format!("prompt is too long: {tokens} tokens > {limit} maximum")
            }
            None => self.message.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_overflow_is_reported_in_the_words_that_clients_parse() {
        let error = ApiError::context("messages", (3000, 2048), "it is too long.");
        let open_ai = error.body(Dialect::OpenAi);
        assert_eq!(open_ai["error"]["code"], "context_length_exceeded");
        let message = open_ai["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("This model's maximum context length is 2048 tokens."));
        let expected = json!({"type": "error", "error": {"type": "invalid_request_error",
            "message": "prompt is too long: 3000 tokens > 2048 maximum"}});
        assert_eq!(error.body(Dialect::Anthropic), expected);
    }

    #[test]
    fn a_thread_is_refused_by_the_code_that_libraries_recover_from() {
        let error = ApiError::thread("thread").body(Dialect::Anthropic);
        let expected = json!({"error_code": "thread_unsupported_request",
            "unsupported": ["thread"]});
        assert_eq!(error["error"]["details"], expected);
    }
}
