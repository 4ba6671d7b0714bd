//! Agents that ask in turn: how much of their prompts is found, over the memory of a model of 35
//! billion parameters on a GPU of 80 GB, and how much a policy would find that knows what comes.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::kv::{Begin, Kv, Reservation, pages_for};
use super::prefix::{self, Naming, SnapshotKind, SnapshotPoint};
use super::tier::Tier;
use super::tier::testing::{Copying, PIECES};
use step::PAGE;
use step::executor::TokenId;
use step::random::Random;
use step::testing::TINY;

const PAGES: usize = 24_080;
const STATES: usize = 64;
/// Tokens of a long prompt between states that are cached of it.
const SPACING: usize = 8192;
/// Tokens of prompts that a second computes.
const SPEED: usize = 20_000;
/// Seconds that a reply takes, and tokens that a turn has beside it.
const REPLY: f64 = 2.0;
const TURN: usize = 300;
/// Tokens that prompts share with another of the same head.
const HEADS: TokenId = 1 << 30;

/// Names of blocks that nobody attacks.
struct Sums;

impl Naming for Sums {
    fn name(&self, before: u128, tokens: &[TokenId]) -> u128 {
        let push = |sum: u128, &token: &TokenId| (sum ^ u128::from(token)).wrapping_mul(PRIME);
        tokens.iter().fold(before, push)
    }
}

/// Prime of 128 bits that Fowler, Noll and Vo chose.
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;

/// Agents with prompts of some length, of which they share a part.
#[derive(Clone, Copy, Debug)]
struct Agents {
    tokens: usize,
    shared: usize,
    at_once: usize,
}

/// A server without its model.
struct Server {
    kv: Kv<Sums>,
    tier: Option<Tier<Sums>>,
    device: Copying,
    agents: Agents,
    seconds: f64,
    /// Prompts by agent, and what each has of its own.
    prompts: HashMap<usize, Vec<TokenId>>,
    running: VecDeque<(Begin, usize)>,
    asked: usize,
    cached: usize,
}

impl Server {
    /// With so many pages in host memory.
    fn new(agents: Agents, states: usize, host: usize) -> Server {
        Server {
            tier: Tier::new(host * PIECES.page, PIECES, Sums),
            device: Copying::default(),
            kv: Kv::new((64, states, 0), PAGES, PAGES * PAGE, Sums),
            agents,
            seconds: 0.0,
            prompts: HashMap::new(),
            running: VecDeque::new(),
            asked: 0,
            cached: 0,
        }
    }

    /// The next turn of an agent, whose first prompt has so many tokens.
    fn turn(&mut self, agent: usize, tokens: usize) {
        while self.running.len() >= self.agents.at_once
            || self.running.iter().any(|(_, other)| *other == agent)
        {
            self.finish();
        }
        let shared = self.agents.shared;
        let prompt = self.prompts.entry(agent).or_default();
        let next = match prompt.len() {
            0 => tokens,
            before => before + TURN,
        };
        let token = |at| match at < shared {
            true => HEADS + at as TokenId,
            false => (agent << 17 | at) as TokenId,
        };
        prompt.extend((prompt.len()..next).map(token));
        self.kv.set_time(Duration::from_secs_f64(self.seconds));
        let below = self.tier.as_mut().map(|tier| {
            tier.set_time(Duration::from_secs_f64(self.seconds));
            tier.look_up(1, prompt)
        });
        let asked = Reservation {
            owner: 1,
            domain: 1,
            prompt,
            leaves_share: false,
            restorable: below.as_ref().map_or(0, |hit| hit.pages.len()),
        };
        let begin = self.kv.reserve(next + TURN, asked).expect("it fits");
        if let (Some(tier), Some(hit)) = (&mut self.tier, &below) {
            tier.note_use(hit, 1);
            if let Some(here) = begin.restore_after {
                let pages = &self.kv.pages(begin.slot)[here..hit.pages.len()];
                tier.restore(begin.slot, hit, (pages, &[]));
            }
        }
        self.kv.has_read(begin.slot);
        (self.asked, self.cached) = (self.asked + next, self.cached + begin.cached);
        self.seconds += (next - begin.cached) as f64 / SPEED as f64;
        self.kv.set_time(Duration::from_secs_f64(self.seconds));
        let points = prefix::snapshot_points(
            next,
            (begin.cached, begin.known),
            shared,
            TINY.prefill_tokens,
        );
        let is_taken = |point: &SnapshotPoint| {
            point.kind != SnapshotKind::Spaced || point.tokens.is_multiple_of(SPACING)
        };
        for point in points.into_iter().filter(is_taken) {
            if let Some(state) = self.kv.lend(begin.slot, point) {
                let state = Some((point.kind, state));
                self.kv.cache(begin.slot, &prompt[..point.tokens], state);
            }
        }
        let last = prefix::last_snapshot_point(next);
        self.kv.cache(begin.slot, &prompt[..last], None);
        if let Some(tier) = &mut self.tier {
            let pins = self.kv.pin(begin.slot, prompt);
            pins.into_iter()
                .for_each(|pin| tier.queue_save(pin, &mut self.kv));
            while tier.is_busy() {
                tier.start(&mut self.device, &mut self.kv).unwrap();
                tier.settle(&mut self.device, &mut self.kv).unwrap();
            }
            assert!(tier.is_conserved());
        }
        self.running.push_back((begin, agent));
    }

