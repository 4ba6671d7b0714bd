"""What a client in good faith gets beside a crowd, and beside prompts that cannot fit.

    python3 scripts/crowd.py http://127.0.0.1:8000 [--keys CROWD POLITE] [--factor 10]
    python3 scripts/crowd.py http://127.0.0.1:8000 --fresh --kept 64 --batches 2
    python3 scripts/crowd.py http://127.0.0.1:8000 --memory 16 --pid PID
    python3 scripts/crowd.py http://127.0.0.1:8000 --large 16 --pid $(pidof atlas-cpu-tiny-nvfp4)

First the time to the first token of a client that asks one thing after the other of a quiet server,
and how many requests a second twenty clients get answered. Then requests come at `--factor` times
that rate, whether they are answered or not, each over a connection of its own, and the client asks
beside them, by a key or a connection of its own. It must be admitted 95 times of 100, and its first
token, at the median, come within three times that of the quiet server. With `--kept N` the crowd
has so many connections that it keeps, with `--batches N` there are so many requests beside it that
want eight long replies each, again and again, and with `--fresh` the client opens a connection for
each request: then it must be admitted 80 times of 100, and its first token come within five times.

With `--memory MINUTES` a mixture of all that comes at a rate that the server answers, and the
memory of `--pid` may grow by no more than 1 MiB an hour behind the first five minutes: the slope of
a line through what it is each second.

With `--large N`, that many clients send chats of 7.9 MB in a loop instead, and of those that ask one
token beside them 99 of 100 must have it within 100 ms. With `--pid` of the server its memory must be
what it was within 10 s behind that, but for `--left` MiB.

Exits with 1 otherwise. Senders share the cores with a server on the same machine. Standard library
only.
"""

import argparse
import asyncio
import json
import random
import sys
import time
import urllib.parse

# Requests of the crowd: tokens of prompts and replies, and how many of them a client leaves.
PROMPTS, REPLIES, LEAVING = [3, 10, 30, 60, 128, 400, 900], [5, 10, 30, 60, 100, 200], 0.2
WORKERS = 20
# Between two requests of the client in good faith, and after one that was turned away.
PAUSE_S, RETRY_S = 0.3, 0.2
ADMITTED, SLOWER, SMALL_S, BACK_S = 0.95, 3, 0.1, 10
ADMITTED_FRESH, SLOWER_FRESH = 0.8, 5
# Replies of a batch, and tokens of each.
BATCH, BATCH_TOKENS = 8, 1900
# Of mixed traffic: requests a second, time until memory has settled, growth that is none.
MIXED_RATE, SETTLED_S, GROWTH_MIB, TEXTS = 8, 300, 1, 64
LARGE_BYTES = 7_900_000
PATIENCE_S = 120


class Client:
    """One connection after the other to a server, each as long as it lasts."""

    def __init__(self, url, key=None):
        self.host, self.port = url.hostname, url.port or 80
        self.key, self.streams = key, None

    def leave(self):
        if self.streams:
            self.streams[1].close()
        self.streams = None

    async def ask(self, path, body, leaves=False):
        """Status, seconds to the first event or byte of the body and to its last; leaves before."""
        begun = time.monotonic()
        if self.streams is None:
            self.streams = await asyncio.open_connection(self.host, self.port, limit=1 << 24)
        reader, writer = self.streams
        key = f"x-api-key: {self.key}\r\n" if self.key else ""
        head = f"POST {path} HTTP/1.1\r\nhost: {self.host}\r\n{key}content-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").lower()
        status = int(head.split(" ")[1])
        first = await self.body(reader, head, leaves)
        if leaves or "connection: close" in head:
            self.leave()
        return status, first - begun, time.monotonic() - begun

    async def body(self, reader, head, leaves):
        if "transfer-encoding: chunked" not in head:
            length = int(head.split("content-length: ")[1].split("\r\n")[0])
            await reader.readexactly(length)
            return time.monotonic()
        first = None
        while True:
            size = int(await reader.readuntil(b"\r\n"), 16)
            piece = await reader.readexactly(size + 2)
            # Comments tell that a request waits.
            if first is None and (b"data: " in piece or size == 0):
                first = time.monotonic()
            if size == 0 or (first and leaves):
                return first


def completion(tokens, most, stream=True, **more):
    return json.dumps({"prompt": tokens, "max_tokens": most, "ignore_eos": True, "temperature": 0,
                       "stream": stream, **more}).encode()


def of_crowd(dice):
    prompt = [dice.randrange(10, 3000) for _ in range(dice.choice(PROMPTS))]
    return completion(prompt, dice.choice(REPLIES))


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def ms(values):
    return f"p50 {percentile(values, .5) * 1e3:.1f} p99 {percentile(values, .99) * 1e3:.1f} ms"


