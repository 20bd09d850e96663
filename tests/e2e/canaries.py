"""Secrets that may turn up nowhere, put everywhere a run could pick them up, and a search for them."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from urllib.parse import quote

from tests.e2e.world import Project
from tests.provider import Call, Fault, RecordedRequest, Reply

CANARIES = {
    "OPENAI_API_KEY": "canary-openai-4f1c9a7be2d05836",
    "ANTHROPIC_API_KEY": "canary-anthropic-93b1c07d2a5e",
    # Characters that JSON, patterns and addresses write differently.
    "DEPLOY_TOKEN": 'canary"deploy\\n.*[0]+/=?& é 77c1',
}
ALL = " ".join(CANARIES.values())
LEAK = "leak.txt"
COPY = "copy/leak.txt"
USERS_FILES = (LEAK, COPY)
"""Files of the user's that hold the secrets: a snapshot of them is the user's too."""
RECIPE = f"""\
name: leaky
description: Says secrets wherever something can be said
inputs: [{{name: hint, required: true}}]
steps:
  - {{id: told, agent: explorer, prompt: "TOLD {{{{inputs.hint}}}}", on_failure: inline}}
  - {{id: refused, agent: explorer, prompt: "REFUSED", on_failure: inline}}
  - {{id: said, run: [cat, {LEAK}], on_failure: inline}}
  - {{id: complained, run: [sh, -c, "cat {LEAK} >&2; exit 3"], on_failure: inline}}
  - {{id: environment, run: [sh, -c, "env; tr '\\\\0' '\\\\n' < /proc/1/environ"], on_failure: inline}}
  - {{id: clean, run: [sh, -c, "(env; cat /proc/*/environ) 2>/dev/null | grep -c canary"], outputs: [stdout]}}
  - {{id: computed, handler: leak_value, on_failure: inline}}
  - {{id: raised, handler: leak_error, on_failure: inline}}
  - {{id: failed, agent: worker, prompt: "FAILED", write_set: ["copy/**"], on_failure: inline}}
  - id: ask
    approve: "Is {{{{inputs.hint}}}} right?"
    show: "{{{{steps.said.output}}}}"
    depends_on: [told, refused, said, complained, environment, clean, computed, raised, failed]
output: "{{{{steps.complained.output}}}} {{{{steps.told.output}}}} {{{{inputs.hint}}}}"
"""
FUNCTIONS = f"""\
from pathlib import Path

import fanfold

HERE = Path(__file__).parent


@fanfold.function
def leak_value():
    secret = (HERE / "{LEAK}").read_text()
    return {{"is": [secret], secret: True}}


@fanfold.function
def leak_error():
    raise RuntimeError("cannot use " + (HERE / "{LEAK}").read_text())
"""


def set_up(project: Project) -> None:
    project.file("leaky.yaml").write_text(RECIPE)
    project.file("functions.py").write_text(FUNCTIONS)
    project.file(LEAK).write_text(ALL)


def answer(asked: RecordedRequest) -> Reply | Fault:
    """A model that says and does all it should not."""
    match asked.prompt.partition(" ")[0], asked.turns:
        case "REFUSED", _:
            return Fault("rejected", message=f"I do not like {ALL}")
        case "TOLD", 0:
            calls = (
                Call("read_file", {"path": LEAK}),
                Call("search_files", {"pattern": CANARIES["OPENAI_API_KEY"]}),
                Call("read_file", {"path": ALL}),
                Call("no_such_tool", {ALL: ALL}),
            )
            return Reply(text=f"Let me see {ALL}", calls=calls)
        case "FAILED", 0:
            return Reply(
                calls=(
                    Call("write_file", {"path": COPY, "content": ALL}),
                    Call("run_command", {"argv": ["sh", "-c", f"cat {LEAK}; cat {LEAK} >&2; env; exit 1"]}),
                    Call("run_command", {"argv": ["sh", "-c", f"echo {ALL!r} >&2; touch odd.txt"]}),
                )
            )
        case _:
            return Reply(text=f"It is {ALL}.")


SCRIPT = json.dumps(
    {
        "default": f"the scripted answer is {ALL}",
        "steps": {
            "told": {
                "output": {"found": ALL, ALL: 1},
                "tool_calls": [
                    {"tool": "read_file", "args": {"path": LEAK}},
                    {"tool": "search_files", "args": {"pattern": CANARIES["OPENAI_API_KEY"]}},
                ],
            },
            "refused": {"fail": {"class": "agent", "message": f"no {ALL}", "hint": f"try {ALL}"}},
            "failed": {
                "fail": {"class": "agent", "message": f"left {ALL}"},
                "writes": {COPY: ALL},
            },
        },
    }
)


def forms(secret: str) -> set[bytes]:
    """A secret as it may be written."""
    once = {secret, quote(secret, safe=""), _in_json(secret), _in_json(secret, ascii=True)}
    twice = {_in_json(text) for text in once}
    return {text.encode() for text in once | twice}


def _in_json(text: str, ascii: bool = False) -> str:
    return json.dumps(text, ensure_ascii=ascii)[1:-1]


def found_in(data: bytes) -> list[str]:
    """The names of the secrets that these bytes hold."""
    return [name for name, secret in CANARIES.items() if any(form in data for form in forms(secret))]


def leaks_below(folder: Path) -> dict[str, list[str]]:
    """Files below a folder that hold a secret and are no copy of a file of the user's."""
    leaks: dict[str, list[str]] = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            found = found_in(data) or found_in(_unpacked(data))
            if found and not _is_users(path, data):
                leaks[str(path.relative_to(folder))] = found
    return leaks


def _is_users(path: Path, data: bytes) -> bool:
    parts = path.parts
    if not {"workspace", "subagents"} & set(parts):
        return False
    if data == ALL.encode() and str(path).endswith(USERS_FILES):
        return True
    return "store.git" in parts and _unpacked(data) == b"blob %d\0" % len(ALL.encode()) + ALL.encode()


def _unpacked(data: bytes) -> bytes:
    """What is in an object of git's; nothing when this is none."""
    try:
        return zlib.decompress(data)
    except zlib.error:
        return b""
