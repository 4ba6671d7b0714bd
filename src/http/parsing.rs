//! Queue of parsing jobs: JSON, template and encoding of a body take CPU time and memory.
//!
//! Jobs of small bodies are limited in number; jobs of large bodies are fewer, and also limited by
//! the memory of all their results. Admitted jobs share the processors in steps of
//! [`PARSING_STEP`]. Steps go to clients by the rule that assigns the engine's slots, and no client
//! may take all jobs or processors. Among jobs of equal rank the smallest body is next, and every
//! other time the oldest job, so that none starves. If its client leaves, a job ends at its next
//! step, or at once if queued.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::oneshot;

use engine::fair_queue::{FairQueue, SlotCounts, Source};
use host::allocator;
use text::work::{Stopped, cpu_time};

use super::body::{Share, WholeBody};
use super::error::ApiError;
use super::json;
use super::limits::{
    JSON_VALUES_MAX, LARGE_PARSERS_MAX, PARSERS_MAX, PARSERS_RESERVED, PARSING_BYTES_MAX,
    PARSING_STEP, PARSING_TIME_MAX, SMALL_BODY_BYTES,
};

/// Most copies of a body's texts at a time: the body, JSON, messages, messages in the template's
/// form, the rendered text, and this text without marks of control tokens.
const COPIES: usize = 6;
/// Memory of a JSON value beside its text: its element in a list or, at worst, a growing map, and
/// its key.
const VALUE_BYTES: usize = 160;

/// Least bytes of a body after which freed memory is returned to the system at once.
const TRIMMED_BYTES_MIN: usize = 8 * 1024 * 1024;

/// The queue of parsing jobs of a server.
#[derive(Debug)]
pub struct Parsing(Arc<SharedQueue>);

/// A body whose job was admitted; dropping the body ends the job.
#[derive(Debug)]
pub struct Body {
    bytes: Bytes,
    /// Share of the memory for bodies; None once the bytes are freed.
    share: Option<Arc<Share>>,
    ticket: Ticket,
}

impl Default for Parsing {
    /// Queue with as many processors as the system has, at most one for each job.
    fn default() -> Parsing {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let most = PARSERS_MAX + LARGE_PARSERS_MAX;
        Parsing::on(processors.clamp(PARSERS_RESERVED + 1, most))
    }
}

impl Parsing {
    fn on(processors: usize) -> Parsing {
        Parsing(Arc::new(SharedQueue {
            queue: Mutex::new(Queue {
                processors,
                ..Queue::default()
            }),
            called: Condvar::new(),
        }))
    }

    /// Waits until a job for `body` is admitted. Dropping the future removes the job.
    pub async fn enter(&self, body: WholeBody, source: Source) -> Body {
        let (bytes, large) = (memory(&body.bytes), body.bytes.len() > SMALL_BODY_BYTES);
        Body {
            bytes: body.bytes,
            share: Some(body.share),
            ticket: self.ticket(source, large, bytes).await,
        }
    }

    async fn ticket(&self, source: Source, large: bool, bytes: usize) -> Ticket {
        let (called, call) = oneshot::channel();
        let name = {
            let mut queue = self.0.lock();
            queue.last += 1;
            let name = queue.last;
            queue.jobs.push(Job {
                name,
                source,
                large,
                bytes,
                stage: Stage::New(called),
            });
            name
        };
        let shared = self.0.clone();
        let ticket = Ticket {
            shared,
            name,
            bytes,
        };
        self.0.call();
        // The sender is in the queue until the job is called, so waiting cannot fail before.
        let _ = call.await;
        ticket
    }
}

impl Body {
    /// The JSON of the body, whose bytes are freed.
    ///
    /// # Errors
    /// Errors of [`json::parse`], with status 400.
    pub fn json(&mut self) -> Result<Value, ApiError> {
        let value = json::parse(&self.bytes);
        self.bytes = Bytes::new();
        self.share = None;
        value.map_err(ApiError::malformed)
    }

