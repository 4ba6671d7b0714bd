//! The engine: one thread that owns the device, fed by one bounded inbox.
//!
//! Life of a request:
//! 1. `Handle::submit` puts it into the inbox, or hands it back when too many wait.
//! 2. The engine checks the request against the limits; one that can never run fails at once.
//! 3. The request waits in the fair order (`fair_queue`); for a prefix of its prompt that another
//!    request of the same client is computing; and for a slot and all pages that it can ever need.
//!    The request starts after the cached part of its prompt (`prefix`).
//! 4. `scheduler::plan` gives the request rows: chunks of its prompt, then one row per step and
//!    those of its drafts (`speculate`). Prompts of clients with the fewest slots come first.
//! 5. The executor runs the rows. The logits after the last known token come back: the largest ones
//!    in the device's ranking, or all. Scored prompts get all logits of their rows.
//! 6. `sampler` chooses the next token among those that the request's constraint allows. The token
//!    goes out as an event; so does the end of the reply. If the token is the next row's draft,
//!    that row's logits give one more token.
//! 7. Slot and pages are freed in the round in which the request ended or its reader left. Events
//!    that are not read by then stay in the channel (`events`).
//!
//! Batch invariance: the events of a request do not depend on what else runs.

mod acceptance_rate;
pub mod adaptive;
#[cfg(test)]
mod agents_tests;
mod calls;
pub mod constraint;
mod drafts;
mod dry;
pub mod events;
pub mod fair_queue;
mod forbidden;
mod handle;
mod kv;
mod limits;
mod predict;
#[cfg(test)]
mod predict_tests;
mod prefill_budget;
mod prefix;
pub mod request;
pub mod rng;
pub mod sampler;
mod scheduler;
mod sequence;
mod slowdown;
pub mod speculate;
mod stats;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod thinking;
pub mod tier;
mod watchdog;
mod windows;

use std::collections::VecDeque;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc as std_mpsc};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

pub use self::handle::{Handle, Phase, Rejected};
pub use self::limits::{Limits, Setup};
pub use self::stats::{Figure, Metric, Stats};
pub use self::watchdog::Thread;

use self::constraint::MaskThreads;
use self::drafts::Drafter;
use self::fair_queue::{FairQueue, SlotCounts};
use self::handle::{Queued, Shared};
use self::kv::{Kv, Reservation};
use self::prefill_budget::PrefillBudget;
use self::prefix::{Hit, Keyed};
use self::request::{Admission, Event, FinishReason, Request};
use self::sampler::Scratch;
use self::scheduler::{Candidate, Plan, Scheduled};
use self::sequence::{End, Sequence};
use self::slowdown::Slowdown;
use self::speculate::{Costs, DraftCost, Proposal, Speculate};
use self::tier::{ReadAhead, Tier, disk};
use self::watchdog::Watched;
use step::PAGE;
use step::executor::{DeviceError, Drafted, Executor, SeqRows, TokenId};

/// Error text for clients whose replies end because the device failed.
pub const DEVICE_FAILED: &str = "the device failed; the server is stopping";
const START_FAILED: &str = "the model could not be started";
/// Error text for a client that did not read its reply in time.
const TOO_SLOW: &str = "the reply is read too slowly, and others wait for its place";
/// Longest time that a reply may keep its slot for a client that does not read, while other
/// requests wait and the backlog of all readers is full.
const READER_LAG_MAX: Duration = Duration::from_secs(10);
/// Interval at which running copies are polled when there is nothing else to do.
const COPIED_LOOK: Duration = Duration::from_micros(100);
const INTERNAL: &str = "internal error; the server is stopping";

/// Reason for which the engine thread ended before it was asked to end.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The executor could not be built.
    #[error("the model could not be started: {0}")]
    Start(Box<dyn Error + Send + Sync>),
    /// A step failed; the device must not be used again.
    #[error("the device failed: {0}")]
    Device(DeviceError),
    /// A call of the device did not return for so long; the engine's thread hangs in that call.
    #[error(
        "the device did not answer for {} s: it is lost, or what it computes has no end; see \
         `dmesg` and `nvidia-smi`, and reboot if they do not answer either",
        .0.as_secs_f32()
    )]
    Unresponsive(Duration),
    /// An invariant broke; the panic's message has been printed already.
    #[error("the engine broke an invariant and stopped")]
    Panicked,
}

impl EngineError {
    /// Whether no call of the device may be made any more, not even to free memory.
    pub fn is_of_device(&self) -> bool {
        matches!(self, EngineError::Device(_) | EngineError::Unresponsive(_))
    }
}

/// Result with which the engine ends.
pub type Outcome = Result<(), EngineError>;

/// Starts the engine thread, which builds the executor, serves until drained, and returns why it
/// ended.
///
/// # Panics
/// If the system refuses a thread, or the limits cannot run anything.
pub fn spawn<E, F>(setup: impl Into<Setup>, make: F) -> (Handle, Thread)
where
    E: Executor,
    F: FnOnce() -> Result<E, Box<dyn Error + Send + Sync>> + Send + 'static,
{
    let setup = setup.into();
    let (handle, inbox, shared) = Handle::new(&setup.limits);
    let (end, ended) = std_mpsc::channel();
    let thread = Thread {
        ended,
        shared: shared.clone(),
        patience: E::PATIENCE,
    };
    // The send fails if no thread waits for the engine's end.
    let body = move || drop(end.send(serve(setup, make, inbox, shared)));
    let builder = thread::Builder::new().name("engine".to_owned());
    builder.spawn(body).expect("the system refuses a thread");
    (handle, thread)
}

