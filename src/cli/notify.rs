//! Messages of `sd_notify(3)` to a service manager, as datagrams to a socket.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::{Exit, Failure};
use crate::start::boot;
use engine::{Handle, Phase};
use model::weights::Progress;

/// Time between two polls of the server.
const EVERY: Duration = Duration::from_secs(1);
/// Time that the service manager is asked to wait whenever loading has progressed: no fixed limit
/// fits every disk.
const MORE_TIME: Duration = Duration::from_secs(120);
/// Bytes of the smallest weights whose progress is reported in bytes.
const REPORTED_BYTES_MIN: u64 = 1_000_000_000;
const GB: f64 = 1e9;

/// Socket of the service manager, if there is one.
#[derive(Debug, Default)]
pub struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
}

impl Notifier {
    /// Notifier for the socket at a path, or with an abstract name, written with `@` in front.
    ///
    /// # Errors
    /// If `name` cannot be the name of a socket.
    pub fn new(name: Option<&Path>) -> Result<Notifier, Failure> {
        let Some(name) = name else {
            return Ok(Notifier::default());
        };
        let open = || Ok((UnixDatagram::unbound()?, address(name.as_os_str())?));
        let to = open().map_err(|error: io::Error| {
            let name = name.display();
            Exit::Usage.failure(format!("--notify-socket {name}: {error}"))
        })?;
        Ok(Notifier { to: Some(to) })
    }

    fn send(&self, message: impl Display) {
        if let Some((socket, address)) = &self.to {
            // A service manager that has ended, or does not read, is no reason to stop serving.
            let _ = socket.send_to_addr(message.to_string().as_bytes(), address);
        }
    }

    /// Reports that requests are answered.
    pub fn ready(&self, endpoint: impl Display) {
        self.send(format_args!("READY=1\nSTATUS=ready on {endpoint}"));
    }

    /// Reports the progress of the start, and asks for more time.
    pub fn starting(&self, status: impl Display) {
        let more = MORE_TIME.as_micros();
        self.send(format_args!("STATUS={status}\nEXTEND_TIMEOUT_USEC={more}"));
    }

    /// Reports that the server is stopping.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=finishing open replies");
    }

    /// Reports loading, then that the engine is alive, until it has stopped. An engine whose round
    /// does not end is not reported as alive.
    pub async fn follow(self: Arc<Notifier>, engine: Handle, progress: Arc<Progress>) {
        if self.to.is_none() {
            return;
        }
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut sent, mut last) = (String::new(), None);
        while engine.phase() != Phase::Stopped {
            ticks.tick().await;
            let round = engine.round();
            let moved = last.replace(round) != Some(round);
            if engine.phase() != Phase::Starting {
                if moved || engine.is_idle() {
                    self.send("WATCHDOG=1");
                }
                continue;
            }
            let status = loading(&progress);
            if status != sent {
                self.starting(&status);
                sent = status;
            }
        }
    }
}

fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(name),
    }
}

fn loading(progress: &Progress) -> String {
    let loading = boot::loading(progress);
    let done = loading.bytes_done as f64 / GB;
    let total = loading.bytes_total as f64 / GB;
    match loading.bytes_total < REPORTED_BYTES_MIN {
        true => loading.stage.to_string(),
        false => format!("{}: {done:.1} of {total:.1} GB", loading.stage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_under_paths_and_abstract_names() {
        let name = format!("atlas-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let sockets = [
            (UnixDatagram::bind(&path).unwrap(), path.clone()),
            (
                UnixDatagram::bind_addr(&abstract_name).unwrap(),
                format!("@{name}").into(),
            ),
        ];
        for (socket, name) in sockets {
            Notifier::new(Some(&name)).unwrap().ready("http://here");
            let mut text = [0; 64];
            let bytes = socket.recv(&mut text).unwrap();
            assert_eq!(&text[..bytes], b"READY=1\nSTATUS=ready on http://here");
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn nothing_is_sent_without_a_socket_or_to_a_dead_one() {
        Notifier::new(None).unwrap().ready("");
        Notifier::new(Some(Path::new("/nowhere/socket")))
            .unwrap()
            .stopping();
        let long = "x".repeat(200);
        assert!(Notifier::new(Some(Path::new(&long))).is_err());
    }
}
