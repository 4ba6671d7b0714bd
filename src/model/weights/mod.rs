//! Checkpoints: safetensors files, checked against the target before a weight is read.

mod checkpoint;
pub mod codings;
mod config;
mod digests;
mod draw;
mod error;
mod file;
mod folder;
pub mod format;
mod git;
pub mod header;
pub mod hex;
mod index;
mod layout;
mod locate;
mod names;
mod origin;
pub mod packed;
pub mod pipeline;
mod progress;
pub mod rounding;
mod seeded;
mod sniff;
mod source;
mod stored;
mod synth;
#[cfg(test)]
pub(crate) mod tests;

pub use checkpoint::{
    Checkpoint, MatrixSource, VectorSource, check_whole, open, open_embedded, open_layers,
    open_seeded, open_seeded_layers,
};
pub use digests::{
    FileDigest, SMALL, Verdict, block, listed, may_be_listed, of_directory, of_embedded,
    revisions_of,
};
pub use draw::LAYER_GROWTH;
pub use error::{WeightsError, Wrong, download};
pub use folder::Folder;
pub use layout::{Layout, Weight};
pub use locate::{Located, incomplete, locate};
pub use names::shortest;
pub use origin::{Revision, Witness};
pub use packed::{Packed, PackedStack, Reader, is_packed};
pub use progress::{Progress, Stage};
pub use sniff::foreign;
pub use stored::{Bits, Factors, Stored};
pub use synth::{SynthError, Written, is_drawn, write as write_synthetic};
