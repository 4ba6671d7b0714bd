"""Agents that take turns on a running server: how much of their prompts is found again, and when the first token comes.

    python3 scripts/agents.py http://127.0.0.1:8000 --agents 32 --tokens 30000 --shared 8000 [--at-once 4] [--rounds 3]

Every agent's prompt begins with the same `--shared` tokens; the rest is its own. In each round all agents ask once, in the
same order, so many of them at once, and by the next round an agent's prompt has grown by the reply and `--grows` tokens.
Prints a line per round: the part of the prompt's tokens that was cached, by the server's own count, and the time to the
first token (median, 95 of 100, longest). With `--least PERCENT` it exits with 1 if a round behind the first has less.
Prompts are token ids, the same for each seed. Standard library only.
"""

import argparse
import concurrent.futures
import http.client
import json
import random
import sys
import time
import urllib.parse

IDS = range(100, 3000)  # in the vocabulary of every model, and none of them a control token
REPLY_TOKENS = 8
SECONDS_MAX = 600


class Agent:
    """One that remembers its prompt, with all replies in it."""

    def __init__(self, url, prompt, rng):
        self.url, self.prompt, self.rng = url, prompt, rng

    def ask(self):
        """(cached tokens, prompt tokens, seconds to the first token) of a turn."""
        body = {"prompt": self.prompt, "max_tokens": REPLY_TOKENS, "ignore_eos": True, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=SECONDS_MAX)
        begun, first, usage = time.monotonic(), None, None
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{answer.status}: {answer.read().decode()}")
        for line in answer:
            if line.startswith(b"data: {"):
                first = first or time.monotonic() - begun
                usage = json.loads(line[6:]).get("usage") or usage
        connection.close()
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"], first

    def grow(self, tokens):
        self.prompt = self.prompt + self.rng.choices(IDS, k=REPLY_TOKENS + tokens)


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
    options = parser.parse_args()
    crowd, fine = list(agents(options)), True
    print(f"{options.agents} agents of {options.tokens} tokens, {options.shared} of them shared, {options.at_once} at once")
    print("| round | cached | first token p50 | p95 | longest | round took |\n|---|---|---|---|---|---|")
    for turn in range(1, options.rounds + 1):
        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
            told = list(pool.map(Agent.ask, crowd))
        took = time.monotonic() - begun
        part = 100 * sum(cached for cached, _, _ in told) / sum(prompt for _, prompt, _ in told)
        firsts = sorted(first for _, _, first in told)
        p50, p95 = firsts[len(firsts) // 2], firsts[min(len(firsts) * 95 // 100, len(firsts) - 1)]
        print(f"| {turn} | {part:.1f} % | {p50:.3f} s | {p95:.3f} s | {firsts[-1]:.3f} s | {took:.1f} s |", flush=True)
        fine = fine and (turn == 1 or part >= options.least)
        for agent in crowd:
            agent.grow(options.grows)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
