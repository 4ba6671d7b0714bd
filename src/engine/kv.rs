//! Who owns which slot, which KV page and which kept state.
//!
//! A sequence gets all the pages it can ever need when it is admitted, so it never has to be
//! evicted, recomputed or moved while it runs. What its prompt shares with one before it uses
//! together with others; what it computed of its prompt is kept for others when it is sure.

use super::prefix::{Hit, KEPT_PART, Keyed, Naming, NodeId, Owner, Prefixes};
use crate::executor::{PageId, Slot, TokenId};
use crate::target;

/// Pages that hold `tokens` positions.
pub fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(target::PAGE)
}

/// A sequence that is to begin.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Who answers for the room that it takes.
    pub owner: Owner,
    /// Number of those who see what is kept of its prompt.
    pub domain: u128,
    /// Tokens that are looked up; none where all are to be computed.
    pub prompt: &'a [TokenId],
    /// Whether it leaves others the pages of a slot: an equal share of all.
    pub leaves_room: bool,
}

/// Pages of a slot.
#[derive(Debug, Default)]
struct Held {
    owner: Owner,
    /// Pages in the order of the positions they hold; empty for a free slot.
    table: Vec<PageId>,
    /// Number of them, from the first, that are those of kept blocks.
    shared: usize,
    /// The last of those blocks.
    node: Option<NodeId>,
    /// The block whose state is still to be read.
    reading: Option<NodeId>,
}

/// Beginning of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    pub slot: Slot,
    /// Tokens that need not be computed.
    pub cached: usize,
    /// The state behind those, if the model has one.
    pub from: Slot,
    /// Tokens that a prompt before began with, too, `cached` at least.
    pub known: usize,
}

/// Slots, the pages behind them, and kept prompts.
#[derive(Debug)]
pub struct Kv<N = Keyed> {
    pages_total: usize,
    pages_free: Vec<PageId>,
    slots_free: Vec<Slot>,
    slots: Vec<Held>,
    snapshots_total: usize,
    /// States for drafts that nobody has; none if the model has no states.
    drafts_free: Vec<Slot>,
    drafts_total: usize,
    prefixes: Prefixes<N>,
}

impl<N: Naming> Kv<N> {
    /// Everything free; no sequence has more than `context` tokens. The lowest ids are handed out
    /// first. `snapshots` states behind those of `slots` are for kept prompts, and behind them
    /// `drafts` for drafts; there are none if the model has no recurrent states.
    pub fn new(
        (slots, snapshots, drafts): (usize, usize, usize),
        pages: usize,
        context: usize,
        naming: N,
    ) -> Self {
        let table_len = pages.min(pages_for(context));
        let states = |from, count| (from as u32..(from + count) as u32).rev().map(Slot);
        let drafts_total = if snapshots > 0 { drafts } else { 0 };
        let held = |_| Held {
            table: Vec::with_capacity(table_len),
            ..Held::default()
        };
        Kv {
            pages_total: pages,
            pages_free: (0..pages as u32).rev().map(PageId).collect(),
            slots_free: (0..slots as u32).rev().map(Slot).collect(),
            slots: (0..slots).map(held).collect(),
            snapshots_total: snapshots,
            drafts_free: states(slots + snapshots, drafts_total).collect(),
            drafts_total,
            prefixes: Prefixes::new(naming, snapshots > 0, states(slots, snapshots)),
        }
    }

    /// Whether a prompt goes on only from a kept state.
    pub fn recurs(&self) -> bool {
        self.prefixes.recurs()
    }

    /// Slots that nobody owns.
    pub fn slots_free(&self) -> usize {
        self.slots_free.len()
    }

