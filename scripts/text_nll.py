"""Nats per token that a checkpoint gives the text of the start's check, by Hugging Face transformers in float32.

    python scripts/text_nll.py targets/_model/tiny [--tokens 1536]

The figure is `text_nll` of the checkpoint in `model.toml`: a server whose model is further than 0.02 from it does not
start. Needs torch, transformers, safetensors and tokenizers.
"""

import argparse
import pathlib

import torch
from tokenizers import Tokenizer

from golden import load

TEXT = pathlib.Path(__file__).parent.parent / "src/check/text_check/text.txt"
TOKENS = 1536  # TEXT_TOKENS of src/check/text_check.rs, for contexts of at least as many
EVERY = 4  # SCORED_EVERY there


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
    ids = torch.tensor([tokenizer.encode(TEXT.read_text(), add_special_tokens=False).ids[: options.tokens]])
    model, _ = load(options.folder)
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, :-1]
    nats = torch.nn.functional.cross_entropy(logits[::EVERY].double(), ids[0, 1:][::EVERY])
    print(f"text_nll = {nats:.4f}  # {ids.shape[1]} tokens")


if __name__ == "__main__":
    main()
