"""Makes the random test checkpoints `targets/_model/random-*`: small models of each family with awkward numbers.

    python scripts/golden_random.py [NAME...]

`random_models.py` is the table of families and models. Writes config.json, the weights, model.toml and the leaves
`targets/<hw>/<name>/<quant>.toml`; `scripts/golden.py` then writes the golden files. Needs torch and safetensors. The
same seed gives the same files.
"""

import fnmatch
import hashlib
import json
import math
import pathlib
import sys

import torch
from safetensors.torch import save_file

from random_models import FAMILIES, MODELS

TARGETS = pathlib.Path(__file__).resolve().parent.parent / "targets"
GROUP = 16  # columns per NVFP4 scale
MX_GROUP = 32  # columns per MXFP4 scale
BLOCK = 128  # rows and columns per FP8 scale
INPUT_SCALED = ["nvfp4_modelopt", "fp8_tensor"]  # formats that are written with a scale of their input
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def nvfp4(w):
    """Codes [N, K/2], E4M3 scales [N, K/16] and the global multiplier."""
    groups = w.float().reshape(w.shape[0], -1, GROUP)
    total = groups.abs().max() / (6 * 448)
    scale = (groups.abs().amax(-1) / 6 / total).to(torch.float8_e4m3fn)
    unit = groups / (scale.float() * total).clamp(min=1e-30)[..., None]
    code = (unit.abs()[..., None] - E2M1).abs().argmin(-1) + 8 * (unit < 0)
    code = code.reshape(w.shape).to(torch.uint8)
    return code[:, ::2] | code[:, 1::2] << 4, scale, total


def fp8(w):
    """Codes [N, K] and BF16 scales [ceil(N/128), ceil(K/128)]."""
    n, k = w.shape
    scale = torch.empty(math.ceil(n / BLOCK), math.ceil(k / BLOCK), dtype=torch.bfloat16)
    code = torch.empty(n, k, dtype=torch.float8_e4m3fn)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            part = slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK)
            scale[i, j] = w[part].abs().max() / 448
            code[part] = (w[part].float() / scale[i, j].float()).clamp(-448, 448).to(torch.float8_e4m3fn)
    return code, scale


def mxfp4(w):
    """Blocks [.., N, K/32, 16] and powers of two [.., N, K/32], E8M0."""
    groups = w.float().unflatten(-1, (-1, MX_GROUP))
    power = torch.floor(torch.log2(groups.abs().amax(-1).clamp(min=1e-30))) - 2
    unit = groups / torch.exp2(power)[..., None]
    code = ((unit.abs()[..., None] - E2M1).abs().argmin(-1) + 8 * (unit < 0)).to(torch.uint8)
    return code[..., ::2] | code[..., 1::2] << 4, (power + 127).to(torch.uint8)


