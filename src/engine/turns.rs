//! Whose turn it is: slots go to who has the fewest.
//!
//! Requests come from clients, over connections, in calls that may want several replies. A slot
//! that is free goes to the client that holds the fewest slots; within it to the connection, and
//! within that to the call, that does. Of those that are equal the one whose last turn is longest
//! ago comes first, then who has waited longest. So a flood, or one call of many replies, takes as
//! many turns as everybody else, and all of the slots where nobody else wants one.
//!
//! Where others had turns a short while ago the last slot is kept for who holds none, so that its
//! first token does not wait for the end of somebody's reply. Nor does it wait for their prompts:
//! those are left out of a step, though never of two in a row, in which a prompt is of someone who
//! holds nothing else.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Whom a request is from. Numbers mean nothing but who is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Source {
    pub client: u64,
    /// Of the client; those that are seen for the first time are one.
    pub connection: u64,
    pub call: u64,
}

impl Source {
    /// The client and its connection.
    pub fn flow(self) -> (u64, u64) {
        (self.client, self.connection)
    }

    fn whole(self) -> (u64, u64, u64) {
        (self.client, self.connection, self.call)
    }
}

/// How much those hold beside one of their slots; the least comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// The client holds no other slot.
    Alone,
    /// The client holds others, the connection none.
    AloneOnConnection,
    HoldsOthers,
}

impl Standing {
    /// Of `source` among all that hold slots, itself among them.
    pub fn of(source: Source, running: impl Iterator<Item = Source>) -> Standing {
        let (mut client, mut flow) = (0, 0);
        for held in running {
            client += usize::from(held.client == source.client);
            flow += usize::from(held.flow() == source.flow());
        }
        match (client, flow) {
            (..=1, _) => Standing::Alone,
            (_, ..=1) => Standing::AloneOnConnection,
            _ => Standing::HoldsOthers,
        }
    }
}

/// Turns that are remembered to tell whose last one is longest ago, and who had one.
const REMEMBERED_MAX: usize = 256;
/// Fewest slots of which one is kept: of fewer it would be too large a part.
pub const KEPT_SLOTS_MIN: usize = 4;

/// What is known of turns that were taken.
#[derive(Debug, Default)]
pub struct Turns {
    /// The last one last.
    taken: VecDeque<Source>,
}

impl Turns {
    /// Takes note of a turn.
    pub fn take(&mut self, source: Source) {
        if self.taken.len() == REMEMBERED_MAX {
            self.taken.pop_front();
        }
        self.taken.push_back(source);
    }

    /// Whether `source` may take the last slot beside those that hold the others.
    pub fn may_take_last(&self, source: Source, running: impl Iterator<Item = Source>) -> bool {
        let (mut client, mut flow) = (false, false);
        for held in running {
            client |= held.client == source.client;
            flow |= held.flow() == source.flow();
        }
        let mut taken = self.taken.iter();
        // A flow of the client that holds none may take what is kept from the client's others, but
        // not from other clients.
        !taken.any(|other| match other.client == source.client {
            true => flow && other.flow() != source.flow(),
            false => client,
        })
    }

    /// Which of `waiting`, in the order of their arrival, comes next beside those that hold slots.
    pub fn next(
        &self,
        waiting: impl ExactSizeIterator<Item = Source>,
        running: impl Iterator<Item = Source>,
    ) -> Option<usize> {
        if waiting.len() < 2 {
            return (waiting.len() == 1).then_some(0);
        }
        let running: Vec<Source> = running.collect();
        let clients = Shares::of(&running, &self.taken, |source| source.client);
        let flows = Shares::of(&running, &self.taken, Source::flow);
        let calls = Shares::of(&running, &VecDeque::new(), Source::whole);
        let rank = |source: Source| {
            (
                clients.rank(source.client),
                flows.rank(source.flow()),
                calls.rank(source.whole()),
            )
        };
        let ranked = waiting.map(rank).enumerate();
        ranked
            .min_by_key(|(at, rank)| (*rank, *at))
            .map(|(at, _)| at)
    }
}

/// Slots that each holds, and when each took its last turn.
struct Shares<K> {
    held: HashMap<K, usize>,
    last: HashMap<K, usize>,
}

impl<K: Hash + Eq> Shares<K> {
    fn of(running: &[Source], taken: &VecDeque<Source>, key: impl Fn(Source) -> K) -> Shares<K> {
        let mut held = HashMap::new();
        for source in running {
            *held.entry(key(*source)).or_default() += 1;
        }
        let turns = taken.iter().enumerate();
        let last = turns.map(|(turn, source)| (key(*source), turn + 1));
        Shares {
            held,
            last: last.collect(),
        }
    }

