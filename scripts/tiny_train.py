"""Trains `tiny` on one CUDA device.

    python scripts/tiny_train.py --compile --seconds 480 --out a
    python scripts/tiny_train.py --compile --seconds 510 --from 0.35 --resume a --seed 2 --out b
    python scripts/tiny_train.py --compile --seconds 400 --from 0.5 --resume b --seed 3 --out c
    python scripts/tiny_train.py --bench     # speeds only

The kept weights are the third call's. Weights depend on the clock, so a rerun gives others as good.
Learning rate and quantisation follow the progress from 0 to 1, which follows the clock. The last
part trains with NVFP4 weights in the forward pass. Checkpoints are cut into files of at most 15 MiB
(`train.pt.0`, ...); `cat` them together for tiny_export.py. The held-out questions are asked at the
end. Needs torch and tokenizers.
"""

import argparse
import io
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import tiny_data
import tiny_measure
import tiny_model as m

ROWS, LENGTH = 32, 2048
PEAK, FLOOR, WARM_STEPS = 2.5e-3, 2e-5, 150
QUANTISED_FROM = 0.62
DRAFT_WEIGHT, BALANCE_WEIGHT = 0.3, 0.01
PIECE = 15 * 2**20


class Rows(torch.utils.data.IterableDataset):
    """Batches of packed rows: ids, weights and starts [ROWS, LENGTH]."""

    def __init__(self, seed):
        self.seed = seed

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        rows = tiny_data.packed_rows(f"{self.seed} {worker.id if worker else 0}", LENGTH)
        while True:
            ids, weights, starts = zip(*(next(rows) for _ in range(ROWS)))
            yield torch.tensor(ids), torch.tensor(weights), torch.tensor(starts)


def batches(seed, workers):
    torch.set_num_threads(max(1, min(4, torch.get_num_threads())))
    return iter(
        torch.utils.data.DataLoader(
            Rows(seed),
            batch_size=None,
            num_workers=workers,
            prefetch_factor=4 if workers else None,
            pin_memory=torch.cuda.is_available(),
        )
    )


def weighted(logits, ids, weights, ahead):
    """Weighted cross entropy of predicting the token `ahead` positions later."""
    losses = F.cross_entropy(
        logits[:, :-ahead].flatten(0, 1).float(), ids[:, ahead:].flatten(), reduction="none"
    )
    share = weights[:, ahead:].flatten()
    return (losses * share).sum() / share.sum().clamp_min(1.0)


def loss_of(model, ids, weights, starts, quantise):
    """(training loss, reply loss, draft loss)."""
    quantised = model.quantised() if quantise else None
    with torch.autocast(ids.device.type, torch.bfloat16, cache_enabled=False):
        logits, drafts, balance = model(ids, starts, quantised)
    main = weighted(logits, ids, weights, 1)
    draft = weighted(drafts, ids, weights, 2)
    return main + DRAFT_WEIGHT * draft + BALANCE_WEIGHT * balance, main, draft


def captured(run, optimiser):
    """(graph, what `run` returns) of a training step. It is warmed up on a side stream with a zero
    learning rate.
    """
    rates = [g["lr"].clone() for g in optimiser.param_groups]
    for g in optimiser.param_groups:
        g["lr"].zero_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimiser.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        out = run()
    for g, rate in zip(optimiser.param_groups, rates):
        g["lr"].copy_(rate)
    return graph, out


class Stepper:
    """One training step as a captured CUDA graph, one graph without and one with quantised
    weights.
    """

    def __init__(self, model, optimiser, graph):
        self.model, self.optimiser, self.graph = model, optimiser, graph
        device = next(model.parameters()).device
        self.inputs = [
            torch.zeros(ROWS, LENGTH, dtype=d, device=device)
            for d in (torch.long, torch.float32, torch.long)
        ]
        self.captured = {}

    def eager(self, quantise):
        self.optimiser.zero_grad(set_to_none=True)
        loss, main, draft = loss_of(self.model, *self.inputs, quantise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimiser.step()
        return torch.stack([main.detach(), draft.detach()])

    def step(self, batch, quantise):
        """Runs one step; returns its losses as a device tensor that the next step overwrites."""
        for held, value in zip(self.inputs, batch):
            held.copy_(value, non_blocking=True)
        if not self.graph:
            return self.eager(quantise)
        if quantise not in self.captured:
            self.captured.clear()
            self.captured[quantise] = captured(lambda: self.eager(quantise), self.optimiser)
        graph, out = self.captured[quantise]
        graph.replay()
        return out


def make_optimiser(model):
    """AdamW; weight decay on matrices only. The rate is a device tensor so that graphs can read
    it.
    """
    device = next(model.parameters()).device
    plain = [p for n, p in model.named_parameters() if p.dim() < 2 or "conv1d" in n or "embed" in n]
    skip = {id(p) for p in plain}
    matrices = [p for p in model.parameters() if id(p) not in skip]
    rate = lambda: torch.zeros((), device=device)
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": 0.05, "lr": rate()},
            {"params": plain, "weight_decay": 0.0, "lr": rate()},
        ],
        lr=rate(),
        betas=(0.9, 0.97),
        eps=1e-10,
        capturable=device.type == "cuda",
        foreach=device.type == "cuda",
    )


