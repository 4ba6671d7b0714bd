"""Text for `tiny`: generated conversations, the tokenizer trained on them, and the held-out
questions.

    python scripts/tiny_data.py tokenizer        # writes tokenizer.json and tokenizer_config.json
    python scripts/tiny_data.py heldout          # writes heldout.jsonl
    python scripts/tiny_data.py check-template   # the Jinja template and tiny_chat.render give the same text
    python scripts/tiny_data.py show --count 5   # prints samples

Files are written to targets/_model/tiny. Every sample is a function of its seed. Needs
`tokenizers`; the template check also needs `jinja2` and `minijinja`.
"""

import argparse
import json
import random
from pathlib import Path

import tiny_chat
import tiny_words as w
from tiny_samples import Maker

TARGET = Path(__file__).resolve().parent.parent / "targets" / "_model" / "tiny"
VOCAB_SIZE = 3072  # rows of the embedding; the tokenizer itself has at most this many entries
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

SYSTEMS = [
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are helpful and honest.",
    "Answer the questions of the user.",
    "You are a friendly assistant.",
    "Help the user.",
    "You are a careful assistant. Use the tools when needed.",
    "Be polite.",
    "You are Tiny.",
]
MIX = {
    "arithmetic": 25,
    "fact": 15,
    "tools": 50,
    "json_task": 10,
    "copying": 8,
    "notes": 4,
    "refusal": 4,
    "talk": 4,
    "memory": 2,
}


class Conversations:
    """An endless, seeded stream of {"messages", "tools", "turns"}."""

    def __init__(self, seed, split="train"):
        self.rng = random.Random(f"conversation {split} {seed}")
        self.maker = Maker(f"turn {split} {seed}", split)

    def plain_turn(self):
        kinds = [k for k in MIX if k not in ("tools", "memory")]
        return getattr(self.maker, self.rng.choices(kinds, [MIX[k] for k in kinds])[0])()

    def draw(self):
        """A conversation of one main kind, at times mixed with others."""
        rng = self.rng
        kind = rng.choices(list(MIX), MIX.values())[0]
        count = rng.choice([1, 1, 1, 2, 3, 4])
        if kind in ("arithmetic", "fact"):
            count = rng.choice([1, 1, 2, 4, 8])
        if kind == "tools":
            return self.with_tools(rng.choice([1, 1, 1, 1, 2, 3]))
        if kind == "memory":
            return self.memory()
        if rng.random() < 0.02:
            return self.build([self.plain_turn() for _ in range(rng.randint(6, 24))], self.system())
        mixed = rng.random() < 0.3
        turns = [self.plain_turn() if mixed else getattr(self.maker, kind)() for _ in range(count)]
        if rng.random() < 0.06:
            return self.brief(turns)
        if kind == "talk" and rng.random() < 0.4:
            return self.persona()
        return self.build(turns, self.system())

    def system(self, odds=0.35):
        return self.rng.choice(SYSTEMS) if self.rng.random() < odds else None

    def brief(self, turns):
        """A system message that asks for the bare answer."""
        for turn in turns:
            turn.answer = turn.brief or turn.answer
        return self.build(
            turns,
            self.rng.choice(
                ["Answer briefly.", "Give only the answer.", "Answer with the result only."]
            ),
        )

    def persona(self):
        name = self.maker.apart(
            lambda: self.rng.choice(w.FIRST_NAMES + w.LAST_NAMES), key=lambda n: ["persona", n]
        )
        system = self.rng.choice(
            ["You are {n}.", "Your name is {n}.", "You are {n}, a helpful assistant."]
        ).format(n=name)
        return self.build([self.maker.talk(name) for _ in range(self.rng.randint(1, 3))], system)

    def memory(self):
        """The user says something about themselves and asks for it later."""
        rng, maker = self.rng, self.maker
        options = [
            ("name", rng.choice(w.FIRST_NAMES)),
            ("job", rng.choice(w.JOBS)),
            ("favourite food", rng.choice(w.FOODS)),
            ("city", rng.choice(w.CITIES)),
            ("favourite animal", rng.choice(w.ANIMALS)),
            ("age", str(rng.randint(5, 95))),
        ]
        thing, value = rng.choice(options)
        told = maker.talk()
        told.ask = rng.choice(["My {t} is {v}.", "Remember this: my {t} is {v}."]).format(
            t=thing, v=value
        )
        told.answer, told.think = (
            f"I will remember that your {thing} is {value}.",
            "The user tells me something.",
        )
        asked = maker.talk()
        asked.ask = rng.choice(
            ["What is my {t}?", "Tell me my {t}.", "Do you remember my {t}?", "Do you know my {t}?"]
        ).format(t=thing)
        asked.answer, asked.think = (
            f"Your {thing} is {value}.",
            f"The user said that the {thing} is {value}.",
        )
        between = [self.plain_turn() for _ in range(rng.choice([0, 0, 1, 2]))]
        return self.build([told, *between, asked], self.system())

    def with_tools(self, count):
        rng, maker = self.rng, self.maker
        offered = maker.tool_set()
        turns = []
        for _ in range(count):
            kind = rng.random()
            turn = (
                self.plain_turn()
                if kind < 0.12
                else maker.tool_pair(offered)
                if kind < 0.2
                else maker.tool_turn(offered)
            )
            if turn is not None:
                turns.append(turn)
        if not turns:
            return self.with_tools(count)
        return self.build(turns, self.system(), [t for t, _ in offered])

    def build(self, turns, system=None, tools=None):
        thinking = self.rng.random() < 0.4
        messages = [{"role": "system", "content": system}] if system else []
        for turn in turns:
            messages += turn_messages(turn, thinking)
        if turns[-1].calls and self.rng.random() < 0.1:
            messages = messages[: -1 - len(turns[-1].calls)]  # ends at the call
        return {"messages": messages, "tools": tools, "turns": turns, "thinking": thinking}


