//! Beginnings of prompts that are kept for prompts to come: a radix tree of blocks.
//!
//! A block is the tokens of a page behind those of its parent, in a domain that nobody else sees:
//! one per API key. All see one more, [`COMMON`], which the operator's prompts are in: what a
//! domain has of its own may be behind blocks of that. A block's page holds the keys and values
//! that any prompt has there which begins so, with the same bits: rows of a prompt depend on the
//! tokens before them alone, and a block is whole cells. A model with recurrent states goes on only
//! where the state behind a block was kept. Blocks are found by names that are keyed, and their
//! tokens compared.
//!
//! Blocks that sequences use stay. Others go when their place is needed, those that were used
//! longest ago, of the owner that has most: who computed them, whatever domains that was in. So a
//! flood of one key leaves the others their share: a state is taken from who has more than the
//! asker, and further sequences of an owner leave to the others what [`KEPT_PART`] says.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};

use super::request::COMMON;
use crate::executor::{PageId, Slot, TokenId};
use crate::target::PAGE;

/// Index of a block.
pub type NodeId = u32;

/// Number of who computed a block or a state, and answers for its room.
pub type Owner = u64;

/// Last tokens of a prompt that a state to be kept is before: the template's opening of a reply,
/// where the next turn of a conversation may differ, has fewer.
const OPENING: usize = 8;
/// Part of all pages, one in so many, that is left to what others keep, in equal parts, by the
/// sequences of an owner that has one running already.
pub const KEPT_PART: usize = 2;
/// Tokens of a long prompt between states that are kept of it.
const SPACING: usize = crate::target::PREFILL_TOKENS;

/// Tokens of a prompt behind which its state is kept, ascending: where it parts from one before,
/// which had `known` of its tokens, where those may part from it that have its `head`, before its
/// end, and now and then.
pub fn places(prompt: usize, (cached, known): (usize, usize), head: usize) -> Vec<usize> {
    let last = prompt.saturating_sub(OPENING) / PAGE * PAGE;
    let spaced = (SPACING..last).step_by(SPACING);
    let head = head.min(last) / PAGE * PAGE;
    let mut places: Vec<usize> = spaced.chain([known, head, last]).collect();
    places.retain(|&place| place > cached);
    places.sort_unstable();
    places.dedup();
    places
}

/// Names blocks by 128 bits that nobody can foresee.
pub trait Naming {
    /// Name of `tokens` behind the block, or in the domain, that `before` names.
    fn name(&self, before: u128, tokens: &[TokenId]) -> u128;
}

/// SipHash with keys of this process.
#[derive(Debug, Default)]
pub struct Keyed([RandomState; 2]);

impl Naming for Keyed {
    fn name(&self, before: u128, tokens: &[TokenId]) -> u128 {
        let [low, high] = self.0.each_ref();
        let half = |keys: &RandomState| u128::from(keys.hash_one((before, tokens)));
        half(high) << 64 | half(low)
    }
}

/// A block.
#[derive(Debug)]
struct Node {
    name: u128,
    domain: u128,
    owner: Owner,
    parent: Option<NodeId>,
    tokens: Box<[TokenId]>,
    page: PageId,
    children: usize,
    /// Sequences that use its page.
    users: usize,
    /// Last time that a sequence did, by a count of uses.
    used: u64,
    kept: Option<Kept>,
}

/// The recurrent state behind a block.
#[derive(Clone, Copy, Debug)]
struct Kept {
    slot: Slot,
    owner: Owner,
    /// Sequences that are still to read it.
    readers: usize,
    used: u64,
}

/// Room of an owner, and its blocks of which page or state may go, longest unused first.
#[derive(Debug, Default)]
struct Holding {
    pages: usize,
    /// Pages of them that no sequence uses.
    unused: usize,
    /// States behind blocks, and those that are lent for prompts to come.
    states: usize,
    lent: usize,
    /// Blocks whose page may go.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Blocks whose state may.
    idle: BTreeSet<(u64, NodeId)>,
}

