"""Compares the token ids of a running server with those of the library of its tokenizer's file.

    python scripts/tokenizer_parity.py --tokenizer targets/_model/tiny/tokenizer.json --count 1000000

A `tokenizer.json` is read by Hugging Face's `tokenizers`, a `tekken.json` by Mistral's `mistral_common` (1.13.1 or later).

The strings are random and hostile: all planes of Unicode, combining marks, digits, blanks, markup, and control tokens
whole and in parts. Requests are sent one behind the other without waiting for answers. Needs tokenizers. Exits 1 at the
first difference, with the string.
"""

import argparse
import itertools
import json
import pathlib
import random
import re
import socket
import sys
import threading

BATCH = 2000  # strings that are encoded at once here, and are under way there
TIMEOUT_S = 120
WORDS = "the capital Paris straße Ελλάδα Москва 東京 서울 ภาษา नमस्ते don't I'LL x86_64".split()
BLANKS = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u2003", "\u3000", "\u200b", "\n\n\n", " \n "]
MARKS = ["\u0301", "\u0338", "\u200d", "\ufe0f", "\u20e3", "\u0e31", "\u093f", "\U0001f3fd"]
SIGNS = "{ } \" \\ </ <| |> :// == ... -- 's ’ « 🦀 👩‍👩‍👧‍👦 🇫🇷 \ufeff \ufffd \0 \x7f".split(" ")
PLANES = [0x80, 0x800, 0x10000, 0x110000]


def any_character(draw):
    """A character of any plane; surrogates are none."""
    while True:
        code = draw.randrange(draw.choice(PLANES))
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code)


def piece(draw, controls):
    kind = draw.randrange(12)
    if kind < 3:
        return draw.choice(WORDS)
    if kind < 5:
        return draw.choice(BLANKS) * draw.choice([1, 1, 1, 2, 7])
    if kind == 5:
        return draw.choice(MARKS)
    if kind == 6:
        return draw.choice(SIGNS)
    if kind == 7:
        return str(draw.randrange(10 ** draw.randrange(1, 25)))
    if kind == 8 and controls:
        text = draw.choice(controls)
        start = draw.choice([0, 0, draw.randrange(len(text))])
        return text[start : draw.choice([len(text), draw.randrange(len(text) + 1)])]
    if kind == 9:
        return any_character(draw) * draw.choice([1, 2, 40])
    return "".join(any_character(draw) for _ in range(draw.randrange(1, 6)))


def strings(seed, count, controls):
    draw = random.Random(seed)
    for _ in range(count):
        yield "".join(piece(draw, controls) for _ in range(draw.choice([1, 2, 3, 5, 8, 20])))


def send(connection, texts):
    for text in texts:
        body = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
        head = f"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)


def answer(reader):
    """The ids of the next answer."""
    status = reader.readline()
    length = 0
    while (line := reader.readline().strip()) != b"":
        name, value = line.split(b":", 1)
        if name.lower() == b"content-length":
            length = int(value)
    body = reader.read(length)
    if b" 200 " not in status:
        sys.exit(f"{status!r}: {body!r}")
    return json.loads(body)["tokens"]


class HuggingFace:
    def __init__(self, path):
        import tokenizers

        self.name = f"tokenizers {tokenizers.__version__}"
        self.tokenizer = tokenizers.Tokenizer.from_file(path)
        self.tokenizer.no_truncation()
        self.controls = [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]

    def ids(self, texts):
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts, add_special_tokens=False)]


class Mistral:
    """The texts of control tokens are those tokens in a prompt, of which the library knows nothing."""

    def __init__(self, path):
        import mistral_common
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        self.name = f"mistral_common {mistral_common.__version__}"
        self.tokenizer = Tekkenizer.from_file(path)
        named = json.loads(pathlib.Path(path).read_text())["special_tokens"]
        self.controls = [token["token_str"] for token in named]
        ranks = {token["token_str"]: token["rank"] for token in named}
        longest = sorted(map(re.escape, self.controls), key=len, reverse=True)
        cut = re.compile(f"({'|'.join(longest)})")
        plain = self.tokenizer.encode
        self.encode = lambda text: [
            id for part in cut.split(text) for id in ([ranks[part]] if part in ranks else plain(part, False, False))
        ]

    def ids(self, texts):
        return list(map(self.encode, texts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json or tekken.json of the model that is served")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    is_tekken = pathlib.Path(options.tokenizer).name == "tekken.json"
    reference = (Mistral if is_tekken else HuggingFace)(options.tokenizer)
    connection = socket.create_connection((options.host, options.port), timeout=TIMEOUT_S)
    reader = connection.makefile("rb")
    generator = strings(options.seed, options.count, reference.controls)
    compared = tokens = 0
    while texts := list(itertools.islice(generator, BATCH)):
        sender = threading.Thread(target=send, args=(connection, texts))
        sender.start()
        for text, expected in zip(texts, reference.ids(texts)):
            found = answer(reader)
            if found != expected:
                sys.exit(f"{text!r}: {found} here, {expected} in {reference.name}")
            compared += 1
            tokens += len(found)
        sender.join()
    print(f"{compared} strings, {tokens} tokens, all equal to {reference.name}, seed {options.seed}")


if __name__ == "__main__":
    main()