    /// The oldest reply ends.
    fn finish(&mut self) {
        let (begin, _) = self.running.pop_front().expect("one runs");
        self.seconds += REPLY / self.agents.at_once as f64;
        self.kv.set_time(Duration::from_secs_f64(self.seconds));
        self.kv.release(begin.slot, true);
    }

    /// Share of the tokens that were found since it was asked last.
    fn found(&mut self) -> f64 {
        assert_eq!(self.kv.check_integrity(), Ok(()));
        let found = self.cached as f64 / self.asked as f64;
        (self.asked, self.cached) = (0, 0);
        found
    }
}

/// Shares of tokens that are found in each of some rounds of turns.
fn rounds(agents: Agents, count: usize, host: usize) -> [f64; 8] {
    let mut server = Server::new(agents, STATES, host);
    [(); 8].map(|()| {
        (0..count).for_each(|agent| server.turn(agent, agents.tokens));
        server.found()
    })
}

#[test]
fn agents_that_fit_find_all_and_of_twice_as_many_half() {
    let long = Agents {
        tokens: 125_000,
        shared: 25_000,
        at_once: 4,
    };
    let short = Agents {
        tokens: 30_000,
        shared: 8_000,
        at_once: 4,
    };
    for (agents, count, least) in [
        (long, 8, 0.97),
        (short, 16, 0.97),
        (short, 32, 0.97),
        (long, 24, 0.5),
    ] {
        let found = rounds(agents, count, 0);
        println!("{count} of {agents:?}: {found:.3?}");
        assert!(found[1..].iter().all(|found| *found >= least), "{found:?}");
    }
}

#[test]
fn agents_of_three_times_what_fits_find_all_with_a_tier() {
    let agents = Agents {
        tokens: 125_000,
        shared: 25_000,
        at_once: 4,
    };
    let count = 3 * PAGES * PAGE / agents.tokens;
    let found = rounds(agents, count, 3 * PAGES);
    println!("{count} of {agents:?}: {found:.3?}");
    assert!(found[1..].iter().all(|found| *found >= 0.97), "{found:?}");
    // Where host memory has half of them, about as many find theirs.
    let found = rounds(agents, count, 3 * PAGES / 2);
    println!("{count} of {agents:?}: {found:.3?} with half the memory");
    assert!(found[2..].iter().all(|found| *found >= 0.5), "{found:?}");
}

/// Turns of agents, by number: one of an agent whose first prompt has so many tokens.
type Turns = Vec<(usize, usize)>;

/// Worth of what is cached of an agent that last came in a turn, now: what is worth least goes.
type Policy<'t> = dyn Fn(usize, usize) -> f64 + 't;

/// Share that is found where a policy knows each agent and the turn that it last came in.
fn by_policy(turns: &Turns, shared: usize, worth: &Policy<'_>) -> f64 {
    let (mut asked, mut cached) = (0, 0);
    // When each last came, and its pages.
    let mut cached_pages: HashMap<usize, (usize, usize)> = HashMap::new();
    let mut lengths: HashMap<usize, usize> = HashMap::new();
    for (at, (agent, tokens)) in turns.iter().enumerate() {
        let length = lengths.entry(*agent).or_insert(*tokens);
        asked += *length;
        cached += match cached_pages.remove(agent) {
            Some(_) => *length - TURN,
            None if at > 0 => shared,
            None => 0,
        } / PAGE
            * PAGE;
        let pages = pages_for(*length + TURN - shared);
        // A running prompt's pages are there while it runs.
        let is_full = |cached_pages: &HashMap<usize, (usize, usize)>| {
            let used: usize = cached_pages.values().map(|(_, pages)| pages).sum();
            used + pages + pages_for(shared) > PAGES || cached_pages.len() + 2 > STATES
        };
        while is_full(&cached_pages) {
            let worth = |(_, (last, _)): &(&usize, &(usize, usize))| worth(*last, at);
            let least = cached_pages
                .iter()
                .min_by(|a, b| worth(a).total_cmp(&worth(b)));
            let least = *least.expect("one is cached").0;
            cached_pages.remove(&least);
        }
        cached_pages.insert(*agent, (at, pages));
        *length += TURN;
    }
    cached as f64 / asked as f64
}