    /// Guard for the task that waits for the result.
    pub fn client(&self) -> Client {
        Client {
            shared: self.ticket.shared.clone(),
            name: self.ticket.name,
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if self.ticket.bytes >= TRIMMED_BYTES_MIN {
            allocator::trim();
        }
    }
}

/// Guard of the client that waits for a job's result; dropping it ends the job at its next step.
#[derive(Debug)]
pub struct Client {
    shared: Arc<SharedQueue>,
    name: u64,
}

impl Client {
    /// Step control for the thread that runs the job.
    pub fn steps(&self) -> JobSteps {
        JobSteps {
            shared: self.shared.clone(),
            name: self.name,
            until: Duration::ZERO,
            look_at: Instant::now(),
            stopped: None,
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        if let Some(job) = queue.find(self.name) {
            job.stage = Stage::Left;
        }
        queue.call();
        drop(queue);
        self.shared.called.notify_all();
    }
}

/// Step control of a job, on the thread that runs it.
#[derive(Debug)]
pub struct JobSteps {
    shared: Arc<SharedQueue>,
    name: u64,
    /// CPU time of the thread at which the job is cancelled.
    until: Duration,
    /// Time before which the current step does not end.
    look_at: Instant,
    /// Reason for which the job was stopped: further steps fail at once.
    stopped: Option<Stopped>,
}

impl JobSteps {
    /// Starts the job's first step, on this thread.
    pub fn begin(mut self) -> JobSteps {
        self.until = cpu_time() + PARSING_TIME_MAX;
        self.look_at = Instant::now() + PARSING_STEP;
        self
    }

    /// Ends the step if its time is used up: yields the processor until the job is called again.
    ///
    /// # Errors
    /// When the client has left, or the job takes too long.
    pub fn step(&mut self) -> Result<(), Stopped> {
        if self.stopped.is_none() && Instant::now() >= self.look_at {
            self.stopped = self.look().err();
            self.look_at = Instant::now() + PARSING_STEP;
        }
        self.stopped.map_or(Ok(()), Err)
    }

    fn look(&self) -> Result<(), Stopped> {
        if cpu_time() > self.until {
            return Err(Stopped::TooLong(PARSING_TIME_MAX));
        }
        self.shared.yield_processor(self.name)
    }
}

/// Most bytes that parsing `body` takes.
fn memory(body: &[u8]) -> usize {
    let begins_value = |byte: &&u8| matches!(byte, b',' | b'[' | b'{');
    let values = 1 + body.iter().filter(begins_value).count();
    let values = values.min(JSON_VALUES_MAX);
    (body.len() * COPIES + values * VALUE_BYTES).min(PARSING_BYTES_MAX)
}

/// Queue of jobs, with a signal for jobs that wait between two steps.
#[derive(Debug)]
struct SharedQueue {
    queue: Mutex<Queue>,
    /// Signals that jobs between two steps may have been called to run.
    called: Condvar,
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No code panics while it has the lock, so the queue is whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the jobs run that can run now.
    fn call(&self) {
        self.lock().call();
        self.called.notify_all();
    }

    /// Puts a running job between two steps, and waits until it is called again.
    fn yield_processor(&self, name: u64) -> Result<(), Stopped> {
        let mut queue = self.lock();
        queue.set(name, Stage::Between);
        queue.call();
        self.called.notify_all();
        let waits = |queue: &mut Queue| queue.is(name, |stage| matches!(stage, Stage::Between));
        let queue = self.called.wait_while(queue, waits);
        let mut queue = queue.unwrap_or_else(PoisonError::into_inner);
        match queue.is(name, |stage| matches!(stage, Stage::Running)) {
            true => Ok(()),
            false => Err(Stopped::Gone),
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// Most jobs that run at once.
    processors: usize,
    /// Jobs in the order of their arrival.
    jobs: Vec<Job>,
    fair_queue: FairQueue,
    /// Whether, among jobs of equal rank, the oldest is next rather than the smallest.
    oldest_next: bool,
    /// Name of the job that came last.
    last: u64,
}

/// Job of parsing a body.
#[derive(Debug)]
struct Job {
    name: u64,
    source: Source,
    large: bool,
    bytes: usize,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The job waits for admission.
    New(oneshot::Sender<()>),
    Running,
    /// The job waits for its next step.
    Between,
    /// The client has left; the job ends at its next step.
    Left,
}

impl Job {
    fn has_begun(&self) -> bool {
        !matches!(self.stage, Stage::New(_))
    }

    /// Whether the job occupies a processor.
    fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running | Stage::Left)
    }
}

impl Queue {
    fn find(&mut self, name: u64) -> Option<&mut Job> {
        self.jobs.iter_mut().find(|job| job.name == name)
    }

    fn is(&mut self, name: u64, holds: impl Fn(&Stage) -> bool) -> bool {
        self.find(name).is_some_and(|job| holds(&job.stage))
    }

    /// Sets the stage of a job unless its client has left.
    fn set(&mut self, name: u64, stage: Stage) {
        let here = |job: &&mut Job| !matches!(job.stage, Stage::Left);
        if let Some(job) = self.find(name).filter(here) {
            job.stage = stage;
        }
    }

