"""Drives real clients against a server and keeps what they said to each other.

    python3 scripts/clients/record.py --tiny atlas-cpu-tiny-nvfp4 --scripted scripted \
        --node FOLDER/node_modules --python FOLDER/venv/bin/python --out ci/e2e/recordings

The clients are installed beforehand, outside the repository:

    npm install openai @anthropic-ai/sdk ai @ai-sdk/openai @ai-sdk/openai-compatible \
        @ai-sdk/anthropic zod @anthropic-ai/claude-code @openai/codex opencode-ai \
        @qwen-code/qwen-code cline @continuedev/cli
    python3 -m venv venv && venv/bin/pip install openai anthropic uv
    UV_TOOL_BIN_DIR=node_modules/.bin venv/bin/uv tool install --python 3.12 aider-chat

For an older Node than a client asks for, npm silently installs an older client; `npm install node`
brings a newer one, to be put ahead in PATH. Aider runs on Python 3.10 to 3.12; `pip` alone would
try dozens of its older releases.

Libraries talk to the trained model; agents, whose prompts it cannot follow, to `scripted` (`cargo
build --example scripted`). A client that fails ends the run. One file of JSON lines per client is
written, an exchange a line. Recordings hold every field, type and structure of the traffic. Of the
agents' texts, which are their makers', a description or a long string is replaced by a mark with
its length; what libraries send is written by their users, and is kept. Ids, times and paths are
replaced by stable ones, so that a repeated run makes the same files where the clients do the same.
Standard library only.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile

import agents
from proxy import Proxy

# Longer strings of agents are replaced by a mark, and those under these names.
KEPT_CHARS = 40
DESCRIPTIONS = {"description", "title"}
# What the work directory is called in recordings.
WORK = "/project"
HEADERS_LEFT_OUT = {"host", "connection", "content-length", "date", "accept-encoding",
                    "accept-language", "transfer-encoding"}
IDS = re.compile(r"\b(resp|msg|rs|fc|fco|ctc|tsc|tso|call|toolu|chatcmpl|cmpl|req|ses|at)([_-])"
                 r"([0-9a-f]{8}-[0-9a-f-]{27}|[0-9A-Za-z]{20,40})\b")
UUIDS = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
DIGESTS = re.compile(r"\b[0-9a-f]{32,64}\b")
TIMES = {"created", "created_at", "completed_at", "turn_started_at_unix_ms"}
LIBRARIES = {"openai-python": "openai_sdk.py", "anthropic-python": "anthropic_sdk.py",
             "openai-node": "openai_sdk.mjs", "anthropic-node": "anthropic_sdk.mjs",
             "vercel": "vercel.mjs"}


class Stable:
    """Replaces what differs from run to run, the same by the same; `work` is where an agent ran,
    None for a library."""

    def __init__(self, work):
        self.work, self.known = work, {}

    def named(self, found, shape):
        if found in self.known.values():
            return found
        return self.known.setdefault(found, shape(len(self.known) + 1))

    def text(self, text):
        if self.work:
            text = text.replace(self.work, WORK)
        text = IDS.sub(lambda m: self.named(
            m[0], lambda n: f"{m[1]}{m[2]}{n:024}"), text)
        text = UUIDS.sub(lambda m: self.named(
            m[0], lambda n: f"00000000-0000-4000-8000-{n:012}"), text)
        text = DIGESTS.sub(lambda m: self.named(
            m[0], lambda n: f"{n:0{len(m[0])}}"), text)
        return text

    def value(self, value, key=None):
        """A JSON value with stable and short strings; texts that hold JSON stay such."""
        if isinstance(value, dict):
            return {self.text(name): self.value(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, key) for item in value]
        if key in TIMES and isinstance(value, (int, float)):
            return 1
        if key in TIMES and isinstance(value, str):
            return "1970-01-01T00:00:01Z"
        if not isinstance(value, str):
            return value
        text = self.text(value)
        if not self.work or (len(text) <= KEPT_CHARS and key not in DESCRIPTIONS):
            return text
        return self.json_text(text) or f"<{len(text)} characters>"

    def json_text(self, text):
        """The text of a JSON object with stable values; None for any other text."""
        try:
            inner = json.loads(text)
        except ValueError:
            return None
        return json.dumps(self.value(inner)) if isinstance(inner, dict) else None

    def header(self, value):
        text = self.text(value)
        return self.json_text(text) or text

    def side(self, side):
        headers = [[name.lower(), self.header(value)] for name, value in side.pop("headers")
                   if name.lower() not in HEADERS_LEFT_OUT]
        return {"headers": headers, **self.value(side)}


def place(event):
    """The object and key of an event that hold a piece of a tool's arguments, or None."""
    data = event.get("data")
    if not isinstance(data, dict):
        return None
    delta = data.get("delta")
    if isinstance(delta, str):
        return data, "delta"
    if isinstance(delta, dict) and "partial_json" in delta:
        return delta, "partial_json"
    for choice in data.get("choices") or []:
        for call in (choice.get("delta") or {}).get("tool_calls") or []:
            if "arguments" in call.get("function", {}):
                return call["function"], "arguments"
    return None


