"""Tables of `golden_random.py`: what the checkpoints of each family look like, and the random models of it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Family:
    """Tensors of a family's checkpoints and words of its config.json, as transformers reads them."""

    architecture: str
    model_type: str
    norm: float = 1.0  # weights of norms lie around it: 0 where a norm multiplies by 1 + w
    gated: bool = False  # q_proj has a gate after each query head
    qk_norm: bool = False  # a norm of each query and key head
    rows_norm: bool = False  # a norm over all query heads of a row, one over all key heads, which turn in part
    corrected: bool = False  # a sigmoid chooses experts, whose scores are corrected in the choice
    slides: bool = False  # some layers attend to a window, in a shape of their own
    alike: bool = False  # in the same heads, though: only window and frequencies are of their own
    windowed: bool = False  # some layers attend to a window, in the shape of the others
    sandwiched: bool = False  # what a block adds is normed
    scalars: bool = False  # layers scale hidden states; values of layers over all positions are keys
    biased: bool = False  # products of attention, router and experts have biases, heads have sinks
    gdn: str = ""  # inputs of Gated DeltaNet: "split", or "fused" (interleaved by key head)
    router: str = ""  # the layer's mixture of experts; without one it has an MLP
    expert: tuple = ("gate_proj", "up_proj", "down_proj")
    shared: bool = False  # and a shared expert with a gate
    latent: bool = False  # attention is over latents; tensors have names of the publisher's own code
    mamba: bool = False  # layers are Mamba-2, attention or experts of two matrices, with Nemotron's names
    counts: str = "num_experts"
    inner: str = "moe_intermediate_size"
    words: tuple = ()  # further facts of config.json


FAMILIES = {
    "llama": Family("LlamaForCausalLM", "llama", inner="intermediate_size"),
    "qwen3": Family("Qwen3ForCausalLM", "qwen3", qk_norm=True, inner="intermediate_size"),
    "sliding": Family("SlidingForCausalLM", "sliding", qk_norm=True, slides=True, inner="intermediate_size"),
    "gemma3": Family("Gemma3ForCausalLM", "gemma3_text", norm=0.0, qk_norm=True, slides=True, alike=True,
                     sandwiched=True, inner="intermediate_size", words=(("hidden_activation", "gelu_pytorch_tanh"),)),
    "gemma4": Family("Gemma4ForCausalLM", "gemma4_text", qk_norm=True, slides=True, sandwiched=True, scalars=True,
                     inner="intermediate_size",
                     words=(("hidden_activation", "gelu_pytorch_tanh"), ("attention_k_eq_v", True),
                            ("hidden_size_per_layer_input", 0))),
    "gpt_oss": Family("GptOssForCausalLM", "gpt_oss", windowed=True, biased=True, router="mlp",
                      counts="num_local_experts", inner="intermediate_size",
                      words=(("attention_bias", True), ("swiglu_limit", 7.0),
                             ("quantization_config", {"quant_method": "mxfp4"}))),
    "nemotron_h": Family("NemotronHForCausalLM", "nemotron_h", mamba=True, router="mixer", counts="n_routed_experts",
                         words=(("mlp_hidden_act", "relu2"), ("norm_topk_prob", True), ("time_step_min", 0.0))),
    "mistral4": Family("Mistral4ForCausalLM", "mistral4", latent=True, router="mlp", counts="n_routed_experts",
                       words=(("n_shared_experts", 1), ("norm_topk_prob", True), ("routed_scaling_factor", 1.0),
                              ("n_group", 1), ("topk_group", 1), ("rope_interleave", True))),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", "qwen3_moe", qk_norm=True, router="mlp",
                        words=(("norm_topk_prob", True),)),
    "mixtral": Family("MixtralForCausalLM", "mixtral", router="block_sparse_moe", expert=("w1", "w3", "w2"),
                      counts="num_local_experts", inner="intermediate_size"),
    "minimax_m2": Family("MiniMaxM2ForCausalLM", "minimax_m2", rows_norm=True, corrected=True, router="block_sparse_moe",
                         expert=("w1", "w3", "w2"), counts="num_local_experts", inner="intermediate_size",
                         words=(("scoring_func", "sigmoid"), ("use_qk_norm", True), ("use_routing_bias", True))),
    "qwen3_5": Family("Qwen3_5ForCausalLM", "qwen3_5_text", norm=0.0, gated=True, qk_norm=True, gdn="split",
                      inner="intermediate_size"),
    "qwen3_5_moe": Family("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", norm=0.0, gated=True, qk_norm=True, gdn="split",
                          router="mlp", shared=True),
    "qwen3_next": Family("Qwen3NextForCausalLM", "qwen3_next", norm=0.0, gated=True, qk_norm=True, gdn="fused",
                         router="mlp", shared=True, words=(("norm_topk_prob", True),)),
}

