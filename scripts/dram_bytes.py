"""Bytes that a prompt moves between a GPU and its memory, beside those that `bench` computes.

    python3 scripts/dram_bytes.py BINARY [--tokens 8192] [--layers 4] [--bound 1.5]

Nsight Compute (`ncu`) counts the bytes of each kernel of `bench prefill`; a prompt's steps begin with
`embed`, and the median prompt counts. What kernels read again of what the second-level cache still
has is not among them, so a chip with a larger cache than the target's counts less. Exits with 1
above the bound. Weights are drawn. Standard library only.
"""

import argparse
import collections
import csv
import json
import statistics
import subprocess
import sys
import tempfile

BYTES, TIME = "dram__bytes.sum", "gpu__time_duration.sum"
# All kernels but those that bring weights to their places, of which there are thousands.
KERNELS = "regex:^(?!vectors$)"
# Of bytes, and of microseconds.
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9,
         "ns": 1e-3, "us": 1, "ms": 1e3, "s": 1e6,
         "nsecond": 1e-3, "usecond": 1, "msecond": 1e3, "second": 1e6}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--bound", type=float, default=1.5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures, log = f"{folder}/figures.json", f"{folder}/kernels.csv"
        command = ["ncu", "--clock-control", "none", "--metrics", f"{BYTES},{TIME}", "--csv",
                   "--kernel-name", KERNELS, "--log-file", log]
        command += [options.binary, "bench", "prefill", "--json", figures]
        command += ["--tokens", str(options.tokens), "--layers", str(options.layers)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with open(figures) as file:
            computed = json.load(file)["cases"][0]["bytes"]
        with open(log) as file:
            lines = [line for line in file if line.startswith('"')]
    prompts = prompts_of(kernels_of(lines))
    counted = [sum(moved for _, moved, _ in prompt) for prompt in prompts]
    middle = sorted(range(len(prompts)), key=counted.__getitem__)[len(prompts) // 2]
    by_kernel = collections.defaultdict(lambda: [0, 0, 0])
    for name, moved, time in prompts[middle]:
        by_kernel[name] = [a + b for a, b in zip(by_kernel[name], (1, moved, time))]
    print("launches           MB           us  kernel")
    for name, (launches, moved, time) in sorted(by_kernel.items(), key=lambda of: -of[1][1]):
        print(f"{launches:8} {moved / 1e6:12.1f} {time:12.1f}  {name}")
    ratio = statistics.median(counted) / computed
    print(f"prompt of {options.tokens}, {options.layers} layers: {counted[middle] / 1e9:.3f} GB "
          f"counted, {computed / 1e9:.3f} GB computed: {ratio:.2f} times, {len(prompts)} prompts")
    return ratio > options.bound


def kernels_of(lines):
    """Name, bytes and microseconds of each kernel that was launched, in order."""
    kernels = collections.OrderedDict()
    for row in csv.DictReader(lines):
        value = float(row["Metric Value"].replace(",", "")) * UNITS[row["Metric Unit"]]
        name, moved, time = kernels.get(row["ID"], (row["Kernel Name"], 0, 0))
        is_time = row["Metric Name"] == TIME
        kernels[row["ID"]] = (name, moved + (not is_time) * value, time + is_time * value)
    return list(kernels.values())


def prompts_of(kernels):
    """The kernels of each whole prompt; after the last one, kernels of the rest of the measurement may follow."""
    prompts = []
    for kernel in kernels:
        if "embed" in kernel[0]:
            prompts.append([])
        if prompts:
            prompts[-1].append(kernel)
    length = min(len(prompt) for prompt in prompts)
    return [prompt[:length] for prompt in prompts]


if __name__ == "__main__":
    sys.exit(main())
