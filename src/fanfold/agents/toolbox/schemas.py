"""What tools are called, what they take and what a model is told about them: one table.

A description says what the tool does, what comes back, and how to get at the rest when it was too much.
Schemas are closed: an argument nobody knows is a mistake worth telling the model about.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class ToolSpec(Struct, frozen=True):
    """One tool as a model sees it."""

    name: str
    description: str
    schema: dict[str, Any]
    mutates: bool = False


def _object(required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _whole(description: str, low: int = 0, high: int = 2**31) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high, "description": description}


_PATH = _text("path relative to the top of the workspace")

SPECS = (
    ToolSpec(
        "read_file",
        "Read a text file. Long files come in pieces: `next_offset` says where to go on.",
        _object(
            "path",
            path=_PATH,
            offset=_whole("byte to start at (0)"),
            limit=_whole("bytes at most (32768)", 1, 262_144),
        ),
    ),
    ToolSpec(
        "list_files",
        "List files below a folder, sorted. `next_offset` says where to go on when there are more.",
        _object(
            "",
            path=_text("folder, relative to the top (the top itself)"),
            glob=_text("only paths matching this, e.g. src/**/*.py"),
            offset=_whole("files to skip (0)"),
            limit=_whole("files at most (500)", 1, 2_000),
        ),
    ),
    ToolSpec(
        "search_files",
        "Search file contents with a regular expression. Gives path, line number and line of each match;"
        " `next_offset` says where to go on. Dependency and build folders are skipped, unless named.",
        _object(
            "pattern",
            pattern=_text("regular expression, matched within lines"),
            path=_text("folder or file to search, relative to the top (everything)"),
            glob=_text("only files whose path matches this, e.g. **/*.py"),
            ignore_case={"type": "boolean", "description": "ignore upper and lower case (false)"},
            offset=_whole("matches to skip (0)"),
            limit=_whole("matches at most (100)", 1, 500),
        ),
    ),
    ToolSpec(
        "write_file",
        "Create a file or replace all of it. To change part of a file, use edit_file. Below artifacts/ it is"
        " kept beside the project, for later steps and people.",
        _object("path content", path=_PATH, content=_text("the whole new text")),
        mutates=True,
    ),
    ToolSpec(
        "edit_file",
        "Replace one exact piece of text in a file. `old` must occur exactly once, whitespace included;"
        " take enough lines around it to make it unique. With `all`, every occurrence is replaced.",
        _object(
            "path old new",
            path=_PATH,
            old=_text("the text to replace, exactly as it is in the file"),
            new=_text("the text to put in its place"),
            all={"type": "boolean", "description": "replace every occurrence (false)"},
        ),
        mutates=True,
    ),
    ToolSpec(
        "apply_patch",
        "Apply a unified diff (---, +++, @@ lines, as git diff prints it) to one or more files, all or"
        " nothing. /dev/null as the old name creates a file, as the new name deletes it.",
        _object("patch", patch=_text("the unified diff")),
        mutates=True,
    ),
    ToolSpec(
        "delete_file",
        "Delete one file.",
        _object("path", path=_PATH),
        mutates=True,
    ),
    ToolSpec(
        "run_command",
        "Run a program in the workspace, given as a list of arguments; no shell is involved. Gives exit code,"
        " stdout and stderr. Long output is cut in the middle and has an `output` to go on with read_output."
        " A program that is not done in time is ended: `timed_out`, no exit code, and what it said so far.",
        _object(
            "argv",
            argv={
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "maxItems": 1_000,
                "description": 'program and arguments, e.g. ["python", "-m", "pytest", "-q"]',
            },
            timeout_s=_whole("seconds until it is ended (120)", 1, 3_600),
        ),
        mutates=True,
    ),
    ToolSpec(
        "read_output",
        "Read on in what a command of run_command said, when it was cut. `next_offset` says where to go on.",
        _object(
            "output",
            output=_text("the `output` that run_command gave"),
            stream={"type": "string", "enum": ["stdout", "stderr"], "description": "which of them (stdout)"},
            offset=_whole("character to start at (0)"),
            limit=_whole("characters at most (16000)", 1, 100_000),
        ),
    ),
    ToolSpec(
        "fetch_url",
        "Get a public web page or file as text. `next_offset` says where to go on.",
        _object(
            "url",
            url=_text("http or https address"),
            offset=_whole("character to start at (0)"),
            limit=_whole("characters at most (20000)", 1, 100_000),
        ),
    ),
    ToolSpec(
        "query_workflow",
        "Search what earlier steps of this run put out. Gives ranked excerpts with their steps.",
        _object("query", query=_text("words to look for"), k=_whole("hits at most (5)", 1, 20)),
    ),
)

OFFERED_WITH = {"read_output": "run_command"}
"""Tools that nobody lists: they come with another."""

BY_NAME = {spec.name: spec for spec in SPECS}

LEAVES_ARTIFACTS = ToolSpec(
    "write_file",
    "Create a file below artifacts/, or replace all of it. It is kept beside the project, for later steps and"
    " people. Nothing else can be written here.",
    _object("path content", path=_text("path that begins with artifacts/"), content=_text("its whole text")),
    mutates=True,
)
"""`write_file` as it is offered to sessions that only read the project."""

ROOT_TOOLS = frozenset(
    "plan_workflow run_workflow workflow_status save_workflow task task_batch"
    " spawn_agent wait_agent send_input close_agent list_agents".split()
)
"""Tools that drive Fanfold itself: only a session that a person talks to has them, never a child."""

ALIASES = {
    # Role files written for other agents name their tools; these are ours for them.
    "Read": "read_file",
    "Glob": "list_files",
    "LS": "list_files",
    "Grep": "search_files",
    "Write": "write_file",
    "Edit": "edit_file",
    "MultiEdit": "edit_file",
    "Bash": "run_command",
    "WebFetch": "fetch_url",
}
