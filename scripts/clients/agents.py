"""Coding agents against the scripted server:
`agents.py BASE MODEL NODE_MODULES SCENARIO WORK ATLAS`.

Each is started as its user would start it, with the base URL and a key set and nothing else, in
an empty home; some with the settings that `connect` of the binary ATLAS prints. The script of the server (see `script`) has it change a file; it must be changed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

PATIENCE_S = 120
# What the settings of the trained model, whose context no agent's prompt fits, are changed to.
FITS = {"2048": "131072", "512": "32768"}
ASK = "Change hello to goodbye in notes.txt"
# The tool for it is among those that an agent loads when it has searched for it.
ASK_BOOK = "Change hello to goodbye in notes.ipynb"
BOOK = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [
    {"cell_type": "code", "id": "greeting", "metadata": {}, "outputs": [],
     "execution_count": None, "source": "hello"}]}
# Before the change a tool is searched for and called, in vain. As all of these, it is short enough
# for a recording to keep.
ASK_AGENT = "Close agent x, change hello to goodbye"
LOOK = "Look at dot.png"
SCHEMA = {"type": "object", "properties": {"greeting": {"type": "string"}},
          "required": ["greeting"], "additionalProperties": False}
# A picture of one dot.
PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cf"
    "c0000003010100c9fe92ef0000000049454e44ae426082")


def call(name, **arguments):
    told = "".join(f"<parameter={key}>\n{value}\n</parameter>\n"
                   for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{told}</function>\n</tool_call>"


def script(work):
    """What the server says to each agent; `work` is the directory in which they run."""
    notes, book, picture = f"{work}/notes.txt", f"{work}/notes.ipynb", f"{work}/dot.png"
    patch = "*** Begin Patch\n*** Update File: notes.txt\n@@\n-hello\n+goodbye\n*** End Patch"
    done = "It is done.\n</think>\n\nThe file says goodbye now."

    def scene(*replies, when):
        return {"when": list(when), "replies": list(replies)}

    def turns(*calls):
        return [f"I go on.\n</think>\n\nNext step.\n\n{text}" for text in calls] + [done]

    return [
        scene(*turns(call("Read", file_path=picture)), when=[LOOK, "old_string"]),
        scene(*turns(call("read", filePath=picture)), when=[LOOK, "oldString"]),
        scene(*turns(call("view_image", path=picture)), when=[LOOK, "view_image"]),
        scene(*turns(call("read_file", file_path=notes),
                     call("edit", file_path=notes, old_string="hello", new_string="goodbye")),
              when=[ASK, '"name": "read_file"']),
        scene(*turns(call("read_files", files=json.dumps([{"path": notes}])),
                     call("editor", path=notes, old_text="hello", new_text="goodbye")),
              when=[ASK, '"name": "read_files"']),
        scene(*turns(call("Read", filepath=notes),
                     call("Edit", file_path=notes, old_string="hello", new_string="goodbye")),
              when=[ASK, '"name": "Checklist"']),
        scene("I edit.\n</think>\n\nnotes.txt\n```\ngoodbye\n```\n", when=[ASK, "file listing"]),
        scene(*turns(call("Read", file_path=notes),
                     call("Edit", file_path=notes, old_string="hello", new_string="goodbye")),
              when=[ASK, "old_string"]),
        scene(*turns(call("ToolSearch", query="select:NotebookEdit", max_results=5),
                     call("Read", file_path=book),
                     call("NotebookEdit", notebook_path=book, cell_id="greeting",
                          new_source="goodbye")),
              when=[ASK_BOOK, "old_string"]),
        scene(*turns(call("read", filePath=notes),
                     call("edit", filePath=notes, oldString="hello", newString="goodbye")),
              when=[ASK, "oldString"]),
        scene(*turns(call("apply_patch", input=patch)), when=[ASK, '"name": "apply_patch"']),
        scene(*turns(call("tool_search", query="close agent"),
                     call("multi_agent_v1.close_agent", target="x"),
                     call("apply_patch", input=patch)),
              when=[ASK_AGENT, '"name": "tool_search"']),
        scene(*turns(call("functions.exec",
                          input=f"text(await tools.apply_patch({json.dumps(patch)}));")),
              when=[ASK, '"name": "functions.exec"']),
        scene(*turns(call("exec_command", cmd="cat notes.txt"),
                     call("exec_command", cmd="sed -i s/hello/goodbye/ notes.txt")),
              when=[ASK, "exec_command"]),
        scene(*turns(call("StructuredOutput", greeting="hello")),
              when=["Greet me", "StructuredOutput"]),
        scene('I greet.\n</think>\n\n{"greeting": "hello"}', when=["Greet me", "exec_command"]),
        scene("A title it is.\n</think>\n\nA greeting is changed", when=[ASK]),
        scene("I answer.\n</think>\n\nHello to you.", when=[]),
    ]


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def claude(base, model, _home, _atlas):
    return ["--permission-mode", "acceptEdits"], {
        "ANTHROPIC_BASE_URL": base, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": model,
        "ANTHROPIC_SMALL_FAST_MODEL": model, "DISABLE_TELEMETRY": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


def codex(base, model, home, _atlas):
    write(f"{home}/.codex/config.toml", f"""model = "{model}"
