//! Trials of equal bits through the whole engine, over any executor: what is kept of a prompt, how
//! it is cut and which drafts are tried change no token and no bit of a log-probability.
//!
//! A trial draws a request by its number, computes its reply plainly, and again in the way that is
//! tried. Slots, pages and states are those that earlier trials left.

use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::sampling;
use super::simulator::{self, Spec};
use crate::drafts::Drafter;
use crate::prefix::Keyed;
use crate::request::{Event, Sampling};
use crate::speculate::{DEPTH_MAX, Speculate};
use crate::tier::disk::testing::Fake;
use crate::{Engine, Handle, Limits};
use step::executor::{Executor, TokenId};
use step::random::Random;
use step::{Facts, PAGE};

/// Time between lines about how far trials are.
const TOLD_EVERY: Duration = Duration::from_secs(30);

/// Runs trials `0..count` on all cores, each core with one of what `begin` makes; adds up what was
/// found. A failure names its trial; how far they are is told now and then.
pub fn spread<D, T: Default + AddAssign + Send>(
    count: u64,
    begin: impl Fn() -> D + Sync,
    trial: impl Fn(&mut D, u64, &mut T) + Sync,
) -> T {
    let (next, sum) = (AtomicU64::new(0), Mutex::new(T::default()));
    let told = Mutex::new(Instant::now());
    let work = || {
        let (mut desk, mut found) = (begin(), T::default());
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            let mut told = told.lock().expect("no trial failed");
            if told.elapsed() >= TOLD_EVERY {
                *told = Instant::now();
                eprintln!("{number} of {count} trials have begun");
            }
            drop(told);
            let run = AssertUnwindSafe(|| trial(&mut desk, number, &mut found));
            if let Err(cause) = catch_unwind(run) {
                eprintln!("trial {number} failed");
                resume_unwind(cause);
            }
        }
        *sum.lock().expect("no trial failed") += found;
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let ends = workers.into_iter().map(thread::ScopedJoinHandle::join);
        ends.for_each(|end| end.unwrap_or_else(|cause| resume_unwind(cause)));
    });
    sum.into_inner().expect("no trial failed")
}

/// A token with the bits of its log-probability and of the most likely ones.
type Sampled = (TokenId, u32, Vec<(TokenId, u32)>);

/// A reply, bit by bit.
#[derive(Debug, Default, PartialEq)]
struct Output {
    tokens: Vec<Sampled>,
    end: Option<Event>,
}

impl Output {
    fn take(&mut self, event: Event) {
        let Event::Token { id, logprobs } = event else {
            self.end = Some(event);
            return;
        };
        let logprobs = logprobs.expect("they are asked for");
        let top = logprobs
            .top
            .iter()
            .map(|&(id, logprob)| (id, logprob.to_bits()));
        self.tokens
            .push((id, logprobs.logprob.to_bits(), top.collect()));
    }

    fn ids(&self) -> impl Iterator<Item = TokenId> {
        self.tokens.iter().map(|sampled| sampled.0)
    }
}

/// Way to compute a reply.
#[derive(Clone, Copy)]
struct Way {
    speculate: Speculate,
    drafter: Drafter,
    /// Prompt tokens of a step, if it may have so many.
    chunk: usize,
}

const PLAIN: Way = Way {
    speculate: Speculate::Off,
    drafter: Drafter::NGram,
    chunk: usize::MAX,
};

/// Pages of a desk: few enough that one request can have all of them.
const PAGES: usize = 32;

/// Pages that host memory of a desk with tiers has the bytes of, and the entries of its disk
/// in all.
const ROOM_PAGES: usize = 256;
const DISK_PAGES: usize = 1024;

/// First bytes of a page or a state among which one changes where bits are flipped.
const FLIPPED: usize = 64;

