"""Compares a binary's logits with Hugging Face transformers in float32, at the model's full width, in any family.

    atlas-<target> synth WEIGHTS --layers 4
    python scripts/full_width.py BINARY WEIGHTS [--positions 2048] [--device cuda]

WEIGHTS is a drawn checkpoint, whole or cut (`config.json` says after how many layers). The binary writes its logits of
seeded random tokens by its verb `logits`, as a prompt and one token at a time, and those of its routers if it has any;
the reference computes the same positions from the same weights, which `golden.py` dequantises independently of the
server's loader.

A router's choice is not continuous: of 256 experts the eighth and the ninth are sometimes closer than rounding moves
them, and one other choice moves more than all rounding. So the reference is compared twice: with its own choices, where
the mean divergence is at most REQUIRED_DIVERGENCE and REQUIRED_SAME of the most likely tokens are the same, unless the
target rounds rows to NVFP4; and on the routes of the binary, where it weighs the given experts by its own logits and
only what is continuous differs. There four things more are judged. All of it is judged for a prompt and token by token:

- choices: where the reference, on the same routes up to there, would choose other experts, its logits must be a near
  tie: the best one left out is above the worst one taken by at most NEAR_TIE times what rounding moves a logit of that
  layer's routers (of an F32 target: F32_MOVE).
- divergence: an F32 target's mean Kullback-Leibler divergence is at most F32_DIVERGENCE. One that rounds what it
  multiplies is measured by the reference that rounds the same: it may be as far from the exact one on the same routes,
  times SLACK, or as far as an F32 target. It cannot be asked to equal the rounding one, for a difference of one part in
  a million becomes a whole step of rounding wherever a value lies between two, and after some layers the steps are
  unrelated; but over many positions their mean effect is the same within a percent.
- most likely tokens: how many flip by chance follows from the gaps between the reference's first logits and from how
  far rounding moves logits; more than that and CHANCE standard deviations are an error (of an F32 target: any where
  the gap is larger than F32_MOVE).
- gains: no part of the model may add more than GAIN too much or too little, beside chance (see `gains.py`): a fault of
  one expert hardly moves the mean. Rounding to NVFP4 has gains of its own, which are told: a target that rounds rows to
  it is compared with the reference that rounds the same.

A model without experts makes no choices: it is compared once. The mean divergence is at most REQUIRED_DIVERGENCE and
REQUIRED_SAME of the most likely tokens are the same, and divergence and most likely tokens are judged as above. Gains
are not: without routers nothing between the layers is told that would show a part apart from the others. Instead the
mean square of what logits differ by is judged as the divergence is (of an F32 target: at most F32_MOVE squared). So it
is of every model with a tied head, whose drawn one prefers the token that it reads or, where logits are capped, none:
the divergence hardly sees a fault there.

The divergence grows with the square of the logits' spread, so with less entropy; the flips do not depend on the spread,
for gaps grow with it. Both fall with what layers add to the hidden state, beside the embedding. The same figures of the
reference rounding its operands, and of transformers' own BF16, are printed for scale. Exits with 1 if something that is
judged is not so.

For a target whose manifest says experts_rows = "nvfp4", give --experts-rows nvfp4: the reference then rounds what
experts multiply as `Ops::experts` says. For a target that multiplies in F32, give --operands f32.

Takes 4 bytes a weight and four times the logits (2 GB for 2,048 positions of 248,320 tokens) on the device, after the
binary. Matrices of single experts stay as they are stored, and are dequantised one by one in each run. A binary that
tells its routers runs its steps one layer at a time; `selftest --bits` shows that recorded steps have the same bits.
"""

import argparse
import dataclasses
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

import gains
import golden
import reference

SEED = 11
REQUIRED_DIVERGENCE, REQUIRED_SAME = 1e-4, 0.995  # nats; share of positions
# Room for what else is rounded: parts of experts (F16) and the weights of values (BF16); in a prompt, cells (F16).
SLACK = {"prefill": 1.7, "decode": 1.2}
NEAR_TIE = 8  # times the root mean square of a router logit's move, of some 10^4 choices near a tie
RIVALS = 32  # tokens that rounding may move above the most likely one
CHANCE = 4  # standard deviations
GAIN = 2e-3  # beside chance
F32_DIVERGENCE = 1e-9  # nats
F32_MOVE = 1e-4  # of a logit, sums being taken in another order
# Modules whose products take NVFP4, by --experts-rows.
EXPERTS = {"exact": (), "nvfp4": ("experts", "shared_expert", "shared_experts")}


