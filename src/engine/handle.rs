//! The server's side of the engine: a bounded inbox, figures, and the way to end it.

use std::fmt;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::end::Calls;
use super::limits::Limits;
use super::request::Request;
use super::sequence::events_room;
use super::stats::Stats;

/// Where the engine is in its life. It only ever moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The executor is being built; requests wait.
    Starting,
    Serving,
    /// Accepted requests are completed, others are turned away.
    Draining,
    /// The thread has ended, is about to, or is held by a device that does not answer.
    Stopped,
}

/// A request that the engine did not take.
#[derive(Debug)]
pub enum Rejected {
    /// `Limits::queued` requests are waiting already: try again later.
    Full(Request),
    /// The engine is draining or has stopped.
    Stopped(Request),
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rejected::Full(_) => "the queue is full; try again later",
            Rejected::Stopped(_) => "the server is shutting down",
        })
    }
}

impl std::error::Error for Rejected {}

/// What the handles and the engine thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub stats: Stats,
    pub phase: watch::Sender<Phase>,
    /// Of the executor.
    pub calls: Calls,
}

impl Shared {
    /// Moves on to `phase`, unless the engine is further already.
    pub fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            let later = *current < phase;
            *current = (*current).max(phase);
            later
        });
    }
}

/// Gives requests to the engine. When the last handle is gone the engine drains.
#[derive(Clone, Debug)]
pub struct Handle {
    inbox: mpsc::Sender<Request>,
    shared: Arc<Shared>,
    queued_max: usize,
    context: usize,
}

impl Handle {
    pub(super) fn new(limits: &Limits) -> (Handle, mpsc::Receiver<Request>, Arc<Shared>) {
        limits.check();
        let (inbox, requests) = mpsc::channel(limits.queued);
        let phase = watch::Sender::new(Phase::Starting);
        let shared = Arc::new(Shared {
            stats: Stats::default(),
            phase,
            calls: Calls::default(),
        });
        let handle = Handle {
            inbox,
            shared: shared.clone(),
            queued_max: limits.queued,
            context: limits.context,
        };
        (handle, requests, shared)
    }

    /// Queues a request; never waits.
    ///
    /// # Errors
    /// Hands the request back when the queue is full or the engine takes no more.
    ///
    /// # Panics
    /// If `request.events` has room for fewer than two events, or than three where the prompt is
    /// scored: it could never run.
    #[expect(
        clippy::result_large_err,
        reason = "the caller gets the request back as it was"
    )]
    pub fn submit(&self, request: Request) -> Result<(), Rejected> {
        assert!(
            request.events.max_capacity() >= events_room(request.prompt_logprobs.is_some()),
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
        // Counts the inbox and the engine's own queue, so the inbox never fills up by itself.
        if !self.stats().waiting.add_below(self.queued_max) {
            return Err(Rejected::Full(request));
        }
        self.inbox.try_send(request).map_err(|refused| {
            self.stats().waiting.subtract(1);
            match refused {
                mpsc::error::TrySendError::Full(request) => Rejected::Full(request),
                mpsc::error::TrySendError::Closed(request) => Rejected::Stopped(request),
            }
        })
    }

    /// Tokens of a sequence at most, prompt and reply together.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Figures of the engine.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// Where the engine is now.
    pub fn phase(&self) -> Phase {
        *self.shared.phase.borrow()
    }

    /// Follows the phase, to wait until the engine serves or has stopped.
    pub fn phases(&self) -> watch::Receiver<Phase> {
        self.shared.phase.subscribe()
    }

    /// Takes no more requests; the thread ends when the accepted ones, running and waiting, are
    /// done. To end sooner, drop the receivers of their events.
    pub fn drain(&self) {
        self.shared.enter(Phase::Draining);
    }
}