def turn_messages(turn, thinking=False):
    """Messages of one turn: question, calls and results, answer."""
    messages = [{"role": "user", "content": turn.ask}]
    if turn.calls:
        calls = [
            {"type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in turn.calls
        ]
        think = " ".join(c["think"] for c in turn.calls) if thinking else ""
        messages.append(
            {"role": "assistant", "content": "", "reasoning_content": think, "tool_calls": calls}
        )
        messages += [{"role": "tool", "content": c["result"]} for c in turn.calls]
    messages.append(
        {
            "role": "assistant",
            "content": turn.answer,
            "reasoning_content": turn.think if thinking else "",
        }
    )
    return messages


# ---- tokenizer -------------------------------------------------------------------------------------------


def blank_tokenizer():
    """Byte-level BPE with Qwen2's split, before training."""
    from tokenizers import (
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def train_tokenizer(samples):
    """Writes tokenizer.json and tokenizer_config.json; the base vocabulary first, added tokens
    after it.
    """
    from tokenizers import AddedToken, pre_tokenizers, trainers

    tokenizer = blank_tokenizer()
    stream = Conversations(0)
    texts = []
    for _ in range(samples):
        conversation = stream.draw()
        text = tiny_chat.render(conversation["messages"], conversation["tools"])
        for token in SPECIAL + ADDED:
            text = text.replace(token, "\n")
        texts.append(text)
    base = VOCAB_SIZE - len(SPECIAL) - len(ADDED)
    trainer = trainers.BpeTrainer(
        vocab_size=base,
        min_frequency=20,
        show_progress=False,
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in ADDED])
    tokenizer.save(str(TARGET / "tokenizer.json"))
    write_tokenizer_config(tokenizer)
    return tokenizer


def write_tokenizer_config(tokenizer):
    added = {
        str(tokenizer.token_to_id(t)): {
            "content": t,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": t in SPECIAL,
        }
        for t in SPECIAL + ADDED
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 2048,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    (TARGET / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


# ---- packed rows -----------------------------------------------------------------------------------------

LOSS = {"prompt": 0.03, "history": 0.6, "reply": 1.0}
LONGEST = 2000  # tokens; longer conversations are left out


def encode(tokenizer, conversations):
    """[(ids, weights)] of conversations; every part is tokenised alone, as it is when serving."""
    texts, owners, weights = [], [], []
    for i, conversation in enumerate(conversations):
        for text, kind in tiny_chat.parts(conversation["messages"], conversation["tools"]):
            texts.append(text)
            owners.append(i)
            weights.append(LOSS[kind])
    out = [([], []) for _ in conversations]
    for encoded, owner, weight in zip(
        tokenizer.encode_batch_fast(texts, add_special_tokens=False), owners, weights
    ):
        out[owner][0].extend(encoded.ids)
        out[owner][1].extend([weight] * len(encoded.ids))
    return out


def packed_rows(seed, length):
    """Endless (ids, weights, starts) lists of `length` tokens: whole conversations back to back,
    padded at the end.

    `starts` is 1 at the first token of each conversation and of the padding.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    pad = tokenizer.token_to_id("<|endoftext|>")
    stream = Conversations(seed)
    waiting = []
    ids, weights, starts = [], [], []
    while True:
        if not waiting:
            waiting = [
                c
                for c in encode(tokenizer, [stream.draw() for _ in range(64)])
                if len(c[0]) <= min(LONGEST, length)
            ]
        fits = next((i for i, c in enumerate(waiting) if len(ids) + len(c[0]) <= length), None)
        if fits is None:
            rest = length - len(ids)
            yield (
                ids + [pad] * rest,
                weights + [0.0] * rest,
                starts + [1] * (rest > 0) + [0] * (rest - 1),
            )
            ids, weights, starts = [], [], []
            continue
        more_ids, more_weights = waiting.pop(fits)
        ids, weights, starts = (
            ids + more_ids,
            weights + more_weights,
            starts + [1] + [0] * (len(more_ids) - 1),
        )


# ---- held-out questions ----------------------------------------------------------------------------------

HELDOUT = {
    "facts": ("fact", 100),
    "arithmetic": ("arithmetic", 120),
    "copy": ("copying", 50),
    "json": ("json_task", 80),
    "notes": ("notes", 30),
    "refusal": ("refusal", 40),
}
HELDOUT_TOOLS = 100
HELDOUT_SEED = 20260101


def heldout_records():
    """Records {id, category, messages, tools?, grade}; the first fact asks for the capital of
    France.
    """
    maker = Maker(HELDOUT_SEED, "heldout")
    rng = random.Random(HELDOUT_SEED)
    yield {
        "category": "facts",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "grade": {"type": "contains", "expect": ["Paris"]},
    }
    for category, (method, count) in HELDOUT.items():
        seen = set()
        while len(seen) < count:
            turn = getattr(maker, method)()
            if turn.ask in seen:
                continue
            seen.add(turn.ask)
            yield {
                "category": category,
                "messages": heldout_messages(rng, maker, turn),
                "grade": turn.grade,
            }
    for _ in range(HELDOUT_TOOLS):
        offered = maker.tool_set()
        turn = maker.tool_turn(offered)
        while turn is None:
            offered = maker.tool_set()
            turn = maker.tool_turn(offered)
        call = turn.calls[0]
        grade = {
            "type": "tool",
            "name": call["name"],
            "arguments": call["arguments"],
            "result": call["result"],
            "final": turn.grade["final"],
        }
        yield {
            "category": "tools",
            "messages": heldout_messages(rng, maker, turn),
            "tools": [t for t, _ in offered],
            "grade": grade,
        }


def heldout_messages(rng, maker, turn):
    """The question, at times after a system message or an earlier exchange."""
    messages = []
    if rng.random() < 0.25:
        messages.append({"role": "system", "content": "You are a helpful assistant."})
    if rng.random() < 0.15:
        earlier = maker.fact()
        messages += [
            {"role": "user", "content": earlier.ask},
            {"role": "assistant", "content": earlier.answer},
        ]
    return messages + [{"role": "user", "content": turn.ask}]


def write_heldout():
    lines = [
        json.dumps({"id": i, **record}, ensure_ascii=False)
        for i, record in enumerate(heldout_records())
    ]
    (TARGET / "heldout.jsonl").write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} questions")


# ---- template check --------------------------------------------------------------------------------------


def raise_exception(message):
    raise ValueError(message)


def template_renderers():
    """Functions (messages, tools, thinking) -> text by Jinja2 (with and without block trimming) and
    by minijinja.
    """
    import jinja2
    import jinja2.sandbox
    import minijinja

    source = (TARGET / "chat_template.jinja").read_text()
    to_json = lambda value: json.dumps(value, ensure_ascii=False)
    renderers = []
    for trim in (True, False):
        env = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=trim, lstrip_blocks=trim, extensions=["jinja2.ext.loopcontrols"]
        )
        env.filters["tojson"] = to_json
        env.globals["raise_exception"] = raise_exception
        renderers.append(env.from_string(source).render)
    mini = minijinja.Environment(templates={"chat": source})
    mini.add_filter("tojson", to_json)
    mini.add_function("raise_exception", raise_exception)
    renderers.append(lambda **context: mini.render_template("chat", **context))
    return renderers


def check_template(count):
    """Compares every renderer with tiny_chat.render on generated conversations."""
    renderers = template_renderers()
    stream = Conversations(7)
    for i in range(count):
        conversation = stream.draw()
        messages, tools = conversation["messages"], conversation["tools"]
        for thinking in (None, True, False):
            want = tiny_chat.render(messages, tools, thinking)
            context = {
                "messages": messages,
                "tools": tools,
                "add_generation_prompt": thinking is not None,
            }
            if thinking is not None:
                context["enable_thinking"] = thinking
            for which, render in enumerate(renderers):
                got = render(**context)
                if got != want:
                    raise SystemExit(f"renderer {which} differs on sample {i}:\n{got!r}\n{want!r}")
    print(f"{count} conversations: same text")


def show(count, seed, split):
    stream = Conversations(seed, split)
    for _ in range(count):
        conversation = stream.draw()
        print(tiny_chat.render(conversation["messages"], conversation["tools"]))
        print("=" * 80)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["tokenizer", "heldout", "check-template", "show"])
    parser.add_argument("--count", type=int, default=0, help="samples to draw")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--split", choices=["train", "heldout"], default="train")
    args = parser.parse_args()
    if args.verb == "tokenizer":
        print(f"{train_tokenizer(args.count or 40000).get_vocab_size()} entries")
    elif args.verb == "heldout":
        write_heldout()
    elif args.verb == "check-template":
        check_template(args.count or 500)
    else:
        show(args.count or 5, args.seed, args.split)


if __name__ == "__main__":
    main()
