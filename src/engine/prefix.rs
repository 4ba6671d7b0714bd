//! Prefix cache: prompt prefixes as a radix tree of blocks.
//!
//! A block is the tokens of a page after those of its parent, in a domain that nobody else sees:
//! one per API key. All clients see the domain [`COMMON`], with the operator's prompts; blocks of
//! any domain may follow its blocks. A block's page has the keys and values of its tokens, with the
//! bits that every prompt with this prefix has: rows depend on the tokens before them alone, and
//! blocks are whole cells. A model with recurrent states can go on only from a block with a
//! snapshot; so can one with a window, whose snapshots are the window's last pages. Blocks are
//! found by keyed hashes, and their tokens are compared.
//!
//! Blocks that sequences use stay. Of all other blocks the one of least worth is evicted when
//! memory is needed: worth is the time that a block saves, by the tokens to compute without it and
//! its [`Reuse`]. Eviction takes the end of a prompt, and the blocks before it that no other
//! prompt's end needs. Snapshots in the middle of a prompt go before those at ends, and nothing is
//! cached for which memory of more worth would have to go: so if prompts that recur in turn are
//! more than fit, some of them always hit.
//!
//! Memory counts for the owner that computed it, in whatever domain. Snapshots are taken from
//! owners with more snapshots than the asker, pages from owners with more than a share
//! ([`CACHED_PART`]); both from owners without a recent prompt. Memory of the operator's prompts
//! stays.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use super::request::COMMON;
use step::PAGE;
use step::executor::{PageId, Slot, TokenId};
use step::transfer::Piece;

/// Index of a block in the tree.
pub type NodeId = u32;

/// Number of the client that computed a block or a snapshot, to which its memory counts.
pub type Owner = u64;

/// Owner of the operator's prompts, which are in the domain [`COMMON`].
pub const OPERATOR: Owner = Owner::MAX;

/// Tokens between the last snapshot of a prompt and its end: more than the chat template adds to
/// open a reply, where the next turn of a conversation may differ.
const OPENING: usize = 8;
/// Divisor of all pages: an owner that has a sequence already leaves that part, in equal shares, to
/// the cached pages of other owners.
pub const CACHED_PART: usize = 2;
/// Divisor of all snapshots: the operator's prompts have at most that part.
const COMMON_PART: usize = 2;
/// Time without a prompt after which an owner's share is not protected any more.
const WANTED: Duration = Duration::from_mins(10);
/// Time between two uses of a prefix that is assumed before any was measured.
const UNKNOWN: Duration = Duration::from_mins(10);
/// Weight of the latest time between two uses of a prefix in its moving average.
const GAP_WEIGHT: f64 = 0.25;
/// Weight of a prompt in the moving averages over all prompts.
const WEIGHT: f64 = 1.0 / 32.0;
/// Factor of the worth of a prefix that has had no hit yet. Without the factor equally frequent
/// prompts would evict each other in turn.
const UNFOUND: f64 = 0.5;
/// Number of snapshots of new prefixes, without any hit, that replace only each other: so the
/// latest are there if they are asked for again at once.
const NEWCOMERS: usize = 4;
/// Divisor of all snapshots: snapshots of new prefixes are at most that part.
const NEWCOMERS_PART: usize = 8;
/// Steps per share, to which the ratio of an owner's pages to its share is rounded: a single
/// evicted page then seldom changes which owner loses the next one.
const SHARE_PARTS: usize = 8;
/// Number of evicted prefixes whose last use is remembered.
const GONE_MAX: usize = 1024;

/// Point of a prompt at which a snapshot is taken: after so many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPoint {
    pub tokens: usize,
    pub kind: SnapshotKind,
}

/// Reason for which a snapshot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotKind {
    /// Point where another prompt diverges, or probably will.
    Parting,
    /// End of the prompt, from which the next turn of a conversation goes on.
    End,
    /// Point at a multiple of the regular distance between snapshots in a long prompt, for later
    /// prompts that happen to diverge after the point.
    Spaced,
}

/// Points of a prompt's snapshots, ascending: where it diverges from an earlier prompt, with which
/// it shares `known` tokens; after its `head`, which other prompts may have too; before its end;
/// and every `spacing` tokens.
pub fn snapshot_points(
    prompt: usize,
    (cached, known): (usize, usize),
    head: usize,
    spacing: usize,
) -> Vec<SnapshotPoint> {
    let last = last_snapshot_point(prompt);
    let spaced = (spacing..last).step_by(spacing);
    let wanted = [known, head.min(last) / PAGE * PAGE, last];
    let mut points: Vec<usize> = spaced.chain(wanted).collect();
    points.retain(|&tokens| tokens > cached);
    points.sort_unstable();
    points.dedup();
    let point = |tokens| SnapshotPoint {
        tokens,
        kind: match tokens {
            _ if tokens == last => SnapshotKind::End,
            _ if wanted.contains(&tokens) => SnapshotKind::Parting,
            _ => SnapshotKind::Spaced,
        },
    };
    points.into_iter().map(point).collect()
}

/// Tokens of a prompt before its last snapshot.
pub fn last_snapshot_point(prompt: usize) -> usize {
    prompt.saturating_sub(OPENING) / PAGE * PAGE
}

