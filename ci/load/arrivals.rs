//! Clients that stay out of a server's way: they look at their sockets in the middle between two
//! of its steps, when it has nothing to do, and the kernel says when the bytes had come. How late a
//! client itself gets its turn, on cores that it shares with the server, changes nothing then.
//!
//! Their sockets are read here, not by the client of `bench serve`: the kernel's times come with
//! `recvmsg` alone. Requests and events are those of that client.

use std::io::{self, Write};
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use atlas::bench::client::{CHAT, Timings, Transcript};
use atlas::bench::sse;
use http::testing::client::request;

use super::client::ask;
use super::server::nanos;

/// Room for what comes to one client in a few steps.
const READ_BYTES: usize = 16 * 1024;
/// Steps that may pass before the first event.
const FIRST_WAIT: u32 = 8;

struct Client {
    socket: TcpStream,
    /// Events of the answer; its head and the lengths of chunks are lines that are no data.
    events: sse::Reader,
    reply: Transcript,
    open: bool,
}

impl Client {
    fn ask(address: SocketAddr, words: usize, tokens: usize) -> io::Result<Client> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        tell_arrivals(&socket)?;
        let body = ask(words, tokens).body();
        socket.write_all(&request("POST", CHAT, "", body.as_bytes()))?;
        Ok(Client {
            socket,
            events: sse::Reader::default(),
            reply: Transcript::default(),
            open: true,
        })
    }

    /// Takes what has come; returns when, or None if nothing has. Of bytes that came one after the
    /// other the kernel tells the time of the last.
    fn look(&mut self) -> io::Result<Option<u64>> {
        let mut bytes = [0; READ_BYTES];
        let (length, at) = match receive(&self.socket, &mut bytes) {
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            read => read?,
        };
        self.open = length > 0;
        let at = at.unwrap_or_else(nanos);
        let take = |data: &str| self.reply.take(data, Duration::from_nanos(at));
        let taken = self.events.feed(&bytes[..length], take);
        taken.map_err(io::Error::other)?;
        Ok(self.open.then_some(at))
    }
}

/// Has the kernel note when bytes come, which [`receive`] reads.
fn tell_arrivals(socket: &TcpStream) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = mem::size_of_val(&on) as libc::socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: the socket is open, and the call reads `length` bytes of `on`.
    let status = unsafe {
        let on = (&raw const on).cast();
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, on, length)
    };
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads what has come, without waiting: its length, and when it came, in nanoseconds since 1970.
fn receive(socket: &TcpStream, to: &mut [u8]) -> io::Result<(usize, Option<u64>)> {
    let mut part = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    // Words, since the kernel's headers are aligned like them; a time with its header takes four.
    let mut control = [0u64; 8];
    // SAFETY: a message of zeros is one without buffers.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(&control);
    // SAFETY: the socket is open, and the buffers are of the lengths given and outlive the call.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    let mut at = None;
    // SAFETY: the kernel has filled `control` and set its length; the macros stay inside, and a
    // message of this type holds a time.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(found) = header.as_ref() {
            if (found.cmsg_level, found.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
                let time = libc::CMSG_DATA(header).cast::<libc::timespec>();
                let time = time.read_unaligned();
                at = Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64);
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    Ok((length, at))
}

/// Streams at once from a server that takes a step every `pace`, each of `tokens` tokens and with a
/// prompt of another length; all must end well. Times are since 1970.
///
/// # Errors
/// When one breaks or has no end.
pub fn watch(
    address: SocketAddr,
    count: usize,
    tokens: usize,
    pace: Duration,
) -> io::Result<Vec<Timings>> {
    let clients = (0..count).map(|words| Client::ask(address, words, tokens));
    let mut clients: Vec<Client> = clients.collect::<io::Result<_>>()?;
    while clients.iter().any(|client| client.open) {
        let mut first = None;
        for client in clients.iter_mut().filter(|client| client.open) {
            let came = client.look()?;
            first = first.into_iter().chain(came).min();
        }
        // The step that followed what has just been read lies half a step back then.
        let next = first.map(|first| first + (pace * 3 / 2).as_nanos() as u64);
        thread::sleep(match next {
            Some(next) => Duration::from_nanos(next.saturating_sub(nanos())),
            None => pace / FIRST_WAIT,
        });
    }
    let replies = clients.into_iter();
    let replies = replies.map(|client| client.reply.finish(tokens).map_err(io::Error::other));
    replies.collect()
}