class Checkpoint:
    """Tensors by name; draws weights so that states, gates and the choice of experts matter."""

    def __init__(self, m):
        self.m, self.family, self.tensors = m, FAMILIES[m["family"]], {}
        self.random = torch.Generator().manual_seed(m["seed"])

    def normal(self, *shape, scale=1.0):
        return torch.randn(*shape, generator=self.random) * scale

    def vector(self, name, values):
        self.tensors[name] = values.bfloat16()

    def norm(self, name, size, gain=1.0):
        self.vector(name, gain * (self.family.norm + self.normal(size, scale=0.3)))

    def format_of(self, name, group):
        """By the first rule that is for the matrix, in models with rules."""
        for rule in self.m["rules"]:
            patterns = [rule["match"]] if isinstance(rule["match"], str) else rule["match"]
            layers = [f".layers.{layer}." for layer in rule["layers"]] if "layers" in rule else [""]
            if any(fnmatch.fnmatch(name, each) for each in patterns) and any(layer in name for layer in layers):
                return rule["as"]
        return self.m["formats"].get(group, "bf16")

    def matrix(self, name, n, k, group=None, gain=1.0):
        w = self.normal(n, k, scale=gain / math.sqrt(k))
        kind = self.format_of(name, group)
        if kind == "bf16":
            self.tensors[f"{name}.weight"] = w.bfloat16()
        elif kind == "f32":
            self.tensors[f"{name}.weight"] = w.bfloat16().float()
        elif kind == "nvfp4_modelopt":
            code, scale, total = nvfp4(w)
            self.tensors |= {f"{name}.weight": code, f"{name}.weight_scale": scale, f"{name}.weight_scale_2": total}
            if not self.m["weights_alone"]:
                self.tensors[f"{name}.input_scale"] = torch.tensor(1.0)
        elif kind == "nvfp4_compressed_tensors":
            code, scale, total = nvfp4(w)
            self.tensors |= {f"{name}.weight_packed": code, f"{name}.weight_scale": scale,
                             f"{name}.weight_global_scale": (1 / total).reshape(1)}
        elif kind == "fp8_tensor":
            scale = w.abs().max() / 448
            code = (w / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            self.tensors |= {f"{name}.weight": code, f"{name}.weight_scale": scale,
                             f"{name}.input_scale": torch.tensor(1.0)}
        else:
            code, scale = fp8(w)
            self.tensors |= {f"{name}.weight": code, f"{name}.weight_scale_inv": scale}

    def swiglu(self, name, inner, group, parts=("gate_proj", "up_proj", "down_proj")):
        for part, gain in zip(parts, (2.0, 1.5)):
            self.matrix(f"{name}.{part}", inner, self.m["hidden"], group, gain)
        self.matrix(f"{name}.{parts[-1]}", self.m["hidden"], inner, group, 1.5)

    def experts(self, name, group, m):
        """As many and as wide as `m` states."""
        if not self.m["stacked"]:
            for e in range(m["experts"]):
                self.swiglu(f"{name}.{e}", m["inner"], group, self.family.expert)
            return
        h, i, e = self.m["hidden"], m["inner"], m["experts"]
        self.tensors[f"{name}.gate_up_proj"] = self.normal(e, 2 * i, h, scale=2 / math.sqrt(h)).bfloat16()
        self.tensors[f"{name}.down_proj"] = self.normal(e, h, i, scale=1.5 / math.sqrt(i)).bfloat16()

    def latent(self, name):
        m, turned, gain = self.m, self.m["rotary"], self.m["gain"]
        self.matrix(f"{name}.wq_a", m["query_rank"], m["hidden"], gain=gain)
        self.norm(f"{name}.q_a_norm.weight", m["query_rank"])
        self.matrix(f"{name}.wq_b", m["heads"] * (m["nope"] + turned), m["query_rank"], gain=gain)
        self.matrix(f"{name}.wkv_a_with_mqa", m["rank"] + turned, m["hidden"], gain=gain)
        self.norm(f"{name}.kv_a_norm.weight", m["rank"])
        self.matrix(f"{name}.wkv_b", m["heads"] * (m["nope"] + m["value"]), m["rank"], gain=gain)
        self.matrix(f"{name}.wo", m["hidden"], m["heads"] * m["value"], gain=gain)

    def latent_layer(self, name, dense):
        m, own = self.m, ("w1", "w3", "w2")
        self.norm(f"{name}.attention_norm.weight", m["hidden"])
        self.norm(f"{name}.ffn_norm.weight", m["hidden"])
        self.latent(f"{name}.attention")
        if dense:
            return self.swiglu(f"{name}.feed_forward", m["dense_inner"], "mlp", own)
        self.matrix(f"{name}.gate", m["experts"], m["hidden"], gain=2.0)
        for e in range(m["experts"]):
            self.swiglu(f"{name}.experts.{e}", m["inner"], "experts", own)
        self.swiglu(f"{name}.shared_experts", m["inner"], "shared_expert", own)

    def latent_model(self):
        m = self.m
        self.tensors["tok_embeddings.weight"] = self.normal(m["vocab"], m["hidden"], scale=m["embedding"]).bfloat16()
        for i in range(m["layers"]):
            self.latent_layer(f"layers.{i}", i < m["dense"])
        self.norm("norm.weight", m["hidden"])
        self.matrix("output", m["vocab"], m["hidden"], gain=1.2)
        return self.tensors

    def attention(self, name, group, m):
        """Of the heads that `m` states."""
        q, kv, hidden = m["heads"] * m["head_dim"], m["kv_heads"] * m["head_dim"], self.m["hidden"]
        self.matrix(f"{name}.q_proj", 2 * q if self.family.gated else q, hidden, group, 1.5)
        self.matrix(f"{name}.k_proj", kv, hidden, group, 1.5)
        if not self.family.scalars or m is not self.m:
            self.matrix(f"{name}.v_proj", kv, hidden, group)
        self.matrix(f"{name}.o_proj", hidden, q, group, 1.5)
        if self.family.biased:
            for part, size in (("q_proj", q), ("k_proj", kv), ("v_proj", kv), ("o_proj", hidden)):
                self.vector(f"{name}.{part}.bias", self.normal(size, scale=0.5))
            self.vector(f"{name}.sinks", 1 + self.normal(m["heads"]))
        if self.family.qk_norm:
            self.norm(f"{name}.q_norm.weight", m["head_dim"])
            self.norm(f"{name}.k_norm.weight", m["head_dim"], self.m["key_norm"])
        if self.family.rows_norm:
            self.norm(f"{name}.q_norm.weight", q)
            self.norm(f"{name}.k_norm.weight", kv)

    def gdn_inputs(self, name, channels, values):
        hidden, heads = self.m["hidden"], self.m["value_heads"]
        if self.family.gdn == "fused":
            self.matrix(f"{name}.in_proj_qkvz", channels + values, hidden, "gdn", 1.5)
            return self.matrix(f"{name}.in_proj_ba", 2 * heads, hidden, gain=1.5)
        self.matrix(f"{name}.in_proj_qkv", channels, hidden, "gdn", 1.5)
        self.matrix(f"{name}.in_proj_z", values, hidden, "gdn", 1.5)
        self.matrix(f"{name}.in_proj_b", heads, hidden, gain=1.5)
        self.matrix(f"{name}.in_proj_a", heads, hidden, gain=1.5)

    def gdn(self, name):
        m = self.m
        values = m["value_heads"] * m["value_dim"]
        channels = 2 * m["key_heads"] * m["key_dim"] + values
        self.gdn_inputs(name, channels, values)
        self.matrix(f"{name}.out_proj", m["hidden"], values, "gdn", 1.5)
        taps = self.normal(channels, 1, 4, scale=0.6)
        taps[:channels - values] *= m["keys"]
        self.vector(f"{name}.conv1d.weight", taps)
        rates = torch.rand(m["value_heads"], generator=self.random) * 4 + 0.05
        self.vector(f"{name}.A_log", rates.log())
        self.vector(f"{name}.dt_bias", self.normal(m["value_heads"], scale=1.5) - 2)
        self.vector(f"{name}.norm.weight", 1 + self.normal(m["value_dim"], scale=0.3))

    def mamba(self, name):
        m = self.m
        values = m["value_heads"] * m["value_dim"]
        channels = values + 2 * m["key_heads"] * m["key_dim"]
        self.matrix(f"{name}.in_proj", values + channels + m["value_heads"], m["hidden"], gain=1.5)
        self.matrix(f"{name}.out_proj", m["hidden"], values, gain=1.5)
        self.vector(f"{name}.conv1d.weight", self.normal(channels, 1, 4, scale=0.6))
        self.vector(f"{name}.conv1d.bias", self.normal(channels, scale=0.3))
        rates = torch.rand(m["value_heads"], generator=self.random) * 4 + 0.05
        self.vector(f"{name}.A_log", rates.log())
        self.vector(f"{name}.dt_bias", self.normal(m["value_heads"], scale=1.5) - 2)
        self.vector(f"{name}.D", 1 + self.normal(m["value_heads"], scale=0.5))
        self.vector(f"{name}.norm.weight", 1 + self.normal(values, scale=0.3))

    def relu2(self, name, inner, width):
        self.matrix(f"{name}.up_proj", inner, width, gain=2.0)
        self.matrix(f"{name}.down_proj", width, inner, gain=1.5)

    def relu2_experts(self, name):
        m = self.m
        self.matrix(f"{name}.gate", m["experts"], m["hidden"], gain=2.0)
        correction = self.normal(m["experts"], scale=0.3)
        self.tensors[f"{name}.gate.e_score_correction_bias"] = correction if m["wide"] else correction.bfloat16()
        for e in range(m["experts"]):
            self.relu2(f"{name}.experts.{e}", m["inner"], m["latent"] or m["hidden"])
        self.relu2(f"{name}.shared_experts", m["shared"], m["hidden"])
        if m["latent"]:
            self.matrix(f"{name}.fc1_latent_proj", m["latent"], m["hidden"], gain=1.5)
            self.matrix(f"{name}.fc2_latent_proj", m["hidden"], m["latent"], gain=1.5)

    def nemotron(self):
        """Layers of one norm and one block each."""
        m = self.m
        self.tensors["backbone.embeddings.weight"] = self.normal(m["vocab"], m["hidden"], scale=0.15).bfloat16()
        for i, block in enumerate(m["pattern"]):
            layer = f"backbone.layers.{i}"
            self.norm(f"{layer}.norm.weight", m["hidden"])
            if block == "M":
                self.mamba(f"{layer}.mixer")
            elif block == "*":
                self.attention(f"{layer}.mixer", "attention", m)
            else:
                self.relu2_experts(f"{layer}.mixer")
        self.norm("backbone.norm_f.weight", m["hidden"])
        self.matrix("lm_head", m["vocab"], m["hidden"], gain=1.2)
        if m["mtp"]:
            mixing, feeding = "mtp.layers.0", "mtp.layers.1"
            for norm in (f"{mixing}.enorm", f"{mixing}.hnorm", f"{mixing}.norm", f"{feeding}.norm",
                         f"{feeding}.final_layernorm"):
                self.norm(f"{norm}.weight", m["hidden"])
            self.matrix(f"{mixing}.eh_proj", m["hidden"], 2 * m["hidden"])
            self.attention(f"{mixing}.mixer", "attention", m)
            self.relu2_experts(f"{feeding}.mixer")
        return self.tensors

    def layer(self, name, kind, groups=("attention", "experts", "shared_expert")):
        m = self.m
        self.norm(f"{name}.input_layernorm.weight", m["hidden"])
        self.norm(f"{name}.post_attention_layernorm.weight", m["hidden"])
        if self.family.scalars:
            self.vector(f"{name}.layer_scalar", 0.9 + self.normal(1, scale=0.2))
        if self.family.sandwiched:
            self.norm(f"{name}.pre_feedforward_layernorm.weight", m["hidden"])
            self.norm(f"{name}.post_feedforward_layernorm.weight", m["hidden"])
        if kind == "gdn":
            self.gdn(f"{name}.linear_attn")
        else:
            own = kind == "sliding" and self.family.slides
            self.attention(f"{name}.self_attn", groups[0], m["sliding"] if own else m)
        if self.family.router:
            self.mixture(f"{name}.{self.family.router}", groups)
        else:
            self.swiglu(f"{name}.mlp", m["inner"], "mlp")
        if m["beside"]:
            self.beside(name, groups[1], m["beside"])

    def beside(self, name, group, experts):
        """Router and experts beside an MLP, and the norms around both."""
        self.matrix(f"{name}.router.proj", experts["experts"], self.m["hidden"], gain=2 * math.sqrt(self.m["hidden"]))
        self.vector(f"{name}.router.scale", 1 + self.normal(self.m["hidden"], scale=0.3))
        self.vector(f"{name}.router.per_expert_scale", 1 + self.normal(experts["experts"], scale=0.3))
        for norm in ("post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"):
            self.norm(f"{name}.{norm}.weight", self.m["hidden"])
        self.experts(f"{name}.experts" if self.m["stacked"] else f"{name}.moe.experts", group, experts)

    def stacked_mxfp4(self, name):
        """Experts of gpt-oss: gate and up rows in turn, gates so large that the clamp counts."""
        h, i, e = self.m["hidden"], self.m["inner"], self.m["experts"]
        for part, n, k, gain in (("gate_up_proj", 2 * i, h, 4.0), ("down_proj", h, i, 1.5)):
            blocks, scales = mxfp4(self.normal(e, n, k, scale=gain / math.sqrt(k)))
            self.tensors |= {f"{name}.{part}_blocks": blocks, f"{name}.{part}_scales": scales}
            self.vector(f"{name}.{part}_bias", self.normal(e, n, scale=0.5))

    def mixture(self, name, groups):
        m = self.m
        if self.family.biased:
            self.matrix(f"{name}.router", m["experts"], m["hidden"], gain=2.0)
            self.vector(f"{name}.router.bias", self.normal(m["experts"], scale=0.5))
            return self.stacked_mxfp4(f"{name}.experts")
        self.matrix(f"{name}.gate", m["experts"], m["hidden"], gain=2.0)
        if self.family.corrected:
            self.vector(f"{name}.e_score_correction_bias", self.normal(m["experts"], scale=0.3))
        self.experts(f"{name}.experts", groups[1], m)
        if self.family.shared:
            self.swiglu(f"{name}.shared_expert", m["shared"], groups[2])
            self.matrix(f"{name}.shared_expert_gate", 1, m["hidden"], gain=1.5)

    def model(self):
        m = self.m
        if self.family.mamba:
            return self.nemotron()
        if self.family.latent:
            return self.latent_model()
        prefix = m["prefix"]
        self.tensors[f"{prefix}embed_tokens.weight"] = self.normal(m["vocab"], m["hidden"], scale=0.15).bfloat16()
        for i in range(m["layers"]):
            self.layer(f"{prefix}layers.{i}", m["period"][i % len(m["period"])])
        self.norm(f"{prefix}norm.weight", m["hidden"])
        if not m["tied"]:
            self.matrix("lm_head", m["vocab"], m["hidden"], gain=1.2)
        elif m["head_stored"]:
            self.tensors["lm_head.weight"] = self.tensors[f"{prefix}embed_tokens.weight"].clone()
        if m["mtp"]:
            self.norm("mtp.pre_fc_norm_embedding.weight", m["hidden"])
            self.norm("mtp.pre_fc_norm_hidden.weight", m["hidden"])
            self.matrix("mtp.fc", m["hidden"], 2 * m["hidden"])
            self.layer("mtp.layers.0", "attention", ("mtp_attention", "mtp_experts", "mtp_experts"))
            self.norm("mtp.norm.weight", m["hidden"])
        return self.tensors


def rope(m):
    if FAMILIES[m["family"]].slides:
        each = dict(full_attention=m, sliding_attention=m["sliding"])
        words = {kind: {"rope_type": "default", "rope_theta": its["theta"]} for kind, its in each.items()}
        if m["turned"]:
            part = {"rope_type": "proportional", "partial_rotary_factor": 2 * m["turned"] / m["head_dim"]}
            words["full_attention"] |= part
        return words
    parameters = {"rope_type": "default", "rope_theta": m["theta"]}
    if FAMILIES[m["family"]].gdn:
        parameters |= {"partial_rotary_factor": m["rotary"] / m["head_dim"]}
    if FAMILIES[m["family"]].gdn == "split":
        parameters |= {"mrope_section": [0, 0, 0]}
    return parameters | m["rope"]


def nemotron(m):
    """config.json of layers that are one block each."""
    family = FAMILIES[m["family"]]
    return {
        "architectures": [family.architecture], "model_type": family.model_type,
        "vocab_size": m["vocab"], "hidden_size": m["hidden"], "hybrid_override_pattern": m["pattern"],
        "num_attention_heads": m["heads"], **heads(m), "layer_norm_epsilon": m["eps"], "max_position_embeddings": 4096,
        "tie_word_embeddings": False, "mamba_num_heads": m["value_heads"], "mamba_head_dim": m["value_dim"],
        "n_groups": m["key_heads"], "ssm_state_size": m["key_dim"], "conv_kernel": 4, "use_conv_bias": True,
        **feed_forward(m), "moe_shared_expert_intermediate_size": m["shared"], "routed_scaling_factor": m["scale"],
        **({"moe_latent_size": m["latent"]} if m["latent"] else {}),
        **({"num_nextn_predict_layers": m["mtp"], "mtp_hybrid_override_pattern": "*E"} if m["mtp"] else {}),
        **dict(family.words),
    }


def recurrence(m):
    return {
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": m["key_dim"], "linear_value_head_dim": m["value_dim"],
        "linear_num_key_heads": m["key_heads"], "linear_num_value_heads": m["value_heads"],
    }


def feed_forward(m):
    family = FAMILIES[m["family"]]
    words = {family.inner: m["inner"]}
    if family.latent:
        words |= {"first_k_dense_replace": m["dense"], "intermediate_size": m["dense_inner"] if m["dense"] else m["inner"]}
    if family.shared:
        words |= {"shared_expert_intermediate_size": m["shared"]}
    if family.router:
        words |= {"num_experts_per_tok": m["top"], family.counts: m["experts"]}
    if m["beside"]:
        words |= {"enable_moe_block": True, "top_k_experts": m["beside"]["top"],
                  family.counts: m["beside"]["experts"], "moe_intermediate_size": m["beside"]["inner"]}
    return words


def order(m):
    kinds = {"gdn": "linear_attention", "attention": "full_attention", "sliding": "sliding_attention"}
    return {"layer_types": [kinds[m["period"][i % len(m["period"])]] for i in range(m["layers"])]}


def heads(m):
    """Heads of each kind of layer, in the words of Gemma 4 where there are two."""
    if FAMILIES[m["family"]].latent:
        return {"num_key_value_heads": m["heads"], "q_lora_rank": m["query_rank"], "kv_lora_rank": m["rank"],
                "qk_rope_head_dim": m["rotary"], "qk_nope_head_dim": m["nope"], "v_head_dim": m["value"]}
    words = lambda its: {"num_key_value_heads": its["kv_heads"], "head_dim": its["head_dim"]}
    if FAMILIES[m["family"]].windowed:
        return words(m) | {"sliding_window": m["window"], **order(m)}
    if not FAMILIES[m["family"]].slides:
        return words(m)
    window = {"sliding_window": m["sliding"]["window"], **order(m)}
    if FAMILIES[m["family"]].alike:
        return words(m) | {"query_pre_attn_scalar": m["scalar"], **window}
    return words(m["sliding"]) | {"num_global_key_value_heads": m["kv_heads"], "global_head_dim": m["head_dim"], **window}


def config(m):
    """config.json; a multimodal one describes the text model inside."""
    family = FAMILIES[m["family"]]
    if family.mamba:
        return nemotron(m)
    text = {
        "architectures": [family.architecture], "model_type": family.model_type,
        "vocab_size": m["vocab"], "hidden_size": m["hidden"], "num_hidden_layers": m["layers"],
        "num_attention_heads": m["heads"], **heads(m),
        "rms_norm_eps": m["eps"], "max_position_embeddings": 4096, "tie_word_embeddings": m["tied"],
        "rope_parameters": rope(m), **({"rotary_dim": m["rotary"]} if family.rows_norm else {}),
        **(recurrence(m) if family.gdn else {}), **feed_forward(m),
        **({"mtp_num_hidden_layers": m["mtp"]} | order(m) if family.gdn else {}),
        **dict(family.words), **m["words"], **({"final_logit_softcapping": m["cap"]} if m["cap"] else {}),
    }
    if not m["around"]:
        return text
    del text["architectures"]
    return m["around"] | {"tie_word_embeddings": m["tied"], "text_config": text}


YARN = dict(factor="factor", beta_fast="beta_fast", beta_slow="beta_slow",
            original_max_position="original_max_position_embeddings")


def latents(m):
    """The manifest's tables of attention over latents."""
    kept = dict(heads=m["heads"], kv_heads=1, head_dim=m["rank"] + m["rotary"], rotary_dim=m["rotary"],
                rope_theta=float(m["theta"]))
    rope = m["rope"]
    scores = {"mscale_all_dim": rope["mscale_all_dim"]} if "mscale_all_dim" in rope else {}
    yarn = {key: rope[word] for key, word in YARN.items()} | dict(truncate=True, attention_factor=1.0) | scores
    latent = dict(query_rank=m["query_rank"], nope_dim=m["nope"], value_dim=m["value"],
                  temperature_beta=rope["llama_4_scaling_beta"])
    return [("attention", kept), ("attention.yarn", yarn), ("latent", latent)]


def toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml(v) for v in value) + "]"
    return json.dumps(value)


