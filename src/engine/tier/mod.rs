//! Tier below the device's memory: prompt prefixes in host memory.
//!
//! Ends of prompts are written when the prompt has proved sound, so that host memory has them when
//! the device evicts them. A prompt whose prefix is in host memory gets pages and a slot, and
//! starts when its pages are filled; other sequences go on meanwhile. Prefixes in host memory have
//! a tree of their own, ordered by worth like that of the device. A prefix is found only when all
//! of it has been written.

pub mod disk;
mod host_pool;
mod staging;
mod sums;
#[cfg(test)]
pub mod testing;

use std::collections::VecDeque;

use self::host_pool::HostPool;
pub use self::staging::{ReadAhead, Staging};
use self::sums::Sums;
use super::kv::{Kv, Pin};
use super::prefix::{
    CACHED_PART, Evicted, Hit, Keyed, Naming, NodeId, Owner, Prefixes, Reuse, SnapshotKind,
    SnapshotPoint,
};
use host::log;
use step::PAGE;
use step::executor::{DeviceError, Executor, PageId, Slot, TokenId};
use step::transfer::{Piece, PieceBytes, Transfer};

/// Bytes of running copies up to which further saves are started: a restore has to wait for them.
const SAVES_UNDER_WAY_MAX: usize = 256 << 20;
/// Bytes of running copies up to which further restores are started: as many as a device copies
/// during a step of long prompts, since no more are started before its end.
const RESTORES_UNDER_WAY_MAX: usize = 512 << 20;
/// Largest number of prefixes that wait to be saved: their pages cannot be evicted meanwhile.
const QUEUED_MAX: usize = 64;

/// Direction of copies between the device and host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Save,
    Restore,
}

/// Copies of one prefix in one direction.
#[derive(Debug)]
struct Copies {
    way: Way,
    transfers: Vec<Transfer>,
    started: usize,
    /// Number of the last copy that was started.
    last: u64,
}

impl Copies {
    fn new(way: Way, transfers: Vec<Transfer>) -> Copies {
        Copies {
            way,
            transfers,
            started: 0,
            last: 0,
        }
    }

    fn is_done(&self, transferred: u64) -> bool {
        self.started == self.transfers.len() && self.last <= transferred
    }
}

/// Prompt prefix that is to be in host memory.
#[derive(Debug)]
struct Beginning {
    whose: (u128, Owner),
    reuse: Reuse,
    /// Tokens of the prefix, in whole pages.
    tokens: Vec<TokenId>,
    /// Kind of the state after `tokens`, if the model has one.
    kind: Option<SnapshotKind>,
}

impl Beginning {
    fn pages(&self) -> usize {
        self.tokens.len() / PAGE
    }
}

/// Prefix that is being copied to pages of host memory.
#[derive(Debug)]
struct Incoming {
    beginning: Beginning,
    /// Last block of the prefix that was in host memory before.
    node: Option<NodeId>,
    /// Number of blocks of the prefix that were in host memory before.
    known: usize,
    /// Pages of host memory for the blocks of the prefix that were not there before.
    pages: Vec<PageId>,
    state: Option<Slot>,
}

impl Incoming {
    /// Pages and state in host memory that are being filled.
    fn pieces(&self) -> Vec<Piece> {
        let pages = self.pages.iter().map(|page| Piece::Page(*page));
        pages.chain(self.state.map(Piece::State)).collect()
    }
}

/// Prefix that is being copied from the device.
#[derive(Debug)]
struct Save {
    pin: Pin,
    copies: Copies,
    incoming: Incoming,
    /// Checksums of the copied pieces.
    sums: Sums,
}

/// Check before a restore whether the bytes of a prefix are still those that were written.
#[derive(Debug)]
struct Check {
    ticket: u64,
    /// Last block of the prefix, which is pinned until the check is given up.
    node: NodeId,
    /// Number of leading pages that are not checked, since the device has these pages.
    here: usize,
    sums: Sums,
    outcome: Option<bool>,
}

/// Prefix that is being copied to the device.
#[derive(Debug)]
struct Restore {
    /// Slot of the sequence that waits for the restore.
    slot: Slot,
    copies: Copies,
    node: NodeId,
    has_state: bool,
}

