//! Order in which bodies are read: JSON, templates and encoding take time and memory that others
//! wait for.
//!
//! Small bodies have places of their own. Large ones share a few, and the memory that what is made
//! of them may take together. Those that have a place take turns on the processors, in steps of
//! [`PARSING_STEP`]. Turns go to clients as slots of the engine do, and each client leaves places
//! and processors to others; of what is equal the smallest comes next, and every other time the one
//! that has waited longest, so that none waits for ever. Who leaves while it waits costs nothing
//! more, and who leaves while it is read no more than a step.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::oneshot;

use engine::turns::{SlotCounts, Source, Turns};
use host::allocator;
use text::work::{Stopped, cpu_time};

use super::body::{Share, WholeBody};
use super::error::ApiError;
use super::json;
use super::limits::{
    JSON_VALUES_MAX, LARGE_PARSERS_MAX, PARSERS_KEPT, PARSERS_MAX, PARSING_BYTES_MAX, PARSING_STEP,
    PARSING_TIME_MAX, SMALL_BODY_BYTES,
};

/// Copies of a body's texts that are there at once, at most: as they came, as JSON, as messages, in
/// the template's form, rendered, and without what hides control tokens.
const COPIES: usize = 6;
/// Memory of a JSON value beside its text: its place in a list or, at worst, in a map that grows,
/// and its key.
const VALUE_BYTES: usize = 160;

/// Bytes of a body from which on what was made of it is given back to the system at once.
const TRIMMED_BYTES_MIN: usize = 8 * 1024 * 1024;

/// The places of a server.
#[derive(Debug)]
pub struct Parsing(Arc<Desk>);

/// A body that waited for its turn, which ends when this is dropped.
#[derive(Debug)]
pub struct Body {
    bytes: Bytes,
    /// Share of the memory for bodies; none once the bytes are gone.
    share: Option<Arc<Share>>,
    turn: Turn,
}

impl Default for Parsing {
    /// Works on as many processors as the system has, where there are places for so many.
    fn default() -> Parsing {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let most = PARSERS_MAX + LARGE_PARSERS_MAX;
        Parsing::on(processors.clamp(PARSERS_KEPT + 1, most))
    }
}

impl Parsing {
    fn on(processors: usize) -> Parsing {
        Parsing(Arc::new(Desk {
            queue: Mutex::new(Queue {
                processors,
                ..Queue::default()
            }),
            called: Condvar::new(),
        }))
    }

    /// Waits for a place. Whoever stops waiting gives it up.
    pub async fn enter(&self, body: WholeBody, source: Source) -> Body {
        let (bytes, large) = (memory(&body.bytes), body.bytes.len() > SMALL_BODY_BYTES);
        Body {
            bytes: body.bytes,
            share: Some(body.share),
            turn: self.turn(source, large, bytes).await,
        }
    }

    async fn turn(&self, source: Source, large: bool, bytes: usize) -> Turn {
        let (called, call) = oneshot::channel();
        let name = {
            let mut queue = self.0.lock();
            queue.last += 1;
            let name = queue.last;
            queue.works.push(Work {
                name,
                source,
                large,
                bytes,
                stage: Stage::New(called),
            });
            name
        };
        let desk = self.0.clone();
        let turn = Turn { desk, name, bytes };
        self.0.call();
        // It is called, or the wait ends: the queue forgets nobody.
        let _ = call.await;
        turn
    }
}

impl Body {
    /// The JSON of the body, whose bytes are given up.
    ///
    /// # Errors
    /// As [`json::parse`]; 400.
    pub fn json(&mut self) -> Result<Value, ApiError> {
        let value = json::parse(&self.bytes);
        self.bytes = Bytes::new();
        self.share = None;
        value.map_err(ApiError::malformed)
    }