/// Body of the engine thread. However the engine ends, each accepted request has got its terminal
/// event, unless the device blocks the thread for ever (see `watchdog`).
fn serve<E: Executor>(
    Setup { limits, disk }: Setup,
    make: impl FnOnce() -> Result<E, Box<dyn Error + Send + Sync>>,
    mut inbox: mpsc::Receiver<Queued>,
    shared: Arc<Shared>,
) -> Outcome {
    let start = || make().and_then(|made| Ok((made, runtime()?)));
    let started = catch_unwind(AssertUnwindSafe(start));
    let (executor, runtime) = match started.unwrap_or_else(|_| Err("a panic, printed above".into()))
    {
        Ok(started) => started,
        Err(cause) => {
            shared.enter(Phase::Stopped);
            refuse_queued(&mut inbox, &shared.stats, START_FAILED);
            return Err(EngineError::Start(cause));
        }
    };
    let executor = Watched {
        executor,
        shared: shared.clone(),
    };
    let mut engine = Engine::new(executor, runtime, limits, inbox, shared);
    let outcome = catch_unwind(AssertUnwindSafe(|| engine.run(disk)));
    let outcome = outcome.unwrap_or(Err(EngineError::Panicked));
    engine.stop(match &outcome {
        Err(EngineError::Device(_)) => DEVICE_FAILED,
        _ => INTERNAL,
    });
    if let Err(EngineError::Device(_)) = outcome {
        // Freeing device memory could block for ever, and the process ends anyway.
        mem::forget(engine.executor);
    }
    outcome
}

/// Runtime for waiting on this thread: without I/O or other threads.
fn runtime() -> Result<Runtime, Box<dyn Error + Send + Sync>> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    Ok(builder.enable_time().build()?)
}

/// Outcome of one round of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// Ran a step, or waited for masks.
    Stepped,
    /// No sequence could run: all wait for their readers, or no sequence is left.
    Idle,
    /// No sequence is left, and the inbox is closed.
    Finished,
}

/// A request that waits for a slot.
struct Waits {
    queued: Queued,
    /// Running sequence that computes a prefix of the request's prompt, and the prefix's tokens.
    computed_by: Option<(u64, usize)>,
    /// Ticket of the read-ahead of the request's prompt; outer none until the disk was asked, inner
    /// none if the disk has nothing.
    read: Option<Option<u64>>,
    /// Ticket of the checksums of the pages that the tier would restore for the request.
    check: Option<u64>,
}

impl Waits {
    fn request(&self) -> &Request {
        &self.queued.0
    }

    /// Gives up the request's tickets, once the request has started or never will.
    fn forget(&self, tier: &mut Tier) {
        if let Some(read) = self.read.flatten() {
            tier.forget(read);
        }
        self.check.into_iter().for_each(|check| tier.uncheck(check));
    }
}

struct Engine<E> {
    executor: E,
    runtime: Runtime,
    limits: Limits,
    inbox: mpsc::Receiver<Queued>,
    /// Whether the inbox can still bring requests.
    open: bool,
    shared: Arc<Shared>,
    phases: watch::Receiver<Phase>,
    /// Waiting requests in the order of their arrival.
    waiting: VecDeque<Waits>,
    fair_queue: FairQueue,
    /// Time of the last round, and whether requests waited for a slot in it.
    last_round: Instant,
    contended: bool,
    /// Whether copies to or from the host were under way at the latest admission.
    copied: bool,
    /// Running sequences in the order of their admission.
    running: Vec<Sequence>,
    kv: Kv,
    /// Tier of the prefix cache in host memory, if the limits give it some.
    tier: Option<Tier>,
    /// Whether prompts were left out of the last step in favour of a client with fewer slots.
    left_out: bool,
    /// Number of steps so far for which more sequences were ready than a step has.
    crowded: usize,
    /// `running` as the plan of this round sees it, in the same order; reused for its memory.
    candidates: Vec<Candidate>,
    plan: Plan,
    prefill_budget: PrefillBudget,
    slowdown: Slowdown,
    /// Clock by which steps are measured; `begun` is this clock's time in the first round.
    now: fn() -> Instant,
    begun: Option<Instant>,
    /// Number of sequences that have been admitted.
    admitted: u64,
    /// Tokens and time of all steps with prompts alone: the speed of prefill.
    prompts_alone: (usize, Duration),
    drafter: Drafter,
    costs: Costs,
    /// Drafts that the device computes while the host samples.
    pending_drafts: Option<predict::PendingDrafts>,
    /// Drafts that have come from the device; a field for its memory.
    drafted: Vec<Drafted>,
    /// Drafts that sequences may have in the next step; reused for its memory.
    proposals: Vec<Proposal>,
    /// Prefill budget of the planned step.
    prompt_tokens: usize,
    rows: Vec<SeqRows<'static>>,
    /// Rows of the step that score a prompt, and their logits; empty until a request wants scores.
    scored_rows: Vec<usize>,
    scored_logits: Vec<f32>,
    scratch: Scratch,
    mask_threads: MaskThreads,
}

