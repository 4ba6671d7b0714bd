"""How much of each part of the model a binary adds to the hidden state, by least squares.

A part is a layer's mixer, its shared expert if it has one, or one of its experts. A part that is wrong by a factor
moves what the next router sees along what the part adds, in every position that visits it; rounding moves it anywhere,
along the part by chance. So the move of the router's logits, projected on what the part makes of them, tells the factor
with far less noise than the distance of the logits, to which one expert of many hardly contributes. Behind the last
layer some tokens' logits take the place of a router's. A mixer between a part and its router adds to the projection by
what it makes of the part, which is left out: factors are those of what goes straight through.

Experts are weighed by the binary's own logits of their router: rounding moves the few visits of a rare expert further
than a fault that is looked for. A row of a router is a part, too; what it makes is its logits.
"""

import torch

from reference import router_of

TOKENS = 256  # whose logits stand for a router behind the last layer
VISITS = 16  # positions that a part needs to be judged
ERRORS = 6  # standard errors that chance does not reach: some thousand parts are tried


class Gains:
    """Takes from a run of the reference what each part adds and where it is seen. A model without experts has no router
    that sees it: what layers add is all that is known of it."""

    def __init__(self, model, tokens_seen=TOKENS):
        self.model, self.layers, self.norm = model, list(model.get_decoder().layers), model.get_decoder().norm
        self.eps = model.get_decoder().config.rms_norm_eps
        self.seen = torch.linspace(0, model.lm_head.out_features - 1, tokens_seen).long()
        self.mixed, self.moe, self.residual, self.hooks = {}, {}, {}, []

    def __enter__(self):
        for layer, block in enumerate(self.layers):
            mixer = block.linear_attn if hasattr(block, "linear_attn") else block.self_attn
            self.keep(mixer, self.mixed, layer, lambda inputs, output: first(output))
            if hasattr(block.mlp, "experts"):
                self.keep(block.mlp.experts, self.moe, layer, lambda inputs, output: inputs)
            self.keep(block.post_attention_layernorm, self.residual, layer, lambda inputs, output: inputs[0])
        self.keep(self.norm, self.residual, len(self.layers), lambda inputs, output: inputs[0])
        return self

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()

    def keep(self, module, to, layer, take):
        def hook(_, inputs, output):
            to[layer] = take(inputs, output)

        self.hooks.append(module.register_forward_hook(hook))

    def added(self):
        """Mean squares that each layer's mixer and its experts or MLP add to the hidden state."""
        for layer in range(len(self.layers)):
            after = self.residual[layer + 1] - self.mixed.get(layer + 1, 0)
            fed = after - self.residual[layer]
            yield float(self.mixed[layer].pow(2).mean()), float(fed.pow(2).mean())

    def seen_as(self, added, place, rows):
        """What `added [n, hidden]` makes of the logits at router `place`, in positions `rows`."""
        last = place == len(self.layers)
        norm = self.norm if last else self.layers[place].post_attention_layernorm
        weight = self.model.lm_head.weight[self.seen] if last else router_of(self.layers[place].mlp).weight
        residual = self.residual[place].flatten(0, -2)[rows]
        size = residual.pow(2).mean(-1, keepdim=True).add(self.eps).rsqrt()
        along = (residual * added).mean(-1, keepdim=True) * size * size
        return (added - residual * along) * size * self.factors(norm) @ weight.T

    def factors(self, norm):
        """Factors of a norm's channels: its weights or, where those lie around zero, one more."""
        return norm(torch.ones_like(norm.weight)) * (1 + self.eps) ** 0.5

    def parts(self, told, own):
        """Name, place of the router that sees it, positions, what it makes of that router's logits, and how much more
        of it, as a part of one, the logits `told` by the binary's routers ask for than `own`."""
        for layer, block in enumerate(self.layers):
            mixed = self.mixed[layer].flatten(0, -2)
            every = torch.arange(len(mixed), device=mixed.device)
            yield f"layer {layer} mixer", layer, every, self.seen_as(mixed, layer, every), 0.0
            x, chosen, weights = self.moe[layer]
            if hasattr(block.mlp, "shared_expert"):
                shared = block.mlp.shared_expert_gate(x).sigmoid() * block.mlp.shared_expert(x)
                yield f"layer {layer} shared expert", layer + 1, every, self.seen_as(shared, layer + 1, every), 0.0
            asked = [logits[layer].gather(-1, chosen).softmax(-1).to(weights) for logits in (told, own)]
            asked = (asked[0] - asked[1]) / weights
            for expert in range(block.mlp.experts.num_experts):
                rows, turn = (chosen == expert).nonzero(as_tuple=True)
                if len(rows) >= VISITS:
                    added = expert_of(block.mlp.experts, expert, x[rows]) * weights[rows, turn, None]
                    seen = self.seen_as(added, layer + 1, rows)
                    yield f"layer {layer} expert {expert}", layer + 1, rows, seen, asked[rows, turn, None]

    def of(self, told, own, moved):
        """Name, factor less 1 and its standard error of each part. `told` are the logits of the binary's routers, `own`
        those of the reference that it is compared with, which may round, both [layers, positions, experts]; `moved` is
        what the tokens' logits differ by."""
        moves = [*(told - own), moved]
        for layer, logits in enumerate(own):
            for expert, row in enumerate(logits.T):
                yield f"layer {layer} router row {expert}", *fitted(moves[layer][:, expert, None], row[:, None])
        for name, place, rows, direction, asked in self.parts(told, own):
            yield name, *fitted(moves[place][rows].to(direction) - asked * direction, direction)


def fitted(move, direction):
    """The factor of `direction` in `move`, both [positions, ...], and its standard error: what logits that move each for
    itself make of it or, if it is more, how the factor changes when positions are left out, one at a time. Some weigh
    more than all others together, and what is rounded to a few bits moves along the part as well."""
    along, power = (product.flatten(1).sum(-1) for product in (move * direction, direction * direction))
    factor = along.sum() / power.sum()
    each = move.pow(2).mean().sqrt() / power.sum().sqrt()
    without = (along.sum() - along) / (power.sum() - power)
    return float(factor), float(torch.maximum(each, (without - factor).pow(2).sum().sqrt()))


def first(output):
    return output[0] if isinstance(output, tuple) else output


def expert_of(experts, expert, x):
    if hasattr(experts, "down_proj_bias"):
        inner = experts._apply_gate(x @ experts.gate_up_proj[expert] + experts.gate_up_proj_bias[expert])
        return inner @ experts.down_proj[expert] + experts.down_proj_bias[expert]
    gate, up = torch.nn.functional.linear(x, experts.gate_up_proj[expert]).chunk(2, -1)
    return torch.nn.functional.linear(experts.act_fn(gate) * up, experts.down_proj[expert])


def outlying(found, allowed):
    """Of `Gains.of`, what is off by more than `allowed` and more than chance."""
    return [part for part in found if abs(part[1]) > max(allowed, ERRORS * part[2])]
