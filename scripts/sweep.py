"""Measures a running server over its OpenAI API: one stream, up to 64, long prompts, a prompt that
comes twice, and the growing conversation of an agent.

    python3 scripts/sweep.py http://127.0.0.1:8000 --out results      # some minutes
    python3 scripts/sweep.py http://127.0.0.1:8000 --out results --short --shapes single,warm
    python3 scripts/sweep.py http://127.0.0.1:8000 --peers            # the same of other programs

Any server that streams chat completions can be asked: Atlas, vLLM, SGLang, llama.cpp, TensorRT-LLM.
Writes sweep.json, sweep.md and sweep.svg. Tokens are those that the server counts in `usage`, never
pieces of a stream; a server without it is not measured. Times are of this client, which says so
where it was too busy to be trusted. A request that fails is told and counted, and is in no figure.
Exits with 1 if any failed, 2 if the server cannot be asked. Standard library only.
"""

import argparse
import datetime
import http.client
import itertools
import json
import os
import platform
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

import sweep_report

FORMAT = 1
TIMEOUT_S = 900
# Streams at once, tokens of long prompts, turns of an agent's session.
STREAMS = [1, 2, 4, 8, 16, 32, 64]
LONG = [1024, 4096, 8192, 16384, 32768, 65536, 131072]
TURNS = 8
# What a tool returns in a turn, and what the agent says then, in tokens.
TOOL_TOKENS, SAID_TOKENS = 600, 96
SYSTEM_TOKENS = 1500
WORDS = ("the time of day is a good name for one long line in this new book and it was made by hand "
         "so that all of us can read what they wrote").split()
# The reply of a long prompt, and tokens that are left free after it.
LONG_REPLY, ROOM = 32, 64
# This client's own share of a core above which its times are its own affair.
BUSY = 0.8
SHAPES = ["single", "streams", "long", "warm", "agent"]


class Refused(Exception):
    """The server cannot be asked at all."""


class Reply:
    """What one request got, and when: seconds since it was sent."""

    def __init__(self):
        self.first = self.last = None
        self.gaps, self.events, self.text = [], 0, ""
        self.prompt = self.completion = self.cached = None
        self.error = None

    def event(self, now):
        if self.first is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last, self.events = now, self.events + 1

    def take(self, data, now):
        if data.get("error"):
            raise OSError(f"the stream ended with an error: {data['error']}")
        if usage := data.get("usage"):
            self.prompt, self.completion = usage["prompt_tokens"], usage["completion_tokens"]
            details = usage.get("prompt_tokens_details") or {}
            self.cached = details.get("cached_tokens")
        for choice in data.get("choices") or []:
            delta = choice.get("delta") or {}
            said = [value for name, value in delta.items() if name != "role" and value]
            if said:
                self.event(now)
                self.text += delta.get("content") or ""