    /// To be held by whoever waits for what is made of the body.
    pub fn client(&self) -> Client {
        Client {
            desk: self.turn.desk.clone(),
            name: self.turn.name,
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if self.turn.bytes >= TRIMMED_BYTES_MIN {
            allocator::trim();
        }
    }
}

/// Client that waits for what is made of a body. The work ends at its next step when this is
/// dropped.
#[derive(Debug)]
pub struct Client {
    desk: Arc<Desk>,
    name: u64,
}

impl Client {
    /// The pace of the work, for the thread that does it.
    pub fn pace(&self) -> Pace {
        Pace {
            desk: self.desk.clone(),
            name: self.name,
            until: Duration::ZERO,
            look_at: Instant::now(),
            stopped: None,
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut queue = self.desk.lock();
        if let Some(work) = queue.find(self.name) {
            work.stage = Stage::Left;
        }
        queue.call();
        drop(queue);
        self.desk.called.notify_all();
    }
}

/// Steps of the work on a body.
#[derive(Debug)]
pub struct Pace {
    desk: Arc<Desk>,
    name: u64,
    /// Time of the thread at which the work has lasted too long.
    until: Duration,
    /// The step is not over before.
    look_at: Instant,
    /// Who was told to stop is told so again.
    stopped: Option<Stopped>,
}

impl Pace {
    /// This thread begins.
    pub fn begin(mut self) -> Pace {
        self.until = cpu_time() + PARSING_TIME_MAX;
        self.look_at = Instant::now() + PARSING_STEP;
        self
    }

    /// Makes way for others when the step has lasted long enough, until it is this work's turn
    /// again.
    ///
    /// # Errors
    /// When the client has left, or the work takes too long.
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
        self.desk.make_way(self.name)
    }
}

/// Memory that reading `body` takes, at most.
fn memory(body: &[u8]) -> usize {
    let begins_value = |byte: &&u8| matches!(byte, b',' | b'[' | b'{');
    let values = 1 + body.iter().filter(begins_value).count();
    let values = values.min(JSON_VALUES_MAX);
    (body.len() * COPIES + values * VALUE_BYTES).min(PARSING_BYTES_MAX)
}

/// Queue of works, and the call that ends a wait between two steps.
#[derive(Debug)]
struct Desk {
    queue: Mutex<Queue>,
    /// Works between two steps may have been called.
    called: Condvar,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing in between can panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives turns to those that can have them.
    fn call(&self) {
        self.lock().call();
        self.called.notify_all();
    }

    /// Has a work that is running wait behind others.
    fn make_way(&self, name: u64) -> Result<(), Stopped> {
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
    /// Works that may be running at once.
    processors: usize,
    /// In the order of their arrival.
    works: Vec<Work>,
    turns: Turns,
    /// The longest wait ends next among equals, whatever its size.
    oldest_next: bool,
    /// Names for works.
    last: u64,
}

/// Work on a body.
#[derive(Debug)]
struct Work {
    name: u64,
    source: Source,
    large: bool,
    bytes: usize,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// It waits for a place.
    New(oneshot::Sender<()>),
    Running,
    /// It waits for its next step.
    Between,
    /// It ends, on its thread, for nobody waits for it.
    Left,
}

impl Work {
    fn has_begun(&self) -> bool {
        !matches!(self.stage, Stage::New(_))
    }

    /// Whether it takes the time of a processor.
    fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running | Stage::Left)
    }
}

impl Queue {
    fn find(&mut self, name: u64) -> Option<&mut Work> {
        self.works.iter_mut().find(|work| work.name == name)
    }

    fn is(&mut self, name: u64, holds: impl Fn(&Stage) -> bool) -> bool {
        self.find(name).is_some_and(|work| holds(&work.stage))
    }

    /// Sets the stage of a work whose client is there.
    fn set(&mut self, name: u64, stage: Stage) {
        let here = |work: &&mut Work| !matches!(work.stage, Stage::Left);
        if let Some(work) = self.find(name).filter(here) {
            work.stage = stage;
        }
    }

    /// Gives turns while there is room.
    fn call(&mut self) {
        while let Some(at) = self.next() {
            let work = &mut self.works[at];
            let before = std::mem::replace(&mut work.stage, Stage::Running);
            self.turns.take(work.source);
            self.oldest_next = !self.oldest_next;
            if let Stage::New(called) = before {
                // Who has left gives the place back when it is dropped.
                let _ = called.send(());
            }
        }
    }