def rate_at(progress, step, peak=PEAK):
    warm = min(1.0, (step + 1) / WARM_STEPS)
    return warm * (FLOOR + (peak - FLOOR) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))


def save(model, out):
    """Writes the weights as pieces of `train.pt`."""
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict()}, buffer)
    data = buffer.getvalue()
    for i in range(0, len(data), PIECE):
        (out / f"train.pt.{i // PIECE}").write_bytes(data[i : i + PIECE])


def resume(model, folder):
    pieces = sorted(folder.glob("train.pt.*"))
    state = torch.load(io.BytesIO(b"".join(p.read_bytes() for p in pieces)), weights_only=True)
    model.load_state_dict(state["model"])


def compile_parts():
    """Compiles the element-wise heavy parts for training; the chunk scan and attention stay as they
    are.
    """
    for owner, name in [
        (m.Norm, "forward"),
        (m.DeltaNet, "inputs"),
        (m.DeltaNet, "outputs"),
        (m.Moe, "forward"),
    ]:
        setattr(owner, name, torch.compile(getattr(owner, name), dynamic=False))
    global weighted
    weighted = torch.compile(weighted, dynamic=False)


def train(args, device):
    """Trains by the clock; prints a line now and then."""
    model = m.Tiny().to(device)
    if args.resume:
        resume(model, args.resume)
    stepper = Stepper(model, make_optimiser(model), not args.no_graph)
    source = batches(f"train {args.seed} {args.start}", args.workers)
    began = shown = saved = time.monotonic()
    step = tokens = 0
    while True:
        share = (time.monotonic() - began) / args.seconds
        if share >= 1 or (args.steps and step >= args.steps):
            break
        progress = args.start + (args.to - args.start) * share
        for group in stepper.optimiser.param_groups:
            group["lr"].fill_(rate_at(progress, step))
        losses = stepper.step(next(source), progress >= QUANTISED_FROM)
        step, tokens = step + 1, tokens + ROWS * LENGTH
        if step % 25 == 0:
            torch.cuda.synchronize() if device == "cuda" else None
        now = time.monotonic()
        if now - shown > 10 or args.steps:
            main, draft = losses.tolist()
            print(
                f"{now - began:6.0f} s  step {step}  {tokens / 1e6:.0f} M tokens  {tokens / (now - began) / 1e3:.0f} k/s  "
                f"loss {main:.4f}  draft {draft:.4f}",
                flush=True,
            )
            shown = now
        if now - saved > 120:
            save(model, args.out)
            saved = now
    save(model, args.out)
    return model


def bench(args, device):
    """Milliseconds a step: eager, graph, compiled parts and graph; and the tokens a second of the
    generator.
    """
    source = batches("bench", args.workers)
    batch = next(source)
    start, count = time.monotonic(), 0
    while time.monotonic() - start < 8:
        next(source)
        count += 1
    print(
        f"generator {count * ROWS * LENGTH / (time.monotonic() - start) / 1e3:.0f} k tokens/s with {args.workers} workers",
        flush=True,
    )
    del source
    for label, graph, compiled in [
        ("eager", False, False),
        ("graph", True, False),
        ("compiled, graph", True, True),
    ]:
        try:
            compile_parts() if compiled else None
            for quantise in (False, True):
                model = m.Tiny().to(device)
                stepper = Stepper(model, make_optimiser(model), graph)
                begin = time.monotonic()
                for _ in range(3):
                    stepper.step(batch, quantise)
                torch.cuda.synchronize()
                ready = time.monotonic()
                for _ in range(10):
                    out = stepper.step(batch, quantise)
                torch.cuda.synchronize()
                took = (time.monotonic() - ready) / 10
                print(
                    f"{label:16} quantised {quantise!s:5} {took * 1e3:6.1f} ms a step, {ROWS * LENGTH / took / 1e3:.0f} k tokens/s, "
                    f"ready after {ready - begin:.1f} s, losses {out.tolist()}",
                    flush=True,
                )
        except Exception as error:  # one variant failing must not hide the others' figures
            print(f"{label}: {type(error).__name__}: {str(error)[:1500]}", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--from", dest="start", type=float, default=0.0)
    parser.add_argument("--to", type=float, default=1.0)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--steps", type=int, default=0, help="stop after this many steps")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--bench", action="store_true")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.bench:
        return bench(args, device)
    compile_parts() if args.compile else None
    model = train(args, device)
    torch.compiler.set_stance("force_eager")  # answers have every length: nothing to compile for
    if device == "cuda":
        tiny_measure.measure(model.eval(), device, failures=args.out / "wrong.jsonl")


if __name__ == "__main__":
    main()
