//! Fair order of waiting requests: a free slot goes to the owner that holds the fewest slots.
//!
//! A request has owners, each inside of the one before: a client, which is a key or, without keys,
//! an address; all new connections of the client, or all its returning ones; a connection; and a
//! call, which may want several replies. A free slot goes to the client that holds the fewest
//! slots; within the client to the connections that hold the fewest, and so on. Of equal owners the
//! one that was served longest ago comes first, then the request that has waited longest. So a
//! flood of requests, or one call with many replies, is served as often as any other owner, and has
//! all slots if nobody else wants one. A new connection comes before connections that keep sending,
//! though all new ones together get no more than half of a client's slots while its other
//! connections wait.
//!
//! There is one slot more than a step has sequences. This slot is for an owner that holds none
//! while another owner inside of the same wider one holds several: the first token does not wait
//! for the end of another owner's reply. Meanwhile one sequence of the owner with the most slots is
//! left out of each step, a different sequence each time. Nor does a first token wait for prompts
//! of owners with more slots: such prompts are left out of a step, though never of two in a row.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Origin of a request. Equal numbers mean the same client, connection or call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Source {
    pub client: u64,
    /// Whether the request's connection has sent a request before.
    pub returns: bool,
    /// Number of the connection, unique within the client.
    pub connection: u64,
    /// Number of the API call, unique within the connection.
    pub call: u64,
}

/// Owner of requests, at one of the levels of fairness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    All,
    Client(u64),
    /// Connections of a client that have sent a request before (true), or that have not (false).
    Connections(u64, bool),
    Connection(u64, bool, u64),
    Call(u64, bool, u64, u64),
}

const LEVELS: usize = 5;

impl Source {
    /// Owners of the request, from the widest to the narrowest.
    fn owners(self) -> [Owner; LEVELS] {
        let (client, returns, connection) = (self.client, self.returns, self.connection);
        [
            Owner::All,
            Owner::Client(client),
            Owner::Connections(client, returns),
            Owner::Connection(client, returns, connection),
            Owner::Call(client, returns, connection, self.call),
        ]
    }
}

/// Slots that an owner holds.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    slots: usize,
    /// Owners of the next level inside of this one that hold slots.
    inside: usize,
}

/// Slots that each owner holds.
#[derive(Debug, Default)]
pub struct SlotCounts(HashMap<Owner, Share>);

impl SlotCounts {
    /// Counts the slots that the sources of `running` hold.
    pub fn of(running: impl Iterator<Item = Source>) -> SlotCounts {
        let mut slots = SlotCounts::default();
        for source in running {
            let mut outer = None;
            for owner in source.owners() {
                let share = slots.0.entry(owner).or_default();
                share.slots += 1;
                if share.slots == 1
                    && let Some(outer) = outer
                {
                    slots.0.entry(outer).or_default().inside += 1;
                }
                outer = Some(owner);
            }
        }
        slots
    }

    fn share(&self, owner: Owner) -> Share {
        self.0.get(&owner).copied().unwrap_or_default()
    }

    /// Slots of each owner of `source`, the widest first; sources with fewer come first.
    pub fn by(&self, source: Source) -> [usize; LEVELS] {
        source.owners().map(|owner| self.share(owner).slots)
    }

    /// Whether `source` may use the slot beyond those of a step: one of its owners holds no slot,
    /// while another owner inside of the same wider one holds several.
    fn is_starved(&self, source: Source) -> bool {
        let owners = source.owners();
        owners.windows(2).any(|pair| {
            let outer = self.share(pair[0]);
            self.share(pair[1]).slots == 0 && outer.slots > outer.inside
        })
    }

    /// Whether each owner of `source` holds more than one slot, the widest first; the source with
    /// the least value comes first in a step.
    pub fn step_priority(&self, source: Source) -> [bool; LEVELS - 1] {
        let [_, owners @ ..] = self.by(source);
        owners.map(|slots| slots > 1)
    }
}

/// Served requests that are remembered, to find the owner that was served longest ago.
const REMEMBERED_MAX: usize = 256;

