"""For `sweep.py`: its figures as Markdown and as a picture, and the commands of other programs that
measure the same. Standard library only.

    python3 scripts/sweep_report.py results/sweep.json picture.svg
"""

import json
import math
import sys
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 1200, 940
PANEL_HEIGHT = 330
# Colours are attributes of what has them: not every program that draws pictures knows styles.
PAPER, INK, SOFT, LINE, CARD = "#fbfaf7", "#1f2328", "#6b7280", "#e3e0d8", "#ffffff"
A, B, C = "#0f766e", "#c2410c", "#4f46e5"
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif"
CURVE = 'fill="none" stroke-width="3" stroke-linejoin="round" stroke-linecap="round"'
KINDS = {
    "": "", "paper": f'fill="{PAPER}"', "card": f'fill="{CARD}" stroke="{LINE}"',
    "grid": f'stroke="{LINE}"', "thin": 'opacity="0.18"',
    "soft": f'fill="{SOFT}" font-size="12"', "title": 'font-size="28" font-weight="700"',
    "head": 'font-size="16" font-weight="600"', "big": 'font-size="30" font-weight="700"',
    "value": 'font-size="12" font-weight="600"',
    "a": f'stroke="{A}" {CURVE}', "b": f'stroke="{B}" {CURVE}', "c": f'stroke="{C}" {CURVE}',
    "fa": f'fill="{A}"', "fb": f'fill="{B}"', "fc": f'fill="{C}"',
}


def drawn(kinds):
    """Attributes of all these kinds."""
    return " ".join(KINDS[kind] for kind in kinds.split())


def number(value):
    """A figure as people read it; a dash where there is none."""
    if value is None:
        return "-"
    if value >= 10000:
        return f"{value / 1000:.0f}k"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def millis(value):
    return "-" if value is None else f"{value / 1000:.2f} s" if value >= 1000 else f"{number(value)} ms"


def rows_of(report, shape):
    return report["shapes"].get(shape, [])


def fine(report, shape):
    """Rows with figures."""
    return [row for row in rows_of(report, shape) if row.get("total_tok_s")]


# Markdown

COLUMNS = [("prompt", lambda row: number(row["prompt_tokens"])),
           ("tok/s", lambda row: number(row["total_tok_s"])),
           ("tok/s a stream, behind its first token", lambda row: number(row["stream_tok_s"])),
           ("first token p50", lambda row: millis(row["ttft_ms"]["p50"])),
           ("p99", lambda row: millis(row["ttft_ms"]["p99"])),
           ("gap p50", lambda row: millis(row["gap_ms"]["p50"])),
           ("p99", lambda row: millis(row["gap_ms"]["p99"])),
           ("cached", lambda row: number(row.get("cached_tokens"))),
           ("failed", lambda row: f"{row['failed']} of {row['requests']}")]
TITLES = {"single": "One stream", "streams": "Streams at once", "long": "Long prompts",
          "warm": "The same prompt twice", "agent": "An agent's session"}
NAMES = {"single": ("streams", "streams"), "streams": ("streams", "streams"),
         "long": ("prompt of", "wanted_prompt_tokens"), "warm": ("time", "time"),
         "agent": ("turn", "turn")}


def table(shape, rows):
    title, member = NAMES[shape]
    lines = [f"| {title} | " + " | ".join(name for name, _ in COLUMNS) + " |",
             "|---" * (len(COLUMNS) + 1) + "|"]
    for row in rows:
        if "skipped" in row:
            cells = [f"skipped: {row['skipped']}"] + [""] * (len(COLUMNS) - 1)
        else:
            cells = [cell(row) for _, cell in COLUMNS]
        lines.append(f"| {row[member]} | " + " | ".join(cells) + " |")
    return lines


def remarks(rows, busy):
    """What a reader must know of these rows."""
    for row in rows:
        for error in row.get("errors", []):
            yield f"failed: `{error}`"
        if row.get("client_busy", 0) > busy:
            yield (f"with {row.get('streams', 1)} streams this client used {row['client_busy']:.0%} of a "
                   "core: its times are not the server's alone")
        if row.get("shorter_than_wanted"):
            yield f"{row['shorter_than_wanted']} replies were shorter than wanted"


