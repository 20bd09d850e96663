"""The table of tools: their names, arguments and descriptions for models.

A description has the tool's effect, its result, and how to get the rest of a long result. Schemas are closed,
because an unknown argument is a mistake that the model should see.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct


class ToolSpec(Struct, frozen=True):
    """One tool as a model sees it."""

    name: str
    description: str
    schema: dict[str, Any]
    mutates: bool = False


def object_schema(required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    """The closed schema of a tool's arguments; `required` are names separated by spaces."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def text_schema(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _whole(description: str, low: int = 0, high: int = 2**31) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high, "description": description}


_PATH = text_schema("path relative to the top of the workspace")

SPECS = (
    ToolSpec(
        "read_file",
        "Read a text file. Long files come in pieces: `next_offset` is where to continue.",
        object_schema(
            "path",
            path=_PATH,
            offset=_whole("byte to start at (0)"),
            limit=_whole("bytes at most (32768)", 1, 262_144),
        ),
    ),
    ToolSpec(
        "list_files",
        "List files below a folder, sorted. `next_offset` is where to continue when there are more.",
        object_schema(
            "",
            path=text_schema("folder, relative to the top (the top itself)"),
            glob=text_schema("only paths matching this, e.g. src/**/*.py"),
            offset=_whole("files to skip (0)"),
            limit=_whole("files at most (500)", 1, 2_000),
        ),
    ),
    ToolSpec(
        "search_files",
        "Search file contents with a regular expression. Gives path, line number and line of each match;"
        " `next_offset` is where to continue. Dependency and build folders are skipped, unless named.",
        object_schema(
            "pattern",
            pattern=text_schema("regular expression, matched within lines"),
            path=text_schema("folder or file to search, relative to the top (everything)"),
            glob=text_schema("only files whose path matches this, e.g. **/*.py"),
            ignore_case={"type": "boolean", "description": "ignore upper and lower case (false)"},
            offset=_whole("matches to skip (0)"),
            limit=_whole("matches at most (100)", 1, 500),
        ),
    ),
    ToolSpec(
        "write_file",
        "Create a file or replace all of it. To change part of a file, use edit_file. Below artifacts/ it is"
        " kept beside the project, for later steps and people.",
        object_schema("path content", path=_PATH, content=text_schema("the whole new text")),
        mutates=True,
    ),
    ToolSpec(
        "edit_file",
        "Replace one exact piece of text in a file. `old` must occur exactly once, whitespace included;"
        " take enough lines around it to make it unique. With `all`, every occurrence is replaced.",
        object_schema(
            "path old new",
            path=_PATH,
            old=text_schema("the text to replace, exactly as it is in the file"),
            new=text_schema("the text to put in its place"),
            all={"type": "boolean", "description": "replace every occurrence (false)"},
        ),
        mutates=True,
    ),
    ToolSpec(
        "apply_patch",
        "Apply a unified diff (---, +++, @@ lines, as git diff prints it) to one or more files, all or"
        " nothing. /dev/null as the old name creates a file, as the new name deletes it.",
        object_schema("patch", patch=text_schema("the unified diff")),
        mutates=True,
    ),
    ToolSpec("delete_file", "Delete one file.", object_schema("path", path=_PATH), mutates=True),
    ToolSpec(
        "run_command",
        "Run a program in the workspace, given as a list of arguments; no shell is involved. Gives exit code,"
        " stdout and stderr. Long output is cut in the middle and has an `output` for read_output."
        " A program that is not done in time is ended: `timed_out`, no exit code, and its output so far.",
        object_schema(
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
        "Continue to read the output of a run_command call that was cut. `next_offset` is where to continue.",
        object_schema(
            "output",
            output=text_schema("the `output` that run_command gave"),
            stream={"type": "string", "enum": ["stdout", "stderr"], "description": "which of them (stdout)"},
            offset=_whole("character to start at (0)"),
            limit=_whole("characters at most (16000)", 1, 100_000),
        ),
    ),
    ToolSpec(
        "fetch_url",
        "Get a public web page or file as text. `next_offset` is where to continue.",
        object_schema(
            "url",
            url=text_schema("http or https address"),
            offset=_whole("character to start at (0)"),
            limit=_whole("characters at most (20000)", 1, 100_000),
        ),
    ),
    ToolSpec(
        "query_workflow",
        "Search what earlier steps of this run put out. Gives ranked excerpts with their steps.",
        object_schema("query", query=text_schema("words to look for"), k=_whole("hits at most (5)", 1, 20)),
    ),
)

OFFERED_WITH = {"read_output": "run_command"}
"""Tools that are never listed, because they come with another tool."""

BY_NAME = {spec.name: spec for spec in SPECS}

LEAVES_ARTIFACTS = ToolSpec(
    "write_file",
    "Create a file below artifacts/, or replace all of it. It is kept beside the project, for later steps and"
    " people. Nothing else can be written here.",
    object_schema(
        "path content",
        path=text_schema("path that begins with artifacts/"),
        content=text_schema("its whole text"),
    ),
    mutates=True,
)
"""`write_file` in the form for sessions that only read the project."""

ROOT_TOOLS = frozenset(
    "plan_workflow list_workflows run_workflow workflow_status save_workflow task task_batch"
    " spawn_agent wait_agent send_input close_agent list_agents".split()
)
"""Tools that control Fanfold itself: only a session with a person has them, never a child."""

ALIASES = {
    # Tool names in role files of other programs, and our tools for them.
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

# -----------------------------------------------------------------------------------------------------------
# Lists of tools by name: the tools that two lists both allow, and whether a list names a server.
#
# None is a list of everything. A tool of an MCP server is `mcp__server__tool`. `mcp__server` (or
# `mcp__server__*`) stands for all tools of that server.

UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
"""Characters that not every provider accepts in the name of a tool."""


def is_wanted(server: str, listed: Sequence[str] | None) -> bool:
    """Return whether a list of tools names anything of a server."""
    if listed is None:
        return True
    names = spellings(f"mcp__{server}")
    return any(
        pattern in names or pattern.startswith(tuple(f"{name}__" for name in names)) for pattern in listed
    )


def narrowed(
    allowed: Sequence[str] | None, wanted: Sequence[str] | None, servers: Iterable[str] = ()
) -> tuple[str, ...] | None:
    """Return the tools that two lists both allow; `servers` are the existing ones.

    >>> narrowed(["Read", "mcp__wiki"], ["read_file", "write_file", "mcp__wiki__find"], ["wiki"])
    ('read_file', 'mcp__wiki__find')
    """
    if allowed is None or wanted is None:
        chosen = allowed if wanted is None else wanted
        return None if chosen is None else tuple(chosen)
    whole = {spelled for server in servers for spelled in spellings(f"mcp__{server}")}
    names = {ALIASES.get(name, name) for name in allowed}
    kept = [name for name in wanted if ALIASES.get(name, name) in names or _is_of(name, allowed, whole)]
    kept += [name for name in allowed if _is_of(name, wanted, whole)]
    return tuple(dict.fromkeys(kept))


def spellings(name: str) -> frozenset[str]:
    """Return a name as written in a file, and in the form that providers accept."""
    return frozenset({name, UNSAFE.sub("_", name)})


def _is_of(name: str, listed: Sequence[str], whole: set[str]) -> bool:
    """Return whether a name is a tool, or all tools, of a server that is listed as a whole."""
    if name in whole:  # a server whose name starts like another's is not a tool of that one
        return f"{name}__*" in listed
    listed_whole = (pattern.removesuffix("__*") for pattern in listed)
    return any(name.startswith(f"{server}__") for server in listed_whole if server in whole)


# -----------------------------------------------------------------------------------------------------------
# Commands that a role can run, in the notation of Claude Code: `Bash(git diff:*)`, `Bash(make test)`.
#
# Rules
# * A pattern is matched with arguments, one by one, never with a line of text. So the content of an argument
#   cannot look like another command. `git diff:*` and `git diff *` are these words and any following ones.
#   `make test` is exactly that. `ls-files*` is any word with that prefix.
# * A star has its usual meaning, with limits: `scripts/*` cannot lead outside of that folder by `..`. A star
#   before or between other words cannot match an option.
# * There is no shell. A pattern that needs one is refused. So is a call with shell operators among its
#   arguments, because it would not do what its author meant.
# * Each list of a role must allow a command. A role that does a stage for another has both their lists.

_SHELL = r"[|&;<>`$\n]"
OPERATORS = frozenset({"|", "||", "&", "&&", ";", "<", ">", ">>", "<<", "2>", "2>&1", "&>", "|&"})
ANYTHING = "*"


def read_pattern(text: str) -> tuple[str, ...] | str:
    """Return the words of a pattern, with `*` at the end for any following words; or the problem with it.

    >>> read_pattern("git diff:*"), read_pattern("make test"), read_pattern("git log | head")
    (('git', 'diff', '*'), ('make', 'test'), 'it needs a shell, which commands do not have')
    """
    if re.search(_SHELL, text):
        return "it needs a shell, which commands do not have"
    written = text.removesuffix(":*") + " *" if text.endswith(":*") else text
    try:
        words = shlex.split(written)
    except ValueError as error:
        return f"it cannot be split into arguments: {error}"
    if not words or (words[0] == ANYTHING and len(words) > 1):
        return "it names no program"
    if words[-1] != ANYTHING and words[-1].endswith(ANYTHING):
        words.append(ANYTHING)  # `ls-files*` can have any following words
    return tuple(words)


def allows(pattern: Sequence[str], argv: Sequence[str]) -> bool:
    """Return whether a command matches a pattern.

    >>> allows(("git", "log", "*"), ["git", "log", "--stat"]), allows(("git", "log"), ["git", "log", "-1"])
    (True, False)
    """
    reached = {0}
    """The numbers of arguments that the words so far can match."""
    for number, word in enumerate(pattern):
        if word != ANYTHING:
            reached = {at + 1 for at in reached if at < len(argv) and _fits(word, argv[at])}
        elif number == len(pattern) - 1:
            return bool(reached)
        else:
            begins = [at for at in reached if at < len(argv) and not argv[at].startswith("-")]
            reached = set(range(min(begins) + 1, len(argv) + 1)) if begins else set()
    return len(argv) in reached


def why_not(lists: Sequence[Sequence[str]], argv: Sequence[str]) -> str:
    """Return why a role cannot run a command; empty if each of its lists allows the command."""
    if not lists:
        return ""
    for word in argv:
        if word in OPERATORS:
            return f'there is no shell, so "{word}" is only an argument; run one program at a time'
    for listed in lists:
        if not any(allows(tuple(shlex.split(pattern)), argv) for pattern in listed):
            return f"this role may only run: {'; '.join(listed)}"
    return ""


def _fits(word: str, argument: str) -> bool:
    """Return whether an argument matches a word; only the star is special, `?` and `[` are not."""
    if ANYTHING not in word:
        return argument == word
    if word.startswith(ANYTHING) and argument.startswith("-"):
        return False
    if ".." in argument.split("/") and ".." not in word.split("/"):
        return False
    return fnmatchcase(argument, re.sub(r"([\[?])", r"[\1]", word))


# -----------------------------------------------------------------------------------------------------------
# Unified diffs: parsed, and applied exactly.
#
# Rules
# * Context and removed lines must be in the file exactly as in the patch. A hunk may have moved: it applies
#   at the match nearest to its line number, after the previous hunk. There is no fuzz: a different line is a
#   failure.
# * Line counts in `@@` headers are not used. They are often wrong in patches by models, and the lines
#   themselves contain the same information.

_HUNK = r"^@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@|^@@"
_NO_END = "\\ No newline at end of file"


class PatchError(Exception):
    """The patch cannot be parsed or applied; the message has the position."""


class Hunk(Struct):
    """One part of a change: the old and the new lines."""

    line: int
    old: list[str]
    new: list[str]
    old_ends: bool = True
    """Whether the last old line ends with a newline; same for the new one."""
    new_ends: bool = True


class FilePatch(Struct):
    """The change of one file; None stands for a file that does not exist."""

    old: str | None
    new: str | None
    hunks: list[Hunk]


def parse(patch: str) -> list[FilePatch]:
    """Return the changes in a patch."""
    changes: list[FilePatch] = []
    lines = patch.rstrip("\n").split("\n")
    i = 0
    while i < len(lines):
        if lines[i].startswith("--- ") and i + 1 < len(lines) and lines[i + 1].startswith("+++ "):
            old, new = _name(lines[i][4:], "a/"), _name(lines[i + 1][4:], "b/")
            if old is None and new is None:
                raise PatchError("the --- or the +++ line must name a file")
            changes.append(FilePatch(old, new, []))
            i += 2
        elif lines[i].startswith("@@"):
            if not changes:
                raise PatchError("the patch has no --- and +++ lines before its first @@")
            i = _hunk(lines, i, changes[-1])
        elif lines[i].startswith(("rename ", "copy ", "GIT binary", "Binary files")):
            raise PatchError(f"renames, copies and binary files cannot be patched: {lines[i]}")
        else:
            i += 1
    if not changes:
        raise PatchError("this is not a unified diff: it has no --- and +++ lines")
    return changes


def _name(text: str, prefix: str) -> str | None:
    name = text.partition("\t")[0].strip().strip('"')
    return None if name == "/dev/null" else name.removeprefix(prefix)


def _hunk(lines: list[str], i: int, change: FilePatch) -> int:
    header = re.match(_HUNK, lines[i])
    assert header is not None, "the caller saw it"
    hunk = Hunk(int(header[1] or 0), [], [])
    i += 1
    last = ""
    while i < len(lines):
        line = lines[i]
        begins_file = line.startswith("--- ") and lines[i + 1 : i + 2] and lines[i + 1].startswith("+++ ")
        if begins_file or line.startswith(("@@", "diff --git ")):
            break
        if line == _NO_END:
            hunk.old_ends = hunk.old_ends and last == "+"
            hunk.new_ends = hunk.new_ends and last == "-"
        elif line[:1] in (" ", ""):
            hunk.old.append(line[1:])
            hunk.new.append(line[1:])
        elif line[0] == "-":
            hunk.old.append(line[1:])
        elif line[0] == "+":
            hunk.new.append(line[1:])
        else:
            raise PatchError(f"line {i + 1} of the patch begins with neither space, + nor -: {line[:60]}")
        last = line[:1]
        i += 1
    change.hunks.append(hunk)
    return i


def apply(change: FilePatch, text: str | None) -> str:
    """Return the text of a file after a change; raise `PatchError` if it does not apply."""
    name = change.new or change.old
    if change.old is None:
        if text is not None:
            raise PatchError(f"{name} exists already, so the patch cannot create it")
        lines = [line for hunk in change.hunks for line in hunk.new]
        ends = not change.hunks or change.hunks[-1].new_ends
        return "\n".join(lines) + ("\n" if lines and ends else "")
    if text is None:
        raise PatchError(f"{name} does not exist")
    lines = text.split("\n")  # a text that ends with a newline has an empty last line
    at, moved = 0, 0
    for number, hunk in enumerate(change.hunks, 1):
        place = _place(lines, hunk, at, hunk.line - 1 + moved)
        if place is None:
            shown = next((line for line in hunk.old if line.strip()), "")[:80]
            raise PatchError(
                f"hunk {number} does not fit {name}: the file does not contain its lines (first: {shown!r})"
            )
        new = list(hunk.new)
        end = place + len(hunk.old)
        if not hunk.new_ends and end == len(lines) - 1 and lines[end] == "":
            end += 1  # also removes the newline at the end
        elif not hunk.old_ends and hunk.new_ends and end == len(lines):
            new.append("")
        lines[place:end] = new
        moved += len(new) - (end - place)
        at = place + len(new)
    return "\n".join(lines)


def _place(lines: list[str], hunk: Hunk, first: int, wanted: int) -> int | None:
    """Return where the hunk's old lines are, at the match nearest to its line number."""
    old = hunk.old
    if not old:  # only new lines: after the line it names
        return min(max(wanted + 1, first), max(len(lines) - 1, 0))
    places = (i for i in range(first, len(lines) - len(old) + 1) if lines[i : i + len(old)] == old)
    return min(places, key=lambda i: abs(i - wanted), default=None)
