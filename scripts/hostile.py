"""Sends a server many hostile requests while a client in good faith reads a stream beside them.

    python3 scripts/hostile.py http://127.0.0.1:8000 --requests 100000

Requests are those of `ci/e2e/recordings`, mutated: fields that are lost, doubled or of another
type, numbers and texts out of any range, bodies that are cut or hold other bytes. Each answer must
be one of a client's error or of success, whole and in time; the server must serve to the end.

Many mutated requests are still valid, and share the engine with the stream as any others would:
it becomes slower then, by as much as there is work. That is no fault, so it is measured apart:
those that were refused are sent again by themselves, and beside them the stream must not become
slower than `--slower` allows. Exits with 1 otherwise. Seeded: the same arguments send the same
requests. Standard library only.
"""

import argparse
import collections
import concurrent.futures
import copy
import glob
import http.client
import json
import os
import random
import sys
import threading
import time
import urllib.parse

PATIENCE_S = 60
PROGRESS_S = 10
# Between two streams, and how many of them are read alone.
PAUSE_S, ALONE = 0.2, 25
RECORDINGS = os.path.join(os.path.dirname(__file__), "../ci/e2e/recordings/*.jsonl")
JUNK = [None, True, False, 0, -1, 1, 0.5, 1e308, -1e308, 2**63, 2**64, -2**63, "", " ", "\0", "0",
        "null", "\ud7ff\U0010ffff", "<|im_end|>", "<think>", "<tool_call>", "{}", "[]", "x" * 5000,
        [], {}, [[]], [None], [{}], {"": ""}, {"type": "x"}, {"$ref": "#"}, [0] * 300]
# Longest reply that a hostile request may ask for: the rest of the queue wants its turn.
TOKENS_MAX = 4
# A longer body is refused before it has been sent, which ends the connection on either side.
BODY_BYTES_MAX = 4 * 1024 * 1024


def recorded():
    seeds = []
    for path in sorted(glob.glob(RECORDINGS)):
        with open(path) as file:
            for line in file:
                request = json.loads(line)["request"]
                if isinstance(request["body"], dict):
                    seeds.append((request["path"], request["body"]))
    return seeds


