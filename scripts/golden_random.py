"""Makes the random test checkpoints `targets/_model/random-*`: small models of the family with awkward numbers.

    python scripts/golden_random.py [NAME...]

Writes config.json, the weights, model.toml and the leaf `targets/cpu/<name>/<quant>.toml`; `scripts/golden.py` then
writes the golden files. Needs torch and safetensors. The same seed gives the same files.
"""

import hashlib
import json
import math
import pathlib
import sys

import torch
from safetensors.torch import save_file

TARGETS = pathlib.Path(__file__).resolve().parent.parent / "targets"
GROUP = 16  # columns per NVFP4 scale
BLOCK = 128  # rows and columns per FP8 scale
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])

# Formats name the groups that are not BF16.
MODELS = {
    "random-ratio1": dict(
        seed=1, quant="bf16", title="one value head per key head, two mixers", vocab=131, hidden=80,
        period=["gdn", "attention", "gdn"], layers=3, heads=4, kv_heads=1, head_dim=24, rotary=12, theta=1e4,
        key_heads=3, value_heads=3, key_dim=16, value_dim=24, experts=5, top=3, inner=20, shared=24,
        tied=False, mtp=0, prefix="model.", stacked=False, shards=1, formats={}),
    "random-ratio3": dict(
        seed=2, quant="bf16", title="three value heads per key head, tied head, stacked experts, shards", vocab=130,
        hidden=72, period=["gdn", "gdn", "attention"], layers=3, heads=3, kv_heads=3, head_dim=32, rotary=8,
        theta=1e6, key_heads=1, value_heads=3, key_dim=20, value_dim=12, experts=3, top=1, inner=12, shared=20,
        tied=True, mtp=1, prefix="model.language_model.", stacked=True, shards=3, formats={}),
    "random-modelopt": dict(
        seed=3, quant="nvfp4", title="modelopt NVFP4 in every group that may have it", vocab=161, hidden=96,
        period=["attention", "gdn"], layers=2, heads=4, kv_heads=2, head_dim=48, rotary=24, theta=1e7,
        key_heads=2, value_heads=4, key_dim=24, value_dim=20, experts=5, top=2, inner=48, shared=32,
        tied=False, mtp=1, prefix="model.", stacked=False, shards=1,
        formats={g: "nvfp4_modelopt" for g in ["gdn", "attention", "experts", "shared_expert", "mtp_experts"]}),
    "random-fp8": dict(
        seed=4, quant="fp8", title="FP8 blocks with ragged edges", vocab=97, hidden=136,
        period=["gdn", "attention"], layers=2, heads=2, kv_heads=1, head_dim=40, rotary=20, theta=1e7,
        key_heads=2, value_heads=4, key_dim=16, value_dim=36, experts=3, top=2, inner=24, shared=20,
        tied=False, mtp=1, prefix="model.language_model.", stacked=False, shards=1,
        formats={g: "fp8_block128" for g in ["gdn", "attention", "experts", "shared_expert", "mtp_attention",
                                             "mtp_experts"]}),
    "random-packed": dict(
        seed=5, quant="nvfp4", title="compressed-tensors NVFP4, all experts chosen", vocab=257, hidden=80,
        period=["gdn", "attention", "gdn"], layers=3, heads=4, kv_heads=2, head_dim=20, rotary=20, theta=1e5,
        key_heads=2, value_heads=6, key_dim=32, value_dim=32, experts=3, top=3, inner=32, shared=16,
        tied=False, mtp=1, prefix="model.language_model.", stacked=False, shards=2,
        formats={g: "nvfp4_compressed_tensors" for g in ["attention", "experts", "shared_expert", "mtp_attention",
                                                         "mtp_experts"]}),
}


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