/// Bytes that were copied since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub saved_bytes: usize,
    pub restored_bytes: usize,
}

/// The tier of the prefix cache in host memory.
pub struct Tier<N = Keyed> {
    index: Prefixes<N>,
    host: HostPool,
    pieces: PieceBytes,
    queued: VecDeque<Pin>,
    save: Option<Save>,
    restores: VecDeque<Restore>,
    checks: Vec<Check>,
    tickets: u64,
    /// Number of prefixes whose bytes had changed.
    broken: usize,
    /// Transfers between host memory and a disk, if there is one.
    staging: Option<Staging>,
    /// Number of copies that were started.
    started: u64,
    /// Numbers and bytes of the copies that are running, the oldest first.
    under_way: VecDeque<(u64, usize)>,
    traffic: Traffic,
}

impl<N: Naming> Tier<N> {
    /// Empty tier in so many bytes; none if the bytes do not suffice for a piece of each kind.
    pub fn new(bytes: usize, pieces: PieceBytes, naming: N) -> Option<Self> {
        let host = HostPool::new(bytes, pieces);
        let states = (0..host.slabs() as u32).map(Slot);
        let mut index = Prefixes::new(naming, pieces.state > 0, states);
        // The index gets a state only when the state gets a slab.
        while index.take_state().is_some() {}
        (host.slabs() > 1).then(|| Tier {
            index,
            host,
            pieces,
            queued: VecDeque::new(),
            save: None,
            restores: VecDeque::new(),
            checks: vec![],
            tickets: 0,
            broken: 0,
            staging: None,
            started: 0,
            under_way: VecDeque::new(),
            traffic: Traffic::default(),
        })
    }

    /// Sets the current time as `Kv::set_time` does.
    pub fn set_time(&mut self, time: std::time::Duration) {
        self.index.set_time(time);
        if let Some(staging) = &mut self.staging {
            staging.disk.set_time(time);
        }
    }

    pub fn evicted(&self) -> Evicted {
        self.index.evicted()
    }

    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Bytes of host memory in use.
    pub fn bytes_used(&self) -> usize {
        (self.host.pages() - self.host.pages_free()) * self.pieces.page
    }

    /// Whether a piece is being copied, checked or read, or waits for that.
    pub fn is_busy(&self) -> bool {
        let is_staging = self.staging.as_ref().is_some_and(Staging::is_busy);
        let is_checking = self.checks.iter().any(|check| check.outcome.is_none());
        let copies = self.save.is_some() || !self.queued.is_empty() || !self.restores.is_empty();
        copies || is_checking || is_staging
    }

    /// Longest prefix of a prompt that is in host memory.
    pub fn look_up(&self, domain: u128, prompt: &[TokenId]) -> Hit {
        self.index.look_up(domain, prompt, 0)
    }

    /// Notes that a sequence of `owner` goes on from a hit, whether the hit was restored or not.
    pub fn note_use(&mut self, hit: &Hit, owner: Owner) {
        self.index.note_use(hit, owner);
    }

    /// Number of prefixes that were found and had changed.
    pub fn broken(&self) -> usize {
        self.broken
    }

    /// Whether a hit has been checked after its first `here` pages and is unchanged; if no check
    /// has run, one starts, and `ticket` gets its number.
    pub fn is_checked(&mut self, ticket: &mut Option<u64>, hit: &Hit, here: usize) -> bool {
        let node = hit.node.expect("something was found");
        let known = ticket.and_then(|ticket| self.check_of(ticket));
        if let Some(check) = known.filter(|check| check.node == node && check.here <= here) {
            return check.outcome == Some(true);
        }
        ticket.take().into_iter().for_each(|old| self.uncheck(old));
        let pages = hit.pages[here..].iter().map(|page| Piece::Page(*page));
        let pieces = pages.chain(hit.state.map(Piece::State)).collect();
        self.index.pin(node);
        if hit.state.is_some() {
            self.index.will_read(node);
        }
        self.tickets += 1;
        self.checks.push(Check {
            ticket: self.tickets,
            node,
            here,
            sums: Sums::of(pieces),
            outcome: None,
        });
        *ticket = Some(self.tickets);
        false
    }

