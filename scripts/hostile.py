"""Sends a server many hostile requests while a client in good faith reads a stream beside them.

    python3 scripts/hostile.py http://127.0.0.1:8000 --requests 100000 [--paced]

Requests are those of `ci/e2e/recordings`, mutated: fields that are lost, doubled or of another
type, numbers and texts out of any range, bodies that are cut or hold other bytes. One of four is
written by hand, with another method, path, header, framing, or end, and one of fifty is dear to
read: texts of letters with combining marks, grammars that are long chains of rules, schemas of
hundreds of properties. Each answer must be one of a
client's error or of success, whole and in time; the server must serve to the end.

Many mutated requests are still valid, and share the engine with the stream as any others would:
it becomes slower then, by as much as there is work. That is no fault, so it is measured apart:
those that were refused are sent again by themselves, and beside them the stream must not become
slower than `--slower` allows. A model that the CPU computes shares the cores with senders and
server all the same. Where it is another device's, as the example `scripted` plays it, steps keep
their pace, and `--paced` allows nothing to become slower: of a hundred gaps between the events of
a stream all but one are at most twice as long as alone, and none is longer than half a second.
Exits with 1 otherwise. Seeded: the same
arguments send the same requests. Standard library only.
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
import re
import socket
import struct
import sys
import threading
import time
import urllib.parse

import hostile_raw

PATIENCE_S = 60
PROGRESS_S = 10
# Between two streams, and how many of them are read alone.
PAUSE_S, ALONE = 0.2, 25
# Of a stream, and how long to wait where the queue is full.
TOKENS, RETRY_S = 64, 1
# Of one read: an event is shorter.
PIECE_BYTES = 64 * 1024
# How much longer a stream may take.
SLOWER, SLOWER_PACED = 3, 1.1
# How much longer a gap may be, but for one of a hundred, and the longest, in milliseconds.
GAP_SLOWER, GAP_MAX_MS = 2, 500
# Linux's option that tells when bytes came, which Python has no name for, and what it tells.
SO_TIMESTAMPNS, TIME = 35, struct.Struct("@ll")
RECORDINGS = os.path.join(os.path.dirname(__file__), "../ci/e2e/recordings/*.jsonl")
JUNK = [None, True, False, 0, -1, 1, 0.5, 1e308, -1e308, 2**63, 2**64, -2**63, "", " ", "\0", "0",
        "null", "\ud7ff\U0010ffff", "<|im_end|>", "<think>", "<tool_call>", "{}", "[]", "x" * 5000,
        [], {}, [[]], [None], [{}], {"": ""}, {"type": "x"}, {"$ref": "#"}, [0] * 300]
# Longest reply that a hostile request may ask for: the rest of the queue wants its turn.
TOKENS_MAX = 4
# The field that says so where a request may leave it out: a reply under a grammar may have no end.
LIMITS = {"/v1/chat/completions": "max_completion_tokens", "/v1/completions": "max_tokens",
          "/v1/responses": "max_output_tokens"}
# A longer body is refused before it has been sent, which ends the connection on either side.
BODY_BYTES_MAX = 4 * 1024 * 1024
# Of requests, those whose head and framing are hostile too.
RAW = 0.25
# Of the others, those that are dear to read.
DEAR = 0.02
# But for those that announce another one.
STATUS = re.compile(rb"^HTTP/1\.1 ([2-9]\d{2}) ", re.MULTILINE)
# What a request gets that asks for another version of HTTP.
OTHER_VERSION = 505


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


def is_unlimited(path, text):
    """Whether a body that is valid JSON has no limit where it may have one."""
    try:
        return path in LIMITS and LIMITS[path] not in json.loads(text)
    except (ValueError, TypeError):
        return False


def mutated(dice, path, body):
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
    if path in LIMITS and body.get(LIMITS[path]) in (None, -1):
        body[LIMITS[path]] = TOKENS_MAX
    text = json.dumps(body, ensure_ascii=dice.random() < 0.5).encode("utf-8", "surrogatepass")
    if dice.random() < 0.2:
        at = dice.randrange(len(text))
        cut = [text[:at], text[:at] + text[at + 1:], text[:at] + bytes([dice.randrange(256)])
               + text[at:], text + text, text[at:], text.replace(b":", b"::", 1)]
        cut = dice.choice(cut)
        text = text if is_unlimited(path, cut) else cut
    return text[:BODY_BYTES_MAX]


def dear(dice):
    """A path, and the bytes of a body that takes long to read."""
    count = dice.choice([300, 1000, 4000])
    kind = dice.randrange(4)
    if kind == 0:
        marks = "".join(chr(0x300 + dice.randrange(0x70)) for _ in range(dice.randint(1, 40)))
        text = "".join(dice.choice("aeinou") + marks for _ in range(count))
        return "/tokenize", json.dumps({"prompt": text}).encode()
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": TOKENS_MAX}
    if kind == 1:
        rules = ["root ::= r0", *(f"r{at} ::= r{at + 1}" for at in range(count)), f'r{count} ::= "x"']
        body["structured_outputs"] = {"grammar": "\n".join(rules)}
    elif kind == 2:
        properties = {f"p{at}": {"type": "integer"} for at in range(count // 8)}
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        body["response_format"] = {"type": "json_schema",
                                   "json_schema": {"name": "s", "strict": True, "schema": schema}}
    else:
        body["messages"][0]["content"] = "a\u0301\u0323" * count
    return "/v1/chat/completions", json.dumps(body).encode()


def answers(address, request):
    """The statuses that answer bytes, behind which the client ends its side; none where they are no
    whole request, or where the server refused before it had read all of them."""
    with socket.create_connection(address, PATIENCE_S) as connection:
        text = b""
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(PIECE_BYTES):
                text += piece
        except TimeoutError:
            raise
        except OSError:
            # The server closed the connection.
            pass
    return [int(status) for status in STATUS.findall(text)]


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
                body = mutated(self.dice, path, body)
                if self.dice.random() < DEAR:
                    path, body = dear(self.dice)
                elif self.dice.random() < RAW:
                    path, body = None, hostile_raw.request(self.dice, path, body)
                if self.left not in self.without:
                    self.due += self.pause
                    return self.left, path, body, self.due
            return None

    def run(self):
        connection = None
        while drawn := self.draw():
            number, path, body, due = drawn
            time.sleep(max(0, due - time.monotonic()))
            if path is None:
                self.send_raw(number, body)
                continue
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
            self.note(number, [status], path, body)

    def send_raw(self, number, request):
        try:
            statuses = answers(self.address, request) or ["no answer"]
        except OSError as error:
            statuses = [type(error).__name__]
        self.note(number, statuses, None, request)

    def note(self, number, statuses, path, sent):
        """Counts the answers to a request: one, or those to bytes that hold several."""
        allowed = ("no answer", OTHER_VERSION) if path is None else ()
        with self.lock:
            for status in statuses:
                self.statuses[status] += 1
                # A full queue hides what a request would get.
                if status in (200, 429):
                    self.valid.add(number)
                if status not in allowed and (not isinstance(status, int) or status >= 500):
                    self.faults.append((status, path, sent[:2000]))
                    print(f"FAULT {status} {path} {sent[:2000]!r}", flush=True)


def arrivals(address, request):
    """Sends a request for the connection's only answer; the bytes of it, and when each piece of
    them came. The kernel tells that: when this process gets its turn is not the server's to say."""
    text, times = b"", []
    with socket.create_connection(address, PATIENCE_S) as connection:
        connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        connection.sendall(request)
        while True:
            piece, told, _, _ = connection.recvmsg(PIECE_BYTES, socket.CMSG_SPACE(TIME.size))
            if not piece:
                return text, times
            text += piece
            # It begins a moment after it is asked to.
            seconds, nanoseconds = TIME.unpack(told[0][2]) if told else (time.time(), 0)
            times.append(seconds + nanoseconds / 1e9)


