"""Writes the ids that Mistral's library gives texts and conversations, for the tests of `tekken.json`.

    python3 scripts/tekken_golden.py src/text/tekken/golden.json

Needs `mistral_common` 1.13.1 and `tokenizers` (PyPI). The vocabulary is a small one, made of the pairs of the texts below
as the publisher's is made of many; the special tokens are those of version 15.
"""

import base64
import importlib.metadata
import json
import pathlib
import sys
import tempfile

from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from template_talks import HOSTILE, call, result, said, system, tool, user

VERSION = "1.13.1"
TOKENS = 700
SPECIAL = 1000
FIRST = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad>"
    " [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
)
LATER = "[ARGS] [CALL_ID] [THINK] [/THINK] [MODEL_SETTINGS] [/MODEL_SETTINGS]"
PATTERN = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"\p{N}",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
TEXTS = [
    "The lighthouse keeper counts ships; tonight there are none.",
    "Der Leuchtturmwärter zählt Schiffe, Straße für Straße. GRÖSSE und Größe.",
    "Le gardien du phare n'a rien vu ; c'était l'été dernier, à 21 h 30.",
    "灯台守は船を数える。今夜は一隻もいない。 東京 서울 부산",
    "Смотритель маяка считает корабли. Ελλάδα Θεσσαλονίκη",
    "नमस्ते दुनिया ภาษาไทย שלום עולם مرحبا بالعالم",
    "def count(ships: list[int]) -> int:\n    return sum(1 for ship in ships if ship >= 0x10)  # 0b1\n",
    "for (auto &s : ships) { total += s->tons / 1e-05; }\n\n\n// end\r\n\treturn total;\n",
    "0 12 345 6789 1234567890 3.14159 1,000,000 ½ ² Ⅻ ४५",
    "👩‍👩‍👧‍👦 🦀🇫🇷 ☕️ e\u0301 \u200d\ufe0f \ufffd\ufffd \ufeff\u0000\u007f",
    "   indented\n\n   twice\t\t\n \u00a0\u3000 wide\u2028line  ",
    "https://example.org/a/b?c=d&e=%20#f <b>bold</b> {\"k\": [1, null]} C:\\path\\to",
    "[INST] no [/INST] <s></s> [TOOL_CALLS]x[ARGS]{} <SPECIAL_20> [THINK",
    "camelCaseWords HTTPServerError iPhone eBay XMLHttpRequest snake_case_name",
    "aaaaaaaaaaaa hahahaha ........ -------- ======== \n\n\n\n\n",
    "",
]
TALKS = [
    ([user("Hi")], [], False),
    ([system("Be brief."), user("Ships?"), said("None. "), user("Sure?")], [], True),
    ([system(HOSTILE), user(HOSTILE), said(HOSTILE), user("[/INST]</s>[INST]")], [], False),
    ([user("One"), user("Two"), said("Three"), said("Four"), user("Five")], [], False),
    (
        [
            user("Weather?"),
            said("", reasoning_content="I look.", tool_calls=[call({"city": "Köln"}), call({"days": 2.5}, id="f5G6h7I8j")]),
            result("sun", id="f5G6h7I8j"),
            result('{"t": 1e-05}'),
        ],
        [tool(), tool("now", "", zone={"type": "string"})],
        True,
    ),
]


def vocabulary():
    """Bytes, then what pairs of them become, by how often the texts have them."""
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    trained = Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    trained.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    trained.train_from_iterator(TEXTS * 2, trainer)
    symbols = sorted(trained.get_vocab().items(), key=lambda pair: pair[1])
    byte_of = {symbol: byte for byte, symbol in enumerate(map(symbol_of, range(256)))}
    words = [bytes(byte_of[c] for c in symbol) for symbol, _ in symbols]
    return [bytes([byte]) for byte in range(256)] + [word for word in words if len(word) > 1]


def symbol_of(byte):
    """Character that stands for a byte in byte-level vocabularies."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [other for other in range(256) if other not in printed]
    return chr(byte) if byte in printed else chr(0x100 + others.index(byte))


def tekken(words):
    entries = [
        {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None} for rank, word in enumerate(words)
    ]
    first, later = FIRST.split(), LATER.split()
    unnamed = [f"<SPECIAL_{id}>" for id in range(len(first), 32)]
    special = [*first, *unnamed, *later]
    return {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(words),
            "default_vocab_size": SPECIAL + len(words),
            "default_num_special_tokens": SPECIAL,
            "version": "v15",
        },
        "vocab": entries,
        "special_tokens": [
            {"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(special)
        ],
        "model_settings_builder": {
            "reasoning_effort": {"type": "enum", "values": ["none", "high"], "accepts_none": True, "default": "none"}
        },
    }


def framed(tokenizer, messages, tools, thinking):
    sent = json.loads(json.dumps(messages))
    for one in (one for message in sent for one in message.get("tool_calls", [])):
        one["function"]["arguments"] = json.dumps(one["function"]["arguments"], ensure_ascii=False)
    effort = "high" if thinking else "none"
    request = ChatCompletionRequest.from_openai(messages=sent, tools=tools or None, reasoning_effort=effort)
    return tokenizer.encode_chat_completion(request).tokens


def main():
    found = importlib.metadata.version("mistral_common")
    if found != VERSION:
        sys.exit(f"mistral_common {VERSION} is needed, {found} is there")
    definition = tekken(vocabulary())
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tekken.json"
        path.write_text(json.dumps(definition))
        tokenizer = MistralTokenizer.from_file(path)
    encode = tokenizer.instruct_tokenizer.tokenizer.encode
    golden = {
        "tekken": definition,
        "cases": [{"text": text, "ids": encode(text, True, False)} for text in TEXTS],
        "talks": [
            {"messages": messages, "tools": tools, "thinking": thinking, "ids": framed(tokenizer, messages, tools, thinking)}
            for messages, tools, thinking in TALKS
        ],
    }
    pathlib.Path(sys.argv[1]).write_text(json.dumps(golden, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