    /// Place of the work that comes next.
    fn next(&self) -> Option<usize> {
        let begun: Vec<&Work> = self.works.iter().filter(|work| work.has_begun()).collect();
        let running = || begun.iter().copied().filter(|work| work.is_running());
        if running().count() >= self.processors {
            return None;
        }
        let can = |at: &usize| {
            let work = &self.works[*at];
            !work.is_running()
                && leaves_some(work, self.processors, running())
                && (work.has_begun() || has_place(work, &begun))
        };
        let mut able: Vec<usize> = (0..self.works.len()).filter(can).collect();
        if !self.oldest_next {
            able.sort_by_key(|at| self.works[*at].bytes);
        }
        let sources = able.iter().map(|at| self.works[*at].source);
        let held = SlotCounts::of(running().map(|work| work.source));
        let next = self.turns.next(sources, &held, false);
        next.map(|next| able[next])
    }
}

/// Whether there is a place for a new work beside those that have begun; the only large one may
/// take any memory.
fn has_place(work: &Work, begun: &[&Work]) -> bool {
    let is_alike = |other: &&Work| other.large == work.large;
    let alike = || begun.iter().copied().filter(is_alike);
    let most = match work.large {
        true => LARGE_PARSERS_MAX,
        false => PARSERS_MAX,
    };
    let bytes: usize = alike().map(|other| other.bytes).sum();
    let fits = !work.large || bytes == 0 || bytes + work.bytes <= PARSING_BYTES_MAX;
    fits && alike().count() < most && leaves_some(work, most, alike())
}

/// Whether the client of `work` leaves some of `most` to others when it has one more than `taken`.
fn leaves_some<'w>(work: &Work, most: usize, taken: impl Iterator<Item = &'w Work>) -> bool {
    let own = taken.filter(|other| other.source.client == work.source.client);
    own.count() + PARSERS_KEPT < most
}

/// The work on a body, or its place in the queue.
#[derive(Debug)]
struct Turn {
    desk: Arc<Desk>,
    name: u64,
    bytes: usize,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.desk.lock().works.retain(|work| work.name != self.name);
        self.desk.call();
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

    type Turns<'p> = Vec<Pin<Box<dyn Future<Output = Turn> + 'p>>>;

    /// Turns of `waiting` that are called now.
    fn called(waiting: &mut Turns<'_>) -> Vec<Turn> {
        let mut context = Context::from_waker(Waker::noop());
        let mut turns = Vec::new();
        waiting.retain_mut(|turn| match turn.as_mut().poll(&mut context) {
            Poll::Ready(turn) => {
                turns.push(turn);
                false
            }
            Poll::Pending => true,
        });
        turns
    }