/// An engine without its thread that serves one request after the other.
pub struct Desk<E: Executor> {
    engine: Engine<E>,
    /// Disk below host memory, and its bytes, if there are tiers.
    disk: Option<(Fake, u64)>,
    handle: Handle,
    domains: u128,
    /// Prompt tokens of a step, at most.
    chunk_max: usize,
}

impl<E: Executor> Desk<E> {
    /// Limits of a desk over a target's executor, which has states for `snapshots` prompts.
    pub const fn limits(facts: &Facts, snapshots: usize) -> Limits {
        Limits {
            pages: PAGES,
            snapshots,
            ..Limits::of(facts)
        }
    }

    /// A desk over an executor with such limits.
    pub fn new(limits: Limits, executor: E) -> Desk<E> {
        let (handle, engine) = simulator::engine(limits, executor);
        Desk {
            engine,
            disk: None,
            handle,
            domains: 0,
            chunk_max: limits.prefill_tokens,
        }
    }

    /// One with a tier in the host's memory and one on a disk.
    ///
    /// # Panics
    /// If nothing of the executor can be kept there.
    pub fn with_tiers(limits: Limits, executor: E) -> Desk<E> {
        let pieces = executor.piece_bytes().expect("pieces can be copied");
        let host_bytes = ROOM_PAGES * pieces.page;
        let mut desk = Desk::new(
            Limits {
                host_bytes,
                ..limits
            },
            executor,
        );
        let bytes = (DISK_PAGES * pieces.page) as u64;
        desk.disk = Some((Fake::default(), bytes));
        desk.restart_tiers();
        desk
    }

    /// Has host memory forget everything, and opens the disk again.
    fn restart_tiers(&mut self) {
        self.copy();
        let (disk, bytes) = self.disk.as_ref().expect("there are tiers");
        let tier = self.engine.tier.as_mut().expect("there are tiers");
        tier.restart(Keyed::default(), disk.options(1, *bytes));
        self.copy();
    }

    /// Has the disk lose or change some of what it has.
    fn spoil(&mut self, random: &mut Random) {
        let (disk, _) = self.disk.as_ref().expect("there are tiers");
        disk.spoil(random);
    }

    /// Changes bits of what host memory has.
    fn flip(&mut self, random: &mut Random) {
        let tier = self.engine.tier.as_ref().expect("there are tiers");
        for place in tier.taken(random) {
            let at = place.start + random.below(FLIPPED);
            self.engine.executor.host_memory(at..at + 1)[0] ^= 1 << random.below(8);
        }
    }

    /// Has all copies end.
    fn copy(&mut self) {
        while self.engine.copies() {
            self.engine.round().expect("this device does not fail");
        }
    }

    /// A domain that nobody has asked in.
    fn domain(&mut self) -> u128 {
        self.domains += 1;
        self.domains
    }

    /// The reply to a request, and how many tokens of its prompt were kept.
    fn ask(&mut self, way: Way, domain: u128, spec: &Spec) -> (Output, usize) {
        self.engine.limits.speculate = way.speculate;
        self.engine.limits.prefill_tokens = way.chunk.min(self.chunk_max);
        self.engine.drafter = way.drafter;
        let (mut request, mut receiver) = spec.request(spec.max_tokens + 2);
        request.domain = domain;
        let admitted = request.admitted.clone();
        self.handle.submit(request).expect("nobody else asks");
        let mut reply = Output::default();
        while reply.end.is_none() {
            self.engine.round().expect("this device does not fail");
            std::iter::from_fn(|| receiver.try_recv().ok()).for_each(|event| reply.take(event));
        }
        let admission = admitted.get().expect("it was admitted");
        (reply, admission.cached)
    }

    /// The reply to a request of which nothing is kept.
    fn plain(&mut self, spec: &Spec) -> Output {
        let domain = self.domain();
        let (reply, cached) = self.ask(PLAIN, domain, spec);
        assert_eq!(cached, 0, "its domain is new");
        reply
    }

    fn pages_cached(&self) -> usize {
        self.engine.kv.pages_cached()
    }

