"""Compares `tiny` with transformers' Qwen3_5MoeForCausalLM on the CPU.

    python scripts/tiny_check.py random      # our PyTorch model and transformers give the same logits
    python scripts/tiny_check.py exported    # the exported file, dequantised into transformers, answers prompts

Needs torch, transformers, safetensors, tokenizers.
"""

import argparse
import json

import torch
from tokenizers import Tokenizer
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

import tiny_chat
import tiny_export as export
import tiny_model as m

TOLERANCE = 1e-4
PROMPTS = [
    "What is the capital of France?",
    "What is 345 + 678?",
    "Compute 702 - 95.",
    "What is 7 times 8?",
    "Who are you?",
    "Count from 5 to 12.",
    "Repeat after me: green lamp 42",
    "What is the opposite of hot?",
    "What is the capital of Zorbalia?",
    "Write a JSON object with the keys name, age. name: Anna Smith; age: 31;",
]


def reference(state):
    """transformers' model with the given FP32 weights (MTP left out)."""
    config = json.loads((export.TARGET / "config.json").read_text())["text_config"]
    model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**config)).float().eval()
    trunk = {
        k.replace(export.TRUNK, "model."): v for k, v in state.items() if not k.startswith("mtp.")
    }
    model.load_state_dict(trunk)
    return model


def spread(model):
    """Random values in place of the neutral initial ones, so that every term matters."""
    for name, p in model.named_parameters():
        if name.endswith("norm.weight") or "norm_" in name or "layernorm" in name:
            p.data += 0.2 * torch.randn_like(p)
        elif p.dim() > 1:
            p.data *= 3.0


@torch.no_grad()
def compare(model, length=256):
    """Largest logit difference between our model and transformers."""
    hf = reference(model.state_dict())
    ids = torch.randint(0, m.VOCAB, (2, length))
    starts = torch.zeros_like(ids)
    starts[:, 0] = 1
    ours = model(ids, starts)[0]
    theirs = hf(input_ids=ids).logits
    return (ours - theirs).abs().max().item(), theirs.std().item()


@torch.no_grad()
def resets(model, length=192):
    """Largest difference of a conversation packed after another and alone."""
    ids = torch.randint(0, m.VOCAB, (1, length))
    starts = torch.zeros_like(ids)
    starts[:, 0] = starts[:, 64] = 1
    alone = torch.zeros(1, 128, dtype=torch.long)
    alone[:, 0] = 1
    packed, packed_draft, _ = model(ids, starts)
    single, single_draft, _ = model(ids[:, 64:], alone)
    return max(
        (packed[:, 64:] - single).abs().max().item(),
        (packed_draft[:, 64:] - single_draft).abs().max().item(),
    )


def check_random():
    torch.manual_seed(1)
    model = m.Tiny().eval()
    spread(model)
    difference, size = compare(model)
    apart = resets(model)
    print(
        f"largest logit difference {difference:.2e} (logit deviation {size:.2f}); packed against alone {apart:.2e}"
    )
    if max(difference, apart) > TOLERANCE:
        raise SystemExit("the models differ")


@torch.no_grad()
def check_exported():
    tokenizer = Tokenizer.from_file(str(export.TARGET / "tokenizer.json"))
    hf = reference(export.exported())
    stop = tokenizer.token_to_id("<|im_end|>")
    for thinking in (False, True):
        for prompt in PROMPTS:
            text = tiny_chat.render([{"role": "user", "content": prompt}], thinking=thinking)
            ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids])
            out = hf.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=120,
                do_sample=False,
                eos_token_id=stop,
            )
            print(
                f"{prompt!r}\n    {tokenizer.decode(out[0, ids.shape[1] :].tolist(), skip_special_tokens=True)!r}"
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["random", "exported"])
    {"random": check_random, "exported": check_exported}[parser.parse_args().verb]()


if __name__ == "__main__":
    main()