    fn check_of(&self, ticket: u64) -> Option<&Check> {
        self.checks.iter().find(|check| check.ticket == ticket)
    }

    /// Whether a check is still running.
    pub fn checks(&self, ticket: u64) -> bool {
        self.check_of(ticket)
            .is_some_and(|check| check.outcome.is_none())
    }

    /// Gives up a check, once its sequence has begun or never will.
    pub fn uncheck(&mut self, ticket: u64) {
        let at = self.checks.iter().position(|check| check.ticket == ticket);
        let Some(check) = at.map(|at| self.checks.remove(at)) else {
            return;
        };
        if self.index.recurs() {
            self.index.has_read(check.node);
        }
        self.index.release(check.node, true);
        self.collect();
    }

    /// Continues with checks. Changed prefixes are not found any more.
    fn settle_checks(&mut self, executor: &mut impl Executor) {
        for check in self.checks.iter_mut().filter(|of| of.outcome.is_none()) {
            if !check.sums.go_on(executor, &self.host, self.pieces) {
                continue;
            }
            let found = check.sums.found();
            let changed: Vec<Piece> = found
                .filter(|(piece, sum)| self.host.sum(*piece) != *sum)
                .map(|(piece, _)| piece)
                .collect();
            check.outcome = Some(changed.is_empty());
            self.broken += usize::from(!changed.is_empty());
            if self.broken == 1 && !changed.is_empty() {
                log::line(format_args!(
                    "--cache-host: bytes of a prompt changed in the host's memory; it is computed \
                     again: have the memory checked"
                ));
            }
            for piece in changed {
                self.index.lose(check.node, piece);
            }
        }
    }

    /// Queues the restore of a hit: its last pages go to `pages` of the slot, and its state to the
    /// state of the slot, or to the windowed pages `window`.
    pub fn restore(&mut self, slot: Slot, hit: &Hit, (pages, window): (&[PageId], &[PageId])) {
        let node = hit.node.expect("something was found");
        let from = &hit.pages[hit.pages.len() - pages.len()..];
        let (host, pairs) = (&self.host, pages.iter().zip(from));
        let transfer = |piece, from| Transfer {
            piece,
            at: host.at(from),
        };
        let pages = pairs.map(|(page, from)| transfer(Piece::Page(*page), Piece::Page(*from)));
        let state = hit.state;
        let of_state = state.map(|from| self.of_state((slot, window), from));
        let transfers = pages.chain(of_state.into_iter().flatten()).collect();
        let copies = Copies::new(Way::Restore, transfers);
        self.index.pin(node);
        if state.is_some() {
            self.index.will_read(node);
        }
        self.restores.push_back(Restore {
            slot,
            copies,
            node,
            has_state: state.is_some(),
        });
    }

    /// Queues a prefix to be saved after the earlier ones, unless too many prefixes wait.
    pub fn queue_save(&mut self, pin: Pin, kv: &mut Kv<N>) {
        match self.queued.len() < QUEUED_MAX {
            true => self.queued.push_back(pin),
            false => kv.unpin(&pin),
        }
    }