    /// Takes pages of kept prompts, `count` of them, by a request that leaves when it has them.
    fn evict(&mut self, count: usize) {
        let used = self.engine.kv.pages_used() + self.pages_cached();
        let pages = self.engine.limits.pages - used + count;
        let spec = Spec {
            max_tokens: pages * PAGE - 1,
            ..request(vec![1], Sampling::default())
        };
        let (request, receiver) = spec.request(2);
        self.handle.submit(request).expect("nobody else asks");
        self.engine.round().expect("this device does not fail");
        drop(receiver);
        self.engine.round().expect("this device does not fail");
    }
}

/// Tokens of a reply.
const REPLY: usize = 4;

fn request(prompt: Vec<TokenId>, sampling: Sampling) -> Spec {
    Spec {
        prompt,
        max_tokens: REPLY,
        stop_tokens: vec![],
        sampling,
        logprobs: Some(2),
        prompt_logprobs: None,
        constraint: None,
    }
}

/// Tokens of a prompt after those that it shares, at most.
const TAIL_MAX: usize = 24;

/// Lengths that a prompt shares with one before: around the ends of pages, long, and of every
/// remainder of a page.
pub fn shared_lengths() -> Vec<usize> {
    let around = [0, 1, 63, 64, 65, 127, 128, 1000];
    around.into_iter().chain(2 * PAGE..3 * PAGE).collect()
}

/// Share of a prompt that a cache has.
const CACHES: [&str; 7] = [
    "cold",
    "warm",
    "partly evicted",
    "driven out to the host",
    "driven out to the disk",
    "driven out to a disk that loses some of it",
    "driven out to a host that changes some of it",
];
/// Numbers of the last: those of an engine with tiers.
const HOST: usize = 3;
const DISK: usize = 4;
const LOSSY: usize = 5;
const CHANGED: usize = 6;

/// Trials by what the cache had.
#[derive(Debug, Default)]
pub struct Prefixes {
    trials: [usize; CACHES.len()],
    /// Prompts that went on from what was kept.
    hits: [usize; CACHES.len()],
}

impl AddAssign for Prefixes {
    fn add_assign(&mut self, other: Prefixes) {
        for cache in 0..CACHES.len() {
            self.trials[cache] += other.trials[cache];
            self.hits[cache] += other.hits[cache];
        }
    }
}

impl Prefixes {
    /// Tells what was reached: each kind of cache, with and without a hit.
    pub fn report(&self, executor: &str) {
        for (cache, name) in CACHES.iter().enumerate() {
            let (trials, hits) = (self.trials[cache], self.hits[cache]);
            println!("{executor}: {trials} prompts over a {name} cache, {hits} hits, 0 different");
            let is_left_out = cache >= HOST && trials == 0;
            assert!(
                is_left_out || trials > 0 && (hits > 0) == (cache > 0),
                "{name}"
            );
        }
    }
}

