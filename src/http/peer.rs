//! State of a connection that its filter, its requests and its answers share.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::limits::HEAD_TIMEOUT;

/// Client at the other end of a connection.
#[derive(Debug)]
pub struct Peer {
    /// Address; None over a socket in the file system.
    address: Option<IpAddr>,
    /// Number of the connection, unique in the process.
    pub connection: u64,
    requests: AtomicU64,
    /// Number of requests that are being answered.
    open: AtomicUsize,
    /// Whether no byte of the response to the latest request has been written.
    unanswered: AtomicBool,
    /// Keep-alive time of the last response, milliseconds.
    keep_alive_ms: AtomicU64,
}

impl Peer {
    pub fn new(address: Option<IpAddr>) -> Peer {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Peer {
            address,
            connection: 1 + LAST.fetch_add(1, Ordering::Relaxed),
            requests: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            unanswered: AtomicBool::new(false),
            keep_alive_ms: AtomicU64::new(HEAD_TIMEOUT.as_millis() as u64),
        }
    }

    /// The client's address; of an IPv6 address the network of one household (RFC 6177).
    pub fn network(&self) -> Option<IpAddr> {
        self.address.map(|address| match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                let network = address.to_bits() & !u128::from(u64::MAX);
                Ipv6Addr::from_bits(network).into()
            }
        })
    }

    /// Marks a request as being answered until the result is dropped.
    pub fn ask(self: &Arc<Peer>) -> Asked {
        let before = self.requests.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        self.unanswered.store(true, Ordering::Relaxed);
        Asked {
            peer: self.clone(),
            returns: before > 0,
        }
    }

    /// Marks that a part of the response to the latest request has been written.
    pub fn answer(&self) {
        self.unanswered.store(false, Ordering::Relaxed);
    }

    /// Whether a request is being answered, and whether no byte of its response was written.
    pub fn waits(&self) -> (bool, bool) {
        let open = self.open.load(Ordering::Relaxed) > 0;
        (open, open && self.unanswered.load(Ordering::Relaxed))
    }

    /// Sets the keep-alive time of the last response.
    pub fn set_keep_alive(&self, idle: Duration) {
        let millis = idle.as_millis() as u64;
        self.keep_alive_ms.store(millis, Ordering::Relaxed);
    }

    /// Keep-alive time of the last response.
    pub fn keep_alive(&self) -> Duration {
        Duration::from_millis(self.keep_alive_ms.load(Ordering::Relaxed))
    }
}

/// Guard of a request that is being answered.
#[derive(Debug)]
pub struct Asked {
    pub peer: Arc<Peer>,
    /// Whether the connection has brought a request before.
    pub returns: bool,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.peer.open.fetch_sub(1, Ordering::Relaxed);
    }
}
