#!/usr/bin/env python3
"""Shares of texts' tokens that have low ids: what `[mtp] draft_ids` of a model leaves to be drafted.

    python3 scripts/draft_ids.py tokenizer.json src/engine/*.rs guide.de.txt ...

Prints a row for each file and a column for each number of ids. Needs the package `tokenizers`.
"""

import argparse
import pathlib

from tokenizers import Tokenizer

IDS = [16_384, 32_768, 49_152, 65_536, 98_304, 131_072]


def shares(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return [sum(id < most for id in ids) / max(len(ids), 1) for most in IDS], len(ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tokenizer", type=pathlib.Path, help="tokenizer.json of the model")
    parser.add_argument("texts", type=pathlib.Path, nargs="+", help="files in UTF-8")
    given = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(given.tokenizer))
    print(f"{tokenizer.get_vocab_size():,} ids".ljust(32), "tokens", *(f"<{most:,}" for most in IDS))
    for path in given.texts:
        row, tokens = shares(tokenizer, path.read_text(encoding="utf-8"))
        print(f"{path.name[:32]:32} {tokens:6}", *(f"{share:7.1%}" for share in row))


if __name__ == "__main__":
    main()
