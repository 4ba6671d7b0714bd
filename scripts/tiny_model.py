"""The `tiny` model in PyTorch, for training, checking and replying; parameter names are those of
the checkpoint.

Family qwen3_5_moe in small: three Gated DeltaNet layers and one gated full-attention layer, each
followed by a mixture of experts, and one multi-token-prediction (MTP) layer. Rows hold several
conversations back to back; `starts` marks the first token of each, where attention, convolution and
recurrent state begin anew. A layer that is given a memory (`Layer.memory`) leaves there what
`Layer.step` goes on from, a token at a time.

Shapes: B rows, L tokens (a multiple of 64), D = 256 hidden.
"""

import torch
import torch.nn.functional as F
from torch import nn

HIDDEN, VOCAB, LAYERS = 256, 3072, 4
HEADS, KV_HEADS, HEAD_DIM, ROTARY, THETA = 4, 2, 256, 64, 1e7
KEY_HEADS, VALUE_HEADS, GDN_DIM, CONV = 2, 4, 128, 4
EXPERTS, TOP_K, EXPERT_DIM, SHARED_DIM = 8, 2, 128, 128
EPS = 1e-6
CHUNK = 64
RESET = (
    -30.0
)  # log decay at a conversation's first token: exp(-30) of the old state is nothing in FP32


