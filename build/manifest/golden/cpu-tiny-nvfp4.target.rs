// Generated from targets/cpu/tiny/nvfp4.toml; edit that.

/// Hardware, the first part of the target's name.
pub const HARDWARE: &str = "cpu";
/// Model, the second part of the target's name.
pub const MODEL: &str = "tiny";
/// Quantisation, the third part of the target's name.
pub const QUANT: &str = "nvfp4";
/// Name of the binary.
pub const BINARY: &str = "atlas-cpu-tiny-nvfp4";
/// Model id that the API reports.
pub const MODEL_ID: &str = "tiny";
/// Whether requests can be answered.
pub const SERVES: bool = true;
/// What is left to others of the host's memory, bytes, if the model lies in it.
pub const HOST_RESERVE: Option<u64> = Some(268435456);
/// Of a larger GPU the SMs that this binary keeps to; all of it if none.
pub const PARTITION: Option<u32> = None;
/// The expanded manifest (TOML), as `show` prints it.
pub const MANIFEST: &str = r##"target = "cpu/tiny/nvfp4"
binary = "atlas-cpu-tiny-nvfp4"
serves = true
ops_missing = []

[derived]
parameters_text = 7764120
parameters_mtp = 2068480
parameters_active = 4618648
checkpoint_tensors = 487
checkpoint_bytes = 10292076
checkpoint_bytes_text = 8934128
checkpoint_bytes_mtp = 1357948
weight_bytes_per_token = 6034384
kv_bytes_per_token = 4096
kv_pages = 512
kv_bytes = 268435456
state_matrix_bytes_per_sequence = 786432
state_conv_bytes_per_sequence = 18432
resident_bytes = 291605356

[leaf]
hw = "cpu"
model = "tiny"
embed = true

[leaf.quant]
embed = "bf16"
head = "bf16"
gdn = "bf16"
attention = "nvfp4_compressed_tensors"
experts = "nvfp4_compressed_tensors"
shared_expert = "nvfp4_compressed_tensors"
mtp_attention = "nvfp4_compressed_tensors"
mtp_experts = "nvfp4_compressed_tensors"
kv = "f32"

[leaf.limits]
sequences = 16
context = 2048
kv_tokens = 32768
queued = 64
page = 64

[leaf.steps]
decode = [1, 2, 4, 8, 16]
prefill = 256

[leaf.op]

[hardware]
title = "any CPU"
backend = "cpu"
host_reserve_bytes = 268435456

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
input_scales = false
stacked_experts = false
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
sha256 = "cf40bd59dd0f6dcf015c77cbbad669fbddf41f221f7dfa3ca56525caf08ecdce"

[[model.checkpoint.nvfp4.files]]
name = "tokenizer.json"
bytes = 192613
sha256 = "b4d624f9f57ac1a663c595cd717b8240f8b1e5774778fa9f2a7828b5a0a44477"

[[model.checkpoint.nvfp4.files]]
name = "tokenizer_config.json"
bytes = 1961
sha256 = "beb89b99c6fcf88eeafb05a6f8b773f6b9fe414780dc8891a4f9d428d85ebcb1"