    /// The smaller, the sooner.
    fn rank(&self, key: K) -> (usize, usize) {
        let of = |known: &HashMap<K, usize>| known.get(&key).copied().unwrap_or(0);
        (of(&self.held), of(&self.last))
    }
}

/// Requests that wait, counted: how many each may have there.
///
/// A flow may have so many calls waiting, and as many replies beyond the first of each. All flows
/// share four times that, and each may take as many places as are free, a client twice as many: so
/// there is always a place for who has none. Their prompts have as many tokens as those of one flow
/// may.
#[derive(Debug)]
pub struct Waiting {
    /// Calls of a flow.
    calls_max: usize,
    /// Tokens of all prompts.
    tokens_max: usize,
    total: usize,
    tokens: usize,
    clients: HashMap<u64, usize>,
    flows: HashMap<(u64, u64), usize>,
    /// Replies of each call.
    calls: HashMap<(u64, u64, u64), usize>,
    /// Calls of each flow that have a reply waiting.
    calls_of: HashMap<(u64, u64), usize>,
}

/// How many flows may have all the places that one may.
pub const FLOWS: usize = 4;

impl Waiting {
    /// Places for `calls_max` calls of a flow with prompts of at most `context` tokens.
    pub fn new(calls_max: usize, context: usize) -> Waiting {
        Waiting {
            calls_max,
            tokens_max: calls_max.saturating_mul(context),
            total: 0,
            tokens: 0,
            clients: HashMap::new(),
            flows: HashMap::new(),
            calls: HashMap::new(),
            calls_of: HashMap::new(),
        }
    }

    /// The most requests that wait.
    pub fn most(calls_max: usize) -> usize {
        calls_max * FLOWS
    }

    /// Whether a reply to a prompt of so many tokens may wait.
    pub fn has_room(&self, source: Source, tokens: usize) -> bool {
        fn count<K: Hash + Eq>(counts: &HashMap<K, usize>, key: K) -> usize {
            counts.get(&key).copied().unwrap_or(0)
        }
        let free = Waiting::most(self.calls_max) - self.total;
        let flow = count(&self.flows, source.flow());
        let calls = count(&self.calls_of, source.flow());
        let of_flow = match count(&self.calls, source.whole()) {
            0 => calls < self.calls_max,
            _ => flow - calls < self.calls_max,
        };
        of_flow
            && flow < free
            && count(&self.clients, source.client) < 2 * free
            && self.tokens + tokens <= self.tokens_max
    }

    pub fn add(&mut self, source: Source, tokens: usize) {
        self.total += 1;
        self.tokens += tokens;
        *self.clients.entry(source.client).or_default() += 1;
        *self.flows.entry(source.flow()).or_default() += 1;
        let replies = self.calls.entry(source.whole()).or_default();
        *replies += 1;
        if *replies == 1 {
            *self.calls_of.entry(source.flow()).or_default() += 1;
        }
    }