/// A beginning that a prompt shares with one before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// Its last block; none if there is nothing to go on from.
    pub node: Option<NodeId>,
    pub pages: Vec<PageId>,
    /// The state to go on from.
    pub state: Option<Slot>,
    /// Blocks that are known, though there may be no state to go on from behind the last of them;
    /// behind a common one nobody else's is kept.
    pub known: usize,
}

/// The tree.
#[derive(Debug)]
pub struct Prefixes<N = Keyed> {
    naming: N,
    /// Whether a prompt goes on only from a kept state.
    recurs: bool,
    nodes: Vec<Option<Node>>,
    nodes_free: Vec<NodeId>,
    by_name: HashMap<u128, NodeId>,
    holdings: HashMap<Owner, Holding>,
    snapshots_free: Vec<Slot>,
    /// Pages of blocks that no sequence uses.
    unused: usize,
    uses: u64,
    /// Pages of blocks that went, for their next owner.
    pages_free: Vec<PageId>,
}

impl<N: Naming> Prefixes<N> {
    /// An empty tree, of a model that has recurrent states if `recurs`, and room for `snapshots`.
    pub fn new(naming: N, recurs: bool, snapshots: impl Iterator<Item = Slot>) -> Self {
        Prefixes {
            naming,
            recurs,
            nodes: Vec::new(),
            nodes_free: Vec::new(),
            by_name: HashMap::new(),
            holdings: HashMap::new(),
            snapshots_free: snapshots.collect(),
            unused: 0,
            uses: 0,
            pages_free: Vec::new(),
        }
    }

    /// See `new`.
    pub fn recurs(&self) -> bool {
        self.recurs
    }

    /// Pages of all blocks.
    pub fn pages(&self) -> usize {
        self.by_name.len()
    }

    /// Pages that may go.
    pub fn pages_unused(&self) -> usize {
        self.unused
    }

    /// States that are kept behind blocks.
    pub fn snapshots(&self) -> usize {
        self.holdings.values().map(|of| of.states).sum()
    }

    /// States that are neither kept nor lent.
    pub fn snapshots_free(&self) -> usize {
        self.snapshots_free.len()
    }