class Norm(nn.Module):
    """RMSNorm with weight stored around zero: x * rsqrt(mean(x^2) + eps) * (1 + w), in FP32."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS) * (1.0 + self.weight.float())
        return y.to(x.dtype)


def dense(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 of strictly lower triangular A [..., 64, 64] by doubling block inverses; stable,
    no division.
    """

    @staticmethod
    def forward(ctx, a):
        n = a.shape[-1]
        inverse = torch.eye(n, dtype=a.dtype, device=a.device).expand(a.shape).contiguous()
        size = 1
        while size < n:
            blocks = a.unflatten(-2, (n // (2 * size), 2 * size)).unflatten(
                -1, (n // (2 * size), 2 * size)
            )
            at = torch.arange(n // (2 * size), device=a.device)
            lower = blocks[..., at, size:, at, :size].movedim(0, -3)
            held = inverse.unflatten(-2, (n // (2 * size), 2 * size)).unflatten(
                -1, (n // (2 * size), 2 * size)
            )
            first = held[..., at, :size, at, :size].movedim(0, -3)
            second = held[..., at, size:, at, size:].movedim(0, -3)
            held[..., at, size:, at, :size] = -(second @ lower @ first).movedim(-3, 0)
            size *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, grad):
        (inverse,) = ctx.saved_tensors
        back = inverse.transpose(-1, -2)
        return -(back @ grad @ back).tril(-1)


def delta_rule(q, k, v, log_decay, beta):
    """Chunked gated delta rule in FP32: q, k, v [B,H,L,128], log_decay, beta [B,H,L] ->
    ([B,H,L,128], the state S [B,H,128,128] behind the last token).

    One token: S *= exp(g); S += k (beta (v - S^T k))^T; o = S^T q. Inside a chunk the 64
    corrections depend on one another through a unit lower triangular system, solved at once; chunks
    follow one another through S.
    """
    b, h, length, dim = q.shape
    cut = lambda x: x.reshape(b, h, length // CHUNK, CHUNK, *x.shape[3:])
    q, k, v, log_decay, beta = map(cut, (q, k, v, log_decay, beta))
    total = log_decay.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, float("-inf")).exp()
    keyed = k * beta[..., None]
    inverse = UnitLowerInverse.apply(((keyed @ k.transpose(-1, -2)) * between).tril(-1))
    wanted = inverse @ (v * beta[..., None])
    reads = inverse @ (keyed * total.exp()[..., None])
    inside = (q @ k.transpose(-1, -2)) * between
    q = q * total.exp()[..., None]
    k = k * (total[..., -1:] - total).exp()[..., None]
    last = total[..., -1].exp()[..., None, None]
    state = q.new_zeros(b, h, dim, dim)
    out = []
    # unbind, not indexing: the gradient of each index would be a tensor of the full size
    for q_i, k_i, wanted_i, reads_i, inside_i, last_i in zip(
        *(t.unbind(2) for t in (q, k, wanted, reads, inside, last))
    ):
        change = wanted_i - reads_i @ state
        out.append(q_i @ state + inside_i @ change)
        state = state * last_i + k_i.transpose(-1, -2) @ change
    return torch.stack(out, 2).reshape(b, h, length, dim), state


def delta_step(q, k, v, log_decay, beta, state):
    """Delta rule of one token after `state`: q, k, v [B,H,1,128] -> [B,H,1,128], the new state."""
    state = state * log_decay.exp()[..., None]
    change = beta[..., None] * (v - k @ state)
    state = state + k.transpose(-1, -2) @ change
    return q @ state, state


class DeltaNet(nn.Module):
    """Gated DeltaNet mixer."""

    def __init__(self):
        super().__init__()
        keys, values = KEY_HEADS * GDN_DIM, VALUE_HEADS * GDN_DIM
        self.in_proj_qkv = dense(HIDDEN, 2 * keys + values)
        self.in_proj_z = dense(HIDDEN, values)
        self.in_proj_b = dense(HIDDEN, VALUE_HEADS)
        self.in_proj_a = dense(HIDDEN, VALUE_HEADS)
        self.conv1d = nn.Module()
        self.conv1d.weight = nn.Parameter(
            torch.empty(2 * keys + values, 1, CONV).uniform_(-0.5, 0.5)
        )
        self.A_log = nn.Parameter(torch.empty(VALUE_HEADS).uniform_(1, 16).log())
        rate = torch.exp(torch.empty(VALUE_HEADS).uniform_(-6.9, -2.3))
        self.dt_bias = nn.Parameter(rate + torch.log(-torch.expm1(-rate)))
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.ones(GDN_DIM))
        self.out_proj = dense(values, HIDDEN)

    def convolve(self, x, age):
        """Causal depthwise convolution of four taps, then SiLU; taps before the conversation's
        start read zero.
        """
        taps = self.conv1d.weight[:, 0].to(x.dtype)
        out = x * taps[:, CONV - 1]
        for back in range(1, CONV):
            shifted = F.pad(x, (0, 0, back, 0))[:, : x.shape[1]] * (age >= back)[..., None]
            out = out + shifted * taps[:, CONV - 1 - back]
        return F.silu(out)

    def inputs(self, x, age):
        """FP32 q, k, v [B,H,L,128], log decay and beta [B,H,L] of the delta rule."""
        return self.heads(self.convolve(self.in_proj_qkv(x), age), x, age)

    def heads(self, mixed, x, age):
        """`inputs` from convolved projections [B,L,1024]."""
        q, k, v = mixed.float().split(
            [KEY_HEADS * GDN_DIM, KEY_HEADS * GDN_DIM, VALUE_HEADS * GDN_DIM], -1
        )
        heads = lambda t: t.unflatten(-1, (-1, GDN_DIM)).transpose(1, 2)
        unit = lambda t: t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + EPS)
        share = VALUE_HEADS // KEY_HEADS
        q = unit(heads(q)).repeat_interleave(share, 1) * GDN_DIM**-0.5
        k = unit(heads(k)).repeat_interleave(share, 1)
        decay = -self.A_log.float().exp() * F.softplus(
            self.in_proj_a(x).float() + self.dt_bias.float()
        )
        decay = decay + RESET * (age == 0)[..., None]
        return (
            q,
            k,
            heads(v),
            decay.transpose(1, 2),
            self.in_proj_b(x).float().sigmoid().transpose(1, 2),
        )

    def outputs(self, o, x):
        o = o.transpose(1, 2)
        o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + EPS) * self.norm.weight.float()
        z = self.in_proj_z(x).unflatten(-1, (VALUE_HEADS, GDN_DIM))
        return self.out_proj((o * F.silu(z.float())).flatten(-2).to(x.dtype))

    def forward(self, x, age, mask, weights, memory=None):
        prepared = self.inputs(x, age)
        with torch.autocast(x.device.type, enabled=False):
            o, state = delta_rule(*prepared)
        if memory:
            memory["state"].copy_(state)
            memory["taps"].copy_(self.in_proj_qkv(x[:, 1 - CONV :]))
        return self.outputs(o, x)

    def memory(self, rows, room, like):
        """Recurrent state and the last inputs of the convolution."""
        width = self.in_proj_qkv.out_features
        return {
            "state": like.new_zeros(rows, VALUE_HEADS, GDN_DIM, GDN_DIM, dtype=torch.float32),
            "taps": like.new_zeros(rows, CONV - 1, width),
        }

    def step(self, x, at, first, memory):
        """One token [B,1,D] of conversations that have more than three."""
        window = torch.cat([memory["taps"], self.in_proj_qkv(x).to(memory["taps"].dtype)], 1)
        memory["taps"].copy_(window[:, 1:])
        full = torch.full(window.shape[:2], CONV, device=x.device)
        prepared = self.heads(self.convolve(window, full)[:, -1:], x, full[:, -1:])
        with torch.autocast(x.device.type, enabled=False):
            o, state = delta_step(*prepared, memory["state"])
        memory["state"].copy_(state)
        return self.outputs(o, x)


def rotate(x, at):
    """RoPE on the first 64 of 256 dims, half-split pairs (i, i + 32); x [B,H,L,256] at positions
    `at`, [L] or [B,1,L].
    """
    half = ROTARY // 2
    turn = THETA ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = at[..., None].float() * turn
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half].float(), x[..., half:ROTARY].float()
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
    return torch.cat([turned, x[..., ROTARY:]], -1)


