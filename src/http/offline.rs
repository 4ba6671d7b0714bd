//! Requests that come over no connection: each is answered whole, with the bits and the errors that
//! a client would get.

use std::sync::Arc;

use http_body_util::{BodyExt, Either, Full};
use hyper::body::Bytes;
use hyper::header::{HOST, HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};

use super::call::{Call, REQUEST_ID};
use super::peer::{Asked, Peer};
use super::routes::respond;
use super::settings::Settings;
use super::state::ServerState;

/// A request must name a host, and this machine is always allowed.
const HERE: HeaderValue = HeaderValue::from_static("localhost");

/// The answer to a request.
#[derive(Debug)]
pub struct Answered {
    pub status: StatusCode,
    /// Name of the call, as `x-request-id` would report it.
    pub request_id: String,
    /// JSON; none where the request asks for a stream, which ends with this.
    pub body: Option<Bytes>,
}

/// A call that came over no connection: of one of its own each, so that all of them queue as one.
pub fn call(settings: &Settings) -> Arc<Call> {
    let headers = HeaderMap::new();
    Arc::new(Call::new(asked(), &headers, Method::POST, None, settings))
}

fn asked() -> Asked {
    Arc::new(Peer::new(None)).ask()
}

/// Posts `body` to the path `url`. Whoever stops waiting ends the replies.
pub async fn post(state: &Arc<ServerState>, url: Uri, body: Bytes) -> Answered {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = url;
    request.headers_mut().insert(HOST, HERE);
    let response = respond(state.clone(), asked(), request).await;
    let id = response.headers().get(REQUEST_ID);
    let request_id = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
    let (status, request_id) = (response.status(), request_id.to_string());
    let body = match response.into_body() {
        Either::Left(whole) => whole.collect().await.ok().map(|whole| whole.to_bytes()),
        Either::Right(_) => None,
    };
    Answered {
        status,
        request_id,
        body,
    }
}
