"""Compares a binary with what Hugging Face transformers computes from the same weights: logits of a
text, greedy replies, and conversations through each API. Standard library only.

    python scripts/real_model.py BINARY WEIGHTS targets/_model/smollm2-135m [--decode] [--tolerance 1e-3]
    python scripts/real_model.py BINARY WEIGHTS targets/_model/smollm2-135m --rounded

The folder holds `chats.jsonl` and the golden files that `golden.py --columns --replies` wrote.
BINARY writes its logits of the golden text by its verb `logits`, as a prompt and, with --decode,
token by token as well: at the golden positions none of the kept columns may differ by more than the
tolerance; of all positions the likeliest token must be the same unless two logits are that close,
and the mean negative log-likelihood must be the same to four digits. Then BINARY serves WEIGHTS: the
token ids of every chat and of its greedy reply must be the golden ones, and the same chats get the
same text from the APIs of OpenAI and Anthropic; a model without a chat template has no chats. A
binary that rounds the weights has other logits: with --rounded it must know some capitals. Exits
with 1 if anything differs.
"""

import argparse
import array
import contextlib
import json
import math
import mmap
import pathlib
import struct
import subprocess
import sys
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor

TOLERANCE = 1e-3  # of a logit
NATS = 5e-5  # of the mean negative log-likelihood: four digits
SCORED_EVERY = 8  # to add up all logits of a position takes Python milliseconds
TIMEOUT_S = 600
AT_ONCE = 8  # requests
READY = "READY "
KINDS = {"F32": "f", "I32": "i"}


def tensors(path):
    """Arrays by name of a safetensors file."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    del header["__metadata__"]
    return {
        name: array.array(KINDS[of["dtype"]], data[slice(*of["data_offsets"])])
        for name, of in header.items()
    }


class Judge:
    def __init__(self):
        self.passed = True

    def says(self, passed, text):
        self.passed &= bool(passed)
        print(f"{'ok' if passed else 'WRONG'}: {text}", flush=True)


# ---- logits ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def rows(binary, weights, tokens, flags):
    """`rows[position]`: the binary's logits after each of the tokens."""
    with tempfile.TemporaryDirectory() as folder:
        given, out = pathlib.Path(folder, "tokens.txt"), pathlib.Path(folder, "logits.f32")
        given.write_text(" ".join(map(str, tokens)))
        command = [binary, "logits", weights, "--tokens", given, "--out", out, *flags]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        with out.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            whole = memoryview(content)
            logits = whole.cast("f")
            width = len(logits) // len(tokens)
            yield [logits[at * width : (at + 1) * width] for at in range(len(tokens))]
            logits.release()
            whole.release()


def farthest(golden, found):
    """The largest difference of a kept logit."""
    columns, positions = golden["columns"], golden["positions"]
    kept = iter(golden["logits"])
    return max(abs(found[at][column] - next(kept)) for at in positions for column in columns)


def likelihood(row, token):
    top = max(row)
    return row[token] - top - math.log(math.fsum(math.exp(logit - top) for logit in row))


def compare_logits(judge, arguments, golden, flags):
    way = "token by token" if flags else "as a prompt"
    tokens = golden["tokens"]
    with rows(arguments.binary, arguments.weights, tokens, flags) as found:
        difference = farthest(golden, found)
        judge.says(difference <= arguments.tolerance, f"{way}: {len(golden['logits'])} logits differ by "
                   f"{difference:.1e} at most, allowed {arguments.tolerance}")
        lost = [max(row) - row[token] for row, token in zip(found, golden["likeliest"])]
        judge.says(max(lost) <= 2 * arguments.tolerance, f"{way}: {sum(gap > 0 for gap in lost)} of "
                   f"{len(lost)} positions have another likeliest token, by {max(lost):.1e} at most")
        scored = range(0, len(tokens) - 1, SCORED_EVERY)
        ours = -math.fsum(likelihood(found[at], tokens[at + 1]) for at in scored) / len(scored)
        theirs = -math.fsum(golden["likelihoods"][at] for at in scored) / len(scored)
        judge.says(abs(ours - theirs) <= NATS, f"{way}: {ours:.5f} nats per token, golden {theirs:.5f}")
        del found