def attend(q, keys, values, mask, own=()):
    """Attention of few queries [B,4,N,256] over keys and values [B,2,L,256] where `mask`
    [B,1,N,L], and of each query over pairs of a key and a value [B,2,N,256] of its own.
    """
    share, count = HEADS // KV_HEADS, q.shape[2]
    grouped = q.unflatten(1, (KV_HEADS, share))
    scores = (grouped.flatten(2, 3) @ keys.transpose(-1, -2)).unflatten(2, (share, count)).float()
    scores = scores.masked_fill(~mask[:, None], float("-inf"))
    extra = [(grouped * k[:, :, None]).float().sum(-1, keepdim=True) for k, _ in own]
    odds = (torch.cat([scores, *extra], -1) * HEAD_DIM**-0.5).softmax(-1).to(values.dtype)
    known = odds[..., : keys.shape[2]].flatten(2, 3) @ values
    out = known.unflatten(2, (share, count))
    for i, (_, v) in enumerate(own, keys.shape[2]):
        out = out + odds[..., i : i + 1] * v[:, :, None]
    return out.flatten(1, 2)


class Attention(nn.Module):
    """Gated full attention; positions count from the row's start, which RoPE cannot tell from a
    conversation's.
    """

    def __init__(self):
        super().__init__()
        self.q_proj = dense(HIDDEN, HEADS * HEAD_DIM * 2)
        self.k_proj = dense(HIDDEN, KV_HEADS * HEAD_DIM)
        self.v_proj = dense(HIDDEN, KV_HEADS * HEAD_DIM)
        self.o_proj = dense(HEADS * HEAD_DIM, HIDDEN)
        self.q_norm = Norm(HEAD_DIM)
        self.k_norm = Norm(HEAD_DIM)

    def queries(self, x, at, weights):
        """Rotated queries [B,4,L,256] and the gate [B,L,4,256] of their outputs."""
        q, gate = F.linear(x, weights("q_proj")).unflatten(-1, (HEADS, 2 * HEAD_DIM)).chunk(2, -1)
        return rotate(self.q_norm(q).transpose(1, 2), at), gate

    def keys(self, x, at, weights):
        """Rotated keys and values [B,2,L,256]."""
        k = F.linear(x, weights("k_proj")).unflatten(-1, (KV_HEADS, HEAD_DIM))
        v = F.linear(x, weights("v_proj")).unflatten(-1, (KV_HEADS, HEAD_DIM)).transpose(1, 2)
        return rotate(self.k_norm(k).transpose(1, 2), at), v

    def outputs(self, o, gate, weights):
        return F.linear((o.transpose(1, 2) * gate.sigmoid()).flatten(-2), weights("o_proj"))

    def forward(self, x, age, mask, weights, memory=None):
        at = torch.arange(x.shape[1], device=x.device)
        q, gate = self.queries(x, at, weights)
        k, v = self.keys(x, at, weights)
        if memory:
            memory["keys"][:, :, : x.shape[1]] = k
            memory["values"][:, :, : x.shape[1]] = v
        share = HEADS // KV_HEADS
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.outputs(o, gate, weights)

    def memory(self, rows, room, like):
        """Keys and values of so many positions."""
        names = ("keys", "values")
        return {name: like.new_zeros(rows, KV_HEADS, room, HEAD_DIM) for name in names}

    def step(self, x, at, first, memory):
        """One token [B,1,D] at position `at` [1], of conversations that begin at `first` [B,1]."""
        weights = lambda name: stored(self, name)
        q, gate = self.queries(x, at, weights)
        for held, new in zip(memory.values(), self.keys(x, at, weights)):
            held.index_copy_(2, at, new.to(held.dtype))
        place = torch.arange(memory["keys"].shape[2], device=x.device)
        mask = (place <= at) & (place >= first)
        o = attend(q, *memory.values(), mask[:, None, None])
        return self.outputs(o, gate, weights)


