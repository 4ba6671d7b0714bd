// Generated from targets/h200/tiny/nvfp4.toml; edit that.
#pragma once

namespace atlas::target {

enum class KvFormat { f32, bf16, fp8 };
enum class Activation { silu, gelu_tanh, clamped, relu2 };
enum class Format { bf16, nvfp4, fp8, mxfp4 };

// Width of the residual stream, padding by zeros included.
inline constexpr int HIDDEN = 256;
// Channels of the residual stream without padding; norms are over these.
inline constexpr int CHANNELS = 256;
// Rows of the embedding table.
inline constexpr int VOCAB = 3072;
// Whether the output head is the embedding table.
inline constexpr bool TIED_HEAD = false;
// Whether some matrices add biases to their results.
inline constexpr bool BIASED = false;
// Factor of the embedding's rows.
inline constexpr float EMBEDDING_SCALE = 1.0f;
// Cap of logits, `cap tanh(logit / cap)`; 0 if there is none.
inline constexpr float LOGIT_CAP = 0.0f;
// Epsilon of every norm.
inline constexpr float NORM_EPS = 1e-6f;
// Ids below this can be draft tokens of the multi-token-prediction layer.
inline constexpr int DRAFT_IDS = 2304;
// Embedding table.
inline constexpr Format FORMAT_EMBED = Format::bf16;
// Output head.
inline constexpr Format FORMAT_HEAD = Format::bf16;
// Routed experts.
inline constexpr Format FORMAT_EXPERTS = Format::nvfp4;
// Shared expert.
inline constexpr Format FORMAT_SHARED_EXPERT = Format::nvfp4;
// Experts of the prediction layer.
inline constexpr Format FORMAT_MTP_EXPERTS = Format::nvfp4;
// Storage of keys and values.
inline constexpr KvFormat FORMAT_KV = KvFormat::bf16;
// Tokens per KV page; also the grid of prefill chunks.
inline constexpr int PAGE = 64;
// Longest sequence, prompt and reply, in tokens.
inline constexpr int MAX_CONTEXT = 2048;
// Sequences that may hold a slot at once.
inline constexpr int MAX_SEQUENCES = 16;
// Draft tokens of all sequences that one step may verify.
inline constexpr int DRAFTS = 14;
// Prompt tokens that one step may prefill; a multiple of `PAGE`.
inline constexpr int PREFILL_TOKENS = 256;
// Largest logits of a row that `top_k` ranks.
inline constexpr int TOP_K = 64;
// Of `sm_121a` it is 121.
inline constexpr int COMPUTE_CAPABILITY = 90;
// Streaming multiprocessors.
inline constexpr int SMS = 132;
// Shared memory that one block may ask for, bytes.
inline constexpr int SHARED_BYTES_PER_BLOCK = 232448;
// Most rows of one launch of `moe`.
inline constexpr int MOE_ROWS = 128;
// Whether `attend` writes rows in F16 in launches with cells.
inline constexpr bool ATTEND_ROUNDS = false;
// Chunks of a row of logits, each computed by one block of the head.
inline constexpr int TOP_K_CHUNKS = 132;
// Parts of a chunk of logits, each ranked by one warp.
inline constexpr int TOP_K_PARTS = 1;

// Blocks of the model.
namespace shapes {

// Attention over all positions.
struct Full {
  static constexpr int kHeads = 4;
  static constexpr int kKvHeads = 2;
  static constexpr int kHeadDim = 256;
  static constexpr int kValueDim = 256;
  static constexpr int kRotaryDim = 64;
  static constexpr float kScale = 0.0625f;
  static constexpr bool kGated = true;
  static constexpr bool kNormed = true;
  static constexpr bool kRowsNormed = false;
  static constexpr bool kValuesNormed = false;
  static constexpr int kWindow = 0;
  static constexpr bool kSinks = false;
  static constexpr int kPositionBytes = 2048;
};

// Gated DeltaNet.
struct Gdn {
  static constexpr int kKeyHeads = 2;
  static constexpr int kValueHeads = 4;
  static constexpr int kKeyDim = 128;
  static constexpr int kValueDim = 128;
  static constexpr int kConv = 4;
  static constexpr bool kMamba = false;
  static constexpr int kNorm = 128;
};

// Mixture of experts.
struct Moe {
  static constexpr int kCount = 8;
  static constexpr int kPerToken = 2;
  static constexpr int kIntermediate = 128;
  static constexpr int kWidth = 256;
  static constexpr bool kLatent = false;
  static constexpr int kShared = 128;
  static constexpr bool kSharedGated = true;
  static constexpr int kBeside = 0;
  static constexpr bool kSigmoid = false;
  static constexpr float kWeightScale = 1.0f;
  static constexpr bool kRowsNvfp4 = false;
  static constexpr bool kScaled = false;
  static constexpr Activation kActivation = Activation::silu;
};
// The only one of its kind.
using Delta = Gdn;
// The only one of its kind.
using Experts = Moe;

} // namespace shapes

// Numbers of columns.
template <int... kWidths>
struct Widths {};
// Widths of the rows that `linear` multiplies.
using LinearWidths = Widths<256, 512>;
// Widths of the rows that `linear_add` multiplies.
using LinearAddWidths = Widths<1024, 512>;
// Formats of the matrices of `norm_linear`.
inline constexpr Format NORM_LINEAR_FORMATS[] = {Format::nvfp4, Format::bf16};
// Formats of the matrices of `linear`.
inline constexpr Format LINEAR_FORMATS[] = {Format::bf16, Format::nvfp4};

// Kernel `spans_f32` of `accept`.
struct Accept {
  static constexpr int kThreads = 128;
};

// Kernel `tiles_bf16` of `attend`.
struct Attend {
  static constexpr int kThreads = 384;
};

// Kernel `split_kv_bf16` of `attention`.
struct Attention {
  static constexpr int kThreads = 256;
};

// Kernel `vectors_f32` of `cap_logits`.
struct CapLogits {
  static constexpr int kThreads = 256;
};

// Kernel `vectors_f32` of `concat`.
struct Concat {
  static constexpr int kThreads = 256;
};

// Kernel `channels_f32` of `conv_silu`.
struct ConvSilu {
  static constexpr int kThreads = 64;
};

// Kernel `heads_f32` of `delta_net`.
struct DeltaNet {
  static constexpr int kThreads = 256;
};

// Kernel `rows_f32` of `draft`.
struct Draft {
  static constexpr int kThreads = 128;
};

// Kernel `rows_f32` of `embed`.
struct Embed {
  static constexpr int kThreads = 256;
};

// Kernel `rows_f32` of `embed_beside`.
struct EmbedBeside {
  static constexpr int kThreads = 256;
};

// Kernel `warpgroups_f16` of `experts`.
struct Experts {
  static constexpr int kThreads = 384;
};

// Kernel `chunks_f16` of `gated_delta`.
struct GatedDelta {
  static constexpr int kThreads = 224;
};

// Kernel `heads_f32` of `gated_linear_add`.
struct GatedLinearAdd {
  static constexpr int kThreads = 128;
};

// Kernel `heads_f32` of `gated_rms_norm`.
struct GatedRmsNorm {
  static constexpr int kThreads = 128;
};

// Kernel `panels_f16` of `linear`.
struct Linear {
  static constexpr int kThreads = 256;
};

// Kernel `panels_f16` of `linear_add`.
struct LinearAdd {
  static constexpr int kThreads = 256;
};

// Kernel `warpgroups_f16` of `lm_head`.
struct LmHead {
  static constexpr int kThreads = 256;
};

// Kernel `rows_f16` of `moe`.
struct Moe {
  static constexpr int kThreads = 256;
};

// Kernel `warpgroups_f16` of `norm_linear`.
struct NormLinear {
  static constexpr int kThreads = 384;
};

// Kernel `vectors` of `pack`.
struct Pack {
  static constexpr int kThreads = 256;
};

// Kernel `ring` of `read_bytes`.
struct ReadBytes {
  static constexpr int kThreads = 128;
};

// Kernel `vectors_f32` of `relu2`.
struct Relu2 {
  static constexpr int kThreads = 256;
};

// Kernel `rows_f32` of `rms_norm`.
struct RmsNorm {
  static constexpr int kThreads = 64;
};

// Kernel `rows_f32` of `route`.
struct Route {
  static constexpr int kThreads = 128;
};

// Kernel `vectors_f32` of `select`.
struct Select {
  static constexpr int kThreads = 256;
};

// Kernel `pages` of `store_kv`.
struct StoreKv {
  static constexpr int kThreads = 128;
};

// Kernel `chunks_f32` of `top_k`.
struct TopK {
  static constexpr int kThreads = 256;
};

} // namespace atlas::target