    /// Lets jobs run while processors are free.
    fn call(&mut self) {
        while let Some(at) = self.next() {
            let job = &mut self.jobs[at];
            let before = std::mem::replace(&mut job.stage, Stage::Running);
            self.fair_queue.note_served(job.source);
            self.oldest_next = !self.oldest_next;
            if let Stage::New(called) = before {
                // If the client has left, dropping its ticket removes the job.
                let _ = called.send(());
            }
        }
    }

    /// Index of the job that is called next.
    fn next(&self) -> Option<usize> {
        let begun: Vec<&Job> = self.jobs.iter().filter(|job| job.has_begun()).collect();
        let running = || begun.iter().copied().filter(|job| job.is_running());
        if running().count() >= self.processors {
            return None;
        }
        let can = |at: &usize| {
            let job = &self.jobs[*at];
            !job.is_running()
                && leaves_some(job, self.processors, running())
                && (job.has_begun() || is_admitted(job, &begun))
        };
        let mut able: Vec<usize> = (0..self.jobs.len()).filter(can).collect();
        if !self.oldest_next {
            able.sort_by_key(|at| self.jobs[*at].bytes);
        }
        let sources = able.iter().map(|at| self.jobs[*at].source);
        let counts = SlotCounts::of(running().map(|job| job.source));
        let next = self.fair_queue.next(sources, &counts, false);
        next.map(|next| able[next])
    }
}

/// Whether `job` may be admitted beside the `begun` ones. A large job may take any memory if no
/// other large job has begun.
fn is_admitted(job: &Job, begun: &[&Job]) -> bool {
    let is_alike = |other: &&Job| other.large == job.large;
    let alike = || begun.iter().copied().filter(is_alike);
    let most = match job.large {
        true => LARGE_PARSERS_MAX,
        false => PARSERS_MAX,
    };
    let bytes: usize = alike().map(|other| other.bytes).sum();
    let fits = !job.large || bytes == 0 || bytes + job.bytes <= PARSING_BYTES_MAX;
    fits && alike().count() < most && leaves_some(job, most, alike())
}

/// Whether the client of `job` leaves some of `most` jobs to other clients if it takes one more
/// than those in `taken`.
fn leaves_some<'w>(job: &Job, most: usize, taken: impl Iterator<Item = &'w Job>) -> bool {
    let own = taken.filter(|other| other.source.client == job.source.client);
    own.count() + PARSERS_RESERVED < most
}

/// Guard of a job; dropping it removes the job from the queue.
#[derive(Debug)]
struct Ticket {
    shared: Arc<SharedQueue>,
    name: u64,
    bytes: usize,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.shared.lock().jobs.retain(|job| job.name != self.name);
        self.shared.call();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    const NOBODY: Source = Source {
        client: 0,
        returns: false,
        connection: 0,
        call: 0,
    };

    fn client(client: u64) -> Source {
        Source { client, ..NOBODY }
    }

    type Tickets<'p> = Vec<Pin<Box<dyn Future<Output = Ticket> + 'p>>>;

    /// Tickets of `waiting` that are called now.
    fn called(waiting: &mut Tickets<'_>) -> Vec<Ticket> {
        let mut context = Context::from_waker(Waker::noop());
        let mut tickets = Vec::new();
        waiting.retain_mut(|ticket| match ticket.as_mut().poll(&mut context) {
            Poll::Ready(ticket) => {
                tickets.push(ticket);
                false
            }
            Poll::Pending => true,
        });
        tickets
    }

    fn small(parsing: &Parsing, source: Source) -> Tickets<'_> {
        vec![Box::pin(parsing.ticket(source, false, 1))]
    }

    fn running(parsing: &Parsing) -> usize {
        let queue = parsing.0.lock();
        queue.jobs.iter().filter(|job| job.is_running()).count()
    }