/// A prompt that shares its beginning with one or two before it.
pub fn prefix<E: Executor>(desk: &mut Desk<E>, number: u64, found: &mut Prefixes) {
    let (lengths, mut random) = (shared_lengths(), Random::new(number));
    let shared = lengths[number as usize % lengths.len()];
    // All lengths in turn, and after them the next kind of cache.
    let caches = if desk.disk.is_some() {
        CACHES.len()
    } else {
        HOST
    };
    let cache = (number as usize / lengths.len() + number as usize) % caches;
    let stem = random.tokens(1..E::VOCAB, shared);
    let after = |random: &mut Random, stem: &[TokenId]| {
        let count = random.within(1, TAIL_MAX);
        let prompt = [stem, &random.tokens(1..E::VOCAB, count)].concat();
        request(prompt, sampling(random, E::VOCAB))
    };
    let asked = after(&mut random, &stem);
    let wanted = desk.plain(&asked);
    let cached = desk.pages_cached();
    desk.evict(cached);
    let domain = desk.domain();
    let way = Way {
        chunk: PAGE * random.within(1, desk.chunk_max / PAGE),
        ..PLAIN
    };
    // One that parts in the middle leaves a state to go on from when the end goes.
    let partings = match (cache, random.within(1, 2)) {
        (0, _) => vec![],
        (1, 1) => vec![shared],
        (1 | HOST | DISK | CHANGED, _) => vec![shared, shared],
        _ => vec![shared / 2, shared],
    };
    for parting in partings {
        let before = after(&mut random, &stem[..parting]);
        desk.ask(way, domain, &before);
    }
    if cache == 2 && desk.pages_cached() > 0 {
        let count = random.within(1, desk.pages_cached());
        desk.evict(count);
    }
    if cache >= HOST {
        desk.copy();
        desk.evict(desk.pages_cached());
        assert_eq!(desk.pages_cached(), 0);
    }
    if cache == CHANGED {
        desk.flip(&mut random);
    }
    // Before the start that finds it, or while it is served.
    let spoiled = (cache == LOSSY).then(|| random.chance(0.5));
    if spoiled == Some(true) {
        desk.spoil(&mut random);
    }
    if [DISK, LOSSY].contains(&cache) {
        desk.restart_tiers();
    }
    if spoiled == Some(false) {
        desk.spoil(&mut random);
    }
    let (reply, cached) = desk.ask(way, domain, &asked);
    assert_eq!(
        reply, wanted,
        "{shared} tokens are shared, {cached} kept, {}",
        CACHES[cache]
    );
    found.trials[cache] += 1;
    found.hits[cache] += usize::from(cached > 0);
}

/// Replies to prompts that were cut.
#[derive(Debug, Default)]
pub struct Chunks {
    lengths: usize,
    replies: usize,
}

impl AddAssign for Chunks {
    fn add_assign(&mut self, other: Chunks) {
        self.lengths += other.lengths;
        self.replies += other.replies;
    }
}

impl Chunks {
    /// Tells what was reached.
    pub fn report(&self, executor: &str) {
        let (replies, lengths) = (self.replies, self.lengths);
        println!(
            "{executor}: {replies} replies to prompts of {lengths} lengths in chunks, 0 different"
        );
        assert!(replies > lengths && lengths > 0);
    }
}

/// A prompt of a length in chunks of every size.
pub fn chunks<E: Executor>(desk: &mut Desk<E>, length: usize, found: &mut Chunks) {
    let mut random = Random::new(length as u64);
    let prompt = random.tokens(1..E::VOCAB, length);
    let spec = request(prompt, sampling(&mut random, E::VOCAB));
    let wanted = desk.plain(&spec);
    for chunk in (PAGE..=desk.chunk_max).step_by(PAGE) {
        let domain = desk.domain();
        let (reply, _) = desk.ask(Way { chunk, ..PLAIN }, domain, &spec);
        assert_eq!(reply, wanted, "{length} tokens in chunks of {chunk}");
        found.replies += 1;
    }
    found.lengths += 1;
}

/// Drafters, by name.
const DRAFTERS: [(&str, Drafter); 5] = [
    ("prediction layer", Drafter::Mtp),
    ("earlier tokens", Drafter::NGram),
    ("always wrong", Drafter::Given(simulator::wrong)),
    ("random", Drafter::Given(simulator::random)),
    ("oracle", Drafter::Given(simulator::oracle)),
];

/// Depths from none to the largest.
const DEPTHS: usize = DEPTH_MAX + 1;
/// Combinations of drafter, depth, and greedy or sampled.
pub const DRAFT_WAYS: u64 = (2 * DEPTHS * DRAFTERS.len()) as u64;
/// Tokens of a reply with drafts.
const DRAFTED: usize = 12;

