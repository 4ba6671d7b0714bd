//! The constants of the one target this binary is built for.
//!
//! Everything that is fixed when the binary is built is imported from here and from nowhere else.
//! The constants themselves are generated from `targets/` by the `manifest` crate; the types that
//! they use are below.

use std::borrow::Cow;

#[path = "../build/manifest/src/facts.rs"]
mod facts;

pub use facts::{Fact, contradiction};

/// Kind of a decoder layer's token mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Gated DeltaNet: causal conv1d and a recurrent matrix state.
    Gdn,
    /// Full attention with an output gate.
    Attention,
}

/// How the elements of a weight matrix are stored in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `X.weight` BF16 `[N, K]`.
    Bf16,
    /// compressed-tensors NVFP4: `X.weight_packed`, `X.weight_scale`, `X.weight_global_scale`
    /// (divide).
    Nvfp4CompressedTensors,
    /// modelopt NVFP4: `X.weight`, `X.weight_scale`, `X.weight_scale_2` (multiply).
    Nvfp4Modelopt,
    /// FP8 E4M3 with a BF16 scale per 128x128 block: `X.weight`, `X.weight_scale_inv` (multiply).
    Fp8Block128,
}

impl Format {
    /// E2M1 codes with an E4M3 scale per 16 columns.
    pub const fn is_nvfp4(self) -> bool {
        matches!(self, Format::Nvfp4CompressedTensors | Format::Nvfp4Modelopt)
    }
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