/// Order in which waiting requests are served; remembers the sources that were served lately.
#[derive(Debug, Default)]
pub struct FairQueue {
    /// Sources of served requests, the latest last.
    recent: VecDeque<Source>,
}

impl FairQueue {
    /// Notes that a request was served.
    pub fn note_served(&mut self, source: Source) {
        if self.recent.len() == REMEMBERED_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(source);
    }

    /// Whether `source` must leave other owners a share of the pages: its call holds a slot
    /// already, or a wider owner does while another owner of the same level was served lately.
    pub fn leaves_share(&self, source: Source, slots: &SlotCounts) -> bool {
        let [_, client, connections, _, call] = slots.by(source);
        let mut others = self.recent.iter();
        call > 0
            || others.any(|other| match other.client == source.client {
                true => connections > 0 && other.returns != source.returns,
                false => client > 0,
            })
    }

    /// Index of the next of `waiting`, which are in the order of arrival. With `for_starved` only
    /// the requests are considered that may use the slot beyond those of a step.
    pub fn next(
        &self,
        waiting: impl Iterator<Item = Source>,
        slots: &SlotCounts,
        for_starved: bool,
    ) -> Option<usize> {
        let candidates = waiting.enumerate();
        let fits = |source| !for_starved || slots.is_starved(source);
        let mut candidates = candidates.filter(|(_, source)| fits(*source));
        let first = candidates.next()?;
        let Some(second) = candidates.next() else {
            return Some(first.0);
        };
        let last = self.last_served();
        let rank = |source: Source| {
            let owners = source.owners();
            owners.map(|owner| (slots.share(owner).slots, last.get(&owner).copied()))
        };
        let ranked = [first, second].into_iter().chain(candidates);
        let ranked = ranked.map(|(at, source)| (rank(source), at));
        ranked.min().map(|(_, at)| at)
    }

    /// Number of each owner's last served request; later requests have higher numbers.
    fn last_served(&self) -> HashMap<Owner, usize> {
        let served = self.recent.iter().enumerate();
        let owners = served.flat_map(|(at, source)| source.owners().map(|owner| (owner, at)));
        owners.collect()
    }
}

/// Counts of waiting requests, and the limits of each owner.
///
/// Up to `calls_max` calls of a returning connection may wait, and as many of all new connections
/// of a client together; a connection may have as many waiting replies beyond the first of each
/// call. All owners share [`CONNECTIONS`] times as many entries. A connection may have as many
/// entries as are free. All new connections of a client, or all returning ones, may have one and a
/// half times as many as are free, and twice as many if the asking connection has none. So there is
/// always an entry for a connection without one, whatever other connections have queued. Tokens of
/// prompts are shared in the same way, by larger factors.
#[derive(Debug)]
pub struct Waiting {
    calls_max: usize,
    /// Largest number of tokens of all waiting prompts.
    tokens_max: usize,
    owners: HashMap<Owner, Queued>,
}

/// Waiting requests of an owner.
#[derive(Clone, Copy, Debug, Default)]
struct Queued {
    replies: usize,
    /// API calls that the owner's waiting replies belong to.
    calls: usize,
    /// Tokens of the prompts of the owner's waiting replies.
    tokens: usize,
}

/// Number of connections for which all entries suffice if each has as many calls as may wait.
pub const CONNECTIONS: usize = 4;

impl Waiting {
    /// Limits for `calls_max` calls of a connection. All waiting prompts together may have a
    /// quarter more tokens than `calls_max` prompts of `context` tokens have.
    pub fn new(calls_max: usize, context: usize) -> Waiting {
        let tokens = calls_max.saturating_mul(context);
        Waiting {
            calls_max,
            tokens_max: tokens.saturating_add(tokens / 4),
            owners: HashMap::new(),
        }
    }

    /// The most requests that wait, of all owners together.
    pub fn most(calls_max: usize) -> usize {
        calls_max * CONNECTIONS
    }