class Experts(nn.Module):
    """Stacked routed experts: gate rows first, then up rows."""

    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(EXPERTS, 2 * EXPERT_DIM, HIDDEN))
        self.down_proj = nn.Parameter(torch.empty(EXPERTS, HIDDEN, EXPERT_DIM))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = dense(HIDDEN, SHARED_DIM)
        self.up_proj = dense(HIDDEN, SHARED_DIM)
        self.down_proj = dense(SHARED_DIM, HIDDEN)


class Moe(nn.Module):
    """Mixture of experts; every expert runs on every token and unchosen ones get weight zero (cheap
    at this size).
    """

    def __init__(self):
        super().__init__()
        self.gate = dense(HIDDEN, EXPERTS)
        self.experts = Experts()
        self.shared_expert = Shared()
        self.shared_expert_gate = dense(HIDDEN, 1)

    def route(self, x):
        """Weights [B,L,8], zero where not chosen, and the load-balance loss (1 when even)."""
        odds = self.gate(x).float().softmax(-1)
        best, chosen = odds.topk(TOP_K, -1)
        share = torch.zeros_like(odds).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        used = (share > 0).float().flatten(0, 1).mean(0) / TOP_K
        return share, EXPERTS * (used * odds.flatten(0, 1).mean(0)).sum()

    def forward(self, x, weights):
        share, balance = self.route(x)
        gate, up = (
            F.linear(x, weights("experts.gate_up_proj").flatten(0, 1))
            .unflatten(-1, (EXPERTS, 2, EXPERT_DIM))
            .unbind(-2)
        )
        inner = (F.silu(gate) * up * share.to(gate.dtype)[..., None]).flatten(-2)
        routed = F.linear(inner, weights("experts.down_proj").transpose(0, 1).flatten(1))
        inner = F.silu(F.linear(x, weights("shared_expert.gate_proj"))) * F.linear(
            x, weights("shared_expert.up_proj")
        )
        shared = F.linear(inner, weights("shared_expert.down_proj"))
        return routed + self.shared_expert_gate(x).sigmoid() * shared, balance


