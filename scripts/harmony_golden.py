"""Writes what OpenAI's library makes of conversations, for the test of the renderer of harmony.

    TIKTOKEN_ENCODINGS_BASE=DIRECTORY python3 scripts/harmony_golden.py src/text/template/harmony/golden.json

Needs `openai-harmony` 0.0.8 (PyPI) and, in DIRECTORY, `o200k_base.tiktoken`: the library downloads it otherwise. Each case
is a conversation in the form of the chat completions API, as the server's routes hand it to the renderer, and the text
with its special tokens. The library frames messages and tools; that reasoning before the last final answer is left out,
and in which channel a message stands, is said here, by the rules of its `docs/format.md`.

The ids of every text are compared too: encoded as text between special tokens, as the server does it, it has those that
the library gives to the conversation.
"""

import importlib.metadata
import json
import sys

from openai_harmony import (Author, Conversation, DeveloperContent, HarmonyEncodingName, Message, ReasoningEffort, Role,
                            SystemContent, ToolDescription, load_harmony_encoding)

VERSION = "0.0.8"


def tool(name, description=None, parameters=None):
    function = {"name": name}
    if description is not None:
        function["description"] = description
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def schema(properties, *required, **more):
    return {"type": "object", "properties": properties, "required": list(required), **more}


def call(at, name, **arguments):
    return {"id": at, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text):
    return {"role": "user", "content": text}


def said(content, reasoning=None, calls=None):
    message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def result(at, text):
    return {"role": "tool", "tool_call_id": at, "content": text}


WEATHER = tool("get_weather", "Gets the weather.\nOf a city.", schema({
    "city": {"type": "string", "description": "The city", "examples": ["Paris", "Köln"]},
    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
    "days": {"type": "integer", "default": 3}}, "city"))
CLOCK = tool("clock", "Tells the time.")
PLAIN = tool("plain", "", {})
NOTHING = tool("nothing", "Takes an object without members.", schema({}))
ODD = tool("odd.tool-1", "Ends with a line break.\r\nAnd another.\n", schema({
    "z": {"type": "string", "title": "T", "description": "one\ntwo", "examples": ["a", 1], "default": "x"},
    "a": {"type": "number", "nullable": True, "default": 1.0}, "list": {"type": "array", "items": {"type": "string"}},
    "any": {"type": "array"}, "types": {"type": ["string", "null", "integer"]}, "none": {}, "no": {"type": []},
    "nested": {"type": "object", "description": "Inner", "properties": {
        "k": {"type": "string", "description": "kd"}, "deep": {"type": "object", "nullable": True, "properties": {
            "x": {"type": "boolean", "default": True}}}}, "required": ["k"]},
    "objects": {"type": "array", "items": schema({"q": {"type": "string"}}, description="Item")},
    "enums": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}, "empty": {"type": "string", "enum": []},
    "numbers": {"type": "integer", "enum": [1, 2]}, "untyped": {"enum": ["a"]}, "ref": {"$ref": "#/$defs/x"},
    "either": {"anyOf": [{"type": "string"}]}, "object": {"type": "object", "default": {"b": 1, "a": [1, 2]}},
    "null": {"type": "string", "default": None}, "odd key": {"type": "boolean", "title": "", "description": ""},
    "ex": {"type": "string", "examples": []}, "listed": {"type": ["string"], "nullable": True}}, "z",
    description="All of it"))
ONE_OF = tool("one_of", "Alternatives.", schema({
    "u": {"description": "ud", "default": "dv", "oneOf": [
        {"type": "string", "description": "sd", "default": "q"}, {"type": "integer", "default": 5},
        {"type": "object", "description": "od", "properties": {"k": {"oneOf": [{"type": "string"}]}}},
        {"type": "string", "enum": ["x"], "default": "x", "nullable": True}]},
    "v": {"title": "vt", "description": "first", "examples": ["ex"], "oneOf": [
        {"type": "string", "description": "first"}, {"type": "string", "description": "first"}]},
    "w": {"oneOf": [{"type": "string", "description": "d1"}, {"type": "string", "description": "d2"}]},
    "x": {"description": "d2", "enum": ["t"], "default": "t", "oneOf": [
        {"type": "string", "description": "d1"}, {"type": "string", "description": "d2"}]},
    "y": {"type": "array", "items": {"oneOf": [{"type": "string", "description": "s", "default": "q"},
                                               {"type": "object", "properties": {"z": {"type": "string"}}}]}},
    "none": {"oneOf": [], "description": "zz"}}, "v"))
TOP = tool("top", "Alternatives of everything.", {"oneOf": [
    {"type": "string", "description": "x", "default": "q"}, {"type": "object", "description": "ob", "properties": {}}]})

SYSTEM = {"role": "system", "content": "Be brief.\n\nAnd kind."}
LOOP = [user("Weather in Paris?"), said("", "I need the weather.", [call("c1", "get_weather", city="Paris")]),
        result("c1", "{\"sky\": \"clear\"}")]

