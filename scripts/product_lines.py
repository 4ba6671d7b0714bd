"""Product lines of Rust, by room; or what commits since a revision added to them.

    python scripts/product_lines.py [REVISION]
    python scripts/product_lines.py --since REVISION [--without FILE]

Counts lines of tracked .rs files less those of tests, as `comment_sample.py` tells them apart. With `--since`: the
lines of each room at that revision, what commits since then added, and both together. FILE names commits, a line each,
that are left out: families and features are not what a redesign is measured by. Each commit counts by its own
difference, so that a branch counts as its commits do and a merge as nothing.
"""

import argparse
import collections
import functools
import pathlib
import re
import subprocess

from comment_sample import TESTS, product

# Names of tests at earlier revisions.
FORMER = re.compile(r"(^|/)(trials|sim)\.rs$")


def git(*command):
    return subprocess.run(["git", *command], check=True, capture_output=True).stdout


@functools.cache
def lines_of(blob):
    """`(lines, lines of code)` of a stored file; of code are those that are neither empty nor comments."""
    kept = [line for _, line in product(git("cat-file", "blob", blob).decode()) if line is not None]
    return len(kept), sum(1 for line in kept if line.strip() and not line.lstrip().startswith("//"))


def entries(*command):
    """`(room, words before the path)` of each file of product code that git lists."""
    for entry in git(*command).decode().splitlines():
        about, path = entry.split("\t")
        if path.endswith(".rs") and not TESTS.search(path) and not FORMER.search(path):
            yield "/".join(pathlib.Path(path).parts[:-1][:2]) or ".", about.split()


def rooms_at(revision):
    """`[lines, lines of code]` of each room; files of the top level are one."""
    rooms = collections.defaultdict(lambda: [0, 0])
    for room, (_, _, blob) in entries("ls-tree", "-r", revision):
        for at, count in enumerate(lines_of(blob)):
            rooms[room][at] += count
    return rooms


def net(commit):
    """Lines that a commit added to each room, less those that it took away."""
    added = collections.Counter()
    for room, about in entries("diff-tree", "-r", "--no-renames", "--no-commit-id", commit):
        before, after = (lines_of(blob)[0] if blob.strip("0") else 0 for blob in about[2:4])
        added[room] += after - before
    return added


def since(revision, left_out):
    before = collections.Counter({room: lines for room, (lines, _) in rooms_at(revision).items()})
    change, out = collections.Counter(), collections.Counter()
    for commit in git("rev-list", "--no-merges", f"{revision}..HEAD").decode().split():
        is_out = any(commit.startswith(short) for short in left_out)
        (out if is_out else change).update(net(commit))
    print("before  change  together  left out")
    rooms = sorted({*before, *change, *out}, key=lambda room: -before[room] - change[room])
    for room in [*rooms, "sum"]:
        print(f"{before[room]:6} {change[room]:+7} {before[room] + change[room]:9} {out[room]:+9}  {room}")
        for counts in (before, change, out):
            counts["sum"] += counts[room]


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("revision", nargs="?", default="HEAD")
    flags.add_argument("--since", metavar="REVISION")
    flags.add_argument("--without", metavar="FILE", type=pathlib.Path)
    flags = flags.parse_args()
    if flags.since:
        named = flags.without.read_text().splitlines() if flags.without else []
        return since(flags.since, [line.split()[0] for line in named if line.strip()])
    rooms = rooms_at(flags.revision)
    rooms["product lines, code lines"] = [sum(counts) for counts in zip(*rooms.values())]
    for room, (lines, code) in sorted(rooms.items(), key=lambda item: item[1]):
        print(f"{lines:7} {code:7}  {room}")


if __name__ == "__main__":
    main()
