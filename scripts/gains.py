"""How much of each part of the model a binary adds to the hidden state, by least squares.

A part is a layer's mixer, its shared expert if it has one, or one of its experts. A part that is wrong by a factor
moves what the next router sees along what the part adds, in every position that visits it; rounding moves it anywhere,
along the part by chance. So the move of the router's logits, projected on what the part makes of them, tells the factor
with far less noise than the distance of the logits, to which one expert of many hardly contributes. After the last
layer some tokens' logits take the place of a router's. A mixer between a part and its router adds to the projection by
what it makes of the part, which is left out: factors are those of what goes straight through.

Experts are weighed by the binary's own logits of their router: rounding moves the few visits of a rare expert further
than a fault that is looked for. A row of a router is a part, too; what it makes is its logits.
"""

import torch

import golden
import reference

TOKENS = 256  # tokens whose logits stand for a router after the last layer
VISITS = 16  # positions that a part needs to be judged
ERRORS = 6  # standard errors that chance does not reach: some thousand parts are tried


class Gains:
    """Takes from a run of the reference what each part adds and where it is seen. A model without experts has no router
    that sees it: what layers add is all that is known of it."""

    def __init__(self, model, tokens_seen=TOKENS):
        self.model, self.decoder, self.blocks = model, model.get_decoder(), reference.blocks(model)
        self.routers = [layer for layer, block in enumerate(self.blocks) if block.router is not None]
        self.seen = torch.linspace(0, model.lm_head.out_features - 1, tokens_seen).long()
        self.norm = getattr(self.decoder, "norm", None) or self.decoder.norm_f
        # Of layers: what the mixer adds, what experts take and make, the shared expert's part and an MLP's beside, and
        # hidden states before and after. Of places: hidden states that the router there sees.
        self.mixed, self.taken, self.made, self.shared, self.beside = {}, {}, {}, {}, {}
        self.before, self.behind, self.residual, self.hooks = {}, {}, {}, []

    def __enter__(self):
        output = lambda inputs, output: first(output)
        taken = lambda inputs, output: inputs[0]
        for layer, block in enumerate(self.blocks):
            self.keep(block.layer, self.before, layer, taken)
            self.keep(block.layer, self.behind, layer, output)
            mixer = block.layer.post_attention_layernorm if block.sandwiched else block.mixer
            self.keep(mixer, self.mixed, layer, output)
            self.keep(block.experts, self.taken, layer, lambda inputs, output: inputs)
            self.keep(block.experts, self.made, layer, output)
            self.keep(block.shared, self.shared, layer, output)
            self.keep(getattr(block.layer, "post_feedforward_layernorm_1", None), self.beside, layer, output)
        for place, layer in enumerate(self.routers):
            self.keep(self.blocks[layer].before, self.residual, place, taken)
        self.keep(self.norm, self.residual, len(self.routers), taken)
        return self

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()

    def keep(self, module, to, at, take):
        def hook(_, inputs, output):
            to[at] = take(inputs, output)

        if module is not None:
            self.hooks.append(module.register_forward_hook(hook))

    def added(self):
        """Mean squares that each layer's mixer and its experts or MLP add to the hidden state."""
        for layer, block in enumerate(self.blocks):
            mixed = self.mixed.get(layer, torch.zeros(()))
            fed = self.behind[layer] / getattr(block.layer, "layer_scalar", 1) - self.before[layer] - mixed
            yield float(mixed.pow(2).mean()), float(fed.pow(2).mean())

    def seen_as(self, added, place, rows):
        """What `added [n, hidden]` makes of the logits at router `place`, in positions `rows`."""
        def logits(hidden):
            if place < len(self.routers):
                return self.blocks[self.routers[place]].router_logits(hidden)
            head = self.model.lm_head.weight[self.seen]
            return golden.capped(self.model, torch.nn.functional.linear(self.norm(hidden), head))

        return derivative(logits, self.residual[place].flatten(0, -2)[rows], added)

    def carried(self, layer, added, rows):
        """What `added` by experts of a layer adds to the hidden state."""
        block = self.blocks[layer]
        if not block.sandwiched:
            return added if block.back is None else block.back(added)
        beside = self.beside[layer].flatten(0, -2)[rows]

        def hidden(made):
            both = beside + block.layer.post_feedforward_layernorm_2(made)
            return block.layer.post_feedforward_layernorm(both) * block.layer.layer_scalar

        return derivative(hidden, self.made[layer][rows], added)

    def parts(self, told, own):
        """Name, place of the router that sees it, positions, what it makes of that router's logits, and how much more
        of it, as a part of one, the logits `told` by the binary's routers ask for than `own`."""
        place = 0
        for layer, block in enumerate(self.blocks):
            every = torch.arange(len(self.before[layer].flatten(0, -2)), device=self.before[layer].device)
            if layer in self.mixed:
                mixed = self.mixed[layer].flatten(0, -2)
                yield f"layer {layer} mixer", place, every, self.seen_as(mixed, place, every), 0.0
            if block.router is None:
                continue
            x, chosen, weights = self.taken[layer]
            place += 1
            if block.shared is not None:
                shared = self.shared[layer].flatten(0, -2)
                shared = shared if block.shared_gate is None else block.shared_gate(x).sigmoid() * shared
                yield f"layer {layer} shared expert", place, every, self.seen_as(shared, place, every), 0.0
            asked = [block.weigh(logits[place - 1], chosen).to(weights) for logits in (told, own)]
            asked = (asked[0] - asked[1]) / weights
            for expert in range(block.experts.num_experts):
                rows, turn = (chosen == expert).nonzero(as_tuple=True)
                if len(rows) >= VISITS:
                    made = expert_of(block.experts, expert, x[rows]) * weights[rows, turn, None]
                    seen = self.seen_as(self.carried(layer, made, rows), place, rows)
                    yield f"layer {layer} expert {expert}", place, rows, seen, asked[rows, turn, None]

    def of(self, told, own, moved):
        """Name, factor less 1 and its standard error of each part. `told` are the logits of the binary's routers, `own`
        those of the reference that it is compared with, which may round, both [layers, positions, experts]; `moved` is
        what the tokens' logits differ by."""
        moves = [*(told - own), moved]
        for place, logits in enumerate(own):
            for expert, row in enumerate(logits.T):
                name = f"layer {self.routers[place]} router row {expert}"
                yield name, *fitted(moves[place][:, expert, None], row[:, None])
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


def derivative(function, point, direction):
    """How a function changes at a point in a direction."""
    return torch.func.jvp(function, (point,), (direction,))[1]


def first(output):
    return output[0] if isinstance(output, tuple) else output


def expert_of(experts, expert, x):
    if hasattr(experts, "down_proj_bias"):
        inner = experts._apply_gate(x @ experts.gate_up_proj[expert] + experts.gate_up_proj_bias[expert])
        return inner @ experts.down_proj[expert] + experts.down_proj_bias[expert]
    linear = torch.nn.functional.linear
    if hasattr(experts, "up_proj"):
        return linear(experts.act_fn(linear(x, experts.up_proj[expert])), experts.down_proj[expert])
    gate, up = linear(x, experts.gate_up_proj[expert]).chunk(2, -1)
    return linear(experts.act_fn(gate) * up, experts.down_proj[expert])


def outlying(found, allowed):
    """Of `Gains.of`, what is off by more than `allowed` and more than chance."""
    return [part for part in found if abs(part[1]) > max(allowed, ERRORS * part[2])]