def rename_pieces(events, work):
    """Names the work directory where a stream has it in pieces; their number stays."""
    streams = {}
    for event in events or []:
        found = place(event)
        if found:
            data = event["data"]
            which = (data.get("type"), data.get("item_id"), data.get("index"))
            streams.setdefault(which, []).append(found)
    for places in streams.values():
        text = "".join(at[key] for at, key in places)
        if work not in text:
            continue
        text = text.replace(work, WORK)
        for index, (at, key) in enumerate(places):
            begin, end = (n * len(text) // len(places) for n in (index, index + 1))
            at[key] = text[begin:end]


class Served:
    """A server process on a free port, behind a proxy."""

    def __init__(self, command, ready):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True)
        for line in self.process.stdout:
            if line.startswith(ready):
                break
        self.port = int(re.search(r":(\d+) ", line)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def write(out, name, exchanges, work=None, client=None):
    """`client` has the name and version of an agent, which its requests may not tell."""
    stable = Stable(work)
    with open(f"{out}/{name}.jsonl", "w") as file:
        for exchange in exchanges:
            sides = exchange.json()
            if work:
                rename_pieces(sides["response"].get("events"), work)
            sides = {name: stable.side(side) for name, side in sides.items()}
            if client:
                sides = {"client": client, **sides}
            file.write(json.dumps(sides, separators=(",", ":")) + "\n")
    print(f"{name}: {len(exchanges)} exchanges")


def record_library(options, name, server):
    folder = os.path.dirname(os.path.abspath(__file__))
    script = f"{folder}/{LIBRARIES[name]}"
    command = [options.python, script]
    if script.endswith(".mjs"):
        # Modules are looked up from where the script is.
        link = f"{os.path.dirname(os.path.abspath(options.node))}/{LIBRARIES[name]}"
        with open(script) as source, open(link, "w") as copy:
            copy.write(source.read())
        command = ["node", link]
    with Proxy("127.0.0.1", server.port) as proxy:
        subprocess.run([*command, proxy.base, "tiny"], check=True)
    write(options.out, name, proxy.exchanges)


def record_agent(options, scenario):
    with tempfile.TemporaryDirectory() as work:
        script = f"{work}/script.json"
        with open(script, "w") as file:
            json.dump(agents.script(work), file)
        with Served([options.scripted, "0", script], "READY") as server, \
                Proxy("127.0.0.1", server.port) as proxy:
            client = agents.run(scenario, proxy.base, "scripted", options.node, work,
                                options.tiny)
        # An agent may get by without what was refused, and say nothing of it.
        refused = [exchange for exchange in proxy.exchanges if exchange.status != 200]
        if refused:
            raise RuntimeError(f"{scenario} was refused: {refused[0].answer.decode()}")
        write(options.out, scenario, proxy.exchanges, work, client)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("tiny", "scripted", "node", "python", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--only", nargs="*", help="clients to record, all if absent")
    options = parser.parse_args()
    wanted = options.only or [*LIBRARIES, *agents.SCENARIOS]
    os.makedirs(options.out, exist_ok=True)
    with open(f"{options.out}/script.json", "w") as file:
        json.dump(agents.script(WORK), file, indent=1)
        file.write("\n")
    with Served([options.tiny, "serve", "--port", "0"], "READY") as server:
        for name in LIBRARIES:
            if name in wanted:
                record_library(options, name, server)
    for scenario in agents.SCENARIOS:
        if scenario in wanted:
            record_agent(options, scenario)


if __name__ == "__main__":
    main()
