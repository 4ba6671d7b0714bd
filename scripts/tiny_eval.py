"""Asks a running server the held-out questions of `tiny` and grades the answers. Standard library
only.

    python scripts/tiny_eval.py --url http://127.0.0.1:8000              # everything
    python scripts/tiny_eval.py --url http://127.0.0.1:8000 --short 40   # a seeded subset
    python scripts/tiny_eval.py --url http://127.0.0.1:8000 --served served.jsonl

The server speaks OpenAI's chat API. Questions are asked greedily; facts and arithmetic with
thinking off and on, the rest with thinking off. A tool question has two steps: the call, and the
answer after the tool's result. Exits with 1 when a category is below its threshold, 2 when the
server cannot be asked.

With --served, each question is also asked by token ids, and a line {"id", "prompt_tokens",
"reply_tokens"} per reply is written: what `atlas-<target> selftest --drafts` compares drafts with.
"""

import argparse
import json
import random
import re
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HELDOUT = Path(__file__).resolve().parent.parent / "targets" / "_model" / "tiny" / "heldout.jsonl"
THRESHOLDS = {
    "facts": 0.95,
    "facts, thinking": 0.95,
    "arithmetic": 0.95,
    "arithmetic, thinking": 0.95,
    "tools, call": 0.95,
    "tools, after result": 0.95,
    "json, valid": 0.95,
}
BOTH_MODES = ("facts", "arithmetic")
MAX_TOKENS = 400
TIMEOUT_S = 120
TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


# ---- grading ---------------------------------------------------------------------------------------------


def mentions(content, expected):
    """Whether the text holds the expected words as whole words, whatever the case."""
    return re.search(rf"(?<!\w){re.escape(expected)}(?!\w)", content, re.IGNORECASE) is not None


def numbers(content):
    return [int(n) for n in re.findall(r"-?\d+", content)]


def obeys(value, schema):
    """Whether a JSON value obeys the part of JSON Schema that the questions use."""
    kind = schema.get("type")
    if kind and (
        not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")
    ):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if kind == "array":
        return all(obeys(item, schema.get("items", {})) for item in value)
    if kind != "object":
        return True
    known = schema.get("properties", {})
    if schema.get("additionalProperties") is False and not set(value) <= set(known):
        return False
    return set(schema.get("required", [])) <= set(value) and all(
        obeys(v, known.get(k, {})) for k, v in value.items()
    )


def same(left, right):
    """JSON equality that keeps booleans apart from numbers."""
    return left == right and json.dumps(left, sort_keys=True).count("true") == json.dumps(
        right, sort_keys=True
    ).count("true")


def parsed(text):
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return None


def grade_json(content, grade):
    value = parsed(content)
    valid = value is not None and obeys(value, grade["schema"])
    return {"json, valid": valid, "json, right values": valid and same(value, grade["value"])}


def grade_call(message, grade):
    calls = message.get("tool_calls") or []
    if len(calls) != 1:
        return {"tools, call": False}
    function = calls[0]["function"]
    return {
        "tools, call": function["name"] == grade["name"]
        and same(parsed(function["arguments"]), grade["arguments"])
    }


def grade_text(content, grade):
    kind, expect = grade["type"], grade["expect"]
    if kind == "contains":
        return all(mentions(content, e) for e in expect)
    if kind == "exact":
        return content == expect
    if kind == "starts":
        return content.startswith(expect)
    found = numbers(content)
    return bool(found) and (found[0] if kind == "first_number" else found[-1]) == expect


def grade_reply(record, message, thinking):
    """{category: right} of the first reply."""
    grade, content = record["grade"], (message.get("content") or "").strip()
    if grade["type"] == "tool":
        return grade_call(message, grade)
    if grade["type"] == "json":
        return grade_json(content, grade)
    return {record["category"] + (", thinking" if thinking else ""): grade_text(content, grade)}


def after_result(record):
    """Messages once the right call was made and its result came back."""
    grade = record["grade"]
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": grade["name"], "arguments": json.dumps(grade["arguments"])},
    }
    return record["messages"] + [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": grade["result"]},
    ]


def grade_after_result(record, message):
    content = message.get("content") or ""
    right = (
        not message.get("tool_calls")
        and content.strip()
        and all(mentions(content, m) for m in record["grade"]["final"])
    )
    return {"tools, after result": bool(right)}


def modes(record):
    return (False, True) if record["category"] in BOTH_MODES else (False,)