/// Replies with drafts, by drafter.
#[derive(Debug, Default)]
pub struct Drafted {
    replies: [usize; DRAFTERS.len()],
    tried: [u64; DRAFTERS.len()],
    accepted: [u64; DRAFTERS.len()],
}

impl AddAssign for Drafted {
    fn add_assign(&mut self, other: Drafted) {
        for drafter in 0..DRAFTERS.len() {
            self.replies[drafter] += other.replies[drafter];
            self.tried[drafter] += other.tried[drafter];
            self.accepted[drafter] += other.accepted[drafter];
        }
    }
}

impl Drafted {
    /// Tells what was reached: drafts of each drafter, and that they hold as it is meant to.
    pub fn report(&self, executor: &str) {
        for (drafter, (name, _)) in DRAFTERS.iter().enumerate() {
            let (replies, tried, accepted) = (
                self.replies[drafter],
                self.tried[drafter],
                self.accepted[drafter],
            );
            println!(
                "{executor}, {name}: {replies} replies, {accepted} of {tried} accepted, 0 different"
            );
            let hold = match *name {
                "always wrong" => accepted == 0,
                "oracle" => accepted == tried,
                _ => true,
            };
            assert!(tried > 0 && hold, "{name}");
        }
    }
}

/// A prompt that says something again and again, so that earlier tokens tell what comes.
fn repeated<E: Executor>(random: &mut Random) -> Vec<TokenId> {
    let count = random.within(3, 8);
    let said = random.tokens(1..E::VOCAB, count);
    let length = random.within(1, 4 * count);
    said.into_iter().cycle().take(length).collect()
}

/// A reply with drafts.
pub fn drafted<E: Executor>(desk: &mut Desk<E>, number: u64, found: &mut Drafted) {
    let (mut random, way) = (Random::new(number), number as usize);
    let (drafter, depth) = (way % DRAFTERS.len(), way / DRAFTERS.len() % DEPTHS);
    let sampled = way / DRAFTERS.len() / DEPTHS % 2 == 1;
    let mut spec = request(repeated::<E>(&mut random), sampling(&mut random, E::VOCAB));
    spec.sampling.temperature = if sampled {
        random.pick(&[0.3, 1.0])
    } else {
        0.0
    };
    if random.chance(0.5) {
        // With few tokens the same ones come again.
        spec.sampling.allowed = random.tokens(1..E::VOCAB, 3);
        spec.sampling.allowed.sort_unstable();
    }
    spec.max_tokens = DRAFTED;
    let wanted = desk.plain(&spec);
    simulator::tell_alone(spec.prompt.iter().copied().chain(wanted.ids()).collect());
    let (name, drafter_of) = DRAFTERS[drafter];
    let speculate = match depth {
        0 => Speculate::Off,
        depth => Speculate::Depth(depth),
    };
    let stats = desk.handle.stats();
    let before = (stats.drafted_tokens.get(), stats.accepted_tokens.get());
    let domain = desk.domain();
    let way = Way {
        speculate,
        drafter: drafter_of,
        ..PLAIN
    };
    let (reply, _) = desk.ask(way, domain, &spec);
    assert_eq!(reply, wanted, "{depth} drafts, {name}, sampled: {sampled}");
    let stats = desk.handle.stats();
    found.replies[drafter] += 1;
    found.tried[drafter] += stats.drafted_tokens.get() - before.0;
    found.accepted[drafter] += stats.accepted_tokens.get() - before.1;
}

/// The hash model, with recurrent states, with a window, and with neither.
#[cfg(test)]
mod over_hashes {
    use std::sync::OnceLock;

    use step::testing::{TINY, few_or_many};

    use super::simulator::{HashModel, VOCAB};
    use super::*;
    use crate::request::Request;

    type Hashes = Desk<HashModel<VOCAB>>;

    fn desk(snapshots: usize) -> Hashes {
        desk_of(Hashes::limits(&TINY, snapshots))
    }

