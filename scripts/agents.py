"""Agents that take turns on a running server: how much of their prompts is found again, and when the first token comes.

    python3 scripts/agents.py http://127.0.0.1:8000 --agents 32 --tokens 30000 --shared 8000 [--at-once 4] [--rounds 3]

Every agent's prompt begins with the same `--shared` tokens; the rest is its own. In each round all agents ask once, in the
same order, so many of them at once, and by the next round an agent's prompt has grown by the reply and `--grows` tokens.
Prints a line per round: the part of the prompt's tokens that was cached, by the server's own count, and the time to the
first token (median, 95 of 100, longest). With `--least PERCENT` it exits with 1 if a round behind the first has less.

With `--beside FEW` it reads one long reply meanwhile, and tells the gaps between its tokens: beside the first FEW agents, whose
prompts the device's memory keeps, and beside all of them, whose prompts come from the tiers below it and go there. As many turns
of the same prompts are computed either way, so that the difference is the tiers'. It exits with 1 if the 99th of a hundred gaps
is more than `--longer` times as long (1.2).

Prompts are token ids, the same for each seed. Standard library only.
"""

import argparse
import concurrent.futures
import http.client
import json
import random
import sys
import threading
import time
import urllib.parse

IDS = range(100, 3000)  # in the vocabulary of every model, and none of them a control token
REPLY_TOKENS = 8
# Of a reply whose gaps are told, and turns of agents beside it.
LONG_REPLY_TOKENS, TURNS_BESIDE = 400, 300
SECONDS_MAX = 600


def ask(url, prompt, tokens):
    """Events of the reply to a prompt as they come."""
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=SECONDS_MAX)
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"{answer.status}: {answer.read().decode()}")
    yield from (json.loads(line[6:]) for line in answer if line.startswith(b"data: {"))
    connection.close()


class Agent:
    """One that remembers its prompt, with all replies in it."""

    def __init__(self, url, prompt, rng):
        self.url, self.prompt, self.rng = url, prompt, rng

    def ask(self):
        """(cached tokens, prompt tokens, seconds to the first token) of a turn."""
        begun, first, usage = time.monotonic(), None, None
        for event in ask(self.url, self.prompt, REPLY_TOKENS):
            first = first or time.monotonic() - begun
            usage = event.get("usage") or usage
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"], first

    def grow(self, tokens):
        self.prompt = self.prompt + self.rng.choices(IDS, k=REPLY_TOKENS + tokens)


class Reader(threading.Thread):
    """Reads one long reply after the other until it is told to stop."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.url, self.gaps, self.stops = url, [], False

    def run(self):
        while not self.stops:
            last = None
            for event in ask(self.url, [IDS[0], IDS[-1]], LONG_REPLY_TOKENS):
                now = time.monotonic()
                if last is not None and event.get("choices"):
                    self.gaps.append(1000 * (now - last))
                last = now


def turns(crowd, count, at_once):
    """Turns of agents in order; (cached tokens, prompt tokens, seconds to the first token) of each."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(Agent.ask, (crowd[ix % len(crowd)] for ix in range(count))))


def cached(told):
    return 100 * sum(found for found, _, _ in told) / sum(prompt for _, prompt, _ in told)


def beside(crowd, options):
    """Whether a reply's gaps are as long beside all agents as beside a few of them."""
    reader, rare = Reader(crowd[0].url), []
    reader.start()
    print("| beside | cached | gaps p50 | p99 | longest |\n|---|---|---|---|---|")
    for few in (crowd[:options.beside], crowd):
        turns(few, 2 * len(few), options.at_once)
        begun = len(reader.gaps)
        told = turns(few, max(TURNS_BESIDE, len(few)), options.at_once)
        gaps = sorted(reader.gaps[begun:])
        rare.append(gaps[len(gaps) * 99 // 100])
        print(f"| {len(few)} agents | {cached(told):.1f} % | {gaps[len(gaps) // 2]:.2f} ms | {rare[-1]:.2f} ms "
              f"| {gaps[-1]:.2f} ms |", flush=True)
    reader.stops = True
    print(f"p99 is {rare[1] / rare[0]:.2f} times as long")
    return rare[1] <= options.longer * rare[0]


def agents(options):
    url = urllib.parse.urlparse(options.url)
    shared = random.Random(options.seed).choices(IDS, k=options.shared)
    for ix in range(options.agents):
        rng = random.Random(f"{options.seed} {ix}")
        yield Agent(url, shared + rng.choices(IDS, k=options.tokens - options.shared), rng)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    for name, default in [("agents", 32), ("tokens", 30_000), ("shared", 8_000), ("at-once", 4), ("rounds", 3), ("grows", 64), ("seed", 1)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--least", type=float, default=0, help="percent of the tokens that must be cached behind the first round")
    parser.add_argument("--beside", type=int, help="agents whose prompts the device's memory keeps")
    parser.add_argument("--longer", type=float, default=1.2)
    options = parser.parse_args()
    crowd, fine = list(agents(options)), True
    if options.beside:
        sys.exit(0 if beside(crowd, options) else 1)
    print(f"{options.agents} agents of {options.tokens} tokens, {options.shared} of them shared, {options.at_once} at once")
    print("| round | cached | first token p50 | p95 | longest | round took |\n|---|---|---|---|---|---|")
    for turn in range(1, options.rounds + 1):
        begun = time.monotonic()
        told = turns(crowd, len(crowd), options.at_once)
        took = time.monotonic() - begun
        part = cached(told)
        firsts = sorted(first for _, _, first in told)
        p50, p95 = firsts[len(firsts) // 2], firsts[min(len(firsts) * 95 // 100, len(firsts) - 1)]
        print(f"| {turn} | {part:.1f} % | {p50:.3f} s | {p95:.3f} s | {firsts[-1]:.3f} s | {took:.1f} s |", flush=True)
        fine = fine and (turn == 1 or part >= options.least)
        for agent in crowd:
            agent.grow(options.grows)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
