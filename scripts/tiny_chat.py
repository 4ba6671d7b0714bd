"""The wire format of `tiny`'s chat template, in Python: text cut into parts that are prompt or
reply.

`targets/_model/tiny/chat_template.jinja` defines the format; `python scripts/tiny_data.py check-template` shows that
`render` and the template agree. Training needs the cuts, which a template cannot give.
"""

import json

TOOLS_HEAD = "# Tools\n\n<tools>"
TOOLS_TAIL = (
    "\n</tools>\n\nTo call a tool, reply with:\n<tool_call>\n<function=NAME>\n<parameter=ARG>\nVALUE\n</parameter>\n"
    "</function>\n</tool_call>"
)


def call_text(call):
    """One tool call; strings are written raw, every other value as JSON."""
    function = call["function"]
    lines = [f"<tool_call>\n<function={function['name']}>\n"]
    for key, value in function["arguments"].items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"<parameter={key}>\n{shown}\n</parameter>\n")
    return "".join(lines) + "</function>\n</tool_call>"


def reply_text(message):
    """Content and tool calls of an assistant message."""
    content = (message.get("content") or "").strip()
    calls = "\n".join(call_text(c) for c in message.get("tool_calls") or [])
    return content + ("\n\n" if content and calls else "") + calls


def system_text(messages, tools):
    first = messages[0]["content"].strip() if messages and messages[0]["role"] == "system" else ""
    if not tools:
        return first
    listed = "".join("\n" + json.dumps(t, ensure_ascii=False) for t in tools)
    return TOOLS_HEAD + listed + TOOLS_TAIL + ("\n\n" + first if first else "")


def assistant_parts(message, current):
    """Parts of an assistant turn; `current` turns (after the last question) keep their thinking."""
    reply = reply_text(message) + "<|im_end|>"
    if not current:
        return [("<|im_start|>assistant\n", "prompt"), (reply, "history"), ("\n", "prompt")]
    thought = (message.get("reasoning_content") or "").strip()
    if thought:
        return [
            ("<|im_start|>assistant\n<think>\n", "prompt"),
            (f"{thought}\n</think>\n\n{reply}", "reply"),
            ("\n", "prompt"),
        ]
    return [
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "prompt"),
        (reply, "reply"),
        ("\n", "prompt"),
    ]


def parts(messages, tools=None):
    """[(text, "prompt" | "history" | "reply")] of a conversation."""
    out = []
    system = system_text(messages, tools)
    if system:
        out.append((f"<|im_start|>system\n{system}<|im_end|>\n", "prompt"))
    last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    for i, message in enumerate(messages):
        role = message["role"]
        if role == "assistant":
            out += assistant_parts(message, i > last)
        elif role == "tool":
            head = "<|im_start|>user" if messages[i - 1]["role"] != "tool" else ""
            tail = (
                "<|im_end|>\n"
                if i + 1 == len(messages) or messages[i + 1]["role"] != "tool"
                else ""
            )
            out.append(
                (
                    f"{head}\n<tool_response>\n{message['content'].strip()}\n</tool_response>{tail}",
                    "prompt",
                )
            )
        elif role == "user" or i > 0:
            out.append((f"<|im_start|>{role}\n{message['content'].strip()}<|im_end|>\n", "prompt"))
    return out


def render(messages, tools=None, thinking=None):
    """Whole text; with `thinking` True or False also the head of the reply to come."""
    text = "".join(t for t, _ in parts(messages, tools))
    if thinking is None:
        return text
    return text + "<|im_start|>assistant\n<think>\n" + ("" if thinking else "\n</think>\n\n")
