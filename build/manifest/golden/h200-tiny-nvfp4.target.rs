// Generated from targets/h200/tiny/nvfp4.toml; edit that.

/// Hardware, the first part of the target's name.
pub const HARDWARE: &str = "h200";
/// Model, the second part of the target's name.
pub const MODEL: &str = "tiny";
/// Quantisation, the third part of the target's name.
pub const QUANT: &str = "nvfp4";
/// Name of the binary.
pub const BINARY: &str = "atlas-h200-tiny-nvfp4";
/// Model id that the API reports.
pub const MODEL_ID: &str = "tiny";
/// Whether requests can be answered.
pub const SERVES: bool = true;
/// Bytes of host memory that are left to others, if the model is in this memory.
pub const HOST_RESERVE: Option<u64> = None;
/// SMs that this binary keeps to on a larger GPU; absent: all.
pub const PARTITION: Option<u32> = None;
/// The expanded manifest (TOML), as `show` prints it.
pub const MANIFEST: &str = r##"target = "h200/tiny/nvfp4"
binary = "atlas-h200-tiny-nvfp4"
serves = true

[derived]
parameters_text = 7764120
parameters_mtp = 2068480
parameters_active = 4618648
checkpoint_tensors = 487
checkpoint_bytes = 10292076
checkpoint_bytes_text = 8934128
checkpoint_bytes_mtp = 1357948
weight_bytes_per_token = 6034384
kv_bytes_per_token = 2048
kv_pages = 512
kv_bytes = 134217728
state_matrix_bytes_per_sequence = 786432
state_conv_bytes_per_sequence = 49152
resident_bytes = 182946668

[leaf]
hw = "h200"
model = "tiny"
embed = false

[[leaf.format]]
match = ["model.embed_tokens", "lm_head", "*.linear_attn.*", "*.mlp.gate", "*.mlp.shared_expert_gate", "mtp.fc"]
as = "bf16"

[[leaf.format]]
match = "*"
as = "nvfp4_compressed_tensors"

[leaf.numbers]
kv = "bf16"

[leaf.limits]
sequences = 16
context = 2048
kv_tokens = 32768
snapshots = 16
drafts = 14
queued = 64
page = 64

[leaf.steps]
prefill = 256

[leaf.op.gated_linear_add]
kernel = "heads_f32"
threads = 128
why = "heads as `gated_rms_norm` has them, then `linear_add`"

[leaf.op.linear_add]
kernel = "panels_f16"
threads = 256
why = "as `linear`; the sum joins the residual stream without a trip through memory"

[leaf.op.rms_norm]
kernel = "rows_f32"
threads = 64
why = "each thread holds one 16-byte vector of the row"

[hardware]
title = "NVIDIA H200"
backend = "cuda"
host = "x86_64-unknown-linux-gnu"
reply_gap_ms = 18

[hardware.gpu]
arch = "sm_90a"
sms = 132
threads_per_sm = 2048
shared_bytes_per_block = 232448
l2_bytes = 62914560
memory_bytes = 150109880320
bandwidth_rated = 4800000000000
bandwidth_read_measured = 4650000000000

[hardware.op.accept]
kernel = "spans_f32"
threads = 128
why = "a warp a span: few spans of few rows, one block or two"

[hardware.op.attend]
kernel = "tiles_bf16"
threads = 384
why = "prompts: a warp fetches, two warpgroups have 64 queries each; else eight warps share 64 positions"

[hardware.op.attention]
kernel = "split_kv_bf16"
threads = 256
why = "each block norms and rotates the heads it needs, that of the last split stores the row; then as `attend` has few rows"

[hardware.op.cap_logits]
kernel = "vectors_f32"
threads = 256
why = "a number a thread"

[hardware.op.concat]
kernel = "vectors_f32"
threads = 256
why = "a 16-byte vector a thread"

[hardware.op.conv_silu]
kernel = "channels_f32"
threads = 64
why = "four channels a thread; small blocks spread one row over many SMs"

[hardware.op.delta_net]
kernel = "heads_f32"
threads = 256
why = "eight lanes have a column of the state, 32 columns at once come from shared memory"

[hardware.op.draft]
kernel = "rows_f32"
threads = 128
why = "a warp a row: few rows, one block or two"

[hardware.op.embed]
kernel = "rows_f32"
threads = 256
why = "a thread unpacks 16 bytes of the table; the residual stream is F32"

[hardware.op.embed_beside]
kernel = "rows_f32"
threads = 256
why = "a block norms half a row as `lm_head` norms a row"

[hardware.op.experts]
kernel = "warpgroups_f16"
threads = 384
why = "as `linear_add`, tiles of 128 places of one expert"

[hardware.op.gated_delta]
kernel = "chunks_f16"
threads = 224
why = "a warp carries 16 columns of the state from cell to cell, one makes the results, one brings values; one more brings records for two of these"

[hardware.op.gated_linear_add]
kernel = "warpgroups_f16"
threads = 384
why = "heads are normed and gated as they are rounded for `linear_add`; few rows as `gated_rms_norm`, then `linear_add`"

[hardware.op.gated_rms_norm]
kernel = "heads_f32"
threads = 128
why = "a warp per head, four heads a block"

[hardware.op.linear]
kernel = "panels_f16"
threads = 256
why = "eight warps: one per part of K in decode; prompts: four, two panels each; weights keep their bits"

[hardware.op.linear_add]
kernel = "warpgroups_f16"
threads = 384
why = "a warp fetches steps of 128 columns, two warpgroups multiply in turns; few rows as `linear`"

[hardware.op.lm_head]
kernel = "warpgroups_f16"
threads = 256
why = "as `norm_linear` has up to 64 rows; each block ranks what it has made, then a block a row; rows that no block holds are ranked as by `top_k`"

[hardware.op.moe]
kernel = "rows_f16"
threads = 256
why = "one row: eight warps a panel of all its experts; more: a warp a panel, or a part of it"

[hardware.op.norm_linear]
kernel = "warpgroups_f16"
threads = 384
why = "as `linear_add`; rows are normed once into operands, eight a block; few rows are streamed"

[hardware.op.pack]
kernel = "vectors"
threads = 256
why = "a 16-byte vector a thread"

[hardware.op.read_bytes]
kernel = "ring"
threads = 128
why = "four warps ask for as much as fits a block; more of them are no quicker"

[hardware.op.relu2]
kernel = "vectors_f32"
threads = 256
why = "a number a thread"

[hardware.op.rms_norm]
kernel = "rows_f32"
threads = 256
why = "each thread holds two 16-byte vectors of the row"

[hardware.op.route]
kernel = "rows_f32"
threads = 128
why = "a warp per row"

[hardware.op.select]
kernel = "vectors_f32"
threads = 256
why = "a 16-byte vector a thread"