    /// The page of every block.
    pub fn all_pages(&self) -> impl Iterator<Item = PageId> {
        self.nodes.iter().flatten().map(|node| node.page)
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id as usize].as_ref().expect("a block")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id as usize].as_mut().expect("a block")
    }

    /// The block of `tokens` behind `parent` that `domain` sees, if there is one. Its own counts
    /// before the common one: what a sequence began with it finds again while that is held.
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

    /// The block of `domain` itself.
    fn find_in(&self, domain: u128, parent: Option<NodeId>, tokens: &[TokenId]) -> Found {
        let before = match parent.map(|parent| self.node(parent)) {
            None => domain,
            Some(parent) if parent.domain == domain => parent.name,
            // Behind a common block each domain has names of its own, none of them the common ones.
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

    /// The longest kept beginning of `prompt`, but its last token: somebody has to compute its
    /// logits.
    pub fn look_up(&self, domain: u128, prompt: &[TokenId]) -> Hit {
        let (mut hit, mut pages, mut last, mut known) = (Hit::default(), Vec::new(), None, 0);
        let most = prompt.len().saturating_sub(1) / PAGE * PAGE;
        for tokens in prompt[..most].chunks_exact(PAGE) {
            let Found::Block(id) = self.find(domain, last, tokens) else {
                break;
            };
            let node = self.node(id);
            last = Some(id);
            pages.push(node.page);
            known += 1;
            if node.domain == domain {
                hit.known = known;
            }
            if !self.recurs || node.kept.is_some() {
                hit.node = last;
                hit.state = node.kept.map(|kept| kept.slot);
                hit.pages.append(&mut pages);
                hit.known = known;
            }
        }
        hit
    }

    /// Has a sequence use the pages up to a block.
    pub fn hold(&mut self, id: NodeId) {
        self.each_up(Some(id), |node, _| node.users += 1);
    }

    /// Has a sequence use them no more.
    pub fn release(&mut self, id: NodeId) {
        self.each_up(Some(id), |node, uses| {
            node.users -= 1;
            node.used = uses;
        });
        self.drop_useless(Some(id));
    }

    /// Has a sequence read the state behind a block, later.
    pub fn will_read(&mut self, id: NodeId) {
        self.change_kept(id, |kept, uses| {
            kept.readers += 1;
            kept.used = uses;
        });
    }

    /// It has read it.
    pub fn has_read(&mut self, id: NodeId) {
        self.change_kept(id, |kept, _| kept.readers -= 1);
    }

    fn change_kept(&mut self, id: NodeId, change: impl FnOnce(&mut Kept, u64)) {
        self.uses += 1;
        let uses = self.uses;
        self.unlist(id);
        if let Some(kept) = &mut self.node_mut(id).kept {
            change(kept, uses);
        }
        self.list(id);
    }

    /// Applies `change` to a block and all before it.
    fn each_up(&mut self, mut next: Option<NodeId>, change: impl Fn(&mut Node, u64)) {
        self.uses += 1;
        let uses = self.uses;
        while let Some(id) = next {
            self.unlist(id);
            let node = self.node_mut(id);
            change(node, uses);
            next = node.parent;
            self.list(id);
        }
    }

    /// Takes a block from the lists of what may go.
    fn unlist(&mut self, id: NodeId) {
        let node = self.nodes[id as usize].as_ref().expect("a block");
        let unused = usize::from(node.users == 0);
        self.unused -= unused;
        let holding = self.holdings.entry(node.owner).or_default();
        holding.unused -= unused;
        holding.leaves.remove(&(node.used, id));
        if let Some(kept) = node.kept {
            let holding = self.holdings.entry(kept.owner).or_default();
            holding.idle.remove(&(kept.used, id));
        }
    }

    /// Puts it there, if it may go.
    fn list(&mut self, id: NodeId) {
        let node = self.nodes[id as usize].as_ref().expect("a block");
        let unused = usize::from(node.users == 0);
        self.unused += unused;
        let holding = self.holdings.entry(node.owner).or_default();
        holding.unused += unused;
        if node.users == 0 && node.children == 0 {
            holding.leaves.insert((node.used, id));
        }
        if let Some(kept) = node.kept.filter(|kept| kept.readers == 0) {
            let holding = self.holdings.entry(kept.owner).or_default();
            holding.idle.insert((kept.used, id));
        }
    }

    /// Changes what an owner has, and forgets who has nothing.
    fn hand(&mut self, owner: Owner, change: impl FnOnce(&mut Holding)) {
        let holding = self.holdings.entry(owner).or_default();
        change(holding);
        if holding.pages + holding.states + holding.lent == 0 {
            self.holdings.remove(&owner);
        }
    }

    /// Number of other owners that keep pages.
    pub fn others(&self, owner: Owner) -> usize {
        let others = self.holdings.iter().filter(|(name, _)| **name != owner);
        others.filter(|(_, of)| of.pages > 0).count()
    }

    /// Pages that may go where each other owner is left `share` of its own.
    pub fn pages_beyond(&self, owner: Owner, share: usize) -> usize {
        let beyond = |(name, of): (&Owner, &Holding)| match *name == owner {
            true => of.unused,
            false => of.unused.min(of.pages.saturating_sub(share)),
        };
        self.holdings.iter().map(beyond).sum()
    }

    /// Keeps the blocks of `tokens`, which are whole ones, with the pages of `table`. Where a block
    /// is known `table` gets its page, and its own goes free; a new one is `owner`'s. Returns the
    /// last block and how many there are: fewer where a name is taken.
    pub fn insert(
        &mut self,
        (domain, owner): (u128, Owner),
        tokens: &[TokenId],
        table: &mut [PageId],
    ) -> (Option<NodeId>, usize) {
        let mut last = None;
        for (index, tokens) in tokens.chunks_exact(PAGE).enumerate() {
            let id = match self.find(domain, last, tokens) {
                Found::Taken => return (last, index),
                Found::Block(id) => {
                    let page = self.node(id).page;
                    let own = std::mem::replace(&mut table[index], page);
                    if own != page {
                        self.pages_free.push(own);
                    }
                    id
                }
                Found::Absent(name) => {
                    let names = (name, domain, owner);
                    self.add(names, last, tokens, table[index])
                }
            };
            last = Some(id);
        }
        (last, tokens.len() / PAGE)
    }

    fn add(
        &mut self,
        (name, domain, owner): (u128, u128, Owner),
        parent: Option<NodeId>,
        tokens: &[TokenId],
        page: PageId,
    ) -> NodeId {
        let node = Node {
            name,
            domain,
            owner,
            parent,
            tokens: tokens.into(),
            page,
            children: 0,
            users: 0,
            used: self.uses,
            kept: None,
        };
        let id = self.nodes_free.pop().unwrap_or(self.nodes.len() as NodeId);
        if id as usize == self.nodes.len() {
            self.nodes.push(None);
        }
        self.nodes[id as usize] = Some(node);
        self.by_name.insert(name, id);
        self.hand(owner, |of| of.pages += 1);
        self.list(id);
        if let Some(parent) = parent {
            self.unlist(parent);
            self.node_mut(parent).children += 1;
            self.list(parent);
        }
        id
    }

    /// Keeps a state that was lent to `owner` behind a block of `domain`. A second one of the same
    /// block goes free, and so does one of a common block that is not the operator's: others would
    /// see who was there.
    pub fn keep(&mut self, (domain, owner): (u128, Owner), id: NodeId, slot: Slot) {
        let node = self.node(id);
        if node.kept.is_some() || node.domain != domain {
            return self.give_back(owner, slot);
        }
        self.uses += 1;
        let used = self.uses;
        self.unlist(id);
        self.node_mut(id).kept = Some(Kept {
            slot,
            owner,
            readers: 0,
            used,
        });
        self.list(id);
        self.hand(owner, |of| {
            of.lent -= 1;
            of.states += 1;
        });
    }

    /// The block `count` blocks from the root on the way to `id`, which is `of` blocks from it.
    pub fn ancestor(&self, id: NodeId, count: usize, of: usize) -> NodeId {
        let up = |id: NodeId, _| self.node(id).parent.expect("blocks before it");
        (count..of).fold(id, up)
    }

    /// Lends `owner` a state that nobody has, or that was unused longest of its own or of who has
    /// more; none if there is none such that is not about to be read.
    pub fn lend(&mut self, owner: Owner) -> Option<Slot> {
        if self.snapshots_free.is_empty() {
            let has = |of: &Holding| of.states + of.lent;
            let own = self.holdings.get(&owner).map_or(0, has);
            let may_go = self
                .holdings
                .iter()
                .filter(|(name, of)| !of.idle.is_empty() && (**name == owner || has(of) > own));
            let (_, most) = may_go.max_by_key(|(name, of)| (has(of), **name))?;
            let &(_, id) = most.idle.first()?;
            self.forget_state(id);
            self.drop_useless(Some(id));
        }
        let state = self.snapshots_free.pop();
        self.hand(owner, |of| of.lent += usize::from(state.is_some()));
        state
    }

    /// Takes back what was lent to `owner`.
    pub fn give_back(&mut self, owner: Owner, slot: Slot) {
        self.hand(owner, |of| of.lent -= 1);
        self.snapshots_free.push(slot);
    }

    fn forget_state(&mut self, id: NodeId) {
        self.unlist(id);
        let node = self.node_mut(id);
        let kept = node.kept.take();
        self.list(id);
        if let Some(kept) = kept {
            assert_eq!(kept.readers, 0, "a state is forgotten that is to be read");
            self.snapshots_free.push(kept.slot);
            self.hand(kept.owner, |of| of.states -= 1);
        }
    }

    /// Drops blocks until `count` pages are free for `owner`, of those that no sequence uses: its
    /// own, and those of others who have more than `share`, before the rest.
    pub fn free_pages(&mut self, count: usize, (owner, share): (Owner, usize)) {
        while self.pages_free.len() < count {
            let may_go = self.holdings.iter().filter(|(_, of)| !of.leaves.is_empty());
            let rank = |(name, of): &(&Owner, &Holding)| {
                let first = **name == owner || of.pages > share;
                (first, of.pages, **name)
            };
            let most = may_go.max_by_key(rank);
            let Some(&(_, id)) = most.and_then(|(_, of)| of.leaves.first()) else {
                return;
            };
            let parent = self.node(id).parent;
            self.remove(id);
            self.drop_useless(parent);
        }
    }

    /// Moves the pages of blocks that went.
    pub fn take_free(&mut self, to: &mut Vec<PageId>) {
        to.append(&mut self.pages_free);
    }

    /// Drops a block that no prompt can go on from, and those before it that are so then.
    fn drop_useless(&mut self, mut next: Option<NodeId>) {
        while let Some(id) = next.filter(|_| self.recurs) {
            let node = self.node(id);
            if node.children > 0 || node.users > 0 || node.kept.is_some() {
                return;
            }
            next = node.parent;
            self.remove(id);
        }
    }

    fn remove(&mut self, id: NodeId) {
        self.forget_state(id);
        self.unlist(id);
        let node = self.nodes[id as usize].take().expect("a block");
        assert!(node.children == 0 && node.users == 0, "it is in use");
        self.nodes_free.push(id);
        self.by_name.remove(&node.name);
        self.pages_free.push(node.page);
        self.hand(node.owner, |of| of.pages -= 1);
        if let Some(parent) = node.parent {
            self.unlist(parent);
            self.node_mut(parent).children -= 1;
            self.list(parent);
        }
    }
}

/// A block that is looked for.
enum Found {
    Block(NodeId),
    /// It is not there; the name that it would have.
    Absent(u128),
    /// Another block has its name.
    Taken,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_kept_where_prompts_part_behind_heads_before_the_end_and_now_and_then() {
        assert!(places(10, (0, 0), 0).is_empty());
        assert!(places(PAGE + OPENING - 1, (0, 0), 0).is_empty());
        assert_eq!(places(PAGE + OPENING, (0, 0), 0), [PAGE]);
        assert_eq!(places(4 * PAGE, (0, PAGE), 0), [PAGE, 3 * PAGE]);
        assert_eq!(places(4 * PAGE, (PAGE, 2 * PAGE), 0), [2 * PAGE, 3 * PAGE]);
        assert!(places(4 * PAGE, (3 * PAGE, 3 * PAGE), 0).is_empty());
        let head = places(4 * PAGE, (0, 0), 2 * PAGE - 1);
        assert_eq!(head, [PAGE, 3 * PAGE]);
        let head = places(4 * PAGE, (2 * PAGE, 2 * PAGE), 2 * PAGE + 1);
        assert_eq!(head, [3 * PAGE], "it is kept already");
        let whole = places(4 * PAGE, (0, 0), usize::MAX);
        assert_eq!(whole, [3 * PAGE]);
        let long = places(2 * SPACING + PAGE, (0, 0), 0);
        assert_eq!(long, [SPACING, 2 * SPACING]);
    }

    #[test]
    fn names_are_keyed() {
        let [a, b] = [Keyed::default(), Keyed::default()];
        assert_eq!(a.name(1, &[2]), a.name(1, &[2]));
        assert_ne!(a.name(1, &[2]), b.name(1, &[2]));
        assert_ne!(a.name(1, &[2]), a.name(2, &[2]));
    }
}
