"""Compares a binary's logits with Hugging Face transformers in float32, at the model's full width.

    atlas-<target> synth WEIGHTS --layers 4
    python scripts/full_width.py BINARY WEIGHTS [--positions 2048] [--device cuda]

WEIGHTS is a drawn checkpoint, whole or cut (`config.json` says after how many layers). The binary writes its logits of
seeded random tokens by its verb `logits`, as a prompt and one token at a time; the reference computes the same
positions from the same weights, which `golden.py` dequantises independently of the server's loader. Prints the mean
Kullback-Leibler divergence from the reference, in nats, and the share of positions with the same most likely token.

A target that multiplies in F32 must stay below --kld. One that rounds what it multiplies cannot be told by a number:
a router's choice is not continuous, and of 256 experts the eighth and the ninth are often closer than BF16 rounds. Nor
can the reference follow it by rounding too, for a difference of one part in a million becomes a whole rounding step
wherever a value lies between two steps, and after some layers the roundings are unrelated. But their size is known: the
reference is compared with itself, rounding where the target rounds, and the target may be as far from the reference as
that, times SLACK. How far the target is from the rounding reference, and transformers' own BF16, are printed for scale.
Exits with 1 if a way is farther.

For a target whose manifest says experts_rows = "nvfp4", give --experts-rows nvfp4: the reference then rounds what
experts multiply as `Ops::experts` says.

Takes 4 bytes a weight and the logits (2 GB for 2,048 positions of 248,320 tokens), in files and again on the device.
"""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile

missing = []
for package in ("numpy", "torch", "transformers", "safetensors"):
    try:
        __import__(package)
    except ImportError:
        missing.append(package)
if missing:
    sys.exit(f"missing: {', '.join(missing)}; pip install {' '.join(missing)}")

import numpy
import torch

import golden

ROWS = 64  # positions whose logits are compared at once
SEED = 11
SLACK = 1.1  # room for what else is computed in another order
NVFP4_GROUP = 16  # columns that share a scale
NVFP4_EXPONENT = 10  # of a row's largest magnitude times the row's power of two
EXPERTS = {"exact": (), "nvfp4": ("experts", "shared_expert")}  # modules whose products take NVFP4, by --experts-rows


def binary_logits(arguments, config, tokens, way, folder):
    """The binary's logits, mapped from the file that it writes."""
    given, out = folder / "tokens.txt", folder / "logits.f32"
    given.write_text(" ".join(map(str, tokens)))
    command = [str(arguments.binary.resolve()), "logits", str(arguments.weights), "--tokens", str(given), "--out",
               str(out), "--layers", str(config["num_hidden_layers"])] + ["--decode"] * (way == "decode")
    print("+", " ".join(command), flush=True)
    if subprocess.run(command).returncode:
        sys.exit("the binary wrote no logits")
    return numpy.memmap(out, "<f4", "r").reshape(len(tokens), config["vocab_size"])


def reference(folder, config, device):
    """The model without its drafting layer; made without memory of its own, it takes that of the weights."""
    config = golden.Qwen3_5MoeTextConfig(**config)
    config._attn_implementation = config._experts_implementation = "eager"
    tensors = golden.read(folder)
    names = [name for name in tensors if name.startswith("mtp.")]
    for name in names:
        del tensors[name]
    weights = golden.dequantise(tensors)
    del tensors
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    with torch.device("meta"):
        model = golden.hf.Qwen3_5MoeForCausalLM(config)
    model.load_state_dict(weights, strict=True, assign=True)
    # Buffers that no checkpoint holds are made anew where the meta device left none.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.float().eval().to(device)


def rows_of(found):
    """Logits of the file, ROWS positions at a time."""
    for first in range(0, len(found), ROWS):
        yield torch.from_numpy(found[first:first + ROWS].copy())


def rounded(x):
    """What a tensor instruction takes of `x`."""
    return x.to(torch.bfloat16).to(x.dtype)


def rounded_nvfp4(x):
    """What a block-scaled tensor instruction takes of the rows `x`."""
    exponent = torch.frexp(x.abs().amax(-1, keepdim=True)).exponent - 1
    up = torch.ldexp(torch.ones_like(x[..., :1]), NVFP4_EXPONENT - exponent)
    groups = (x * up).unflatten(-1, (-1, NVFP4_GROUP))
    scale = (groups.abs().amax(-1, keepdim=True) / 6).to(torch.float8_e4m3fn).to(x.dtype)
    size = (groups.abs() / scale).nan_to_num().clamp(max=6)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return ((size / step).round() * step * scale).copysign(groups).flatten(-2) / up


