"""A random sample of comments, to be judged by a reader who has nothing else.

    python scripts/comment_sample.py --count 200 --seed 1 [FOLDER…]

Prints file and line, the comment and the line of code after it, attributes left out. A comment is a run of lines that
begin with `//`, `///` or `//!`, in the Rust and CUDA files that git tracks, tests excepted. The same tree, seed and
folders give the same sample.
"""

import argparse
import pathlib
import random
import re
import subprocess

TESTS = re.compile(r"^ci/|(^|/)(golden|tests)/|(^|/)(tests|example|testing)\.rs$|_tests\.rs$")
MARK = re.compile(r"\s*(//[/!]?)(?!/)")


def product(text):
    """Numbered lines; None for items under `#[cfg(test)]`, up to a line of their indent ending in `;`, `,` or `}`."""
    until = None
    for number, line in enumerate(text.splitlines(), 1):
        if until is None and (found := re.match(r"(\s*)#\[cfg\((?:all\()?test\b", line)):
            until = re.compile(found[1] + r"(\}|[^\s#/].*[;,}]$)")
            yield number, None
        elif until is None:
            yield number, line
        elif until.match(line):
            until = None


def comments(path):
    """`(line number, comment, next line of code)` of each comment of a file."""
    block, mark = [], None
    for number, line in product(path.read_text()):
        if line is None:
            block = []
            continue
        found = MARK.match(line)
        if found and (not block or found[1] == mark):
            block.append((number, line))
            mark = found[1]
        elif block and not line.lstrip().startswith("#["):
            yield block[0][0], "\n".join(text for _, text in block), line
            block = [(number, line)] if found else []
            mark = found and found[1]


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--count", type=int, default=200)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("folders", nargs="*", default=["."])
    flags = flags.parse_args()
    listed = subprocess.run(["git", "ls-files", *flags.folders], check=True, capture_output=True, text=True).stdout
    paths = [path for path in listed.split() if re.search(r"\.(rs|cu|cuh)$", path) and not TESTS.search(path)]
    drawn = [(path, *comment) for path in sorted(paths) for comment in comments(pathlib.Path(path))]
    for path, number, comment, code in random.Random(flags.seed).sample(drawn, min(flags.count, len(drawn))):
        print(f"{path}:{number}\n{comment}\n{code}\n")


if __name__ == "__main__":
    main()