class Client:
    """Requests to one server."""

    def __init__(self, url, key, model):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Refused(f"{url}: give a URL such as http://127.0.0.1:8000")
        base = parts.path.rstrip("/")
        self.url, self.parts = url, parts
        self.base = base if base.endswith("/v1") else base + "/v1"
        self.headers = {"content-type": "application/json"}
        if key:
            self.headers["authorization"] = f"Bearer {key}"
        self.model, self.context = model, None
        self.exact = True
        self.per_word, self.frame = 1.0, 0.0
        self.number = itertools.count(time.time_ns() % 1_000_000)

    def connect(self):
        if self.parts.scheme == "https":
            return http.client.HTTPSConnection(self.parts.netloc, timeout=TIMEOUT_S,
                                               context=ssl.create_default_context())
        return http.client.HTTPConnection(self.parts.netloc, timeout=TIMEOUT_S)

    def find_model(self):
        """Takes the first model that the server lists, and its context where that is told."""
        connection = self.connect()
        try:
            connection.request("GET", f"{self.base}/models", headers=self.headers)
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                raise Refused(f"{self.url}: /models answers {response.status}: {text[:200]!r}")
            listed = json.loads(text)["data"]
        except (OSError, ValueError, KeyError, http.client.HTTPException) as why:
            raise Refused(f"{self.url}: {why}; is the server started?") from why
        finally:
            connection.close()
        named = [entry for entry in listed if self.model in (None, entry["id"])]
        if not named:
            names = ", ".join(entry["id"] for entry in listed)
            raise Refused(f"--model {self.model}: the server has {names}")
        self.model = named[0]["id"]
        meta = named[0].get("meta") or {}
        self.context = named[0].get("max_model_len") or meta.get("n_ctx_train")

    def version(self):
        """Target and version that the server tells; None where it tells none."""
        connection = self.connect()
        try:
            connection.request("GET", self.base.removesuffix("/v1") + "/version", headers=self.headers)
            told = json.loads(connection.getresponse().read())
            return " ".join(told[name] for name in ("target", "version") if name in told) or None
        except (OSError, ValueError, TypeError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def machine(self):
        """Card with its clocks, or the processor, of a server on this machine; None of another."""
        if self.parts.hostname not in ("localhost", "127.0.0.1", "::1"):
            return None
        asked = ["nvidia-smi", "--query-gpu=name,clocks.sm,clocks.max.sm", "--format=csv,noheader", "--id=0"]
        try:
            name, clock, most = subprocess.run(asked, capture_output=True, text=True,
                                               check=True).stdout.strip().split(", ")
            return f"{name}, {clock} of {most}"
        except (OSError, ValueError, subprocess.SubprocessError):
            return f"{os.cpu_count()} processor cores ({platform.machine()})"

    def ask(self, messages, tokens):
        """One streamed reply; never raises for what a server does."""
        reply = Reply()
        body = {"model": self.model, "messages": messages, "max_tokens": tokens, "temperature": 0,
                "stream": True, "stream_options": {"include_usage": True}}
        if self.exact:
            body["ignore_eos"] = True
        connection = self.connect()
        try:
            sent = time.perf_counter()
            connection.request("POST", f"{self.base}/chat/completions", json.dumps(body),
                               self.headers)
            response = connection.getresponse()
            if response.status != 200:
                raise OSError(f"{response.status}: {response.read(300).decode(errors='replace')}")
            self.read(response, reply, sent)
        except (OSError, ValueError, KeyError, http.client.HTTPException) as why:
            reply.error = f"{type(why).__name__}: {why}"
        finally:
            connection.close()
        return reply

    @staticmethod
    def read(response, reply, sent):
        done = False
        for line in response:
            now = time.perf_counter() - sent
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                done = True
                break
            reply.take(json.loads(data), now)
        if not done:
            raise OSError("the stream ended before its end")
        if reply.completion is None:
            raise OSError("the server told no usage; its tokens cannot be counted")
        if reply.first is None:
            raise OSError("the reply is empty")

    def calibrate(self):
        """Learns how many tokens a word and the frame of a conversation have."""
        first = self.ask([user(self.text_of_words(50))], 1)
        if first.error and "ignore_eos" in first.error:
            self.exact = False
            first = self.ask([user(self.text_of_words(50))], 1)
        second = self.ask([user(self.text_of_words(250))], 1)
        for reply in (first, second):
            if reply.error:
                raise Refused(f"{self.url}: {reply.error}")
        self.per_word = max((second.prompt - first.prompt) / 200, 0.1)
        self.frame = first.prompt - 50 * self.per_word

    def text_of_words(self, count):
        """Words after a number of their own, so that no beginning was computed before."""
        words = itertools.islice(itertools.cycle(WORDS), max(count, 1))
        return f"{next(self.number):06d} " + " ".join(words)

    def prompt(self, tokens):
        return self.text_of_words(round((tokens - self.frame) / self.per_word))


def user(text):
    return {"role": "user", "content": text}


def at_once(client, streams, requests, prompt_tokens, tokens):
    """Replies of a closed loop, and the seconds that all of them took."""
    prompts = [client.prompt(prompt_tokens) for _ in range(requests)]
    replies, lock = [], threading.Lock()

    def work():
        while True:
            with lock:
                if not prompts:
                    return
                prompt = prompts.pop()
            reply = client.ask([user(prompt)], tokens)
            with lock:
                replies.append(reply)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(streams)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replies, time.perf_counter() - begun


def percentile(values, share):
    """The value at that share of the sorted ones, the nearest above; None of none."""
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def spread(values, scale=1e3):
    both = {name: percentile(values, share) for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {name: None if value is None else round(value * scale, 3)
            for name, value in both.items()}


def figures(replies, wall, wanted, busy=0.0):
    """What replies tell together; failed ones tell why."""
    fine = [reply for reply in replies if not reply.error]
    errors = [reply.error for reply in replies if reply.error]
    completion = sum(reply.completion for reply in fine)
    events = sum(reply.events for reply in fine)
    rates = [(reply.completion - 1) / (reply.last - reply.first) for reply in fine
             if reply.completion > 1 and reply.last > reply.first]
    middle = percentile([reply.prompt for reply in fine], 0.5)
    return {
        "requests": len(replies), "failed": len(errors), "errors": sorted(set(errors))[:3],
        "prompt_tokens": middle, "reply_tokens": completion,
        "shorter_than_wanted": sum(reply.completion < wanted for reply in fine),
        "wall_s": round(wall, 4),
        "ttft_ms": spread([reply.first for reply in fine]),
        "gap_ms": spread([gap for reply in fine for gap in reply.gaps]),
        "tokens_per_event": round(completion / events, 2) if events else None,
        "stream_tok_s": spread(rates, 1)["p50"],
        "total_tok_s": round(completion / wall, 2) if completion else None,
        "prompt_tok_s": spread([reply.prompt / reply.first for reply in fine], 1)["p50"],
        "client_busy": round(busy, 2),
    }


def measured(run, wanted):
    """Figures of `run`, which returns replies and seconds, with this client's share of a core."""
    before = time.process_time()
    replies, wall = run()
    return figures(replies, wall, wanted, (time.process_time() - before) / wall)


def single(client, size):
    return [{"streams": 1} | measured(
        lambda: at_once(client, 1, size["requests"], size["prompt"], size["reply"]),
        size["reply"])]


def streams(client, size):
    for count in size["streams"]:
        requests = max(count * 2, 4)
        tell(f"{count} streams")
        yield {"streams": count} | measured(
            lambda: at_once(client, count, requests, size["prompt"], size["reply"]),
            size["reply"])


def long(client, size):
    for tokens in size["long"]:
        if client.context and tokens + LONG_REPLY + ROOM > client.context:
            yield {"wanted_prompt_tokens": tokens,
                   "skipped": f"the context is {client.context} tokens"}
            continue
        tell(f"prompt of {tokens} tokens")
        yield {"wanted_prompt_tokens": tokens} | measured(
            lambda: at_once(client, 1, size["repeats"], tokens, LONG_REPLY), LONG_REPLY)


def warm(client, size):
    """The same prompt twice, several times."""
    tokens = fitting(client, size["warm"])
    cold, again = [], []
    begun = time.perf_counter()
    for _ in range(size["repeats"]):
        prompt = client.prompt(tokens)
        cold.append(client.ask([user(prompt)], LONG_REPLY))
        again.append(client.ask([user(prompt)], LONG_REPLY))
    wall = time.perf_counter() - begun
    for name, replies in (("first", cold), ("again", again)):
        cached = [reply.cached for reply in replies if reply.cached is not None]
        yield {"time": name, "cached_tokens": percentile(cached, 0.5)} | figures(
            replies, wall / 2, LONG_REPLY)


def agent(client, size):
    """A conversation that grows by what a tool returns and what the agent says."""
    system = client.prompt(fitting(client, size["system"]))
    messages = [{"role": "system", "content": system}]
    for turn in range(1, size["turns"] + 1):
        messages.append(user(client.prompt(size["tool"] + client.frame)))
        reply = client.ask(messages, size["said"])
        yield {"turn": turn, "cached_tokens": reply.cached} | figures(
            [reply], reply.last or 1.0, size["said"])
        if reply.error:
            return
        messages.append({"role": "assistant", "content": reply.text})
        if client.context and reply.prompt + 2 * size["said"] + size["tool"] > client.context:
            return


def fitting(client, tokens):
    """So many tokens, or half of the context where that is less."""
    return min(tokens, client.context // 2) if client.context else tokens


def tell(text):
    print(text, file=sys.stderr, flush=True)


def size_of(short):
    if short:
        return {"requests": 3, "prompt": 64, "reply": 32, "streams": [1, 4, 16], "repeats": 2,
                "long": [128, 512, 1 << 20], "warm": 512, "system": 200, "tool": 60, "said": 24,
                "turns": 4}
    return {"requests": 8, "prompt": 128, "reply": 256, "streams": STREAMS, "repeats": 3,
            "long": LONG, "warm": 8192, "system": SYSTEM_TOKENS, "tool": TOOL_TOKENS,
            "said": SAID_TOKENS, "turns": TURNS}


def sweep(client, shapes, size):
    """All figures by shape."""
    measures = {"single": single, "streams": streams, "long": long, "warm": warm, "agent": agent}
    found = {}
    for name in shapes:
        tell(f"{name} ...")
        found[name] = list(measures[name](client, size))
    return found


def report(client, found, size):
    at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    host = {"python": platform.python_version(), "cores": os.cpu_count()}
    return {"format": FORMAT, "at": at, "url": client.url, "model": client.model,
            "server": client.version(), "machine": client.machine(),
            "context": client.context, "ignores_eos": client.exact, "client": host, "size": size,
            "shapes": found}


def key_of(path):
    return Path(path).read_text(encoding="utf-8").strip() if path else None


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("url", help="address of the server, with /v1 or without")
    parser.add_argument("--out", type=Path, help="folder for sweep.json, sweep.md and sweep.svg")
    parser.add_argument("--model", help="its name (default: the first that the server lists)")
    parser.add_argument("--key-file", help="file that holds the API key")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="which ones, with commas")
    parser.add_argument("--short", action="store_true", help="a few seconds of each, as a trial")
    parser.add_argument("--peers", action="store_true",
                        help="print what measures the same with other programs, and ask nothing")
    wanted = parser.parse_args()
    wanted.shapes = wanted.shapes.split(",")
    if unknown := set(wanted.shapes) - set(SHAPES):
        parser.error(f"--shapes: {', '.join(sorted(unknown))}: choose from {', '.join(SHAPES)}")
    if not wanted.peers and wanted.out is None:
        parser.error("--out FOLDER says where the results go")
    return wanted


def main():
    wanted = arguments()
    size = size_of(wanted.short)
    if wanted.peers:
        print(sweep_report.peers(wanted.url, wanted.model or "MODEL", size))
        return 0
    try:
        client = Client(wanted.url, key_of(wanted.key_file), wanted.model)
        wanted.out.mkdir(parents=True, exist_ok=True)
        client.find_model()
        client.calibrate()
    except (Refused, OSError) as why:
        tell(why)
        return 2
    whole = report(client, sweep(client, wanted.shapes, size), size)
    texts = {"sweep.json": json.dumps(whole, indent=1) + "\n",
             "sweep.md": sweep_report.markdown(whole, BUSY),
             "sweep.svg": sweep_report.picture(whole)}
    for name, text in texts.items():
        (wanted.out / name).write_text(text, encoding="utf-8")
    print(texts["sweep.md"])
    return int(any(row.get("failed") for rows in whole["shapes"].values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