    /// Handles finished copies; returns the slots whose prefixes are restored.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    pub fn settle(
        &mut self,
        executor: &mut impl Executor,
        kv: &mut Kv<N>,
    ) -> Result<Vec<Slot>, DeviceError> {
        self.settle_disk(executor);
        if !self.is_busy() {
            return Ok(vec![]);
        }
        let done = executor.transferred()?;
        let is_done = |(last, _): &mut (u64, _)| *last <= done;
        while self.under_way.pop_front_if(is_done).is_some() {}
        self.settle_checks(executor);
        let (host, pieces) = (&self.host, self.pieces);
        let is_done =
            |save: &mut Save| save.copies.is_done(done) && save.sums.go_on(executor, host, pieces);
        if let Some(save) = self.save.take_if(is_done) {
            self.take_saved(save, kv);
        }
        let mut filled = vec![];
        let is_done = |first: &mut Restore| first.copies.is_done(done);
        while let Some(restore) = self.restores.pop_front_if(is_done) {
            if restore.has_state {
                self.index.has_read(restore.node);
            }
            self.index.release(restore.node, true);
            filled.push(restore.slot);
        }
        self.collect();
        Ok(filled)
    }

    /// Starts as many copies as may run at once: first restores, for which sequences wait.
    ///
    /// # Errors
    /// `DeviceError` is fatal for the process.
    pub fn start(
        &mut self,
        executor: &mut impl Executor,
        kv: &mut Kv<N>,
    ) -> Result<(), DeviceError> {
        self.start_disk(executor);
        loop {
            while self.save.is_none()
                && let Some(pin) = self.queued.pop_front()
            {
                self.begin_save(pin, kv);
            }
            let under_way: usize = self.under_way.iter().map(|(_, bytes)| bytes).sum();
            let restores = self.restores.iter_mut().map(|restore| &mut restore.copies);
            let mut copies = restores.chain(self.save.iter_mut().map(|save| &mut save.copies));
            let next = copies.find(|copies| copies.started < copies.transfers.len());
            let next = next.map(|next| match next.way {
                Way::Save => (next, SAVES_UNDER_WAY_MAX),
                Way::Restore => (next, RESTORES_UNDER_WAY_MAX),
            });
            let Some((next, most)) = next.filter(|(_, most)| under_way < *most) else {
                return Ok(());
            };
            let (mut bytes, mut count) = (0, 0);
            for transfer in &next.transfers[next.started..] {
                if under_way + bytes >= most {
                    break;
                }
                bytes += self.pieces.of(transfer.piece);
                count += 1;
            }
            let transfers = &next.transfers[next.started..][..count];
            match next.way {
                Way::Save => executor.save(transfers)?,
                Way::Restore => executor.restore(transfers)?,
            }
            match next.way {
                Way::Save => self.traffic.saved_bytes += bytes,
                Way::Restore => self.traffic.restored_bytes += bytes,
            }
            next.started += count;
            self.started += count as u64;
            next.last = self.started;
            self.under_way.push_back((self.started, bytes));
        }
    }

    /// Starts to save a prefix, unless host memory has it or is full of prefixes of more worth.
    fn begin_save(&mut self, mut pin: Pin, kv: &mut Kv<N>) {
        let beginning = Beginning {
            whose: pin.whose,
            reuse: pin.reuse,
            tokens: std::mem::take(&mut pin.tokens),
            kind: pin.state.map(|(kind, _)| kind),
        };
        let Some(incoming) = self.begin(beginning) else {
            return kv.unpin(&pin);
        };
        let copies = Copies::new(Way::Save, self.saves(&pin, &incoming));
        self.save = Some(Save {
            pin,
            copies,
            sums: Sums::of(incoming.pieces()),
            incoming,
        });
    }

    fn saves(&self, pin: &Pin, incoming: &Incoming) -> Vec<Transfer> {
        let pages = pin.pages[incoming.known..].iter().zip(&incoming.pages);
        let pages = pages.map(|(page, to)| Transfer {
            piece: Piece::Page(*page),
            at: self.host.at(Piece::Page(*to)),
        });
        let state = pin.state.zip(incoming.state);
        let state = state.map(|((_, from), to)| self.of_state((from, &pin.window), to));
        pages.chain(state.into_iter().flatten()).collect()
    }

    /// Copies between a state, or the windowed pages of a snapshot, and the state `in_host`.
    fn of_state(&self, (state, window): (Slot, &[PageId]), in_host: Slot) -> Vec<Transfer> {
        let at = self.host.at(Piece::State(in_host));
        if window.is_empty() {
            let piece = Piece::State(state);
            return vec![Transfer { piece, at }];
        }
        let pages = window.iter().enumerate();
        let pages = pages.map(|(index, page)| Transfer {
            piece: Piece::Window(*page),
            at: at + index * self.pieces.window,
        });
        pages.collect()
    }

    /// Allocates memory for the part of a prefix that host memory lacks. None if it lacks nothing,
    /// or if the memory is taken by prefixes that are worth more.
    fn begin(&mut self, beginning: Beginning) -> Option<Incoming> {
        let nodes = self.index.blocks(beginning.whose.0, &beginning.tokens);
        let nodes: Vec<_> = nodes.collect();
        let (node, known) = (nodes.last().copied(), nodes.len());
        if let Some(node) = node {
            self.index.pin(node);
        }
        let is_here = known == beginning.pages() && node.is_some_and(|id| self.index.is_end(id));
        let taken = match is_here {
            true => None,
            false => self.allocate(&beginning, node, known),
        };
        let Some((state, pages)) = taken else {
            node.into_iter().for_each(|id| self.index.undo_pin(id));
            self.collect();
            return None;
        };
        Some(Incoming {
            beginning,
            node,
            known,
            pages,
            state,
        })
    }

    /// Allocates memory for the state of a prefix and for its pages after the first `known`, the
    /// last of which is that of `node`.
    fn allocate(
        &mut self,
        beginning: &Beginning,
        node: Option<NodeId>,
        known: usize,
    ) -> Option<(Option<Slot>, Vec<PageId>)> {
        let (whose, pages) = (beginning.whose, beginning.pages());
        let (owner, count) = (whose.1, pages - known);
        let state = match beginning.kind {
            Some(kind) => {
                if let Some(state) = self.host.take_state() {
                    self.index.add_state(state);
                }
                let tokens = pages * PAGE;
                let point = SnapshotPoint { tokens, kind };
                Some(self.index.lend(whose, (node, beginning.reuse), point)?)
            }
            None => None,
        };
        self.collect();
        let share = self.host.pages() / CACHED_PART / self.index.others(owner).max(1);
        loop {
            let free = self.host.pages_free();
            if free >= count {
                break;
            }
            // Evicted states free slabs for pages too, so pages are requested one at a time.
            self.index.free_pages(1, (owner, share));
            self.collect();
            if self.host.pages_free() == free {
                if let Some(state) = state {
                    self.index.give_back(owner, state);
                }
                return None;
            }
        }
        let pages = (0..count).map(|_| self.host.take_page().expect("it is free"));
        Some((state, pages.collect()))
    }

    /// Adds a saved prefix to the index.
    fn take_saved(&mut self, save: Save, kv: &mut Kv<N>) {
        kv.unpin(&save.pin);
        for (piece, sum) in save.sums.found() {
            self.host.set_sum(piece, sum);
        }
        let (beginning, last) = self.finish(save.incoming);
        if let Some(last) = last {
            self.queue_write(beginning, last);
        }
        self.collect();
    }

    /// Adds a prefix, whose bytes are in host memory, to the index. Its last block stays pinned.
    fn finish(&mut self, incoming: Incoming) -> (Beginning, Option<NodeId>) {
        let (beginning, mut pages) = (incoming.beginning, incoming.pages);
        let rest = &beginning.tokens[incoming.known * PAGE..];
        let (whose, after) = (beginning.whose, (incoming.node, beginning.reuse));
        let (last, count) = self.index.insert(whose, after, rest, &mut pages);
        for page in pages.split_off(count) {
            self.host.give_page(page);
        }
        let state = beginning.kind.zip(incoming.state);
        match (state, last.filter(|_| count == rest.len() / PAGE)) {
            (Some(state), Some(last)) => self.index.add_snapshot(whose, last, state),
            (Some((_, state)), None) => self.index.give_back(whose.1, state),
            (None, _) => {}
        }
        (beginning, last)
    }

    /// Frees the memory of a prefix whose copy is given up.
    fn give_up(&mut self, incoming: Incoming) {
        let pages = incoming.pages.into_iter();
        pages.for_each(|page| self.host.give_page(page));
        if let Some(state) = incoming.state {
            self.index.give_back(incoming.beginning.whose.1, state);
        }
        if let Some(node) = incoming.node {
            self.index.release(node, true);
        }
        self.collect();
    }

    /// Takes back the memory of evicted blocks.
    fn collect(&mut self) {
        let mut pages = vec![];
        self.index.take_free(&mut pages);
        pages.into_iter().for_each(|page| self.host.give_page(page));
        while let Some(state) = self.index.take_state() {
            self.host.give_state(state);
        }
    }

    /// Whether each page and state of host memory is either free or in use.
    pub fn is_conserved(&self) -> bool {
        let read = self.staging.as_ref().and_then(Staging::incoming);
        let saved = self.save.as_ref().map(|save| &save.incoming);
        let (pages, states) = saved.into_iter().chain(read).fold((0, 0), |sum, of| {
            let state = usize::from(of.state.is_some());
            (sum.0 + of.pages.len(), sum.1 + state)
        });
        let slabs = self.host.slabs_of_pages() + self.index.snapshots() + states;
        self.host.pages_used() == self.index.pages() + pages
            && slabs + self.host.slabs_free() == self.host.slabs()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{Copying, PIECES, prompt};
    use super::*;
    use crate::kv::Reservation;

    const PAGES: usize = 400;

    fn asked(domain: u128, prompt: &[TokenId], restorable: usize) -> Reservation<'_> {
        Reservation {
            owner: domain as Owner,
            domain,
            prompt,
            leaves_share: false,
            restorable,
        }
    }

    /// Keys and states of a device, and a tier of so many slabs.
    fn pair(slabs: usize) -> (Kv, Tier, Copying) {
        let kv = Kv::new((2, 4, 0), PAGES, PAGES * PAGE, Keyed::default());
        let tier = Tier::new(slabs * PIECES.state, PIECES, Keyed::default());
        (kv, tier.expect("the budget suffices"), Copying::default())
    }

    /// A domain computes a prompt, whose end is to be written.
    fn compute(kv: &mut Kv, tier: &mut Tier, domain: u128, prompt: &[TokenId]) {
        let begin = kv.reserve(prompt.len(), asked(domain, prompt, 0)).unwrap();
        let point = SnapshotPoint {
            tokens: prompt.len() / PAGE * PAGE,
            kind: SnapshotKind::End,
        };
        let state = kv.lend(begin.slot, point).map(|state| (point.kind, state));
        kv.cache(begin.slot, &prompt[..point.tokens], state);
        let pins = kv.pin(begin.slot, prompt);
        pins.into_iter().for_each(|pin| tier.queue_save(pin, kv));
        kv.release(begin.slot, true);
    }

    fn copy(kv: &mut Kv, tier: &mut Tier, device: &mut Copying) -> Vec<Slot> {
        tier.start(device, kv).unwrap();
        let filled = tier.settle(device, kv).unwrap();
        assert!(tier.is_conserved());
        filled
    }

    #[test]
    fn a_beginning_is_found_when_all_of_it_is_written_and_by_its_domain_alone() {
        let (mut kv, mut tier, mut device) = pair(4);
        let asked = prompt(20);
        compute(&mut kv, &mut tier, 1, &asked);
        device.ended = Some(0);
        for ended in 0..21 {
            device.ended = Some(ended);
            copy(&mut kv, &mut tier, &mut device);
            assert_eq!(tier.look_up(1, &asked).node, None, "{ended}");
            assert_eq!(kv.pages_used(), 20, "what is copied stays");
        }
        device.ended = None;
        copy(&mut kv, &mut tier, &mut device);
        let found = |domain| tier.look_up(domain, &asked).pages.len();
        assert_eq!([1, 2].map(found), [20, 0]);
        assert_eq!((kv.pages_used(), kv.pages_cached()), (0, 20));
    }

    #[test]
    fn what_is_under_way_is_bounded_and_restored_before_anything_is_written() {
        const BLOCKS: usize = 250;
        let (mut kv, mut tier, mut device) = pair(10);
        let first = prompt(BLOCKS);
        compute(&mut kv, &mut tier, 1, &first);
        let bytes = |device: &Copying, from: usize| -> usize {
            let started = device.started[from..].iter();
            started.map(|copy| PIECES.of(copy.piece)).sum()
        };
        let mut rounds = 0;
        while tier.is_busy() {
            let before = device.started.len();
            copy(&mut kv, &mut tier, &mut device);
            let bytes = bytes(&device, before);
            assert!(bytes <= SAVES_UNDER_WAY_MAX + PIECES.state, "{bytes}");
            rounds += 1;
        }
        assert!(rounds > 1, "{rounds}");
        // Another prompt waits to be written when the first, driven out, comes again.
        compute(&mut kv, &mut tier, 2, &prompt(50));
        let all = kv.reserve((PAGES - 50) * PAGE, asked(3, &[], 0)).unwrap();
        kv.release(all.slot, true);
        let hit = tier.look_up(1, &first);
        let begin = kv.reserve(first.len(), asked(1, &first, hit.pages.len()));
        let begin = begin.unwrap();
        assert_eq!((begin.cached, begin.from), (BLOCKS * PAGE, begin.slot));
        assert_eq!(begin.restore_after, Some(0));
        let pages = kv.pages(begin.slot)[..BLOCKS].to_vec();
        tier.restore(begin.slot, &hit, (&pages, &[]));
        let before = device.started.len();
        while copy(&mut kv, &mut tier, &mut device).is_empty() {}
        let first: Vec<Piece> = device.started[before..].iter().map(|of| of.piece).collect();
        let wanted = pages.into_iter().map(Piece::Page);
        let wanted: Vec<Piece> = wanted.chain([Piece::State(begin.slot)]).collect();
        assert!(first.starts_with(&wanted));
    }

    #[test]
    fn restores_fill_a_long_step_and_no_more() {
        const BLOCKS: usize = 800;
        let mut kv = Kv::new((2, 4, 0), 2 * BLOCKS, 2 * BLOCKS * PAGE, Keyed::default());
        let mut tier = Tier::new(20 * PIECES.state, PIECES, Keyed::default()).unwrap();
        let (mut device, all) = (Copying::default(), prompt(BLOCKS));
        compute(&mut kv, &mut tier, 1, &all);
        while tier.is_busy() {
            copy(&mut kv, &mut tier, &mut device);
        }
        let hit = tier.look_up(1, &all);
        let begin = kv.reserve(PAGE, asked(2, &[], 0)).unwrap();
        let pages: Vec<PageId> = (0..BLOCKS as u32).map(PageId).collect();
        tier.restore(begin.slot, &hit, (&pages, &[]));
        // Nothing that is started ends.
        let before = device.started.len();
        device.ended = Some(before as u64);
        let most = RESTORES_UNDER_WAY_MAX.div_ceil(PIECES.page);
        for _ in 0..2 {
            assert!(copy(&mut kv, &mut tier, &mut device).is_empty());
            assert_eq!(device.started.len() - before, most);
        }
    }

    #[test]
    fn what_changed_in_host_memory_is_not_found_until_it_is_written_again() {
        const BLOCKS: usize = 20;
        for broken in 0..=BLOCKS {
            let (mut kv, mut tier, mut device) = pair(4);
            let asked = prompt(BLOCKS);
            let write = |kv: &mut Kv, tier: &mut Tier, device: &mut Copying| {
                compute(kv, tier, 1, &asked);
                while tier.is_busy() {
                    copy(kv, tier, device);
                }
                tier.look_up(1, &asked)
            };
            let hit = write(&mut kv, &mut tier, &mut device);
            let state = hit.state.map(Piece::State);
            let mut pieces = hit.pages.iter().map(|page| Piece::Page(*page)).chain(state);
            let piece = pieces.nth(broken).unwrap();
            for changed in [None, Some(tier.host.at(piece))] {
                device.changed = changed;
                let mut ticket = None;
                assert!(!tier.is_checked(&mut ticket, &hit, 0));
                while tier.checks(ticket.unwrap()) {
                    copy(&mut kv, &mut tier, &mut device);
                }
                let is_sound = changed.is_none();
                assert_eq!(tier.is_checked(&mut ticket, &hit, 0), is_sound);
                assert_eq!(tier.look_up(1, &asked).node.is_some(), is_sound, "{broken}");
                tier.uncheck(ticket.unwrap());
                assert!(tier.is_conserved());
            }
            assert_eq!(tier.broken(), 1);
            device.changed = None;
            let again = write(&mut kv, &mut tier, &mut device);
            assert_eq!(again.pages.len(), BLOCKS, "{broken}");
        }
    }
}