# ---- asking ----------------------------------------------------------------------------------------------


def post(url, path, body):
    request = urllib.request.Request(
        url.rstrip("/") + path,
        json.dumps({"model": "tiny", **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        return json.load(response)


def ask(url, conversation):
    """(the assistant's message, the usage) of one request."""
    body = {**conversation, "temperature": 0, "max_tokens": MAX_TOKENS}
    answer = post(url, "/v1/chat/completions", body)
    return answer["choices"][0]["message"], answer["usage"]


def exchange(url, conversation, usage):
    """The token ids of a conversation's prompt and of the reply that is served to them: of as many
    tokens as the chat's."""
    prompt = post(url, "/tokenize", conversation)["tokens"]
    body = {"prompt": prompt, "temperature": 0, "max_tokens": MAX_TOKENS}
    shown = {"logprobs": 0, "return_tokens_as_token_ids": True}
    choice = post(url, "/v1/completions", {**body, **shown})["choices"][0]
    reply = [int(name.removeprefix("token_id:")) for name in choice["logprobs"]["tokens"]]
    if (len(prompt), len(reply)) != (usage["prompt_tokens"], usage["completion_tokens"]):
        raise ValueError(f"{len(prompt)} and {len(reply)} tokens, but the chat says {usage}")
    return {"prompt_tokens": prompt, "reply_tokens": reply}


def turns(record):
    """[(messages, thinking, grade of the reply)] of one record."""
    first = [
        (record["messages"], thinking, lambda m, t=thinking: grade_reply(record, m, t))
        for thinking in modes(record)
    ]
    if record["grade"]["type"] != "tool":
        return first
    return first + [(after_result(record), False, lambda m: grade_after_result(record, m))]


def examine(url, record, served):
    """[(question, reply, {category: right}, exchange if `served`)] of one record."""
    out = []
    for messages, thinking, grade in turns(record):
        conversation = {
            "messages": messages,
            "chat_template_kwargs": {"enable_thinking": thinking},
            **({"tools": record["tools"]} if record.get("tools") else {}),
        }
        message, usage = ask(url, conversation)
        tokens = exchange(url, conversation, usage) if served else None
        out.append((record, message, grade(message), tokens))
    return out


def write_served(path, graded):
    lines = [json.dumps({"id": record["id"], **tokens}) for record, _, _, tokens in graded]
    path.write_text("\n".join(lines) + "\n")


def load(short):
    records = [json.loads(line) for line in HELDOUT.read_text().splitlines()]
    if short and short < len(records):
        records = sorted(random.Random(0).sample(records, short), key=lambda r: r["id"])
    return records


def tally(graded):
    """{category: (right, asked)}."""
    table = {}
    for _, _, marks, _ in graded:
        for category, right in marks.items():
            good, asked = table.get(category, (0, 0))
            table[category] = (good + bool(right), asked + 1)
    return table


def report(table):
    """Prints the table; returns the categories below their threshold."""
    failing = []
    for category, (good, asked) in sorted(table.items()):
        threshold = THRESHOLDS.get(category)
        low = threshold is not None and good < threshold * asked
        failing += [category] if low else []
        need = "" if threshold is None else f"  needs {threshold:.0%}{'  BELOW' if low else ''}"
        print(f"{category:24} {good:4}/{asked:<4} {good / asked:7.1%}{need}")
    return failing


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--short", type=int, default=0, help="ask only this many questions")
    parser.add_argument("--parallel", type=int, default=4, help="requests at a time")
    parser.add_argument("--served", type=Path, help="write the token ids of all replies here")
    parser.add_argument("--failures", action="store_true", help="print wrong answers")
    args = parser.parse_args()
    try:
        with ThreadPoolExecutor(args.parallel) as pool:
            parts = pool.map(lambda r: examine(args.url, r, args.served), load(args.short))
            graded = [turn for part in parts for turn in part]
    except (urllib.error.URLError, OSError, KeyError, ValueError) as error:
        print(f"cannot ask {args.url}: {error}", file=sys.stderr)
        return 2
    if args.served:
        write_served(args.served, graded)
    if args.failures:
        for record, message, marks, _ in graded:
            if not all(marks.values()):
                print(
                    json.dumps(
                        {
                            "marks": marks,
                            "asked": record["messages"][-1]["content"],
                            "grade": record["grade"],
                            "got": message,
                        }
                    )
                )
    return 1 if report(tally(graded)) else 0


if __name__ == "__main__":
    sys.exit(main())