    /// Whether a reply to a prompt of so many tokens may wait.
    pub fn has_capacity(&self, source: Source, tokens: usize) -> bool {
        let count = |owner| self.owners.get(&owner).copied().unwrap_or_default();
        let [all, _, connections, connection, call] = source.owners().map(count);
        let calls = match source.returns {
            true => connection.calls,
            false => connections.calls,
        };
        let is_one_of_few = match call.replies {
            0 => calls < self.calls_max,
            _ => connection.replies - connection.calls < self.calls_max,
        };
        let Some(tokens_free) = self.tokens_max.checked_sub(all.tokens + tokens) else {
            return false;
        };
        let free = Waiting::most(self.calls_max) - all.replies;
        // Shares of the free entries and tokens that the owner may take, in halves.
        let (entries_max, tokens_max) = match connection.replies {
            0 => (4, 12),
            _ => (3, 8),
        };
        is_one_of_few
            && connection.replies < free
            && 2 * connections.replies < entries_max * free
            && 2 * (connections.tokens + tokens) <= tokens_max * tokens_free
    }

    pub fn add(&mut self, source: Source, tokens: usize) {
        let owners = source.owners();
        let is_first = !self.owners.contains_key(&owners[LEVELS - 1]);
        for owner in owners {
            let queued = self.owners.entry(owner).or_default();
            queued.replies += 1;
            queued.calls += usize::from(is_first);
            queued.tokens += tokens;
        }
    }