/// Share that is found by who knows the order of all turns: whoever comes last goes. A page saves
/// as much time as any other, so that nothing else counts.
fn clairvoyant(turns: &Turns, shared: usize) -> f64 {
    let mut next = vec![usize::MAX; turns.len()];
    let mut coming = HashMap::new();
    for (at, (agent, _)) in turns.iter().enumerate().rev() {
        next[at] = coming.insert(*agent, at).unwrap_or(usize::MAX);
    }
    by_policy(turns, shared, &|last, _| 1.0 / next[last] as f64)
}

/// Share that is found by who knows how often each agent comes and how many end, but not when.
fn informed(turns: &Turns, shared: usize, paces: &HashMap<usize, f64>) -> f64 {
    // Part of the turns that are the last of their agents.
    let ends = paces.len() as f64 / turns.len() as f64;
    by_policy(turns, shared, &|last, now| {
        let pace = paces[&turns[last].0];
        let waits = (1.0 - ends) * (-pace * (now - last) as f64).exp();
        pace * waits / (waits + ends)
    })
}

/// Share that the server finds.
fn served(turns: &Turns, shared: usize) -> f64 {
    let agents = Agents {
        tokens: 0,
        shared,
        at_once: 1,
    };
    let mut server = Server::new(agents, STATES, 0);
    turns
        .iter()
        .for_each(|(agent, tokens)| server.turn(*agent, *tokens));
    server.found()
}

/// Agents of a trace, and tokens that they share.
const AGENTS: usize = 48;
const SHARED: usize = 8_000;

/// Agents of any length and pace, each of which is done after a while and followed by another;
/// turns, and the part of them that each agent has while it is there.
fn mixed(random: &mut Random) -> (Turns, HashMap<usize, f64>) {
    /// Part of the turns that one half of the agents has.
    const FAST: f64 = 0.75;
    let mut alive: Vec<_> = (0..AGENTS).map(|agent| (agent, 0, 0)).collect();
    let (mut turns, mut paces) = (Vec::new(), HashMap::new());
    while turns.len() < 1500 {
        let (part, first) = match random.chance(FAST) {
            true => (FAST, 0),
            false => (1.0 - FAST, AGENTS / 2),
        };
        let index = first + random.below(AGENTS / 2);
        let (agent, tokens, left) = &mut alive[index];
        if *left == 0 {
            (*agent, *tokens, *left) = (
                paces.len(),
                random.within(10_000, 70_000),
                random.within(1, 40),
            );
            paces.insert(*agent, part / (AGENTS / 2) as f64);
        }
        *left -= 1;
        turns.push((*agent, *tokens));
    }
    (turns, paces)
}

#[test]
fn agents_in_random_order_find_what_can_be_found() {
    let mut random = Random::new(17);
    let mut even = |tokens| (0..1000).map(|_| (random.below(AGENTS), tokens)).collect();
    // Where all are alike and far too many, none who does not know what comes can find more on the
    // whole than the part that fits.
    for (tokens, less) in [(30_000, 0.05), (36_000, 0.05), (70_000, 0.25)] {
        let turns: Turns = even(tokens);
        let (found, most) = (served(&turns, SHARED), clairvoyant(&turns, SHARED));
        println!("{AGENTS} of {tokens} tokens: {found:.3}, who knows what comes {most:.3}");
        assert!(found >= most - less, "{tokens}: {found} of {most}");
    }
}

#[test]
fn agents_that_come_and_go_find_what_can_be_found_without_knowing_what_comes() {
    const TRACES: u64 = 20;
    let mut mean = [0.0; 3];
    for seed in 1..=TRACES {
        let (turns, paces) = mixed(&mut Random::new(seed));
        let found = [
            served(&turns, SHARED),
            informed(&turns, SHARED, &paces),
            clairvoyant(&turns, SHARED),
        ];
        println!("{found:.3?}");
        mean.iter_mut()
            .zip(found)
            .for_each(|(sum, found)| *sum += found / TRACES as f64);
    }
    let [found, informed, most] = mean;
    println!("{found:.3}, who knows all paces {informed:.3}, who knows what comes {most:.3}");
    assert!(found >= informed - 0.01 && found >= most - 0.07, "{mean:?}");
}
