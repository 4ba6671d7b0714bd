//! The operations that models are written in, each with its formula, shapes and effects.
//!
//! [`Device`] is storage and order, [`Footprint`] the memory that it costs, [`Draft`] what runs
//! ahead of the host. Beside them stand groups of operations: [`Dense`], and for each kind of block
//! [`Attend`], [`Delta`], [`Route`] and [`Gate`], generic over the block's shape (`crate::shapes`).
//! Operations and shapes of one block alone stand with it, in `crate::blocks`. A model needs the
//! groups of its blocks.
//!
//! A backend implements the primitives. Fused operations have a default body that defines them by
//! primitives; a backend may override any of them, and must then agree with the default.
//!
//! Notation: `R` rows of the step, `x[r, i]` element `i` of row `r`, `H` the hidden size.
//! Every result row is a function of its own sequence only, never of the other rows of the step.
//! Outputs (`out`) get the rows of their input; their storage is reused from step to step. Shapes
//! that do not fit are programming errors and abort.

mod attend;
mod batch;
mod cost;
mod delta;
mod dense;
mod device;
mod draft;
mod footprint;
mod gate;
mod route;

pub use attend::{Attend, Qkv, store_and_attend};
pub use batch::{Batch, PAGE_GROUPS, SeqSpan};
pub use cost::Cost;
pub use delta::{Decay, Delta, DeltaNet, GatedDelta, Taps};
pub use dense::{BesideNorms, Dense, Ends, Hidden, cap, norm_and_rank, norm_and_rank_by};
pub use device::{Copied, Device, PoolRegion, Program, Side};
pub use draft::Draft;
pub use footprint::{Bound, Footprint, HostMemory};
pub use gate::{Both, Gate};
pub use route::{ExpertSource, Logits, Route};

pub use step::ONE_BY_ONE;

use crate::target::{DRAFTS, MAX_SEQUENCES, PREFILL_TOKENS, TOP_K, VOCAB};

/// Positions of a cell of a sequence, counted from the sequence's start. All rows that a prompt has
/// in a cell are in one step.
pub const CELL: usize = 64;

/// Rows of logits that are computed at once: as many as a step of one row per sequence gives, so
/// that logits need no more memory than such a step.
pub const LOGITS_ROWS_MAX: usize = MAX_SEQUENCES;
/// Largest number of rows of a step whose logits are wanted: one of each sequence, and drafts.
pub const ENDS_MAX: usize = MAX_SEQUENCES + DRAFTS;

/// Largest number of rows of a step: a full prefill, one token of every sequence, and drafts.
pub const ROWS_MAX: usize = PREFILL_TOKENS + ENDS_MAX;

/// Largest number of rows of a recorded step of drafts: steps with more rows are of many sequences,
/// where there is little to gain.
pub const VERIFIED_MAX: usize = if ENDS_MAX < 16 { ENDS_MAX } else { 16 };

/// Elements of a row that [`Dense::top_k`] leaves.
pub const RANKED: usize = 2 * TOP_K + 1;
// Ids are stored as F32, which has whole numbers up to 2^24.
const _: () = assert!(TOP_K <= VOCAB && VOCAB <= 1 << 24);