    /// # Panics
    /// If it was not added.
    pub fn remove(&mut self, source: Source, tokens: usize) {
        /// Whether none is left.
        fn less<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: K) -> bool {
            let count = counts.get_mut(&key).expect("it was added");
            *count -= 1;
            let none = *count == 0;
            if none {
                counts.remove(&key);
            }
            none
        }
        self.total -= 1;
        self.tokens -= tokens;
        less(&mut self.clients, source.client);
        less(&mut self.flows, source.flow());
        if less(&mut self.calls, source.whole()) {
            less(&mut self.calls_of, source.flow());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(client: u64, connection: u64, call: u64) -> Source {
        Source {
            client,
            connection,
            call,
        }
    }

    /// The order in which `waiting` get slots beside `running` that nobody gives back.
    fn order(waiting: &[Source], running: &[Source]) -> Vec<Source> {
        let mut turns = Turns::default();
        let (mut waiting, mut running) = (waiting.to_vec(), running.to_vec());
        let mut order = Vec::new();
        while let Some(next) = turns.next(waiting.iter().copied(), running.iter().copied()) {
            let source = waiting.remove(next);
            turns.take(source);
            running.push(source);
            order.push(source);
        }
        order
    }

    #[test]
    fn clients_take_turns_however_many_requests_they_have() {
        let [a, b] = [from(1, 0, 1), from(2, 0, 2)];
        assert_eq!(order(&[a, a, a, a, b, b], &[]), [a, b, a, b, a, a]);
        // Who holds fewer slots comes first.
        assert_eq!(order(&[a, a, b], &[b, b]), [a, a, b]);
    }

    #[test]
    fn connections_and_calls_of_a_client_take_turns() {
        let flood = |call| from(1, 0, call);
        let polite = from(1, 7, 9);
        let waiting = [flood(1), flood(2), flood(3), polite];
        assert_eq!(order(&waiting, &[flood(0)])[0], polite);
        let (batch, single) = (from(1, 0, 1), from(1, 0, 2));
        let found = order(&[batch, batch, batch, single], &[batch]);
        assert_eq!(found, [single, batch, batch, batch]);
    }

    #[test]
    fn where_slots_are_given_back_at_once_the_last_turn_decides() {
        let [a, b] = [from(1, 0, 1), from(2, 0, 2)];
        let mut turns = Turns::default();
        let mut waiting = vec![a, a, a, b, b, b];
        let mut order = Vec::new();
        while let Some(next) = turns.next(waiting.iter().copied(), [].into_iter()) {
            order.push(waiting.remove(next));
            turns.take(*order.last().unwrap());
        }
        assert_eq!(order, [a, b, a, b, a, b]);
    }

    #[test]
    fn the_last_slot_is_kept_for_who_holds_none_where_others_had_turns() {
        let [flood, own, other] = [from(1, 0, 1), from(1, 7, 2), from(2, 0, 3)];
        let mut turns = Turns::default();
        let may = |turns: &Turns, source| turns.may_take_last(source, [flood; 3].into_iter());
        turns.take(flood);
        assert!(may(&turns, flood), "nobody else is there");
        turns.take(own);
        assert!(!may(&turns, flood) && may(&turns, own) && may(&turns, other));
        turns.take(other);
        assert!(!may(&turns, flood) && !may(&turns, own) && may(&turns, other));
        (0..REMEMBERED_MAX).for_each(|_| turns.take(flood));
        assert!(may(&turns, flood), "the others left");
    }

    #[test]
    fn who_holds_least_stands_first() {
        let [flood, own, other] = [from(1, 0, 1), from(1, 7, 2), from(2, 0, 3)];
        let running = [flood, flood, own, other];
        let standing = |source| Standing::of(source, running.into_iter());
        assert_eq!(standing(flood), Standing::HoldsOthers);
        assert_eq!(standing(own), Standing::AloneOnConnection);
        assert_eq!(standing(other), Standing::Alone);
        assert!(standing(other) < standing(own) && standing(own) < standing(flood));
    }

    #[test]
    fn one_source_is_served_in_order() {
        let turns = Turns::default();
        let same = [Source::default(); 3];
        assert_eq!(turns.next(same.into_iter(), same.into_iter()), Some(0));
        assert_eq!(turns.next([].into_iter(), [].into_iter()), None);
    }

    /// How many replies of `source` are taken, each of a new call if `apart`.
    fn fill(waiting: &mut Waiting, mut source: Source, apart: bool) -> usize {
        let mut taken = 0;
        while waiting.has_room(source, 1) {
            waiting.add(source, 1);
            taken += 1;
            source.call += u64::from(apart);
        }
        taken
    }

    #[test]
    fn a_flood_and_a_batch_leave_places_to_others() {
        const MOST: usize = 64;
        let mut waiting = Waiting::new(MOST, 100);
        assert_eq!(fill(&mut waiting, from(1, 0, 1000), true), MOST);
        // One call of many replies takes as many again, and no more.
        assert_eq!(fill(&mut waiting, from(1, 0, 1000), false), MOST);
        let other = from(1, 5, 1);
        assert!(
            waiting.has_room(other, 1),
            "another connection of the same client"
        );
        for client in 2..9 {
            assert!(fill(&mut waiting, from(client, 0, 0), true) > 0, "{client}");
        }
        assert!(waiting.total <= Waiting::most(MOST));
    }

    #[test]
    fn a_client_of_many_connections_leaves_places_to_others() {
        let mut waiting = Waiting::new(64, 100);
        let mut connection = 0;
        while waiting.has_room(from(1, connection, 0), 1) {
            waiting.add(from(1, connection, 0), 1);
            connection += 1;
        }
        assert!((128..200).contains(&connection), "{connection}");
        assert!(fill(&mut waiting, from(2, 0, 0), true) > 32);
    }

    #[test]
    fn prompts_that_wait_have_a_bound_together() {
        let mut waiting = Waiting::new(4, 10);
        let source = from(1, 1, 1);
        assert!(waiting.has_room(source, 40) && !waiting.has_room(source, 41));
        waiting.add(source, 40);
        assert!(!waiting.has_room(from(2, 2, 2), 1));
        waiting.remove(source, 40);
        assert_eq!(
            (waiting.total, waiting.tokens, waiting.calls_of.len()),
            (0, 0, 0)
        );
    }
}
