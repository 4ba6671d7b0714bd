"""A model of any family in transformers and float32: exact, with rounded operands, or on given routes."""

import contextlib
import sys

import torch

import golden

ROWS = 64  # positions whose logits are computed at once
NVFP4_GROUP = 16  # columns that share a scale
NVFP4_EXPONENT = 10  # of a row's largest magnitude times the row's power of two


def load(folder, config, device):
    """The model without its drafting layer. A drawn checkpoint's configuration is of the text alone, while names of
    tensors may be those of a model that sees images."""
    config = {name: value for name, value in config.items() if name != "quantization_config"}
    tensors = {name: tensor for name, tensor in golden.read(folder).items() if not name.startswith("mtp.")}
    if "text_config" not in config:
        tensors = {name.replace("model.language_model.", "model."): tensor for name, tensor in tensors.items()}
    weights = golden.dequantise(tensors)
    del tensors
    return golden.build(config, weights, experts_implementation="eager").to(device)


def restart_rotary(model):
    """Makes the angles of positions anew, in float32."""
    decoder = model.get_decoder()
    decoder.rotary_emb = type(decoder.rotary_emb)(decoder.config).to(model.lm_head.weight.device)


def hidden_states(model, tokens):
    """[positions, hidden], behind the last norm."""
    ids = torch.tensor([tokens], device=model.lm_head.weight.device)
    return model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]


def logits(model, tokens):
    """ROWS positions at a time."""
    hidden = hidden_states(model, tokens).to(model.lm_head.weight.dtype)
    return [golden.head(model, rows).float() for rows in hidden.split(ROWS)]


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
    family = sys.modules[type(model.get_decoder()).__module__]
    linear, attention = torch.nn.functional.linear, family.eager_attention_forward

    def attend(module, query, key, value, *rest, **options):
        bf16 = (rounded(vectors, torch.bfloat16) for vectors in (query, key, value))
        return attention(module, *bf16, *rest, **options)

    with inside(model, nvfp4) as within:
        def multiply(x, weight, bias=None):
            return linear(rounded_nvfp4(x) if within else rounded(x), weight, bias)

        torch.nn.functional.linear = multiply
        family.eager_attention_forward = attend
        try:
            with rounded_experts(model):
                yield
        finally:
            torch.nn.functional.linear, family.eager_attention_forward = linear, attention


def router_of(mlp):
    """A layer's router, none of an MLP."""
    named = (getattr(mlp, name, None) for name in ("gate", "router"))
    return next((module for module in named if module is not None), None)


@contextlib.contextmanager
def rounded_experts(model):
    """Rounds what experts multiply that do so without `linear`, those of gpt-oss."""
    undo = []
    for module in model.modules():
        if hasattr(module, "_apply_gate") and hasattr(module, "down_proj_bias"):
            hook = module.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0]), *inputs[1:]))
            module._apply_gate = lambda x, gate=module._apply_gate: rounded(gate(x))
            undo.append((module, hook))
    try:
        yield
    finally:
        for module, hook in undo:
            hook.remove()
            del module._apply_gate


def choice(logits, count):
    """The experts of the largest logits, the lower index on a tie."""
    return logits.sort(dim=-1, descending=True, stable=True).indices[..., :count]


class Routers:
    """Logits of the routers, and experts that they are made to choose: their weights for them stay their own, and those
    of a token's experts sum to one in every family."""

    def __init__(self, model):
        self.last = {}  # [positions, experts] of each layer, of the last run
        self.chosen = None  # [layers, positions, experts a token]; none: routers choose for themselves
        blocks = [block.mlp for block in model.get_decoder().layers if router_of(block.mlp) is not None]
        self.layers = len(blocks)  # none has a router in a model without experts
        if blocks:
            self.experts, self.turns = router_of(blocks[0]).num_experts, router_of(blocks[0]).top_k
            self.gates = int(hasattr(blocks[0], "shared_expert_gate"))  # logits that are told behind the experts'
        for layer, block in enumerate(blocks):
            router_of(block).register_forward_hook(self.hook(layer))

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
        """Logits of the last run, [layers, positions, experts]; none without routers."""
        return torch.stack([self.last[layer] for layer in range(self.layers)]) if self.layers else None