model_provider = "atlas"
[model_providers.atlas]
name = "atlas"
base_url = "{base}/v1"
env_key = "ATLAS_KEY"
""")
    flags = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return flags, {"ATLAS_KEY": "none"}


def opencode(base, model, home, _atlas):
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "atlas",
                "options": {"baseURL": f"{base}/v1", "apiKey": "none"},
                "models": {model: {"name": model}}}
    write(f"{home}/.config/opencode/opencode.json", json.dumps({
        "provider": {"atlas": provider}, "model": f"atlas/{model}",
        "small_model": f"atlas/{model}", "autoupdate": False, "share": "disabled"}))
    return ["run"], {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}


def connected(client, program, *flags):
    """An agent that is started with what `connect` prints."""
    def agent(base, model, home, atlas):
        command = [atlas, "connect", client, "--url", base, "--model", model]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for few, many in FITS.items():
            told = re.sub(rf"\b{few}\b", many, told)
        if file := re.match(r"\S+ ~/([\w./]+)", told):
            write(f"{home}/{file[1]}", told.split("\n", 1)[1])
        else:
            subprocess.run(["sh", "-c", told], check=True, env=os.environ | {"HOME": home})
        return flags, dict(re.findall(r"export (\w+)='(.*)'", told))
    agent.__name__ = program
    return agent


qwen = connected("qwen", "qwen", "--yolo")
cline = connected("cline", "cline", "--provider", "openai-compatible")
aider = connected("aider", "aider", "--model", "openai/scripted", "--no-git", "--yes-always",
                  "--no-check-update", "--message")
cn = connected("continue", "cn", "--print", "--auto")

# By name: the agent, the model that it is told of, its arguments, and the file that it edits.
SCENARIOS = {
    "claude-edit": (claude, None, ["-p", ASK], "notes.txt"),
    "claude-search": (claude, None, ["-p", ASK_BOOK], "notes.ipynb"),
    "claude-picture": (claude, None, ["-p", LOOK], None),
    "claude-context": (claude, None, ["-p", "/context"], None),
    "claude-schema": (claude, None, ["-p", "Greet me", "--output-format", "json",
                                     "--json-schema", json.dumps(SCHEMA)], None),
    "codex-edit": (codex, None, [ASK], "notes.txt"),
    "codex-patch": (codex, "gpt-5.5", [ASK], "notes.txt"),
    "codex-search": (codex, "gpt-5.5", [ASK_AGENT], "notes.txt"),
    "codex-known": (codex, "gpt-6-sol", [ASK], "notes.txt"),
    "codex-picture": (codex, None, [LOOK], None),
    "codex-schema": (codex, None, ["--output-schema", "schema.json", "Greet me"], None),
    "opencode-edit": (opencode, None, [ASK], "notes.txt"),
    "opencode-picture": (opencode, None, [LOOK], None),
    "qwen-edit": (qwen, None, [ASK], "notes.txt"),
    "cline-edit": (cline, None, [ASK], "notes.txt"),
    "aider-edit": (aider, None, [ASK, "notes.txt"], "notes.txt"),
    "continue-edit": (cn, None, [ASK], "notes.txt"),
}


def is_edited(path):
    with open(path) as file:
        text = file.read()
    return "goodbye" in text and "hello" not in text


def run(scenario, base, model, modules, work, atlas):
    """Runs one agent in `work`, and returns its name and version; raises where it fails or does
    not do its work."""
    agent, told, arguments, edited = SCENARIOS[scenario]
    files = {"notes.txt": "hello\n", "notes.ipynb": json.dumps(BOOK)}
    for name, text in files.items():
        write(f"{work}/{name}", text)
    write(f"{work}/schema.json", json.dumps(SCHEMA))
    with open(f"{work}/dot.png", "wb") as file:
        file.write(PICTURE)
    with tempfile.TemporaryDirectory() as home:
        flags, environment = agent(base, told or model, home, atlas)
        path = f"{os.path.abspath(modules)}/.bin:{os.environ['PATH']}"
        environment |= {"PATH": path, "HOME": home}
        program = shutil.which(agent.__name__, path=path) or agent.__name__
        start = {"cwd": work, "env": environment, "stdin": subprocess.DEVNULL,
                 "capture_output": True, "text": True, "timeout": PATIENCE_S}
        version = subprocess.run([program, "--version"], **start).stdout
        done = subprocess.run([program, *flags, *arguments], **start)
    wrong = [name for name in files if is_edited(f"{work}/{name}") != (name == edited)]
    if done.returncode or wrong:
        raise RuntimeError(f"{scenario} ended with {done.returncode}; wrong: {wrong}\n"
                           f"{done.stdout}\n{done.stderr}")
    return f"{agent.__name__} {re.search(r'[0-9.]+', version)[0]}"


if __name__ == "__main__":
    base, model, modules, scenario, work, atlas = sys.argv[1:]
    print(run(scenario, base, model, modules, work, atlas))
