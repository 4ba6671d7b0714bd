//! The server's side of the engine: a bounded inbox, statistics, and a way to end the engine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};

use super::calls::Calls;
use super::events::{self, Backlog, EventReceiver, EventSender};
use super::fair_queue::{Source, Waiting};
use super::limits::Limits;
use super::request::Request;
use super::sequence::events_min;
use super::stats::Stats;

/// Stage of the engine's life. Stages only ever advance, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The executor is being built; requests wait.
    Starting,
    Serving,
    /// Accepted requests are completed, new ones are rejected.
    Draining,
    /// The thread has ended, is about to end, or is blocked by a device that does not answer.
    Stopped,
}

/// A request that the engine did not accept.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    /// The queue of the request's source, or of all sources, is full: try again later.
    #[error("the queue is full; try again later")]
    Full(Request),
    /// The engine is draining or has stopped.
    #[error("the server is shutting down")]
    Stopped(Request),
}

/// State that handles and engine thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub stats: Stats,
    pub phase: watch::Sender<Phase>,
    /// Calls of the executor that takes the steps.
    pub calls: Calls,
    /// Number of starts and ends of the engine's rounds: even while the engine waits for work.
    pub rounds: AtomicU64,
    /// Counts of waiting requests of every source. Locked for a look-up only, never across a wait.
    waiting: Mutex<Waiting>,
    pub backlog: Arc<Backlog>,
}

/// Entry of a request in the queue, which the request leaves when this is dropped.
#[derive(Debug)]
pub(super) struct QueueEntry {
    shared: Arc<Shared>,
    source: Source,
    tokens: usize,
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        self.shared.waiting().remove(self.source, self.tokens);
        self.shared.stats.waiting.subtract(1);
    }
}

/// A request and its entry in the queue.
pub(super) type Queued = (Request, QueueEntry);

impl Shared {
    /// An entry for `request`, if one is free.
    fn enter_queue(self: &Arc<Shared>, request: &Request) -> Option<QueueEntry> {
        let (source, tokens) = (request.source, request.prompt.len());
        let mut waiting = self.waiting();
        if !waiting.has_capacity(source, tokens) {
            return None;
        }
        waiting.add(source, tokens);
        self.stats.waiting.add(1);
        Some(QueueEntry {
            shared: self.clone(),
            source,
            tokens,
        })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // A thread that panicked under the lock has left consistent counts.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Advances to `phase`, unless the engine is in that phase or a later one.
    pub fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            let later = *current < phase;
            *current = (*current).max(phase);
            later
        });
    }
}

/// Access to the engine. When the last handle is gone the engine drains.
#[derive(Clone, Debug)]
pub struct Handle {
    inbox: mpsc::Sender<Queued>,
    shared: Arc<Shared>,
    context: usize,
}

impl Handle {
    pub(super) fn new(limits: &Limits) -> (Handle, mpsc::Receiver<Queued>, Arc<Shared>) {
        limits.check();
        let (inbox, requests) = mpsc::channel(Waiting::most(limits.queued));
        let phase = watch::Sender::new(Phase::Starting);
        let shared = Arc::new(Shared {
            stats: Stats::default(),
            phase,
            calls: Calls::default(),
            rounds: AtomicU64::new(0),
            waiting: Mutex::new(Waiting::new(limits.queued, limits.context)),
            backlog: Arc::default(),
        });
        let handle = Handle {
            inbox,
            shared: shared.clone(),
            context: limits.context,
        };
        (handle, requests, shared)
    }

    /// Queues a request; never waits.
    ///
    /// # Errors
    /// Hands the request back when the queue is full or the engine accepts no more.
    ///
    /// # Panics
    /// If the channel of `request.events` holds fewer than two events, or fewer than three where
    /// the prompt is scored: the request could never run.
    #[expect(
        clippy::result_large_err,
        reason = "the caller gets the request back as it was"
    )]
    pub fn submit(&self, request: Request) -> Result<(), Rejected> {
        assert!(
            request.events.most() >= events_min(request.prompt_logprobs.is_some()),
            "the channel of events is too small"
        );
        let outcome = self.offer(request);
        self.stats().rejected.add(usize::from(outcome.is_err()));
        outcome
    }

    #[expect(clippy::result_large_err, reason = "as in `submit`")]
    fn offer(&self, request: Request) -> Result<(), Rejected> {
        if self.phase() >= Phase::Draining {
            return Err(Rejected::Stopped(request));
        }
        // Entries bound the inbox and the engine's own queue together, so the inbox never fills up.
        let Some(entry) = self.shared.enter_queue(&request) else {
            return Err(Rejected::Full(request));
        };
        let sent = self.inbox.try_send((request, entry));
        sent.map_err(|refused| match refused {
            mpsc::error::TrySendError::Full((request, _)) => Rejected::Full(request),
            mpsc::error::TrySendError::Closed((request, _)) => Rejected::Stopped(request),
        })
    }

    /// Whether a reply to a prompt of so many tokens would be accepted from `source`.
    pub fn has_capacity(&self, source: Source, tokens: usize) -> bool {
        self.shared.waiting().has_capacity(source, tokens)
    }

    /// Whether a reply from `source` would be rejected however short its prompt is, to be asked
    /// before the prompt is known; if so, counts the request as rejected.
    pub fn turns_away(&self, source: Source) -> bool {
        let full = !self.has_capacity(source, 1);
        self.stats().rejected.add(usize::from(full));
        full
    }

    /// A channel for the events of a reply, at most `most` unread ones.
    ///
    /// # Panics
    /// If `most` is 0.
    pub fn channel(&self, most: usize) -> (EventSender, EventReceiver) {
        events::channel(&self.shared.backlog, most)
    }

    /// Bytes of events that readers have not read.
    pub fn backlog_bytes(&self) -> usize {
        self.shared.backlog.bytes()
    }

    /// Tokens of a sequence at most, prompt and reply together.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Statistics of the engine.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// Current phase of the engine.
    pub fn phase(&self) -> Phase {
        *self.shared.phase.borrow()
    }

    /// Number of starts and ends of the engine's rounds: odd during a round. An odd number that
    /// does not change means that the round hangs.
    pub fn round(&self) -> u64 {
        self.shared.rounds.load(Ordering::Relaxed)
    }

    /// Whether the engine waits for work.
    pub fn is_idle(&self) -> bool {
        self.round().is_multiple_of(2)
    }

    /// Channel of the engine's phase, to wait until the engine serves or has stopped.
    pub fn phases(&self) -> watch::Receiver<Phase> {
        self.shared.phase.subscribe()
    }

    /// Accepts no more requests; the thread ends when the accepted ones, running and waiting, are
    /// done. To end sooner, drop the receivers of their events.
    pub fn drain(&self) {
        self.shared.enter(Phase::Draining);
    }
}