class Checkpoint:
    """Tensors by name; draws weights so that states, gates and the choice of experts matter."""

    def __init__(self, m):
        self.m, self.tensors = m, {}
        self.random = torch.Generator().manual_seed(m["seed"])

    def normal(self, *shape, scale=1.0):
        return torch.randn(*shape, generator=self.random) * scale

    def vector(self, name, values):
        self.tensors[name] = values.bfloat16()

    def norm(self, name, size):
        self.vector(name, self.normal(size, scale=0.3))

    def matrix(self, name, n, k, group=None, gain=1.0):
        w = self.normal(n, k, scale=gain / math.sqrt(k))
        kind = self.m["formats"].get(group, "bf16")
        if kind == "bf16":
            self.tensors[f"{name}.weight"] = w.bfloat16()
        elif kind == "nvfp4_modelopt":
            code, scale, total = nvfp4(w)
            self.tensors |= {f"{name}.weight": code, f"{name}.weight_scale": scale, f"{name}.weight_scale_2": total,
                             f"{name}.input_scale": torch.tensor(1.0)}
        elif kind == "nvfp4_compressed_tensors":
            code, scale, total = nvfp4(w)
            self.tensors |= {f"{name}.weight_packed": code, f"{name}.weight_scale": scale,
                             f"{name}.weight_global_scale": (1 / total).reshape(1)}
        else:
            code, scale = fp8(w)
            self.tensors |= {f"{name}.weight": code, f"{name}.weight_scale_inv": scale}

    def swiglu(self, name, inner, group):
        self.matrix(f"{name}.gate_proj", inner, self.m["hidden"], group, 2.0)
        self.matrix(f"{name}.up_proj", inner, self.m["hidden"], group, 1.5)
        self.matrix(f"{name}.down_proj", self.m["hidden"], inner, group, 1.5)

    def experts(self, name, group):
        m = self.m
        if not m["stacked"]:
            for e in range(m["experts"]):
                self.swiglu(f"{name}.{e}", m["inner"], group)
            return
        h, i, e = m["hidden"], m["inner"], m["experts"]
        self.tensors[f"{name}.gate_up_proj"] = self.normal(e, 2 * i, h, scale=2 / math.sqrt(h)).bfloat16()
        self.tensors[f"{name}.down_proj"] = self.normal(e, h, i, scale=1.5 / math.sqrt(i)).bfloat16()

    def attention(self, name, group):
        m = self.m
        q, kv = m["heads"] * m["head_dim"], m["kv_heads"] * m["head_dim"]
        self.matrix(f"{name}.q_proj", 2 * q, m["hidden"], group, 1.5)
        self.matrix(f"{name}.k_proj", kv, m["hidden"], group, 1.5)
        self.matrix(f"{name}.v_proj", kv, m["hidden"], group)
        self.matrix(f"{name}.o_proj", m["hidden"], q, group, 1.5)
        self.norm(f"{name}.q_norm.weight", m["head_dim"])
        self.norm(f"{name}.k_norm.weight", m["head_dim"])

    def gdn(self, name):
        m = self.m
        values, channels = m["value_heads"] * m["value_dim"], 2 * m["key_heads"] * m["key_dim"]
        channels += values
        self.matrix(f"{name}.in_proj_qkv", channels, m["hidden"], "gdn", 1.5)
        self.matrix(f"{name}.in_proj_z", values, m["hidden"], "gdn", 1.5)
        self.matrix(f"{name}.in_proj_b", m["value_heads"], m["hidden"], gain=1.5)
        self.matrix(f"{name}.in_proj_a", m["value_heads"], m["hidden"], gain=1.5)
        self.matrix(f"{name}.out_proj", m["hidden"], values, "gdn", 1.5)
        self.vector(f"{name}.conv1d.weight", self.normal(channels, 1, 4, scale=0.6))
        rates = torch.rand(m["value_heads"], generator=self.random) * 4 + 0.05
        self.vector(f"{name}.A_log", rates.log())
        self.vector(f"{name}.dt_bias", self.normal(m["value_heads"], scale=1.5) - 2)
        self.vector(f"{name}.norm.weight", 1 + self.normal(m["value_dim"], scale=0.3))

    def layer(self, name, kind, groups=("attention", "experts", "shared_expert")):
        m = self.m
        self.norm(f"{name}.input_layernorm.weight", m["hidden"])
        self.norm(f"{name}.post_attention_layernorm.weight", m["hidden"])
        if kind == "gdn":
            self.gdn(f"{name}.linear_attn")
        else:
            self.attention(f"{name}.self_attn", groups[0])
        self.matrix(f"{name}.mlp.gate", m["experts"], m["hidden"], gain=2.0)
        self.experts(f"{name}.mlp.experts", groups[1])
        self.swiglu(f"{name}.mlp.shared_expert", m["shared"], groups[2])
        self.matrix(f"{name}.mlp.shared_expert_gate", 1, m["hidden"], gain=1.5)

    def model(self):
        m = self.m
        prefix = m["prefix"]
        self.tensors[f"{prefix}embed_tokens.weight"] = self.normal(m["vocab"], m["hidden"], scale=0.15).bfloat16()
        for i in range(m["layers"]):
            self.layer(f"{prefix}layers.{i}", m["period"][i % len(m["period"])])
        self.norm(f"{prefix}norm.weight", m["hidden"])
        if not m["tied"]:
            self.matrix("lm_head", m["vocab"], m["hidden"], gain=1.2)
        if m["mtp"]:
            self.norm("mtp.pre_fc_norm_embedding.weight", m["hidden"])
            self.norm("mtp.pre_fc_norm_hidden.weight", m["hidden"])
            self.matrix("mtp.fc", m["hidden"], 2 * m["hidden"])
            self.layer("mtp.layers.0", "attention", ("mtp_attention", "mtp_experts", "mtp_experts"))
            self.norm("mtp.norm.weight", m["hidden"])
        return self.tensors