    /// Takes a slot and pages for `tokens` in all, or nothing at all when either is short. It
    /// begins behind what is kept of its prompt. Where the owner has a sequence already, the others
    /// are left their share of what is kept.
    pub fn reserve(&mut self, tokens: usize, asked: Asked<'_>) -> Option<Begin> {
        assert!(tokens > 0, "a sequence holds at least one token");
        let hit = self.prefixes.look_up(asked.domain, asked.prompt);
        let wanted = pages_for(tokens) - hit.pages.len();
        let slot = *self.slots_free.last()?;
        if let Some(node) = hit.node {
            self.prefixes.hold(node);
        }
        let may_go = match self.runs(asked.owner) {
            true => (self.prefixes).pages_beyond(asked.owner, self.share(asked.owner)),
            false => self.prefixes.pages_unused(),
        };
        let left = match asked.leaves_room {
            true => self.pages_total / self.slots.len(),
            false => 0,
        };
        if self.pages_free.len() + may_go < wanted + left {
            if let Some(node) = hit.node {
                self.prefixes.release(node);
            }
            self.collect();
            return None;
        }
        self.slots_free.pop();
        self.take_pages(slot, wanted, &hit, asked.owner);
        Some(Begin {
            slot,
            cached: hit.pages.len() * target::PAGE,
            from: hit.state.unwrap_or(slot),
            known: hit.known * target::PAGE,
        })
    }

