"""Replies of `tiny` in PyTorch, many prompts at a time, with the hidden states of all their tokens.

Prompts are written so that all of them end at the same column; from there on each step adds a
column. On a CUDA device a step is a captured graph. Weights are taken as they are: quantised ones
must have been dequantised before.
"""

import torch

import tiny_model as m

SLICE = 2**18  # tokens of prompts that are computed together
LOOK = 16  # steps between two looks at whether all replies have ended


class Writer:
    """Room for `rows` prompts of more than three tokens and their replies, `room` tokens together.

    Behind `write`, row r holds tokens in the columns `first[r]` to `ends()[r]`, of which the
    reply's begin at `prompt`: their ids in `ids`, and the trunk's normed hidden states of all but
    the last in `hidden`.
    """

    def __init__(self, model, rows, room, stop):
        self.model, self.stop = model, stop
        weight = model.lm_head.weight
        device = weight.device
        kind = torch.bfloat16 if weight.is_cuda else torch.float32
        self.ids = torch.zeros(rows, room, dtype=torch.long, device=device)
        self.hidden = torch.zeros(rows, room, m.HIDDEN, dtype=kind, device=device)
        self.first = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.heat = torch.zeros(rows, 1, device=device)
        self.at = torch.zeros(1, dtype=torch.long, device=device)
        self.memory = [
            layer.memory(rows, room, self.hidden) for layer in model.model.language_model.layers
        ]
        self.prompt = 0
        self.graph = None

    def choose(self, hidden):
        """The likeliest tokens [B,1], or at a temperature those of a draw."""
        logits = self.model.lm_head(hidden).float()
        noise = -torch.empty_like(logits).exponential_().clamp_min(1e-20).log()
        return (logits + noise * self.heat).argmax(-1, keepdim=True)

    def read(self, prompts):
        """Computes the prompts, at most as many as there are rows, and chooses the first tokens."""
        self.prompt = length = -(-max(map(len, prompts)) // m.CHUNK) * m.CHUNK
        prompts = prompts + prompts[-1:] * (len(self.ids) - len(prompts))
        self.ids[:, :length] = torch.tensor([[0] * (length - len(p)) + p for p in prompts])
        self.first[:, 0] = length - torch.tensor([len(p) for p in prompts])
        starts = torch.arange(length, device=self.first.device) == self.first
        size = max(1, SLICE // length)
        for begin in range(0, len(prompts), size):
            part = slice(begin, begin + size)
            memory = [{name: t[part] for name, t in kept.items()} for kept in self.memory]
            hidden = self.model.hidden(self.ids[part, :length], starts[part].long(), None, memory)
            self.hidden[part, :length] = hidden[0]
        self.ids[:, length : length + 1] = self.choose(self.hidden[:, length - 1])
        self.at.fill_(length)

    def advance(self):
        """One more token of every reply."""
        token = self.ids.index_select(1, self.at)
        hidden = self.model.hidden_step(token, self.at, self.first, self.memory)
        self.hidden.index_copy_(1, self.at, hidden.to(self.hidden.dtype))
        self.at += 1
        self.ids.index_copy_(1, self.at, self.choose(hidden[:, 0]))

    def step(self):
        if not self.ids.is_cuda:
            return self.advance()
        if self.graph is None:
            self.capture()
        self.graph.replay()

    def capture(self):
        """Records a step; what the steps before it leave in the memory is put back."""
        kept = [t.clone() for t in self.state()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.advance()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.advance()
        for held, value in zip(self.state(), kept):
            held.copy_(value)

    def state(self):
        """Tensors that a step changes other than in the column that it writes."""
        recurrent = [
            kept[name] for kept in self.memory for name in ("state", "taps") if name in kept
        ]
        return [self.at, *recurrent]

    @torch.no_grad()
    def write(self, prompts, new_tokens, heat=0.0, share=1.0):
        """Replies of up to `new_tokens` tokens, until `share` of them have ended. `heat` is the
        temperature, or a list of one per prompt; 0 is greedy.
        """
        heats = heat if isinstance(heat, list) else [heat] * len(prompts)
        self.heat.zero_()
        self.heat[: len(prompts), 0] = torch.tensor(heats)
        with torch.autocast(
            self.ids.device.type, torch.bfloat16, self.ids.is_cuda, cache_enabled=False
        ):
            self.read(prompts)
            most = min(new_tokens, self.ids.shape[1] - self.prompt) - 1
            for count in range(1, most + 1):
                self.step()
                if count % LOOK == 0 and self.ended().float().mean() >= share:
                    break

    def reply(self):
        """Ids [rows, steps] of the replies and what follows them."""
        return self.ids[:, self.prompt : int(self.at) + 1]

    def ended(self):
        return (self.reply() == self.stop).any(1)

    def ends(self):
        """The column after the token that ends each reply, or after its last token so far."""
        ends = self.reply() == self.stop
        length = torch.where(ends.any(1), ends.int().argmax(1) + 1, ends.shape[1])
        return self.prompt + length
