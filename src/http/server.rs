//! Connections: accepting, serving and ending them.

use std::convert::Infallible;
use std::future::Future;
use std::net;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};

use super::error::ApiError;
use super::limits::{
    ABORT_TIMEOUT, ACCEPT_PAUSE, DRAIN_TIMEOUT, HEAD_BYTES_MAX, HEAD_TIMEOUT, HEADERS_MAX,
};
use super::listener::{Accepted, Listener};
use super::routes::respond;
use super::state::State;
use super::threads::{Home, Share};
use super::tls::Tls;
use super::wire::Wire;

/// Told to a client for whom there is no connection.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/json\r\ncontent-length: 133\r\nretry-after: 1\r\n\
    connection: close\r\n\r\n\
    {\"error\":{\"message\":\"too many connections are open; try again\",\
    \"type\":\"service_unavailable_error\",\"param\":null,\"code\":\"connections\"}}";

/// What serves the connections of one listener.
pub struct Server {
    listener: Listener,
    state: Arc<State>,
    connections_max: usize,
    tls: Option<Tls>,
    /// Where connections live; none: where the server runs.
    homes: Vec<Home>,
}

impl Server {
    /// Serves at most `connections_max` connections at once.
    pub fn new(listener: Listener, state: Arc<State>, connections_max: usize) -> Server {
        Server {
            listener,
            state,
            connections_max,
            tls: None,
            homes: Vec::new(),
        }
    }

    /// The same, with its connections in `homes`.
    pub fn in_homes(self, homes: Vec<Home>) -> Server {
        Server { homes, ..self }
    }

    /// The same, where connections to an address are encrypted if `tls` is given.
    pub fn with_tls(self, tls: Option<Tls>) -> Server {
        Server { tls, ..self }
    }

    /// Serves until `stop` completes, then lets open replies finish up to `DRAIN_TIMEOUT`. Returns
    /// whether all of them did.
    pub async fn run(self, stop: impl Future<Output = ()>) -> bool {
        let Server {
            listener,
            state,
            connections_max,
            tls,
            mut homes,
        } = self;
        if homes.is_empty() {
            homes.push(Home::here());
        }
        let places = Arc::new(Semaphore::new(connections_max));
        let stopping = watch::Sender::new(false);
        tokio::select! {
            () = accept(&listener, &tls, &homes, &state, &places, &stopping) => {}
            () = stop => {}
        }
        drop(listener);
        state.drain();
        stopping.send_replace(true);
        let all = connections_max as u32;
        if timeout(DRAIN_TIMEOUT, places.acquire_many(all))
            .await
            .is_ok()
        {
            return true;
        }
        state.abort_replies(ApiError::draining());
        let _ = timeout(ABORT_TIMEOUT, places.acquire_many(all)).await;
        false
    }
}

/// One of the connections that there may be, on its thread.
type Place = (OwnedSemaphorePermit, Share);

/// Takes connections for ever.
async fn accept(
    listener: &Listener,
    tls: &Option<Tls>,
    homes: &[Home],
    state: &Arc<State>,
    places: &Arc<Semaphore>,
    stopping: &watch::Sender<bool>,
) {
    loop {
        let mut stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(_) => {
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            state
                .figures
                .connections_refused
                .fetch_add(1, Ordering::Relaxed);
            if tls.is_none() {
                stream.write_now(TOO_MANY);
            }
            continue;
        };
        let (state, stopping) = (state.clone(), stopping.subscribe());
        let home = Home::emptiest(homes);
        let place = (place, home.share());
        match (stream, tls.clone()) {
            (Accepted::Tcp(stream), Some(tls)) => {
                home.run(encrypted(tls, stream, state, place, stopping));
            }
            (Accepted::Tcp(stream), None) => home.run(async {
                if let Ok(stream) = TcpStream::from_std(stream) {
                    connection(stream, state, place, stopping).await;
                }
            }),
            (Accepted::Unix(stream), _) => home.run(async {
                if let Ok(stream) = UnixStream::from_std(stream) {
                    connection(stream, state, place, stopping).await;
                }
            }),
        }
    }
}

/// Shakes hands with a client, then serves it.
async fn encrypted(
    tls: Tls,
    stream: net::TcpStream,
    state: Arc<State>,
    place: Place,
    stopping: watch::Receiver<bool>,
) {
    let Ok(stream) = TcpStream::from_std(stream) else {
        return;
    };
    if let Ok(Ok(stream)) = timeout(HEAD_TIMEOUT, tls.accept(stream)).await {
        connection(stream, state, place, stopping).await;
    }
}

/// Serves one connection to its end.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    state: Arc<State>,
    place: Place,
    mut stopping: watch::Receiver<bool>,
) {
    let open = &state.figures.connections;
    open.fetch_add(1, Ordering::Relaxed);
    let service = service_fn(|request| {
        let state = state.clone();
        async move { Ok::<_, Infallible>(respond(state, request).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        // An event is short: to copy it behind its framing costs less than to tell the kernel of
        // three pieces.
        .writev(false)
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(HEAD_BYTES_MAX * 2)
        .serve_connection(TokioIo::new(Wire::new(stream)), service);
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => Some(ended),
        _ = stopping.wait_for(|stopping| *stopping) => None,
    };
    if ended.is_none() {
        serving.as_mut().graceful_shutdown();
        // A connection's failure concerns its client only, who knows of it.
        let _ = serving.await;
    }
    open.fetch_sub(1, Ordering::Relaxed);
    drop(place);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_states_its_length() {
        let text = std::str::from_utf8(TOO_MANY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())));
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], "connections");
    }
}