/// Function that names blocks by 128 bits, which clients cannot predict.
pub trait Naming {
    /// Name of the block of `tokens` that follows the block, or starts the domain, named `before`.
    fn name(&self, before: u128, tokens: &[TokenId]) -> u128;
}

/// Names by SipHash with random keys of this process.
#[derive(Debug, Default)]
pub struct Keyed([RandomState; 2]);

impl Naming for Keyed {
    fn name(&self, before: u128, tokens: &[TokenId]) -> u128 {
        let [low, high] = self.0.each_ref();
        let half = |keys: &RandomState| u128::from(keys.hash_one((before, tokens)));
        half(high) << 64 | half(low)
    }
}

/// Reuse of a prefix. Times are in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reuse {
    /// Time of the prefix's last use.
    last: u64,
    /// Mean time between two uses, if there were at least two.
    gap: Option<f64>,
    /// Whether a prompt has gone on from the prefix.
    found: bool,
}

impl Reuse {
    /// Notes a prompt that goes on from the prefix. Prompts of the same millisecond count as one.
    fn note(&mut self, now: u64) {
        let gap = (now - self.last) as f64;
        if gap > 0.0 {
            let mean = |before: f64| before + GAP_WEIGHT * (gap - before);
            self.gap = Some(self.gap.map_or(gap, mean));
        }
        (self.last, self.found) = (now, true);
    }
}

/// Expected reuse of a new prefix, by the reuse of all earlier prefixes.
#[derive(Clone, Copy, Debug)]
struct Unknown {
    /// Mean time between two uses of a prefix, milliseconds.
    gap: f64,
    /// Share of new prefixes that are used again.
    part: f64,
}

impl Unknown {
    fn note_gap(&mut self, gap: f64) {
        self.gap += WEIGHT * (gap - self.gap);
    }

    fn note(&mut self, found: bool) {
        self.part += WEIGHT * (f64::from(u8::from(found)) - self.part);
    }

    /// Expected uses of a prefix per millisecond. The rate falls with the time since the last use
    /// once that exceeds the prefix's usual gap, and with the square of that time beyond the mean
    /// gap of all prefixes: the prefix may never be used again.
    fn rate(&self, reuse: &Reuse, now: u64) -> f64 {
        let part = match (reuse.found, reuse.gap) {
            (true, _) => 1.0,
            (false, Some(_)) => UNFOUND,
            (false, None) => UNFOUND * self.part,
        };
        let (gap, age) = (reuse.gap.unwrap_or(self.gap), (now - reuse.last) as f64);
        let late = gap.max(self.gap) / age.max(1.0);
        part * late.min(1.0) / gap.max(age).max(1.0)
    }
}

/// A cached block: the tokens of one page, after those of its parent.
#[derive(Debug)]
struct Node {
    name: u128,
    domain: u128,
    owner: Owner,
    parent: Option<NodeId>,
    tokens: Box<[TokenId]>,
    page: PageId,
    /// Number of blocks from the root to this block, inclusive.
    depth: usize,
    children: usize,
    /// Number of sequences that use the block's page.
    users: usize,
    reuse: Reuse,
    snapshot: Option<Snapshot>,
}

/// State from which a prompt can go on after a block: recurrent states, or the window's last pages.
#[derive(Clone, Copy, Debug)]
struct Snapshot {
    slot: Slot,
    kind: SnapshotKind,
    owner: Owner,
    /// Number of sequences, and of writes to the tier below, that still have to read the snapshot.
    readers: usize,
    /// Nearest earlier block of the same prefix with a snapshot.
    before: Option<NodeId>,
    /// Number of snapshots whose `before` is this block.
    followers: usize,
}

/// Cached memory of an owner.
#[derive(Debug, Default)]
struct Holding {
    pages: usize,
    /// Pages among `pages` that no sequence uses.
    unused: usize,
    /// Number of snapshots that the owner has.
    states: usize,
    /// Number of states that are lent to the owner for snapshots still to be taken.
    lent: usize,
    /// Time of the owner's last prompt.
    asked: u64,
}

/// Longest cached prefix of a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hit {
    /// Last block that the prompt can go on from; none if there is no such block.
    pub node: Option<NodeId>,
    pub pages: Vec<PageId>,
    /// Snapshot after `node`, if the model has states.
    pub state: Option<Slot>,
    /// Number of leading blocks that are cached: up to `node`, and later ones of the prompt's own
    /// domain. Later blocks of [`COMMON`] do not count: other domains add no snapshots there.
    pub known: usize,
    /// Name of the first block that is not cached.
    absent: Option<u128>,
}

/// Prefix that is worth writing to the tier below.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Last block of the prefix.
    pub node: NodeId,
    /// Number of blocks of the prefix.
    pub depth: usize,
    /// State after the prefix, if the model has states.
    pub state: Option<(SnapshotKind, Slot)>,
}

/// Worth of a snapshot, the least first: at a prompt's end or not, time saved, last use.
type Worth = (bool, Ordered, Reverse<u64>);

/// Float with a total order.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ordered(f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Ordered) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Ordered) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Evictions since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Evicted snapshots, or ends of prompts if the model has no states.
    pub count: usize,
    pub pages: usize,
    /// Sum of the times since the last uses of what was evicted.
    pub age: Duration,
}