def places(value):
    """Containers inside `value`, each with one of its keys."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


def mutated(dice, body):
    """The bytes of a body with one to four things wrong."""
    body = json.loads(json.dumps(body))
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if name in body:
            body[name] = dice.randint(1, TOKENS_MAX)
    for _ in range(dice.randint(1, 4)):
        found = list(places(body))
        if not found:
            break
        holder, key = dice.choice(found)
        kind = dice.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.extend(copy.deepcopy([holder[key]] * dice.choice([1, 30, 300])))
        elif kind == 2:
            for _ in range(dice.choice([1, 30, 70])):
                holder[key] = {"a": holder[key]} if dice.random() < 0.5 else [holder[key]]
        else:
            holder[key] = copy.deepcopy(dice.choice(JUNK))
    text = json.dumps(body, ensure_ascii=dice.random() < 0.5).encode("utf-8", "surrogatepass")
    if dice.random() < 0.2:
        at = dice.randrange(len(text))
        cut = [text[:at], text[:at] + text[at + 1:], text[:at] + bytes([dice.randrange(256)])
               + text[at:], text + text, text[at:], text.replace(b":", b"::", 1)]
        text = dice.choice(cut)
    return text[:BODY_BYTES_MAX]


class Attack:
    """What the threads that send share."""

    def __init__(self, address, count, seed, rate=None, without=()):
        self.address, self.left, self.seeds = address, count, recorded()
        # Seconds between two requests, and when the next one is due.
        self.pause, self.due = 1 / rate if rate else 0, time.monotonic()
        self.lock, self.dice = threading.Lock(), random.Random(seed)
        # Numbers of requests that are left out, and of those that were valid.
        self.without, self.valid = without, set()
        self.statuses, self.faults = collections.Counter(), []

    def draw(self):
        with self.lock:
            while self.left > 0 and len(self.faults) <= 20:
                self.left -= 1
                path, body = self.dice.choice(self.seeds)
                body = mutated(self.dice, body)
                if self.left not in self.without:
                    self.due += self.pause
                    return self.left, path, body, self.due
            return None

    def run(self):
        connection = None
        while drawn := self.draw():
            number, path, body, due = drawn
            time.sleep(max(0, due - time.monotonic()))
            status = None
            while status is None:
                # One that was idle for long, while a request was drawn, may be closed by now.
                fresh = connection is None
                try:
                    connection = connection or http.client.HTTPConnection(
                        *self.address, timeout=PATIENCE_S)
                    connection.request("POST", path, body, {"content-type": "application/json"})
                    answer = connection.getresponse()
                    answer.read()
                    status = answer.status
                    if answer.will_close:
                        connection.close()
                        connection = None
                except (OSError, http.client.HTTPException) as error:
                    status, connection = type(error).__name__ if fresh else None, None
            with self.lock:
                self.statuses[status] += 1
                # A full queue hides what a request would get.
                if status in (200, 429):
                    self.valid.add(number)
                if not isinstance(status, int) or status >= 500:
                    self.faults.append((status, path, body[:2000]))


def stream(address):
    """Seconds that one stream of 64 tokens takes, with the time for which a full queue sends it
    away; then a pause."""
    body = {"messages": [{"role": "user", "content": "Tell me more."}], "stream": True,
            "max_tokens": 64, "temperature": 0, "ignore_eos": True}
    begun = time.monotonic()
    while True:
        connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        answer = connection.getresponse()
        text = answer.read()
        # Requests that are wrong in no way that matters fill the queue too.
        if answer.status != 429 or time.monotonic() - begun > PATIENCE_S:
            break
        time.sleep(float(answer.getheader("retry-after")))
    if answer.status != 200 or not text.endswith(b"data: [DONE]\n\n"):
        raise RuntimeError(f"the stream ends with {answer.status}: {text[-300:]}")
    connection.close()
    seconds = time.monotonic() - begun
    time.sleep(PAUSE_S)
    return seconds


def median(times):
    return sorted(times)[len(times) // 2]


def beside(attack, count, name, reader):
    """Sends the attack; returns the median of the seconds that streams take beside it, as
    `reader` reads them."""
    threads = [threading.Thread(target=attack.run) for _ in range(count)]
    begun, times, told = time.monotonic(), [], time.monotonic()
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or not times:
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            print(f"{name}: {attack.left} to go", file=sys.stderr, flush=True)
        times.append(reader.submit(stream, attack.address).result())
    seconds = time.monotonic() - begun
    print(f"{sum(attack.statuses.values())} requests in {seconds:.0f} s, {name}: "
          + ", ".join(f"{status}: {number}" for status, number in attack.statuses.most_common()))
    found = median(times)
    print(f"a stream beside them: {found:.3f} s (slowest of {len(times)}: {max(times):.3f} s)")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("base")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float,
                        help="refused requests a second; as many as there can be without")
    parser.add_argument("--slower", type=float, default=3,
                        help="how much longer a stream may take beside refused requests")
    options = parser.parse_args()
    url = urllib.parse.urlsplit(options.base)
    address = (url.hostname, url.port)
    # A process of its own: threads of this one would wait for each other's turn at the interpreter.
    reader = concurrent.futures.ProcessPoolExecutor(1)
    alone = median([reader.submit(stream, address).result() for _ in range(ALONE)])
    print(f"a stream of 64 tokens: {alone:.3f} s alone")
    every = Attack(address, options.requests, options.seed)
    beside(every, options.threads, "all of them", reader)
    refused = Attack(address, options.requests, options.seed, options.rate, every.valid)
    slower = beside(refused, options.threads, "those that are refused", reader) / alone
    faults = every.faults + refused.faults
    for status, path, body in faults:
        print(f"FAULT {status} {path} {body!r}")
    if faults or slower > options.slower:
        sys.exit(1)


if __name__ == "__main__":
    main()