def config(m):
    kinds = {"gdn": "linear_attention", "attention": "full_attention"}
    return {
        "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text",
        "vocab_size": m["vocab"], "hidden_size": m["hidden"], "num_hidden_layers": m["layers"],
        "num_attention_heads": m["heads"], "num_key_value_heads": m["kv_heads"], "head_dim": m["head_dim"],
        "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "tie_word_embeddings": m["tied"],
        "rope_parameters": {"rope_type": "default", "rope_theta": m["theta"],
                            "partial_rotary_factor": m["rotary"] / m["head_dim"], "mrope_section": [0, 0, 0]},
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": m["key_dim"], "linear_value_head_dim": m["value_dim"],
        "linear_num_key_heads": m["key_heads"], "linear_num_value_heads": m["value_heads"],
        "moe_intermediate_size": m["inner"], "shared_expert_intermediate_size": m["shared"],
        "num_experts_per_tok": m["top"], "num_experts": m["experts"], "mtp_num_hidden_layers": m["mtp"],
        "layer_types": [kinds[m["period"][i % len(m["period"])]] for i in range(m["layers"])],
    }


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
    """The leaf's rules: what is left in BF16, then the format of the rest."""
    formats = set(m["formats"].values())
    if not formats:
        return [{"match": "*", "as": "bf16"}]
    names = ["model.embed_tokens", "lm_head"]
    names += ["*.in_proj_b", "*.in_proj_a"] if "gdn" in m["formats"] else ["*.linear_attn.*"]
    names += ["*.mlp.gate", "*.mlp.shared_expert_gate", "mtp.fc"]
    names += [] if "mtp_attention" in m["formats"] else ["mtp.*.self_attn.*"]
    return [{"match": names, "as": "bf16"}, {"match": "*", "as": formats.pop()}]


def manifest(name, m, folder, tensors):
    files = [{"name": path.name, "bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
             for path in sorted(folder.glob("*.safetensors"))]
    parts = [
        ("", dict(title=f"Random: {m['title']}", id=name, family="qwen3_5_moe", licence="Apache-2.0",
                  hidden=m["hidden"], vocab=m["vocab"], tied_head=m["tied"], norm_eps=1e-6, max_position=4096)),
        ("layers", dict(count=m["layers"], period=m["period"])),
        ("attention", dict(heads=m["heads"], kv_heads=m["kv_heads"], head_dim=m["head_dim"], rotary_dim=m["rotary"],
                           rope_theta=float(m["theta"]))),
        ("gdn", dict(key_heads=m["key_heads"], value_heads=m["value_heads"], key_dim=m["key_dim"],
                     value_dim=m["value_dim"], conv_kernel=4)),
        ("moe", dict(experts=m["experts"], experts_per_token=m["top"], intermediate=m["inner"],
                     shared_intermediate=m["shared"])),
        ("mtp", dict(layers=m["mtp"])),
        ("sampling", dict(temperature=0.0, top_k=0, top_p=1.0)),
        (f"checkpoint.{m['quant']}", dict(
            tensors=len(tensors), tensor_bytes=sum(t.numel() * t.element_size() for t in tensors.values()),
            input_scales="nvfp4_modelopt" in m["formats"].values(), stacked_experts=m["stacked"], files=files)),
    ]
    (folder / "model.toml").write_text("\n".join(table(*part) for part in parts))
    leaf = [
        ("", dict(hw="cpu", model=name, embed=False)),
        *[("[format]", rule) for rule in format_rules(m)],
        ("numbers", {"kv": "f32"}),
        ("limits", dict(sequences=8, context=2048, kv_tokens=16384, queued=16, page=64)),
        ("steps", dict(decode=[1, 2, 4, 8], prefill=128)),
    ]
    path = TARGETS / "cpu" / name / f"{m['quant']}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(table(*part) for part in leaf))


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
