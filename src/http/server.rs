//! Connections: accepting, serving and ending them.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use hyper::Response;
use hyper::header::{CONNECTION, DATE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};

use host::calendar::strftime;

use super::error::ApiError;
use super::limits::{
    ABORT_TIMEOUT, ACCEPT_PAUSE, DRAIN_IDLE_GRACE, DRAIN_TIMEOUT, HEAD_BYTES_MAX, HEAD_TIMEOUT,
    HEADERS_MAX, IDLE_TIMEOUT, IDLE_TIMEOUT_SCARCE, LINGER_BYTES_MAX, LINGER_IDLE_TIMEOUT,
    LINGER_PIECE_BYTES, LINGER_TIMEOUT, REFUSED_MAX,
};
use super::listener::{Accepted, Listener};
use super::peer::Peer;
use super::routes::{ResponseBody, respond};
use super::state::ServerState;
use super::threads::{Home, Share};
use super::tls::Tls;
use super::wire::Wire;

/// Response to a connection beyond the limit.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/json\r\ncontent-length: 133\r\nretry-after: 1\r\n\
    connection: close\r\n\r\n\
    {\"error\":{\"message\":\"too many connections are open; try again\",\
    \"type\":\"service_unavailable_error\",\"param\":null,\"code\":\"connections\"}}";

/// Server for the connections of one listener.
pub struct Server {
    listener: Listener,
    state: Arc<ServerState>,
    connections_max: usize,
    tls: Option<Tls>,
    /// Runtimes for the connections; if empty, connections are on the server's own runtime.
    homes: Vec<Home>,
}

impl Server {
    /// Server that serves at most `connections_max` connections at once.
    pub fn new(listener: Listener, state: Arc<ServerState>, connections_max: usize) -> Server {
        Server {
            listener,
            state,
            connections_max,
            tls: None,
            homes: Vec::new(),
        }
    }

    /// Distributes connections over the threads of `homes`.
    pub fn in_homes(self, homes: Vec<Home>) -> Server {
        Server { homes, ..self }
    }

    /// Encrypts connections by `tls`, if given, unless the listener is a socket in the file system.
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
        let slots = Arc::new(Semaphore::new(connections_max));
        let stopping = watch::Sender::new(false);
        let limit = (&slots, connections_max);
        let accepting = accept(&listener, &tls, &homes, &state, limit, &stopping);
        tokio::select! {
            () = accepting => {}
            () = stop => {}
        }
        drop(listener);
        state.drain();
        stopping.send_replace(true);
        let all = connections_max as u32;
        let drained = timeout(DRAIN_TIMEOUT, slots.acquire_many(all)).await;
        if drained.is_ok() {
            return true;
        }
        state.abort_replies(ApiError::draining());
        let _ = timeout(ABORT_TIMEOUT, slots.acquire_many(all)).await;
        false
    }
}

/// Guard of an open connection: counts it against the limit and on its thread.
struct Slot {
    _permit: OwnedSemaphorePermit,
    _share: Share,
    /// Counter of the connections that may still be opened.
    slots: Arc<Semaphore>,
    connections_max: usize,
}

impl Slot {
    /// Keep-alive time of the connection: shorter once half of all slots are taken.
    fn idle(&self) -> Duration {
        match self.slots.available_permits() < self.connections_max / 2 {
            true => IDLE_TIMEOUT_SCARCE,
            false => IDLE_TIMEOUT,
        }
    }
}