CASES = {
    "one question": {"messages": [user("Hello, how are you?")]},
    "no message": {"messages": []},
    "instructions": {"messages": [SYSTEM, user("Hi")]},
    "low effort": {"messages": [user("Hi")], "variables": {"reasoning_effort": "low"}},
    "high effort and a date": {"messages": [user("Hi")], "variables": {
        "reasoning_effort": "high", "conversation_start_date": "2025-06-28", "knowledge_cutoff": "2024-10",
        "model_identity": "You are a test."}},
    "tools": {"messages": [SYSTEM, user("Hi")], "tools": [WEATHER, CLOCK, PLAIN, NOTHING]},
    "tools alone": {"messages": [user("Hi")], "tools": [CLOCK]},
    "schemas": {"messages": [user("Hi")], "tools": [ODD, ONE_OF, TOP]},
    "an answer keeps no reasoning": {"messages": [user("a"), said("b", "why b"), user("c"), said("d", "why d"), user("e")]},
    "a tool loop keeps its reasoning": {"messages": LOOP, "tools": [WEATHER]},
    "a loop of several rounds": {"messages": LOOP + [
        said("I look at the clock too.", "The time as well.", [call("c2", "clock"), call("c3", "get_weather", city="Köln",
                                                                                         days=2)]),
        result("c2", "12:00"), result("c3", "rain")], "tools": [WEATHER, CLOCK]},
    "a loop that is over": {"messages": LOOP + [said("It is clear.", "Clear."), user("And tomorrow?")], "tools": [WEATHER]},
    "a second loop": {"messages": LOOP + [said("It is clear.", "Clear."), user("Now?"),
                                          said("", "Look again.", [call("c4", "clock")]), result("c4", "13:00")],
                      "tools": [WEATHER, CLOCK]},
    "a loop without reasoning": {"messages": [user("a"), said("Just a moment.", None, [call("c1", "clock")]),
                                              result("c1", "now")], "tools": [CLOCK]},
    "a later instruction": {"messages": [SYSTEM, user("a"), said("b"), {"role": "system", "content": "Now in French."},
                                         user("c")]},
    "no thinking": {"messages": [user("a")], "thinking": False},
    "a loop without thinking": {"messages": [user("a"), said("", None, [call("c1", "clock")]), result("c1", "now")],
                                "tools": [CLOCK], "thinking": False},
    "texts": {"messages": [user("Ünïcödé 漢字 🦀\n\t  spaces   and\r\nlines\n\n\n1234567 it's we'LL"), said(" \n"),
                           user("def f(x):\n    return x\n")]},
}


def system(case):
    variables = case.get("variables", {})
    content = SystemContent.new()
    default = "medium" if case.get("thinking", True) else "low"
    content = content.with_reasoning_effort(ReasoningEffort[variables.get("reasoning_effort", default).upper()])
    if "conversation_start_date" in variables:
        content = content.with_conversation_start_date(variables["conversation_start_date"])
    if "knowledge_cutoff" in variables:
        content = content.with_knowledge_cutoff(variables["knowledge_cutoff"])
    if "model_identity" in variables:
        content = content.with_model_identity(variables["model_identity"])
    return Message.from_role_and_content(Role.SYSTEM, content)


def developer(instructions, tools):
    content = DeveloperContent.new()
    if instructions is not None:
        content = content.with_instructions(instructions)
    if tools:
        described = [one["function"] for one in tools]
        content = content.with_function_tools([
            ToolDescription.new(one["name"], one.get("description", ""), parameters=one.get("parameters"))
            for one in described])
    return Message.from_role_and_content(Role.DEVELOPER, content)


def of_assistant(message, running, thinks):
    """A message of the API as those of the format."""
    calls = message.get("tool_calls", [])
    reasoning = message.get("reasoning_content")
    if reasoning is None and not thinks and calls:
        reasoning = ""
    write = lambda text: Message.from_role_and_content(Role.ASSISTANT, text)
    if running and reasoning is not None:
        yield write(reasoning).with_channel("analysis")
    if message["content"]:
        yield write(message["content"]).with_channel("commentary" if calls else "final")
    for one in calls:
        arguments = json.dumps(one["function"]["arguments"], ensure_ascii=False, separators=(",", ":"))
        yield (write(arguments).with_channel("commentary").with_recipient(f"functions.{one['function']['name']}")
               .with_content_type("json"))


def messages(case):
    rest, tools, thinks = list(case["messages"]), case.get("tools", []), case.get("thinking", True)
    yield system(case)
    instructions = rest.pop(0)["content"] if rest and rest[0]["role"] == "system" else None
    if instructions is not None or tools:
        yield developer(instructions, tools)
    finals = [at for at, one in enumerate(rest)
              if one["role"] == "assistant" and not one.get("tool_calls") and one["content"]]
    running = finals[-1] + 1 if finals else 0
    names = {}
    for at, one in enumerate(rest):
        match one["role"]:
            case "system":
                yield developer(one["content"], [])
            case "user":
                yield Message.from_role_and_content(Role.USER, one["content"])
            case "assistant":
                names.update({made["id"]: made["function"]["name"] for made in one.get("tool_calls", [])})
                yield from of_assistant(one, at >= running, thinks)
            case "tool":
                author = Author.new(Role.TOOL, f"functions.{names[one['tool_call_id']]}")
                yield (Message.from_author_and_content(author, one["content"]).with_recipient("assistant")
                       .with_channel("commentary"))
    if not thinks:
        yield Message.from_role_and_content(Role.ASSISTANT, "").with_channel("analysis")


def main():
    version = importlib.metadata.version("openai-harmony")
    if version != VERSION:
        raise SystemExit(f"openai-harmony {VERSION} is needed, this is {version}")
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    cases = []
    for name, case in CASES.items():
        conversation = Conversation.from_messages(list(messages(case)))
        ids = encoding.render_conversation_for_completion(conversation, Role.ASSISTANT)
        text = encoding.decode_utf8(ids)
        if encoding.encode(text, allowed_special="all") != ids:
            raise SystemExit(f"{name}: the text has other ids than the conversation")
        cases.append({"name": name, **case, "text": text})
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"library": f"openai-harmony {version}", "cases": cases}, file, ensure_ascii=False, indent=1)
        file.write("\n")


main()