[hardware.op.store_kv]
kernel = "pages"
threads = 128
why = "a warp per head, four heads a block"

[hardware.op.top_k]
kernel = "chunks_f32"
threads = 256
why = "a block ranks what an SM makes of a row in `lm_head`, a warp a part of it"

[model]
title = "Tiny"
id = "tiny"
family = "qwen3_5_moe"
licence = "Apache-2.0"
hidden = 256
vocab = 3072
tied_head = false
norm_eps = 0.000001
max_position = 2048

[model.layers]
count = 4
period = ["gdn", "gdn", "gdn", "attention"]

[model.attention]
heads = 4
kv_heads = 2
head_dim = 256
rotary_dim = 64
rope_theta = 10000000.0

[model.gdn]
key_heads = 2
value_heads = 4
key_dim = 128
value_dim = 128
conv_kernel = 4

[model.moe]
experts = 8
experts_per_token = 2
intermediate = 128
shared_intermediate = 128

[model.mtp]
layers = 1
draft_ids = 2304

[model.chat]
stop_ids = [3065, 3063]
tool_format = "qwen3_coder"
thinking = true
think_open = "<think>"
think_open_id = 3070
think_close = "</think>"
think_close_id = 3071
tokenizer = "tokenizer.json"
template = "chat_template.jinja"

[model.chat.added_tokens]
first = 3063
texts = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]

[model.sampling]
temperature = 0.7
top_k = 20
top_p = 0.8

[model.checkpoint.nvfp4]
tensors = 487
tensor_bytes = 10292076
text_nll = 12.2716

[[model.checkpoint.nvfp4.files]]
name = "chat_template.jinja"
bytes = 4084
sha256 = "71e7f6e95dc28d0c2d39284c8b82f434482c453a3146a20435d84534b7bba787"

[[model.checkpoint.nvfp4.files]]
name = "config.json"
bytes = 4137
sha256 = "b9d47354a3e649bdffeff6917958629776b3bda766a43f1740563d172aeb86db"

[[model.checkpoint.nvfp4.files]]
name = "generation_config.json"
bytes = 145
sha256 = "540273a1b67082536688b5a37a3db15ef59e85f636061c2cb972d960e7f32f06"

[[model.checkpoint.nvfp4.files]]
name = "model.safetensors"
bytes = 10354740
sha256 = "0be29005740715473db0e4e2dd2bccefe622ef0f9c891331ca35c1725e6ca9eb"

[[model.checkpoint.nvfp4.files]]
name = "tokenizer.json"
bytes = 192613
sha256 = "b4d624f9f57ac1a663c595cd717b8240f8b1e5774778fa9f2a7828b5a0a44477"

[[model.checkpoint.nvfp4.files]]
name = "tokenizer_config.json"
bytes = 1961
sha256 = "beb89b99c6fcf88eeafb05a6f8b773f6b9fe414780dc8891a4f9d428d85ebcb1"