def binary_logits(arguments, layers, tokens, way, folder, routers):
    """The binary's logits, mapped from the file that it writes, and the file of those of its routers, if it has any."""
    given, out, told = (folder / f"{way}.{name}" for name in ("tokens", "logits", "routers"))
    given.write_text(" ".join(map(str, tokens)))
    command = [str(arguments.binary.resolve()), "logits", str(arguments.weights), "--tokens", str(given), "--out",
               str(out), "--layers", str(layers)] + ["--decode"] * (way == "decode")
    command += ["--routers", str(told)] if routers else []
    print("+", " ".join(command), flush=True)
    if subprocess.run(command).returncode:
        sys.exit("the binary wrote no logits")
    return numpy.memmap(out, "<f4", "r").reshape(len(tokens), -1), told


def router_logits(file, routers, positions):
    """Router logits of the experts in the binary's file, [layers, positions, experts]; a gate's are last."""
    told = torch.from_numpy(numpy.fromfile(file, "<f4"))
    told = told.reshape(positions, routers.layers, routers.experts + routers.gates)
    return told[..., :routers.experts].transpose(0, 1).contiguous()


def rows_of(found):
    """Logits of the file, some positions at a time."""
    for first in range(0, len(found), reference.ROWS):
        yield torch.from_numpy(found[first:first + reference.ROWS].copy())


@dataclasses.dataclass
class Comparison:
    divergence: torch.Tensor  # of each position, nats
    entropy: torch.Tensor
    moved: torch.Tensor  # standard deviation of the logits' differences
    gaps: torch.Tensor  # from the reference's first logit to each of the next RIVALS
    lost: torch.Tensor  # of the most likely token of the other, in the reference: 0 where it is the same

    def mean(self):
        return float(self.divergence.mean())

    def power(self):
        """Mean square of the logits' differences."""
        return float(self.moved.pow(2).mean())

    def same(self):
        return float((self.lost == 0).double().mean())

    def flips(self):
        """The chance of each position that logits which move like these, each for itself, have another first one: the
        first one moves by z standard deviations, and no rival passes it."""
        z = torch.linspace(-8, 8, 321, dtype=torch.float64)
        likely = torch.softmax(-z * z / 2, 0)
        apart = self.gaps / self.moved.clamp(min=torch.finfo(torch.float64).tiny)[:, None]
        stays = sum(weight * torch.special.ndtr(apart + at).prod(-1) for at, weight in zip(z, likely))
        return (1 - stays).clamp(min=0)

    def tell(self, name):
        print(f"{name}: {len(self.lost)} positions: mean KLD {self.mean():.3e} nats, median "
              f"{float(self.divergence.median()):.3e}, largest {float(self.divergence.max()):.3e}, same most likely "
              f"token {100 * self.same():.2f} %, mean entropy {float(self.entropy.mean()):.2f} nats", flush=True)


def compare(name, expected, found, device):
    """Two ways to the same logits; both are iterables of rows."""
    parts = []
    for theirs, ours in zip(expected, found, strict=True):
        theirs, ours = theirs.double(), ours.to(device).double()
        if not bool(ours.isfinite().all()):
            sys.exit(f"{name}: logits are not finite behind position {sum(map(len, (part[0] for part in parts)))}")
        log, ours_log = theirs.log_softmax(-1), ours.log_softmax(-1)
        divergence, entropy = (log.exp() * (log - ours_log)).sum(-1), -(log.exp() * log).sum(-1)
        first, rivals = theirs.topk(1 + RIVALS).values.split((1, RIVALS), -1)
        lost = (first - theirs.gather(-1, ours.argmax(-1, keepdim=True)))[:, 0]
        parts.append([part.cpu() for part in (divergence, entropy, (theirs - ours).std(-1), first - rivals, lost)])
    comparison = Comparison(*map(torch.cat, zip(*parts)))
    comparison.tell(name)
    return comparison


class Judge:
    """Prints what is judged, and remembers whether all of it was so."""

    def __init__(self):
        self.passed = True

    def says(self, passed, text):
        self.passed &= passed
        print(f"  {'ok' if passed else 'WRONG'}: {text}", flush=True)


def spread(moved):
    """Root mean square of each layer."""
    return moved.pow(2).mean((1, 2)).sqrt()