async def polite(url, key, until, fresh=False):
    """Statuses and seconds to first tokens of one request after the other."""
    client, statuses, firsts = Client(url, key), [], []
    while time.monotonic() < until:
        body = completion("Hello there", 20)
        status, first, _ = await asyncio.wait_for(client.ask("/v1/completions", body), PATIENCE_S)
        statuses.append(status)
        if status == 200:
            firsts.append(first)
        if fresh:
            client.leave()
        await asyncio.sleep(PAUSE_S if status == 200 else RETRY_S)
    return statuses, firsts


async def capacity(url, key, seconds, dice):
    """Answered requests a second of clients that wait for their answers."""
    done, until = 0, time.monotonic() + seconds

    async def worker():
        nonlocal done
        client = Client(url, key)
        while time.monotonic() < until:
            status, _, _ = await client.ask("/v1/completions", of_crowd(dice))
            done += status == 200
        client.leave()

    await asyncio.gather(*[worker() for _ in range(WORKERS)])
    return done / seconds


async def batches(url, key, count, until):
    """Requests for several long replies each, over connections that last."""
    async def one():
        client = Client(url, key)
        while time.monotonic() < until:
            answer = client.ask("/v1/completions", completion("Go on.", BATCH_TOKENS, n=BATCH))
            try:
                await asyncio.wait_for(answer, until - time.monotonic())
            except (asyncio.TimeoutError, asyncio.IncompleteReadError):
                client.leave()
    await asyncio.gather(*[one() for _ in range(count)])


async def returning(url, key, count):
    """Connections that have brought a request."""
    clients = [Client(url, key) for _ in range(count)]
    await asyncio.gather(*[client.ask("/v1/completions", completion("hi", 1)) for client in clients])
    return clients


async def crowd(url, key, rate, until, dice, kept=()):
    """Requests at a rate; how many were answered, and the seconds to each refusal. Where connections
    are kept none comes beyond those that are free."""
    done, left, refused, failed, open_ = 0, 0, [], 0, set()
    idle = list(kept)

    async def one(leaves):
        nonlocal done, left, failed
        client = idle.pop(0) if kept else Client(url, key)
        try:
            answer = client.ask("/v1/completions", of_crowd(dice), leaves)
            status, _, whole = await asyncio.wait_for(answer, PATIENCE_S)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            failed += 1
            return
        finally:
            if kept:
                idle.append(client)
            else:
                client.leave()
        if status == 429:
            refused.append(whole)
        elif leaves:
            left += 1
        else:
            done += status == 200

    due = time.monotonic()
    while due < until:
        due += dice.expovariate(rate)
        await asyncio.sleep(max(0, due - time.monotonic()))
        if kept and not idle:
            continue
        task = asyncio.ensure_future(one(not kept and dice.random() < LEAVING))
        open_.add(task)
        task.add_done_callback(open_.discard)
    await asyncio.gather(*open_)
    return done, left, refused, failed


async def beside_a_crowd(url, options):
    dice, (crowds, own) = random.Random(5), options.keys or (None, None)
    _, quiet = await polite(url, own, time.monotonic() + options.seconds)
    rate = await capacity(url, crowds, options.seconds, dice)
    print(f"quiet: first token {ms(quiet)}; capacity {rate:.1f} requests a second", flush=True)
    kept = await returning(url, crowds, options.kept)
    until = time.monotonic() + options.seconds
    flood = crowd(url, crowds, rate * options.factor, until, dice, kept)
    flood = asyncio.ensure_future(flood)
    long = asyncio.ensure_future(batches(url, crowds, options.batches, until))
    statuses, firsts = await polite(url, own, until, options.fresh)
    done, left, refused, failed = await flood
    await long
    admitted = statuses.count(200) / len(statuses)
    slower = percentile(firsts, .5) / percentile(quiet, .5)
    print(f"crowd: {done / options.seconds:.1f} answered a second, {left} left, {len(refused)} "
          f"refused ({ms(refused)}), {failed} failed")
    print(f"beside it: {admitted:.1%} of {len(statuses)} admitted, first token {ms(firsts)}, "
          f"{slower:.2f} times as long")
    if options.fresh:
        return admitted >= ADMITTED_FRESH and slower <= SLOWER_FRESH
    return admitted >= ADMITTED and slower <= SLOWER


def slope(points):
    """Of the line that is nearest to points."""
    count = len(points)
    across, up = (sum(values) / count for values in zip(*points))
    spread = sum((x - across) ** 2 for x, _ in points)
    return sum((x - across) * (y - up) for x, y in points) / spread


