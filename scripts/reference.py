"""The family in transformers and float32: exact, with rounded operands, or on given routes."""

import contextlib

import torch
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as hf
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

import golden

ROWS = 64  # positions whose logits are computed at once
NVFP4_GROUP = 16  # columns that share a scale
NVFP4_EXPONENT = 10  # of a row's largest magnitude times the row's power of two


def load(folder, config, device):
    """The model without its drafting layer; made without memory of its own, it takes that of the weights."""
    config = Qwen3_5MoeTextConfig(**config)
    config._attn_implementation = config._experts_implementation = "eager"
    tensors = {name.replace("model.language_model.", "model."): t for name, t in golden.read(folder).items()}
    names = [name for name in tensors if name.startswith("mtp.")]
    for name in names:
        del tensors[name]
    weights = golden.dequantise(tensors)
    del tensors
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    with torch.device("meta"):
        model = hf.Qwen3_5MoeForCausalLM(config)
    model.load_state_dict(weights, strict=True, assign=True)
    # Buffers that no checkpoint holds are made anew where the meta device left none.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.float().eval().to(device)


def hidden_states(model, tokens):
    """[positions, hidden], behind the last norm."""
    device = model.lm_head.weight.device
    return model.model(input_ids=torch.tensor([tokens], device=device)).last_hidden_state[0]


def logits(model, tokens):
    """ROWS positions at a time."""
    hidden = hidden_states(model, tokens).to(model.lm_head.weight.dtype)
    return [model.lm_head(rows).float() for rows in hidden.split(ROWS)]


def rounded(x, to=torch.float16):
    """What a tensor instruction takes of `x`."""
    return x.to(to).to(x.dtype)


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
def rounded_operands(model, nvfp4):
    """Rounds what a GPU target rounds: rows multiplied by weights to F16, or to NVFP4 in the modules with the names
    `nvfp4`; queries, keys and values to BF16."""
    linear, attention = torch.nn.functional.linear, hf.eager_attention_forward

    def attend(module, query, key, value, *rest, **options):
        bf16 = (rounded(vectors, torch.bfloat16) for vectors in (query, key, value))
        return attention(module, *bf16, *rest, **options)

    with inside(model, nvfp4) as within:
        def multiply(x, weight, bias=None):
            return linear(rounded_nvfp4(x) if within else rounded(x), weight, bias)

        torch.nn.functional.linear = multiply
        hf.eager_attention_forward = attend
        try:
            yield
        finally:
            torch.nn.functional.linear, hf.eager_attention_forward = linear, attention


def choice(logits, count):
    """The experts of the largest logits, the lower index on a tie."""
    return logits.sort(dim=-1, descending=True, stable=True).indices[..., :count]


class Routers:
    """What the routers give, and what they are made to choose: their weights for it stay their own."""

    def __init__(self, model):
        self.last = {}  # [positions, experts] of each layer, of the last run
        self.chosen = None  # [layers, positions, experts a token]; none: routers choose for themselves
        for layer, block in enumerate(model.model.layers):
            block.mlp.gate.register_forward_hook(self.hook(layer))

    def hook(self, layer):
        def choose(module, inputs, output):
            logits = self.last[layer] = output[0].float()
            if self.chosen is None:
                return output
            chosen = self.chosen[layer]
            weights = logits.softmax(-1).gather(-1, chosen)
            return output[0], (weights / weights.sum(-1, keepdim=True)).to(output[1].dtype), chosen

        return choose

    def logits(self):
        """Of the last run, [layers, positions, experts]."""
        return torch.stack([self.last[layer] for layer in range(len(self.last))])