def tell_routing(routers, own):
    """How plainly `own` logits of the routers prefer some experts, and how often."""
    chosen, weights = routers.choice(own)
    ranked = weights.sort(-1, descending=True).values.mean((0, 1))
    turns = torch.stack([taken.flatten().bincount(minlength=own.shape[-1]) for taken in chosen])
    busiest = turns.amax(-1).double().mean() / turns.double().mean()
    tenth = float(turns.topk(max(1, turns.shape[-1] // 10)).values.sum() / turns.sum())
    print(f"routing: a token's experts weigh {' '.join(f'{float(weight):.3f}' for weight in ranked)}; a layer's "
          f"busiest has {float(busiest):.1f} times its even share of turns, its busiest tenth {100 * tenth:.0f} % of all, "
          f"{int((turns == 0).sum())} have none", flush=True)


def judge_required(judge, comparison):
    judge.says(comparison.mean() <= REQUIRED_DIVERGENCE and comparison.same() >= REQUIRED_SAME,
               f"mean KLD {comparison.mean():.3e} nats, {REQUIRED_DIVERGENCE} allowed; {100 * comparison.same():.2f} % "
               f"same most likely tokens, {100 * REQUIRED_SAME} % required")


def judge_choices(judge, own, chosen, moves, allowed):
    """What `own` routers compare against `chosen` experts; `allowed` for each layer."""
    left = own.scatter(-1, chosen, -torch.inf).amax(-1)
    above = left - own.gather(-1, chosen).amin(-1)
    share = [f"{100 * float(part):.2f}" for part in (above > 0).double().mean(-1)]
    widest = [f"{float(part):.1e}" for part in above.amax(-1).clamp(min=0)]
    judge.says(bool((above.amax(-1) <= allowed).all()),
               f"other choices than the reference's by layer: {' '.join(share)} %, its logits apart by at most "
               f"{' '.join(widest)}, allowed {' '.join(f'{float(part):.1e}' for part in allowed)}; they spread by "
               f"{float(own.std(-1).mean()):.2f}, the target's differ by {' '.join(f'{float(m):.1e}' for m in moves)}")


def judge_moves(judge, own, rounding, slack):
    allowed = slack * rounding.power() if rounding else F32_MOVE ** 2
    judge.says(own.power() <= allowed, f"logits differ by {own.power() ** 0.5:.3e}, allowed {allowed ** 0.5:.3e}")


def judge_tokens(judge, same, rounding):
    if not rounding:
        worst = float(same.lost.max())
        return judge.says(worst <= F32_MOVE, f"other most likely tokens lose {worst:.1e} at most, allowed {F32_MOVE}")
    chances = rounding.flips()
    expected, chance = float(chances.sum()), float((chances * (1 - chances)).sum().sqrt())
    flips, allowed = int((same.lost > 0).sum()), expected + CHANCE * chance
    judge.says(flips <= allowed, f"{flips} other most likely tokens, of rounding {expected:.1f} +- {chance:.1f} are "
               f"expected, allowed {allowed:.1f}; the widest gap exchanged is {float(same.lost.max()):.1e}")


def judge_gains(judge, found):
    wrong = gains.outlying(found, GAIN)
    name, factor, error = max(found, key=lambda part: abs(part[1]) / max(GAIN, gains.ERRORS * part[2]))
    judge.says(not wrong, f"gains of {len(found)} parts within {100 * GAIN} % or chance; farthest is {name}: "
               f"{100 * factor:+.2f} % +- {100 * error:.2f}")
    tell_gains(wrong[:10])


def tell_gains(found):
    for name, factor, error in found:
        print(f"    {name}: {100 * factor:+.2f} % +- {100 * error:.2f}", flush=True)


class FullWidth:
    def __init__(self, arguments, folder):
        self.arguments, self.device, self.judge = arguments, arguments.device, Judge()
        self.nvfp4 = EXPERTS[arguments.experts_rows]
        routed = any(".experts." in name for name in golden.read(arguments.weights))
        if self.nvfp4 and not routed:
            sys.exit("--experts-rows nvfp4 is of models with experts: leave it out")
        self.choices = "own choices: " if routed else ""
        config = golden.configuration(arguments.weights)
        random = torch.Generator().manual_seed(SEED)
        self.tokens = torch.randint(config["vocab_size"], (arguments.positions,), generator=random).tolist()
        # Before the reference is there: not both have room at once where memory is small.
        layers = golden.layers(config)
        self.found = {way: binary_logits(arguments, layers, self.tokens, way, folder, routed)
                      for way in ("prefill", "decode")}
        self.model = reference.load(arguments.weights, self.device)
        self.routers = reference.Routers(self.model)
        print(f"{type(self.model).__name__}, {layers} layers, torch {torch.__version__}, transformers "
              f"{golden.transformers.__version__}", flush=True)

    def exact(self):
        """Logits, and those of routers."""
        return reference.logits(self.model, self.tokens), self.routers.logits()

    def rounding(self):
        with reference.rounded_operands(self.model, self.nvfp4):
            return self.exact()

    def exact_parts(self):
        """Logits, those of routers, and what each part adds."""
        with gains.Gains(self.model) as parts:
            exact, routers = self.exact()
        print("added to the hidden state by layer, of mixer and experts or MLP:",
              ", ".join(f"{mixer:.3f} {fed:.3f}" for mixer, fed in parts.added()), flush=True)
        return exact, routers, parts

    def run(self):
        exact, routers = self.exact_parts()[:2]
        if self.routers.layers:
            tell_routing(self.routers, routers)
        rounding = None
        if self.arguments.operands == "f16":
            rounded = self.rounding()[0]
            rounding = compare(f"{self.choices}the reference, rounding its operands", exact, rounded, self.device)
            del rounded
        for way, (found, told) in self.found.items():
            self.judge_way(way, found, told, exact, rounding)
        self.model.bfloat16()
        reference.restart_rotary(self.model)
        compare(f"{self.choices}transformers in BF16", exact, self.exact()[0], self.device)
        return self.judge.passed

    def judge_way(self, way, found, told, exact, rounding):
        own = compare(f"{self.choices}{way}", exact, rows_of(found), self.device)
        if not self.nvfp4:
            judge_required(self.judge, own)
        if not self.routers.layers:
            judge_moves(self.judge, own, rounding, SLACK[way])
            return self.judge_continuous(way, own, rounding)
        self.same_routes(way, found, router_logits(told, self.routers, len(self.tokens)).to(self.device))

    def judge_continuous(self, way, same, rounding):
        """Divergence and most likely tokens, of models without experts or on the same routes."""
        # Where one token has all of the probability, a position or two decide the mean: it is chance below F32's bound.
        allowed = max(F32_DIVERGENCE, SLACK[way] * rounding.mean()) if rounding else F32_DIVERGENCE
        self.judge.says(same.mean() <= allowed, f"mean KLD {same.mean():.3e} nats, allowed {allowed:.3e}")
        judge_tokens(self.judge, same, rounding)

    def same_routes(self, way, found, told):
        chosen = self.routers.chosen = self.routers.choice(told)[0]
        rounding = None
        if self.arguments.operands == "f16":
            rounded, rounded_routers = self.rounding()
        exact, own, parts = self.exact_parts()
        same = compare(f"same routes: {way}", exact, rows_of(found), self.device)
        near_tie = torch.full_like(own[:, 0, 0], F32_MOVE)
        if self.arguments.operands == "f16":
            rounding = compare("same routes: the reference, rounding its operands", exact, rounded, self.device)
            compare(f"same routes: {way}, from the rounding reference", rounded, rows_of(found), self.device)
            near_tie = NEAR_TIE * spread(rounded_routers - own)
        if self.model.config.tie_word_embeddings:
            judge_moves(self.judge, same, rounding, SLACK[way])
        judge_choices(self.judge, self.routers.ranked(own), chosen, spread(told - own), near_tie)
        self.judge_continuous(way, same, rounding)
        logits, routers = exact, own
        if self.nvfp4:
            logits, routers = rounded, rounded_routers
            print("  gains of rounding alone:")
            tell_gains([part for part in parts.of(routers, own, self.moves(exact, logits, parts.seen))
                        if "shared expert" in part[0]])
        judge_gains(self.judge, list(parts.of(told, routers, self.moves(logits, rows_of(found), parts.seen))))
        self.routers.chosen = None

    def moves(self, expected, found, seen):
        """What the logits of the tokens `seen` differ by; both are iterables of rows."""
        pairs = zip(expected, found, strict=True)
        return torch.cat([ours[:, seen].to(self.device) - theirs[:, seen] for theirs, ours in pairs])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("weights", type=pathlib.Path)
    parser.add_argument("--positions", type=int, default=2048)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--operands", choices=("f32", "f16"), default="f16", help="what the target multiplies")
    parser.add_argument("--experts-rows", choices=EXPERTS, default="exact", help="as in the target's manifest")
    arguments = parser.parse_args()
    if EXPERTS[arguments.experts_rows] and arguments.operands == "f32":
        parser.error("--experts-rows nvfp4 is of targets that multiply F16: leave --operands out")
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        passed = FullWidth(arguments, pathlib.Path(folder)).run()
    sys.exit(int(not passed))


if __name__ == "__main__":
    main()