/// The prefix cache: a radix tree of blocks.
#[derive(Debug)]
pub struct Prefixes<N = Keyed> {
    naming: N,
    /// Whether a prompt can go on only from a snapshot.
    recurs: bool,
    nodes: Vec<Option<Node>>,
    nodes_free: Vec<NodeId>,
    by_name: HashMap<u128, NodeId>,
    /// Blocks with a snapshot, or, if the model has no states, leaves of the tree.
    ends: BTreeSet<NodeId>,
    holdings: HashMap<Owner, Holding>,
    snapshots_free: Vec<Slot>,
    snapshots_total: usize,
    /// Number of pages of blocks that no sequence uses.
    unused: usize,
    /// Pages of evicted blocks, until the owner of the pages takes them back.
    pages_free: Vec<PageId>,
    now: u64,
    unknown: Unknown,
    /// Last uses of evicted prefixes, by the names of their first blocks.
    remembered: HashMap<u128, u64>,
    forgotten_next: VecDeque<u128>,
    evicted: Evicted,
}

impl<N: Naming> Prefixes<N> {
    /// Empty tree, of a model with states if `recurs`; `snapshots` are the states for snapshots.
    pub fn new(naming: N, recurs: bool, snapshots: impl Iterator<Item = Slot>) -> Self {
        let snapshots_free: Vec<Slot> = snapshots.collect();
        Prefixes {
            naming,
            recurs,
            nodes: Vec::new(),
            nodes_free: Vec::new(),
            by_name: HashMap::new(),
            ends: BTreeSet::new(),
            holdings: HashMap::new(),
            snapshots_total: snapshots_free.len(),
            snapshots_free,
            unused: 0,
            pages_free: Vec::new(),
            now: 0,
            unknown: Unknown {
                gap: millis(UNKNOWN) as f64,
                part: 1.0,
            },
            remembered: HashMap::new(),
            forgotten_next: VecDeque::new(),
            evicted: Evicted::default(),
        }
    }

    /// Whether the model has recurrent states.
    pub fn recurs(&self) -> bool {
        self.recurs
    }

    /// Sets the current time, counted from any fixed start; it never goes back.
    pub fn set_time(&mut self, time: Duration) {
        self.now = self.now.max(millis(time));
    }

    /// Evictions since the start; see [`Evicted`].
    pub fn evicted(&self) -> Evicted {
        self.evicted
    }

    /// Number of pages of all blocks.
    pub fn pages(&self) -> usize {
        self.by_name.len()
    }

    /// Number of pages of blocks that no sequence uses.
    pub fn pages_unused(&self) -> usize {
        self.unused
    }

    /// Number of snapshots that the cache holds, of all owners.
    pub fn snapshots(&self) -> usize {
        self.holdings.values().map(|of| of.states).sum()
    }

    /// Number of free states for snapshots.
    pub fn snapshots_free(&self) -> usize {
        self.snapshots_free.len()
    }

    /// The page of every block.
    pub fn all_pages(&self) -> impl Iterator<Item = PageId> {
        self.nodes.iter().flatten().map(|node| node.page)
    }