@contextlib.contextmanager
def inside(model, names):
    """Gives a list that is not empty while a module with one of these names runs."""
    running, hooks = [], []
    for path, module in model.named_modules():
        if path.rsplit(".", 1)[-1] in names:
            hooks.append(module.register_forward_pre_hook(lambda *_: running.append(True)))
            hooks.append(module.register_forward_hook(lambda *_: running.clear()))
    try:
        yield running
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def rounded_operands(experts):
    """Rounds in the reference what a GPU target rounds: rows multiplied by weights, queries, keys and values; by
    NVFP4 while `experts` is not empty."""
    linear, attention = torch.nn.functional.linear, golden.hf.eager_attention_forward

    def attend(module, query, key, value, *rest, **options):
        return attention(module, rounded(query), rounded(key), rounded(value), *rest, **options)

    def multiply(x, weight, bias=None):
        return linear(rounded_nvfp4(x) if experts else rounded(x), weight, bias)

    torch.nn.functional.linear = multiply
    golden.hf.eager_attention_forward = attend
    try:
        yield
    finally:
        torch.nn.functional.linear, golden.hf.eager_attention_forward = linear, attention


def logits(model, tokens, device):
    """The reference's logits, ROWS positions at a time."""
    dtype = model.lm_head.weight.dtype
    hidden = model.model(input_ids=torch.tensor([tokens], device=device)).last_hidden_state[0]
    for rows in hidden.to(dtype).split(ROWS):
        yield model.lm_head(rows).float()


def compare(name, expected, found, device):
    """Prints divergence and agreement of two ways to the same logits; both are iterables of rows."""
    divergence, same, entropy = [], [], []
    for theirs, ours in zip(expected, found, strict=True):
        ours = ours.to(device)
        if not bool(ours.isfinite().all()):
            sys.exit(f"{name}: logits are not finite between positions {ROWS * len(same)} and "
                     f"{ROWS * len(same) + len(ours)}")
        log, ours_log = theirs.double().log_softmax(-1), ours.double().log_softmax(-1)
        divergence.append((log.exp() * (log - ours_log)).sum(-1).cpu())
        entropy.append(-(log.exp() * log).sum(-1).cpu())
        same.append((theirs.argmax(-1) == ours.argmax(-1)).cpu())
    divergence, same, entropy = torch.cat(divergence), torch.cat(same), torch.cat(entropy)
    mean = float(divergence.mean())
    print(f"{name}: {len(same)} positions: mean KLD {mean:.3e} nats, median {float(divergence.median()):.3e}, largest "
          f"{float(divergence.max()):.3e}, same most likely token {100 * float(same.double().mean()):.2f} %, "
          f"mean entropy {float(entropy.mean()):.2f} nats", flush=True)
    return mean


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("weights", type=pathlib.Path)
    parser.add_argument("--positions", type=int, default=2048)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--operands", choices=("f32", "bf16"), default="bf16", help="what the target multiplies")
    parser.add_argument("--experts-rows", choices=EXPERTS, default="exact", help="as in the target's manifest")
    parser.add_argument("--kld", type=float, default=1e-4, help="largest mean divergence of an f32 target, nats")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    config = json.loads((arguments.weights / "config.json").read_text())
    random = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(config["vocab_size"], (arguments.positions,), generator=random).tolist()
    model, device = reference(arguments.weights, config, arguments.device), arguments.device
    print(f"{config['num_hidden_layers']} layers, torch {torch.__version__}, transformers "
          f"{golden.transformers.__version__}", flush=True)
    exact, allowed, rounding = list(logits(model, tokens, device)), arguments.kld, None
    if arguments.operands == "bf16":
        with inside(model, EXPERTS[arguments.experts_rows]) as experts, rounded_operands(experts):
            rounding = list(logits(model, tokens, device))
        allowed = SLACK * compare("the reference, rounding its operands", exact, rounding, device)
    means = []
    for way in ("prefill", "decode"):
        with tempfile.TemporaryDirectory() as folder:
            found = binary_logits(arguments, config, tokens, way, pathlib.Path(folder))
            means.append(compare(way, exact, rows_of(found), device))
            if rounding:
                compare(f"{way}, from the rounding reference", rounding, rows_of(found), device)
    rotary = model.model.rotary_emb  # transformers keeps its angles in float32 too
    model.bfloat16().model.rotary_emb = type(rotary)(model.config).to(device)
    compare("transformers in BF16", exact, logits(model, tokens, device), device)
    print(f"allowed: {allowed:.3e} nats")
    sys.exit(int(max(means) > allowed))


if __name__ == "__main__":
    main()
