//! Checkpoints: safetensors files, checked against the target before a weight is read.

mod checkpoint;
mod draw;
mod error;
mod file;
pub mod format;
pub mod header;
pub mod layout;
pub mod pipeline;
mod progress;
mod seeded;
mod source;
mod stored;
mod synth;
#[cfg(test)]
mod tests;

pub use checkpoint::{
    Checkpoint, MatrixSource, VectorSource, open, open_embedded, open_layers, verify_digests,
};
pub use draw::LAYER_GROWTH;
pub use error::WeightsError;
pub use layout::{
    AttentionSpec, GDN_QKV, GDN_VALUES, GdnSpec, LayerSpec, MatrixSpec, MixerSpec, ModelSpec,
    MoeSpec, MtpSpec, VectorSpec,
};
pub use progress::{Progress, Stage};
pub use seeded::{open_seeded, open_seeded_layers};
pub use stored::{Bits, Global, Stored};
pub use synth::{SynthError, Written, is_drawn, write as write_synthetic};
