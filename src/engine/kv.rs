//! Cache manager: owners of slots, KV pages and states.
//!
//! A sequence gets all pages that it can ever need when it is admitted, so sequences are never
//! preempted, recomputed or moved; of a windowed group a sequence has the pages that its rows see
//! (`windows`). Pages of a prompt prefix are shared with other prompts that have it. Whole pages of
//! a prompt are cached for later prompts once their rows have been computed.

use std::time::Duration;

use super::prefix::{
    CACHED_PART, Evicted, Hit, Keyed, Naming, NodeId, OPERATOR, Owner, Prefixes, Reuse,
    SnapshotKind, SnapshotPoint, Written,
};
use super::request::COMMON;
use super::windows::Windows;
use step::executor::{BlockTable, PageId, Slot, TokenId};
use step::{PAGE, Window};

/// Number of pages that hold `tokens` positions.
pub fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE)
}

/// Request for the memory of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Reservation<'a> {
    /// Owner to whom the sequence's memory counts.
    pub owner: Owner,
    /// Domain of the prefix cache whose sequences may use the prompt's cached pages.
    pub domain: u128,
    /// Tokens that are looked up in the cache; empty if all tokens are to be computed.
    pub prompt: &'a [TokenId],
    /// Whether a slot's equal share of all pages must be left to other owners.
    pub leaves_share: bool,
    /// Number of the prompt's leading pages that the tier below has, with the state after the last.
    pub restorable: usize,
}

/// Cached prefix that cannot be evicted while it is being written to the tier below.
#[derive(Clone, Debug)]
pub struct Pin {
    /// Domain and owner of the cached prefix.
    pub whose: (u128, Owner),
    pub reuse: Reuse,
    pub tokens: Vec<TokenId>,
    pub pages: Vec<PageId>,
    /// State after `pages`, if the model has one.
    pub state: Option<(SnapshotKind, Slot)>,
    /// Windowed pages of the snapshot, if the model has a window.
    pub window: Vec<PageId>,
    node: NodeId,
}

/// Pages of a slot's sequence.
#[derive(Debug, Default)]
struct Resident {
    owner: Owner,
    domain: u128,
    /// Pages in the order of positions; empty for a free slot.
    table: Vec<PageId>,
    /// Leading pages of `table` that belong to cached blocks.
    shared: usize,
    /// Last of the cached blocks that the sequence uses.
    node: Option<NodeId>,
    /// Expected reuse of the blocks that the sequence will add to the cache.
    reuse: Reuse,
    /// Block whose state the sequence's first row will read.
    reading: Option<NodeId>,
}

/// Memory that a sequence got, and the position at which the sequence starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    pub slot: Slot,
    /// Tokens of the prompt that need not be computed.
    pub cached: usize,
    /// State after the `cached` tokens, if the model has states.
    pub from: Slot,
    /// Leading tokens that an earlier prompt had too: more than `cached` if no snapshot is there.
    pub known: usize,
    /// Leading pages of `cached` that are on the device, if further pages and the slot's state must
    /// be restored from the tier below first.
    pub restore_after: Option<usize>,
}

/// Slots with the pages and states of their sequences, and cached prompts.
#[derive(Debug)]
pub struct Kv<N = Keyed> {
    pages_total: usize,
    pages_free: Vec<PageId>,
    slots_free: Vec<Slot>,
    slots: Vec<Resident>,
    snapshots_total: usize,
    /// Free states for drafts; none if the model has no states.
    drafts_free: Vec<Slot>,
    drafts_total: usize,
    prefixes: Prefixes<N>,
    /// Pages of the windowed group, if the model has one.
    windows: Option<Windows>,
}

impl<N: Naming> Kv<N> {
    /// Cache in which everything is free, for sequences of at most `context` tokens. The lowest ids
    /// are handed out first. States are numbered: first those of `slots`, then of `snapshots`, then
    /// of `drafts`; `snapshots` and `drafts` are 0 if the model has no states.
    pub fn new(
        (slots, snapshots, drafts): (usize, usize, usize),
        pages: usize,
        context: usize,
        naming: N,
    ) -> Self {
        let table_len = pages.min(pages_for(context));
        let states = |from, count| (from as u32..(from + count) as u32).rev().map(Slot);
        let drafts_total = if snapshots > 0 { drafts } else { 0 };
        let empty = |_| Resident {
            table: Vec::with_capacity(table_len),
            ..Resident::default()
        };
        Kv {
            pages_total: pages,
            pages_free: (0..pages as u32).rev().map(PageId).collect(),
            slots_free: (0..slots as u32).rev().map(Slot).collect(),
            slots: (0..slots).map(empty).collect(),
            snapshots_total: snapshots,
            drafts_free: states(slots + snapshots, drafts_total).collect(),
            drafts_total,
            prefixes: Prefixes::new(naming, snapshots > 0, states(slots, snapshots)),
            windows: None,
        }
    }

    /// Adds pages of a window, which snapshots have instead of recurrent states.
    pub fn with_window(self, window: Option<Window>) -> Self {
        let states = self.slots.len() + self.snapshots_total;
        Kv {
            windows: window.map(|window| Windows::new(window, states)),
            ..self
        }
    }

    /// Whether a prompt can go on only from a snapshot.
    pub fn recurs(&self) -> bool {
        self.prefixes.recurs()
    }

    /// Number of free slots.
    pub fn slots_free(&self) -> usize {
        self.slots_free.len()
    }

