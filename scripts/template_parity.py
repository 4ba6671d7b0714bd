"""Compares what chat templates render here and in Hugging Face's transformers.

    python scripts/template_parity.py --render target/release/examples/render TEMPLATE...
    python scripts/template_parity.py --render target/release/examples/render --tekken tekken.json TEMPLATE

Each TEMPLATE is a file of Jinja or a directory of them; the conversations are our own (`template_talks.py`). Prints for each
template how many texts are equal, how many differ, and how many conversations both refuse, with the first difference of
each. Needs transformers and jinja2; build the other side with `cargo build --release --example render`. Exits 1 if a text
differs or one side alone refuses.

With --tekken the other side is Mistral's library of that tokenizer, which renders no templates and frames conversations itself
(needs mistral_common, version 1.13.1 or later). What it refuses a template may render.
"""

import argparse
import json
import pathlib
import subprocess
import sys
from importlib.metadata import version

from template_talks import talks

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def renderer(template):
    """What transformers makes of a conversation."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0}, "<unk>")), chat_template=template, **SPECIAL
    )

    def render(talk):
        return tokenizer.apply_chat_template(
            talk["messages"],
            tools=talk["tools"] or None,
            tokenize=False,
            add_generation_prompt=talk["add_generation_prompt"],
            enable_thinking=talk["enable_thinking"],
        )

    return render


def framer(tekken):
    """What Mistral's library makes of a conversation, special tokens by their names."""
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    tokenizer = MistralTokenizer.from_file(tekken)

    def frame(talk):
        for message in talk["messages"]:
            if "thinking" in message:
                message["reasoning_content"] = message.pop("thinking")
            for call in message.get("tool_calls", []):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        request = ChatCompletionRequest.from_openai(
            messages=talk["messages"],
            tools=talk["tools"] or None,
            reasoning_effort="high" if talk["enable_thinking"] else "none",
        )
        tokens = tokenizer.encode_chat_completion(request).tokens
        return tokenizer.instruct_tokenizer.decode(tokens, special_token_policy=SpecialTokenPolicy.KEEP)

    return frame


def expected(render, tasks):
    for task in tasks:
        try:
            yield {"text": render(json.loads(json.dumps(task)))}
        except Exception as error:  # whatever a template raises is its refusal
            yield {"refused": f"{type(error).__name__}: {error}"}


def found(binary, template, tasks):
    lines = (json.dumps(task | {"template": template, "special": SPECIAL}) for task in tasks)
    process = subprocess.run([binary], input="\n".join(lines), stdout=subprocess.PIPE, check=True, text=True)
    # Texts may hold characters that other functions take for ends of lines.
    return [json.loads(line) for line in process.stdout.split("\n") if line]


def difference(ours, theirs):
    if "refused" in ours or "refused" in theirs:
        return f"ours {json.dumps(ours)[:300]}\n      theirs {json.dumps(theirs)[:300]}"
    at = next((i for i, (a, b) in enumerate(zip(ours["text"], theirs["text"])) if a != b), None)
    at = min(len(ours["text"]), len(theirs["text"])) if at is None else at
    window = slice(max(0, at - 60), at + 60)
    return f"at {at}: ours {ours['text'][window]!r}\n      theirs {theirs['text'][window]!r}"


def compare(binary, name, template, tasks, tekken, shown):
    counts = {"equal": 0, "different": 0, "refused": 0}
    differences = []
    render = framer(tekken) if tekken else renderer(template)
    for (title, task), ours, theirs in zip(
        tasks.items(), found(binary, template, tasks.values()), expected(render, tasks.values()), strict=True
    ):
        if "refused" in theirs and ("refused" in ours or tekken):
            counts["refused"] += 1
        elif ours.get("text") == theirs.get("text"):
            counts["equal"] += 1
        else:
            counts["different"] += 1
            differences.append(f"  {title}: {difference(ours, theirs)}")
    print(name, *(f"{count} {kind}" for kind, count in counts.items()), sep="  ", flush=True)
    print(*differences[:shown], sep="\n", end="\n" if differences else "")
    return counts


def files(paths):
    for path in map(pathlib.Path, paths):
        yield from sorted(path.rglob("*.jinja")) if path.is_dir() else [path]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", required=True, help="the example `render`, built")
    parser.add_argument("--tekken", help="tekken.json of version 15 or later, whose library frames conversations")
    parser.add_argument("--shown", type=int, default=1, help="differences to show of each template")
    parser.add_argument("templates", nargs="+")
    options = parser.parse_args()
    tasks = talks()
    sums = {}
    for path in files(options.templates):
        for kind, count in compare(
            options.render, path.stem, path.read_text(), tasks, options.tekken, options.shown
        ).items():
            sums[kind] = sums.get(kind, 0) + count
    library = "mistral_common" if options.tekken else "transformers"
    print(f"{library} {version(library)}:", *(f"{count} {kind}" for kind, count in sums.items()))
    sys.exit(1 if sums.get("different") else 0)


if __name__ == "__main__":
    main()