    /// The state of every block that has a snapshot.
    #[cfg(any(test, feature = "testing"))]
    pub fn all_states(&self) -> impl Iterator<Item = Slot> {
        let snapshot = self.nodes.iter().flatten().filter_map(|node| node.snapshot);
        snapshot.map(|of| of.slot)
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id as usize].as_ref().expect("a block")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id as usize].as_mut().expect("a block")
    }

    fn snapshot(&self, id: NodeId) -> Snapshot {
        self.node(id).snapshot.expect("a block with a state")
    }

    fn snapshot_mut(&mut self, id: NodeId) -> &mut Snapshot {
        let snapshot = &mut self.node_mut(id).snapshot;
        snapshot.as_mut().expect("a block with a state")
    }

    fn depth(&self, id: Option<NodeId>) -> usize {
        id.map_or(0, |id| self.node(id).depth)
    }

    /// Block of `tokens` after `parent` that `domain` sees, if there is one: one of its own, or
    /// else one of [`COMMON`], so that a sequence finds the blocks again that it started with.
    fn find(&self, domain: u128, parent: Option<NodeId>, tokens: &[TokenId]) -> Found {
        let own = self.find_in(domain, parent, tokens);
        let is_common = |id| self.node(id).domain == COMMON;
        if matches!(own, Found::Absent(_))
            && parent.is_none_or(is_common)
            && let Found::Block(id) = self.find_in(COMMON, parent, tokens)
        {
            return Found::Block(id);
        }
        own
    }

    /// Block of `tokens` after `parent` that belongs to `domain` itself.
    fn find_in(&self, domain: u128, parent: Option<NodeId>, tokens: &[TokenId]) -> Found {
        let before = match parent.map(|parent| self.node(parent)) {
            None => domain,
            Some(parent) if parent.domain == domain => parent.name,
            // After a block of [`COMMON`] each domain's names differ from those in [`COMMON`].
            Some(parent) => parent.name ^ !domain,
        };
        let name = self.naming.name(before, tokens);
        match self.by_name.get(&name) {
            None => Found::Absent(name),
            Some(&id) => {
                let node = self.node(id);
                let same = (node.domain, node.parent) == (domain, parent);
                match same && *node.tokens == *tokens {
                    true => Found::Block(id),
                    false => Found::Taken,
                }
            }
        }
    }

    /// Cached blocks that a domain sees of the whole pages of `tokens`.
    pub fn blocks(&self, domain: u128, tokens: &[TokenId]) -> impl Iterator<Item = NodeId> {
        let mut last = None;
        tokens.chunks_exact(PAGE).map_while(move |tokens| {
            let Found::Block(id) = self.find(domain, last, tokens) else {
                return None;
            };
            last = Some(id);
            last
        })
    }

    /// Whether a prompt can go on from a block.
    pub fn is_end(&self, id: NodeId) -> bool {
        !self.recurs || self.node(id).snapshot.is_some()
    }

    /// Whether a prefix of `blocks` blocks ends with block `id`, and a prompt can go on from there.
    pub fn is_beginning(&self, id: NodeId, blocks: usize) -> bool {
        self.node(id).depth == blocks && self.is_end(id)
    }

    /// Pages of the blocks up to and with `id`, and the state after that block, if there is one.
    pub fn memory_of(&self, id: NodeId) -> (Vec<PageId>, Option<Slot>) {
        let up = std::iter::successors(Some(id), |id| self.node(*id).parent);
        let mut pages: Vec<PageId> = up.map(|id| self.node(id).page).collect();
        pages.reverse();
        (pages, self.node(id).snapshot.map(|of| of.slot))
    }

    /// Prefixes up to a block that are worth writing to the tier below, the longest first; only the
    /// longest if the model has no states.
    pub fn worth_writing(&self, from: NodeId) -> Vec<Written> {
        if !self.recurs {
            return vec![Written {
                node: from,
                depth: self.node(from).depth,
                state: None,
            }];
        }
        let up = std::iter::successors(Some(from), |id| self.node(*id).parent);
        let written = up.filter_map(|id| {
            let node = self.node(id);
            let snapshot = node.snapshot.filter(|of| of.kind != SnapshotKind::Spaced)?;
            Some(Written {
                node: id,
                depth: node.depth,
                state: Some((snapshot.kind, snapshot.slot)),
            })
        });
        written.collect()
    }

    /// Longest cached prefix of `prompt` without its last token, whose logits have to be computed.
    /// The first `restorable` blocks need no snapshot here.
    pub fn look_up(&self, domain: u128, prompt: &[TokenId], restorable: usize) -> Hit {
        let (mut hit, mut pages, mut last, mut known) = (Hit::default(), Vec::new(), None, 0);
        let most = prompt.len().saturating_sub(1) / PAGE * PAGE;
        for tokens in prompt[..most].chunks_exact(PAGE) {
            let id = match self.find(domain, last, tokens) {
                Found::Block(id) => id,
                Found::Absent(name) => {
                    hit.absent = Some(name);
                    break;
                }
                Found::Taken => break,
            };
            let node = self.node(id);
            last = Some(id);
            pages.push(node.page);
            known += 1;
            if node.domain == domain {
                hit.known = known;
            }
            if self.is_end(id) || known <= restorable {
                hit.node = last;
                hit.state = node.snapshot.map(|of| of.slot);
                hit.pages.append(&mut pages);
                hit.known = known;
            }
        }
        hit
    }

    /// Counts one more user of the pages up to a block.
    pub fn pin(&mut self, id: NodeId) {
        self.each_up(Some(id), |node| node.users += 1);
    }

    /// Undoes a `pin`, without dropping blocks.
    pub fn undo_pin(&mut self, id: NodeId) {
        self.each_up(Some(id), |node| node.users -= 1);
    }

    /// Renames the block that has a broken piece, and all blocks after it, so that no prompt finds
    /// them. Without uses these blocks are evicted in time.
    pub fn lose(&mut self, from: NodeId, piece: Piece) {
        let has_it = |id: &NodeId| match piece {
            Piece::Page(page) => self.node(*id).page == page,
            Piece::State(_) | Piece::Window(_) => *id == from,
        };
        let mut up = std::iter::successors(Some(from), |id| self.node(*id).parent);
        let Some(first) = up.find(has_it) else { return };
        let all = (0..self.nodes.len() as NodeId).filter(|id| self.nodes[*id as usize].is_some());
        let lost: Vec<NodeId> = all.filter(|id| self.is_after(*id, first)).collect();
        for id in lost {
            let mut name = self.node(id).name;
            self.by_name.remove(&name);
            loop {
                name = self.naming.name(name, &[]);
                if !self.by_name.contains_key(&name) {
                    break;
                }
            }
            self.by_name.insert(name, id);
            let node = self.node_mut(id);
            (node.name, node.reuse) = (name, Reuse::default());
        }
    }

    /// Whether `id` is the block `before` or goes on from it.
    fn is_after(&self, mut id: NodeId, before: NodeId) -> bool {
        while self.node(id).depth > self.node(before).depth {
            id = self.node(id).parent.expect("blocks before it");
        }
        id == before
    }

    /// Notes that a sequence of `owner` goes on from a hit. Returns the expected reuse of the
    /// blocks that the sequence will add: that of the hit, if this ends a prompt, else that of an
    /// evicted prefix of the same name.
    pub fn note_use(&mut self, hit: &Hit, owner: Owner) -> Reuse {
        let now = self.now;
        if let Some(of) = self.holdings.get_mut(&owner) {
            of.asked = now;
        }
        let goes_on = hit.node.filter(|id| self.ends_prompt(*id));
        if goes_on.is_some_and(|id| !self.node(id).reuse.found) {
            self.unknown.note(true);
        }
        self.each_up(hit.node, |node| node.reuse.note(now));
        let gone = hit.absent.and_then(|name| self.remembered.remove(&name));
        let reuse = match (goes_on, gone) {
            (Some(id), _) => self.node(id).reuse,
            (None, gone) => Reuse {
                last: now,
                gap: gone.map(|last| (now - last) as f64),
                found: false,
            },
        };
        if gone.is_some() {
            self.unknown.note(true);
        }
        if let Some(gap) = reuse.gap {
            self.unknown.note_gap(gap);
        }
        reuse
    }

    /// Whether no cached block follows a block.
    fn ends_prompt(&self, id: NodeId) -> bool {
        let node = self.node(id);
        node.snapshot.map_or(node.children, |of| of.followers) == 0
    }

    /// Counts one user less of the pages up to a block. If the pages are not `sound`, blocks that
    /// nothing else needs are dropped.
    pub fn release(&mut self, id: NodeId, sound: bool) {
        let now = self.now;
        self.each_up(Some(id), |node| {
            node.users -= 1;
            node.reuse.last = now;
        });
        match sound {
            true => self.drop_useless(Some(id)),
            false => self.drop_up(Some(id), |_, node| node.domain != COMMON),
        }
    }

    /// Protects the snapshot of a block until a matching `has_read`.
    pub fn will_read(&mut self, id: NodeId) {
        self.snapshot_mut(id).readers += 1;
    }

    /// Undoes a `will_read`.
    pub fn has_read(&mut self, id: NodeId) {
        self.snapshot_mut(id).readers -= 1;
    }

    /// Applies `change` to a block and all blocks before it.
    fn each_up(&mut self, mut next: Option<NodeId>, change: impl Fn(&mut Node)) {
        while let Some(id) = next {
            let node = self.node_mut(id);
            let was_unused = node.users == 0;
            change(node);
            let (is_unused, owner) = (node.users == 0, node.owner);
            next = node.parent;
            if was_unused != is_unused {
                self.count_unused(owner, is_unused);
            }
        }
    }

    /// Counts a page of an owner as unused, or as used again.
    fn count_unused(&mut self, owner: Owner, is_unused: bool) {
        let of = self.holdings.entry(owner).or_default();
        match is_unused {
            true => (self.unused, of.unused) = (self.unused + 1, of.unused + 1),
            false => (self.unused, of.unused) = (self.unused - 1, of.unused - 1),
        }
    }

    /// Changes the counts of an owner's memory, and forgets the owner once it has no memory.
    fn hand(&mut self, owner: Owner, change: impl FnOnce(&mut Holding)) {
        let holding = self.holdings.entry(owner).or_default();
        change(holding);
        if holding.pages + holding.states + holding.lent == 0 {
            self.holdings.remove(&owner);
        }
    }

    /// Whether an owner has sent no prompt for so long that its memory is not protected any more.
    fn is_away(&self, of: &Holding) -> bool {
        self.now - of.asked > millis(WANTED)
    }

    /// Number of other owners whose cached pages are protected.
    pub fn others(&self, owner: Owner) -> usize {
        let others = self.others_of(owner);
        let others = others.filter(|of| of.pages > 0 && !self.is_away(of));
        others.count()
    }

    /// Cached memory of every other owner but the operator.
    fn others_of(&self, owner: Owner) -> impl Iterator<Item = &Holding> {
        let others = self.holdings.iter();
        let others = others.filter(move |(name, _)| ![owner, OPERATOR].contains(name));
        others.map(|(_, of)| of)
    }

    /// Number of pages that may be evicted for an owner if each other owner is left `share` pages.
    pub fn pages_beyond(&self, owner: Owner, share: usize) -> usize {
        let beyond = |of: &Holding| match self.is_away(of) {
            true => of.unused,
            false => of.unused.min(of.pages.saturating_sub(share)),
        };
        let own = self.holdings.get(&owner).map_or(0, |of| of.unused);
        own + self.others_of(owner).map(beyond).sum::<usize>()
    }

    /// Adds the blocks of `tokens`, whole ones after `last`, with the pages of `table`, and counts
    /// one more user of them. If a block is there already, `table` gets its page and the other page
    /// is freed; a new block is `owner`'s, with `reuse`. Returns the last block and the number of
    /// blocks: fewer if a name is taken by other tokens.
    pub fn insert(
        &mut self,
        whose: (u128, Owner),
        (mut last, reuse): (Option<NodeId>, Reuse),
        tokens: &[TokenId],
        table: &mut [PageId],
    ) -> (Option<NodeId>, usize) {
        for (index, tokens) in tokens.chunks_exact(PAGE).enumerate() {
            let id = match self.find(whose.0, last, tokens) {
                Found::Taken => return (last, index),
                Found::Block(id) => {
                    let page = self.node(id).page;
                    let own = std::mem::replace(&mut table[index], page);
                    if own != page {
                        self.pages_free.push(own);
                    }
                    id
                }
                Found::Absent(name) => self.add(
                    (name, whose.0, whose.1),
                    (last, reuse),
                    tokens,
                    table[index],
                ),
            };
            let node = self.node_mut(id);
            node.users += 1;
            let (was_unused, owner) = (node.users == 1, node.owner);
            if was_unused {
                self.count_unused(owner, false);
            }
            last = Some(id);
        }
        (last, tokens.len() / PAGE)
    }

    fn add(
        &mut self,
        (name, domain, owner): (u128, u128, Owner),
        (parent, reuse): (Option<NodeId>, Reuse),
        tokens: &[TokenId],
        page: PageId,
    ) -> NodeId {
        let now = self.now;
        let node = Node {
            name,
            domain,
            owner,
            parent,
            tokens: tokens.into(),
            page,
            depth: self.depth(parent) + 1,
            children: 0,
            users: 0,
            reuse: Reuse { last: now, ..reuse },
            snapshot: None,
        };
        let id = self.nodes_free.pop().unwrap_or(self.nodes.len() as NodeId);
        if id as usize == self.nodes.len() {
            self.nodes.push(None);
        }
        self.nodes[id as usize] = Some(node);
        self.by_name.insert(name, id);
        self.hand(owner, |of| {
            of.pages += 1;
            of.asked = now;
        });
        self.count_unused(owner, true);
        self.list(id);
        if let Some(parent) = parent {
            self.node_mut(parent).children += 1;
            self.list(parent);
        }
        id
    }

    /// Adds a block to `ends`, or removes it, according to its present state.
    fn list(&mut self, id: NodeId) {
        let node = self.node(id);
        match node.snapshot.is_some() || !self.recurs && node.children == 0 {
            true => self.ends.insert(id),
            false => self.ends.remove(&id),
        };
    }

    /// Makes a state that was lent to `owner` the snapshot of a block of `domain`. A second
    /// snapshot of the same block is freed; so is a snapshot of another domain's block, since that
    /// domain's clients would notice that somebody used the block.
    pub fn add_snapshot(&mut self, whose: (u128, Owner), id: NodeId, state: (SnapshotKind, Slot)) {
        let ((domain, owner), (kind, slot)) = (whose, state);
        let node = self.node(id);
        if node.snapshot.is_some() || node.domain != domain {
            return self.give_back(owner, slot);
        }
        let before = self.last_state(node.parent);
        let followers = self.states_after(before, id);
        for &other in &followers {
            self.snapshot_mut(other).before = Some(id);
        }
        if let Some(before) = before {
            let snapshot = self.snapshot_mut(before);
            snapshot.followers = snapshot.followers + 1 - followers.len();
        }
        self.node_mut(id).snapshot = Some(Snapshot {
            slot,
            kind,
            owner,
            readers: 0,
            before,
            followers: followers.len(),
        });
        self.list(id);
        self.hand(owner, |of| {
            of.lent -= 1;
            of.states += 1;
        });
    }

    /// Last block with a snapshot on the way from the root to `from`.
    fn last_state(&self, mut from: Option<NodeId>) -> Option<NodeId> {
        while let Some(id) = from.filter(|id| self.node(*id).snapshot.is_none()) {
            from = self.node(id).parent;
        }
        from
    }

    /// Blocks with a snapshot after `id` whose nearest earlier snapshot is that of `before`.
    fn states_after(&self, before: Option<NodeId>, id: NodeId) -> Vec<NodeId> {
        let is_after =
            |other: &NodeId| self.is_after(*other, id) && self.snapshot(*other).before == before;
        self.ends.iter().copied().filter(is_after).collect()
    }

    /// Lends `owner` a state for a snapshot at a point of a prompt, which has blocks up to `from`
    /// here and the expected `reuse`: a free state, or that of an evicted snapshot which is worth
    /// less or whose owner has more snapshots. None if all such snapshots are about to be read.
    pub fn lend(
        &mut self,
        (domain, owner): (u128, Owner),
        (from, reuse): (Option<NodeId>, Reuse),
        point: SnapshotPoint,
    ) -> Option<Slot> {
        let has = |of: &Holding| of.states + of.lent;
        let own = self.holdings.get(&owner).map_or(0, has);
        let most = self.snapshots_total / COMMON_PART;
        if self.snapshots_free.is_empty() || domain == COMMON && own >= most {
            // A snapshot that this prompt goes on from counts as one in the middle.
            let before = self.last_state(from);
            let left = before.filter(|id| self.ends_prompt(*id));
            let start = left.map_or(before, |id| self.snapshot(id).before);
            let tokens = (point.tokens / PAGE - self.depth(start)) as f64;
            let asked_now = Reuse {
                last: self.now,
                ..reuse
            };
            let rate = self.unknown.rate(&asked_now, self.now);
            let is_middle = point.kind == SnapshotKind::Spaced;
            let own_worth = (!is_middle, Ordered(tokens * rate), Reverse(u64::MAX));
            let may_go = |id: &NodeId| {
                let (snapshot, is_common) = (self.snapshot(*id), self.node(*id).domain == COMMON);
                let others = || {
                    let of = &self.holdings[&snapshot.owner];
                    domain != COMMON && (has(of) > own || self.is_away(of))
                };
                let eligible = snapshot.owner == owner || others();
                snapshot.readers == 0 && eligible && (!is_common || domain == COMMON)
            };
            let worth = |id: NodeId| self.worth(id, left);
            let may_go = self.ends.iter().copied().filter(may_go);
            let least = may_go.clone().min_by_key(|id| worth(*id));
            let least = least.filter(|id| worth(*id) < own_worth);
            let newcomer = || self.newcomer(may_go.clone()).filter(|_| !is_middle);
            let least = least.or_else(newcomer);
            // For an owner with fewer snapshots, another owner's least valuable snapshot is
            // evicted even if it is worth more than the new one.
            let of_others = may_go.filter(|id| self.snapshot(*id).owner != owner && !is_middle);
            let id = least.or_else(|| of_others.min_by_key(|id| worth(*id)))?;
            self.evict(id, |_| true);
        }
        let (state, now) = (self.snapshots_free.pop(), self.now);
        self.hand(owner, |of| {
            of.lent += usize::from(state.is_some());
            of.asked = now;
        });
        state
    }

    /// Oldest of the latest [`NEWCOMERS`] among `ids`, else the one of least worth.
    fn newcomer(&self, ids: impl Iterator<Item = NodeId> + Clone) -> Option<NodeId> {
        let is_new = |id: &NodeId| {
            let reuse = &self.node(*id).reuse;
            !reuse.found && reuse.gap.is_none()
        };
        let mut new: Vec<NodeId> = ids.clone().filter(is_new).collect();
        new.sort_by_key(|id| Reverse((self.node(*id).reuse.last, *id)));
        let newcomers = NEWCOMERS.min(self.snapshots_total / NEWCOMERS_PART);
        let oldest = new.get(newcomers.checked_sub(1)?).copied();
        oldest.or_else(|| ids.min_by_key(|id| self.worth(*id, None)))
    }

    /// Worth of the snapshot of a block; that of the block `left` counts as one inside of a prompt.
    fn worth(&self, id: NodeId, left: Option<NodeId>) -> Worth {
        let (node, snapshot) = (self.node(id), self.snapshot(id));
        let is_middle = match snapshot.kind {
            SnapshotKind::Parting => false,
            SnapshotKind::End | SnapshotKind::Spaced => snapshot.followers == 1 || left == Some(id),
        };
        let tokens = (node.depth - self.depth(snapshot.before)) as f64;
        let rate = self.unknown.rate(&node.reuse, self.now);
        (!is_middle, Ordered(tokens * rate), Reverse(node.reuse.last))
    }

    /// Adds a state for snapshots.
    pub fn add_state(&mut self, slot: Slot) {
        self.snapshots_free.push(slot);
    }

    /// Removes a free state for snapshots.
    pub fn take_state(&mut self) -> Option<Slot> {
        self.snapshots_free.pop()
    }

    /// Takes back a state that was lent to `owner`.
    pub fn give_back(&mut self, owner: Owner, slot: Slot) {
        self.hand(owner, |of| of.lent -= 1);
        self.snapshots_free.push(slot);
    }

    fn forget_state(&mut self, id: NodeId) {
        let Some(snapshot) = self.node_mut(id).snapshot.take() else {
            return;
        };
        assert_eq!(snapshot.readers, 0, "it is forgotten before it is read");
        self.list(id);
        let followers = self.ends.iter().copied();
        let has_it = |other: &NodeId| {
            let snapshot = self.node(*other).snapshot;
            snapshot.is_some_and(|of| of.before == Some(id))
        };
        for other in followers.filter(has_it).collect::<Vec<_>>() {
            self.snapshot_mut(other).before = snapshot.before;
        }
        if let Some(before) = snapshot.before {
            let of = self.snapshot_mut(before);
            of.followers = of.followers + snapshot.followers - 1;
        }
        self.snapshots_free.push(snapshot.slot);
        self.hand(snapshot.owner, |of| of.states -= 1);
    }

    /// Evicts blocks that no sequence uses until `count` pages are free for `asker`: first blocks
    /// of its own, and of owners that are away or have more than the share, then blocks of all
    /// others, and the operator's last.
    pub fn free_pages(&mut self, count: usize, asker: (Owner, usize)) {
        while self.pages_free.len() < count {
            let may_go = |id: &NodeId| {
                let node = self.node(*id);
                node.users == 0 && node.children == 0
            };
            let ranked = |id: NodeId| {
                let node = self.node(id);
                let rate = self.unknown.rate(&node.reuse, self.now);
                let order = self.eviction(node.owner, asker);
                (order, like(rate), Reverse(node.reuse.last), id)
            };
            let may_go = self.ends.iter().copied().filter(may_go);
            let mut may_go: Vec<_> = may_go.map(ranked).collect();
            may_go.sort_unstable();
            let Some(&(order, ..)) = may_go.first() else {
                return;
            };
            for (.., id) in may_go {
                let owner = self.node(id).owner;
                let goes = |tree: &Self| {
                    // The owner may have had more than the share before, and less now.
                    tree.pages_free.len() < count && tree.eviction(owner, asker) == order
                };
                if !goes(self) {
                    break;
                }
                self.evict(id, goes);
                if self.recurs {
                    // Blocks of a prompt whose end is evicted go before the ends of other prompts.
                    break;
                }
            }
        }
    }

    /// Order in which owners' pages are evicted for `asker`; the least first.
    fn eviction(&self, owner: Owner, (asker, share): (Owner, usize)) -> (bool, Reverse<usize>) {
        let Some(of) = self.holdings.get(&owner) else {
            return (false, Reverse(usize::MAX));
        };
        let beyond = owner == asker || of.pages > share || self.is_away(of);
        // The excess in parts of a share, so that not every evicted page changes the order.
        let parts = match beyond {
            true => usize::MAX,
            false => SHARE_PARTS * of.pages / share.max(1),
        };
        (owner == OPERATOR, Reverse(parts))
    }

    /// Evicts the snapshot of a block, and the blocks that only it needs. If the model has no
    /// states, evicts the block, and earlier ones with the same reuse, as long as `more` is true.
    fn evict(&mut self, id: NodeId, more: impl Fn(&Self) -> bool) {
        let reuse = self.node(id).reuse;
        if !reuse.found && reuse.gap.is_none() {
            self.unknown.note(false);
        }
        self.evicted.count += 1;
        self.evicted.age += Duration::from_millis(self.now - reuse.last);
        let before = self.pages_free.len();
        match self.recurs {
            true => {
                self.forget_state(id);
                self.drop_useless(Some(id));
            }
            false => self.drop_up(Some(id), |tree, node| node.reuse == reuse && more(tree)),
        }
        self.evicted.pages += self.pages_free.len() - before;
    }

    /// Moves the pages of evicted blocks to `to`.
    pub fn take_free(&mut self, to: &mut Vec<PageId>) {
        to.append(&mut self.pages_free);
    }

    /// Drops a block without a snapshot, and the earlier blocks that have no use then.
    fn drop_useless(&mut self, from: Option<NodeId>) {
        if self.recurs {
            self.drop_up(from, |_, node| node.snapshot.is_none());
        }
    }

    /// Drops a block and those before it as long as nothing needs them and `may_go` allows it, and
    /// remembers the last use of the first of them.
    fn drop_up(&mut self, mut next: Option<NodeId>, may_go: impl Fn(&Self, &Node) -> bool) {
        let mut first = None;
        while let Some(id) = next {
            let node = self.node(id);
            if node.children > 0 || node.users > 0 || !may_go(self, node) {
                break;
            }
            first = Some((node.name, node.reuse.last));
            next = node.parent;
            self.remove(id);
        }
        if let Some((name, last)) = first {
            self.remember(name, last);
        }
    }

    fn remember(&mut self, name: u128, last: u64) {
        if self.forgotten_next.len() == GONE_MAX
            && let Some(oldest) = self.forgotten_next.pop_front()
        {
            self.remembered.remove(&oldest);
        }
        self.forgotten_next.push_back(name);
        self.remembered.insert(name, last);
    }

    fn remove(&mut self, id: NodeId) {
        self.forget_state(id);
        let node = self.nodes[id as usize].take().expect("a block");
        assert!(node.children == 0 && node.users == 0, "it is in use");
        self.ends.remove(&id);
        self.nodes_free.push(id);
        self.by_name.remove(&node.name);
        self.pages_free.push(node.page);
        self.count_unused(node.owner, false);
        self.hand(node.owner, |of| of.pages -= 1);
        if let Some(parent) = node.parent {
            self.node_mut(parent).children -= 1;
            self.list(parent);
        }
    }
}

