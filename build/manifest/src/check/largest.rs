//! Largest values that a manifest may state: generous by far, and so small that no figure of a
//! target exceeds 64 bits and no constant of device code 32. A test takes all of them at once.

/// Time between two tokens, milliseconds: a minute.
pub(crate) const MILLISECONDS: u64 = 60_000;
/// Width of hidden states, and inner widths, elements.
pub(crate) const WIDTH: u64 = 1 << 17;
/// Heads of queries, keys or values in a layer.
pub(crate) const HEADS: u64 = 1 << 10;
/// Width of a head, of a key or of a value, elements.
pub(crate) const HEAD_DIM: u64 = 1 << 11;
/// Size of a vocabulary, tokens.
pub(crate) const VOCAB: u64 = 1 << 22;
/// Number of decoder layers.
pub(crate) const LAYERS: u64 = 1 << 9;
/// Routed experts of one layer.
pub(crate) const EXPERTS: u64 = 1 << 12;
/// Taps of a causal convolution.
pub(crate) const TAPS: u64 = 1 << 6;
/// Positions that a model was made for, tokens.
pub(crate) const POSITIONS: u64 = 1 << 27;
/// Tokens that all KV pages hold together.
pub(crate) const KV_TOKENS: u64 = 1 << 28;
/// Sequences with a slot; also requests that wait for a slot.
pub(crate) const REQUESTS: u64 = 1 << 16;
/// Number of a vision tower's tensors.
pub(crate) const TENSORS: u64 = 1 << 20;
/// Size of a file, of a vision tower, or of a memory, bytes.
pub(crate) const BYTES: u64 = 1 << 50;
/// Memory bandwidth, bytes per second.
pub(crate) const BANDWIDTH: u64 = 1 << 50;
/// Multiprocessors of a GPU; also resident threads of a multiprocessor.
pub(crate) const SMS: u64 = 1 << 14;
/// Shared memory of a thread block, bytes.
pub(crate) const SHARED_BYTES: u64 = 1 << 24;
/// Number of an architecture: 121 for `sm_121a`.
pub(crate) const CAPABILITY: u32 = 999;
/// Base of RoPE's frequencies.
pub(crate) const ROPE_THETA: f64 = 1e12;
/// Softcap of the output logits, `cap * tanh(logit / cap)`.
pub(crate) const LOGITS: f64 = 1e6;
/// Epsilon of RMS norms.
pub(crate) const NORM_EPS: f64 = 1e-2;
/// Factor of RoPE's scaling for long contexts, such as YaRN's `factor`.
pub(crate) const SCALING: f64 = 1e6;
