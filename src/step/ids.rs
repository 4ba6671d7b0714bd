//! Indices of what a model stores of sequences.

/// Index of a recurrent state, below `Facts::states`. Sequences own those below
/// `Facts::sequences`; after them come snapshots of prompts, then those of drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(pub u32);

/// Index of a KV page of `PAGE` tokens, below `Executor::pages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageId(pub u32);