    fn windowed_desk(snapshots: usize) -> Hashes {
        desk_of(simulator::windowed(Hashes::limits(&TINY, snapshots), 100))
    }

    fn desk_of(limits: Limits) -> Hashes {
        Desk::with_tiers(limits, HashModel::new(&limits))
    }

    /// Trials of each length and kind of cache.
    const ROUNDS: u64 = few_or_many(2, 200);

    #[test]
    fn what_is_kept_of_a_prompt_changes_no_bit() {
        let count = ROUNDS * (CACHES.len() * shared_lengths().len()) as u64;
        let report = |desk: fn() -> Hashes, model| {
            let found: Prefixes = spread(count, desk, prefix);
            found.report(model);
        };
        report(|| desk(0), "hashes without states");
        report(|| desk(6), "hashes with states");
        report(|| windowed_desk(6), "hashes with a window");
    }

    /// Milliseconds since the start of a test.
    static MILLIS: AtomicU64 = AtomicU64::new(0);

    /// Time that goes when it is told to.
    fn told() -> Instant {
        static START: OnceLock<Instant> = OnceLock::new();
        let start = START.get_or_init(Instant::now);
        *start + Duration::from_millis(MILLIS.load(Ordering::Relaxed))
    }

    /// Requests with pages of their own.
    fn agents(count: usize) -> Vec<Spec> {
        let of = |number| Random::new(number as u64).tokens(1..VOCAB, 200);
        (0..count)
            .map(|number| request(of(number), Sampling::default()))
            .collect()
    }

    #[test]
    fn a_slow_disk_holds_up_who_waits_for_it_alone_and_not_often() {
        let mut desk = desk(6);
        let agents = agents(4);
        let asked = |spec: &Spec| {
            let (reply, _) = desk.ask(PLAIN, 0, spec);
            desk.copy();
            desk.evict(desk.pages_cached());
            reply
        };
        let wanted: Vec<Output> = agents.iter().map(asked).collect();
        desk.restart_tiers();
        let (disk, _) = desk.disk.clone().expect("there are tiers");
        disk.memory().faults.blocked = true;
        desk.engine.now = told;
        let is_on = |desk: &Hashes| {
            let staging = desk.engine.tier.as_ref().and_then(|tier| tier.staging());
            staging.is_some_and(|of| of.disk.is_on())
        };
        for (number, (spec, wanted)) in agents.iter().zip(&wanted).enumerate() {
            let was_on = is_on(&desk);
            let (waits, mut waiting) = spec.request(spec.max_tokens + 2);
            let waits = Request { domain: 0, ..waits };
            desk.handle.submit(waits).expect("there is room");
            let domain = desk.domain();
            let (other, cached) = desk.ask(PLAIN, domain, spec);
            assert_eq!((&other, cached), (wanted, 0), "{number}");
            assert!(!was_on || waiting.try_recv().is_err(), "{number}");
            let mut reply = Output::default();
            while reply.end.is_none() {
                MILLIS.fetch_add(100, Ordering::Relaxed);
                desk.engine.round().expect("this device does not fail");
                std::iter::from_fn(|| waiting.try_recv().ok()).for_each(|event| reply.take(event));
            }
            assert!(reply == *wanted);
        }
        disk.memory().faults.blocked = false;
        assert!(!is_on(&desk), "it is slower than computing");
    }

    #[test]
    fn chunks_change_no_bit() {
        let trial = |desk: &mut Hashes, number, found: &mut Chunks| {
            chunks(desk, 1 + number as usize, found);
        };
        for desk in [desk, windowed_desk] {
            let found: Chunks = spread(few_or_many(300, 1500), || desk(6), trial);
            found.report("hashes");
        }
    }

    #[test]
    fn drafts_change_no_bit() {
        let count = few_or_many(10, 2500) * DRAFT_WAYS;
        for desk in [desk, windowed_desk] {
            let found: Drafted = spread(count, || desk(6), drafted);
            found.report("hashes");
        }
    }
}
