"""A model of any family in transformers and float32: exact, with rounded operands, or on given routes."""

import contextlib
import dataclasses
import re
import sys

import torch

import golden

ROWS = 64  # positions whose logits are computed at once
NVFP4_GROUP = 16  # columns that share a scale
NVFP4_EXPONENT = 10  # of a row's largest magnitude times the row's power of two


@dataclasses.dataclass
class Near:
    """Tensors that are taken to a device one by one."""

    tensors: dict
    device: torch.device

    def __getitem__(self, name):
        return self.tensors[name].to(self.device)

    def get(self, name):
        return self[name] if name in self.tensors else None


class Stack(torch.nn.Module):
    """A matrix of each of a layer's experts, dequantised as it is read: all of them at once have no room."""

    def __init__(self, tensors, names):
        super().__init__()
        self.tensors, self.names = tensors, names  # of each expert those that lie one below the other
        self.like = torch.nn.Buffer(torch.empty(0), persistent=False)

    def __getitem__(self, expert):
        parts = [golden.dequantised(Near(self.tensors, self.like.device), name) for name in self.names[int(expert)]]
        return torch.cat(parts).to(self.like.dtype)

    def placeholder(self):
        """A tensor of its shape that takes no memory."""
        first = self[0]
        return first.new_zeros(()).expand(len(self.names), *first.shape)


def load(folder, device):
    """The model without its drafting layer. A drawn checkpoint's configuration is of the text alone, while names of
    tensors may be those of a model that sees images."""
    config = golden.configuration(folder)
    tensors = {name: tensor for name, tensor in golden.read(folder).items() if not name.startswith("mtp.")}
    if "text_config" not in config:
        tensors = {name.replace("model.language_model.", "model."): tensor for name, tensor in tensors.items()}
    stacks = {name: Stack(tensors, names) for name, names in golden.stacks(golden.names(tensors)).items()}
    single = {name for stack in stacks.values() for names in stack.names for name in names}
    weights = {name: golden.dequantised(tensors, name) for name in golden.names(tensors) if name not in single}
    weights |= {name: stack.placeholder() for name, stack in stacks.items()}
    model = golden.build(config, weights, experts_implementation="eager")
    for name, stack in stacks.items():
        layer, matrix = int(re.search(r"layers\.(\d+)\.", name)[1]), name.rsplit(".", 1)[1]
        experts = Block(model.get_decoder().layers[layer]).experts
        delattr(experts, matrix)
        setattr(experts, matrix, stack)
    return model.to(device)


class Block:
    """Parts of a layer, by the names of its family."""

    def __init__(self, layer):
        named = lambda module, *names: next((getattr(module, name) for name in names if hasattr(module, name)), None)
        alone = named(layer, "mixer")  # of a layer that is one part alone
        fed = layer if hasattr(layer, "router") else named(layer, "mlp") or alone
        self.layer, self.router, self.experts = layer, named(fed, "gate", "router"), named(fed, "experts")
        self.mixer = named(layer, "linear_attn", "self_attn") or (alone if self.router is None else None)
        self.sandwiched = hasattr(layer, "pre_feedforward_layernorm")  # what parts add is normed
        self.shared, self.shared_gate = named(fed, "shared_expert", "shared_experts"), named(fed, "shared_expert_gate")
        self.back = named(fed, "fc2_latent_proj")  # from what experts make to the hidden state
        # The module that takes the hidden state which the router sees.
        self.before = self.router if self.sandwiched else named(layer, "post_attention_layernorm", "norm")
        self.matrix = named(self.router, "proj") or self.router  # whose weight has a row for each expert
        corrections = (of for name, of in fed.named_buffers() if name.endswith("e_score_correction_bias"))
        self.correction = next(corrections, None)  # of the scores, in the choice alone

    def turns(self):
        """Experts of a token."""
        return getattr(self.router, "top_k", None) or self.router.config.top_k_experts

    def router_logits(self, hidden):
        """The router's logits of hidden states, but for a bias."""
        normed = self.layer.router.norm(hidden) * self.router.scale * self.router.scalar_root_size \
            if self.sandwiched else self.before(hidden)
        return torch.nn.functional.linear(normed, self.matrix.weight)

    def ranked(self, logits):
        """Numbers that the router's choice compares, none of which moves by more than its logit does."""
        return logits if self.correction is None else 4 * (logits.sigmoid() + self.correction)

    def weigh(self, logits, chosen):
        """Weights of the chosen experts."""
        scores = (logits.softmax(-1) if self.correction is None else logits.sigmoid()).gather(-1, chosen)
        weights = scores / scores.sum(-1, keepdim=True) * getattr(self.router, "routed_scaling_factor", 1.0)
        return weights * self.router.per_expert_scale[chosen] if hasattr(self.router, "per_expert_scale") else weights


def restart_rotary(model):
    """Makes the angles of positions anew, in float32."""
    decoder = model.get_decoder()
    if hasattr(decoder, "rotary_emb"):
        decoder.rotary_emb = type(decoder.rotary_emb)(decoder.config).to(model.lm_head.weight.device)


def hidden_states(model, tokens):
    """Hidden states after the last norm, [positions, hidden]."""
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


def blocks(model):
    return [Block(layer) for layer in model.get_decoder().layers]


class Routers:
    """Logits of the routers, and experts that they are made to choose: their weights for them stay their own."""

    def __init__(self, model):
        self.last = {}  # [positions, experts] of each router, of the last run
        self.chosen = None  # [layers, positions, experts a token]; none: routers choose for themselves
        self.blocks = [block for block in blocks(model) if block.router is not None]
        self.layers = len(self.blocks)  # none has a router in a model without experts
        if self.blocks:
            self.experts, self.turns = len(self.blocks[0].matrix.weight), self.blocks[0].turns()
            self.gates = int(self.blocks[0].shared_gate is not None)  # logits of shared gates, after the experts'
        for place, block in enumerate(self.blocks):
            if block.matrix is not block.router:
                block.matrix.register_forward_hook(self.keep(place, lambda output: output))
            else:
                block.router.register_forward_hook(self.keep(place, lambda output: output[0]))
            block.router.register_forward_hook(self.choose(place))

    def keep(self, place, of):
        def hook(module, inputs, output):
            self.last[place] = of(output).float()

        return hook

    def choose(self, place):
        def hook(module, inputs, output):
            if self.chosen is None:
                return output
            weights = self.blocks[place].weigh(self.last[place], self.chosen[place])
            return output[0], weights.to(output[1].dtype), self.chosen[place]

        return hook

    def logits(self):
        """Logits of the last run, [layers, positions, experts]; none without routers."""
        return torch.stack([self.last[layer] for layer in range(self.layers)]) if self.layers else None

    def ranked(self, logits):
        """Numbers that choices compare, of the logits of all routers."""
        return torch.stack([block.ranked(own) for block, own in zip(self.blocks, logits)])

    def choice(self, logits):
        """The experts that the routers choose, the lower index on a tie, and their weights."""
        chosen = self.ranked(logits).sort(dim=-1, descending=True, stable=True).indices[..., :self.turns]
        weights = [block.weigh(own, taken) for block, own, taken in zip(self.blocks, logits, chosen)]
        return chosen, torch.stack(weights)
