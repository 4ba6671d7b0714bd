//! Requests without a connection, for offline batches: each is answered whole, with the same bits
//! and errors that a client would get.

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

/// Value of `Host`: a request must name a host, and this name is always allowed.
const HERE: HeaderValue = HeaderValue::from_static("localhost");

/// Answer to a request that came without a connection.
#[derive(Debug)]
pub struct Answered {
    pub status: StatusCode,
    /// Id of the request, as `x-request-id` would report it.
    pub request_id: String,
    /// Body of JSON; None if the request asks for a stream, which is dropped.
    pub body: Option<Bytes>,
}

/// A call without a connection. Its peer has no address, so that without keys all such calls count
/// as one client in the fair order.
pub fn call(settings: &Settings) -> Arc<Call> {
    let headers = HeaderMap::new();
    Arc::new(Call::new(asked(), &headers, Method::POST, None, settings))
}

fn asked() -> Asked {
    Arc::new(Peer::new(None)).ask()
}

/// Posts `body` to the path `url`. Dropping the future ends the replies.
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