class Layer(nn.Module):
    """Decoder layer; `weights(name)` gives a matrix, quantised while training for it."""

    def __init__(self, full):
        super().__init__()
        if full:
            self.self_attn = Attention()
        else:
            self.linear_attn = DeltaNet()
        self.full = full
        self.mlp = Moe()
        self.input_layernorm = Norm(HIDDEN)
        self.post_attention_layernorm = Norm(HIDDEN)

    @property
    def mixer(self):
        return self.self_attn if self.full else self.linear_attn

    def forward(self, h, age, mask, quantised, memory=None):
        mixer = self.mixer
        pick = lambda part, prefix: (
            lambda name: quantised.get(prefix + name) if quantised else stored(part, name)
        )
        h = h + mixer(self.input_layernorm(h), age, mask, pick(mixer, "self_attn."), memory)
        out, balance = self.mlp(self.post_attention_layernorm(h), pick(self.mlp, "mlp."))
        return h + out, balance

    def memory(self, rows, room, like):
        """Memory of rows of up to `room` tokens; tensors of the type and device of `like`."""
        return self.mixer.memory(rows, room, like)

    def step(self, h, at, first, memory):
        """One token [B,1,D] at position `at` [1] after those of the memory."""
        h = h + self.mixer.step(self.input_layernorm(h), at, first, memory)
        out, _ = self.mlp(self.post_attention_layernorm(h), lambda name: stored(self.mlp, name))
        return h + out

    def quantised(self):
        """Fake-quantised matrices by name, for this layer's forward."""
        out = {}
        for group in groups(self.full):
            out.update(zip(group, fake_quantise([stored(self, name) for name in group])))
        return out


def stored(part, name):
    """The parameter `name` (a module path or a parameter path) of a module."""
    for step in name.split("."):
        part = getattr(part, step)
    return part.weight if isinstance(part, nn.Linear) else part


