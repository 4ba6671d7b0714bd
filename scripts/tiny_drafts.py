"""Trains the MTP layer of the exported `tiny` to draft what the trunk replies, and nothing else.

    python scripts/tiny_drafts.py --seconds 400 --out drafts
    python scripts/tiny_export.py --drafts drafts/drafts.pt

The trunk answers generated training prompts, greedily or at a temperature; from the hidden states
of these replies the layer learns by the clock. A chain of passes begins at each token of a reply,
as in serving: the first pass reads the trunk's hidden state, each further one the state of the pass
before it and the reply's next token. All attend to the keys of first passes up to where the chain
begins, and to those of their own chain. A pass that serving would reach, because all drafts before
it held, counts fully. The target is the trunk's distribution and its likeliest token.

Held-out questions are drafted at the beginning, now and then, and at the end. These figures are of
the layer alone: a server takes what followed the same tokens earlier in the sequence before it, and
counts no draft that ends a reply. Needs torch, safetensors and tokenizers.
"""

import argparse
import itertools
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import tiny_chat
import tiny_data
import tiny_eval
import tiny_export
import tiny_measure
import tiny_model as m
import tiny_train
from tiny_replies import Writer

DEPTH = 5
LENGTH, CHAINS = 1024, 160  # tokens of a row, and chains that begin in it
ROWS = 96  # of a training step
KEPT = 40_000  # rows whose hidden states are held: 0.5 MiB each
WRITERS, ROOM, NEW_TOKENS = 1024, 1152, 160
ROUND = 4  # writings whose prompts are sorted by length together
WRITING = 0.3  # share of the time for new replies
FIRST_REPLIES = 0.12  # share of the time before the first step
HEATED, HEAT = 0.25, 0.7  # share of replies that are drawn, and their temperature
PEAK = 2e-3
UNREACHED = 0.1  # weight of a pass after a rejected draft
EVALUATE_EVERY_S = 60


# ---- replies ---------------------------------------------------------------------------------------------