def markdown(report, busy):
    lines = [f"# {report['model']}", "",
             f"{measured_on(report)}. {report['url']}, {report['at']}; context {number(report['context'])}. Tokens are those "
             "of the server's usage; first tokens and gaps between events are this client's.", ""]
    for shape, rows in report["shapes"].items():
        lines += [f"## {TITLES[shape]}", ""] + table(shape, rows) + [""]
        notes = list(dict.fromkeys(remarks(rows, busy)))
        lines += [f"- {note}" for note in notes] + [""] * bool(notes)
    lines += ["## The same by other programs", "", "```sh",
              peers(report["url"], report["model"], report["size"]), "```", ""]
    return "\n".join(lines)


# Peers

def peers(url, model, size):
    """Commands for the same shapes; each program counts tokens and draws prompts in its own way."""
    streams = " ".join(map(str, size["streams"]))
    prompt, reply = size["prompt"], size["reply"]
    longs = " ".join(str(tokens) for tokens in size["long"])
    vllm = (f"vllm bench serve --backend openai-chat --base-url {url} --endpoint /v1/chat/completions "
            f"--model {model} --percentile-metrics ttft,tpot,itl --metric-percentiles 50,99 "
            "--ignore-eos")
    sglang = (f"python3 -m sglang.bench_serving --backend sglang-oai-chat --base-url {url} "
              f"--model {model}")
    trt = ("python3 -m tensorrt_llm.serve.scripts.benchmark_serving --backend openai-chat "
           f"--host HOST --port PORT --endpoint /v1/chat/completions --model {model} --random-ids "
           "--random-range-ratio 0 --percentile-metrics ttft,tpot,itl --ignore-eos")
    loop, long = f"for n in {streams}; do", f"for p in {longs}; do"
    many = '--max-concurrency "$n" --num-prompts $((n * 2)); done'
    one = '--max-concurrency 1 --num-prompts 3; done'
    shape = f"--random-input-len {prompt} --random-output-len {reply}"
    deep = '--random-input-len "$p" --random-output-len 32'
    return "\n".join([
        "# vLLM: streams, long prompts, the same prompt twice",
        f"{loop} {vllm} --dataset-name random {shape} {many}",
        f"{long} {vllm} --dataset-name random {deep} {one}",
        f"{vllm} --dataset-name prefix_repetition --prefix-repetition-prefix-len {size['warm']} "
        "--prefix-repetition-suffix-len 1 --prefix-repetition-num-prefixes 1 "
        "--prefix-repetition-output-len 32 --max-concurrency 1 --num-prompts 2",
        "# SGLang",
        f"{loop} {sglang} --dataset-name random-ids --random-range-ratio 1 {shape} {many}",
        f"{long} {sglang} --dataset-name random-ids --random-range-ratio 1 {deep} {one}",
        f"{sglang} --dataset-name generated-shared-prefix --gsp-num-groups 1 "
        f"--gsp-prompts-per-group 2 --gsp-system-prompt-len {size['warm']} --gsp-question-len 1 "
        "--gsp-output-len 32 --max-concurrency 1",
        "# llama.cpp, without its server",
        f"llama-batched-bench -m MODEL.gguf -ngl 99 -c {max(size['streams']) * (prompt + reply)} "
        f"-npp {prompt} -ntg {reply} -npl {streams.replace(' ', ',')}",
        f"llama-bench -m MODEL.gguf -ngl 99 -p {longs.replace(' ', ',')} -n 32",
        "# TensorRT-LLM, served by trtllm-serve",
        f"{loop} {trt} --dataset-name random {shape} {many}",
        f"{long} {trt} --dataset-name random {deep} {one}",
        "# All five shapes of any of them, agents' sessions too, by this script",
        f"python3 scripts/sweep.py {url} --out FOLDER",
    ])


# The picture

def text(x, y, words, kind="", anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {drawn(kind)}>{escape(str(words))}</text>'


def rect(x, y, width, height, kind, round_by=4, title=""):
    told = f"<title>{escape(title)}</title>" if title else ""
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}" '
            f'rx="{round_by}" {drawn(kind)}>{told}</rect>')


def steps(most):
    """Round values up to `most`, about four of them."""
    if most <= 0:
        return [0, 1]
    raw = most / 4
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if raw <= unit * factor)
    return [step * at for at in range(math.ceil(most / step) + 1)]