    /// Sets the current time, counted from any fixed start.
    pub fn set_time(&mut self, time: Duration) {
        self.prefixes.set_time(time);
    }

    /// Evictions since the start.
    pub fn evicted(&self) -> Evicted {
        self.prefixes.evicted()
    }

    /// Number of leading pages of a prompt that are cached for a domain.
    pub fn pages_known(&self, domain: u128, prompt: &[TokenId]) -> usize {
        self.prefixes.look_up(domain, prompt, 0).pages.len()
    }

    /// Number of leading pages of a prompt that are on the device, if a sequence would have further
    /// pages, of the first `restorable` ones, restored; none if no page would be restored.
    pub fn restore_after(
        &self,
        domain: u128,
        prompt: &[TokenId],
        restorable: usize,
    ) -> Option<usize> {
        let found = self.prefixes.look_up(domain, prompt, restorable);
        self.restore_after_hit(&found, restorable)
    }

    fn restore_after_hit(&self, hit: &Hit, restorable: usize) -> Option<usize> {
        let misses_state = self.recurs() && hit.state.is_none() && restorable > 0;
        (hit.pages.len() < restorable || misses_state).then_some(hit.pages.len())
    }

    /// Takes a slot and pages for `tokens` in all, or nothing when either is short. Cached pages
    /// are evicted where needed, but not from other owners' shares if the owner has a sequence.
    pub fn reserve(&mut self, tokens: usize, asked: Reservation<'_>) -> Option<Begin> {
        assert!(tokens > 0, "a sequence holds at least one token");
        let owner = match asked.domain {
            COMMON => OPERATOR,
            _ => asked.owner,
        };
        let restorable = asked.restorable;
        let (domain, prompt) = (asked.domain, asked.prompt);
        let mut hit = self.prefixes.look_up(domain, prompt, restorable);
        let restore_after = self.restore_after_hit(&hit, restorable);
        if restore_after.is_some() {
            hit.state = None;
        }
        let wanted = pages_for(tokens) - hit.pages.len();
        let slot = *self.slots_free.last()?;
        if let Some(node) = hit.node {
            self.prefixes.pin(node);
        }
        let left = match asked.leaves_share {
            true => self.pages_total / self.slots.len(),
            false => 0,
        };
        if self.pages_free.len() + self.may_go(owner) < wanted + left {
            if let Some(node) = hit.node {
                self.prefixes.undo_pin(node);
            }
            return None;
        }
        self.slots_free.pop();
        let reuse = self.prefixes.note_use(&hit, owner);
        self.take_pages(slot, wanted, &hit, owner);
        let seq = &mut self.slots[slot.0 as usize];
        (seq.owner, seq.domain, seq.reuse) = (owner, asked.domain, reuse);
        let cached = hit.pages.len().max(restorable) * PAGE;
        if let Some(windows) = &mut self.windows {
            match hit.state {
                Some(state) => windows.share(state, slot, cached),
                None => windows.cover(slot, cached, cached),
            }
        }
        Some(Begin {
            slot,
            cached,
            from: hit.state.unwrap_or(slot),
            known: hit.known.max(restorable) * PAGE,
            restore_after,
        })
    }

    /// Number of cached pages that may be evicted for a sequence of an owner. Pages of the
    /// operator's prompts may be evicted only if no sequence runs, so that any request can fit.
    fn may_go(&self, owner: Owner) -> usize {
        let mut running = self.slots.iter().filter(|seq| !seq.table.is_empty());
        let first = running.clone().next();
        match (first, running.any(|seq| seq.owner == owner)) {
            (None, _) => self.prefixes.pages_unused(),
            (_, false) => self.prefixes.pages_beyond(owner, 0),
            (_, true) => self.prefixes.pages_beyond(owner, self.share(owner)),
        }
    }

    /// Number of cached pages that an owner with a sequence must leave to each other owner.
    fn share(&self, owner: Owner) -> usize {
        self.pages_total / CACHED_PART / self.prefixes.others(owner).max(1)
    }

    fn take_pages(&mut self, slot: Slot, wanted: usize, hit: &Hit, owner: Owner) {
        let reading = hit.node.filter(|_| hit.state.is_some());
        if let Some(node) = reading {
            self.prefixes.will_read(node);
        }
        let short = wanted.saturating_sub(self.pages_free.len());
        self.prefixes.free_pages(short, (owner, self.share(owner)));
        self.collect();
        let left = self.pages_free.len() - wanted;
        let seq = &mut self.slots[slot.0 as usize];
        assert!(seq.table.is_empty(), "{slot:?} was free but owns pages");
        seq.table.extend(&hit.pages);
        seq.table.extend(self.pages_free.drain(left..).rev());
        seq.shared = hit.pages.len();
        (seq.node, seq.reading) = (hit.node, reading);
    }

    /// Prefixes of a slot's prompt that are worth writing to the tier below, the shortest first;
    /// none of the operator's prompts, which are not evicted.
    pub fn pin(&mut self, slot: Slot, prompt: &[TokenId]) -> Vec<Pin> {
        let seq = &self.slots[slot.0 as usize];
        let whose = (seq.domain, seq.owner);
        let Some(last) = seq.node.filter(|_| seq.domain != COMMON) else {
            return vec![];
        };
        let ends = self.prefixes.worth_writing(last);
        let pin = |of: Written| Pin {
            whose,
            reuse: seq.reuse,
            tokens: prompt[..of.depth * PAGE].to_vec(),
            pages: seq.table[..of.depth].to_vec(),
            state: of.state,
            window: match (&self.windows, of.state) {
                (Some(windows), Some((_, state))) => windows.pages(state).to_vec(),
                _ => vec![],
            },
            node: of.node,
        };
        let pins: Vec<Pin> = ends.into_iter().rev().map(pin).collect();
        for pin in &pins {
            self.prefixes.pin(pin.node);
            if pin.state.is_some() {
                self.prefixes.will_read(pin.node);
            }
        }
        pins
    }

