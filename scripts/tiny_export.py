"""Writes `tiny`'s checkpoint: NVFP4 weights in the compressed-tensors layout, config.json,
generation_config.json.

    python scripts/tiny_export.py --checkpoint train.pt    # a checkpoint of tiny_train.py
    python scripts/tiny_export.py --random 0               # untrained weights of a seed
    python scripts/tiny_export.py --drafts drafts.pt       # the MTP layer of tiny_drafts.py, nothing else
    python scripts/tiny_export.py --describe               # sizes and ids of what is there

A quantised matrix X [N,K] becomes X.weight_packed U8 [N,K/2] (low nibble = even column, nibble =
sign<<3 | code), X.weight_scale F8_E4M3 [N,K/16] and X.weight_global_scale F32 [1], a divisor: W =
e2m1 * (e4m3 / global). Every global scale is a power of two, so W has at most six significant bits
and is exact in BF16. Needs torch and safetensors.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import tiny_model as m

TARGET = Path(__file__).resolve().parent.parent / "targets" / "_model" / "tiny"
TRUNK = "model.language_model."
CODES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def pack(values):
    """E2M1 values [N,K] -> U8 [N,K/2]."""
    code = torch.zeros(values.shape, dtype=torch.uint8)
    for i, value in enumerate(CODES):
        code[values.abs() == value] = i
    code |= (torch.signbit(values) & (values != 0)).to(torch.uint8) << 3
    return code[:, 0::2] | (code[:, 1::2] << 4)


def unpack(packed, scales, scale):
    """The FP32 matrix of a packed one; the inverse of `pack` with its scales applied."""
    table = torch.tensor(CODES + [-c for c in CODES])
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    return (table[codes].unflatten(-1, (-1, 16)) * (scales.float() / scale)[..., None]).flatten(-2)


def matrices(layer, full):
    """[(name in the checkpoint, [N,K] weight, its group's global scale)] of a layer's quantised
    matrices.
    """
    out = []
    for group in m.groups(full):
        weights = [m.stored(layer, name).detach().float() for name in group]
        scale = m.global_scale(weights)
        for name, weight in zip(group, weights):
            if weight.dim() == 2:
                out.append((name, weight, scale))
                continue
            for e in range(m.EXPERTS):
                stem = f"mlp.experts.{e}."
                if name.endswith("gate_up_proj"):
                    gate, up = weight[e].chunk(2)
                    out += [(stem + "gate_proj", gate, scale[e]), (stem + "up_proj", up, scale[e])]
                else:
                    out.append((stem + "down_proj", weight[e], scale[e]))
    return out


def layer_tensors(prefix, layer):
    """Quantised and BF16 tensors of one decoder layer."""
    out, taken = {}, {n for group in m.groups(layer.full) for n in group}
    for name, weight, scale in matrices(layer, layer.full):
        values, blocks, exact = m.quantise(weight, scale)
        packed, blocks = pack(values), blocks.to(torch.float8_e4m3fn)
        scale = scale.reshape(1).float().clone()
        assert torch.equal(unpack(packed, blocks, scale), exact) and torch.equal(
            exact.bfloat16().float(), exact
        ), name
        out |= {
            f"{prefix}{name}.weight_packed": packed,
            f"{prefix}{name}.weight_scale": blocks,
            f"{prefix}{name}.weight_global_scale": scale,
        }
    for name, value in layer.named_parameters():
        if name.removesuffix(".weight") not in taken:
            out[prefix + name] = value.detach().bfloat16()
    return out


def checkpoint_tensors(model):
    """Every tensor of the release, by name."""
    out = {}
    for i, layer in enumerate(model.model.language_model.layers):
        out |= layer_tensors(f"{TRUNK}layers.{i}.", layer)
    for name, value in model.named_parameters():
        if ".layers." not in name and not name.startswith("mtp."):
            out[name] = value.detach().bfloat16()
    return {k: v.contiguous() for k, v in (out | draft_tensors(model.mtp)).items()}


def draft_tensors(mtp):
    """Every tensor of the MTP layer, by name."""
    out = layer_tensors("mtp.layers.0.", mtp.layers[0])
    for name, value in mtp.named_parameters():
        if "layers." not in name:
            out["mtp." + name] = value.detach().bfloat16()
    return {k: v.contiguous() for k, v in out.items()}


def with_drafts(tensors, path):
    """Exported tensors with the MTP layer of a file."""
    mtp = m.Mtp()
    mtp.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    new = draft_tensors(mtp)
    shape = lambda t: (t.shape, t.dtype)
    old = {name: shape(t) for name, t in tensors.items() if name.startswith("mtp.")}
    if old != {name: shape(t) for name, t in new.items()}:
        raise SystemExit(f"{path}: has other tensors than the MTP layer of the checkpoint")
    return tensors | new


def exported():
    """FP32 tensors of the exported file, by the names of tiny_model."""
    return stacked(dequantised(load_file(TARGET / "model.safetensors")))


def dequantised(tensors):
    """FP32 tensors of exported ones, with plain `.weight` names."""
    out = {k: v.float() for k, v in tensors.items() if ".weight_" not in k}
    for name, packed in tensors.items():
        if name.endswith(".weight_packed"):
            stem = name.removesuffix("_packed")
            scales = tensors[stem + "_scale"], tensors[stem + "_global_scale"]
            out[stem] = unpack(packed, *scales)
    return out


def stacked(tensors):
    """Per-expert tensors of `prefix.mlp.experts.E.*` stacked as transformers and tiny_model hold
    them.
    """
    out = {k: v for k, v in tensors.items() if ".experts." not in k}
    for stem in {k.split(".experts.")[0] + ".experts." for k in tensors if ".experts." in k}:
        get = lambda e, part: tensors[f"{stem}{e}.{part}_proj.weight"]
        out[stem + "gate_up_proj"] = torch.stack(
            [torch.cat([get(e, "gate"), get(e, "up")]) for e in range(m.EXPERTS)]
        )
        out[stem + "down_proj"] = torch.stack([get(e, "down") for e in range(m.EXPERTS)])
    return out


def ignored():
    """Linear modules left in BF16, as compressed-tensors lists them."""
    names = ["lm_head", "mtp.fc"]
    for i in range(m.LAYERS):
        stem = f"{TRUNK}layers.{i}."
        names += [stem + "mlp.gate", stem + "mlp.shared_expert_gate"]
        if (i + 1) % 4:
            names += [
                stem + "linear_attn." + part
                for part in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
            ]
    return names + ["mtp.layers.0.mlp.gate", "mtp.layers.0.mlp.shared_expert_gate"]


def quantization_config():
    weights = {
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "group_size": 16,
        "num_bits": 4,
        "observer": "minmax",
        "observer_kwargs": {},
        "scale_dtype": "torch.float8_e4m3fn",
        "strategy": "tensor_group",
        "symmetric": True,
        "type": "float",
        "zp_dtype": None,
    }
    group = {
        "format": "nvfp4-pack-quantized",
        "input_activations": None,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": "nvfp4-pack-quantized",
        "global_compression_ratio": None,
        "ignore": ignored(),
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.14.1",
    }


def text_config(ids):
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": ids["<|im_end|>"],
        "full_attention_interval": 4,
        "head_dim": m.HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": m.HIDDEN,
        "initializer_range": 0.02,
        "layer_types": [
            "linear_attention" if (i + 1) % 4 else "full_attention" for i in range(m.LAYERS)
        ],
        "linear_conv_kernel_dim": m.CONV,
        "linear_key_head_dim": m.GDN_DIM,
        "linear_num_key_heads": m.KEY_HEADS,
        "linear_num_value_heads": m.VALUE_HEADS,
        "linear_value_head_dim": m.GDN_DIM,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 2048,
        "mlp_only_layers": [],
        "model_type": "qwen3_5_moe_text",
        "moe_intermediate_size": m.EXPERT_DIM,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": m.HEADS,
        "num_experts": m.EXPERTS,
        "num_experts_per_tok": m.TOP_K,
        "num_hidden_layers": m.LAYERS,
        "num_key_value_heads": m.KV_HEADS,
        "output_router_logits": False,
        "pad_token_id": ids["<|endoftext|>"],
        "partial_rotary_factor": m.ROTARY / m.HEAD_DIM,
        "rms_norm_eps": m.EPS,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": m.ROTARY / m.HEAD_DIM,
            "rope_theta": int(m.THETA),
            "rope_type": "default",
        },
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": m.SHARED_DIM,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": m.VOCAB,
    }


def token_ids():
    """Added tokens of the tokenizer by text."""
    added = json.loads((TARGET / "tokenizer.json").read_text())["added_tokens"]
    return {t["content"]: t["id"] for t in added}


def write_configs():
    ids = token_ids()
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "dtype": "bfloat16",
        "eos_token_id": ids["<|im_end|>"],
        "model_type": "qwen3_5_moe",
        "pad_token_id": ids["<|endoftext|>"],
        "quantization_config": quantization_config(),
        "text_config": text_config(ids),
        "tie_word_embeddings": False,
    }
    (TARGET / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {
        "do_sample": True,
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.8,
    }
    (TARGET / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def load_model(args):
    torch.manual_seed(args.random or 0)
    model = m.Tiny()
    if args.checkpoint:
        state = torch.load(args.checkpoint, map_location="cpu", weights_only=True)
        model.load_state_dict({k: v.float() for k, v in state["model"].items()})
    return model


def write(tensors):
    save_file(tensors, TARGET / "model.safetensors", metadata={"format": "pt"})


def describe():
    tensors = load_file(TARGET / "model.safetensors")
    count = sum(
        t.numel() * (2 if k.endswith("weight_packed") else 1)
        for k, t in tensors.items()
        if "_scale" not in k
    )
    print(f"parameters {count:,} in {len(tensors)} tensors")
    for path in sorted(TARGET.iterdir()):
        print(f"{path.stat().st_size:>10,} {path.name}")
    print(token_ids())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--random", type=int)
    parser.add_argument("--drafts", type=Path)
    parser.add_argument("--describe", action="store_true")
    args = parser.parse_args()
    if args.checkpoint or args.random is not None:
        write(checkpoint_tensors(load_model(args)))
        write_configs()
    if args.drafts:
        write(with_drafts(load_file(TARGET / "model.safetensors"), args.drafts))
    describe()


if __name__ == "__main__":
    main()