    fn small(parsing: &Parsing, source: Source) -> Turns<'_> {
        vec![Box::pin(parsing.turn(source, false, 1))]
    }

    fn running(parsing: &Parsing) -> usize {
        let queue = parsing.0.lock();
        queue.works.iter().filter(|work| work.is_running()).count()
    }

    #[tokio::test]
    async fn of_equals_the_smallest_comes_next_and_every_other_time_the_oldest() {
        let parsing = Parsing::on(2);
        let mut held = parsing.turn(NOBODY, false, 0).await;
        let sizes = [9, 8, 1, 2, 3];
        let turns = sizes.map(|bytes| parsing.turn(NOBODY, false, bytes));
        let mut waiting: Turns<'_> = turns.into_iter().map(|turn| Box::pin(turn) as _).collect();
        assert!(called(&mut waiting).is_empty());
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(held);
            held = called(&mut waiting).pop().expect("one is called");
            order.push(held.bytes);
        }
        assert_eq!(order, [9, 1, 8, 2, 3]);
    }

    #[tokio::test]
    async fn large_ones_share_their_memory_and_one_alone_may_take_all() {
        let parsing = Parsing::on(4);
        let whole = parsing.turn(client(1), true, PARSING_BYTES_MAX).await;
        let mut second = pin!(parsing.turn(client(2), true, 1));
        let mut context = Context::from_waker(Waker::noop());
        assert!(second.as_mut().poll(&mut context).is_pending());
        // Small ones need not wait for that.
        assert_eq!(called(&mut small(&parsing, client(2))).len(), 1);
        drop(whole);
        let second = second.await;
        let third = parsing.turn(client(1), true, PARSING_BYTES_MAX - 1).await;
        assert_eq!(running(&parsing), 2);
        drop((second, third));
        assert!(parsing.0.lock().works.is_empty());
    }

    #[tokio::test]
    async fn who_leaves_while_it_waits_is_forgotten() {
        let parsing = Parsing::on(2);
        let held = parsing.turn(NOBODY, false, 1).await;
        let mut left = small(&parsing, NOBODY);
        assert!(called(&mut left).is_empty());
        drop(left);
        assert_eq!(parsing.0.lock().works.len(), 1);
        // Called, and gone before it looks.
        let mut left = small(&parsing, NOBODY);
        assert!(called(&mut left).is_empty());
        drop(held);
        drop(left);
        assert!(parsing.0.lock().works.is_empty());
    }

    #[tokio::test]
    async fn a_client_leaves_processors_and_places_to_others() {
        for (processors, most) in [(2, 1), (8, PARSERS_MAX - PARSERS_KEPT)] {
            let parsing = Parsing::on(processors);
            let turns = (0..9).map(|_| small(&parsing, client(1)).remove(0));
            let mut crowd: Turns<'_> = turns.collect();
            let first = called(&mut crowd);
            assert_eq!(first.len(), most);
            let other = called(&mut small(&parsing, client(2)));
            assert_eq!(other.len(), 1, "what the crowd leaves");
            // Both wait for one place: it is the turn of who has none.
            let mut later = small(&parsing, client(3));
            assert!(called(&mut later).is_empty());
            drop(first);
            assert_eq!(called(&mut later).len(), 1);
        }
    }

    /// A work that takes steps on a thread of its own, until its client leaves.
    fn work(turn: &Turn) -> (Client, thread::JoinHandle<Stopped>) {
        let client = Client {
            desk: turn.desk.clone(),
            name: turn.name,
        };
        let pace = client.pace();
        let work = thread::spawn(move || {
            let mut pace = pace.begin();
            loop {
                if let Err(stopped) = pace.step() {
                    return stopped;
                }
            }
        });
        (client, work)
    }

    #[tokio::test]
    async fn work_makes_way_between_two_steps_and_ends_when_its_client_has_left() {
        let parsing = Parsing::on(2);
        let long = [client(1), client(2)].map(|source| parsing.turn(source, true, 1));
        let [first, second] = long;
        let (first, second) = (first.await, second.await);
        let works = [work(&first), work(&second)];
        // All processors are taken, for a step.
        for _ in 0..3 {
            let began = Instant::now();
            drop(parsing.turn(client(3), false, 1).await);
            assert!(
                began.elapsed() < PARSING_TIME_MAX / 2,
                "{:?}",
                began.elapsed()
            );
        }
        for (client, work) in works {
            drop(client);
            assert_eq!(work.join().unwrap(), Stopped::Gone);
        }
        drop((first, second));
        assert!(parsing.0.lock().works.is_empty());
    }

    #[tokio::test]
    async fn work_without_end_is_stopped_and_told_so_again() {
        let parsing = Parsing::default();
        let turn = parsing.turn(NOBODY, false, 1).await;
        let (desk, name) = (turn.desk.clone(), turn.name);
        let client = Client { desk, name };
        let mut pace = client.pace().begin();
        assert_eq!(pace.step(), Ok(()));
        (pace.until, pace.look_at) = (Duration::ZERO, Instant::now());
        for _ in 0..2 {
            assert_eq!(pace.step(), Err(Stopped::TooLong(PARSING_TIME_MAX)));
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
