// Generated from targets/h200/tiny/nvfp4.toml; edit that.
#pragma once

namespace atlas::target {

enum class Mixer { gdn, attention };
enum class KvFormat { f32, bf16 };
enum class Format {
  bf16,
  nvfp4_compressed_tensors,
  nvfp4_modelopt,
  fp8_block128
};

// Width of the residual stream.
inline constexpr int HIDDEN = 256;
// Decoder layers.
inline constexpr int LAYERS = 4;
// Rows of the embedding table.
inline constexpr int VOCAB = 3072;
// Whether the output head is the embedding table.
inline constexpr bool TIED_HEAD = false;
// Epsilon of every norm.
inline constexpr float NORM_EPS = 1e-6f;
// Multi-token-prediction layers (0 or 1).
inline constexpr int MTP_LAYERS = 1;
// Embedding table.
inline constexpr Format FORMAT_EMBED = Format::bf16;
// Output head.
inline constexpr Format FORMAT_HEAD = Format::bf16;
// Gated DeltaNet projections.
inline constexpr Format FORMAT_GDN = Format::bf16;
// Attention projections.
inline constexpr Format FORMAT_ATTENTION = Format::nvfp4_compressed_tensors;
// Routed experts.
inline constexpr Format FORMAT_EXPERTS = Format::nvfp4_compressed_tensors;
// Shared expert.
inline constexpr Format FORMAT_SHARED_EXPERT = Format::nvfp4_compressed_tensors;
// Attention of the prediction layer.
inline constexpr Format FORMAT_MTP_ATTENTION = Format::nvfp4_compressed_tensors;
// Experts of the prediction layer.
inline constexpr Format FORMAT_MTP_EXPERTS = Format::nvfp4_compressed_tensors;
// Keys and values.
inline constexpr KvFormat FORMAT_KV = KvFormat::bf16;
// Tokens per KV page; also the grid of prefill chunks.
inline constexpr int PAGE = 64;
// Longest sequence, prompt and reply, in tokens.
inline constexpr int MAX_CONTEXT = 2048;
// Sequences that may hold a slot at once.
inline constexpr int MAX_SEQUENCES = 16;
// Requests that may wait for a slot.
inline constexpr int MAX_QUEUED = 64;
// Prompt tokens that one step may prefill; a multiple of `PAGE`.
inline constexpr int PREFILL_TOKENS = 256;
// KV pages of the whole server, at most: memory may have room for fewer.
inline constexpr int KV_PAGES = 512;
// Largest logits of a row that `top_k` ranks.
inline constexpr int TOP_K = 64;
// Routed experts of a layer.
inline constexpr int EXPERTS = 8;
// Experts that a token visits.
inline constexpr int EXPERTS_PER_TOKEN = 2;
// Inner width of a routed expert.
inline constexpr int EXPERT_INTERMEDIATE = 128;
// Inner width of the shared expert.
inline constexpr int SHARED_INTERMEDIATE = 128;
// Query heads.
inline constexpr int HEADS = 4;
// Key and value heads.
inline constexpr int KV_HEADS = 2;
// Elements of a head.
inline constexpr int HEAD_DIM = 256;
// Leading elements of a head that RoPE turns.
inline constexpr int ROTARY_DIM = 64;
// RoPE base.
inline constexpr double ROPE_THETA = 10000000.0;
// Gated DeltaNet key heads.
inline constexpr int GDN_KEY_HEADS = 2;
// Gated DeltaNet value heads.
inline constexpr int GDN_VALUE_HEADS = 4;
// Elements of a Gated DeltaNet key.
inline constexpr int GDN_KEY_DIM = 128;
// Elements of a Gated DeltaNet value.
inline constexpr int GDN_VALUE_DIM = 128;
// Taps of the causal convolution.
inline constexpr int GDN_CONV = 4;
// Token mixer of each layer.
inline constexpr Mixer MIXERS[LAYERS] = {
  Mixer::gdn,
  Mixer::gdn,
  Mixer::gdn,
  Mixer::attention,
};
// Of `sm_121a` it is 121.
inline constexpr int COMPUTE_CAPABILITY = 90;
// Streaming multiprocessors.
inline constexpr int SMS = 132;
// Shared memory that one block may ask for, bytes.
inline constexpr int SHARED_BYTES_PER_BLOCK = 232448;
// Most rows of `moe` in one launch.
inline constexpr int MOE_ROWS = 128;
// Chunks of a row of logits: what each block of the head makes.
inline constexpr int TOP_K_CHUNKS = 132;
// Parts of a chunk, which a warp ranks.
inline constexpr int TOP_K_PARTS = 1;

// Kernel `tiles_bf16` of op `attend`.
struct Attend {
  static constexpr int kThreads = 384;
  static constexpr int kSharedBytes = 197632;
};

// Kernel `split_kv_bf16` of op `attention`.
struct Attention {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 223232;
};

// Kernel `vectors_f32` of op `concat`.
struct Concat {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
};

// Kernel `channels_f32` of op `conv_silu`.
struct ConvSilu {
  static constexpr int kThreads = 64;
  static constexpr int kSharedBytes = 0;
};

// Kernel `heads_f32` of op `delta_net`.
struct DeltaNet {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 68656;
};

// Kernel `rows_f32` of op `embed`.
struct Embed {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
};

// Kernel `warpgroups_f16` of op `experts`.
struct Experts {
  static constexpr int kThreads = 384;
  static constexpr int kSharedBytes = 232448;
};

// Kernel `chunks_f16` of op `gated_delta`.
struct GatedDelta {
  static constexpr int kThreads = 224;
  static constexpr int kSharedBytes = 172672;
};

// Kernel `heads_f32` of op `gated_linear_add`.
struct GatedLinearAdd {
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
};

// Kernel `heads_f32` of op `gated_rms_norm`.
struct GatedRmsNorm {
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
};

// Kernel `panels_f16` of op `linear`.
struct Linear {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 189056;
};

// Kernel `panels_f16` of op `linear_add`.
struct LinearAdd {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 189056;
};

// Kernel `held_f16` of op `lm_head`.
struct LmHead {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 189056;
};

// Kernel `rows_f16` of op `moe`.
struct Moe {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 158464;
};

// Kernel `warpgroups_f16` of op `norm_linear`.
struct NormLinear {
  static constexpr int kThreads = 384;
  static constexpr int kSharedBytes = 232448;
};

// Kernel `vectors` of op `pack`.
struct Pack {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
};

// Kernel `ring` of op `read_bytes`.
struct ReadBytes {
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 229888;
};

// Kernel `rows_f32` of op `rms_norm`.
struct RmsNorm {
  static constexpr int kThreads = 64;
  static constexpr int kSharedBytes = 8;
};

// Kernel `rows_f32` of op `route`.
struct Route {
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
};

// Kernel `vectors_f32` of op `select`.
struct Select {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
};

// Kernel `pages_bf16` of op `store_kv`.
struct StoreKv {
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
};

// Kernel `chunks_f32` of op `top_k`.
struct TopK {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
};

} // namespace atlas::target