/// Rounds a rate so that rates that differ by less than half compare as equal: of blocks with equal
/// rates the one used last is evicted: where prompts recur in turn it is needed last.
fn like(rate: f64) -> Ordered {
    Ordered((2.0 * rate.log2()).floor())
}

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}

/// Result of looking for a block.
enum Found {
    Block(NodeId),
    /// No cached block has these tokens; name that the block would have.
    Absent(u128),
    /// Another block has the name.
    Taken,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_taken_where_prompts_diverge_after_heads_at_the_end_and_at_intervals() {
        use SnapshotKind::{End, Parting, Spaced};
        const SPACING: usize = 4 * PAGE;
        let points = |prompt, found, head| {
            let points = snapshot_points(prompt, found, head, SPACING).into_iter();
            points
                .map(|point| (point.tokens, point.kind))
                .collect::<Vec<_>>()
        };
        assert!(points(10, (0, 0), 0).is_empty());
        assert!(points(PAGE + OPENING - 1, (0, 0), 0).is_empty());
        assert_eq!(points(PAGE + OPENING, (0, 0), 0), [(PAGE, End)]);
        let parting = points(4 * PAGE, (0, PAGE), 0);
        assert_eq!(parting, [(PAGE, Parting), (3 * PAGE, End)]);
        let parting = points(4 * PAGE, (PAGE, 2 * PAGE), 0);
        assert_eq!(parting, [(2 * PAGE, Parting), (3 * PAGE, End)]);
        assert!(points(4 * PAGE, (3 * PAGE, 3 * PAGE), 0).is_empty());
        let head = points(4 * PAGE, (0, 0), 2 * PAGE - 1);
        assert_eq!(head, [(PAGE, Parting), (3 * PAGE, End)]);
        let head = points(4 * PAGE, (2 * PAGE, 2 * PAGE), 2 * PAGE + 1);
        assert_eq!(head, [(3 * PAGE, End)], "it is cached already");
        assert_eq!(points(4 * PAGE, (0, 0), usize::MAX), [(3 * PAGE, End)]);
        let long = points(2 * SPACING + PAGE, (0, 0), 0);
        assert_eq!(long, [(SPACING, Spaced), (2 * SPACING, End)]);
    }

    #[test]
    fn names_are_keyed() {
        let [a, b] = [Keyed::default(), Keyed::default()];
        assert_eq!(a.name(1, &[2]), a.name(1, &[2]));
        assert_ne!(a.name(1, &[2]), b.name(1, &[2]));
        assert_ne!(a.name(1, &[2]), a.name(2, &[2]));
    }
}