[weights]
"model.embed_tokens" = { count = 1, shape = [3072, 256], format = "bf16", bytes_stored = 1572864, bytes_read_per_token = 512 }
"model.norm.weight" = { count = 1, shape = [256], format = "vector", bytes_stored = 512, bytes_read_per_token = 512 }
"lm_head" = { count = 1, shape = [3072, 256], format = "bf16", bytes_stored = 1572864, bytes_read_per_token = 1572864 }
"model.layers.{layer}.input_layernorm.weight" = { count = 4, shape = [256], format = "vector", bytes_stored = 2048, bytes_read_per_token = 2048 }
"model.layers.{layer}.post_attention_layernorm.weight" = { count = 4, shape = [256], format = "vector", bytes_stored = 2048, bytes_read_per_token = 2048 }
"model.layers.{layer}.self_attn.q_proj" = { count = 1, shape = [2048, 256], format = "nvfp4_compressed_tensors", bytes_stored = 294916, bytes_read_per_token = 294916 }
"model.layers.{layer}.self_attn.k_proj" = { count = 1, shape = [512, 256], format = "nvfp4_compressed_tensors", bytes_stored = 73732, bytes_read_per_token = 73732 }
"model.layers.{layer}.self_attn.v_proj" = { count = 1, shape = [512, 256], format = "nvfp4_compressed_tensors", bytes_stored = 73732, bytes_read_per_token = 73732 }
"model.layers.{layer}.self_attn.o_proj" = { count = 1, shape = [256, 1024], format = "nvfp4_compressed_tensors", bytes_stored = 147460, bytes_read_per_token = 147460 }
"model.layers.{layer}.self_attn.k_proj.k_scale" = { count = 1, shape = [], format = "vector", bytes_stored = 0, bytes_read_per_token = 0 }
"model.layers.{layer}.self_attn.v_proj.v_scale" = { count = 1, shape = [], format = "vector", bytes_stored = 0, bytes_read_per_token = 0 }
"model.layers.{layer}.self_attn.q_norm.weight" = { count = 1, shape = [256], format = "vector", bytes_stored = 512, bytes_read_per_token = 512 }
"model.layers.{layer}.self_attn.k_norm.weight" = { count = 1, shape = [256], format = "vector", bytes_stored = 512, bytes_read_per_token = 512 }
"model.layers.{layer}.linear_attn.out_proj" = { count = 3, shape = [256, 512], format = "bf16", bytes_stored = 786432, bytes_read_per_token = 786432 }
"model.layers.{layer}.linear_attn.conv1d.weight" = { count = 3, shape = [1024, 1, 4], format = "vector", bytes_stored = 24576, bytes_read_per_token = 24576 }
"model.layers.{layer}.linear_attn.A_log" = { count = 3, shape = [4], format = "vector", bytes_stored = 24, bytes_read_per_token = 24 }
"model.layers.{layer}.linear_attn.dt_bias" = { count = 3, shape = [4], format = "vector", bytes_stored = 24, bytes_read_per_token = 24 }
"model.layers.{layer}.linear_attn.norm.weight" = { count = 3, shape = [128], format = "vector", bytes_stored = 768, bytes_read_per_token = 768 }
"model.layers.{layer}.linear_attn.in_proj_qkv" = { count = 3, shape = [1024, 256], format = "bf16", bytes_stored = 1572864, bytes_read_per_token = 1572864 }
"model.layers.{layer}.linear_attn.in_proj_z" = { count = 3, shape = [512, 256], format = "bf16", bytes_stored = 786432, bytes_read_per_token = 786432 }
"model.layers.{layer}.linear_attn.in_proj_b" = { count = 3, shape = [4, 256], format = "bf16", bytes_stored = 6144, bytes_read_per_token = 6144 }
"model.layers.{layer}.linear_attn.in_proj_a" = { count = 3, shape = [4, 256], format = "bf16", bytes_stored = 6144, bytes_read_per_token = 6144 }
"model.layers.{layer}.mlp.gate" = { count = 4, shape = [8, 256], format = "bf16", bytes_stored = 16384, bytes_read_per_token = 16384 }
"model.layers.{layer}.mlp.experts.{expert}.gate_proj" = { count = 32, shape = [128, 256], format = "nvfp4_compressed_tensors", bytes_stored = 589952, bytes_read_per_token = 147488 }
"model.layers.{layer}.mlp.experts.{expert}.up_proj" = { count = 32, shape = [128, 256], format = "nvfp4_compressed_tensors", bytes_stored = 589952, bytes_read_per_token = 147488 }
"model.layers.{layer}.mlp.experts.{expert}.down_proj" = { count = 32, shape = [256, 128], format = "nvfp4_compressed_tensors", bytes_stored = 589952, bytes_read_per_token = 147488 }
"model.layers.{layer}.mlp.shared_expert.gate_proj" = { count = 4, shape = [128, 256], format = "nvfp4_compressed_tensors", bytes_stored = 73744, bytes_read_per_token = 73744 }
"model.layers.{layer}.mlp.shared_expert.up_proj" = { count = 4, shape = [128, 256], format = "nvfp4_compressed_tensors", bytes_stored = 73744, bytes_read_per_token = 73744 }
"model.layers.{layer}.mlp.shared_expert.down_proj" = { count = 4, shape = [256, 128], format = "nvfp4_compressed_tensors", bytes_stored = 73744, bytes_read_per_token = 73744 }
"model.layers.{layer}.mlp.shared_expert_gate" = { count = 4, shape = [1, 256], format = "bf16", bytes_stored = 2048, bytes_read_per_token = 2048 }
"mtp.pre_fc_norm_embedding.weight" = { count = 1, shape = [256], format = "vector", bytes_stored = 512, bytes_read_per_token = 0 }
"mtp.pre_fc_norm_hidden.weight" = { count = 1, shape = [256], format = "vector", bytes_stored = 512, bytes_read_per_token = 0 }
"mtp.fc" = { count = 1, shape = [256, 512], format = "bf16", bytes_stored = 262144, bytes_read_per_token = 0 }
"mtp.norm.weight" = { count = 1, shape = [256], format = "vector", bytes_stored = 512, bytes_read_per_token = 0 }
"mtp.layers.0.input_layernorm.weight" = { count = 1, shape = [256], format = "vector", bytes_stored = 512, bytes_read_per_token = 0 }
"mtp.layers.0.post_attention_layernorm.weight" = { count = 1, shape = [256], format = "vector", bytes_stored = 512, bytes_read_per_token = 0 }
"mtp.layers.0.self_attn.q_proj" = { count = 1, shape = [2048, 256], format = "nvfp4_compressed_tensors", bytes_stored = 294916, bytes_read_per_token = 0 }
"mtp.layers.0.self_attn.k_proj" = { count = 1, shape = [512, 256], format = "nvfp4_compressed_tensors", bytes_stored = 73732, bytes_read_per_token = 0 }
"mtp.layers.0.self_attn.v_proj" = { count = 1, shape = [512, 256], format = "nvfp4_compressed_tensors", bytes_stored = 73732, bytes_read_per_token = 0 }
"mtp.layers.0.self_attn.o_proj" = { count = 1, shape = [256, 1024], format = "nvfp4_compressed_tensors", bytes_stored = 147460, bytes_read_per_token = 0 }
"mtp.layers.0.self_attn.k_proj.k_scale" = { count = 1, shape = [], format = "vector", bytes_stored = 0, bytes_read_per_token = 0 }
"mtp.layers.0.self_attn.v_proj.v_scale" = { count = 1, shape = [], format = "vector", bytes_stored = 0, bytes_read_per_token = 0 }
"mtp.layers.0.self_attn.q_norm.weight" = { count = 1, shape = [256], format = "vector", bytes_stored = 512, bytes_read_per_token = 0 }
"mtp.layers.0.self_attn.k_norm.weight" = { count = 1, shape = [256], format = "vector", bytes_stored = 512, bytes_read_per_token = 0 }
"mtp.layers.0.mlp.gate" = { count = 1, shape = [8, 256], format = "bf16", bytes_stored = 4096, bytes_read_per_token = 0 }
"mtp.layers.0.mlp.experts.{expert}.gate_proj" = { count = 8, shape = [128, 256], format = "nvfp4_compressed_tensors", bytes_stored = 147488, bytes_read_per_token = 0 }
"mtp.layers.0.mlp.experts.{expert}.up_proj" = { count = 8, shape = [128, 256], format = "nvfp4_compressed_tensors", bytes_stored = 147488, bytes_read_per_token = 0 }
"mtp.layers.0.mlp.experts.{expert}.down_proj" = { count = 8, shape = [256, 128], format = "nvfp4_compressed_tensors", bytes_stored = 147488, bytes_read_per_token = 0 }
"mtp.layers.0.mlp.shared_expert.gate_proj" = { count = 1, shape = [128, 256], format = "nvfp4_compressed_tensors", bytes_stored = 18436, bytes_read_per_token = 0 }
"mtp.layers.0.mlp.shared_expert.up_proj" = { count = 1, shape = [128, 256], format = "nvfp4_compressed_tensors", bytes_stored = 18436, bytes_read_per_token = 0 }
"mtp.layers.0.mlp.shared_expert.down_proj" = { count = 1, shape = [256, 128], format = "nvfp4_compressed_tensors", bytes_stored = 18436, bytes_read_per_token = 0 }
"mtp.layers.0.mlp.shared_expert_gate" = { count = 1, shape = [1, 256], format = "bf16", bytes_stored = 512, bytes_read_per_token = 0 }
"##;
/// Width of the residual stream, padding by zeros included.
pub const HIDDEN: usize = 256;
/// Channels of the residual stream without padding; norms are over these.
pub const CHANNELS: usize = 256;
/// Hidden widths in memory are multiples of this.
pub const PAD: usize = 1;
/// Inner widths in memory are multiples of this.
pub const PAD_INNER: usize = 1;
/// Decoder layers.
pub const LAYERS: usize = 4;
/// Rows of the embedding table.
pub const VOCAB: usize = 3072;
/// Whether the output head is the embedding table.
pub const TIED_HEAD: bool = false;
/// Whether some matrices add biases to their results.
pub const BIASED: bool = false;
/// Factor of the embedding's rows.
pub const EMBEDDING_SCALE: f32 = 1.0;
/// Cap of logits, `cap tanh(logit / cap)`; 0 if there is none.
pub const LOGIT_CAP: f32 = 0.0;
/// Epsilon of every norm.
pub const NORM_EPS: f32 = 1e-6;
/// Multi-token-prediction layers (0 or 1).
pub const MTP_LAYERS: usize = 1;
/// Ids below this can be draft tokens of the multi-token-prediction layer.
pub const DRAFT_IDS: usize = 2304;
/// Embedding table.
pub const FORMAT_EMBED: Format = Format::Bf16;
/// Output head.
pub const FORMAT_HEAD: Format = Format::Bf16;
/// Routed experts.
pub const FORMAT_EXPERTS: Format = Format::Nvfp4CompressedTensors;
/// Shared expert.
pub const FORMAT_SHARED_EXPERT: Format = Format::Nvfp4CompressedTensors;
/// Experts of the prediction layer.
pub const FORMAT_MTP_EXPERTS: Format = Format::Nvfp4CompressedTensors;
/// Storage of keys and values.
pub const FORMAT_KV: KvFormat = KvFormat::Bf16;
/// Tokens per KV page; also the grid of prefill chunks.
pub const PAGE: usize = 64;
/// Longest sequence, prompt and reply, in tokens.
pub const MAX_CONTEXT: usize = 2048;
/// Sequences that may hold a slot at once.
pub const MAX_SEQUENCES: usize = 16;
/// Recurrent states: of sequences, then snapshots for later prompts, then of drafts.
pub const STATES: usize = 46;
/// Recurrent states that are kept as snapshots for later prompts.
pub const SNAPSHOTS: usize = 16;
/// Draft tokens of all sequences that one step may verify.
pub const DRAFTS: usize = 14;
/// Requests that may wait for a slot.
pub const MAX_QUEUED: usize = 64;
/// Prompt tokens that one step may prefill; a multiple of `PAGE`.
pub const PREFILL_TOKENS: usize = 256;
/// Longest time between two tokens of a reply that bounds the prefill beside it, ms.
pub const REPLY_GAP_MS: usize = 18;
/// KV pages of the whole server at most; memory may have room for fewer.
pub const KV_PAGES: usize = 512;
/// Largest logits of a row that `top_k` ranks.
pub const TOP_K: usize = 64;
/// Attention over all positions.
pub struct Full;
impl crate::shapes::Attention for Full {
    const HEADS: usize = 4;
    const KV_HEADS: usize = 2;
    const HEAD_DIM: usize = 256;
    const VALUE_DIM: usize = 256;
    const ROTARY_DIM: usize = 64;
    const ROPE: crate::shapes::Rope = crate::shapes::Rope { theta: 10000000.0, scaling: None };
    const SCALE: f32 = 0.0625;
    const GATED: bool = true;
    const NORMED: bool = true;
    const ROWS_NORMED: bool = false;
    const VALUES_NORMED: bool = false;
    const WINDOW: Option<usize> = None;
    const SINKS: bool = false;
}
/// Gated DeltaNet.
pub struct Gdn;
impl crate::shapes::Delta for Gdn {
    const KEY_HEADS: usize = 2;
    const VALUE_HEADS: usize = 4;
    const KEY_DIM: usize = 128;
    const VALUE_DIM: usize = 128;
    const CONV: usize = 4;
    const MAMBA: bool = false;
    const NORM: usize = 128;
}
/// Mixture of experts.
pub struct Moe;
impl crate::shapes::Experts for Moe {
    const COUNT: usize = 8;
    const PER_TOKEN: usize = 2;
    const INTERMEDIATE: usize = 128;
    const WIDTH: usize = 256;
    const LATENT: bool = false;
    const SHARED: usize = 128;
    const SHARED_GATED: bool = true;
    const BESIDE: usize = 0;
    const SIGMOID: bool = false;
    const WEIGHT_SCALE: f32 = 1.0;
    const ROWS_NVFP4: bool = false;
    const SCALED: bool = false;
    const ACTIVATION: crate::shapes::Activation = crate::shapes::Activation::Silu;
}
/// Recurrent mixer of the model, whatever its rule.
pub type Recurrent = Gdn;
/// Values of an expression for each shape of attention, which it calls `$shape`.
#[macro_export]
macro_rules! each_attention {
    ($shape:ident => $value:expr) => {
        [
            { type $shape = $crate::target::Full; $value },
        ]
    };
}
pub use each_attention;
/// Values of an expression for each shape of experts, which it calls `$shape`.
#[macro_export]
macro_rules! each_experts {
    ($shape:ident => $value:expr) => {
        [
            { type $shape = $crate::target::Moe; $value },
        ]
    };
}
pub use each_experts;
/// Blocks that layers are made of, for a macro: name, block of a shape, and the operations that it takes.
macro_rules! with_blocks {
    ($macro:ident) => {
        $macro! {
            attention: attention::Attention<Full> by ops::Attend,
            gdn: delta::DeltaNet<Gdn> by ops::Delta,
            moe: experts::Experts<Moe> by ops::Route,
        }
    };
}
pub(crate) use with_blocks;
/// Mixer and feed-forward of each layer.
pub const LAYER_BLOCKS: [[Option<Shape>; 2]; LAYERS] = [[Some(Shape::Gdn), Some(Shape::Moe)], [Some(Shape::Gdn), Some(Shape::Moe)], [Some(Shape::Gdn), Some(Shape::Moe)], [Some(Shape::Full), Some(Shape::Moe)]];
/// Blocks of the multi-token-prediction layer.
pub const PREDICTION_BLOCKS: [Option<Shape>; 2] = [Some(Shape::Full), Some(Shape::Moe)];
/// Values of an expression for each shape of mlp, which it calls `$shape`.
#[macro_export]
macro_rules! each_mlp {
    ($shape:ident => $value:expr) => {
        [
        ]
    };
}
pub use each_mlp;
impl crate::backend::cuda::Launchers for Full {
    const INDEX: usize = 0;
    const ATTEND: ffi::ops::Launcher<ffi::ops::atlas_attend_launcher> = ffi::ops::atlas_attend;
    const ATTENTION: ffi::ops::Launcher<ffi::ops::atlas_attention_launcher> = ffi::ops::atlas_attention;
    const STORE_KV: ffi::ops::Launcher<ffi::ops::atlas_store_kv_launcher> = ffi::ops::atlas_store_kv;
}
/// Every tensor of the checkpoint, without the vision tower.
pub static TENSORS_TABLE: &[Row] = &[
    Row { role: Role::Embedding, name: Cow::Borrowed("model.embed_tokens"), sites: Sites::Whole, copies: 1, shape: Cow::Borrowed(&[3072, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 3072, first: 0, rows: 3072 }]), kind: Kind::Matrix(Format::Bf16) },
    Row { role: Role::FinalNorm, name: Cow::Borrowed("model.norm.weight"), sites: Sites::Whole, copies: 1, shape: Cow::Borrowed(&[256]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: true } },
    Row { role: Role::Head, name: Cow::Borrowed("lm_head"), sites: Sites::Whole, copies: 1, shape: Cow::Borrowed(&[3072, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 3072, first: 0, rows: 3072 }]), kind: Kind::Matrix(Format::Bf16) },
    Row { role: Role::InputNorm, name: Cow::Borrowed("model.layers.{layer}.input_layernorm.weight"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2, 3])), copies: 1, shape: Cow::Borrowed(&[256]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: true } },
    Row { role: Role::PostNorm, name: Cow::Borrowed("model.layers.{layer}.post_attention_layernorm.weight"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2, 3])), copies: 1, shape: Cow::Borrowed(&[256]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: true } },
    Row { role: Role::Query, name: Cow::Borrowed("model.layers.{layer}.self_attn.q_proj"), sites: Sites::Layers(Cow::Borrowed(&[3])), copies: 1, shape: Cow::Borrowed(&[2048, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 2048, first: 0, rows: 2048 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::Key, name: Cow::Borrowed("model.layers.{layer}.self_attn.k_proj"), sites: Sites::Layers(Cow::Borrowed(&[3])), copies: 1, shape: Cow::Borrowed(&[512, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 512, first: 0, rows: 512 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::Value, name: Cow::Borrowed("model.layers.{layer}.self_attn.v_proj"), sites: Sites::Layers(Cow::Borrowed(&[3])), copies: 1, shape: Cow::Borrowed(&[512, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 512, first: 0, rows: 512 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::Output, name: Cow::Borrowed("model.layers.{layer}.self_attn.o_proj"), sites: Sites::Layers(Cow::Borrowed(&[3])), copies: 1, shape: Cow::Borrowed(&[256, 1024]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 256, first: 0, rows: 256 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::KeyScale, name: Cow::Borrowed("model.layers.{layer}.self_attn.k_proj.k_scale"), sites: Sites::Layers(Cow::Borrowed(&[3])), copies: 1, shape: Cow::Borrowed(&[]), runs: Cow::Borrowed(&[]), kind: Kind::Unused },
    Row { role: Role::ValueScale, name: Cow::Borrowed("model.layers.{layer}.self_attn.v_proj.v_scale"), sites: Sites::Layers(Cow::Borrowed(&[3])), copies: 1, shape: Cow::Borrowed(&[]), runs: Cow::Borrowed(&[]), kind: Kind::Unused },
    Row { role: Role::QueryNorm, name: Cow::Borrowed("model.layers.{layer}.self_attn.q_norm.weight"), sites: Sites::Layers(Cow::Borrowed(&[3])), copies: 1, shape: Cow::Borrowed(&[256]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: true } },
    Row { role: Role::KeyNorm, name: Cow::Borrowed("model.layers.{layer}.self_attn.k_norm.weight"), sites: Sites::Layers(Cow::Borrowed(&[3])), copies: 1, shape: Cow::Borrowed(&[256]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: true } },
    Row { role: Role::GdnOutput, name: Cow::Borrowed("model.layers.{layer}.linear_attn.out_proj"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2])), copies: 1, shape: Cow::Borrowed(&[256, 512]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 256, first: 0, rows: 256 }]), kind: Kind::Matrix(Format::Bf16) },
    Row { role: Role::GdnConv, name: Cow::Borrowed("model.layers.{layer}.linear_attn.conv1d.weight"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2])), copies: 1, shape: Cow::Borrowed(&[1024, 1, 4]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: false } },
    Row { role: Role::GdnDecayRate, name: Cow::Borrowed("model.layers.{layer}.linear_attn.A_log"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2])), copies: 1, shape: Cow::Borrowed(&[4]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: false } },
    Row { role: Role::GdnDecayBias, name: Cow::Borrowed("model.layers.{layer}.linear_attn.dt_bias"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2])), copies: 1, shape: Cow::Borrowed(&[4]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: false } },
    Row { role: Role::GdnNorm, name: Cow::Borrowed("model.layers.{layer}.linear_attn.norm.weight"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2])), copies: 1, shape: Cow::Borrowed(&[128]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: false } },
    Row { role: Role::GdnQkv, name: Cow::Borrowed("model.layers.{layer}.linear_attn.in_proj_qkv"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2])), copies: 1, shape: Cow::Borrowed(&[1024, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 1024, first: 0, rows: 1024 }]), kind: Kind::Matrix(Format::Bf16) },
    Row { role: Role::GdnGate, name: Cow::Borrowed("model.layers.{layer}.linear_attn.in_proj_z"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2])), copies: 1, shape: Cow::Borrowed(&[512, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 512, first: 0, rows: 512 }]), kind: Kind::Matrix(Format::Bf16) },
    Row { role: Role::GdnBeta, name: Cow::Borrowed("model.layers.{layer}.linear_attn.in_proj_b"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2])), copies: 1, shape: Cow::Borrowed(&[4, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 4, first: 0, rows: 4 }]), kind: Kind::Matrix(Format::Bf16) },
    Row { role: Role::GdnDecay, name: Cow::Borrowed("model.layers.{layer}.linear_attn.in_proj_a"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2])), copies: 1, shape: Cow::Borrowed(&[4, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 4, first: 0, rows: 4 }]), kind: Kind::Matrix(Format::Bf16) },
    Row { role: Role::Router, name: Cow::Borrowed("model.layers.{layer}.mlp.gate"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2, 3])), copies: 1, shape: Cow::Borrowed(&[8, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 8, first: 0, rows: 8 }]), kind: Kind::Matrix(Format::Bf16) },
    Row { role: Role::ExpertGate, name: Cow::Borrowed("model.layers.{layer}.mlp.experts.{expert}.gate_proj"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2, 3])), copies: 8, shape: Cow::Borrowed(&[128, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 128, first: 0, rows: 128 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::ExpertUp, name: Cow::Borrowed("model.layers.{layer}.mlp.experts.{expert}.up_proj"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2, 3])), copies: 8, shape: Cow::Borrowed(&[128, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 128, first: 0, rows: 128 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::ExpertDown, name: Cow::Borrowed("model.layers.{layer}.mlp.experts.{expert}.down_proj"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2, 3])), copies: 8, shape: Cow::Borrowed(&[256, 128]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 256, first: 0, rows: 256 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::SharedGate, name: Cow::Borrowed("model.layers.{layer}.mlp.shared_expert.gate_proj"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2, 3])), copies: 1, shape: Cow::Borrowed(&[128, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 128, first: 0, rows: 128 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::SharedUp, name: Cow::Borrowed("model.layers.{layer}.mlp.shared_expert.up_proj"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2, 3])), copies: 1, shape: Cow::Borrowed(&[128, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 128, first: 0, rows: 128 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::SharedDown, name: Cow::Borrowed("model.layers.{layer}.mlp.shared_expert.down_proj"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2, 3])), copies: 1, shape: Cow::Borrowed(&[256, 128]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 256, first: 0, rows: 256 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::SharedRouter, name: Cow::Borrowed("model.layers.{layer}.mlp.shared_expert_gate"), sites: Sites::Layers(Cow::Borrowed(&[0, 1, 2, 3])), copies: 1, shape: Cow::Borrowed(&[1, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 1, first: 0, rows: 1 }]), kind: Kind::Matrix(Format::Bf16) },
    Row { role: Role::EmbeddingNorm, name: Cow::Borrowed("mtp.pre_fc_norm_embedding.weight"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[256]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: true } },
    Row { role: Role::HiddenNorm, name: Cow::Borrowed("mtp.pre_fc_norm_hidden.weight"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[256]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: true } },
    Row { role: Role::Fusion, name: Cow::Borrowed("mtp.fc"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[256, 512]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 256, first: 0, rows: 256 }]), kind: Kind::Matrix(Format::Bf16) },
    Row { role: Role::FinalNorm, name: Cow::Borrowed("mtp.norm.weight"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[256]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: true } },
    Row { role: Role::InputNorm, name: Cow::Borrowed("mtp.layers.0.input_layernorm.weight"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[256]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: true } },
    Row { role: Role::PostNorm, name: Cow::Borrowed("mtp.layers.0.post_attention_layernorm.weight"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[256]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: true } },
    Row { role: Role::Query, name: Cow::Borrowed("mtp.layers.0.self_attn.q_proj"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[2048, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 2048, first: 0, rows: 2048 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::Key, name: Cow::Borrowed("mtp.layers.0.self_attn.k_proj"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[512, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 512, first: 0, rows: 512 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::Value, name: Cow::Borrowed("mtp.layers.0.self_attn.v_proj"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[512, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 512, first: 0, rows: 512 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::Output, name: Cow::Borrowed("mtp.layers.0.self_attn.o_proj"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[256, 1024]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 256, first: 0, rows: 256 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::KeyScale, name: Cow::Borrowed("mtp.layers.0.self_attn.k_proj.k_scale"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[]), runs: Cow::Borrowed(&[]), kind: Kind::Unused },
    Row { role: Role::ValueScale, name: Cow::Borrowed("mtp.layers.0.self_attn.v_proj.v_scale"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[]), runs: Cow::Borrowed(&[]), kind: Kind::Unused },
    Row { role: Role::QueryNorm, name: Cow::Borrowed("mtp.layers.0.self_attn.q_norm.weight"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[256]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: true } },
    Row { role: Role::KeyNorm, name: Cow::Borrowed("mtp.layers.0.self_attn.k_norm.weight"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[256]), runs: Cow::Borrowed(&[]), kind: Kind::Vector { plus_one: true } },
    Row { role: Role::Router, name: Cow::Borrowed("mtp.layers.0.mlp.gate"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[8, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 8, first: 0, rows: 8 }]), kind: Kind::Matrix(Format::Bf16) },
    Row { role: Role::ExpertGate, name: Cow::Borrowed("mtp.layers.0.mlp.experts.{expert}.gate_proj"), sites: Sites::Prediction, copies: 8, shape: Cow::Borrowed(&[128, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 128, first: 0, rows: 128 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::ExpertUp, name: Cow::Borrowed("mtp.layers.0.mlp.experts.{expert}.up_proj"), sites: Sites::Prediction, copies: 8, shape: Cow::Borrowed(&[128, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 128, first: 0, rows: 128 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::ExpertDown, name: Cow::Borrowed("mtp.layers.0.mlp.experts.{expert}.down_proj"), sites: Sites::Prediction, copies: 8, shape: Cow::Borrowed(&[256, 128]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 256, first: 0, rows: 256 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::SharedGate, name: Cow::Borrowed("mtp.layers.0.mlp.shared_expert.gate_proj"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[128, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 128, first: 0, rows: 128 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::SharedUp, name: Cow::Borrowed("mtp.layers.0.mlp.shared_expert.up_proj"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[128, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 128, first: 0, rows: 128 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::SharedDown, name: Cow::Borrowed("mtp.layers.0.mlp.shared_expert.down_proj"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[256, 128]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 256, first: 0, rows: 256 }]), kind: Kind::Matrix(Format::Nvfp4CompressedTensors) },
    Row { role: Role::SharedRouter, name: Cow::Borrowed("mtp.layers.0.mlp.shared_expert_gate"), sites: Sites::Prediction, copies: 1, shape: Cow::Borrowed(&[1, 256]), runs: Cow::Borrowed(&[Run { groups: 1, stride: 1, first: 0, rows: 1 }]), kind: Kind::Matrix(Format::Bf16) },
];
/// Temperature of requests that state none.
pub const DEFAULT_TEMPERATURE: f32 = 0.7;
/// Top-k of requests that state none; 0 turns it off.
pub const DEFAULT_TOP_K: u32 = 20;
/// Top-p of requests that state none.
pub const DEFAULT_TOP_P: f32 = 0.8;
/// Tokens that end a turn.
pub const STOP_TOKENS: &[u32] = &[3065, 3063];
/// Tokens of the tokenizer that no merge makes.
pub const ADDED_TOKENS: &[(u32, &str)] = &[
    (3063, "<|endoftext|>"),
    (3064, "<|im_start|>"),
    (3065, "<|im_end|>"),
    (3066, "<tool_call>"),
    (3067, "</tool_call>"),
    (3068, "<tool_response>"),
    (3069, "</tool_response>"),
    (3070, "<think>"),
    (3071, "</think>"),
];
/// Syntax of the model's tool calls, if it makes any.
pub const TOOL_FORMAT: Option<ToolFormat> = Some(ToolFormat::Qwen3Coder);
/// Whether the model reasons when a request does not say.
pub const THINKING_DEFAULT: bool = true;
/// Text that opens reasoning.
pub const THINK_OPEN: &str = "<think>";
/// Text that closes reasoning.
pub const THINK_CLOSE: &str = "</think>";
/// Tokenizer in the weights directory; empty where the model has none.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// Chat template in the weights directory; empty where the model has none there.
pub const TEMPLATE_FILE: &str = "chat_template.jinja";
/// Chat template that is compiled in; empty where the checkpoint's is used.
pub const TEMPLATE: &str = "";
/// Compute capability that kernels are compiled for (major, minor).
pub const COMPUTE_CAPABILITY: (i32, i32) = (9, 0);
/// SMs that grids are sized for.
pub const SMS: u32 = 132;
/// Most rows of one launch of `moe`.
pub const MOE_ROWS: usize = 128;
/// Whether `norm_linear` writes many rows in F16 for `experts`.
pub const EXPERTS_TAKE_ROUNDED: bool = false;
/// Whether `attend` writes rows in F16 in launches with cells.
pub const ATTEND_ROUNDS: bool = false;
/// Chunks of a row of logits, each computed by one block of the head.
pub const TOP_K_CHUNKS: usize = 132;
/// Parts of a chunk of logits, each ranked by one warp.
pub const TOP_K_PARTS: usize = 1;
/// Whether kernels lay out rows as operands of warpgroup instructions.
pub const OPERANDS: bool = true;
/// Files of the checkpoint; empty when their digests are unknown.
pub const CHECKPOINT: &[CheckpointFile] = &[
    CheckpointFile { name: "chat_template.jinja", bytes: 4084, sha256: "71e7f6e95dc28d0c2d39284c8b82f434482c453a3146a20435d84534b7bba787" },
    CheckpointFile { name: "config.json", bytes: 4137, sha256: "b9d47354a3e649bdffeff6917958629776b3bda766a43f1740563d172aeb86db" },
    CheckpointFile { name: "generation_config.json", bytes: 145, sha256: "540273a1b67082536688b5a37a3db15ef59e85f636061c2cb972d960e7f32f06" },
    CheckpointFile { name: "model.safetensors", bytes: 10354740, sha256: "0be29005740715473db0e4e2dd2bccefe622ef0f9c891331ca35c1725e6ca9eb" },
    CheckpointFile { name: "tokenizer.json", bytes: 192613, sha256: "b4d624f9f57ac1a663c595cd717b8240f8b1e5774778fa9f2a7828b5a0a44477" },
    CheckpointFile { name: "tokenizer_config.json", bytes: 1961, sha256: "beb89b99c6fcf88eeafb05a6f8b773f6b9fe414780dc8891a4f9d428d85ebcb1" },
];
/// Beginning of the names of the decoder's tensors in the checkpoint.
pub const NAME_PREFIX: &str = "model.";
/// Formats whose matrices have a scale of their input in the checkpoint.
pub const INPUT_SCALES: &[Format] = &[];
/// Files compiled into the binary: name and content.
pub static EMBEDDED: &[(&str, &[u8])] = &[
];
/// Prompts and their tokens by another implementation (JSON).
pub const GOLDEN: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../targets/_model/tiny/golden/tokens.json"));
/// Nats per token of the text that a start is checked with, by an outside reference.
pub const TEXT_NLL: Option<f64> = Some(12.2716);
/// Repository in which the weights are published, `owner/name`.
pub const REPOSITORY: Option<&str> = None;
/// Commit of [`REPOSITORY`].
pub const REVISION: Option<&str> = None;
/// Number of the checkpoint's tensors but for the vision tower: the least, the most.
pub const TENSORS: std::ops::RangeInclusive<u64> = 487..=487;
/// Bytes of the checkpoint's tensors but for the vision tower: the least, the most.
pub const TENSOR_BYTES: std::ops::RangeInclusive<u64> = 10292076..=10292076;
/// Number and bytes of the vision tower's tensors.
pub const VISION_TENSORS: [u64; 2] = [0, 0];
/// File of the model's dimensions, as the release has it.
pub const CONFIG_FILE: &str = "config.json";
/// File of all tensors, where there is no index.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// Index: the file of each tensor.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// Facts that [`CONFIG_FILE`] must not contradict.
pub const CONFIG: &[Fact] = &[
    Fact { key: "family", pointer: "/model_type", elsewhere: &[], right: Cow::Borrowed(r#"["qwen3_5_moe_text","qwen3_5_moe"]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/architectures", elsewhere: &[], right: Cow::Borrowed(r#"[["Qwen3_5MoeForCausalLM"],["Qwen3_5MoeForConditionalGeneration"]]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/hidden_act", elsewhere: &[], right: Cow::Borrowed(r#"["silu","swish"]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/hidden_activation", elsewhere: &[], right: Cow::Borrowed(r#"["silu","swish"]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/attn_output_gate", elsewhere: &[], right: Cow::Borrowed(r#"[true]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/attention_bias", elsewhere: &[], right: Cow::Borrowed(r#"[false]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/qkv_bias", elsewhere: &[], right: Cow::Borrowed(r#"[false]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/use_bias", elsewhere: &[], right: Cow::Borrowed(r#"[false]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/mlp_bias", elsewhere: &[], right: Cow::Borrowed(r#"[false]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/use_qk_norm", elsewhere: &[], right: Cow::Borrowed(r#"[true]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/qk_norm", elsewhere: &[], right: Cow::Borrowed(r#"[true]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/use_sliding_window", elsewhere: &[], right: Cow::Borrowed(r#"[false]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/attention_chunk_size", elsewhere: &[], right: Cow::Borrowed(r#"[null]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/attn_logit_softcapping", elsewhere: &[], right: Cow::Borrowed(r#"[null]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/logit_scale", elsewhere: &[], right: Cow::Borrowed(r#"[1]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/logits_scaling", elsewhere: &[], right: Cow::Borrowed(r#"[1]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/embedding_multiplier", elsewhere: &[], right: Cow::Borrowed(r#"[1]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/residual_multiplier", elsewhere: &[], right: Cow::Borrowed(r#"[1]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/attention_multiplier", elsewhere: &[], right: Cow::Borrowed(r#"[null]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/swiglu_limit", elsewhere: &[], right: Cow::Borrowed(r#"[null]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/swiglu_alpha", elsewhere: &[], right: Cow::Borrowed(r#"[null]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/is_causal", elsewhere: &[], right: Cow::Borrowed(r#"[true]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/use_bidirectional_attention", elsewhere: &[], right: Cow::Borrowed(r#"[false,null,"vision"]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/attention_k_eq_v", elsewhere: &[], right: Cow::Borrowed(r#"[false]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/hidden_size_per_layer_input", elsewhere: &[], right: Cow::Borrowed(r#"[0]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/num_kv_shared_layers", elsewhere: &[], right: Cow::Borrowed(r#"[0]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/use_double_wide_mlp", elsewhere: &[], right: Cow::Borrowed(r#"[false]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/output_gate_type", elsewhere: &[], right: Cow::Borrowed(r#"["silu","swish"]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/mamba_ssm_dtype", elsewhere: &[], right: Cow::Borrowed(r#"["float32"]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/mtp_use_dedicated_embeddings", elsewhere: &[], right: Cow::Borrowed(r#"[false]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/norm_topk_prob", elsewhere: &[], right: Cow::Borrowed(r#"[true]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/n_group", elsewhere: &[], right: Cow::Borrowed(r#"[1]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/topk_group", elsewhere: &[], right: Cow::Borrowed(r#"[1]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/mlp_only_layers", elsewhere: &[], right: Cow::Borrowed(r#"[[]]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/decoder_sparse_step", elsewhere: &[], right: Cow::Borrowed(r#"[1]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/first_k_dense_replace", elsewhere: &[], right: Cow::Borrowed(r#"[0]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/routed_scaling_factor", elsewhere: &[], right: Cow::Borrowed(r#"[1]"#), required: false, switch: None },
    Fact { key: "family", pointer: "/scoring_func", elsewhere: &[], right: Cow::Borrowed(r#"["softmax"]"#), required: false, switch: None },
    Fact { key: "attention.rope_theta", pointer: "/rope_parameters/rope_theta", elsewhere: &["/rope_theta"], right: Cow::Borrowed(r#"[10000000.0]"#), required: true, switch: None },
    Fact { key: "attention.rotary_dim", pointer: "/rope_parameters/partial_rotary_factor", elsewhere: &["/partial_rotary_factor"], right: Cow::Borrowed(r#"[0.25]"#), required: true, switch: None },
    Fact { key: "family", pointer: "/rope_interleave", elsewhere: &[], right: Cow::Borrowed(r#"[false]"#), required: false, switch: None },
    Fact { key: "attention.rope_scaling", pointer: "/rope_parameters/rope_type", elsewhere: &["/rope_parameters/type", "/rope_scaling/rope_type", "/rope_scaling/type"], right: Cow::Borrowed(r#"["default","mrope"]"#), required: false, switch: None },
    Fact { key: "attention.rope_scaling", pointer: "/rope_parameters/factor", elsewhere: &["/rope_scaling/factor"], right: Cow::Borrowed(r#"[1]"#), required: false, switch: None },
    Fact { key: "hidden", pointer: "/hidden_size", elsewhere: &[], right: Cow::Borrowed(r#"[256]"#), required: false, switch: None },
    Fact { key: "vocab", pointer: "/vocab_size", elsewhere: &[], right: Cow::Borrowed(r#"[3072]"#), required: false, switch: None },
    Fact { key: "tied_head", pointer: "/tie_word_embeddings", elsewhere: &[], right: Cow::Borrowed(r#"[false]"#), required: false, switch: None },
    Fact { key: "norm_eps", pointer: "/rms_norm_eps", elsewhere: &["/layer_norm_epsilon"], right: Cow::Borrowed(r#"[1e-6]"#), required: true, switch: None },
    Fact { key: "layers.count", pointer: "/num_hidden_layers", elsewhere: &[], right: Cow::Borrowed(r#"[4]"#), required: false, switch: None },
    Fact { key: "mtp.layers", pointer: "/mtp_num_hidden_layers", elsewhere: &[], right: Cow::Borrowed(r#"[1]"#), required: false, switch: None },
    Fact { key: "query_pre_attn_scalar", pointer: "/query_pre_attn_scalar", elsewhere: &[], right: Cow::Borrowed(r#"[null]"#), required: false, switch: None },
    Fact { key: "logit_cap", pointer: "/final_logit_softcapping", elsewhere: &[], right: Cow::Borrowed(r#"[null]"#), required: false, switch: None },
    Fact { key: "attention.heads", pointer: "/num_attention_heads", elsewhere: &[], right: Cow::Borrowed(r#"[4]"#), required: true, switch: None },
    Fact { key: "attention.kv_heads", pointer: "/num_key_value_heads", elsewhere: &[], right: Cow::Borrowed(r#"[2]"#), required: true, switch: None },
    Fact { key: "attention.head_dim", pointer: "/head_dim", elsewhere: &[], right: Cow::Borrowed(r#"[256]"#), required: true, switch: None },
    Fact { key: "family", pointer: "/sliding_window", elsewhere: &[], right: Cow::Borrowed(r#"[null]"#), required: false, switch: Some("/use_sliding_window") },
    Fact { key: "gdn.key_heads", pointer: "/linear_num_key_heads", elsewhere: &[], right: Cow::Borrowed(r#"[2]"#), required: true, switch: None },
    Fact { key: "gdn.value_heads", pointer: "/linear_num_value_heads", elsewhere: &[], right: Cow::Borrowed(r#"[4]"#), required: true, switch: None },
    Fact { key: "gdn.key_dim", pointer: "/linear_key_head_dim", elsewhere: &[], right: Cow::Borrowed(r#"[128]"#), required: true, switch: None },
    Fact { key: "gdn.value_dim", pointer: "/linear_value_head_dim", elsewhere: &[], right: Cow::Borrowed(r#"[128]"#), required: true, switch: None },
    Fact { key: "gdn.conv_kernel", pointer: "/linear_conv_kernel_dim", elsewhere: &[], right: Cow::Borrowed(r#"[4]"#), required: false, switch: None },
    Fact { key: "moe.experts", pointer: "/num_experts", elsewhere: &["/num_local_experts"], right: Cow::Borrowed(r#"[8]"#), required: false, switch: None },
    Fact { key: "moe.experts_per_token", pointer: "/num_experts_per_tok", elsewhere: &[], right: Cow::Borrowed(r#"[2]"#), required: true, switch: None },
    Fact { key: "moe.intermediate", pointer: "/moe_intermediate_size", elsewhere: &[], right: Cow::Borrowed(r#"[128]"#), required: false, switch: None },
    Fact { key: "moe.shared_intermediate", pointer: "/shared_expert_intermediate_size", elsewhere: &[], right: Cow::Borrowed(r#"[128]"#), required: false, switch: None },
    Fact { key: "layers.period", pointer: "/layer_types", elsewhere: &[], right: Cow::Borrowed(r#"[["linear_attention","linear_attention","linear_attention","full_attention"]]"#), required: false, switch: None },
    Fact { key: "layers.period", pointer: "/full_attention_interval", elsewhere: &[], right: Cow::Borrowed(r#"[4]"#), required: false, switch: None },
    Fact { key: "format", pointer: "/quantization_config/quant_method", elsewhere: &[], right: Cow::Borrowed(r#"["compressed-tensors"]"#), required: false, switch: None },
    Fact { key: "format", pointer: "/quantization_config/format", elsewhere: &[], right: Cow::Borrowed(r#"["nvfp4-pack-quantized"]"#), required: false, switch: None },
    Fact { key: "format", pointer: "/quantization_config/config_groups/*/weights/type", elsewhere: &[], right: Cow::Borrowed(r#"["float"]"#), required: false, switch: None },
    Fact { key: "format", pointer: "/quantization_config/config_groups/*/weights/num_bits", elsewhere: &[], right: Cow::Borrowed(r#"[4]"#), required: false, switch: None },
    Fact { key: "format", pointer: "/quantization_config/config_groups/*/weights/group_size", elsewhere: &[], right: Cow::Borrowed(r#"[16]"#), required: false, switch: None },
    Fact { key: "chat.stop_ids", pointer: "/eos_token_id", elsewhere: &[], right: Cow::Borrowed(r#"[3065,3063,[3065,3063],[3063,3065],[3063],[3065]]"#), required: false, switch: None },
];
/// Facts that `generation_config.json` must not contradict.
pub const GENERATION: &[Fact] = &[
    Fact { key: "chat.stop_ids", pointer: "/eos_token_id", elsewhere: &[], right: Cow::Borrowed(r#"[[3065,3063],[3063,3065],[3065,3063]]"#), required: false, switch: None },
];