def table(name, entries):
    lines = [f"[{name}]"] if name else []
    return "\n".join(lines + [f"{key} = {toml(value)}" for key, value in entries.items()]) + "\n"


def format_rules(m):
    """The leaf's rules: what is left in BF16, recurrent layers where they differ, then the format of the rest."""
    formats = set(m["formats"].values())
    if m["rules"]:
        return m["rules"]
    if not formats:
        return [{"match": "*", "as": "bf16"}]
    if FAMILIES[m["family"]].corrected:
        experts = {"match": "*.block_sparse_moe.experts.*", "as": formats.pop()}
        return [experts, {"match": "*", "as": "bf16"}]
    if formats == {"mxfp4"}:
        return [{"match": "*.mlp.experts.*", "as": "mxfp4"}, {"match": "*", "as": "bf16"}]
    if m["beside"]:
        router = {"match": ["model.embed_tokens", "*.router.proj"], "as": "bf16"}
        return [router, {"match": "*", "as": formats.pop()}]
    if FAMILIES[m["family"]].latent:
        names = ["tok_embeddings", "output", "*.attention.*", "*.gate"]
        return [{"match": names, "as": "bf16"}, {"match": "*", "as": formats.pop()}]
    names = ["model.embed_tokens", "lm_head"]
    names += ["*.in_proj_b", "*.in_proj_a"] if "gdn" in m["formats"] else ["*.linear_attn.*"]
    names += ["*.mlp.gate", "*.mlp.shared_expert_gate", "mtp.fc"]
    names += [] if "mtp_attention" in m["formats"] else ["mtp.*.self_attn.*"]
    rules, recurrent = [{"match": names, "as": "bf16"}], m["formats"].get("gdn")
    if len(formats) > 1:
        formats.remove(recurrent)
        rules.append({"match": "*.linear_attn.*", "as": recurrent})
    return [*rules, {"match": "*", "as": formats.pop()}]