impl<E: Executor> Engine<E> {
    fn new(
        executor: E,
        runtime: Runtime,
        mut limits: Limits,
        inbox: mpsc::Receiver<Queued>,
        shared: Arc<Shared>,
    ) -> Self {
        limits.pages = limits.pages.min(executor.pages().unwrap_or(usize::MAX));
        shared.stats.pages_total.set(limits.pages);
        let windowed = limits.window.map_or(0, |window| window.pages);
        shared.stats.window_pages_total.set(windowed);
        let slowdown = Slowdown::new(&shared.stats.slowdown);
        Engine {
            executor,
            runtime,
            limits,
            inbox,
            open: true,
            phases: shared.phase.subscribe(),
            shared,
            waiting: VecDeque::with_capacity(limits.queued),
            fair_queue: FairQueue::default(),
            last_round: Instant::now(),
            contended: false,
            copied: false,
            running: Vec::with_capacity(limits.slots()),
            kv: Kv::new(
                (limits.slots(), limits.spare_snapshots(), limits.drafts),
                limits.pages,
                limits.context,
                Keyed::default(),
            )
            .with_window(limits.window),
            tier: None,
            left_out: false,
            crowded: 0,
            candidates: Vec::with_capacity(limits.slots()),
            plan: Plan::new(limits.slots()),
            prompt_tokens: limits.prefill_tokens,
            drafter: Drafter::NGram,
            pending_drafts: None,
            drafted: Vec::new(),
            costs: Costs::default(),
            proposals: Vec::with_capacity(limits.sequences),
            prefill_budget: PrefillBudget::new(limits.reply_gap, limits.prefill_tokens),
            slowdown,
            now: Instant::now,
            begun: None,
            admitted: 0,
            prompts_alone: (0, Duration::ZERO),
            rows: Vec::with_capacity(limits.sequences),
            scored_rows: Vec::new(),
            scored_logits: Vec::new(),
            scratch: Scratch::new(E::VOCAB),
            mask_threads: MaskThreads::new(),
        }
    }

    /// Serves until the engine is drained.
    fn run(&mut self, disk: Option<disk::Options>) -> Outcome {
        self.open_tier(disk).map_err(EngineError::Device)?;
        self.choose_drafter().map_err(EngineError::Device)?;
        self.shared.enter(Phase::Serving);
        loop {
            self.shared.rounds.fetch_add(1, Ordering::Relaxed);
            let round = self.round().map_err(EngineError::Device)?;
            self.shared.rounds.fetch_add(1, Ordering::Relaxed);
            match round {
                Round::Stepped => {}
                Round::Idle => self.wait(),
                Round::Finished => return Ok(()),
            }
        }
    }

    /// Takes the tier's host memory, if the limits have some, and opens the disk below the tier.
    fn open_tier(&mut self, disk: Option<disk::Options>) -> Result<(), DeviceError> {
        let bytes = self.limits.host_bytes;
        if bytes == 0 {
            return Ok(());
        }
        let pieces = self.executor.piece_bytes();
        let tier = pieces.and_then(|pieces| Tier::new(bytes, pieces, Keyed::default()));
        let Some(mut tier) = tier else {
            let why = match pieces {
                Some(_) => "is too little for a page and a state: give more",
                None => "cannot be used, as nothing of this target can be kept there: leave it out",
            };
            let text = format!("--cache-host of {bytes} bytes {why}");
            return Err(DeviceError::Memory(text));
        };
        self.executor.take_host_memory(bytes)?;
        self.shared.stats.host_bytes.set(bytes);
        if let Some(disk) = disk {
            self.shared.stats.disk_bytes.set(disk.bytes as usize);
            tier.open_disk(disk);
        }
        self.tier = Some(tier);
        Ok(())
    }

    fn round(&mut self) -> Result<Round, DeviceError> {
        self.receive();
        self.take_copied()?;
        self.drop_abandoned();
        self.drop_slow(Instant::now());
        self.resume(Instant::now());
        self.take_pending_drafts()?;
        self.admit();
        self.start_copies()?;
        self.plan();
        if self.plan.scheduled.is_empty() {
            return Ok(self.without_work());
        }
        let begun = (self.now)();
        self.step()?;
        self.score()?;
        self.emit()?;
        self.note_step_time((self.now)() - begun);
        if self.pending_drafts.is_none() {
            self.predict()?;
        }
        self.free();
        Ok(Round::Stepped)
    }

    /// Marks sequences as ready whose cached pages have been restored from the host.
    fn take_copied(&mut self) -> Result<(), DeviceError> {
        let Some(tier) = &mut self.tier else {
            return Ok(());
        };
        let filled = tier.settle(&mut self.executor, &mut self.kv)?;
        for sequence in &mut self.running {
            sequence.restoring &= !filled.contains(&sequence.slot);
        }
        Ok(())
    }

