"""Answers the held-out questions in PyTorch with quantised weights, and counts accepted MTP drafts.

    python scripts/tiny_measure.py --checkpoint train.pt --failures wrong.jsonl

Greedy. Needs torch, safetensors and tokenizers.
"""

import argparse
import json
import re
from pathlib import Path

import torch
from tokenizers import Tokenizer

import tiny_chat
import tiny_data
import tiny_eval
import tiny_export
import tiny_model as m
from tiny_replies import Writer

BATCH = 384
CALL = re.compile(r"<tool_call>\n<function=([^>\n]+)>\n(.*?)</function>\n</tool_call>", re.DOTALL)
ARGUMENT = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", re.DOTALL)


def padded(rows, pad, device):
    """ids [B,L] right-padded to a multiple of 64 and starts [B,L]."""
    length = -(-max(map(len, rows)) // m.CHUNK) * m.CHUNK
    ids = torch.tensor([r + [pad] * (length - len(r)) for r in rows], device=device)
    starts = torch.zeros_like(ids)
    starts[:, 0] = 1
    return ids, starts


def generate(model, tokenizer, prompts, new_tokens):
    """Token lists of prompts with their greedy replies, the token that ends them included."""
    room = -(-max(map(len, prompts)) // m.CHUNK) * m.CHUNK + new_tokens
    writer = Writer(model, min(BATCH, len(prompts)), room, tokenizer.token_to_id("<|im_end|>"))
    rows = [None] * len(prompts)
    order = sorted(range(len(rows)), key=lambda i: len(prompts[i]))
    for at in range(0, len(order), BATCH):
        part = order[at : at + BATCH]
        writer.write([prompts[i] for i in part], new_tokens)
        places = zip(part, writer.ids, writer.first[:, 0].tolist(), writer.ends().tolist())
        for i, ids, first, end in places:
            rows[i] = ids[first:end].tolist()
    return rows


@torch.no_grad()
def accepted(model, tokenizer, rows, prompts, device):
    """(accepted, drafted): drafts of token t+2 that equal the model's own token, inside the
    continuations.
    """
    good = asked = 0
    pad = tokenizer.token_to_id("<|endoftext|>")
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for at in range(0, len(order), BATCH):
        part = order[at : at + BATCH]
        ids, starts = padded([rows[i] for i in part], pad, device)
        hidden, _, structure = model.hidden(ids, starts)
        drafts = model.lm_head(model.draft_hidden(ids, hidden, structure)[0]).argmax(-1)
        place = torch.arange(ids.shape[1], device=device)[None]
        first = torch.tensor([len(prompts[i]) for i in part], device=device)[:, None]
        end = torch.tensor([len(rows[i]) for i in part], device=device)[:, None]
        counted = (place[:, :-2] + 1 >= first) & (place[:, :-2] + 2 < end)
        good += ((drafts[:, :-2] == ids[:, 2:]) & counted).sum().item()
        asked += counted.sum().item()
    return good, asked


def typed(text, kind):
    """An argument as the tool's schema types it."""
    if kind == "string" or kind is None:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def to_message(text, tools):
    """A reply's text as an OpenAI message (the thinking block, if any, comes first)."""
    thought, _, rest = text.rpartition("</think>")
    message = {
        "content": CALL.sub("", rest).strip(),
        "reasoning_content": thought.strip(),
        "tool_calls": [],
    }
    kinds = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in tools or []}
    for name, body in CALL.findall(rest):
        schema = kinds.get(name, {})
        arguments = {k: typed(v, schema.get(k, {}).get("type")) for k, v in ARGUMENT.findall(body)}
        message["tool_calls"].append(
            {"function": {"name": name, "arguments": json.dumps(arguments)}}
        )
    return message


def with_mappings(messages):
    """Messages whose tool arguments are objects, as the template wants them."""
    messages = json.loads(json.dumps(messages))
    for message in messages:
        for call in message.get("tool_calls") or []:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


def requests(records):
    """[(record, messages, thinking, grader)] of everything that tiny_eval asks."""
    out = []
    for record in records:
        for thinking in tiny_eval.modes(record):
            out.append(
                (
                    record,
                    record["messages"],
                    thinking,
                    lambda r, x, t=thinking: tiny_eval.grade_reply(r, x, t),
                )
            )
        if record["grade"]["type"] == "tool":
            out.append(
                (record, tiny_eval.after_result(record), False, tiny_eval.grade_after_result)
            )
    return out


def prompts_of(tokenizer, asked):
    """Token ids of each request."""
    texts = [
        tiny_chat.render(with_mappings(messages), r.get("tools"), thinking)
        for r, messages, thinking, _ in asked
    ]
    return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def use_quantised_weights(model):
    """Replaces every matrix to be quantised by its dequantised NVFP4 form."""
    with torch.no_grad():
        for layer in model.all_layers():
            for group in m.groups(layer.full):
                weights = [m.stored(layer, name) for name in group]
                scale = m.global_scale(weights)
                for weight in weights:
                    weight.copy_(m.quantise(weight, scale)[2])


def measure(model, device, short=0, failures=None, new_tokens=tiny_eval.MAX_TOKENS):
    """Prints the table per category and the MTP acceptance; `model` is changed to its quantised
    form.
    """
    use_quantised_weights(model)
    tokenizer = Tokenizer.from_file(str(tiny_data.TARGET / "tokenizer.json"))
    asked = requests(tiny_eval.load(short))
    prompts = prompts_of(tokenizer, asked)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        rows = generate(model, tokenizer, prompts, new_tokens)
        good, drafted = accepted(model, tokenizer, rows, prompts, device)
    graded = []
    for (record, _, thinking, grade), row, prompt in zip(asked, rows, prompts):
        message = to_message(
            tokenizer.decode(row[len(prompt) :], skip_special_tokens=True), record.get("tools")
        )
        graded.append((record, message, grade(record, message)))
    if failures:
        wrong = [
            {"marks": k, "asked": r["messages"][-1]["content"], "grade": r["grade"], "got": g}
            for r, g, k in graded
            if not all(k.values())
        ]
        failures.write_text("".join(json.dumps(w) + "\n" for w in wrong))
    failing = tiny_eval.report(tiny_eval.tally(graded))
    print(f"MTP drafts accepted      {good:6}/{drafted:<6} {good / max(drafted, 1):7.1%}")
    return failing


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--random", type=int)
    parser.add_argument("--short", type=int, default=0)
    parser.add_argument("--failures", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    model = tiny_export.load_model(args).to(args.device).eval()
    measure(model, args.device, args.short, args.failures)


if __name__ == "__main__":
    main()