# What a model need not say. `formats` name the groups that are not BF16; `ops` are a hardware's kernels for its leaf;
# `keys` scales the taps of recurrent queries and keys; `rules` are the leaf's on formats, in place of `formats`;
# `wide` corrections of experts are F32; `key_norm` scales norms of keys: unscaled scores of many
# layers multiply what F32 rounds, until transformers itself is further from F64 than the golden files allow.
DEFAULTS = dict(quant="bf16", layers=2, period=["attention"], tied=False, head_stored=False, mtp=0, prefix="model.",
                stacked=False, weights_alone=False, shards=1, formats={}, eps=1e-6, keys=1.0, rope={}, words={}, around={}, hardware=["cpu"],
                ops={}, pad=1, pad_inner=None, rules=[], wide=False, latent=None, scalar=None, turned=None,
                cap=None, beside=None, dense=0, embedding=0.15, gain=1.5, key_norm=1.0)
# Dimensions that kernels take: rows of whole runs of 32 columns, of 256 beside experts, recurrent heads of 128. An
# epsilon of norms that counts beside the squares of heads and rows.
GPU = dict(hardware=["cpu", "h200", "gb10"], eps=1e-2)
# Recurrent queries and keys so short that the epsilon of their unit length counts.
SHORT = dict(keys=1e-3)
# Heads so narrow that 2,048 positions take no time, and frequencies near 1, whose rounding shows there: the golden files
# are of `--length 2048`.
FAR = dict(theta=16.0)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)


def latent_yarn(factor, original, growth, **words):
    """YaRN with bounds at whole pairs, and the growth of queries with their positions."""
    return dict(rope_type="yarn", factor=factor, beta_fast=32.0, beta_slow=1.0, llama_4_scaling_beta=growth,
                original_max_position_embeddings=original, **words)


def yarn(factor, original):
    """Rotary positions that YaRN stretches, of a model that saw `original` of them first."""
    return dict(rope_type="yarn", factor=factor, beta_fast=32.0, beta_slow=1.0, truncate=False,
                original_max_position_embeddings=original)


MISTRAL = dict(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=None)
# A multimodal configuration around the text model; its tower is never built from weights.
QWEN3_VL = dict(
    architectures=["Qwen3VLMoeForConditionalGeneration"], model_type="qwen3_vl_moe",
    vision_config=dict(model_type="qwen3_vl_moe_vision", depth=1, hidden_size=16, intermediate_size=16, num_heads=1,
                       out_hidden_size=52, num_position_embeddings=4, deepstack_visual_indexes=[]))