class Prompts(torch.utils.data.IterableDataset):
    """Token ids of training prompts, `WRITERS` at a time: (all ids, lengths)."""

    def __init__(self, seed):
        self.seed = seed

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        stream = tiny_data.Conversations(f"{self.seed} {worker.id if worker else 0}")
        tokenizer = trained_tokenizer()
        while True:
            texts = [prompt_of(stream.draw(), stream.rng) for _ in range(WRITERS)]
            ids = [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
            ids = [p for p in ids if len(p) <= LENGTH - NEW_TOKENS]
            flat = list(itertools.chain.from_iterable(ids))
            yield torch.tensor(flat, dtype=torch.int16), torch.tensor([len(p) for p in ids])


def trained_tokenizer():
    return Tokenizer.from_file(str(tiny_data.TARGET / "tokenizer.json"))


def prompt_of(conversation, rng):
    """The text up to one of the assistant's turns."""
    messages = conversation["messages"]
    turn = rng.choice([i for i, x in enumerate(messages) if x["role"] == "assistant"])
    return tiny_chat.render(messages[:turn], conversation["tools"], conversation["thinking"])


def rounds(seed, workers):
    """Lists of prompts of similar lengths."""
    options = {"prefetch_factor": 4} if workers else {}
    loader = torch.utils.data.DataLoader(
        Prompts(seed), batch_size=None, num_workers=workers, **options
    )
    source = iter(loader)
    while True:
        prompts = []
        for _ in range(ROUND):
            ids, lengths = next(source)
            prompts += [p.tolist() for p in ids.split(lengths.tolist())]
        prompts.sort(key=len)
        parts = [prompts[i : i + WRITERS] for i in range(0, len(prompts), WRITERS)]
        random.Random(len(prompts)).shuffle(parts)
        yield from parts


class Rows:
    """Replies with their prompts, back to back in rows, and the chains that begin in each.

    Each has `ids` [L], the trunk's normed hidden states `hidden` [L,D], and in `chains` [3,N] for
    each chain the column of its first pass, of its conversation's first token, and behind its last
    one; zeros where there is none.
    """

    def __init__(self, count, hidden):
        self.ids = torch.zeros(count, LENGTH, dtype=torch.long, device=hidden.device)
        self.hidden = hidden.new_zeros(count, LENGTH, m.HIDDEN)
        self.chains = torch.zeros(count, 3, CHAINS, dtype=torch.long, device=hidden.device)
        self.filled = self.next = 0

    def add(self, writer, count):
        """Packs the first `count` replies of a writer over the oldest rows; tells the number of
        tokens replied.
        """
        firsts, ends = writer.first[:count, 0].tolist(), writer.ends()[:count].tolist()
        places, chains = pack(firsts, ends, writer.prompt, writer.ids.shape[1])
        places = torch.tensor(places, device=self.ids.device)
        at = (torch.arange(len(places)) + self.next) % len(self.ids)
        at = at.to(self.ids.device)
        self.ids[at] = writer.ids.flatten()[places]
        self.hidden[at] = writer.hidden.flatten(0, 1)[places]
        self.chains[at] = torch.tensor(chains, device=self.ids.device)
        self.next = (self.next + len(places)) % len(self.ids)
        self.filled = min(len(self.ids), self.filled + len(places))
        return sum(ends) - count * writer.prompt

    def some(self, at):
        return self.ids[at], self.hidden[at], self.chains[at]


def pack(firsts, ends, prompt, width):
    """Rows of places in a writer's flattened columns, and of [starts, firsts, ends] of chains."""
    places, chains = [], []
    used = begun = LENGTH
    for row, (first, end) in enumerate(zip(firsts, ends)):
        length, count = end - first, max(0, end - prompt - 1)
        if length > LENGTH or count > CHAINS:
            continue
        if used + length > LENGTH or begun + count > CHAINS:
            places.append([0] * LENGTH)
            chains.append([[0] * CHAINS for _ in range(3)])
            used = begun = 0
        places[-1][used : used + length] = range(row * width + first, row * width + end)
        start = used + prompt - 1 - first
        own = (range(start, start + count), [used] * count, [used + length] * count)
        for held, values in zip(chains[-1], own):
            held[begun : begun + count] = values
        used, begun = used + length, begun + count
    return places, chains


# ---- chains ----------------------------------------------------------------------------------------------


def passes(model, batch, depth, quantised):
    """(logits [B,N,V], load-balance loss) of each pass of every chain."""
    ids, hidden, chains = batch
    starts, firsts, _ = chains.unbind(1)
    embed, mtp = model.model.language_model.embed_tokens, model.mtp
    layer, attention = mtp.layers[0], mtp.layers[0].self_attn
    weights = lambda name: quantised["self_attn." + name]
    place = torch.arange(ids.shape[1], device=ids.device)
    mask = (place <= starts[..., None]) & (place >= firsts[..., None])
    x = mtp.fuse(embed(F.pad(ids[:, 1:], (0, 1))), hidden)
    known = attention.keys(layer.input_layernorm(x), place, weights)
    x = rows_at(x, starts)
    own = []
    for ahead in range(depth):
        if ahead:
            x = mtp.fuse(embed(tokens_at(ids, starts + ahead + 1)), state)
        normed, at = layer.input_layernorm(x), (starts + ahead)[:, None]
        q, gate = attention.queries(normed, at, weights)
        if ahead:
            own.append(attention.keys(normed, at, weights))
        x = x + attention.outputs(m.attend(q, *known, mask[:, None], own), gate, weights)
        out, balance = layer.mlp(layer.post_attention_layernorm(x), lambda n: quantised["mlp." + n])
        state = mtp.norm(x + out)
        yield model.lm_head(state), balance


def rows_at(x, columns):
    """[B,N,D] of x [B,L,D] in columns [B,N]."""
    return x.gather(1, columns[..., None].expand(-1, -1, x.shape[-1]))


def tokens_at(ids, columns):
    """[B,N]; beyond the row its last token."""
    return ids.gather(1, columns.clamp_max(ids.shape[1] - 1))


def loss_of(model, batch):
    """(training loss, share [DEPTH] of drafts that held among those reached)."""
    ids, hidden, chains = batch
    starts, _, ends = chains.unbind(1)
    quantised = model.mtp.layers[0].quantised()
    reached = torch.ones_like(starts, dtype=torch.bool)
    total, held = 0.0, []
    for ahead, (logits, balance) in enumerate(passes(model, batch, DEPTH, quantised), 1):
        there = starts + ahead + 1 < ends
        with torch.no_grad():
            known = rows_at(hidden, (starts + ahead).clamp_max(LENGTH - 1))
            wanted = model.lm_head(known).float()
        odds = logits.float().log_softmax(-1)
        soft = -(wanted.softmax(-1) * odds).sum(-1)
        hard = -odds.gather(-1, wanted.argmax(-1, keepdim=True))[..., 0]
        weight = torch.where(reached, 1.0, UNREACHED) * there
        share = ((soft + hard) * weight).sum() / weight.sum().clamp_min(1.0)
        total = total + share + tiny_train.BALANCE_WEIGHT * balance
        right = logits.argmax(-1) == tokens_at(ids, starts + ahead + 1)
        counted = reached & there
        reached = counted & right
        held.append(reached.sum() / counted.sum().clamp_min(1))
    return total / DEPTH, torch.stack(held)


class Stepper:
    """One training step, captured on a CUDA device."""

    def __init__(self, model, optimiser, rows):
        self.model, self.optimiser, self.graph = model, optimiser, None
        self.inputs = [t.clone() for t in rows.some(torch.zeros(ROWS, dtype=torch.long))]

    def eager(self):
        self.optimiser.zero_grad(set_to_none=True)
        device = self.inputs[0].device.type
        with torch.autocast(device, torch.bfloat16, device == "cuda", cache_enabled=False):
            loss, held = loss_of(self.model, self.inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.mtp.parameters(), 1.0, foreach=True)
        self.optimiser.step()
        return torch.cat([loss.detach()[None], held])

    def step(self, batch):
        """Its loss and shares, which the next step overwrites."""
        for kept, value in zip(self.inputs, batch):
            kept.copy_(value)
        if not self.inputs[0].is_cuda:
            return self.eager()
        if self.graph is None:
            self.graph, self.out = tiny_train.captured(self.eager, self.optimiser)
        self.graph.replay()
        return self.out


# ---- held-out questions ----------------------------------------------------------------------------------


def heldout(model, short):
    """The trunk's replies to the held-out questions, as rows."""
    tokenizer = trained_tokenizer()
    asked = tiny_measure.requests(tiny_eval.load(short))
    prompts = tiny_measure.prompts_of(tokenizer, asked)
    prompts.sort(key=len)
    rows = None
    for at in range(0, len(prompts), WRITERS):
        part = prompts[at : at + WRITERS]
        writer = Writer(model, len(part), ROOM, stop_of(tokenizer))
        writer.write(part, NEW_TOKENS)
        rows = rows or Rows(len(prompts), writer.hidden)
        rows.add(writer, len(part))
    return rows


def stop_of(tokenizer):
    return tokenizer.token_to_id("<|im_end|>")


@torch.no_grad()
def hits(model, rows):
    """Whether each pass of every chain drafts the token that was replied [rows,N,DEPTH]."""
    quantised = model.mtp.layers[0].quantised()
    out = []
    for at in torch.arange(rows.filled).split(32):
        ids, hidden, chains = batch = rows.some(at)
        with torch.autocast(ids.device.type, torch.bfloat16, ids.is_cuda, cache_enabled=False):
            found = [logits.argmax(-1) for logits, _ in passes(model, batch, DEPTH, quantised)]
        starts, _, ends = chains.unbind(1)
        ahead = [starts + k + 2 for k in range(DEPTH)]
        right = [(f == tokens_at(ids, a)) & (a < ends) for f, a in zip(found, ahead)]
        out.append(torch.stack(right, -1).cpu())
    return torch.cat(out)


def tokens_per_step(right, chains, depth):
    """Replied tokens after the first by the steps that serving with so many drafts would take."""
    tokens = steps = 0
    for row, (starts, _, ends) in zip(right.tolist(), chains.tolist()):
        wanted = 0
        for chain, (start, end) in enumerate(zip(starts, ends)):
            if chain == 0 or start != starts[chain - 1] + 1:
                wanted = start
            if end == 0 or start < wanted:
                continue
            run = row[chain][:depth] + [False]
            took = min(run.index(False) + 1, end - start - 2)
            tokens, steps, wanted = tokens + took, steps + 1, start + took
    return tokens / max(steps, 1)


def evaluate(model, rows):
    """Prints the shares of accepted drafts, each after accepted ones, and tokens per step."""
    right, chains = hits(model, rows), rows.chains[: rows.filled].cpu()
    starts, _, ends = chains.unbind(1)
    reached, shares = torch.ones_like(starts, dtype=torch.bool), []
    for pass_ in range(DEPTH):
        counted = reached & (starts + pass_ + 2 < ends)
        reached = counted & right[..., pass_]
        shares.append(f"{reached.sum() / counted.sum().clamp_min(1):.3f}")
    speeds = [f"{tokens_per_step(right, chains, d):.2f}" for d in range(1, DEPTH + 1)]
    print(f"held-out: drafts hold {' '.join(shares)}; tokens a step {' '.join(speeds)}", flush=True)


# ---- training --------------------------------------------------------------------------------------------


class Source:
    """Fills rows with new replies of the trunk."""

    def __init__(self, model, args):
        self.writer = Writer(model, WRITERS, ROOM, stop_of(trained_tokenizer()))
        self.prompts = rounds(f"drafts {args.seed}", args.workers)
        self.rows = Rows(args.rows, self.writer.hidden)
        self.replies = self.tokens = 0
        self.spent = 0.0

    def fill(self):
        begun = time.monotonic()
        prompts = next(self.prompts)
        heats = [HEAT if random.random() < HEATED else 0.0 for _ in prompts]
        self.writer.write(prompts, NEW_TOKENS, heats, share=0.98)
        self.tokens += self.rows.add(self.writer, len(prompts))
        self.replies += len(prompts)
        self.spent += time.monotonic() - begun


def load_model(device, drafts):
    model = m.Tiny()
    model.load_state_dict(tiny_export.exported())
    if drafts:
        model.mtp.load_state_dict(torch.load(drafts, map_location="cpu", weights_only=True))
    model.requires_grad_(False)
    model.mtp.requires_grad_(True)
    return model.to(device).eval()


def train(model, args, device):
    """Trains by the clock; prints a line now and then."""
    asked = heldout(model, args.short)
    evaluate(model, asked)
    began = shown = looked = time.monotonic()
    source, step = Source(model, args), 0
    while source.rows.filled == 0 or time.monotonic() - began < FIRST_REPLIES * args.seconds:
        source.fill()
    print(
        f"{source.replies} replies, {source.tokens} tokens, {source.rows.filled} rows", flush=True
    )
    optimiser = tiny_train.make_optimiser(model.mtp)
    stepper = Stepper(model, optimiser, source.rows)
    while (spent := time.monotonic() - began) < args.seconds:
        if source.spent < WRITING * spent:
            source.fill()
        progress = (spent / args.seconds - FIRST_REPLIES) / (1 - FIRST_REPLIES)
        for group in optimiser.param_groups:
            group["lr"].fill_(tiny_train.rate_at(progress, step, args.peak))
        at = torch.randint(source.rows.filled, (ROWS,), device=device)
        found = stepper.step(source.rows.some(at))
        step += 1
        if step % 25 == 0:
            torch.cuda.synchronize() if device == "cuda" else None
        if spent - (shown - began) > 10:
            loss, *held = found.tolist()
            shown = time.monotonic()
            print(
                f"{spent:6.0f} s  step {step}  {source.replies} replies  {source.tokens / 1e6:.1f} M tokens  "
                f"loss {loss:.4f}  hold {' '.join(f'{x:.3f}' for x in held)}",
                flush=True,
            )
        if spent - (looked - began) > EVALUATE_EVERY_S:
            looked = time.monotonic()
            evaluate(model, asked)
            save(model, args.out)
    evaluate(model, asked)
    save(model, args.out)


def save(model, out):
    state = {name: t.detach().float().cpu() for name, t in model.mtp.state_dict().items()}
    torch.save(state, out / "drafts.pt")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--out", type=Path, default=Path("drafts"))
    parser.add_argument("--resume", type=Path, help="begin with the layer of this file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peak", type=float, default=PEAK, help="learning rate")
    parser.add_argument("--rows", type=int, default=KEPT, help="rows that are held")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--short", type=int, default=0, help="held-out questions, all if 0")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    torch.set_float32_matmul_precision("high")
    args.out.mkdir(parents=True, exist_ok=True)
    train(load_model(device, args.resume), args, device)


if __name__ == "__main__":
    main()
