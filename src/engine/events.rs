//! Channel of a reply's events to the client's reader, large enough for the whole reply.
//!
//! A slow reader therefore does not keep a slot: the slot is free as soon as the reply is complete.
//! Unread events of all replies together are bounded too: beyond that bound a reply may be only
//! `AHEAD_MAX` events ahead of its reader, and waits in its slot.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::sync::{Notify, mpsc};

use super::request::{Event, Scored, TokenLogprobs};
use step::executor::TokenId;

/// Largest number of bytes of unread events, of all replies together.
pub const BACKLOG_BYTES_MAX: usize = 24 * 1024 * 1024;
/// Events that a reply may be ahead of its reader while the backlog is full.
pub const AHEAD_MAX: usize = 64;
/// Bytes that the system's allocator adds to a block.
const BLOCK_BYTES: usize = 16;

/// Count of the bytes of unread events, shared by the channels of all replies.
#[derive(Debug, Default)]
pub struct Backlog {
    bytes: AtomicUsize,
    /// Notified when a reader has taken an event.
    taken: Notify,
}

impl Backlog {
    /// Bytes of unread events.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn is_full(&self) -> bool {
        self.bytes() >= BACKLOG_BYTES_MAX
    }

    fn remove(&self, event: &Event) {
        self.bytes.fetch_sub(bytes(event), Ordering::Relaxed);
    }
}

/// Bytes of memory that an event takes.
fn bytes(event: &Event) -> usize {
    let of_top = |top: &Vec<(TokenId, f32)>| BLOCK_BYTES + mem::size_of_val(top.as_slice());
    let heap = match event {
        Event::Prompt(scores) => {
            let tops = scores.iter().map(|scored| of_top(&scored.logprobs.top));
            BLOCK_BYTES + scores.len() * size_of::<Scored>() + tops.sum::<usize>()
        }
        Event::Token { logprobs, .. } => logprobs.as_ref().map_or(0, |logprobs| {
            BLOCK_BYTES + size_of::<TokenLogprobs>() + of_top(&logprobs.top)
        }),
        Event::Done(_) => 0,
        Event::Failed(text) | Event::Refused(text) => BLOCK_BYTES + text.len(),
    };
    size_of::<Event>() + heap
}

/// A channel for at most `most` unread events.
///
/// # Panics
/// If `most` is 0.
pub fn channel(backlog: &Arc<Backlog>, most: usize) -> (EventSender, EventReceiver) {
    let (sender, receiver) = mpsc::channel(most);
    let backlog = backlog.clone();
    let sender = EventSender {
        sender,
        backlog: backlog.clone(),
    };
    (sender, EventReceiver { receiver, backlog })
}

/// The engine's end of an event channel.
#[derive(Debug)]
pub struct EventSender {
    sender: mpsc::Sender<Event>,
    backlog: Arc<Backlog>,
}

impl EventSender {
    /// Whether `count` more events may be sent.
    pub fn has_capacity(&self, count: usize) -> bool {
        let lying = self.sender.max_capacity() - self.sender.capacity();
        let near = lying + count <= AHEAD_MAX;
        self.sender.capacity() >= count && (near || !self.backlog.is_full())
    }

    /// Completes once `count` more events may be sent, or the reader is gone.
    pub async fn wait_for_capacity(&self, count: usize) {
        loop {
            let mut taken = pin!(self.backlog.taken.notified());
            taken.as_mut().enable();
            if self.has_capacity(count) || self.is_closed() {
                return;
            }
            taken.await;
        }
    }

    /// The most events that the channel holds.
    pub fn most(&self) -> usize {
        self.sender.max_capacity()
    }

    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Completes when the reader is gone.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }

    /// Sends an event for which there is capacity; returns false if the reader is gone.
    pub fn send(&self, event: Event) -> bool {
        let added = bytes(&event);
        self.backlog.bytes.fetch_add(added, Ordering::Relaxed);
        let sent = self.sender.try_send(event).is_ok();
        if !sent {
            self.backlog.bytes.fetch_sub(added, Ordering::Relaxed);
        }
        sent
    }
}

/// The reader's end of an event channel.
#[derive(Debug)]
pub struct EventReceiver {
    receiver: mpsc::Receiver<Event>,
    backlog: Arc<Backlog>,
}

impl EventReceiver {
    /// Polls for the next event; none after the last.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let event = self.receiver.poll_recv(cx);
        if let Poll::Ready(event) = &event {
            self.took(event.as_ref());
        }
        event
    }

    /// [`EventReceiver::poll_recv`] on a thread that may wait.
    pub fn blocking_recv(&mut self) -> Option<Event> {
        let event = self.receiver.blocking_recv();
        self.took(event.as_ref());
        event
    }

    /// Takes the next event without waiting.
    ///
    /// # Errors
    /// If no event is there yet, or none will come any more.
    pub fn try_recv(&mut self) -> Result<Event, mpsc::error::TryRecvError> {
        let event = self.receiver.try_recv();
        self.took(event.as_ref().ok());
        event
    }

    fn took(&self, event: Option<&Event>) {
        if let Some(event) = event {
            self.backlog.remove(event);
            self.backlog.taken.notify_waiters();
        }
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        self.receiver.close();
        while let Ok(event) = self.receiver.try_recv() {
            self.backlog.remove(&event);
        }
        self.backlog.taken.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(top: usize) -> Event {
        let logprobs = TokenLogprobs {
            logprob: 0.0,
            top: vec![(0, 0.0); top],
        };
        Event::Token {
            id: 0,
            logprobs: Some(Box::new(logprobs)),
        }
    }

    #[test]
    fn events_that_are_read_or_dropped_leave_the_backlog() {
        let backlog = Arc::default();
        let (sender, mut receiver) = channel(&backlog, 4);
        for top in [0, 20, 3] {
            assert!(sender.send(token(top)));
        }
        assert!(backlog.bytes() > 3 * size_of::<Event>() + 23 * 8);
        assert_eq!(receiver.try_recv(), Ok(token(0)));
        let left = bytes(&token(20)) + bytes(&token(3));
        assert_eq!(backlog.bytes(), left);
        drop(receiver);
        assert!(!sender.send(token(1)) && sender.is_closed());
        assert_eq!(backlog.bytes(), 0);
    }

    #[test]
    fn a_full_backlog_leaves_each_reply_a_few_events() {
        let backlog: Arc<Backlog> = Arc::default();
        let (sender, _receiver) = channel(&backlog, 10 * AHEAD_MAX);
        let (other, _reader) = channel(&backlog, 10 * AHEAD_MAX);
        assert!(sender.has_capacity(10 * AHEAD_MAX) && !sender.has_capacity(10 * AHEAD_MAX + 1));
        (0..AHEAD_MAX).for_each(|_| assert!(sender.send(token(0))));
        assert!(sender.has_capacity(1));
        backlog
            .bytes
            .fetch_add(BACKLOG_BYTES_MAX, Ordering::Relaxed);
        assert!(!sender.has_capacity(1));
        assert!(other.has_capacity(AHEAD_MAX) && !other.has_capacity(AHEAD_MAX + 1));
    }
}