    /// Starts copies to and from the host, which run beside the next step.
    fn start_copies(&mut self) -> Result<(), DeviceError> {
        let Some(tier) = &mut self.tier else {
            return Ok(());
        };
        tier.start(&mut self.executor, &mut self.kv)?;
        let (stats, traffic, evicted) = (&self.shared.stats, tier.traffic(), tier.evicted());
        stats.host_saved_bytes.set(traffic.saved_bytes);
        stats.host_restored_bytes.set(traffic.restored_bytes);
        stats.host_bytes_used.set(tier.bytes_used());
        stats.host_broken.set(tier.broken());
        stats.host_evictions.set(evicted.count);
        stats.host_evicted_tokens.set(evicted.pages * PAGE);
        let age = evicted.age.as_millis() as usize;
        stats.host_evicted_age_millis.set(age);
        if let Some(staging) = tier.staging() {
            stats.set_disk(staging);
        }
        Ok(())
    }

    /// Whether copies to or from the host are under way.
    fn copies(&self) -> bool {
        self.tier.as_ref().is_some_and(Tier::is_busy)
    }

    /// Moves requests from the inbox to the queue.
    fn receive(&mut self) {
        if self.open && *self.phases.borrow() >= Phase::Draining {
            self.inbox.close();
        }
        while self.open {
            match self.inbox.try_recv() {
                Ok(request) => self.enqueue(request),
                Err(mpsc::error::TryRecvError::Empty) => return,
                Err(mpsc::error::TryRecvError::Disconnected) => self.open = false,
            }
        }
    }

    fn enqueue(&mut self, queued: Queued) {
        match self.limits.check_request(&queued.0, E::VOCAB) {
            Ok(()) => self.waiting.push_back(Waits {
                queued,
                computed_by: None,
                read: None,
                check: None,
            }),
            Err(text) => refuse(queued, &self.shared.stats, &text),
        }
    }

    /// Drops requests whose reader is gone, running or waiting.
    fn drop_abandoned(&mut self) {
        let stats = &self.shared.stats;
        let tier = &mut self.tier;
        self.waiting.retain(|waits| {
            let abandoned = waits.request().events.is_closed();
            if let (true, Some(tier)) = (abandoned, tier.as_mut()) {
                waits.forget(tier);
            }
            stats.cancelled.add(usize::from(abandoned));
            !abandoned
        });
        let running = self.running.iter_mut();
        for sequence in running.filter(|sequence| sequence.is_abandoned()) {
            sequence.end = Some(End::Cancelled);
        }
        self.free();
    }

    /// Ends replies that slow readers have kept in slots for too long while other requests wait.
    fn drop_slow(&mut self, now: Instant) {
        let passed = now - mem::replace(&mut self.last_round, now);
        if !self.contended {
            return;
        }
        for sequence in &mut self.running {
            if sequence.end.is_none() && sequence.waits_for_reader() {
                sequence.reader_lag += passed;
                if sequence.reader_lag > READER_LAG_MAX {
                    sequence.fail(TOO_SLOW);
                }
            }
        }
        self.free();
    }

    /// Gives slots and pages to waiting requests in the fair order. A large request that comes next
    /// is not overtaken, or small ones could keep it out for ever; a blocked request is overtaken.
    fn admit(&mut self) {
        let now = (self.now)();
        let begun = *self.begun.get_or_insert(now);
        let time = now.saturating_duration_since(begun);
        self.kv.set_time(time);
        if let Some(tier) = &mut self.tier {
            tier.set_time(time);
        }
        self.read_ahead();
        while self.kv.slots_free() > 0 && !self.waiting.is_empty() {
            let slots = self.slot_counts();
            let Some(next) = self.next(&slots) else {
                break;
            };
            self.waiting[next].computed_by = self.computed_by_another(self.waiting[next].request());
            if self.waiting[next].computed_by.is_some() {
                continue;
            }
            let below = self.below(next);
            if !self.is_checked(next, below.as_ref()) {
                continue;
            }
            let request = self.waiting[next].request();
            let tokens = request.prompt.len() + request.max_tokens;
            let looked_up = looked_up(request);
            let looked_up_tokens = looked_up.len();
            let reservation = Reservation {
                owner: request.source.client,
                domain: request.domain,
                prompt: looked_up,
                leaves_share: self.fair_queue.leaves_share(request.source, &slots),
                restorable: below.as_ref().map_or(0, |hit| hit.pages.len()),
            };
            let Some(begin) = self.kv.reserve(tokens, reservation) else {
                break;
            };
            let waits = self.waiting.remove(next).expect("it waits");
            let source = waits.request().source;
            self.fair_queue.note_served(source);
            if let (Some(tier), Some(hit)) = (&mut self.tier, &below) {
                tier.note_use(hit, source.client);
                if let Some(here) = begin.restore_after {
                    let pages = &self.kv.pages(begin.slot)[here..hit.pages.len()];
                    let window = self.kv.window(begin.slot).pages;
                    tier.restore(begin.slot, hit, (pages, window));
                    let tokens = pages.len() * PAGE;
                    self.shared.stats.restored_tokens.add(tokens);
                }
                waits.forget(tier);
            }
            let (request, entry) = waits.queued;
            drop(entry);
            let (at, cached) = (Instant::now(), begin.cached);
            let _ = request.admitted.set(Admission { at, cached });
            self.shared.stats.looked_up_tokens.add(looked_up_tokens);
            self.shared.stats.cached_tokens.add(begin.cached);
            let (tokens, took) = self.prompts_alone;
            let saved = took.as_nanos() * begin.cached as u128 / tokens.max(1) as u128;
            self.shared.stats.saved_nanos.add(saved as usize);
            self.admitted += 1;
            let numbered = (self.admitted, request);
            let spacing = self.kv.recurs().then_some(self.limits.spacing);
            let sequence = Sequence::new(numbered, begin, spacing, &self.mask_threads);
            self.running.push(sequence);
        }
        self.contended = self.waiting.iter().any(|waits| !self.is_blocked(waits));
        self.copied = self.copies();
        assert!(
            !self.running.is_empty() || self.waiting.is_empty() || self.copied,
            "an admissible request waits"
        );
        self.count_running();
    }