    /// Releases a pin, once its prefix has been written or will not be.
    pub fn unpin(&mut self, pin: &Pin) {
        if pin.state.is_some() {
            self.prefixes.has_read(pin.node);
        }
        self.prefixes.undo_pin(pin.node);
    }

    /// Notes that the sequence of a slot has read the state that it started from.
    pub fn has_read(&mut self, slot: Slot) {
        if let Some(node) = self.slots[slot.0 as usize].reading.take() {
            self.prefixes.has_read(node);
        }
    }

    /// State for a snapshot at a point of a slot's prompt, if one is free or may be evicted.
    pub fn lend(&mut self, slot: Slot, point: SnapshotPoint) -> Option<Slot> {
        let seq = &self.slots[slot.0 as usize];
        let (whose, after) = ((seq.domain, seq.owner), (seq.node, seq.reuse));
        let state = self.prefixes.lend(whose, after, point);
        self.collect();
        state
    }

    /// Takes back a state that was lent to a slot.
    pub fn give_back(&mut self, slot: Slot, state: Slot) {
        let owner = self.slots[slot.0 as usize].owner;
        self.prefixes.give_back(owner, state);
    }

    /// Number of leading tokens of a slot's prompt that are cached, by any sequence.
    pub fn tokens_cached(&self, slot: Slot) -> usize {
        self.slots[slot.0 as usize].shared * PAGE
    }

    /// Caches the whole pages of `prompt`, whose rows have run, and the snapshot after the last
    /// page, if a state was lent for one.
    pub fn cache(&mut self, slot: Slot, prompt: &[TokenId], state: Option<(SnapshotKind, Slot)>) {
        let seq = &mut self.slots[slot.0 as usize];
        let (whose, cached) = ((seq.domain, seq.owner), seq.shared);
        let after = (seq.node, seq.reuse);
        let rest = &prompt[(cached * PAGE).min(prompt.len())..];
        let table = &mut seq.table[cached..];
        let (last, count) = self.prefixes.insert(whose, after, rest, table);
        (seq.node, seq.shared) = (last, cached + count);
        let is_whole = seq.shared * PAGE == prompt.len();
        if let (Some(windows), Some((_, state))) = (&mut self.windows, state) {
            windows.share(slot, state, prompt.len());
        }
        match (state, last.filter(|_| is_whole)) {
            (Some(state), Some(last)) => self.prefixes.add_snapshot(whose, last, state),
            (Some((_, state)), None) => self.prefixes.give_back(whose.1, state),
            (None, _) => {}
        }
        self.collect();
    }

    /// Gives back a slot and its pages. Cached pages stay, except those that only this prompt uses
    /// if it is not `sound`, which means that its logits were not finite.
    pub fn release(&mut self, slot: Slot, sound: bool) {
        self.has_read(slot);
        let seq = &mut self.slots[slot.0 as usize];
        assert!(!seq.table.is_empty(), "{slot:?} released twice");
        let own = seq.table.drain(..).skip(seq.shared);
        self.pages_free
            .extend(own.collect::<Vec<_>>().into_iter().rev());
        seq.shared = 0;
        if let Some(windows) = &mut self.windows {
            windows.clear(slot);
        }
        if let Some(node) = seq.node.take() {
            self.prefixes.release(node, sound);
        }
        self.collect();
        self.slots_free.push(slot);
    }

    /// Takes back the pages of evicted blocks.
    fn collect(&mut self) {
        self.prefixes.take_free(&mut self.pages_free);
    }

    /// Number of free states for drafts.
    pub fn drafts_free(&self) -> usize {
        self.drafts_free.len()
    }

    /// A state for a draft.
    ///
    /// # Panics
    /// If no state is free.
    pub fn lend_draft(&mut self) -> Slot {
        self.drafts_free.pop().expect("a state for a draft is free")
    }

    /// Takes back a state of a draft.
    pub fn give_back_draft(&mut self, state: Slot) {
        self.drafts_free.push(state);
    }

    /// The block table of a slot.
    pub fn pages(&self, slot: Slot) -> &[PageId] {
        &self.slots[slot.0 as usize].table
    }

