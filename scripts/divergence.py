"""Kullback-Leibler divergence between two binaries of one model with other formats of weights or of keys and values.

    python scripts/divergence.py BINARY OTHER WEIGHTS [--tokens 2000] [--layers 4]

Both write the logits of one text by their verb `logits`, a token at a time, so that each position reads what earlier
ones left in the cache. The text is that of the start's check where WEIGHTS has a tokenizer, and seeded random tokens
where not. Printed of OTHER beside BINARY: the mean and the 99th percentile of the divergence over all positions, how
often the most likely token is the same, and nats per token of the text by each.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy

TEXT = pathlib.Path(__file__).parent.parent / "src/check/text_check/text.txt"


def token_ids(weights, count):
    path = weights / "tokenizer.json"
    if path.exists():
        from tokenizers import Tokenizer

        text = TEXT.read_text()
        return Tokenizer.from_file(str(path)).encode(text, add_special_tokens=False).ids[:count]
    config = json.loads((weights / "config.json").read_text())
    vocabulary = config.get("text_config", config)["vocab_size"]
    return numpy.random.default_rng(1).integers(0, vocabulary, count).tolist()


def log_probabilities(binary, weights, ids, layers, folder):
    (folder / "ids").write_text(" ".join(map(str, ids)))
    cut = ["--layers", str(layers)] if layers else []
    out = folder / "logits"
    command = [binary, "logits", "--tokens", folder / "ids", "--out", out, "--decode", *cut, weights]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    logits = numpy.fromfile(out, dtype="<f4").reshape(len(ids), -1).astype(numpy.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("other", type=pathlib.Path)
    parser.add_argument("weights", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--layers", type=int, help="layers that the weights have, where they are cut")
    options = parser.parse_args()
    ids = token_ids(options.weights, options.tokens)
    with tempfile.TemporaryDirectory() as folder:
        read = [
            log_probabilities(binary, options.weights, ids, options.layers, pathlib.Path(folder))
            for binary in (options.binary, options.other)
        ]
    exact, other = read
    divergence = (numpy.exp(exact) * (exact - other)).sum(axis=1)
    same = (exact.argmax(axis=1) == other.argmax(axis=1)).mean()
    nats = [-of[numpy.arange(len(ids) - 1), ids[1:]].mean() for of in read]
    print(f"{len(ids)} positions: divergence {divergence.mean():.3e}, 99th percentile {numpy.quantile(divergence, 0.99):.3e},")
    print(f"same most likely token {100 * same:.2f} %, nats per token {nats[0]:.4f} and {nats[1]:.4f}")


if __name__ == "__main__":
    main()