def blocks(m):
    """The manifest's tables of what the model's family has."""
    family = FAMILIES[m["family"]]
    attention = lambda its, **own: dict(
        heads=its["heads"], kv_heads=its["kv_heads"], head_dim=its["head_dim"],
        **({"rotary_dim": its["rotary"]} if "theta" in its else {}),
        **({"turned_pairs": its["turned"]} if its.get("turned") else {}), **own,
        **({"rope_theta": float(its["theta"])} if "theta" in its else {}))
    slides = family.slides or family.windowed
    layers = dict(count=m["layers"]) | (dict(period=m["period"]) if family.gdn or slides or family.mamba else {})
    layers |= dict(feed_forward=m["parts"]) if family.mamba else {}
    layers |= dict(feed_forward=["both"]) if m["beside"] else {}
    if family.latent:
        parts = dict(feed_forward=["mlp"] * m["dense"] + ["moe"] * (m["layers"] - m["dense"])) if m["dense"] else {}
        mlp = [("mlp", dict(intermediate=m["dense_inner"]))] if m["dense"] else []
        return [("layers", layers | parts), *latents(m), *mlp,
                ("moe", dict(experts=m["experts"], experts_per_token=m["top"], intermediate=m["inner"],
                             shared_intermediate=m["inner"]))]
    window = {"window": m["window"]} if family.windowed else {}
    tables = [("layers", layers), ("attention", attention(m, **window))]
    if family.slides:
        tables += [("sliding", attention(m["sliding"], window=m["sliding"]["window"]))]
    yarn = {key: m["rope"][word] for key, word in YARN.items()} if m["rope"].get("rope_type") == "yarn" else {}
    if yarn:
        tables += [("attention.yarn", yarn)]
    elif "factor" in m["rope"]:
        words = dict(factor="factor", low_freq_factor="low_freq_factor", high_freq_factor="high_freq_factor",
                     original_max_position="original_max_position_embeddings")
        tables += [("attention.rope_scaling", {key: m["rope"][word] for key, word in words.items()})]
    if family.gdn:
        tables += [("gdn", dict(key_heads=m["key_heads"], value_heads=m["value_heads"], key_dim=m["key_dim"],
                                value_dim=m["value_dim"], conv_kernel=4))]
    if family.mamba:
        tables += [("mamba", dict(heads=m["value_heads"], head_dim=m["value_dim"], groups=m["key_heads"],
                                  state_dim=m["key_dim"], conv_kernel=4))]
    shared = dict(shared_intermediate=m["shared"]) if family.shared or family.mamba else {}
    shared |= dict(latent=m["latent"]) if m["latent"] else {}
    shared |= dict(scale=m["scale"]) if family.mamba else {}
    experts = dict(experts=m.get("experts"), experts_per_token=m.get("top"), intermediate=m["inner"]) | shared
    tables += [("moe", experts) if family.router else ("mlp", dict(intermediate=m["inner"]))]
    if m["beside"]:
        tables += [("moe", dict(experts=m["beside"]["experts"], experts_per_token=m["beside"]["top"],
                                intermediate=m["beside"]["inner"]))]
    return tables + ([("mtp", dict(layers=m["mtp"]))] if m["mtp"] else [])


