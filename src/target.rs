//! The constants of the one target this binary is built for.
//!
//! Everything that is fixed when the binary is built is imported from here and from nowhere else.
//! The constants themselves are generated from `targets/` by the `manifest` crate; the types that
//! they use are below.

use std::borrow::Cow;

#[path = "../build/manifest/src/facts.rs"]
mod facts;
#[path = "../build/manifest/src/table.rs"]
mod table;

pub use facts::{FAMILY, Fact, contradiction, unknown_maths};
pub use table::{
    Dtype, FP8_BLOCK, Format, Kind, NVFP4_GROUP, Piece, Purpose, Role, Row, Run, Site, Sites,
};

/// Kind of a decoder layer's token mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Gated DeltaNet: causal conv1d and a recurrent matrix state.
    Gdn,
    /// Attention over all positions.
    Attention,
    /// Attention over a window of positions.
    Sliding,
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvFormat {
    /// 4 bytes an element.
    F32,
    /// 2 bytes an element.
    Bf16,
}

/// One file of the checkpoint revision this binary was built for.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointFile {
    /// File name inside the weights directory.
    pub name: &'static str,
    /// Exact size in bytes.
    pub bytes: u64,
    /// Lower-case hexadecimal SHA-256 of the content.
    pub sha256: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/target.rs"));
