"""Compares weights that a binary for a CPU has rounded with the best that its format allows.

    python scripts/rounding.py BINARY WEIGHTS [--rows 256] [--layers 3]

BINARY packs WEIGHTS, one `model.safetensors` of a dense model; its rounded matrices are read from there. Beside them
this file rounds the same rows by the formats' definitions: NVFP4 with the usual factor, the largest weight over
6 * 448, and for each group whichever of all E4M3 scales has the least squared error; FP8 with the best of 180 scales
for each block of 128 x 128. Exits with 1 where the norm of the binary's errors in a matrix is above the reference's by
more than 1 %.
"""

import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy

ALLOWED = 1.01
ROLES = {
    "Query": "self_attn.q_proj",
    "Key": "self_attn.k_proj",
    "Value": "self_attn.v_proj",
    "Output": "self_attn.o_proj",
    "MlpGate": "mlp.gate_proj",
    "MlpUp": "mlp.up_proj",
    "MlpDown": "mlp.down_proj",
}
LANES = 16  # rows of a panel of the CPU
GROUP, BLOCK = 16, 128
FP8_SCALES = 2.0 ** (numpy.arange(-20, 160) / 128)  # of the one that makes the largest weight 448
CODES = numpy.arange(127)
E4M3 = numpy.where(CODES < 8, CODES / 512, (1 + CODES % 8 / 8) * 2.0 ** (CODES // 8 - 7))
E2M1 = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


# ---- files -----------------------------------------------------------------------------------------------


class Source:
    """BF16 tensors of a safetensors file."""

    def __init__(self, path):
        self.bytes = numpy.memmap(path, mode="r")
        (length,) = struct.unpack("<Q", self.bytes[:8].tobytes())
        self.header = json.loads(self.bytes[8 : 8 + length].tobytes())
        self.start = 8 + length

    def matrix(self, name, rows):
        entry = self.header[name]
        assert entry["dtype"] == "BF16", name
        first, end = (self.start + at for at in entry["data_offsets"])
        return floats(self.bytes[first:end].view("<u2")).reshape(entry["shape"])[:rows]


class Packed:
    """Matrices of a packed file of a CPU's binary."""

    def __init__(self, path):
        self.bytes = numpy.memmap(path, mode="r")
        first, end = struct.unpack("<QQ", self.bytes[16:32].tobytes())
        table = json.loads(self.bytes[first:end].tobytes())
        self.entries = {entry["name"]: entry for entry in table["weights"]}

    def matrix(self, key, rows):
        entry = self.entries[key]
        part = self.bytes[entry["start"] : entry["start"] + entry["bytes"]]
        numbers = floats(part.view("<u2")) if entry["storage"] == "cpu-bf16" else part.view("<f4")
        panels = numbers.reshape(-1, entry["k"], LANES).transpose(0, 2, 1)
        return panels.reshape(-1, entry["k"])[: entry["n"]][:rows]


def floats(bf16):
    return (bf16.astype("<u4") << 16).view("<f4")


# ---- formats ---------------------------------------------------------------------------------------------


def error(weights, values, scale):
    """Squared error of weights as the nearest multiples of `scale` by `values`."""
    scaled = numpy.abs(weights) / scale
    nearest = values[numpy.searchsorted((values[1:] + values[:-1]) / 2, scaled)]
    return ((nearest - scaled) * scale) ** 2


def nvfp4_error(weights, whole):
    factor = numpy.abs(whole).max() / (6 * 448)
    groups = weights.reshape(-1, GROUP)
    least = numpy.full(len(groups), numpy.inf)
    for scale in E4M3[1:] * factor:
        least = numpy.minimum(least, error(groups, E2M1, scale).sum(axis=1))
    return least.sum()


def fp8_error(weights):
    total = 0
    for top in range(0, weights.shape[0], BLOCK):
        for left in range(0, weights.shape[1], BLOCK):
            block = weights[top : top + BLOCK, left : left + BLOCK]
            scales = FP8_SCALES * numpy.abs(block).max() / 448
            total += min(error(block, E4M3, scale).sum() for scale in scales)
    return total


def format_of(binary):
    """The format that a binary rounds to, by its manifest."""
    told = subprocess.run([binary, "about", "--json"], check=True, capture_output=True, text=True)
    manifest = json.loads(told.stdout)["manifest"]
    found = [name for name in ("nvfp4_modelopt", "fp8_block128") if f'resident = "{name}"' in manifest]
    return found[0] if len(found) == 1 else sys.exit(f"{binary} rounds to {len(found)} formats, not one")


def compared(source, packed, key, name, rows, nvfp4):
    """Norms of the errors of the binary and of the reference, beside that of the weights."""
    whole = source.matrix(name, None).astype(numpy.float64)
    weights = whole[:rows]
    found = packed.matrix(key, rows).astype(numpy.float64)
    own, norm = ((found - weights) ** 2).sum(), (weights**2).sum()
    best = nvfp4_error(weights, whole) if nvfp4 else fp8_error(weights)
    return numpy.sqrt(own / norm), numpy.sqrt(best / norm)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("weights", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=256, help="of each matrix, whole blocks (%(default)s)")
    parser.add_argument("--layers", type=int, default=3, help="first, last and between (%(default)s)")
    options = parser.parse_args()
    source, passed = Source(options.weights / "model.safetensors"), True
    binary = options.binary.resolve()
    nvfp4 = format_of(binary) == "nvfp4_modelopt"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "packed")
        subprocess.run([binary, "pack", options.weights, path], check=True, stdout=subprocess.DEVNULL)
        packed = Packed(path)
        count = sum(key.endswith(".Query.0") and key.startswith("layer.") for key in packed.entries)
        layers = numpy.unique(numpy.linspace(0, count - 1, options.layers).astype(int))
        matrices = [("Embedding.0", "model.embed_tokens.weight")]
        matrices += [(f"layer.{layer}.{role}.0", f"model.layers.{layer}.{name}.weight")
                     for layer in layers for role, name in ROLES.items()]
        for key, name in matrices:
            own, best = compared(source, packed, key, name, options.rows, nvfp4)
            passed &= bool(own <= ALLOWED * best)
            print(f"{'ok' if own <= ALLOWED * best else 'WRONG'}: {key} is off by {100 * own:.3f} %, the reference by "
                  f"{100 * best:.3f} %", flush=True)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