/// Header that states how long a client may rely on the connection before it sends a further
/// request.
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// Accepts connections for ever.
async fn accept(
    listener: &Listener,
    tls: &Option<Tls>,
    homes: &[Home],
    state: &Arc<ServerState>,
    (slots, connections_max): (&Arc<Semaphore>, usize),
    stopping: &watch::Sender<bool>,
) {
    let refusals = Arc::new(Semaphore::new(REFUSED_MAX));
    loop {
        let mut stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(_) => {
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = slots.clone().try_acquire_owned() else {
            let refused = &state.figures.connections_refused;
            refused.fetch_add(1, Ordering::Relaxed);
            if tls.is_none() {
                stream.write_now(TOO_MANY);
            }
            if let Ok(permit) = refusals.clone().try_acquire_owned() {
                Home::emptiest(homes).run(end(stream, permit));
            }
            continue;
        };
        let (state, stopping) = (state.clone(), stopping.subscribe());
        let home = Home::emptiest(homes);
        let slot = Slot {
            _permit: permit,
            _share: home.share(),
            slots: slots.clone(),
            connections_max,
        };
        match (stream, tls.clone()) {
            (Accepted::Tcp(stream), Some(tls)) => {
                home.run(encrypted(tls, stream, state, slot, stopping));
            }
            (Accepted::Tcp(stream), None) => home.run(async {
                let address = stream.peer_addr().ok().map(|address| address.ip());
                if let Ok(stream) = TcpStream::from_std(stream) {
                    connection(stream, Peer::new(address), state, slot, stopping).await;
                }
            }),
            (Accepted::Unix(stream), _) => home.run(async {
                if let Ok(stream) = UnixStream::from_std(stream) {
                    connection(stream, Peer::new(None), state, slot, stopping).await;
                }
            }),
        }
    }
}

/// Closes a connection beyond the limit after its client got the response.
async fn end(stream: Accepted, _permit: OwnedSemaphorePermit) {
    match stream {
        Accepted::Tcp(stream) => {
            if let Ok(mut stream) = TcpStream::from_std(stream) {
                linger(&mut stream).await;
            }
        }
        Accepted::Unix(stream) => {
            if let Ok(mut stream) = UnixStream::from_std(stream) {
                linger(&mut stream).await;
            }
        }
    }
}

/// Closes the server's side and discards input, within bounds, until the client closes its side: a
/// close with unread input would reset the connection and could lose the response.
async fn linger(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let reading = async {
        stream.shutdown().await?;
        let (mut piece, mut left) = (vec![0; LINGER_PIECE_BYTES], LINGER_BYTES_MAX);
        while left > 0 {
            match timeout(LINGER_IDLE_TIMEOUT, stream.read(&mut piece)).await?? {
                0 => break,
                count => left = left.saturating_sub(count),
            }
        }
        io::Result::Ok(())
    };
    // The response is sent, so errors while discarding do not matter.
    let _ = timeout(LINGER_TIMEOUT, reading).await;
}

/// Completes the TLS handshake with a client, then serves the connection.
async fn encrypted(
    tls: Tls,
    stream: net::TcpStream,
    state: Arc<ServerState>,
    slot: Slot,
    stopping: watch::Receiver<bool>,
) {
    let address = stream.peer_addr().ok().map(|address| address.ip());
    let Ok(stream) = TcpStream::from_std(stream) else {
        return;
    };
    if let Ok(Ok(stream)) = timeout(HEAD_TIMEOUT, tls.accept(stream)).await {
        connection(stream, Peer::new(address), state, slot, stopping).await;
    }
}

/// Serves one connection to its end.
async fn connection(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: Peer,
    state: Arc<ServerState>,
    slot: Slot,
    mut stopping: watch::Receiver<bool>,
) {
    let open = &state.figures.connections;
    open.fetch_add(1, Ordering::Relaxed);
    let peer = Arc::new(peer);
    let service = service_fn(|request| {
        let answering = respond(state.clone(), peer.ask(), request);
        let (peer, slot, state) = (&peer, &slot, &state);
        async move {
            let mut response = answering.await;
            date(&mut response, SystemTime::now());
            match state.is_draining() {
                true => last(&mut response),
                false => announce(&mut response, peer, slot.idle()),
            }
            Ok::<_, Infallible>(response)
        }
    });
    {
        let wire = Wire::new(&mut stream, peer.clone());
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            // An event is short: copying it next to its framing is cheaper than a vectored write.
            .writev(false)
            .header_read_timeout(None) // the wire's affair
            .max_headers(HEADERS_MAX)
            .max_header_size(HEAD_BYTES_MAX)
            .max_buf_size(HEAD_BYTES_MAX * 2)
            .serve_connection(TokioIo::new(wire), service);
        tokio::pin!(serving);
        let ended = tokio::select! {
            ended = serving.as_mut() => Some(ended),
            _ = stopping.wait_for(|stopping| *stopping) => None,
        };
        if ended.is_none() && !is_over(serving.as_mut(), &peer).await {
            serving.as_mut().graceful_shutdown();
            // Errors of a connection concern its client alone.
            let _ = serving.await;
        }
    }
    let stopped = async {
        let _ = stopping.wait_for(|stopping| *stopping).await;
        sleep(DRAIN_IDLE_GRACE).await;
    };
    tokio::select! {
        () = linger(&mut stream) => {}
        () = stopped => {}
    }
    open.fetch_sub(1, Ordering::Relaxed);
}

/// Waits a moment for a request that is in flight on an idle connection, so that the request gets a
/// response when the server stops. Returns whether the connection has ended.
async fn is_over(serving: Pin<&mut impl Future>, peer: &Peer) -> bool {
    let (is_answered, _) = peer.waits();
    !is_answered && timeout(DRAIN_IDLE_GRACE, serving).await.is_ok()
}

/// Sets the `Date` of a response (RFC 9110, 6.6.1). The HTTP library's own date would never go
/// back, even if the clock does.
fn date(response: &mut Response<ResponseBody>, now: SystemTime) {
    let text = strftime("%a, %d %b %Y %H:%M:%S GMT", now);
    if let Ok(value) = HeaderValue::try_from(text) {
        response.headers_mut().insert(DATE, value);
    }
}

/// Marks the response as the last of its connection.
fn last(response: &mut Response<ResponseBody>) {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
}

/// Adds the keep-alive time, if the connection stays open, to the response.
fn announce(response: &mut Response<ResponseBody>, peer: &Peer, idle: Duration) {
    if response.headers().contains_key(CONNECTION) {
        return;
    }
    peer.set_keep_alive(idle);
    let text = format!("timeout={}", idle.as_secs());
    if let Ok(value) = HeaderValue::try_from(text) {
        response.headers_mut().insert(KEEP_ALIVE, value);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;
    use tokio::time::Instant;

    use super::*;

    /// Seconds and bytes after which the server gives up a client that sends pieces at intervals.
    async fn lingered(piece: usize, interval: Duration) -> (Duration, usize) {
        let (mut client, mut stream) = duplex(piece);
        let begun = Instant::now();
        let sending = async {
            let (bytes, mut sent) = (vec![0; piece], 0);
            while client.write_all(&bytes).await.is_ok() {
                sent += piece;
                sleep(interval).await;
            }
            sent
        };
        let ending = async {
            linger(&mut stream).await;
            drop(stream);
            begun.elapsed()
        };
        let (sent, took) = tokio::join!(sending, ending);
        (took, sent)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_goes_on_sending_is_read_within_bounds() {
        let (silent, _) = lingered(1, LINGER_IDLE_TIMEOUT * 2).await;
        assert_eq!(silent, LINGER_IDLE_TIMEOUT);
        let (slow, _) = lingered(1, LINGER_IDLE_TIMEOUT / 2).await;
        assert_eq!(slow, LINGER_TIMEOUT);
        let (fast, sent) = lingered(1 << 20, Duration::ZERO).await;
        assert!(fast < LINGER_IDLE_TIMEOUT, "{fast:?}");
        assert!(
            (LINGER_BYTES_MAX..LINGER_BYTES_MAX + (3 << 20)).contains(&sent),
            "{sent}"
        );
    }

    #[test]
    fn the_date_follows_the_clock_back() {
        let dated = |seconds| {
            let mut response = Response::new(ResponseBody::Left(Default::default()));
            date(
                &mut response,
                SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
            );
            response.headers()[DATE].to_str().unwrap().to_string()
        };
        assert_eq!(dated(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(dated(784_111_776), "Sun, 06 Nov 1994 08:49:36 GMT");
    }

    #[test]
    fn the_refusal_states_its_length() {
        let text = std::str::from_utf8(TOO_MANY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())));
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], "connections");
    }
}