    /// # Panics
    /// If the request was not added.
    pub fn remove(&mut self, source: Source, tokens: usize) {
        let owners = source.owners();
        let is_last = self.owners[&owners[LEVELS - 1]].replies == 1;
        for owner in owners {
            let queued = self.owners.get_mut(&owner).expect("it was added");
            queued.replies -= 1;
            queued.calls -= usize::from(is_last);
            queued.tokens -= tokens;
            if queued.replies == 0 {
                self.owners.remove(&owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call over a connection that returns.
    fn from(client: u64, connection: u64, call: u64) -> Source {
        Source {
            client,
            returns: true,
            connection,
            call,
        }
    }

    /// The first call over a connection.
    fn new(client: u64, connection: u64) -> Source {
        Source {
            returns: false,
            ..from(client, connection, connection)
        }
    }

    /// The order in which `waiting` get slots beside `running` that nobody gives back.
    fn order(waiting: &[Source], running: &[Source]) -> Vec<Source> {
        let mut queue = FairQueue::default();
        let (mut waiting, mut running) = (waiting.to_vec(), running.to_vec());
        let mut order = Vec::new();
        while let Some(next) = {
            let slots = SlotCounts::of(running.iter().copied());
            queue.next(waiting.iter().copied(), &slots, false)
        } {
            let source = waiting.remove(next);
            queue.note_served(source);
            running.push(source);
            order.push(source);
        }
        order
    }

    #[test]
    fn clients_are_served_in_turn_however_many_requests_they_have() {
        let [a, b] = [from(1, 0, 1), from(2, 0, 2)];
        assert_eq!(order(&[a, a, a, a, b, b], &[]), [a, b, a, b, a, a]);
        // Who holds fewer slots comes first.
        assert_eq!(order(&[a, a, b], &[b, b]), [a, a, b]);
    }

    #[test]
    fn connections_and_calls_of_a_client_are_served_in_turn() {
        let flood = |call| from(1, 0, call);
        let polite = from(1, 7, 9);
        let waiting = [flood(1), flood(2), flood(3), polite];
        assert_eq!(order(&waiting, &[flood(0)])[0], polite);
        let (batch, single) = (from(1, 0, 1), from(1, 0, 2));
        let found = order(&[batch, batch, batch, single], &[batch]);
        assert_eq!(found, [single, batch, batch, batch]);
    }

    #[test]
    fn returning_and_new_connections_are_served_in_turn_however_many_they_are() {
        let returning: Vec<Source> = (1..=20).map(|connection| from(1, connection, 0)).collect();
        let fresh: Vec<Source> = (31..=50).map(|connection| new(1, connection)).collect();
        let found = order(&[&returning[..], &fresh[..1]].concat(), &returning[..16]);
        assert_eq!(found[0], fresh[0], "those that keep sending come later");
        let found = order(&[&fresh[..], &returning[..1]].concat(), &fresh[..16]);
        assert_eq!(
            found[0], returning[0],
            "new ones win nothing by their number"
        );
    }

    #[test]
    fn who_was_served_longest_ago_is_next_where_slots_are_freed_at_once() {
        let [a, b] = [from(1, 0, 1), from(2, 0, 2)];
        let mut queue = FairQueue::default();
        let mut waiting = vec![a, a, a, b, b, b];
        let mut order = Vec::new();
        while let Some(next) = queue.next(waiting.iter().copied(), &SlotCounts::default(), false) {
            order.push(waiting.remove(next));
            queue.note_served(*order.last().unwrap());
        }
        assert_eq!(order, [a, b, a, b, a, b]);
    }

    #[test]
    fn the_slot_beyond_a_step_is_for_an_owner_without_beside_one_with_several() {
        let takes = |source: Source, running: &[Source]| {
            let slots = SlotCounts::of(running.iter().copied());
            FairQueue::default()
                .next([source].into_iter(), &slots, true)
                .is_some()
        };
        // Two calls of eight replies each, over new connections.
        let batches = [[new(1, 1); 8], [new(1, 2); 8]].concat();
        assert!(takes(new(1, 3), &batches) && !takes(new(1, 1), &batches));
        assert!(takes(from(1, 4, 0), &batches) && takes(from(2, 5, 0), &batches));
        // Connections that return, with a slot each: one more of them has no better claim.
        let each: Vec<Source> = (0..16).map(|connection| from(1, connection, 0)).collect();
        assert!(takes(new(1, 31), &each) && takes(from(2, 0, 0), &each));
        assert!(!takes(from(1, 31, 0), &each));
        // New ones with a slot each, and clients with a slot each.
        let flood: Vec<Source> = (0..16).map(|connection| new(1, connection)).collect();
        assert!(takes(from(1, 31, 0), &flood) && !takes(new(1, 31), &flood));
        let clients: Vec<Source> = (0..16).map(|client| from(client, 0, 0)).collect();
        assert!(!takes(from(31, 0, 0), &clients));
    }

    #[test]
    fn pages_are_left_to_others_by_owners_with_several_slots_or_that_met_others() {
        let [own, fresh, other] = [from(1, 7, 2), new(1, 8), from(2, 0, 3)];
        let slots = SlotCounts::of([own].into_iter());
        let mut queue = FairQueue::default();
        let sibling = from(1, 9, 4);
        let leaves = |queue: &FairQueue, source| queue.leaves_share(source, &slots);
        assert!(leaves(&queue, own), "a second reply of the call");
        assert!(!leaves(&queue, sibling), "nobody else is there");
        queue.note_served(fresh);
        assert!(leaves(&queue, sibling) && !leaves(&queue, fresh));
        queue.note_served(other);
        assert!(leaves(&queue, fresh) && !leaves(&queue, other));
        (0..REMEMBERED_MAX).for_each(|_| queue.note_served(own));
        assert!(!leaves(&queue, sibling), "the others left");
    }

    #[test]
    fn who_holds_fewest_slots_comes_first() {
        let [flood, own, fresh, other] = [from(1, 0, 1), from(1, 7, 2), new(1, 8), from(2, 0, 3)];
        let slots = SlotCounts::of([flood, flood, own, fresh, other].into_iter());
        let mut found = [flood, own, fresh, other];
        found.sort_by_key(|source| slots.step_priority(*source));
        assert_eq!(found, [other, fresh, own, flood]);
        assert!(slots.by(other) < slots.by(fresh) && slots.by(own) < slots.by(flood));
    }

    #[test]
    fn one_source_is_served_in_order() {
        let queue = FairQueue::default();
        let same = [Source::default(); 3];
        let slots = SlotCounts::of(same.into_iter());
        assert_eq!(queue.next(same.into_iter(), &slots, false), Some(0));
        assert_eq!(queue.next([].into_iter(), &slots, false), None);
    }

    /// Number of replies of `source` that are taken, each of a new call if `apart`.
    fn fill(waiting: &mut Waiting, mut source: Source, apart: bool) -> usize {
        let mut taken = 0;
        while waiting.has_capacity(source, 1) {
            waiting.add(source, 1);
            taken += 1;
            source.call += u64::from(apart);
        }
        taken
    }

    fn total(waiting: &Waiting) -> usize {
        waiting.owners[&Owner::All].replies
    }

    #[test]
    fn a_flood_and_a_batch_leave_entries_to_others() {
        const MOST: usize = 64;
        let mut waiting = Waiting::new(MOST, 100);
        assert_eq!(fill(&mut waiting, from(1, 0, 1000), true), MOST);
        // One call of many replies takes as many again, and no more.
        assert_eq!(fill(&mut waiting, from(1, 0, 1000), false), MOST);
        let other = from(1, 5, 1);
        assert!(
            waiting.has_capacity(other, 1),
            "another connection of the same client"
        );
        for client in 2..9 {
            assert!(fill(&mut waiting, from(client, 0, 0), true) > 0, "{client}");
        }
        assert!(total(&waiting) <= Waiting::most(MOST));
    }

    #[test]
    fn a_client_of_many_connections_leaves_entries_to_others() {
        let mut waiting = Waiting::new(64, 100);
        let mut connection = 0;
        while waiting.has_capacity(from(1, connection, 0), 1) {
            waiting.add(from(1, connection, 0), 1);
            connection += 1;
        }
        assert!((128..200).contains(&connection), "{connection}");
        // New connections of the client, then another client.
        let mut fresh = 1000;
        while waiting.has_capacity(new(1, fresh), 1) {
            waiting.add(new(1, fresh), 1);
            fresh += 1;
        }
        assert!((1020..1064).contains(&fresh), "{fresh}");
        assert!(fill(&mut waiting, from(2, 0, 0), true) > 12);
    }

    #[test]
    fn waiting_batches_leave_entries_to_who_has_none() {
        let mut waiting = Waiting::new(64, 100);
        let mut batches = (0..).flat_map(|connection| [from(1, connection, 0); 8]);
        let refused = batches.find(|&reply| {
            let refused = !waiting.has_capacity(reply, 1);
            (0..usize::from(!refused)).for_each(|_| waiting.add(reply, 1));
            refused
        });
        let at = refused.unwrap().connection;
        assert!((16..24).contains(&at), "{at}");
        assert!(
            waiting.has_capacity(from(1, at + 1, 0), 1) && waiting.has_capacity(new(1, at + 1), 1)
        );
    }

    #[test]
    fn new_connections_together_have_as_many_calls_as_one() {
        let mut waiting = Waiting::new(64, 100);
        let calls = (0..100).filter(|&connection| {
            let taken = waiting.has_capacity(new(1, connection), 1);
            (0..usize::from(taken)).for_each(|_| waiting.add(new(1, connection), 1));
            taken
        });
        assert_eq!(calls.count(), 64);
        assert!(waiting.has_capacity(from(1, 101, 0), 1) && waiting.has_capacity(new(2, 102), 1));
    }

    #[test]
    fn waiting_prompts_have_a_common_limit_and_leave_tokens_to_others() {
        let mut waiting = Waiting::new(4, 10);
        let source = from(1, 1, 1);
        // All calls of a connection may have this many, at once or one after the other.
        (0..4).for_each(|_| {
            assert!(waiting.has_capacity(source, 10));
            waiting.add(source, 10);
        });
        assert!(!waiting.has_capacity(source, 1));
        assert!(waiting.has_capacity(from(1, 2, 2), 2) && waiting.has_capacity(from(2, 2, 2), 8));
        assert!(!waiting.has_capacity(from(2, 2, 2), 11));
        (0..4).for_each(|_| waiting.remove(source, 10));
        assert!(waiting.owners.is_empty());
    }
}
