//! Largest values of facts: generous by far, and so small that no figure of a target leaves 64 bits
//! and no constant of device code leaves 32. A test takes all of them at once.

/// Time between two tokens: a minute.
pub(crate) const MILLISECONDS: u64 = 60_000;
/// `hidden` and inner widths, elements.
pub(crate) const WIDTH: u64 = 1 << 17;
/// Heads of a kind.
pub(crate) const HEADS: u64 = 1 << 10;
/// Elements of a head, of a key or of a value.
pub(crate) const HEAD_DIM: u64 = 1 << 11;
/// Tokens of the vocabulary.
pub(crate) const VOCAB: u64 = 1 << 22;
/// Decoder layers.
pub(crate) const LAYERS: u64 = 1 << 9;
/// Routed experts of a layer.
pub(crate) const EXPERTS: u64 = 1 << 12;
/// Taps of a convolution.
pub(crate) const TAPS: u64 = 1 << 6;
/// Positions of a model, tokens.
pub(crate) const POSITIONS: u64 = 1 << 27;
/// Tokens of all KV pages.
pub(crate) const KV_TOKENS: u64 = 1 << 28;
/// Sequences with a slot, and requests that wait for one.
pub(crate) const REQUESTS: u64 = 1 << 16;
/// Tensors of a vision tower.
pub(crate) const TENSORS: u64 = 1 << 20;
/// Bytes of a file, of a vision tower, or of a memory.
pub(crate) const BYTES: u64 = 1 << 50;
/// Bytes per second.
pub(crate) const BANDWIDTH: u64 = 1 << 50;
/// Multiprocessors, and resident threads of one.
pub(crate) const SMS: u64 = 1 << 14;
/// Shared memory of a block, bytes.
pub(crate) const SHARED_BYTES: u64 = 1 << 24;
/// Number of an architecture, as 121 of `sm_121a`.
pub(crate) const CAPABILITY: u32 = 999;
/// RoPE base.
pub(crate) const ROPE_THETA: f64 = 1e12;
/// Bound of logits.
pub(crate) const LOGITS: f64 = 1e6;
/// Epsilon of norms.
pub(crate) const NORM_EPS: f64 = 1e-2;
/// Factors of RoPE's scaling.
pub(crate) const SCALING: f64 = 1e6;