    /// Prefix of a waiting request's prompt that the tier has.
    fn below(&self, next: usize) -> Option<Hit> {
        let request = self.waiting[next].request();
        let tier = self.tier.as_ref()?;
        Some(tier.look_up(request.domain, looked_up(request)))
    }

    /// Whether checksums have shown that the pages that the tier would restore are unchanged; if
    /// there are no results yet, starts to compute the checksums.
    fn is_checked(&mut self, next: usize, below: Option<&Hit>) -> bool {
        let (Some(tier), Some(hit)) = (&mut self.tier, below) else {
            return true;
        };
        let Waits { queued, check, .. } = &mut self.waiting[next];
        let (request, pages) = (&queued.0, hit.pages.len());
        let kv = &self.kv;
        let here = kv.restore_after(request.domain, looked_up(request), pages);
        here.is_none_or(|here| tier.is_checked(check, hit, here))
    }

    /// Has the disk read prefixes of waiting prompts ahead of their admission.
    fn read_ahead(&mut self) {
        let Some(tier) = &mut self.tier else { return };
        let (tokens, took) = self.prompts_alone;
        let takes = (tokens > 0).then(|| took.mul_f64(PAGE as f64 / tokens as f64));
        for waits in self.waiting.iter_mut().filter(|waits| waits.read.is_none()) {
            let request = waits.request();
            let prompt = looked_up(request);
            waits.read = Some(tier.read_ahead(&ReadAhead {
                whose: (request.domain, request.source.client),
                prompt,
                here: self.kv.pages_known(request.domain, prompt),
                takes,
            }));
        }
    }

    /// Slots that each owner holds.
    fn slot_counts(&self) -> SlotCounts {
        SlotCounts::of(self.running.iter().map(|sequence| sequence.source))
    }

    /// Number of the running sequence, of the same client, that will cache the longest prefix of a
    /// request's prompt, and that prefix's length in tokens. Waiting for it takes no longer than
    /// computing it again.
    fn computed_by_another(&self, request: &Request) -> Option<(u64, usize)> {
        let whose = (request.source.client, request.domain);
        let computed = self.running.iter().filter_map(|other| {
            let is_like = (other.source.client, other.domain) == whose && other.is_plain_prompt();
            let tokens = is_like.then(|| other.computes(looked_up(request)))??;
            Some((other.number, tokens))
        });
        computed.max_by_key(|(_, tokens)| *tokens)
    }

    /// Whether a request still waits for a prefix that is being computed, read or checked.
    fn is_blocked(&self, waits: &Waits) -> bool {
        let read = waits.read.flatten();
        let tier = self.tier.as_ref();
        let is_read = |tier: &Tier| read.is_some_and(|read| tier.reads(read));
        let is_checked = |tier: &Tier| waits.check.is_some_and(|check| tier.checks(check));
        if tier.is_some_and(|tier| is_read(tier) || is_checked(tier)) {
            return true;
        }
        waits.computed_by.is_some_and(|(number, tokens)| {
            let mut running = self.running.iter();
            running.any(|other| other.number == number && other.is_within(tokens))
        })
    }

    /// Index of the waiting request that is admitted next.
    fn next(&self, slots: &SlotCounts) -> Option<usize> {
        let waiting = self.waiting.iter().enumerate();
        let ready = waiting.filter(|(_, waits)| !self.is_blocked(waits));
        let ready: Vec<usize> = ready.map(|(index, _)| index).collect();
        let sources = ready.iter();
        let sources = sources.map(|&index| self.waiting[index].request().source);
        let beyond_step = self.running.len() >= self.limits.sequences;
        let next = self.fair_queue.next(sources, slots, beyond_step);
        next.map(|next| ready[next])
    }

    fn plan(&mut self) {
        self.candidates.clear();
        self.candidates
            .extend(self.running.iter().map(Sequence::candidate));
        self.left_out = !self.left_out && self.leave_out();
        self.leave_one_out();
        let most = self.limits.prefill_tokens;
        self.prompt_tokens = match self.replies() {
            true => self.prefill_budget.tokens(most),
            false => most,
        };
        self.draft();
        scheduler::plan(&self.candidates, self.prompt_tokens, &mut self.plan);
    }