def stream(address):
    """Seconds that one stream of TOKENS takes, with the time for which a full queue sends it away,
    and those between its events; then a pause."""
    body = json.dumps({
        "messages": [{"role": "user", "content": "Tell me more."}], "stream": True,
        "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True})
    request = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
               f"content-length: {len(body)}\r\n\r\n{body}").encode()
    begun = time.time()
    while True:
        text, times = arrivals(address, request)
        status = int(text.split(b" ", 2)[1])
        # Requests that are wrong in no way that matters fill the queue too.
        if status != 429 or time.time() - begun > PATIENCE_S:
            break
        time.sleep(RETRY_S)
    if status != 200 or b"data: [DONE]\n\n" not in text:
        raise RuntimeError(f"the stream ends with {status}: {text[-300:]}")
    time.sleep(PAUSE_S)
    return times[-1] - begun, [late - early for early, late in zip(times, times[1:])]


def median(times):
    return sorted(times)[len(times) // 2]


def told(streams):
    """The median of the seconds that streams took, the longest gap but for one of a hundred and the
    longest of all, and words about them."""
    seconds = [took for took, _ in streams]
    gaps = sorted(gap * 1000 for _, gaps in streams for gap in gaps)
    found, rare = median(seconds), gaps[len(gaps) * 99 // 100]
    return (found, rare, gaps[-1]), (f"{found:.3f} s (slowest of {len(streams)}: {max(seconds):.3f} s), "
                   f"{median(gaps):.1f} ms between its events "
                   f"(one of a hundred {rare:.1f}, one {gaps[-1]:.1f})")


def beside(attack, count, name, reader):
    """Sends the attack; returns the times of streams beside it, as `told` does, which `reader`
    reads."""
    threads = [threading.Thread(target=attack.run) for _ in range(count)]
    begun, streams, progress = time.monotonic(), [], time.monotonic()
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or not streams:
        if time.monotonic() - progress > PROGRESS_S:
            progress = time.monotonic()
            print(f"{name}: {attack.left} to go", file=sys.stderr, flush=True)
        streams.append(reader.submit(stream, attack.address).result())
    seconds = time.monotonic() - begun
    print(f"{sum(attack.statuses.values())} requests in {seconds:.0f} s, {name}: "
          + ", ".join(f"{status}: {number}" for status, number in attack.statuses.most_common()))
    found, words = told(streams)
    print(f"a stream beside them: {words}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("base")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float,
                        help="refused requests a second; as many as there can be without")
    parser.add_argument("--paced", action="store_true",
                        help="steps of the model take the same time whatever is in them: no "
                             "request at all may slow the stream")
    parser.add_argument("--slower", type=float,
                        help=f"how much longer a stream may take (default {SLOWER:g} beside "
                             f"refused requests, {SLOWER_PACED:g} beside all with --paced)")
    options = parser.parse_args()
    allowed = options.slower or (SLOWER_PACED if options.paced else SLOWER)
    url = urllib.parse.urlsplit(options.base)
    address = (url.hostname, url.port)
    # A process of its own: threads of this one would wait for each other's turn at the interpreter.
    reader = concurrent.futures.ProcessPoolExecutor(1)
    alone, words = told([reader.submit(stream, address).result() for _ in range(ALONE)])
    print(f"a stream of {TOKENS} tokens alone: {words}")
    every = Attack(address, options.requests, options.seed)
    times = [beside(every, options.threads, "all of them", reader)]
    refused = Attack(address, options.requests, options.seed, options.rate, every.valid)
    times.append(beside(refused, options.threads, "those that are refused", reader))
    reader.shutdown()
    slower, slower_refused = (found / alone[0] for found, _, _ in times)
    rare, longest = (max(values) for values in list(zip(*times))[1:])
    print(f"{slower:.2f} and {slower_refused:.2f} times as long as alone")
    judged = max(slower, slower_refused) if options.paced else slower_refused
    faults = every.faults + refused.faults
    uneven = rare > GAP_SLOWER * alone[1] or longest > GAP_MAX_MS
    if faults or judged > allowed or (options.paced and uneven):
        sys.exit(1)


if __name__ == "__main__":
    main()