async def memory(url, options):
    """Requests of many kinds, at a rate that is answered, and the memory beside them."""
    begun, dice, found, statuses = time.monotonic(), random.Random(5), [], {}
    until, open_ = begun + options.memory * 60, set()
    kinds = [("/v1/completions", lambda: of_crowd(dice)),
             ("/v1/chat/completions", lambda: chat(dice)),
             ("/v1/messages", lambda: chat(dice)), ("/v1/responses", lambda: response(dice)),
             ("/tokenize", lambda: completion("a \u0301" * dice.choice(PROMPTS), 1)),
             ("/v1/chat/completions", lambda: completion("no messages", 1))]

    async def one(path, body):
        client = Client(url)
        try:
            answer = client.ask(path, body, leaves=dice.random() < LEAVING)
            status, _, _ = await asyncio.wait_for(answer, PATIENCE_S)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
            status = type(error).__name__
        client.leave()
        statuses[status] = statuses.get(status, 0) + 1

    due = told = begun
    while due < until:
        due += dice.expovariate(MIXED_RATE)
        await asyncio.sleep(max(0, due - time.monotonic()))
        path, body = dice.choice(kinds)
        task = asyncio.ensure_future(one(path, body()))
        open_.add(task)
        task.add_done_callback(open_.discard)
        if time.monotonic() - told >= 1:
            told = time.monotonic()
            found.append((told - begun, resident(options.pid)))
    await asyncio.gather(*open_)
    settled = [point for point in found if point[0] >= min(SETTLED_S, options.memory * 20)]
    growth = slope(settled) * 3600
    for at in range(0, len(found), max(1, len(found) // 16)):
        print(f"{found[at][0]:6.0f} s {found[at][1]:8.2f} MiB")
    print(f"{statuses}; {settled[0][1]:.2f} to {settled[-1][1]:.2f} MiB, {growth:.2f} MiB an hour")
    return growth <= GROWTH_MIB


def words(dice):
    """One of a few texts: the server remembers what was encoded, up to a bound that takes hours."""
    dice = random.Random(dice.randrange(TEXTS))
    return " ".join(dice.choice(["one", "two", "\u00e9", "of", "colour"])
                    for _ in range(dice.randrange(1, 200)))


def chat(dice):
    stream = dice.random() < 0.5
    more = dice.choice([{}, {"stop": ["x"]}, {"temperature": 1}, {"seed": dice.randrange(99)}])
    return json.dumps({"messages": [{"role": "user", "content": words(dice)}], "stream": stream,
                       "max_tokens": dice.choice(REPLIES), **more}).encode()


def response(dice):
    # Those that are stored grow until there are as many as may be.
    return json.dumps({"input": words(dice), "max_output_tokens": dice.choice(REPLIES), "store": False,
                       "stream": dice.random() < 0.5}).encode()


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


async def beside_large_prompts(url, options):
    before = resident(options.pid) if options.pid else 0
    text = ("the quick brown fox " * LARGE_BYTES)[:LARGE_BYTES]
    large = json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 1}).encode()
    until, statuses, small, peak = time.monotonic() + options.seconds, {}, [], before

    async def sender():
        while time.monotonic() < until:
            client = Client(url)
            try:
                status, _, _ = await client.ask("/v1/chat/completions", large)
            except (OSError, asyncio.IncompleteReadError):
                status = "closed"
            statuses[status] = statuses.get(status, 0) + 1
            client.leave()

    senders = [asyncio.ensure_future(sender()) for _ in range(options.large)]
    client = Client(url)
    while time.monotonic() < until:
        await asyncio.sleep(.02)
        status, _, whole = await client.ask("/v1/completions", completion("hi", 1, stream=False))
        small.append(whole if status == 200 else float("inf"))
        peak = max(peak, resident(options.pid) if options.pid else 0)
    await asyncio.gather(*senders)
    print(f"large: {statuses}; small beside them: {len(small)}, {ms(small)}")
    fast = percentile(small, .99) <= SMALL_S
    if not options.pid:
        return fast
    for _ in range(BACK_S * 10):
        if resident(options.pid) <= before + options.left:
            break
        await asyncio.sleep(.1)
    after = resident(options.pid)
    print(f"memory: {before:.0f} MiB, at most {peak:.0f}, then {after:.0f}")
    return fast and after <= before + options.left


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", type=urllib.parse.urlsplit)
    parser.add_argument("--keys", nargs=2, metavar=("CROWD", "POLITE"))
    parser.add_argument("--factor", type=float, default=10)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--kept", type=int, default=0)
    parser.add_argument("--batches", type=int, default=0)
    parser.add_argument("--memory", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--large", type=int, default=0)
    parser.add_argument("--pid", type=int)
    parser.add_argument("--left", type=float, default=32)
    options = parser.parse_args()
    trial = beside_large_prompts if options.large else memory if options.memory else beside_a_crowd
    sys.exit(0 if asyncio.run(trial(options.url, options)) else 1)


if __name__ == "__main__":
    main()