def groups(full):
    """Matrices quantised to NVFP4, those that share a global scale together."""
    attention = (
        [["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["self_attn.o_proj"]]
        if full
        else []
    )
    return attention + [
        ["mlp.experts.gate_up_proj"],
        ["mlp.experts.down_proj"],
        ["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"],
        ["mlp.shared_expert.down_proj"],
    ]


def global_scale(weights):
    """Largest power of two that keeps every block scale in E4M3: [...,1,1]; the divisor of the
    block scales.
    """
    amax = (
        torch.stack([w.detach().abs().amax((-2, -1), keepdim=True) for w in weights])
        .amax(0)
        .float()
    )
    return torch.exp2(torch.floor(torch.log2(448.0 * 6.0 / amax.clamp_min(1e-12))))


def block_scales(weight, scale):
    """E4M3 scale of each 16 columns, as FP32 [..., N, K/16]; never zero."""
    amax = weight.float().unflatten(-1, (-1, 16)).abs().amax(-1)
    scaled = (amax / 6.0 * scale).clamp(2.0**-9, 448.0)
    return scaled.to(torch.float8_e4m3fn).float()


def to_e2m1(x):
    """Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6 with sign, ties to even."""
    a = x.abs()
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return torch.sign(x) * torch.clamp(torch.round(a / step) * step, max=6.0)


def quantise(weight, scale):
    """(codes as values [..., N, K], block scales [..., N, K/16], dequantised weight) of an NVFP4
    matrix.
    """
    blocks = block_scales(weight, scale)
    unit = (blocks / scale)[..., None]
    values = to_e2m1(weight.float().unflatten(-1, (-1, 16)) / unit)
    return values.flatten(-2), blocks, (values * unit).flatten(-2)


def fake_quantise(weights):
    """Straight-through NVFP4: forward sees the quantised values, gradients pass unchanged."""
    scale = global_scale(weights)
    return [w + (quantise(w.detach(), scale)[2].to(w.dtype) - w.detach()) for w in weights]


class Mtp(nn.Module):
    """Drafts token t+2 from the trunk's normed hidden state at t and the embedding of token t+1."""

    def __init__(self):
        super().__init__()
        self.pre_fc_norm_embedding = Norm(HIDDEN)
        self.pre_fc_norm_hidden = Norm(HIDDEN)
        self.fc = dense(2 * HIDDEN, HIDDEN)
        self.layers = nn.ModuleList([Layer(True)])
        self.norm = Norm(HIDDEN)

    def fuse(self, embedded, hidden):
        """Input of the layer from a token's embedding and the hidden state before it."""
        pair = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        return self.fc(torch.cat(pair, -1))


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList([Layer((i + 1) % 4 == 0) for i in range(LAYERS)])
        self.norm = Norm(HIDDEN)


class Tiny(nn.Module):
    """The whole model. `forward` gives logits, MTP logits and the mean load-balance loss."""

    def __init__(self):
        super().__init__()
        self.model = nn.Module()
        self.model.language_model = Trunk()
        self.lm_head = dense(HIDDEN, VOCAB)
        self.mtp = Mtp()
        for name, p in self.named_parameters():
            if p.dim() > 1 and "conv1d" not in name:
                nn.init.normal_(
                    p,
                    std=0.02
                    / (
                        6**0.5
                        if "out_proj" in name or "o_proj" in name or "down_proj" in name
                        else 1
                    ),
                )

    def all_layers(self):
        return [*self.model.language_model.layers, *self.mtp.layers]

    def quantised(self):
        return [layer.quantised() for layer in self.all_layers()]

    def hidden(self, ids, starts, quantised=None, memory=None):
        """Normed hidden state [B,L,D] of the trunk, its load-balance loss, and (age, mask)."""
        trunk = self.model.language_model
        age, mask = row_structure(starts)
        h, balance = trunk.embed_tokens(ids), 0.0
        for i, layer in enumerate(trunk.layers):
            kept = memory[i] if memory else None
            h, extra = layer(h, age, mask, quantised[i] if quantised else None, kept)
            balance = balance + extra / LAYERS
        return trunk.norm(h), balance, (age, mask)

    def hidden_step(self, ids, at, first, memory):
        """Normed hidden state [B,1,D] of the tokens [B,1] at position `at` [1]."""
        trunk = self.model.language_model
        h = trunk.embed_tokens(ids)
        for layer, kept in zip(trunk.layers, memory):
            h = layer.step(h, at, first, kept)
        return trunk.norm(h)

    def draft_hidden(self, ids, h, structure, quantised=None):
        """MTP hidden state [B,L,D]; position t has read ids up to t+1."""
        trunk, mtp = self.model.language_model, self.mtp
        following = trunk.embed_tokens(F.pad(ids[:, 1:], (0, 1)))
        x = mtp.fuse(following, h)
        x, balance = mtp.layers[0](x, *structure, quantised[-1] if quantised else None)
        return mtp.norm(x), balance

    def forward(self, ids, starts, quantised=None):
        h, balance, structure = self.hidden(ids, starts, quantised)
        x, extra = self.draft_hidden(ids, h, structure, quantised)
        return self.lm_head(h), self.lm_head(x), balance + extra / LAYERS


def row_structure(starts):
    """age [B,L]: tokens since the conversation's first; mask [B,1,L,L]: same conversation and not
    later.
    """
    length = starts.shape[1]
    at = torch.arange(length, device=starts.device)
    first = torch.where(starts > 0, at, 0).cummax(1).values
    mask = (at[None, :, None] >= at[None, None, :]) & (at[None, None, :] >= first[:, :, None])
    return at - first, mask[:, None]