    /// Drafts tokens for the replies of the next step, as many as pay.
    fn draft(&mut self) {
        let (limits, drafter) = (&self.limits, self.drafter);
        if limits.drafts == 0 || limits.speculate == Speculate::Off {
            return;
        }
        let most = self.drafts_max();
        let pairs = self.candidates.iter_mut().zip(&mut self.running);
        let replies = pairs.filter(|(candidate, _)| candidate.is_reply());
        let mut replies: Vec<_> = replies.collect();
        self.proposals.clear();
        let drafted = replies.iter_mut();
        let drafted = drafted.map(|(_, sequence)| sequence.draft(drafter, &self.costs));
        self.proposals.extend(drafted);
        let most = (most, DraftCost::Spent);
        speculate::choose(limits.speculate, &self.costs, most, &mut self.proposals);
        for ((candidate, sequence), chosen) in replies.into_iter().zip(&self.proposals) {
            sequence.choose(*chosen);
            candidate.drafts = chosen.drafts;
        }
    }

    /// Largest number of drafts of the next step.
    fn drafts_max(&self) -> usize {
        match self.kv.recurs() {
            true => self.kv.drafts_free(),
            false => self.limits.drafts,
        }
    }

    /// Whether the planned step has a reply.
    fn replies(&self) -> bool {
        self.candidates.iter().any(Candidate::is_reply)
    }

    /// Adds the time of the last step: to the prefill budget and to the costs of drafts if the step
    /// had replies, else to the speed of prefill.
    fn note_step_time(&mut self, took: Duration) {
        let scheduled = self.plan.scheduled.iter();
        if !self.replies() {
            let (tokens, all) = &mut self.prompts_alone;
            *tokens += scheduled.map(|of| of.tokens).sum::<usize>();
            *all += took;
            return;
        }
        let is_prompt = |of: &&Scheduled| self.candidates[of.index].is_prompt();
        let prompts = scheduled.clone().filter(is_prompt).map(|of| of.tokens);
        let prompts = prompts.sum();
        self.prefill_budget.note(prompts, took);
        self.costs.forget();
        if prompts == 0 {
            self.costs.note(scheduled.map(|of| of.tokens).sum(), took);
        }
    }

    /// Leaves out the prompts of owners that hold several slots, if an owner of another prompt
    /// holds one slot alone: a first token does not wait for the prompts of a flood. Returns
    /// whether any prompt was left out.
    fn leave_out(&mut self) -> bool {
        let candidates = self.candidates.iter().enumerate();
        let prompts = candidates.filter(|(_, candidate)| candidate.ready && candidate.is_prompt());
        let prompts: Vec<usize> = prompts.map(|(index, _)| index).collect();
        if prompts.len() < 2 {
            return false;
        }
        let slots = self.slot_counts();
        let priority = |index: usize| slots.step_priority(self.running[index].source);
        let first = prompts.iter().map(|&index| priority(index)).min();
        let later = |index: &usize| Some(priority(*index)) > first;
        let later: Vec<usize> = prompts.into_iter().filter(later).collect();
        for &index in &later {
            self.candidates[index].ready = false;
        }
        !later.is_empty()
    }

    /// Leaves out one sequence of the owner with the most slots, another sequence each time, if
    /// more are ready than a step has.
    fn leave_one_out(&mut self) {
        let candidates = self.candidates.iter().enumerate();
        let ready = candidates.filter(|(_, candidate)| candidate.ready);
        let ready: Vec<usize> = ready.map(|(index, _)| index).collect();
        if ready.len() <= self.limits.sequences {
            return;
        }
        let slots = self.slot_counts();
        let by = |index: usize| slots.by(self.running[index].source);
        let most = ready.iter().map(|&index| by(index)).max();
        let of_most = ready.into_iter();
        let of_most = of_most.filter(|&index| Some(by(index)) == most);
        let of_most: Vec<usize> = of_most.collect();
        self.candidates[of_most[self.crowded % of_most.len()]].ready = false;
        self.crowded += 1;
    }

    /// Samples for sequences whose late masks have come by the deadline.
    fn resume(&mut self, deadline: Instant) {
        let mut generated = 0;
        for sequence in &mut self.running {
            let came = sequence.resume(&mut self.scratch, &self.mask_threads, deadline);
            generated += usize::from(came);
        }
        self.shared.stats.generated_tokens.add(generated);
        self.free();
    }

    fn without_work(&mut self) -> Round {
        if self.running.iter().any(Sequence::waits_for_mask) {
            self.resume(Instant::now() + constraint::PATIENCE);
            return Round::Stepped;
        }
        if self.copies() {
            thread::sleep(COPIED_LOOK);
            return Round::Stepped;
        }
        // A copy that has ended since the admission may have blocked a request, by its pages or as
        // the read-ahead of a prefix.
        if self.copied {
            return Round::Stepped;
        }
        self.idle()
    }