QWEN3_5_VL = dict(architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5")


def model(family, seed, title, **dims):
    made = DEFAULTS | dict(family=family, seed=seed, title=title) | dims
    if FAMILIES[family].alike:
        heads = ("heads", "kv_heads", "head_dim", "rotary")
        made["sliding"] = {key: dims[key] for key in heads} | dims["sliding"]
    return made


def recurrent(period, heads, ratio, key_dim, value_dim):
    """Dimensions of Gated DeltaNet: `ratio` value heads for each of `heads` key heads."""
    return dict(period=period, layers=len(period), key_heads=heads, value_heads=heads * ratio, key_dim=key_dim,
                value_dim=value_dim)


def alone(pattern, heads, groups, head_dim, state_dim):
    """Layers of one block each, as Nemotron's configurations write them, and dimensions of Mamba-2."""
    mixers, parts = {"M": "mamba", "*": "attention", "E": "none"}, {"M": "none", "*": "none", "E": "moe"}
    return dict(pattern=pattern, period=[mixers[block] for block in pattern], layers=len(pattern),
                parts=[parts[block] for block in pattern], eps=1e-5, key_heads=groups, value_heads=heads,
                key_dim=state_dim, value_dim=head_dim)


def floats(*more):
    """A rule of what publishers of Nemotron leave in BF16, and `more`."""
    names = ["backbone.embeddings", "lm_head", "*.q_proj", "*.k_proj", "*.v_proj", "*.o_proj"]
    return {"match": [*names, *more], "as": "bf16"}


# Prompts of heads of 512, by hardware.
WIDE = {hardware: {"attend.full": dict(kernel="split_kv_bf16", threads=256, why=f"heads of 512: {why}")}
        for hardware, why in (("h200", "a warpgroup's sums are up to 256 columns"),
                              ("gb10", "no warp has registers for their mixes"))}

# Numbers of a model with latents, which a GPU rounds to BF16 for all heads alike, that leave it within what `verify` allows.
CALM = dict(embedding=1.0, gain=1.0)

# Prompts of latents, by hardware.
LATENTS = {
    "h200": {"attend.full": dict(kernel="warps_bf16", threads=256, why="latents: values that lie in keys")},
    "gb10": {"attend.full": dict(kernel="warps_bf16", threads=128,
                                 why="queries of latents lie in shared memory: those of four warps, beside two blocks")}}

# Few rows at once, as where a block has room for no more.
FEW = {"moe": dict(kernel="rows_f16", threads=256, rows=4, why="more rows go as route and experts")}


MODELS = {
    "random-ratio1": model(
        "qwen3_5_moe", 1, "one value head per key head, two mixers", vocab=131, hidden=80,
        heads=4, kv_heads=1, head_dim=24, rotary=12, theta=1e4, experts=5, top=3, inner=20, shared=24,
        **recurrent(["gdn", "attention", "gdn"], 3, 1, 16, 24), **SHORT),
    "random-ratio3": model(
        "qwen3_5_moe", 2, "three value heads per key head, tied head, stacked experts, shards", vocab=130, hidden=72,
        heads=3, kv_heads=3, head_dim=32, rotary=8, theta=1e6, experts=3, top=1, inner=12, shared=20,
        **recurrent(["gdn", "gdn", "attention"], 1, 3, 20, 12),
        tied=True, mtp=1, prefix="model.language_model.", stacked=True, shards=3),
    "random-ratio4": model(
        "qwen3_5_moe", 6, "four value heads per key head, sixteen query heads on one", vocab=193, hidden=36,
        heads=16, kv_heads=1, head_dim=16, rotary=12, theta=1e7, experts=6, top=5, inner=20, shared=28,
        **recurrent(["gdn", "attention", "gdn"], 2, 4, 24, 16), mtp=1),
    "random-modelopt": model(
        "qwen3_5_moe", 3, "modelopt NVFP4 and, in recurrent layers, FP8", quant="nvfp4", vocab=161, hidden=96,
        heads=4, kv_heads=2, head_dim=48, rotary=24, theta=1e7, experts=5, top=2, inner=48, shared=32,
        **recurrent(["attention", "gdn"], 2, 2, 24, 20), mtp=1,
        formats={g: "nvfp4_modelopt" for g in ["attention", "experts", "shared_expert", "mtp_experts"]}
        | {"gdn": "fp8_tensor"}),
    "random-fp8": model(
        "qwen3_5_moe", 4, "FP8 blocks with ragged edges", quant="fp8", vocab=97, hidden=136,
        heads=2, kv_heads=1, head_dim=40, rotary=20, theta=1e7, experts=3, top=2, inner=24, shared=20,
        **recurrent(["gdn", "attention"], 2, 2, 16, 36), mtp=1, prefix="model.language_model.",
        formats={g: "fp8_block128" for g in ["gdn", "attention", "experts", "shared_expert", "mtp_attention",
                                             "mtp_experts"]}),
    "random-packed": model(
        "qwen3_5_moe", 5, "compressed-tensors NVFP4, all experts chosen", quant="nvfp4", vocab=257, hidden=80,
        heads=4, kv_heads=2, head_dim=20, rotary=20, theta=1e5, experts=3, top=3, inner=32, shared=16,
        **recurrent(["gdn", "attention", "gdn"], 2, 3, 32, 32), mtp=1, prefix="model.language_model.", shards=2,
        formats={g: "nvfp4_compressed_tensors" for g in ["attention", "experts", "shared_expert", "mtp_attention",
                                                         "mtp_experts"]}),

    "random-llama-1": model(
        "llama", 11, "sixteen query heads on one, tied head", vocab=211, hidden=32, tied=True, eps=1e-5,
        heads=16, kv_heads=1, head_dim=64, rotary=64, theta=1e5, inner=44),
    "random-llama-2": model(
        "llama", 12, "scaled rotary positions, a key head for each query head", vocab=130, hidden=68, eps=1e-5,
        heads=2, kv_heads=2, head_dim=128, rotary=128, theta=5e5, inner=92, rope=LLAMA3),
    "random-llama-3": model(
        "llama", 13, "Mistral's names, three query heads on one, far positions", vocab=161, hidden=36, eps=1e-5,
        words=MISTRAL, heads=3, kv_heads=1, head_dim=12, rotary=12, inner=132, **FAR),

    "random-qwen3-1": model(
        "qwen3", 21, "five query heads on one, tied head that is stored", vocab=157, hidden=48, tied=True,
        head_stored=True,
        heads=5, kv_heads=1, head_dim=128, rotary=128, theta=1e6, inner=84),
    "random-qwen3-2": model(
        "qwen3", 22, "two query heads on each of three, shards", vocab=99, hidden=60, shards=2,
        heads=6, kv_heads=3, head_dim=64, rotary=64, theta=1e6, inner=60),
    "random-qwen3-3": model(
        "qwen3", 23, "a key head for each query head, far positions", vocab=203, hidden=40,
        heads=2, kv_heads=2, head_dim=16, rotary=16, inner=52, **FAR),

    "random-qwen3_moe-1": model(
        "qwen3_moe", 31, "seven query heads on one, three of five experts", vocab=139, hidden=48,
        heads=7, kv_heads=1, head_dim=64, rotary=64, theta=1e6, experts=5, top=3, inner=20),
    "random-qwen3_moe-2": model(
        "qwen3_moe", 32, "names of a multimodal model, five of six experts", vocab=118, hidden=52,
        heads=3, kv_heads=1, head_dim=128, rotary=128, theta=5e6, experts=6, top=5, inner=28,
        prefix="model.language_model.", rope=dict(mrope_section=[24, 20, 20], mrope_interleaved=True),
        words=dict(model_type="qwen3_vl_moe_text"), around=QWEN3_VL),
    "random-qwen3_moe-3": model(
        "qwen3_moe", 33, "one of three experts, tied head, far positions", vocab=181, hidden=44, tied=True,
        heads=2, kv_heads=1, head_dim=16, rotary=16, experts=3, top=1, inner=36, **FAR),

    "random-mixtral-1": model(
        "mixtral", 41, "two of six experts", vocab=134, hidden=60, eps=1e-5,
        heads=4, kv_heads=2, head_dim=64, rotary=64, theta=1e6, experts=6, top=2, inner=28),
    "random-mixtral-2": model(
        "mixtral", 42, "all of three experts, tied head, far positions", vocab=227, hidden=36, eps=1e-5, tied=True,
        heads=2, kv_heads=2, head_dim=16, rotary=16, experts=3, top=3, inner=68, **FAR),
    "random-mixtral-3": model(
        "mixtral", 43, "five of seven experts, nine query heads on three", vocab=103, hidden=44, eps=1e-5,
        heads=9, kv_heads=3, head_dim=64, rotary=64, theta=1e6, experts=7, top=5, inner=20),

    "random-minimax_m2-1": model(
        "minimax_m2", 121, "three query heads on each of two, three of seven experts", vocab=149, hidden=48,
        heads=6, kv_heads=2, head_dim=32, rotary=16, theta=5e6, experts=7, top=3, inner=20),
    "random-minimax_m2-2": model(
        "minimax_m2", 122, "a key head for each query head, all of four experts, far positions", vocab=113, hidden=36,
        heads=3, kv_heads=3, head_dim=16, rotary=8, experts=4, top=4, inner=28, **FAR),
    "random-minimax_m2-3": model(
        "minimax_m2", 123, "ten query heads on one, five of six experts, NVFP4", quant="nvfp4", vocab=167, hidden=64,
        heads=10, kv_heads=1, head_dim=64, rotary=32, theta=1e4, experts=6, top=5, inner=48,
        formats={"experts": "nvfp4_modelopt"}),

    "random-qwen3_5-1": model(
        "qwen3_5", 51, "three value heads per key head", vocab=173, hidden=40,
        heads=2, kv_heads=1, head_dim=256, rotary=64, theta=1e7, inner=76,
        **recurrent(["gdn", "gdn", "attention"], 2, 3, 16, 12), **SHORT),
    "random-qwen3_5-2": model(
        "qwen3_5", 52, "names of a multimodal model, one value head per key head, tied head", vocab=149, hidden=56,
        heads=8, kv_heads=2, head_dim=64, rotary=24, theta=1e6, inner=44, tied=True,
        **recurrent(["attention", "gdn"], 3, 1, 20, 28), prefix="model.language_model.", around=QWEN3_5_VL),
    "random-qwen3_5-3": model(
        "qwen3_5", 53, "four value heads per key head, a key head for each query head, far positions", vocab=110,
        hidden=52, heads=3, kv_heads=3, head_dim=24, rotary=12, inner=100,
        **recurrent(["gdn", "attention", "gdn"], 1, 4, 32, 20), **FAR),

    "random-qwen3_next-1": model(
        "qwen3_next", 61, "two value heads per key head, three of five experts", vocab=123, hidden=40,
        heads=2, kv_heads=1, head_dim=256, rotary=64, theta=1e7, experts=5, top=3, inner=20, shared=28,
        **recurrent(["gdn", "gdn", "attention"], 2, 2, 16, 20), **SHORT),
    "random-qwen3_next-2": model(
        "qwen3_next", 62, "four value heads per key head, tied head, drafts", vocab=187, hidden=36, tied=True, mtp=1,
        heads=6, kv_heads=2, head_dim=64, rotary=16, theta=1e6, experts=3, top=2, inner=28, shared=20,
        **recurrent(["attention", "gdn"], 1, 4, 20, 12)),
    "random-qwen3_next-3": model(
        "qwen3_next", 63, "one value head per key head, five of six experts, far positions", vocab=151, hidden=44,
        heads=3, kv_heads=1, head_dim=24, rotary=12, experts=6, top=5, inner=12, shared=44,
        **recurrent(["gdn", "attention"], 3, 1, 24, 16), **FAR),

    "random-sliding-1": model(
        "sliding", 71, "heads of 256 over a window, of 512 over all positions, for a GPU too", vocab=293, hidden=128,
        heads=2, kv_heads=1, head_dim=512, rotary=512, theta=1e6, inner=160, layers=3,
        period=["sliding", "sliding", "attention"],
        sliding=dict(heads=2, kv_heads=2, head_dim=256, rotary=256, window=100, theta=1e4), ops=WIDE, **GPU),
    "random-sliding-2": model(
        "sliding", 72, "narrow heads, far positions", vocab=107, hidden=36, heads=3, kv_heads=1, head_dim=12, rotary=12,
        inner=44, period=["sliding", "attention"],
        sliding=dict(heads=3, kv_heads=3, head_dim=8, rotary=8, window=70, theta=9.0), **FAR),

    "random-gemma3-1": model(
        "gemma3", 91, "four query heads on one, five layers of a window in six, a scale of their own", vocab=163,
        hidden=72, tied=True, layers=6, period=["sliding"] * 5 + ["attention"], heads=4, kv_heads=1, head_dim=32,
        rotary=32, theta=1e6, inner=100, scalar=24, sliding=dict(window=70, theta=1e4)),
    "random-gemma3-2": model(
        "gemma3", 92, "a key head for each query head, far positions", vocab=127, hidden=90, tied=True, layers=3,
        heads=3, kv_heads=3, head_dim=12, rotary=12, inner=44, scalar=12, period=["sliding", "attention", "sliding"],
        sliding=dict(window=128, theta=9.0), **FAR),
    "random-gemma3-3": model(
        "gemma3", 93, "two query heads on each of four, wide heads, a window within a page, a head of its own",
        vocab=199, hidden=40, heads=8, kv_heads=4, head_dim=128, rotary=128, theta=1e6, inner=148, scalar=168,
        period=["attention", "sliding"], sliding=dict(window=9, theta=1e4)),
    "random-gemma3-4": model(
        "gemma3", 94, "two query heads on one, wide heads, for a GPU too", vocab=307, hidden=128, tied=True,
        heads=2, kv_heads=1, head_dim=256, rotary=256, theta=1e6, inner=224, scalar=168, layers=3,
        period=["sliding", "sliding", "attention"], sliding=dict(window=100, theta=1e4), **GPU),

    "random-gemma4-1": model(
        "gemma4", 101, "a quarter of wide heads turns, five layers of a window in six", vocab=173, hidden=84, tied=True,
        layers=6, period=["sliding"] * 5 + ["attention"], heads=4, kv_heads=1, head_dim=64, rotary=64, turned=8,
        theta=1e6, inner=108, cap=30.0, sliding=dict(heads=4, kv_heads=2, head_dim=32, rotary=32, window=70, theta=1e4),
        key_norm=0.25),
    "random-gemma4-2": model(
        "gemma4", 102, "a key head for each query head, far positions", vocab=139, hidden=45, tied=True, layers=3,
        heads=3, kv_heads=3, head_dim=16, rotary=16, turned=4, inner=52, cap=5.0,
        period=["sliding", "attention", "attention"],
        sliding=dict(heads=3, kv_heads=3, head_dim=12, rotary=12, window=128, theta=9.0), **FAR),
    "random-gemma4-3": model(
        "gemma4", 103, "eight query heads on one, all pairs turn but one, a window within a page", vocab=211, hidden=48,
        tied=True, heads=8, kv_heads=1, head_dim=32, rotary=32, turned=15, theta=1e5, inner=76, cap=12.0,
        period=["sliding", "attention"],
        sliding=dict(heads=8, kv_heads=4, head_dim=64, rotary=64, window=9, theta=1e4)),
    "random-gemma4-4": model(
        "gemma4", 104, "heads of 256 over a window, of 512 over all positions, for a GPU too", vocab=313, hidden=128,
        tied=True, heads=2, kv_heads=1, head_dim=512, rotary=512, turned=64, theta=1e6, inner=160, cap=30.0, layers=3,
        period=["sliding", "sliding", "attention"], ops=WIDE, key_norm=0.25,
        sliding=dict(heads=2, kv_heads=2, head_dim=256, rotary=256, window=100, theta=1e4), **GPU),
    "random-gemma4-5": model(
        "gemma4", 105, "two of five experts beside the MLP, stacked, for a GPU too", vocab=293, hidden=256, tied=True,
        heads=2, kv_heads=1, head_dim=512, rotary=512, turned=64, theta=1e6, inner=160, cap=30.0, layers=2,
        period=["sliding", "attention"], ops=WIDE, beside=dict(experts=5, top=2, inner=128), stacked=True,
        sliding=dict(heads=2, kv_heads=2, head_dim=256, rotary=256, window=100, theta=1e4), **GPU),
    "random-gemma4-6": model(
        "gemma4", 106, "three of seven experts beside the MLP", vocab=151, hidden=52, tied=True, heads=4, kv_heads=1,
        head_dim=32, rotary=32, turned=4, theta=1e6, inner=60, cap=20.0, layers=4, period=["sliding", "attention"],
        beside=dict(experts=7, top=3, inner=36),
        sliding=dict(heads=4, kv_heads=2, head_dim=16, rotary=16, window=70, theta=1e4)),
    "random-gemma4-7": model(
        "gemma4", 107, "one of three experts beside the MLP, NVFP4 of weights alone, far positions", quant="nvfp4a16",
        vocab=157, hidden=96, tied=True, heads=2, kv_heads=2, head_dim=16, rotary=16, turned=4, inner=80, cap=8.0,
        layers=3, period=["sliding", "attention", "attention"], beside=dict(experts=3, top=1, inner=48),
        weights_alone=True,
        sliding=dict(heads=2, kv_heads=1, head_dim=24, rotary=24, window=128, theta=9.0),
        formats={group: "nvfp4_modelopt" for group in ["attention", "mlp", "experts"]}, **FAR),

    "random-gpt_oss-1": model(
        "gpt_oss", 81, "eight query heads on one, three of five experts, a window of 70", quant="mxfp4", vocab=149,
        hidden=64, eps=1e-5, heads=8, kv_heads=1, head_dim=16, rotary=16, theta=1e4, inner=96, experts=5, top=3,
        layers=4, period=["sliding", "attention"], window=70, rope=yarn(32.0, 64), formats={"experts": "mxfp4"}),
    "random-gpt_oss-2": model(
        "gpt_oss", 82, "a key head for each query head, all of four experts, far positions", quant="mxfp4", vocab=113,
        hidden=96, eps=1e-5, heads=3, kv_heads=3, head_dim=12, rotary=12, inner=32, experts=4, top=4, layers=3,
        period=["attention", "sliding", "sliding"], window=128, rope=yarn(4.0, 256), formats={"experts": "mxfp4"},
        **FAR),
    "random-gpt_oss-3": model(
        "gpt_oss", 83, "two of seven experts, wide heads, a window within a page", quant="mxfp4", vocab=167, hidden=32,
        eps=1e-5, heads=4, kv_heads=2, head_dim=64, rotary=64, theta=150000.0, inner=128, experts=7, top=2,
        period=["sliding", "attention"], window=9, rope=yarn(8.0, 128), formats={"experts": "mxfp4"}),
    "random-gpt_oss-4": model(
        "gpt_oss", 84, "eight query heads on each of two, two of five experts, for a GPU too", quant="mxfp4", vocab=271,
        hidden=160, heads=16, kv_heads=2, head_dim=64, rotary=64, theta=150000.0, inner=96, experts=5, top=2,
        period=["sliding", "attention"], window=70, rope=yarn(32.0, 64), formats={"experts": "mxfp4"}, pad=256, **GPU),

    "random-nemotron-1": model(
        "nemotron_h", 111, "four heads in a group, three of seven experts", vocab=151, hidden=48, heads=4, kv_heads=2,
        head_dim=16, experts=7, top=3, inner=20, shared=44, scale=2.5, **alone("MEM*EME", 8, 2, 12, 20)),
    "random-nemotron-2": model(
        "nemotron_h", 112, "one head in a group, all of four experts, far positions", vocab=119, hidden=36, heads=3,
        kv_heads=1, head_dim=24, experts=4, top=4, inner=28, shared=12, scale=1.0, **alone("*EMM", 3, 3, 20, 16)),
    "random-nemotron-3": model(
        "nemotron_h", 113, "all heads in one group, five of six experts, NVFP4", quant="nvfp4", vocab=173, hidden=64,
        heads=5, kv_heads=5, head_dim=32, experts=6, top=5, inner=48, shared=80, scale=5.0,
        rules=[floats("*.mixer.gate"), {"match": "*", "as": "nvfp4_modelopt"}], **alone("ME*EM", 6, 1, 16, 32)),
    "random-nemotron-4": model(
        "nemotron_h", 114, "eight heads in each of two groups, two of five experts, for a GPU too", vocab=281,
        hidden=256, heads=8, kv_heads=1, head_dim=128, experts=5, top=2, inner=128, shared=256, scale=2.5,
        **alone("MEM*E", 16, 2, 64, 128) | GPU),
    "random-nemotron-5": model(
        "nemotron_h", 115, "sixteen query heads on one, routers of F32, NVFP4 but for a mixer, padded for a GPU too",
        quant="nvfp4", vocab=263, hidden=336, heads=16, kv_heads=1, head_dim=64, experts=6, top=4, inner=176,
        shared=368, scale=2.5, wide=True, pad=512, pad_inner=128, **alone("MEM*E", 8, 2, 64, 128) | GPU,
        rules=[{"match": "*.mixer.gate", "as": "f32"}, floats(),
               {"match": ["*.in_proj", "*.out_proj"], "layers": [2], "as": "bf16"},
               {"match": "*", "as": "nvfp4_modelopt"}]),
    "random-nemotron-6": model(
        "nemotron_h", 116, "twenty-two of 24 experts over latents, FP8 and NVFP4 matrix by matrix, drafts, for a GPU too",
        quant="nvfp4", vocab=271, hidden=512, heads=4, kv_heads=2, head_dim=64, experts=24, top=22, inner=128,
        latent=256, shared=256, scale=5.0, wide=True, ops={"h200": FEW, "gb10": FEW}, **alone("MEM*E", 4, 1, 64, 128) | GPU,
        mtp=1,
        rules=[{"match": "mtp.*", "as": "bf16"},
               {"match": "*.in_proj", "layers": [0], "as": "fp8_tensor"},
               {"match": "*.out_proj", "layers": [2], "as": "fp8_tensor"},
               {"match": "*.o_proj", "as": "fp8_tensor"},
               {"match": ["*.fc1_latent_proj", "*.fc2_latent_proj", "*.shared_experts.up_proj"], "layers": [1],
                "as": "fp8_tensor"},
               {"match": "*.shared_experts.down_proj", "layers": [4], "as": "fp8_tensor"},
               {"match": ["*.experts.*", "*.shared_experts.down_proj"], "as": "nvfp4_modelopt"},
               {"match": "*", "as": "bf16"}]),

    "random-mistral4-1": model(
        "mistral4", 121, "five query heads, two of seven experts, frequencies of all kinds", vocab=141, hidden=56,
        heads=5, rank=36, rotary=24, nope=20, value=28, query_rank=44, theta=1e4, experts=7, top=2, inner=28, layers=3,
        rope=latent_yarn(16.0, 64, 0.1, mscale=1.0, mscale_all_dim=1.0)),
    "random-mistral4-2": model(
        "mistral4", 122, "two query heads, values narrower than keys, four of four experts, NVFP4, far positions",
        quant="nvfp4", vocab=179, hidden=64, heads=2, rank=16, rotary=8, nope=12, value=8, query_rank=24, experts=4,
        top=4, inner=48, rope=latent_yarn(128.0, 128, 0.3, attention_factor=1.0),
        formats={group: "nvfp4_compressed_tensors" for group in ["experts", "shared_expert"]}, **FAR),
    "random-mistral4-3": model(
        "mistral4", 123, "latents of 512 beside 64, a dense layer first, as DeepSeek has them", vocab=127, hidden=48,
        heads=2, rank=512, rotary=64, nope=32, value=48, query_rank=40, theta=1e4, experts=5, top=3, inner=20,
        dense=1, dense_inner=76, rope=latent_yarn(40.0, 100, 0.1, mscale=0.7, mscale_all_dim=0.7)),

    "random-mistral4-4": model(
        "mistral4", 124, "latents of 256 beside 64, two of three experts, for a GPU too", vocab=311, hidden=256,
        heads=32, rank=256, rotary=64, nope=64, value=64, query_rank=128, theta=1e4, experts=3, top=2, inner=128,
        layers=1, rope=latent_yarn(128.0, 256, 0.1, attention_factor=1.0), ops=LATENTS, **(GPU | CALM | dict(eps=1e-6))),

    "random-llama-4": model(
        "llama", 14, "four query heads on each of two, for a GPU too", vocab=331, hidden=128,
        heads=8, kv_heads=2, head_dim=64, rotary=64, theta=5e5, inner=384, rope=LLAMA3, **GPU),
    "random-qwen3-4": model(
        "qwen3", 24, "three query heads on one, an MLP of half blocks, for a GPU too", vocab=259, hidden=128, tied=True,
        heads=3, kv_heads=1, head_dim=128, rotary=128, theta=1e6, inner=160, **GPU),
    "random-qwen3_moe-4": model(
        "qwen3_moe", 34, "eight query heads on one, two of three experts, for a GPU too", vocab=283, hidden=256,
        heads=8, kv_heads=1, head_dim=64, rotary=64, theta=1e6, experts=3, top=2, inner=128, **GPU),
    "random-mixtral-4": model(
        "mixtral", 44, "two of three experts, a key head for each query head, for a GPU too", vocab=301, hidden=256,
        heads=2, kv_heads=2, head_dim=128, rotary=128, theta=1e6, experts=3, top=2, inner=128, **GPU),
    "random-minimax_m2-4": model(
        "minimax_m2", 124, "four query heads on each of two, two of five experts, for a GPU too", vocab=293, hidden=256,
        heads=8, kv_heads=2, head_dim=128, rotary=64, theta=5e6, experts=5, top=2, inner=128, **GPU),
    "random-qwen3_5-4": model(
        "qwen3_5", 54, "three value heads per key head, for a GPU too", vocab=317, hidden=128,
        heads=2, kv_heads=1, head_dim=256, rotary=64, theta=1e7, inner=256,
        **recurrent(["gdn", "attention"], 1, 3, 128, 128), **GPU),
    "random-qwen3_next-4": model(
        "qwen3_next", 64, "two value heads per key head, two of three experts, for a GPU too", vocab=263, hidden=256,
        heads=2, kv_heads=1, head_dim=128, rotary=64, theta=1e7, experts=3, top=2, inner=128, shared=128,
        **recurrent(["gdn", "attention"], 1, 2, 128, 128), **GPU),
    "random-qwen3_5_moe-4": model(
        "qwen3_5_moe", 7, "four value heads per key head, for a GPU too", vocab=137, hidden=256,
        heads=2, kv_heads=1, head_dim=64, rotary=64, theta=1e7, experts=3, top=2, inner=128, shared=128,
        **recurrent(["gdn", "attention"], 1, 4, 128, 128), **GPU),
}