# ---- conversations ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(binary, weights):
    """The URL of the binary while it serves."""
    command = [str(binary), "serve", str(weights), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for line in server.stdout:
            if READY in line:
                yield line.split(READY, 1)[1].split()[0]
                break
        else:
            sys.exit("the server ended before it was ready")
    finally:
        server.terminate()
        server.communicate()


def post(url, path, body):
    content = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(url + path, content, headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        return json.load(response)


def chat(url, messages, count):
    body = {"messages": messages, "temperature": 0, "max_tokens": count}
    return post(url, "/v1/chat/completions", body)["choices"][0]["message"]["content"]


def response(url, messages, count):
    body = {"input": messages, "temperature": 0, "max_output_tokens": count, "store": False}
    message = post(url, "/v1/responses", body)["output"][-1]
    return "".join(part["text"] for part in message["content"])


def message(url, messages, count):
    system = "".join(turn["content"] for turn in messages if turn["role"] == "system")
    turns = [turn for turn in messages if turn["role"] != "system"]
    body = {"messages": turns, "temperature": 0, "max_tokens": count} | ({"system": system} if system else {})
    return "".join(part["text"] for part in post(url, "/v1/messages", body)["content"])


APIS = {"chat completions": chat, "responses": response, "messages": message}


def reply(url, prompt, count):
    """Token ids of a greedy reply."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": count}
    shown = {"logprobs": 0, "return_tokens_as_token_ids": True}
    choice = post(url, "/v1/completions", body | shown)["choices"][0]
    return [int(name.removeprefix("token_id:")) for name in choice["logprobs"]["tokens"]]


def compare_chats(judge, url, chats, golden):
    count = max(len(sequence["tokens"]) for sequence in golden)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        compare_replies(judge, url, chats, golden, count, pool)


def compare_replies(judge, url, chats, golden, count, pool):
    ids = [post(url, "/tokenize", {"messages": messages})["tokens"] for messages in chats]
    wrong = [at for at, found in enumerate(ids) if found != golden[at]["prompt"]]
    judge.says(not wrong, f"token ids of {len(chats)} chats, other ones in {wrong}")
    replies = list(pool.map(lambda sequence: reply(url, sequence["prompt"], count), golden))
    wrong = [at for at, found in enumerate(replies) if found != golden[at]["tokens"][: len(found)]
             or len(golden[at]["tokens"]) - len(found) not in (0, 1)]  # the token that ends a turn may be left out
    judge.says(not wrong, f"greedy replies of up to {count} tokens to {len(chats)} chats, other ones in {wrong}")
    for name, ask in APIS.items():
        texts = list(pool.map(lambda messages: ask(url, messages, count), chats))
        wrong = [at for at, text in enumerate(texts) if text.strip() != golden[at]["text"].strip()]
        judge.says(not wrong, f"{name}: texts of {len(chats)} replies, other ones in {wrong}")
        print(f"  {chats[0][-1]['content']!r} is answered {texts[0]!r}")


# ---- rounded weights -------------------------------------------------------------------------------------

CAPITALS = {"France": "Paris", "Italy": "Rome", "Germany": "Berlin"}


def compare_capitals(judge, url):
    for country, capital in CAPITALS.items():
        body = {"prompt": f"The capital of {country} is", "temperature": 0, "max_tokens": 4}
        text = post(url, "/v1/completions", body)["choices"][0]["text"]
        judge.says(text.split()[:1] in ([capital], [capital + "."]), f"{body['prompt']!r} goes on as {text!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("weights", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--decode", action="store_true", help="compare logits token by token as well")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="of a logit (%(default)s)")
    parser.add_argument("--rounded", action="store_true", help="ask for capitals, and compare nothing")
    arguments = parser.parse_args()
    arguments.binary = arguments.binary.resolve()
    judge = Judge()
    if arguments.rounded:
        with served(arguments.binary, arguments.weights) as url:
            compare_capitals(judge, url)
        sys.exit(not judge.passed)
    golden = tensors(arguments.folder / "golden/logits.safetensors")
    for flags in [[], ["--decode"]][: 1 + arguments.decode]:
        compare_logits(judge, arguments, golden, flags)
    if (arguments.folder / "chats.jsonl").exists():
        lines = (arguments.folder / "chats.jsonl").read_text().splitlines()
        replies = json.loads((arguments.folder / "golden/chats.json").read_text())["sequences"]
        with served(arguments.binary, arguments.weights) as url:
            compare_chats(judge, url, [json.loads(line)["messages"] for line in lines], replies)
    sys.exit(not judge.passed)


if __name__ == "__main__":
    main()