    /// Checks the cache's invariants, which takes time, now that nothing can run.
    fn idle(&mut self) -> Round {
        let checked = self.kv.check_integrity();
        checked.unwrap_or_else(|lost| panic!("{lost}"));
        match self.open || !self.running.is_empty() {
            true => Round::Idle,
            false => Round::Finished,
        }
    }

    /// Runs the planned rows.
    fn step(&mut self) -> Result<(), DeviceError> {
        self.lend_memory();
        let depth = self.depth_on_device();
        let (running, kv) = (&self.running, &self.kv);
        let mut rows = recycle(mem::take(&mut self.rows));
        let scheduled = self.plan.scheduled.iter();
        rows.extend(scheduled.map(|of| running[of.index].rows(of.tokens, kv)));
        let size = slowdown::size(&rows);
        let begun = (self.now)();
        let drawn = match depth {
            0 => Ok(None),
            _ => predict::step_draft(&mut self.executor, &rows, (&self.plan, running, kv), depth),
        };
        let outcome = match &drawn {
            Ok(None) => self.executor.step(&rows),
            _ => Ok(()),
        };
        let took = (self.now)() - begun;
        self.rows = recycle(rows);
        self.pending_drafts = drawn?;
        outcome?;
        let stats = &self.shared.stats;
        stats.steps.add(1);
        stats.step_nanos.add(took.as_nanos() as usize);
        self.slowdown.note(size, took, &stats.slowdown);
        let tokens = self.plan.scheduled.iter().map(|of| of.tokens);
        stats.step_tokens.0.record_tokens(tokens.sum());
        Ok(())
    }

    /// Takes states for snapshots of the planned prompt rows and for drafts, and windowed pages for
    /// all rows.
    fn lend_memory(&mut self) {
        for scheduled in &self.plan.scheduled {
            let sequence = &mut self.running[scheduled.index];
            sequence.lend(scheduled.tokens, &mut self.kv);
            sequence.lend_drafts(&mut self.kv);
            sequence.cover(scheduled.tokens, &mut self.kv);
        }
    }

    /// Scores the prompt tokens after the rows of this step, for requests that want scores; takes
    /// the logits of a few rows at a time.
    fn score(&mut self) -> Result<(), DeviceError> {
        let mut first = 0;
        for scheduled in &self.plan.scheduled {
            let sequence = &mut self.running[scheduled.index];
            let scored = sequence.scored(scheduled.tokens);
            for begin in (0..scored).step_by(self.limits.sequences) {
                let count = self.limits.sequences.min(scored - begin);
                self.scored_rows.clear();
                self.scored_rows.extend((first + begin..).take(count));
                let logits = &mut self.scored_logits;
                self.executor.logits_of(&self.scored_rows, logits)?;
                let (found, wanted) = (logits.len(), count * E::VOCAB);
                assert_eq!(found, wanted, "the executor returned other rows");
                for (index, logits) in (begin..).zip(logits.chunks_exact(E::VOCAB)) {
                    sequence.score(index, logits);
                }
            }
            first += scheduled.tokens;
        }
        Ok(())
    }

    /// Turns logits into tokens and events.
    fn emit(&mut self) -> Result<(), DeviceError> {
        let (mut prompt_tokens, mut generated, mut row) = (0, 0, 0);
        let (mut drafted_tokens, mut accepted_tokens) = (0, 0);
        let deadline = Instant::now() + constraint::GRACE;
        for scheduled in &self.plan.scheduled {
            let sequence = &mut self.running[scheduled.index];
            let drafts = self.candidates[scheduled.index].drafts;
            let (from_prompt, has_logits) = sequence.advance(scheduled.tokens - drafts);
            self.kv.has_read(sequence.slot);
            prompt_tokens += from_prompt;
            if !has_logits {
                continue;
            }
            let (scratch, threads) = (&mut self.scratch, &self.mask_threads);
            let mut accepted = 0;
            loop {
                let row = row + accepted;
                let ranked = self.executor.ranked(row);
                let ranked =
                    ranked.and_then(|ranked| sequence.accept_ranked(&ranked, threads, deadline));
                let came = match ranked {
                    Some(came) => came,
                    None => {
                        let logits = self.executor.logits(row)?;
                        assert_eq!(logits.len(), E::VOCAB, "the executor returned another row");
                        sequence.accept(logits, scratch, threads, deadline)
                    }
                };
                generated += usize::from(came);
                if !came || !sequence.accepts_draft(accepted) {
                    break;
                }
                accepted += 1;
            }
            let scores = sequence.settle_drafts(accepted, &mut self.kv);
            row += 1 + drafts;
            self.costs.note_drafts(scores);
            drafted_tokens += drafts;
            accepted_tokens += accepted;
        }
        self.shared.stats.drafted_tokens.add(drafted_tokens);
        self.shared.stats.accepted_tokens.add(accepted_tokens);
        self.shared.stats.prompt_tokens.add(prompt_tokens);
        self.shared.stats.generated_tokens.add(generated);
        Ok(())
    }

