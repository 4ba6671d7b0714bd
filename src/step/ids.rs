//! Indices of states and pages that a model stores for sequences.

/// Index of a recurrent state, below `Facts::states`. Sequences own the states below
/// `Facts::sequences`; then come snapshots of prompts, then states of drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(pub u32);

/// Index of a KV page of `PAGE` tokens, below `Executor::pages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageId(pub u32);
