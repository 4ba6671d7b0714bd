"""The symbols of glibc's libraries that a program is linked with, as `build/glibc/<arch>.txt` lists them.

    python scripts/glibc_symbols.py ROOT/lib/x86_64-linux-gnu > build/glibc/x86_64.txt

The folder is that of an unpacked package `libc6` of the oldest system that binaries shall run on: its shared libraries are
read with `readelf`, and of each symbol the version that a linker takes by default.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import textwrap

LIBRARIES = ["libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-*.so.*"]
WIDTH = 128


def symbols(path):
    """Version, name and, of data, `:bytes` of every default symbol."""
    printed = subprocess.run(["readelf", "-W", "--dyn-syms", path], check=True, capture_output=True, text=True).stdout
    for line in printed.splitlines():
        found = re.fullmatch(r"\s*\d+: \w+\s+(\d+) (\w+)\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+\d+ (\w+)@@(GLIBC_[\d.]+)\s*", line)
        if found and found[2] != "TLS" and found[3] != found[4]:
            size, kind, name, version = found.groups()
            yield version, name + (f":{size}" if kind == "OBJECT" else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    for pattern in LIBRARIES:
        path = next(folder.glob(pattern))
        versions = collections.defaultdict(list)
        for version, name in symbols(path):
            versions[version].append(name)
        for version in sorted(versions, key=lambda version: [int(part) for part in version[6:].split(".")]):
            print(path.name, version)
            print(textwrap.fill(" ".join(sorted(versions[version])), WIDTH, initial_indent="  ", subsequent_indent="  "))


if __name__ == "__main__":
    main()