    /// Whether an owner has a sequence.
    fn runs(&self, owner: Owner) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|held| held.owner == owner && !held.table.is_empty())
    }

    /// Pages that each of the others is left by further sequences of an owner.
    fn share(&self, owner: Owner) -> usize {
        self.pages_total / KEPT_PART / self.prefixes.others(owner).max(1)
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
        let held = &mut self.slots[slot.0 as usize];
        assert!(held.table.is_empty(), "{slot:?} was free but owns pages");
        held.table.extend(&hit.pages);
        held.table.extend(self.pages_free.drain(left..).rev());
        held.shared = hit.pages.len();
        (held.node, held.reading) = (hit.node, reading);
        held.owner = owner;
    }

    /// A sequence has read the state that it began with.
    pub fn has_read(&mut self, slot: Slot) {
        if let Some(node) = self.slots[slot.0 as usize].reading.take() {
            self.prefixes.has_read(node);
        }
    }

    /// A state to be kept of the prompt of a slot, if one may be had.
    pub fn lend(&mut self, slot: Slot) -> Option<Slot> {
        let state = self.prefixes.lend(self.owner(slot));
        self.collect();
        state
    }

    /// Takes back a state that was lent to a slot.
    pub fn give_back(&mut self, slot: Slot, state: Slot) {
        self.prefixes.give_back(self.owner(slot), state);
    }

    fn owner(&self, slot: Slot) -> Owner {
        self.slots[slot.0 as usize].owner
    }

    /// Keeps the beginning of a prompt whose rows have run: up to the last of `states`, which are
    /// lent ones and the tokens that they are behind, ascending; all of its whole pages if the
    /// model has no states.
    pub fn keep(
        &mut self,
        slot: Slot,
        (domain, prompt): (u128, &[TokenId]),
        states: impl Iterator<Item = (usize, Slot)> + Clone,
    ) {
        let most = match self.prefixes.recurs() {
            true => states.clone().last().map_or(0, |(tokens, _)| tokens),
            false => prompt.len() / target::PAGE * target::PAGE,
        };
        let held = &mut self.slots[slot.0 as usize];
        let (table, whose) = (&mut held.table, (domain, held.owner));
        let (last, count) = self.prefixes.insert(whose, &prompt[..most], table);
        for (tokens, state) in states {
            match last.filter(|_| tokens <= count * target::PAGE) {
                None => self.prefixes.give_back(whose.1, state),
                Some(last) => {
                    let blocks = tokens / target::PAGE;
                    let node = self.prefixes.ancestor(last, blocks, count);
                    self.prefixes.keep(whose, node, state);
                }
            }
        }
        if count > held.shared {
            let before = std::mem::replace(&mut held.node, last);
            held.shared = count;
            last.into_iter().for_each(|node| self.prefixes.hold(node));
            before
                .into_iter()
                .for_each(|node| self.prefixes.release(node));
        }
        self.collect();
    }

    /// Gives back a slot and its pages; what is kept stays.
    pub fn release(&mut self, slot: Slot) {
        self.has_read(slot);
        let held = &mut self.slots[slot.0 as usize];
        assert!(!held.table.is_empty(), "{slot:?} released twice");
        let own = held.table.drain(..).skip(held.shared);
        self.pages_free
            .extend(own.collect::<Vec<_>>().into_iter().rev());
        held.shared = 0;
        if let Some(node) = held.node.take() {
            self.prefixes.release(node);
        }
        self.collect();
        self.slots_free.push(slot);
    }

    /// Takes the pages of blocks that went.
    fn collect(&mut self) {
        self.prefixes.take_free(&mut self.pages_free);
    }

    /// States for drafts that may be had.
    pub fn drafts_free(&self) -> usize {
        self.drafts_free.len()
    }

    /// A state for a draft.
    ///
    /// # Panics
    /// If none may be had.
    pub fn lend_draft(&mut self) -> Slot {
        self.drafts_free.pop().expect("a state for a draft is free")
    }

    /// Takes back a state of a draft.
    pub fn give_back_draft(&mut self, state: Slot) {
        self.drafts_free.push(state);
    }

    /// The page table of a slot.
    pub fn pages(&self, slot: Slot) -> &[PageId] {
        &self.slots[slot.0 as usize].table
    }

    /// Pages that sequences own alone.
    fn pages_owned(&self) -> usize {
        let own = |held: &Held| held.table.len() - held.shared;
        self.slots.iter().map(own).sum()
    }

    /// Pages that sequences use, alone or with others.
    pub fn pages_used(&self) -> usize {
        self.pages_owned() + self.prefixes.pages() - self.prefixes.pages_unused()
    }

    /// Pages of kept prompts that no sequence uses.
    pub fn pages_cached(&self) -> usize {
        self.prefixes.pages_unused()
    }

    /// Whether no page, no state and no slot was lost or made, with so many sequences, lent states
    /// and states of drafts: cheap enough for every step.
    pub fn is_conserved(&self, sequences: usize, (lent, drafts): (usize, usize)) -> bool {
        let pages = self.pages_owned() + self.prefixes.pages() + self.pages_free.len();
        let states = self.prefixes.snapshots() + self.prefixes.snapshots_free() + lent;
        pages == self.pages_total
            && states == self.snapshots_total
            && drafts + self.drafts_free.len() == self.drafts_total
            && sequences + self.slots_free.len() == self.slots.len()
    }

    /// Looks at each page and slot: each has exactly one owner.
    ///
    /// # Errors
    /// Names the first page or slot with none or several.
    pub fn check_integrity(&self) -> Result<(), String> {
        let mut page_owners = vec![0_u32; self.pages_total];
        let owned = |held: &Held| held.table[held.shared..].to_vec();
        let owned = self.slots.iter().flat_map(owned);
        let pages = self.pages_free.iter().copied().chain(owned);
        for page in pages.chain(self.prefixes.all_pages()) {
            page_owners[page.0 as usize] += 1;
        }
        if let Some(page) = page_owners.iter().position(|&owners| owners != 1) {
            return Err(format!("KV page {page} has {} owners", page_owners[page]));
        }
        for slot in 0..self.slots.len() {
            let free = self
                .slots_free
                .iter()
                .filter(|free| free.0 as usize == slot)
                .count();
            let owns_pages = usize::from(!self.slots[slot].table.is_empty());
            if free + owns_pages != 1 {
                return Err(format!(
                    "slot {slot} is free {free} times, in use {owns_pages} times"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::COMMON;

    const PAGE: usize = target::PAGE;

    fn kv(slots: usize, pages: usize) -> Kv {
        Kv::new((slots, 2, 2), pages, target::MAX_CONTEXT, Keyed::default())
    }

    /// A sequence of a domain, whose owner has no other.
    fn of(domain: u128, prompt: &[TokenId]) -> Asked<'_> {
        Asked {
            owner: domain as Owner,
            domain,
            prompt,
            leaves_room: false,
        }
    }

    /// A slot with pages for `pages` of tokens.
    fn reserve<N: Naming>(kv: &mut Kv<N>, pages: usize) -> Option<Slot> {
        let begin = kv.reserve(pages * PAGE, of(0, &[]))?;
        assert_eq!((begin.cached, begin.from), (0, begin.slot));
        Some(begin.slot)
    }

    /// Runs a prompt of a domain to its end, keeping the state behind each of `kept` pages; tells
    /// how many tokens were cached.
    fn run<N: Naming>(kv: &mut Kv<N>, asked: (u128, &[TokenId]), kept: &[usize]) -> usize {
        let begin = kv.reserve(asked.1.len() + 1, of(asked.0, asked.1)).unwrap();
        kv.has_read(begin.slot);
        let states = kept
            .iter()
            .map(|pages| (pages * PAGE, kv.lend(begin.slot).unwrap()));
        let states: Vec<_> = states.collect();
        kv.keep(begin.slot, asked, states.into_iter());
        kv.release(begin.slot);
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
        kv.release(slot);
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
        kv.release(slot);
        kv.release(slot);
    }

    #[test]
    fn conservation_sees_a_lost_page_a_lost_slot_and_a_lost_state() {
        let mut kv = kv(2, 4);
        let slot = reserve(&mut kv, 2).unwrap();
        assert!(kv.is_conserved(1, (0, 0)));
        assert!(!kv.is_conserved(0, (0, 0)), "a slot without a sequence");
        kv.lend(slot).unwrap();
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
        let told = format!("slot {} is free 0 times, in use 0 times", lost.0);
        assert_eq!(kv.check_integrity(), Err(told));
        kv.slots_free.extend([lost, lost]);
        let told = format!("slot {} is free 2 times, in use 0 times", lost.0);
        assert_eq!(kv.check_integrity(), Err(told));
    }

    #[test]
    fn a_prompt_goes_on_from_the_last_state_that_is_kept_of_it() {
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
            kv.release(begin.slot);
        }
    }

    #[test]
    fn without_states_it_goes_on_from_any_page() {
        let mut kv = Kv::new((2, 0, 2), 20, target::MAX_CONTEXT, Keyed::default());
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
        let mut kv = Kv::new((2, 4, 0), 40, target::MAX_CONTEXT, naming);
        let asked = prompt(0, 3);
        run(&mut kv, (COMMON, &asked), &[2]);
        // Behind it two that are alike, and share that alone.
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
    fn nobody_else_leaves_a_state_behind_a_common_block() {
        let mut kv = kv(2, 40);
        let asked = prompt(0, 3);
        run(&mut kv, (COMMON, &asked), &[1, 3]);
        let shorter = &asked[..2 * PAGE + 1];
        let begin = kv.reserve(shorter.len(), of(1, shorter)).unwrap();
        assert_eq!((begin.cached, begin.known), (PAGE, PAGE));
        kv.has_read(begin.slot);
        let state = kv.lend(begin.slot).unwrap();
        kv.keep(begin.slot, (1, shorter), [(2 * PAGE, state)].into_iter());
        kv.release(begin.slot);
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
            let state = kv.lend(begin.slot).unwrap();
            kv.keep(begin.slot, (0, &asked), [(2 * PAGE, state)].into_iter());
        }
        let [a, b] = begun.map(|begin| kv.pages(begin.slot).to_vec());
        assert_eq!(a[..2], b[..2]);
        assert_ne!(a[2], b[2]);
        assert!(kv.is_conserved(2, (0, 0)));
        assert_eq!(kv.check_integrity(), Ok(()));
        assert_eq!(kv.pages_used(), 4);
    }

    #[test]
    fn what_sequences_use_stays_and_the_oldest_of_the_rest_goes() {
        let mut kv = kv(2, 7);
        let [a, b] = [prompt(1, 1), prompt(2, 1)];
        run(&mut kv, (0, &a), &[1]);
        run(&mut kv, (0, &b), &[1]);
        let using = kv.reserve(a.len(), of(0, &a)).unwrap();
        assert_eq!(using.cached, PAGE);
        assert_eq!(reserve(&mut kv, 6), None, "five pages may be had");
        let other = reserve(&mut kv, 5).unwrap();
        kv.release(other);
        assert_eq!(run(&mut kv, (0, &b), &[1]), 0, "it went");
        kv.release(using.slot);
        assert_eq!(run(&mut kv, (0, &a), &[]), PAGE);
    }

    /// Pages that are found of each prompt.
    fn found<const N: usize>(kv: &Kv, prompts: &[Vec<TokenId>; N]) -> [usize; N] {
        prompts
            .each_ref()
            .map(|asked| kv.prefixes.look_up(0, asked).pages.len())
    }

    #[test]
    fn pages_go_from_the_end_of_what_was_used_longest_ago() {
        let mut kv = Kv::new((2, 0, 0), 9, target::MAX_CONTEXT, Keyed::default());
        let prompts = [1, 2, 3].map(|first| prompt(first, 2));
        for asked in &prompts {
            run(&mut kv, (0, asked), &[]);
        }
        assert_eq!(run(&mut kv, (0, &prompts[0]), &[]), 2 * PAGE);
        // Three pages are nobody's.
        let left = (4..=9).map(|pages| {
            let slot = reserve(&mut kv, pages).unwrap();
            kv.release(slot);
            found(&kv, &prompts)
        });
        let order = [
            [2, 1, 2],
            [2, 0, 2],
            [2, 0, 1],
            [2, 0, 0],
            [1, 0, 0],
            [0; 3],
        ];
        assert_eq!(left.collect::<Vec<_>>(), order);
    }

    #[test]
    fn states_go_in_the_order_in_which_they_were_last_read() {
        let mut kv = Kv::new((2, 3, 0), 20, target::MAX_CONTEXT, Keyed::default());
        let prompts = [1, 2, 3].map(|first| prompt(first, 1));
        for asked in &prompts {
            run(&mut kv, (0, asked), &[1]);
        }
        assert_eq!(run(&mut kv, (0, &prompts[0]), &[]), PAGE);
        let slot = reserve(&mut kv, 1).unwrap();
        let left = (0..3).map(|_| {
            kv.lend(slot).unwrap();
            found(&kv, &prompts)
        });
        assert_eq!(left.collect::<Vec<_>>(), [[1, 0, 1], [1, 0, 0], [0; 3]]);
    }

    #[test]
    fn pages_go_first_of_who_asks_then_of_who_has_most_beyond_its_share() {
        // Pages that the asker and two others keep, what may be left of each when one is needed.
        for (kept, left) in [
            ([1, 3, 2], [0, 3, 2]),
            ([0, 3, 2], [0, 2, 2]),
            ([0, 2, 3], [0, 2, 2]),
            // A share is 5 pages of 20.
            ([4, 5, 6], [4, 5, 5]),
            ([4, 5, 5], [3, 5, 5]),
            ([7, 5, 6], [6, 5, 6]),
        ] {
            let mut kv = Kv::new((2, 0, 0), 20, target::MAX_CONTEXT, Keyed::default());
            for (domain, &pages) in kept.iter().enumerate() {
                run(&mut kv, (domain as u128, &prompt(0, pages)), &[]);
            }
            let free = 20 - kept.iter().sum::<usize>();
            reserve(&mut kv, free + 1).unwrap();
            let found = [0, 1, 2].map(|domain| {
                let asked = prompt(0, kept[domain]);
                kv.prefixes.look_up(domain as u128, &asked).pages.len()
            });
            assert_eq!(found, left, "of {kept:?}");
        }
    }

    #[test]
    fn a_flood_takes_nothing_from_who_has_less() {
        // Few states, then few pages.
        for (states, pages) in [(2, 200), (60, 20)] {
            let naming = Keyed::default();
            let mut kv = Kv::new((2, states, 2), pages, target::MAX_CONTEXT, naming);
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
            let mut kv = Kv::new((2, states, 2), pages, target::MAX_CONTEXT, naming);
            let mine = prompt(0, 1);
            run(&mut kv, (1, &mine), &[1]);
            let other = prompt(1, 3);
            for domain in 2..40 {
                let asked = Asked {
                    owner: 2,
                    ..of(domain, &other)
                };
                let begin = kv.reserve(other.len(), asked).unwrap();
                let state = kv.lend(begin.slot).unwrap();
                kv.keep(
                    begin.slot,
                    (domain, &other),
                    [(3 * PAGE, state)].into_iter(),
                );
                kv.release(begin.slot);
            }
            assert_eq!(run(&mut kv, (1, &mine), &[]), PAGE);
        }
    }

    #[test]
    fn further_sequences_of_an_owner_leave_the_others_their_share() {
        const PAGES: usize = 40;
        // Pages that another keeps, and those that it is left.
        for (kept, left) in [(12, 12), (30, PAGES / KEPT_PART)] {
            let naming = Keyed::default();
            let mut kv = Kv::new((PAGES, 0, 0), PAGES, target::MAX_CONTEXT, naming);
            let theirs = prompt(0, kept);
            run(&mut kv, (1, &theirs), &[]);
            let running = std::iter::from_fn(|| kv.reserve(2 * PAGE, of(2, &[]))).count();
            assert_eq!(running, (PAGES - left) / 2);
            let found = kv.prefixes.look_up(1, &theirs);
            assert_eq!(found.pages.len(), left, "of {kept}");
        }
    }

    #[test]
    fn the_only_sequence_of_an_owner_takes_what_it_needs() {
        let mut kv = Kv::new((2, 0, 0), 10, target::MAX_CONTEXT, Keyed::default());
        run(&mut kv, (1, &prompt(0, 5)), &[]);
        let begin = kv.reserve(10 * PAGE, of(2, &[])).unwrap();
        kv.release(begin.slot);
        assert_eq!(kv.pages_cached(), 0);
    }

    #[test]
    fn a_state_is_taken_from_who_has_more() {
        let mut kv = Kv::new((4, 4, 0), 40, target::MAX_CONTEXT, Keyed::default());
        run(&mut kv, (1, &prompt(0, 2)), &[1, 2]);
        let begun = [2, 2, 3].map(|owner| kv.reserve(PAGE, of(owner, &[])).unwrap().slot);
        assert!(kv.lend(begun[0]).is_some() && kv.lend(begun[1]).is_some());
        assert_eq!(kv.lend(begun[0]), None, "each has two");
        assert!(kv.lend(begun[2]).is_some(), "it has none");
    }

    #[test]
    fn a_state_that_is_to_be_read_is_not_lent() {
        let mut kv = kv(2, 20);
        let asked = prompt(0, 2);
        run(&mut kv, (0, &asked), &[1, 2]);
        let begin = kv.reserve(asked.len(), of(0, &asked)).unwrap();
        assert_ne!(kv.lend(begin.slot), Some(begin.from));
        assert_eq!(kv.lend(begin.slot), None);
        kv.has_read(begin.slot);
        assert_eq!(kv.lend(begin.slot), Some(begin.from));
    }

    /// Names everything alike.
    struct Collision;

    impl Naming for Collision {
        fn name(&self, _: u128, _: &[TokenId]) -> u128 {
            7
        }
    }

    #[test]
    fn a_state_behind_a_block_that_has_no_name_is_not_kept() {
        let mut kv = Kv::new((2, 4, 2), 20, target::MAX_CONTEXT, Collision);
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
        let mut kv = Kv::new((2, 4, 2), 20, target::MAX_CONTEXT, Collision);
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