[weights]
"embed_tokens" = { count = 1, n = 3072, k = 256, format = "bf16", bytes_stored = 1572864, bytes_read_per_token = 512 }
"lm_head" = { count = 1, n = 3072, k = 256, format = "bf16", bytes_stored = 1572864, bytes_read_per_token = 1572864 }
"in_proj_qkv" = { count = 3, n = 1024, k = 256, format = "bf16", bytes_stored = 1572864, bytes_read_per_token = 1572864 }
"in_proj_z" = { count = 3, n = 512, k = 256, format = "bf16", bytes_stored = 786432, bytes_read_per_token = 786432 }
"in_proj_a, in_proj_b" = { count = 6, n = 4, k = 256, format = "bf16", bytes_stored = 12288, bytes_read_per_token = 12288 }
"out_proj" = { count = 3, n = 256, k = 512, format = "bf16", bytes_stored = 786432, bytes_read_per_token = 786432 }
"conv1d" = { count = 3, n = 1024, k = 4, format = "vector", bytes_stored = 24576, bytes_read_per_token = 24576 }
"A_log, dt_bias" = { count = 6, n = 1, k = 4, format = "vector", bytes_stored = 48, bytes_read_per_token = 48 }
"linear_attn.norm" = { count = 3, n = 1, k = 128, format = "vector", bytes_stored = 768, bytes_read_per_token = 768 }
"q_proj" = { count = 1, n = 2048, k = 256, format = "nvfp4_compressed_tensors", bytes_stored = 294916, bytes_read_per_token = 294916 }
"k_proj, v_proj" = { count = 2, n = 512, k = 256, format = "nvfp4_compressed_tensors", bytes_stored = 147464, bytes_read_per_token = 147464 }
"o_proj" = { count = 1, n = 256, k = 1024, format = "nvfp4_compressed_tensors", bytes_stored = 147460, bytes_read_per_token = 147460 }
"q_norm, k_norm" = { count = 2, n = 1, k = 256, format = "vector", bytes_stored = 1024, bytes_read_per_token = 1024 }
"mlp.gate" = { count = 4, n = 8, k = 256, format = "bf16", bytes_stored = 16384, bytes_read_per_token = 16384 }
"experts gate_proj, up_proj" = { count = 64, n = 128, k = 256, format = "nvfp4_compressed_tensors", bytes_stored = 1179904, bytes_read_per_token = 294976 }
"experts down_proj" = { count = 32, n = 256, k = 128, format = "nvfp4_compressed_tensors", bytes_stored = 589952, bytes_read_per_token = 147488 }
"shared_expert gate_proj, up_proj" = { count = 8, n = 128, k = 256, format = "nvfp4_compressed_tensors", bytes_stored = 147488, bytes_read_per_token = 147488 }
"shared_expert down_proj" = { count = 4, n = 256, k = 128, format = "nvfp4_compressed_tensors", bytes_stored = 73744, bytes_read_per_token = 73744 }
"shared_expert_gate" = { count = 4, n = 1, k = 256, format = "bf16", bytes_stored = 2048, bytes_read_per_token = 2048 }
"norms" = { count = 9, n = 1, k = 256, format = "vector", bytes_stored = 4608, bytes_read_per_token = 4608 }
"mtp.fc" = { count = 1, n = 256, k = 512, format = "bf16", bytes_stored = 262144, bytes_read_per_token = 0 }
"mtp.norms" = { count = 5, n = 1, k = 256, format = "vector", bytes_stored = 2560, bytes_read_per_token = 0 }
"mtp.q_proj" = { count = 1, n = 2048, k = 256, format = "nvfp4_compressed_tensors", bytes_stored = 294916, bytes_read_per_token = 0 }
"mtp.k_proj, v_proj" = { count = 2, n = 512, k = 256, format = "nvfp4_compressed_tensors", bytes_stored = 147464, bytes_read_per_token = 0 }
"mtp.o_proj" = { count = 1, n = 256, k = 1024, format = "nvfp4_compressed_tensors", bytes_stored = 147460, bytes_read_per_token = 0 }
"mtp.q_norm, k_norm" = { count = 2, n = 1, k = 256, format = "vector", bytes_stored = 1024, bytes_read_per_token = 0 }
"mtp.mlp.gate" = { count = 1, n = 8, k = 256, format = "bf16", bytes_stored = 4096, bytes_read_per_token = 0 }
"mtp.experts gate_proj, up_proj" = { count = 16, n = 128, k = 256, format = "nvfp4_compressed_tensors", bytes_stored = 294976, bytes_read_per_token = 0 }
"mtp.experts down_proj" = { count = 8, n = 256, k = 128, format = "nvfp4_compressed_tensors", bytes_stored = 147488, bytes_read_per_token = 0 }
"mtp.shared_expert gate_proj, up_proj" = { count = 2, n = 128, k = 256, format = "nvfp4_compressed_tensors", bytes_stored = 36872, bytes_read_per_token = 0 }
"mtp.shared_expert down_proj" = { count = 1, n = 256, k = 128, format = "nvfp4_compressed_tensors", bytes_stored = 18436, bytes_read_per_token = 0 }
"mtp.shared_expert_gate" = { count = 1, n = 1, k = 256, format = "bf16", bytes_stored = 512, bytes_read_per_token = 0 }
"##;
/// Width of the residual stream.
pub const HIDDEN: usize = 256;
/// Decoder layers.
pub const LAYERS: usize = 4;
/// Rows of the embedding table.
pub const VOCAB: usize = 3072;
/// Whether the output head is the embedding table.
pub const TIED_HEAD: bool = false;
/// Epsilon of every norm.
pub const NORM_EPS: f32 = 1e-6;
/// Multi-token-prediction layers (0 or 1).
pub const MTP_LAYERS: usize = 1;
/// Embedding table.
pub const FORMAT_EMBED: Format = Format::Bf16;
/// Output head.
pub const FORMAT_HEAD: Format = Format::Bf16;
/// Gated DeltaNet projections.
pub const FORMAT_GDN: Format = Format::Bf16;
/// Attention projections.
pub const FORMAT_ATTENTION: Format = Format::Nvfp4CompressedTensors;
/// Routed experts.
pub const FORMAT_EXPERTS: Format = Format::Nvfp4CompressedTensors;
/// Shared expert.
pub const FORMAT_SHARED_EXPERT: Format = Format::Nvfp4CompressedTensors;
/// Attention of the prediction layer.
pub const FORMAT_MTP_ATTENTION: Format = Format::Nvfp4CompressedTensors;
/// Experts of the prediction layer.
pub const FORMAT_MTP_EXPERTS: Format = Format::Nvfp4CompressedTensors;
/// Keys and values.
pub const FORMAT_KV: KvFormat = KvFormat::F32;
/// Tokens per KV page; also the grid of prefill chunks.
pub const PAGE: usize = 64;
/// Longest sequence, prompt and reply, in tokens.
pub const MAX_CONTEXT: usize = 2048;
/// Sequences that may hold a slot at once.
pub const MAX_SEQUENCES: usize = 16;
/// Requests that may wait for a slot.
pub const MAX_QUEUED: usize = 64;
/// Prompt tokens that one step may prefill; a multiple of `PAGE`.
pub const PREFILL_TOKENS: usize = 256;
/// KV pages of the whole server, at most: memory may have room for fewer.
pub const KV_PAGES: usize = 512;
/// Largest logits of a row that `top_k` ranks.
pub const TOP_K: usize = 64;
/// Attention over all positions.
pub struct Full;
impl crate::shapes::Attention for Full {
    const HEADS: usize = 4;
    const KV_HEADS: usize = 2;
    const HEAD_DIM: usize = 256;
    const ROTARY_DIM: usize = 64;
    const ROPE: crate::shapes::Rope = crate::shapes::Rope { theta: 10000000.0, scaling: None };
    const GATED: bool = true;
    const NORMED: bool = true;
}
/// Gated DeltaNet.
pub struct Gdn;
impl crate::shapes::Delta for Gdn {
    const KEY_HEADS: usize = 2;
    const VALUE_HEADS: usize = 4;
    const KEY_DIM: usize = 128;
    const VALUE_DIM: usize = 128;
    const CONV: usize = 4;
}
/// Mixture of experts.
pub struct Moe;
impl crate::shapes::Experts for Moe {
    const COUNT: usize = 8;
    const PER_TOKEN: usize = 2;
    const INTERMEDIATE: usize = 128;
    const SHARED: usize = 128;
    const ROWS_NVFP4: bool = false;
}
/// Token mixer of each layer.
pub const MIXERS: [Mixer; LAYERS] = [Mixer::Gdn, Mixer::Gdn, Mixer::Gdn, Mixer::Attention];
/// Rows of decode steps, ascending; the last is `MAX_SEQUENCES`.
pub const DECODE_STEPS: &[usize] = &[1, 2, 4, 8, 16];
/// Temperature of requests that name none.
pub const DEFAULT_TEMPERATURE: f32 = 0.7;
/// Top-k of requests that name none; 0 keeps all.
pub const DEFAULT_TOP_K: u32 = 20;
/// Top-p of requests that name none.
pub const DEFAULT_TOP_P: f32 = 0.8;
/// Tokens that end a turn.
pub const STOP_TOKENS: &[u32] = &[3065, 3063];
/// Tokens that the tokenizer has beside those of its merges.
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
/// Whether the model calls tools.
pub const CALLS_TOOLS: bool = true;
/// Syntax of tool calls; without a meaning where the model calls none.
#[cfg(feature = "server")]
pub type ToolSyntax = crate::text::tools::qwen3_coder::Qwen3Coder;
/// Whether the model reasons when a request does not say.
pub const THINKING_DEFAULT: bool = true;
/// Opens reasoning.
pub const THINK_OPEN: &str = "<think>";
/// Closes reasoning.
pub const THINK_CLOSE: &str = "</think>";
/// Tokenizer in the weights directory; empty where the model has none.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// Chat template in the weights directory; empty where the model has none.
pub const TEMPLATE_FILE: &str = "chat_template.jinja";
/// Files of the checkpoint; empty when their digests are unknown.
pub const CHECKPOINT: &[CheckpointFile] = &[
    CheckpointFile { name: "chat_template.jinja", bytes: 4084, sha256: "71e7f6e95dc28d0c2d39284c8b82f434482c453a3146a20435d84534b7bba787" },
    CheckpointFile { name: "config.json", bytes: 4137, sha256: "b9d47354a3e649bdffeff6917958629776b3bda766a43f1740563d172aeb86db" },
    CheckpointFile { name: "generation_config.json", bytes: 145, sha256: "540273a1b67082536688b5a37a3db15ef59e85f636061c2cb972d960e7f32f06" },
    CheckpointFile { name: "model.safetensors", bytes: 10354740, sha256: "cf40bd59dd0f6dcf015c77cbbad669fbddf41f221f7dfa3ca56525caf08ecdce" },
    CheckpointFile { name: "tokenizer.json", bytes: 192613, sha256: "b4d624f9f57ac1a663c595cd717b8240f8b1e5774778fa9f2a7828b5a0a44477" },
    CheckpointFile { name: "tokenizer_config.json", bytes: 1961, sha256: "beb89b99c6fcf88eeafb05a6f8b773f6b9fe414780dc8891a4f9d428d85ebcb1" },
];
/// What names of the decoder's tensors begin with in the checkpoint.
pub const NAME_PREFIX: &str = "model.";
/// Whether NVFP4 matrices of the checkpoint carry a scale of their input as well.
pub const INPUT_SCALES: bool = false;
/// Files compiled into the binary: name and content.
pub static EMBEDDED: &[(&str, &[u8])] = &[
    ("chat_template.jinja", include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/targets/_model/tiny/chat_template.jinja"))),
    ("config.json", include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/targets/_model/tiny/config.json"))),
    ("generation_config.json", include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/targets/_model/tiny/generation_config.json"))),
    ("model.safetensors", include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/targets/_model/tiny/model.safetensors"))),
    ("tokenizer.json", include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/targets/_model/tiny/tokenizer.json"))),
    ("tokenizer_config.json", include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/targets/_model/tiny/tokenizer_config.json"))),
];
/// Prompts with the tokens that another implementation makes of them (JSON).
pub const GOLDEN: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/targets/_model/tiny/golden/tokens.json"));
/// Nats per token that an outside reference gives the text of the start's check.
pub const TEXT_NLL: Option<f64> = Some(12.2716);
/// Where the weights are published, `owner/name`.
pub const REPOSITORY: Option<&str> = None;
/// Commit of that repository.
pub const REVISION: Option<&str> = None;
/// Tensors of the checkpoint without the vision tower.
pub const TENSORS: u64 = 487;
/// Their bytes, the least and the most.
pub const TENSOR_BYTES: std::ops::RangeInclusive<u64> = 10292076..=10292076;
/// Tensors of the vision tower, and their bytes.
pub const VISION_TENSORS: [u64; 2] = [0, 0];
/// Facts that the checkpoint's `config.json` must not contradict.
pub const CONFIG: &[Fact] = &[
    Fact { key: "family", pointer: "/model_type", right: Cow::Borrowed(r#"["qwen3_5_moe","qwen3_5_moe_text"]"#), required: false },
    Fact { key: "family", pointer: "/architectures", right: Cow::Borrowed(r#"[["Qwen3_5MoeForConditionalGeneration"],["Qwen3_5MoeForCausalLM"]]"#), required: false },
    Fact { key: "family", pointer: "/hidden_act", right: Cow::Borrowed(r#"["silu","swish"]"#), required: false },
    Fact { key: "family", pointer: "/hidden_activation", right: Cow::Borrowed(r#"["silu","swish"]"#), required: false },
    Fact { key: "family", pointer: "/output_gate_type", right: Cow::Borrowed(r#"["silu","swish"]"#), required: false },
    Fact { key: "family", pointer: "/attn_output_gate", right: Cow::Borrowed(r#"[true]"#), required: false },
    Fact { key: "family", pointer: "/attention_bias", right: Cow::Borrowed(r#"[false]"#), required: false },
    Fact { key: "family", pointer: "/qkv_bias", right: Cow::Borrowed(r#"[false]"#), required: false },
    Fact { key: "family", pointer: "/use_bias", right: Cow::Borrowed(r#"[false]"#), required: false },
    Fact { key: "family", pointer: "/mlp_bias", right: Cow::Borrowed(r#"[false]"#), required: false },
    Fact { key: "family", pointer: "/use_qk_norm", right: Cow::Borrowed(r#"[true]"#), required: false },
    Fact { key: "family", pointer: "/qk_norm", right: Cow::Borrowed(r#"[true]"#), required: false },
    Fact { key: "family", pointer: "/use_sliding_window", right: Cow::Borrowed(r#"[false]"#), required: false },
    Fact { key: "family", pointer: "/sliding_window", right: Cow::Borrowed(r#"[null]"#), required: false },
    Fact { key: "family", pointer: "/attention_chunk_size", right: Cow::Borrowed(r#"[null]"#), required: false },
    Fact { key: "family", pointer: "/attn_logit_softcapping", right: Cow::Borrowed(r#"[null]"#), required: false },
    Fact { key: "family", pointer: "/final_logit_softcapping", right: Cow::Borrowed(r#"[null]"#), required: false },
    Fact { key: "family", pointer: "/logit_scale", right: Cow::Borrowed(r#"[1]"#), required: false },
    Fact { key: "family", pointer: "/logits_scaling", right: Cow::Borrowed(r#"[1]"#), required: false },
    Fact { key: "family", pointer: "/embedding_multiplier", right: Cow::Borrowed(r#"[1]"#), required: false },
    Fact { key: "family", pointer: "/residual_multiplier", right: Cow::Borrowed(r#"[1]"#), required: false },
    Fact { key: "family", pointer: "/attention_multiplier", right: Cow::Borrowed(r#"[null]"#), required: false },
    Fact { key: "family", pointer: "/query_pre_attn_scalar", right: Cow::Borrowed(r#"[null]"#), required: false },
    Fact { key: "family", pointer: "/swiglu_limit", right: Cow::Borrowed(r#"[null]"#), required: false },
    Fact { key: "family", pointer: "/mamba_ssm_dtype", right: Cow::Borrowed(r#"["float32"]"#), required: false },
    Fact { key: "family", pointer: "/norm_topk_prob", right: Cow::Borrowed(r#"[true]"#), required: false },
    Fact { key: "family", pointer: "/routed_scaling_factor", right: Cow::Borrowed(r#"[1]"#), required: false },
    Fact { key: "family", pointer: "/scoring_func", right: Cow::Borrowed(r#"["softmax"]"#), required: false },
    Fact { key: "family", pointer: "/n_group", right: Cow::Borrowed(r#"[1]"#), required: false },
    Fact { key: "family", pointer: "/topk_group", right: Cow::Borrowed(r#"[1]"#), required: false },
    Fact { key: "family", pointer: "/mlp_only_layers", right: Cow::Borrowed(r#"[[]]"#), required: false },
    Fact { key: "family", pointer: "/decoder_sparse_step", right: Cow::Borrowed(r#"[1]"#), required: false },
    Fact { key: "family", pointer: "/first_k_dense_replace", right: Cow::Borrowed(r#"[0]"#), required: false },
    Fact { key: "family", pointer: "/mtp_use_dedicated_embeddings", right: Cow::Borrowed(r#"[false]"#), required: false },
    Fact { key: "attention.rope_theta", pointer: "/rope_parameters/rope_theta", right: Cow::Borrowed(r#"[10000000.0]"#), required: true },
    Fact { key: "attention.rope_theta", pointer: "/rope_theta", right: Cow::Borrowed(r#"[10000000.0]"#), required: false },
    Fact { key: "attention.rotary_dim", pointer: "/rope_parameters/partial_rotary_factor", right: Cow::Borrowed(r#"[0.25]"#), required: true },
    Fact { key: "attention.rotary_dim", pointer: "/partial_rotary_factor", right: Cow::Borrowed(r#"[0.25]"#), required: false },
    Fact { key: "family", pointer: "/rope_parameters/rope_type", right: Cow::Borrowed(r#"["default","mrope"]"#), required: false },
    Fact { key: "family", pointer: "/rope_parameters/type", right: Cow::Borrowed(r#"["default","mrope"]"#), required: false },
    Fact { key: "family", pointer: "/rope_scaling/rope_type", right: Cow::Borrowed(r#"["default","mrope"]"#), required: false },
    Fact { key: "family", pointer: "/rope_scaling/type", right: Cow::Borrowed(r#"["default","mrope"]"#), required: false },
    Fact { key: "family", pointer: "/rope_parameters/factor", right: Cow::Borrowed(r#"[1]"#), required: false },
    Fact { key: "family", pointer: "/rope_scaling/factor", right: Cow::Borrowed(r#"[1]"#), required: false },
    Fact { key: "family", pointer: "/rope_interleave", right: Cow::Borrowed(r#"[false]"#), required: false },
    Fact { key: "hidden", pointer: "/hidden_size", right: Cow::Borrowed(r#"[256]"#), required: false },
    Fact { key: "vocab", pointer: "/vocab_size", right: Cow::Borrowed(r#"[3072]"#), required: false },
    Fact { key: "tied_head", pointer: "/tie_word_embeddings", right: Cow::Borrowed(r#"[false]"#), required: false },
    Fact { key: "norm_eps", pointer: "/rms_norm_eps", right: Cow::Borrowed(r#"[1e-6]"#), required: true },
    Fact { key: "layers.count", pointer: "/num_hidden_layers", right: Cow::Borrowed(r#"[4]"#), required: false },
    Fact { key: "mtp.layers", pointer: "/mtp_num_hidden_layers", right: Cow::Borrowed(r#"[1]"#), required: false },
    Fact { key: "moe.experts", pointer: "/num_experts", right: Cow::Borrowed(r#"[8]"#), required: false },
    Fact { key: "moe.experts_per_token", pointer: "/num_experts_per_tok", right: Cow::Borrowed(r#"[2]"#), required: true },
    Fact { key: "moe.intermediate", pointer: "/moe_intermediate_size", right: Cow::Borrowed(r#"[128]"#), required: false },
    Fact { key: "moe.shared_intermediate", pointer: "/shared_expert_intermediate_size", right: Cow::Borrowed(r#"[128]"#), required: false },
    Fact { key: "attention.heads", pointer: "/num_attention_heads", right: Cow::Borrowed(r#"[4]"#), required: true },
    Fact { key: "attention.kv_heads", pointer: "/num_key_value_heads", right: Cow::Borrowed(r#"[2]"#), required: true },
    Fact { key: "attention.head_dim", pointer: "/head_dim", right: Cow::Borrowed(r#"[256]"#), required: true },
    Fact { key: "gdn.key_heads", pointer: "/linear_num_key_heads", right: Cow::Borrowed(r#"[2]"#), required: true },
    Fact { key: "gdn.value_heads", pointer: "/linear_num_value_heads", right: Cow::Borrowed(r#"[4]"#), required: true },
    Fact { key: "gdn.key_dim", pointer: "/linear_key_head_dim", right: Cow::Borrowed(r#"[128]"#), required: true },
    Fact { key: "gdn.value_dim", pointer: "/linear_value_head_dim", right: Cow::Borrowed(r#"[128]"#), required: true },
    Fact { key: "gdn.conv_kernel", pointer: "/linear_conv_kernel_dim", right: Cow::Borrowed(r#"[4]"#), required: false },
    Fact { key: "layers.period", pointer: "/layer_types", right: Cow::Borrowed(r#"[["linear_attention","linear_attention","linear_attention","full_attention"]]"#), required: false },
    Fact { key: "layers.period", pointer: "/full_attention_interval", right: Cow::Borrowed(r#"[4]"#), required: false },
    Fact { key: "quant", pointer: "/quantization_config/quant_method", right: Cow::Borrowed(r#"["compressed-tensors"]"#), required: false },
    Fact { key: "quant", pointer: "/quantization_config/format", right: Cow::Borrowed(r#"["nvfp4-pack-quantized"]"#), required: false },
    Fact { key: "quant", pointer: "/quantization_config/config_groups/*/weights/type", right: Cow::Borrowed(r#"["float"]"#), required: false },
    Fact { key: "quant", pointer: "/quantization_config/config_groups/*/weights/num_bits", right: Cow::Borrowed(r#"[4]"#), required: false },
    Fact { key: "quant", pointer: "/quantization_config/config_groups/*/weights/group_size", right: Cow::Borrowed(r#"[16]"#), required: false },
    Fact { key: "chat.stop_ids", pointer: "/eos_token_id", right: Cow::Borrowed(r#"[3065,3063,[3065,3063],[3063,3065],[3065,3063]]"#), required: false },
];
/// Facts that its `generation_config.json` must not contradict.
pub const GENERATION: &[Fact] = &[
    Fact { key: "chat.stop_ids", pointer: "/eos_token_id", right: Cow::Borrowed(r#"[[3065,3063],[3063,3065],[3065,3063]]"#), required: false },
];