    #[tokio::test]
    async fn of_equals_the_smallest_comes_next_and_every_other_time_the_oldest() {
        let parsing = Parsing::on(2);
        let mut current = parsing.ticket(NOBODY, false, 0).await;
        let sizes = [9, 8, 1, 2, 3];
        let tickets = sizes.map(|bytes| parsing.ticket(NOBODY, false, bytes));
        let mut waiting: Tickets<'_> = tickets
            .into_iter()
            .map(|ticket| Box::pin(ticket) as _)
            .collect();
        assert!(called(&mut waiting).is_empty());
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(current);
            current = called(&mut waiting).pop().expect("one is called");
            order.push(current.bytes);
        }
        assert_eq!(order, [9, 1, 8, 2, 3]);
    }

    #[tokio::test]
    async fn large_ones_share_their_memory_and_one_alone_may_take_all() {
        let parsing = Parsing::on(4);
        let whole = parsing.ticket(client(1), true, PARSING_BYTES_MAX).await;
        let mut second = pin!(parsing.ticket(client(2), true, 1));
        let mut context = Context::from_waker(Waker::noop());
        assert!(second.as_mut().poll(&mut context).is_pending());
        // Small ones need not wait for that.
        assert_eq!(called(&mut small(&parsing, client(2))).len(), 1);
        drop(whole);
        let second = second.await;
        let third = parsing.ticket(client(1), true, PARSING_BYTES_MAX - 1).await;
        assert_eq!(running(&parsing), 2);
        drop((second, third));
        assert!(parsing.0.lock().jobs.is_empty());
    }

    #[tokio::test]
    async fn who_leaves_while_it_waits_is_forgotten() {
        let parsing = Parsing::on(2);
        let current = parsing.ticket(NOBODY, false, 1).await;
        let mut left = small(&parsing, NOBODY);
        assert!(called(&mut left).is_empty());
        drop(left);
        assert_eq!(parsing.0.lock().jobs.len(), 1);
        // Called, and gone before it looks.
        let mut left = small(&parsing, NOBODY);
        assert!(called(&mut left).is_empty());
        drop(current);
        drop(left);
        assert!(parsing.0.lock().jobs.is_empty());
    }

    #[tokio::test]
    async fn a_client_leaves_processors_and_places_to_others() {
        for (processors, most) in [(2, 1), (8, PARSERS_MAX - PARSERS_RESERVED)] {
            let parsing = Parsing::on(processors);
            let tickets = (0..9).map(|_| small(&parsing, client(1)).remove(0));
            let mut crowd: Tickets<'_> = tickets.collect();
            let first = called(&mut crowd);
            assert_eq!(first.len(), most);
            let other = called(&mut small(&parsing, client(2)));
            assert_eq!(other.len(), 1, "what the crowd leaves");
            // Both wait for one slot: who has none is next.
            let mut later = small(&parsing, client(3));
            assert!(called(&mut later).is_empty());
            drop(first);
            assert_eq!(called(&mut later).len(), 1);
        }
    }

    /// A work that takes steps on a thread of its own, until its client leaves.
    fn job(ticket: &Ticket) -> (Client, thread::JoinHandle<Stopped>) {
        let client = Client {
            shared: ticket.shared.clone(),
            name: ticket.name,
        };
        let steps = client.steps();
        let job = thread::spawn(move || {
            let mut steps = steps.begin();
            loop {
                if let Err(stopped) = steps.step() {
                    return stopped;
                }
            }
        });
        (client, job)
    }

    #[tokio::test]
    async fn work_makes_way_between_two_steps_and_ends_when_its_client_has_left() {
        let parsing = Parsing::on(2);
        let long = [client(1), client(2)].map(|source| parsing.ticket(source, true, 1));
        let [first, second] = long;
        let (first, second) = (first.await, second.await);
        let jobs = [job(&first), job(&second)];
        // All processors are taken, for a step.
        for _ in 0..3 {
            let began = Instant::now();
            drop(parsing.ticket(client(3), false, 1).await);
            assert!(
                began.elapsed() < PARSING_TIME_MAX / 2,
                "{:?}",
                began.elapsed()
            );
        }
        for (client, job) in jobs {
            drop(client);
            assert_eq!(job.join().unwrap(), Stopped::Gone);
        }
        drop((first, second));
        assert!(parsing.0.lock().jobs.is_empty());
    }

    #[tokio::test]
    async fn work_without_end_is_stopped_and_says_so_again() {
        let parsing = Parsing::default();
        let ticket = parsing.ticket(NOBODY, false, 1).await;
        let (shared, name) = (ticket.shared.clone(), ticket.name);
        let client = Client { shared, name };
        let mut steps = client.steps().begin();
        assert_eq!(steps.step(), Ok(()));
        (steps.until, steps.look_at) = (Duration::ZERO, Instant::now());
        for _ in 0..2 {
            assert_eq!(steps.step(), Err(Stopped::TooLong(PARSING_TIME_MAX)));
        }
    }

    #[test]
    fn many_values_take_more_than_their_text() {
        let text = memory(&[b'a'; 1000]);
        assert_eq!(text, 1000 * COPIES + VALUE_BYTES);
        assert!(memory(&[b','; 1000]) > 20 * text);
        assert_eq!(memory(&vec![b','; 1 << 23]), PARSING_BYTES_MAX);
    }
}