    /// The block table of a slot in the windowed group; empty if the model has no such group.
    pub fn window(&self, slot: Slot) -> BlockTable<'_> {
        let windows = self.windows.as_ref();
        windows.map_or(BlockTable::default(), |windows| windows.table(slot))
    }

    /// Takes windowed pages for a slot, which rows from position `start` to `end` see and write.
    pub fn cover(&mut self, slot: Slot, start: usize, end: usize) {
        if let Some(windows) = &mut self.windows {
            windows.cover(slot, start, end);
        }
    }

    /// Frees the windowed pages of a slot that rows from position `next` on do not see.
    pub fn leave(&mut self, slot: Slot, next: usize) {
        if let Some(windows) = &mut self.windows {
            windows.leave(slot, next);
        }
    }

    /// Number of windowed pages that sequences and snapshots have.
    pub fn window_pages_used(&self) -> usize {
        self.windows.as_ref().map_or(0, Windows::used)
    }

    /// Number of pages that sequences own alone.
    fn pages_owned(&self) -> usize {
        let own = |seq: &Resident| seq.table.len() - seq.shared;
        self.slots.iter().map(own).sum()
    }

    /// Number of pages that sequences use, alone or shared.
    pub fn pages_used(&self) -> usize {
        self.pages_owned() + self.prefixes.pages() - self.prefixes.pages_unused()
    }

    /// Number of cached pages that no sequence uses.
    pub fn pages_cached(&self) -> usize {
        self.prefixes.pages_unused()
    }

    /// Whether the counts of pages, states and slots add up, with so many sequences, lent states
    /// and states of drafts: cheap enough for every step.
    pub fn is_conserved(&self, sequences: usize, (lent, drafts): (usize, usize)) -> bool {
        let pages = self.pages_owned() + self.prefixes.pages() + self.pages_free.len();
        let states = self.prefixes.snapshots() + self.prefixes.snapshots_free() + lent;
        pages == self.pages_total
            && states == self.snapshots_total
            && drafts + self.drafts_free.len() == self.drafts_total
            && sequences + self.slots_free.len() == self.slots.len()
    }

    /// Checks that each page and slot has exactly one owner.
    ///
    /// # Errors
    /// Names the first page or slot with none or several.
    pub fn check_integrity(&self) -> Result<(), String> {
        let mut page_owners = vec![0_u32; self.pages_total];
        let owned = |seq: &Resident| seq.table[seq.shared..].to_vec();
        let owned = self.slots.iter().flat_map(owned);
        let pages = self.pages_free.iter().copied().chain(owned);
        for page in pages.chain(self.prefixes.all_pages()) {
            page_owners[page.0 as usize] += 1;
        }
        if let Some(page) = page_owners.iter().position(|&owners| owners != 1) {
            return Err(format!("KV page {page} has {} owners", page_owners[page]));
        }
        for slot in 0..self.slots.len() {
            let free = self.slots_free.iter();
            let free = free.filter(|free| free.0 as usize == slot).count();
            let owns_pages = usize::from(!self.slots[slot].table.is_empty());
            if free + owns_pages != 1 {
                return Err(format!(
                    "slot {slot} is free {free} times, in use {owns_pages} times"
                ));
            }
        }
        let windows = self.windows.as_ref();
        windows.map_or(Ok(()), Windows::check_integrity)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use step::testing::TINY;

    use super::*;

    fn kv(slots: usize, pages: usize) -> Kv {
        Kv::new((slots, 2, 2), pages, TINY.context, Keyed::default())
    }

    /// A sequence of a domain, whose owner has no other.
    fn of(domain: u128, prompt: &[TokenId]) -> Reservation<'_> {
        Reservation {
            owner: domain as Owner,
            domain,
            prompt,
            leaves_share: false,
            restorable: 0,
        }
    }

    /// A slot with pages for `pages` of tokens.
    fn reserve<N: Naming>(kv: &mut Kv<N>, pages: usize) -> Option<Slot> {
        let begin = kv.reserve(pages * PAGE, of(0, &[]))?;
        assert_eq!((begin.cached, begin.from), (0, begin.slot));
        Some(begin.slot)
    }

    thread_local! {
        /// Seconds since the start of a test.
        static SECONDS: Cell<u64> = const { Cell::new(0) };
    }

    /// Has so many seconds pass.
    fn pass<N: Naming>(kv: &mut Kv<N>, seconds: u64) {
        SECONDS.set(SECONDS.get() + seconds);
        kv.set_time(Duration::from_secs(SECONDS.get()));
    }

    /// An end of a prompt.
    fn end(pages: usize) -> SnapshotPoint {
        SnapshotPoint {
            tokens: pages * PAGE,
            kind: SnapshotKind::End,
        }
    }

    /// Keeps the first pages of a prompt, and the state after them if one may be had.
    fn cache<N: Naming>(kv: &mut Kv<N>, slot: Slot, asked: &[TokenId], pages: usize) {
        let state = kv.lend(slot, end(pages));
        let state = state.map(|state| (SnapshotKind::End, state));
        kv.cache(slot, &asked[..pages * PAGE], state);
    }

    /// Runs a prompt of a domain to its end, a second after the one before, keeping the state
    /// after each of `cached` pages; returns how many tokens were cached before.
    fn run<N: Naming>(kv: &mut Kv<N>, asked: (u128, &[TokenId]), cached: &[usize]) -> usize {
        pass(kv, 1);
        let begin = kv.reserve(asked.1.len() + 1, of(asked.0, asked.1)).unwrap();
        kv.has_read(begin.slot);
        match kv.recurs() {
            true => cached
                .iter()
                .for_each(|&pages| cache(kv, begin.slot, asked.1, pages)),
            false => kv.cache(begin.slot, &asked.1[..asked.1.len() / PAGE * PAGE], None),
        }
        kv.release(begin.slot, true);
        assert_eq!(kv.check_integrity(), Ok(()));
        let running = kv.slots.len() - kv.slots_free();
        assert!(kv.is_conserved(running, (0, 0)));
        begin.cached
    }

    fn prompt(first: TokenId, pages: usize) -> Vec<TokenId> {
        let rest = 1..(pages * PAGE + 3) as TokenId;
        std::iter::once(first).chain(rest).collect()
    }

    #[test]
    fn pages_for_rounds_up() {
        assert_eq!([1, PAGE, PAGE + 1, 2 * PAGE].map(pages_for), [1, 1, 2, 2]);
    }

    #[test]
    fn reserve_takes_all_or_nothing() {
        let mut kv = kv(2, 5);
        assert_eq!(reserve(&mut kv, 6), None);
        assert_eq!(kv.pages_used(), 0);
        assert!(reserve(&mut kv, 3).is_some());
        assert_eq!(reserve(&mut kv, 3), None);
        assert!(reserve(&mut kv, 1).is_some());
        assert_eq!(reserve(&mut kv, 1), None, "a page is left but no slot");
        assert_eq!(kv.check_integrity(), Ok(()));
    }

    #[test]
    fn released_pages_and_slots_return() {
        let mut kv = kv(1, 4);
        let slot = reserve(&mut kv, 4).unwrap();
        kv.release(slot, true);
        assert_eq!(kv.pages_used(), 0);
        assert_eq!(reserve(&mut kv, 4), Some(slot));
    }

    #[test]
    fn two_sequences_share_no_page() {
        let mut kv = kv(2, 6);
        let [a, b] = [3, 3].map(|pages| reserve(&mut kv, pages).unwrap());
        assert!(kv.pages(a).iter().all(|page| !kv.pages(b).contains(page)));
    }

    #[test]
    #[should_panic(expected = "released twice")]
    fn a_double_release_is_caught() {
        let mut kv = kv(1, 1);
        let slot = reserve(&mut kv, 1).unwrap();
        kv.release(slot, true);
        kv.release(slot, true);
    }

    #[test]
    fn conservation_sees_a_lost_page_a_lost_slot_and_a_lost_state() {
        let mut kv = kv(2, 4);
        let slot = reserve(&mut kv, 2).unwrap();
        assert!(kv.is_conserved(1, (0, 0)));
        assert!(!kv.is_conserved(0, (0, 0)), "a slot without a sequence");
        kv.lend(slot, end(1)).unwrap();
        assert!(!kv.is_conserved(1, (0, 0)), "a state that nobody was lent");
        assert!(kv.is_conserved(1, (1, 0)));
        kv.lend_draft();
        assert!(!kv.is_conserved(1, (1, 0)), "a state of a draft");
        assert!(kv.is_conserved(1, (1, 1)));
        kv.slots[slot.0 as usize].table.pop();
        assert!(!kv.is_conserved(1, (1, 1)));
    }

    #[test]
    fn integrity_sees_a_page_with_two_owners() {
        let mut kv = kv(2, 4);
        let slot = reserve(&mut kv, 2).unwrap();
        let page = kv.pages(slot)[0];
        kv.pages_free[0] = page;
        assert!(kv.is_conserved(1, (0, 0)), "the counts agree");
        assert!(kv.check_integrity().is_err());
    }

    #[test]
    fn integrity_sees_a_slot_that_nobody_has_and_one_that_is_free_twice() {
        let mut kv = kv(2, 4);
        reserve(&mut kv, 2).unwrap();
        let lost = kv.slots_free.pop().unwrap();
        let reported = format!("slot {} is free 0 times, in use 0 times", lost.0);
        assert_eq!(kv.check_integrity(), Err(reported));
        kv.slots_free.extend([lost, lost]);
        let reported = format!("slot {} is free 2 times, in use 0 times", lost.0);
        assert_eq!(kv.check_integrity(), Err(reported));
    }

    #[test]
    fn a_prompt_continues_from_its_last_cached_state() {
        let mut kv = kv(2, 20);
        let asked = prompt(0, 4);
        assert_eq!(run(&mut kv, (0, &asked), &[2, 4]), 0);
        for (length, cached) in [
            (4 * PAGE + 1, 4),
            (4 * PAGE, 2),
            (3 * PAGE, 2),
            (2 * PAGE, 0),
        ] {
            let begin = kv.reserve(length + 1, of(0, &asked[..length])).unwrap();
            assert_eq!(begin.cached, cached * PAGE, "{length}");
            assert_eq!(begin.known, (length - 1) / PAGE * PAGE);
            assert_eq!(begin.from == begin.slot, cached == 0);
            kv.release(begin.slot, true);
        }
    }

    #[test]
    fn without_states_it_goes_on_from_any_page() {
        let mut kv = Kv::new((2, 0, 2), 20, TINY.context, Keyed::default());
        let asked = prompt(0, 4);
        assert_eq!(run(&mut kv, (0, &asked), &[]), 0);
        assert_eq!(run(&mut kv, (0, &asked[..3 * PAGE]), &[]), 2 * PAGE);
        assert_eq!(run(&mut kv, (0, &asked), &[]), 4 * PAGE);
    }

    #[test]
    fn domains_share_nothing() {
        let mut kv = kv(2, 20);
        let asked = prompt(0, 2);
        run(&mut kv, (1, &asked), &[2]);
        assert_eq!(run(&mut kv, (2, &asked), &[2]), 0);
        assert_eq!(run(&mut kv, (1, &asked), &[2]), 2 * PAGE);
    }

    #[test]
    fn all_domains_see_what_the_operator_computed_and_he_nothing_of_theirs() {
        let naming = Keyed::default();
        let mut kv = Kv::new((2, 4, 0), 40, TINY.context, naming);
        let asked = prompt(0, 3);
        run(&mut kv, (COMMON, &asked), &[2]);
        // After it two that are alike, and share that alone.
        assert_eq!(run(&mut kv, (0, &asked), &[3]), 2 * PAGE);
        assert_eq!(run(&mut kv, (1, &asked), &[]), 2 * PAGE);
        assert_eq!(run(&mut kv, (COMMON, &asked), &[]), 2 * PAGE);
        assert_eq!(run(&mut kv, (0, &asked), &[]), 3 * PAGE);
        let whole = prompt(1, 3);
        run(&mut kv, (COMMON, &whole), &[1, 3]);
        assert_eq!(
            [0, 1].map(|domain| run(&mut kv, (domain, &whole), &[])),
            [3 * PAGE; 2]
        );
    }

    #[test]
    fn nobody_else_leaves_a_state_after_a_common_block() {
        let mut kv = Kv::new((2, 6, 0), 40, TINY.context, Keyed::default());
        let asked = prompt(0, 3);
        run(&mut kv, (COMMON, &asked), &[1, 3]);
        let shorter = &asked[..2 * PAGE + 1];
        let begin = kv.reserve(shorter.len(), of(1, shorter)).unwrap();
        assert_eq!((begin.cached, begin.known), (PAGE, PAGE));
        kv.has_read(begin.slot);
        cache(&mut kv, begin.slot, shorter, 2);
        kv.release(begin.slot, true);
        assert_eq!(run(&mut kv, (2, shorter), &[]), PAGE);
        assert_eq!(run(&mut kv, (COMMON, shorter), &[2]), PAGE);
        assert_eq!(run(&mut kv, (2, shorter), &[]), 2 * PAGE);
    }

    #[test]
    fn two_that_computed_the_same_share_it_afterwards() {
        let mut kv = kv(2, 20);
        let asked = prompt(0, 2);
        let begun = [(); 2].map(|()| kv.reserve(asked.len(), of(0, &asked)).unwrap());
        for begin in begun {
            cache(&mut kv, begin.slot, &asked, 2);
        }
        let [a, b] = begun.map(|begin| kv.pages(begin.slot).to_vec());
        assert_eq!(a[..2], b[..2]);
        assert_ne!(a[2], b[2]);
        assert!(kv.is_conserved(2, (0, 0)));
        assert_eq!(kv.check_integrity(), Ok(()));
        assert_eq!(kv.pages_used(), 4);
    }

    #[test]
    fn what_sequences_use_stays_and_the_rest_goes() {
        let mut kv = kv(2, 7);
        let [a, b] = [prompt(1, 1), prompt(2, 1)];
        run(&mut kv, (0, &a), &[1]);
        run(&mut kv, (0, &b), &[1]);
        let using = kv.reserve(a.len(), of(0, &a)).unwrap();
        assert_eq!(using.cached, PAGE);
        assert_eq!(reserve(&mut kv, 6), None, "five pages may be had");
        let other = reserve(&mut kv, 5).unwrap();
        kv.release(other, true);
        assert_eq!(run(&mut kv, (0, &b), &[1]), 0, "it went");
        kv.release(using.slot, true);
        assert_eq!(run(&mut kv, (0, &a), &[]), PAGE);
    }

    /// Pages that are found of each prompt.
    fn found<const N: usize>(kv: &Kv, prompts: &[Vec<TokenId>; N]) -> [usize; N] {
        prompts
            .each_ref()
            .map(|asked| kv.prefixes.look_up(0, asked, 0).pages.len())
    }

    #[test]
    fn pages_that_were_found_stay_and_of_others_go_the_last_until_the_first_are_stale() {
        for (idle, order) in [
            (
                0,
                [
                    [2, 2, 1],
                    [2, 2, 0],
                    [2, 1, 0],
                    [2, 0, 0],
                    [1, 0, 0],
                    [0; 3],
                ],
            ),
            (
                800,
                [
                    [2, 1, 2],
                    [2, 0, 2],
                    [2, 0, 1],
                    [2, 0, 0],
                    [1, 0, 0],
                    [0; 3],
                ],
            ),
            (
                1200,
                [
                    [2, 1, 2],
                    [2, 0, 2],
                    [1, 0, 2],
                    [0, 0, 2],
                    [0, 0, 1],
                    [0; 3],
                ],
            ),
        ] {
            let mut kv = Kv::new((2, 0, 0), 9, TINY.context, Keyed::default());
            let prompts = [1, 2, 3].map(|first| prompt(first, 2));
            run(&mut kv, (0, &prompts[0]), &[]);
            run(&mut kv, (0, &prompts[1]), &[]);
            assert_eq!(run(&mut kv, (0, &prompts[0]), &[]), 2 * PAGE);
            pass(&mut kv, idle);
            run(&mut kv, (0, &prompts[2]), &[]);
            // Three pages are nobody's.
            let left = (4..=9).map(|pages| {
                let slot = reserve(&mut kv, pages).unwrap();
                kv.release(slot, true);
                found(&kv, &prompts)
            });
            assert_eq!(left.collect::<Vec<_>>(), order, "{idle} s");
        }
    }

    #[test]
    fn states_go_by_the_time_that_they_save() {
        let mut kv = Kv::new((2, 4, 0), 40, TINY.context, Keyed::default());
        let prompts = [1, 2, 3].map(|first| prompt(first, first as usize));
        for (pages, asked) in (1..).zip(&prompts) {
            run(&mut kv, (0, asked), &[pages]);
        }
        // The state in its middle goes before any end.
        let long = prompt(4, 4);
        run(&mut kv, (0, &long), &[3, 4]);
        assert_eq!(found(&kv, &prompts), [1, 2, 3]);
        let slot = reserve(&mut kv, 1).unwrap();
        assert_eq!(kv.lend(slot, end(1)), None, "it is worth no more");
        let left = [2, 3, 4].map(|pages| {
            assert!(kv.lend(slot, end(pages)).is_some());
            found(&kv, &prompts)
        });
        assert_eq!(left, [[0, 2, 3], [0, 0, 3], [0, 0, 0]]);
    }

    #[test]
    fn the_next_turn_replaces_the_one_before() {
        let mut kv = Kv::new((2, 2, 0), 40, TINY.context, Keyed::default());
        let asked = prompt(1, 9);
        run(&mut kv, (0, &asked[..5 * PAGE + 1]), &[5]);
        run(&mut kv, (0, &prompt(2, 9)), &[9]);
        // One is given up to go on in the other's: the next has that again.
        assert_eq!(run(&mut kv, (0, &asked[..7 * PAGE + 1]), &[7]), 5 * PAGE);
        assert_eq!(run(&mut kv, (0, &asked), &[8]), 7 * PAGE);
        assert_eq!(run(&mut kv, (0, &asked), &[]), 8 * PAGE);
    }

    #[test]
    fn prompts_that_never_come_again_drive_out_none_that_did() {
        for states in [0, 4] {
            let mut kv = Kv::new((2, states, 0), 12, TINY.context, Keyed::default());
            let mine = prompt(0, 3);
            run(&mut kv, (0, &mine), &[3]);
            run(&mut kv, (0, &mine), &[]);
            for first in 1..40 {
                run(&mut kv, (0, &prompt(first, 3)), &[3]);
            }
            assert_eq!(run(&mut kv, (0, &mine), &[]), 3 * PAGE);
            // Prompts that come instead have its share after a while.
            pass(&mut kv, 24 * 3600);
            for first in 40..43 {
                run(&mut kv, (0, &prompt(first, 3)), &[3]);
            }
            assert!(run(&mut kv, (0, &mine), &[]) < 3 * PAGE);
        }
    }

    #[test]
    fn prompts_in_rotation_over_twice_what_fits_find_half() {
        for states in [0, 20] {
            let mut kv = Kv::new((2, states, 0), 34, TINY.context, Keyed::default());
            let round = |kv: &mut Kv| -> usize {
                let ask = |first| run(kv, (0, &prompt(first, 3)), &[3]);
                (0..20).map(ask).sum()
            };
            round(&mut kv);
            for _ in 0..3 {
                // One of the pages is that of the prompt that runs.
                assert!(round(&mut kv) >= 9 * 3 * PAGE);
            }
        }
    }

    #[test]
    fn what_the_operator_warmed_stays() {
        // Few pages, then few states.
        for (states, pages) in [(0, 20), (6, 200)] {
            let mut kv = Kv::new((2, states, 0), pages, TINY.context, Keyed::default());
            let head = prompt(0, 3);
            run(&mut kv, (COMMON, &head), &[3]);
            pass(&mut kv, 3600);
            for key in 1..31 {
                run(&mut kv, (key, &prompt(key as TokenId, 8)), &[8]);
            }
            assert_eq!(run(&mut kv, (31, &head), &[]), 3 * PAGE);
            let running = kv.reserve(PAGE, of(1, &[])).unwrap();
            let whole = pages * PAGE;
            assert_eq!(kv.reserve(whole, of(2, &[])), None, "it waits");
            kv.release(running.slot, true);
            assert!(
                kv.reserve(whole, of(2, &[])).is_some(),
                "it can never run else"
            );
        }
    }

    #[test]
    fn a_prompt_that_broke_leaves_nothing() {
        let mut kv = kv(2, 20);
        let asked = prompt(0, 4);
        run(&mut kv, (0, &asked[..PAGE + 1]), &[1]);
        let other = [&asked[..PAGE], &prompt(7, 2)].concat();
        let begun = [&asked, &other].map(|asked| {
            let begin = kv.reserve(asked.len(), of(0, asked)).unwrap();
            kv.has_read(begin.slot);
            begin.slot
        });
        cache(&mut kv, begun[0], &asked, 3);
        assert_eq!(kv.prefixes.look_up(0, &asked, 0).pages.len(), 3);
        kv.release(begun[0], false);
        assert_eq!(
            kv.prefixes.look_up(0, &asked, 0).pages.len(),
            1,
            "another's"
        );
        kv.release(begun[1], true);
    }

    #[test]
    fn pages_of_the_asker_and_of_owners_above_their_share_are_evicted_first() {
        // Pages that the asker and two others keep, what may be left of each when one is needed.
        for (cached, left) in [
            ([1, 3, 2], [0, 3, 2]),
            ([0, 3, 2], [0, 2, 2]),
            ([0, 2, 3], [0, 2, 2]),
            // A share is 5 pages of 20.
            ([4, 5, 6], [4, 5, 5]),
            ([4, 5, 5], [3, 5, 5]),
            // The last one to come goes, where all are worth the same.
            ([7, 5, 6], [7, 5, 5]),
        ] {
            let mut kv = Kv::new((2, 0, 0), 20, TINY.context, Keyed::default());
            for (domain, &pages) in cached.iter().enumerate() {
                run(&mut kv, (domain as u128, &prompt(0, pages)), &[]);
            }
            let free = 20 - cached.iter().sum::<usize>();
            reserve(&mut kv, free + 1).unwrap();
            let found = [0, 1, 2].map(|domain| {
                let asked = prompt(0, cached[domain]);
                kv.prefixes.look_up(domain as u128, &asked, 0).pages.len()
            });
            assert_eq!(found, left, "of {cached:?}");
        }
    }

    #[test]
    fn a_flood_evicts_nothing_of_owners_with_less() {
        // Few states, then few pages.
        for (states, pages) in [(2, 200), (60, 20)] {
            let naming = Keyed::default();
            let mut kv = Kv::new((2, states, 2), pages, TINY.context, naming);
            let mine = prompt(0, 1);
            run(&mut kv, (1, &mine), &[1]);
            for first in 1..40 {
                run(&mut kv, (2, &prompt(first, 3)), &[3]);
            }
            assert_eq!(run(&mut kv, (1, &mine), &[]), PAGE);
        }
    }

    #[test]
    fn a_flood_over_many_domains_counts_as_one() {
        for (states, pages) in [(2, 200), (60, 20)] {
            let naming = Keyed::default();
            let mut kv = Kv::new((2, states, 2), pages, TINY.context, naming);
            let mine = prompt(0, 1);
            run(&mut kv, (1, &mine), &[1]);
            let other = prompt(1, 3);
            for domain in 2..40 {
                let asked = Reservation {
                    owner: 2,
                    ..of(domain, &other)
                };
                let begin = kv.reserve(other.len(), asked).unwrap();
                cache(&mut kv, begin.slot, &other, 3);
                kv.release(begin.slot, true);
            }
            assert_eq!(run(&mut kv, (1, &mine), &[]), PAGE);
        }
    }

    #[test]
    fn further_sequences_of_an_owner_leave_the_others_their_share() {
        const PAGES: usize = 40;
        // Pages that another keeps, and those that it is left.
        for (cached, left) in [(12, 12), (30, PAGES / CACHED_PART)] {
            let naming = Keyed::default();
            let mut kv = Kv::new((PAGES, 0, 0), PAGES, TINY.context, naming);
            let theirs = prompt(0, cached);
            run(&mut kv, (1, &theirs), &[]);
            let running = std::iter::from_fn(|| kv.reserve(2 * PAGE, of(2, &[]))).count();
            assert_eq!(running, (PAGES - left) / 2);
            let found = kv.prefixes.look_up(1, &theirs, 0);
            assert_eq!(found.pages.len(), left, "of {cached}");
        }
    }

    #[test]
    fn the_only_sequence_of_an_owner_takes_what_it_needs() {
        let mut kv = Kv::new((2, 0, 0), 10, TINY.context, Keyed::default());
        run(&mut kv, (1, &prompt(0, 5)), &[]);
        let begin = kv.reserve(10 * PAGE, of(2, &[])).unwrap();
        kv.release(begin.slot, true);
        assert_eq!(kv.pages_cached(), 0);
    }

    #[test]
    fn a_state_is_taken_from_an_owner_with_more() {
        let mut kv = Kv::new((4, 4, 0), 40, TINY.context, Keyed::default());
        run(&mut kv, (1, &prompt(0, 2)), &[1, 2]);
        let begun = [2, 2, 3].map(|owner| kv.reserve(PAGE, of(owner, &[])).unwrap().slot);
        let mut lend = |sequence: usize| kv.lend(begun[sequence], end(9));
        assert!(lend(0).is_some() && lend(1).is_some());
        assert_eq!(lend(0), None, "each has two");
        assert!(lend(2).is_some(), "it has none");
    }

    #[test]
    fn an_owner_with_less_gets_a_state_of_what_is_worth_more() {
        let mut kv = Kv::new((4, 4, 0), 80, TINY.context, Keyed::default());
        for _ in 0..2 {
            for first in 1..5 {
                run(&mut kv, (1, &prompt(first, 5)), &[5]);
            }
        }
        let mine = prompt(0, 1);
        run(&mut kv, (2, &mine), &[1]);
        assert_eq!(run(&mut kv, (2, &mine), &[]), PAGE);
    }

    #[test]
    fn a_state_that_is_to_be_read_is_not_lent() {
        let mut kv = kv(2, 20);
        let asked = prompt(0, 2);
        run(&mut kv, (0, &asked), &[1, 2]);
        let begin = kv.reserve(asked.len(), of(0, &asked)).unwrap();
        assert_ne!(kv.lend(begin.slot, end(3)), Some(begin.from));
        assert_eq!(kv.lend(begin.slot, end(3)), None);
        kv.has_read(begin.slot);
        assert_eq!(kv.lend(begin.slot, end(3)), Some(begin.from));
    }

    /// Names everything alike.
    struct Collision;

    impl Naming for Collision {
        fn name(&self, _: u128, _: &[TokenId]) -> u128 {
            7
        }
    }

    #[test]
    fn a_state_after_a_block_without_a_name_is_not_cached() {
        let mut kv = Kv::new((2, 4, 2), 20, TINY.context, Collision);
        let asked = prompt(1, 2);
        assert_eq!(run(&mut kv, (0, &asked), &[2]), 0);
        assert_eq!(
            run(&mut kv, (0, &asked), &[1]),
            0,
            "the second block has none"
        );
    }

    #[test]
    fn a_collision_of_names_is_never_reused() {
        let mut kv = Kv::new((2, 4, 2), 20, TINY.context, Collision);
        let [a, b] = [prompt(1, 2), prompt(2, 2)];
        assert_eq!(run(&mut kv, (0, &a), &[1]), 0);
        assert_eq!(run(&mut kv, (0, &b), &[1]), 0);
        assert_eq!(run(&mut kv, (1, &a), &[1]), 0);
        assert_eq!(
            run(&mut kv, (0, &a), &[2]),
            PAGE,
            "the first block alone has its name"
        );
    }
}