def manifest(name, m, folder, tensors):
    files = [{"name": path.name, "bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
             for path in sorted(folder.glob("*.safetensors"))]
    scaled = [] if m["weights_alone"] else INPUT_SCALED
    stored = [rule["as"] for rule in format_rules(m)]
    lists = dict(input_scales=[kind for kind in scaled if kind in stored],
                 stacked_experts=["layers", "mtp"][: 1 + m["mtp"]] if m["stacked"] else [])
    stored = dict(tied_head_stored=True) if m["head_stored"] else {}
    parts = [
        ("", dict(title=f"Random: {m['title']}", id=name, family=m["family"], licence="Apache-2.0", hidden=m["hidden"],
                  vocab=m["vocab"], tied_head=m["tied"], norm_eps=m["eps"], max_position=4096,
                  **({"query_pre_attn_scalar": m["scalar"]} if m["scalar"] else {}),
                  **({"logit_cap": m["cap"]} if m["cap"] else {}))),
        *blocks(m),
        ("sampling", dict(temperature=0.0, top_k=0, top_p=1.0)),
        (f"checkpoint.{m['quant']}", dict(
            tensors=len(tensors), tensor_bytes=sum(t.numel() * t.element_size() for t in tensors.values()),
            **{key: names for key, names in lists.items() if names}, **stored, files=files)),
    ]
    (folder / "model.toml").write_text("\n".join(table(*part) for part in parts))
    for hardware in m["hardware"]:
        leaf(hardware, name, m)


def leaf(hardware, name, m):
    family = FAMILIES[m["family"]]
    recurrent, windowed = family.gdn or family.mamba, family.slides or family.windowed
    states = dict(snapshots=16 if hardware == "cpu" and recurrent else 8) if recurrent or windowed else {}
    tables = [
        ("", dict(hw=hardware, model=name, embed=False)),
        *[("[format]", rule) for rule in format_rules(m)],
        ("numbers", {"kv": "f32" if hardware == "cpu" else "bf16"}
         | ({"pad": m["pad"]} if m["pad"] > 1 and hardware != "cpu" else {})
         | ({"pad_inner": m["pad_inner"]} if m["pad_inner"] and hardware != "cpu" else {})),
        ("limits", dict(sequences=8, context=2048, kv_tokens=16384, **states, drafts=7, queued=16, page=64)),
        ("steps", dict(prefill=128)),
        *[(f"op.{json.dumps(op)}", choice) for op, choice in m["ops"].get(hardware, {}).items()],
    ]
    path = TARGETS / hardware / name / f"{m['quant']}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(table(*part) for part in tables))


def save(folder, tensors, shards):
    if shards == 1:
        return save_file(tensors, folder / "model.safetensors")
    names, weight_map = sorted(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = names[len(names) * i // shards:len(names) * (i + 1) // shards]
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= {name: file for name in part}
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def make(name):
    m = MODELS[name]
    folder = TARGETS / "_model" / name
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.contiguous() for k, v in Checkpoint(m).model().items()}
    save(folder, tensors, m["shards"])
    (folder / "config.json").write_text(json.dumps(config(m), indent=1) + "\n")
    manifest(name, m, folder, tensors)
    print(name, len(tensors), "tensors,", sum(p.stat().st_size for p in folder.glob("*.safetensors")), "bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or MODELS:
        make(name)