class Panel:
    """A card with a title and a plot inside."""

    def __init__(self, x, y, width, title, legend):
        self.left, self.top = x + 58, y + 72
        self.right, self.bottom = x + width - 24, y + PANEL_HEIGHT - 40
        self.parts = [rect(x, y, width, PANEL_HEIGHT, "card", 12), text(x + 20, y + 30, title, "head")]
        at = x + 20
        for kind, words in legend:
            if kind:
                self.parts.append(rect(at, y + 42, 10, 10, f"f{kind}", 3))
            self.parts.append(text(at + 15, y + 51, words, "soft"))
            at += 28 + 6.4 * len(words)

    def empty(self, rows):
        """Says why there is nothing to see."""
        errors = [error for row in rows for error in row.get("errors", [])]
        words = errors[0][:56] if errors else "not measured"
        middle = (self.left + self.right) / 2
        self.parts.append(text(middle, (self.top + self.bottom) / 2, words, "soft", "middle"))

    def scale(self, most, words=number):
        """Grid lines; sets what `y` is a share of."""
        values = steps(most)
        self.most = values[-1]
        for value in values:
            y = self.y(value)
            self.parts += [f'<line x1="{self.left}" x2="{self.right}" y1="{y:.1f}" y2="{y:.1f}" {drawn("grid")}/>',
                           text(self.left - 8, y + 4, words(value), "soft", "end")]

    def y(self, value):
        return self.bottom - (self.bottom - self.top) * value / self.most

    def x(self, at, count):
        return self.left + (self.right - self.left) * (at + 0.5) / count

    def names(self, names):
        for at, name in enumerate(names):
            self.parts.append(text(self.x(at, len(names)), self.bottom + 20, name, "soft", "middle"))

    def line(self, values, kind, words=number):
        points = [(self.x(at, len(values)), self.y(value), value)
                  for at, value in enumerate(values) if value is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        self.parts.append(f'<polyline points="{path}" {drawn(kind)}/>')
        for x, y, value in points:
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {drawn("f" + kind)}>'
                              f"<title>{escape(words(value))}</title></circle>")
        if points:
            x, y, value = points[-1]
            self.parts.append(text(x, y - 10, words(value), "value", "middle"))

    def band(self, low, high, kind):
        pairs = [(self.x(at, len(low)), self.y(least), self.y(most))
                 for at, (least, most) in enumerate(zip(low, high)) if None not in (least, most)]
        there = [f"{x:.1f},{y:.1f}" for x, _, y in pairs]
        back = [f"{x:.1f},{y:.1f}" for x, y, _ in reversed(pairs)]
        self.parts.append(f'<polygon points="{" ".join(there + back)}" {drawn(f"f{kind} thin")}/>')

    def bar(self, at, count, value, kind, words, base=0.0):
        width = min((self.right - self.left) / count * 0.62, 74)
        top, bottom = self.y(base + value), self.y(base)
        self.parts.append(rect(self.x(at, count) - width / 2, top, width, bottom - top, f"f{kind}", 4, words))
        return top

    def svg(self):
        return "\n".join(self.parts)


def throughput(panel, rows):
    panel.scale(1.12 * max(row["total_tok_s"] for row in rows))
    panel.names([row["streams"] for row in rows])
    panel.line([row["stream_tok_s"] for row in rows], "b")
    panel.line([row["total_tok_s"] for row in rows], "a")


def latency(panel, rows):
    firsts, gaps = [[row[name] for row in rows] for name in ("ttft_ms", "gap_ms")]
    panel.scale(1.1 * max(value for row in firsts + gaps for value in row.values() if value is not None),
                millis)
    panel.names([row["streams"] for row in rows])
    for values, kind in ((firsts, "c"), (gaps, "a")):
        panel.band([row["p50"] for row in values], [row["p99"] for row in values], kind)
        panel.line([row["p50"] for row in values], kind, millis)


def long(panel, rows):
    panel.scale(1.15 * max(row["ttft_ms"]["p50"] for row in rows), millis)
    panel.names([number(row["prompt_tokens"]) for row in rows])
    for at, row in enumerate(rows):
        top = panel.bar(at, len(rows), row["ttft_ms"]["p50"], "c", millis(row["ttft_ms"]["p50"]))
        x = panel.x(at, len(rows))
        panel.parts.append(text(x, top - 7, f"{number(row['prompt_tok_s'])}/s", "value", "middle"))