    /// Caches the computed pages of prompts, and frees slots and pages of ended sequences.
    fn free(&mut self) {
        let Engine {
            running,
            kv,
            tier,
            shared,
            ..
        } = self;
        running.retain_mut(|sequence| {
            let is_cached = sequence.cache(kv);
            if let Some(tier) = tier.as_mut().filter(|_| is_cached) {
                let pins = kv.pin(sequence.slot, sequence.prompt());
                pins.into_iter().for_each(|pin| tier.queue_save(pin, kv));
            }
            let Some(end) = sequence.end.filter(|_| !sequence.restoring) else {
                sequence.leave(kv);
                return true;
            };
            sequence.release(kv);
            count_end(end, &shared.stats);
            false
        });
        let lent = lent(running);
        let is_conserved = kv.is_conserved(running.len(), lent);
        assert!(is_conserved, "slots, KV pages or states were lost");
        self.count_running();
    }

    fn count_running(&self) {
        self.shared.stats.running.set(self.running.len());
        self.shared.stats.pages_used.set(self.kv.pages_used());
        self.shared.stats.pages_cached.set(self.kv.pages_cached());
        let windowed = self.kv.window_pages_used();
        self.shared.stats.window_pages_used.set(windowed);
        let evicted = self.kv.evicted();
        self.shared.stats.evictions.set(evicted.count);
        let tokens = evicted.pages * PAGE;
        self.shared.stats.evicted_tokens.set(tokens);
        let age = evicted.age.as_millis() as usize;
        self.shared.stats.evicted_age_millis.set(age);
    }

    /// Sleeps until a request arrives, a reader catches up or leaves, or the engine is to drain;
    /// and no longer than a slow reader may keep others waiting.
    fn wait(&mut self) {
        let Engine {
            inbox,
            phases,
            open,
            running,
            waiting,
            runtime,
            ..
        } = self;
        let caught_up = running.iter().map(Sequence::caught_up);
        let mut caught_up: Vec<_> = caught_up.map(Box::pin).collect();
        let left = waiting.iter().map(|waits| waits.request().events.closed());
        let mut left: Vec<_> = left.map(Box::pin).collect();
        let others_wait = !waiting.is_empty();
        let arrived = runtime.block_on(async {
            tokio::select! {
                queued = inbox.recv(), if *open => queued,
                _ = phases.changed(), if *open => None,
                () = any(&mut caught_up) => None,
                () = any(&mut left) => None,
                () = sleep(READER_LAG_MAX), if others_wait => None,
            }
        });
        drop((caught_up, left));
        if let Some(queued) = arrived {
            self.enqueue(queued);
        }
    }

    /// Ends all requests, running and waiting, with a text for the clients.
    fn stop(&mut self, text: &str) {
        self.shared.enter(Phase::Stopped);
        for sequence in &mut self.running {
            let end = sequence.end.unwrap_or_else(|| sequence.fail(text));
            count_end(end, &self.shared.stats);
        }
        self.running.clear();
        self.shared.stats.running.set(0);
        for waits in self.waiting.drain(..) {
            refuse(waits.queued, &self.shared.stats, text);
        }
        refuse_queued(&mut self.inbox, &self.shared.stats, text);
    }
}

/// Tokens of a request that are looked up in the cache: none if its prompt is scored, since scored
/// rows have to be computed.
fn looked_up(request: &Request) -> &[TokenId] {
    match request.prompt_logprobs {
        Some(_) => &[],
        None => &request.prompt,
    }
}

/// Fails a request that holds no slot.
fn refuse((request, entry): Queued, stats: &Stats, text: &str) {
    drop(entry);
    stats.failed.add(1);
    // A send that fails means that the reader has left.
    request.events.send(Event::Failed(text.into()));
}

/// Closes the inbox and fails the requests in it; later requests are rejected.
fn refuse_queued(inbox: &mut mpsc::Receiver<Queued>, stats: &Stats, text: &str) {
    inbox.close();
    while let Ok(queued) = inbox.try_recv() {
        refuse(queued, stats, text);
    }
}

fn count_end(end: End, stats: &Stats) {
    match end {
        End::Finished(FinishReason::Stop) => stats.finished_stop.add(1),
        End::Finished(FinishReason::Length) => stats.finished_length.add(1),
        End::Failed => stats.failed.add(1),
        End::Cancelled => stats.cancelled.add(1),
    }
}

/// Numbers of states of running sequences without those of slots: for snapshots, and for drafts.
fn lent(running: &[Sequence]) -> (usize, usize) {
    let lent = running.iter().map(Sequence::lent);
    lent.fold((0, 0), |sum, lent| (sum.0 + lent.0, sum.1 + lent.1))
}

/// An empty vector with the memory of `rows`, whose items may borrow from something else.
fn recycle<'a>(mut rows: Vec<SeqRows<'_>>) -> Vec<SeqRows<'a>> {
    rows.clear();
    let none = rows.into_iter();
    none.map(|_| unreachable!("it was cleared")).collect()
}

/// Completes with the first of `futures`; never when there are none.
async fn any<F: Future>(futures: &mut [Pin<Box<F>>]) {
    poll_fn(|context| {
        let mut all = futures.iter_mut();
        match all.any(|future| future.as_mut().poll(context).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}