def warm(panel, rows):
    panel.scale(1.15 * max(row["ttft_ms"]["p50"] for row in rows), millis)
    panel.names([{"first": "first time", "again": "again"}[row["time"]] for row in rows])
    for at, row in enumerate(rows):
        value = row["ttft_ms"]["p50"]
        top = panel.bar(at, len(rows), value, "b" if row["time"] == "first" else "a", millis(value))
        panel.parts.append(text(panel.x(at, len(rows)), top - 7, millis(value), "value", "middle"))


def agent(panel, rows):
    panel.scale(1.2 * max(row["prompt_tokens"] for row in rows))
    panel.names([row["turn"] for row in rows])
    for at, row in enumerate(rows):
        cached = row["cached_tokens"] or 0
        new = row["prompt_tokens"] - cached
        panel.bar(at, len(rows), cached, "a", f"{cached} kept")
        top = panel.bar(at, len(rows), new, "b", f"{new} new", cached)
        first = millis(row["ttft_ms"]["p50"])
        panel.parts.append(text(panel.x(at, len(rows)), top - 7, first, "value", "middle"))


PANELS = [
    ("streams", throughput, 24, 210, 564, "Tokens a second, by streams at once", [("a", "all together, waiting included"), ("b", "each stream behind its first token, median")]),
    ("streams", latency, 612, 210, 564, "Waiting, by streams at once", [("c", "first token, p50 to p99"), ("a", "gap between events, p50 to p99")]),
    ("long", long, 24, 560, 440, "First token of long prompts", [("c", "median; above it prompt tokens a second")]),
    ("warm", warm, 480, 560, 260, "The same prompt twice", [("b", "first token"), ("a", "the same, kept")]),
    ("agent", agent, 756, 560, 420, "An agent's session, turn by turn", [("a", "prompt, kept"), ("b", "new"), ("", "above: first token")]),
]


def tiles(report):
    """The figures that people ask for first."""
    one = fine(report, "single") or fine(report, "streams")[:1]
    many = fine(report, "streams")
    warm_rows = {row["time"]: row["ttft_ms"]["p50"] for row in fine(report, "warm")}
    if one:
        yield number(one[0]["stream_tok_s"]), "tokens/s, one stream", "fa"
        yield millis(one[0]["ttft_ms"]["p50"]), "first token", "fc"
    if many:
        best = max(many, key=lambda row: row["total_tok_s"])
        yield number(best["total_tok_s"]), f"tokens/s, {best['streams']} streams", "fb"
    if len(warm_rows) == 2 and warm_rows["again"]:
        yield f"{warm_rows['first'] / warm_rows['again']:.1f}×", "sooner, the second time", "fa"


def measured_on(report):
    """Server and machine, as far as they are known."""
    server = report.get("server") or "a server that tells no version"
    return f"{server}  ·  {report.get('machine') or 'card and clocks are not known here'}"


def picture(report):
    failed = sum(row.get("failed", 0) for rows in report["shapes"].values() for row in rows)
    asked = sum(row.get("requests", 0) for rows in report["shapes"].values() for row in rows)
    under = f"{report['url']}  ·  {report['at'][:10]}  ·  {asked} requests, {failed} failed"
    named = escape(f"{report['model']}: {measured_on(report)}")
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
             f'font-family="{FONT}" font-size="13" fill="{INK}">\n<title>{named}</title>',
             rect(0, 0, WIDTH, HEIGHT, "paper", 0), text(28, 44, report["model"], "title"),
             text(28, 67, under, "soft"), text(28, 86, measured_on(report), "soft")]
    for at, (value, words, kind) in enumerate(tiles(report)):
        x = 24 + at * 292
        parts += [rect(x, 98, 276, 92, "card", 12), rect(x, 98, 6, 92, kind, 3),
                  text(x + 24, 142, value, "big"), text(x + 24, 168, words, "soft")]
    for shape, draw, x, y, width, title, legend in PANELS:
        panel = Panel(x, y, width, title, legend)
        rows = fine(report, shape)
        if rows:
            draw(panel, rows)
        else:
            panel.empty(rows_of(report, shape))
        parts.append(panel.svg())
    parts.append(text(28, HEIGHT - 18, "Tokens as the server counts them; times as this client saw them.", "soft"))
    return "\n".join(parts + ["</svg>", ""])


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(picture(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
