"""The tools of agents for files, confined to one folder: read, list, search, write, edit, patch, delete.

Rules
* Paths are relative to the workspace and resolved beneath it (see `beneath`). The write-set is compared with
  the real path, not with the path as written.
* `.fanfold` cannot be read, because it contains state and credentials that are lent to agents.
* A read-only session writes nothing. Other sessions write inside their write-set, which is everything if none
  is declared. They never write `protected` files, which are instructions to programs. They write a dependency
  folder only if the write-set names it.
* A write replaces: a new file next to the old one is renamed over it. Readers see the old or the new text. A
  link that appears at the last moment is replaced and not followed. Hard links elsewhere keep their text.
* Results are limited in size, and the agent is informed about omitted parts.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from fanfold.agents.backend import SessionRequest, ToolFailed
from fanfold.agents.tool_names import PatchError, apply, parse
from fanfold.agents.tools.fetch import do_limited
from fanfold.kernel.claims import owner_of, why_unreadable
from fanfold.kernel.paths import matches
from fanfold.kernel.plan import EVERYTHING, JSON
from fanfold.language.terminal import shorten
from fanfold.project_files import write_whole
from fanfold.workspace import beneath
from fanfold.workspace.artifacts import VARIABLE, ArtifactRoom
from fanfold.workspace.beneath import PathProblem, ResolvedPath
from fanfold.workspace.ignored import dependency_of, may_change_dependency

# -----------------------------------------------------------------------------------------------------------
# Errors for paths: `workspace.beneath` resolves them, this part converts its errors for the agent.
#
# A path that leads outside is a refusal (`permission`). A missing path is a result for the agent (`tool`).

_CODES = {"missing": "not_found", "gone": "no_workspace"}
_HINTS = {"missing": "list_files shows what does", "is_a_folder": "list_files shows what is in it"}


def as_failed(problem: PathProblem) -> ToolFailed:
    """Return a problem with a path as a tool error."""
    if problem.problem == "refused":
        return ToolFailed("permission", "tool.path_refused", problem.message, problem.hint)
    code = _CODES.get(problem.problem, problem.problem)
    return ToolFailed("tool", f"tool.{code}", problem.message, _HINTS.get(problem.problem, ""))


@contextmanager
def resolve(
    top: str, path: str, *, before_making: Callable[[str], None] | None = None, follow_last: bool = True
) -> Iterator[ResolvedPath]:
    """See `workspace.beneath.resolve`; problems, also inside the block, become a `ToolFailed`."""
    try:
        with beneath.resolve(top, path, before_making=before_making, follow_last=follow_last) as spot:
            yield spot
    except PathProblem as problem:
        raise as_failed(problem) from None


MAX_READ_BYTES = 256 * 1024
MAX_WRITE_BYTES = 16 * 1024 * 1024
MAX_TEXT_BYTES = 4 * 1024 * 1024


class FileTools:
    """The file tools of one session."""

    def __init__(self, folder: str, *, read_only: bool = True, write_set: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._read_only = read_only
        self._write_set = write_set or EVERYTHING

    @classmethod
    def of(cls, request: SessionRequest) -> FileTools:
        """Return the tools that a session's request allows."""
        return cls(request.workspace, read_only=request.role.read_only, write_set=request.write_set)

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        """Call one of `TOOLS`."""
        if name not in TOOLS:
            hint = f"there are {', '.join(TOOLS)}"
            raise ToolFailed("tool", "tool.unknown", f'there is no tool "{name}"', hint)
        tool: Callable[[Mapping[str, Any]], Awaitable[JSON]] = getattr(self, name)
        try:
            return await tool(args)
        except OSError as error:  # for example: the disk is full, or the user has no access
            path = args.get("path", ".")
            raise ToolFailed("tool", "tool.io", f'"{path}": {error.strerror or error}') from error

    async def read_file(self, args: Mapping[str, Any]) -> JSON:
        path = _text(args, "path")
        offset = _whole(args, "offset", 0)
        limit = min(_whole(args, "limit", MAX_READ_BYTES), MAX_READ_BYTES)
        with resolve(self._folder, path) as spot:
            handle = beneath.open_regular(spot, path)
            try:
                size = os.fstat(handle).st_size
                data = os.pread(handle, limit, offset)
            finally:
                os.close(handle)
        result: dict[str, JSON] = {"path": spot.path, "text": data.decode("utf-8", "replace"), "bytes": size}
        if offset + len(data) < size:
            result["next_offset"] = offset + len(data)
        return result

    async def write_file(self, args: Mapping[str, Any]) -> JSON:
        return self.write_data(_text(args, "path"), _text(args, "content").encode("utf-8", "replace"))

    def write_data(self, path: str, data: bytes) -> JSON:
        """Write a file, as `write_file` does."""
        if len(data) > MAX_WRITE_BYTES:
            message = f'"{path}": {len(data):,} bytes; at most {MAX_WRITE_BYTES:,} are written at once'
            raise ToolFailed("tool", "tool.too_large", message)
        check = partial(self._check_writable, path)
        self._check_posture(path)
        with resolve(self._folder, path, before_making=check, follow_last=False) as spot:
            check(spot.path)
            before = spot.status()
            if before is None and spot.name == ".":
                raise beneath.refuse(path, "this is no file")
            if before is not None and stat.S_ISDIR(before.st_mode):
                raise ToolFailed("tool", "tool.is_a_folder", f'"{path}" is a folder')
            if before is not None and not stat.S_ISREG(before.st_mode):
                raise beneath.refuse(path, "only regular files can be written")
            mode = 0o666 if before is None else stat.S_IMODE(before.st_mode) & 0o777
            write_whole(spot.name, data, folder=spot.folder, mode=mode, exactly=before is not None)
        return {"path": spot.path, "bytes": len(data), "created": before is None}

    async def delete_file(self, args: Mapping[str, Any]) -> JSON:
        path = _text(args, "path")
        self._check_posture(path)
        with resolve(self._folder, path, follow_last=False) as spot:
            self._check_writable(path, spot.path)
            before = spot.status()
            if before is None:
                raise beneath.missing(path)
            if stat.S_ISDIR(before.st_mode):
                raise ToolFailed("tool", "tool.is_a_folder", f'"{path}" is a folder', "delete its files")
            os.unlink(spot.name, dir_fd=spot.folder)  # removes a link, but not its target
        return {"path": spot.path, "deleted": True}

    def _check_posture(self, asked: str) -> None:
        if self._read_only:
            message = f'"{asked}": this session may only read'
            raise ToolFailed("permission", "tool.read_only", message, "give the step a role that writes")

    def _check_writable(self, asked: str, real: str) -> None:
        if owner := owner_of(real):
            raise as_failed(beneath.refuse(asked, f"this belongs to {owner}"))
        folder = dependency_of(Path(self._folder), real)
        if folder and not may_change_dependency(Path(self._folder), folder, self._write_set):
            why = f"{folder} is a dependency folder, which this step may only read"
            raise as_failed(beneath.refuse(asked, why))
        if real in ("", ".") or not matches(self._write_set, real):
            shown = ", ".join(self._write_set[:5])
            message = f'"{asked}" is outside the write_set ({shown})'
            raise ToolFailed("violation", "tool.outside_write_set", message, "widen the step's write_set")

    # `edit_file` and `apply_patch`: changes of parts of files.
    #
    # Rules
    # * The new text is computed from the current file and written as by `write_file`. So posture, write-set
    #   and confinement are checked in one place, and readers never see half a change.
    # * Nothing is guessed: a text that is missing, or occurs twice, is an error.
    # * A patch is computed completely before anything is written. If a write is refused after others
    #   succeeded, those are reverted.

    async def edit_file(self, args: Mapping[str, Any]) -> JSON:
        path, old, new = args["path"], args["old"], args["new"]
        text = read_text(self._folder, path)
        if text is None:
            message = f'"{path}" does not exist'
            raise ToolFailed("tool", "tool.not_found", message, "write_file creates files")
        count = text.count(old) if old else 0
        if count == 0:
            raise ToolFailed("tool", "tool.no_match", f'"{path}" does not hold that text', _why(text, old))
        if count > 1 and not args.get("all"):
            hint = "include more lines around it, or set `all`"
            raise ToolFailed("tool", "tool.ambiguous", f'"{path}" holds that text {count} times', hint)
        if old == new:
            raise ToolFailed("tool", "tool.no_change", "old and new are the same")
        written = await self.write_file({"path": path, "content": text.replace(old, new)})
        return {"path": written["path"], "replaced": count, "line": text[: text.find(old)].count("\n") + 1}

    async def apply_patch(self, args: Mapping[str, Any]) -> JSON:
        before: dict[str, str | None] = {}
        after: dict[str, str | None] = {}
        try:
            for change in parse(args["patch"]):
                for path in (change.old, change.new):
                    if path is not None and path not in before:
                        before[path] = after[path] = read_text(self._folder, path)
                source = None if change.old is None else after[change.old]
                result = apply(change, source)
                if change.old is not None and change.old != change.new:
                    after[change.old] = None
                if change.new is not None:
                    after[change.new] = result
        except PatchError as error:
            hint = "read the file again and make the patch from its current content"
            raise ToolFailed("tool", "tool.patch_failed", str(error), hint) from None
        changes: dict[str, str] = {}
        try:
            for path, text in after.items():
                if text != before[path]:
                    await self._set(path, text)
                    kept = "changed" if before[path] is not None else "created"
                    changes[path] = "deleted" if text is None else kept
        except ToolFailed:
            for path in reversed(changes):
                await self._set(path, before[path])
            raise
        return {"files": [{"path": path, "change": change} for path, change in changes.items()]}

    async def _set(self, path: str, text: str | None) -> None:
        if text is None:
            await self.call("delete_file", {"path": path})
        else:
            await self.call("write_file", {"path": path, "content": text})

    async def list_files(self, args: Mapping[str, Any]) -> JSON:
        return await asyncio.to_thread(list_names, self._folder, args)

    async def search_files(self, args: Mapping[str, Any]) -> JSON:
        return await do_limited("search", self._folder, dict(args), timeout_s=SEARCH_S + GRACE_S)


TOOLS = (
    *("read_file", "write_file", "delete_file", "edit_file", "apply_patch"),
    *("list_files", "search_files"),
)


def _text(args: Mapping[str, Any], name: str) -> str:
    value = args.get(name)
    if not isinstance(value, str):
        raise ToolFailed("tool", "tool.bad_args", f'"{name}" must be text')
    return value


def _whole(args: Mapping[str, Any], name: str, default: int) -> int:
    value = args.get(name, default)
    if type(value) is not int or value < 0:
        raise ToolFailed("tool", "tool.bad_args", f'"{name}" must be a whole number')
    return value


def _why(text: str, old: str) -> str:
    if not old:
        return "`old` is empty"
    if "\r\n" in text and old.replace("\n", "\r\n") in text:
        return "the file's lines end in \\r\\n"
    if " ".join(old.split()) in " ".join(text.split()):
        return "it differs in whitespace; read the file and copy the lines exactly"
    first = old.strip().split("\n", 1)[0].strip()
    lines = [i for i, line in enumerate(text.split("\n"), 1) if first and first in line]
    return f"its first line is at line {lines[0]}; read it there" if lines else "read the file again"


def read_text(folder: str, path: str) -> str | None:
    """Return the text of a file, None if it does not exist; raise `ToolFailed` for anything but text."""
    try:
        with beneath.resolve(folder, path) as spot, os.fdopen(beneath.open_regular(spot, path), "rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
    except PathProblem as problem:
        if problem.problem == "missing":
            return None
        raise as_failed(problem) from problem
    if len(data) > MAX_TEXT_BYTES:
        message = f'"{path}" has more than {MAX_TEXT_BYTES:,} bytes'
        raise ToolFailed("tool", "tool.too_large", message, "write it with a command instead")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ToolFailed("tool", "tool.not_text", f'"{path}" is not UTF-8 text') from None


# -----------------------------------------------------------------------------------------------------------
# `list_files` and `search_files`: finding files by name and by content.
#
# Rules
# * The walk uses handles, never follows a link, never enters `.git` or `.fanfold`, and reads no logins.
#   Searching also skips dependency and build folders, where a match is noise, unless it starts inside one.
# * A pattern comes from a model. It may never end or use all memory. So it is compiled and matched in a
#   separate process (`limited`), with a timeout.
# * Results are sorted by name, so that `offset` means the same in the next call.

LISTED = 500
FOUND = 100
MAX_FILES = 200_000
MAX_DEPTH = 64
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_LINE_CHARS = 300
SEARCH_S = 20.0
GRACE_S = 5.0
"""Extra time to start the process that searches."""
MAX_PATTERN_CHARS = 4_000
_NEVER = frozenset({".git"})
_NOISE = frozenset(
    "node_modules .venv venv __pycache__ .mypy_cache .ruff_cache .pytest_cache .tox .nox dist build target"
    " .gradle .next .cache vendor site-packages .hypothesis".split()
)


class _FoundFile(NamedTuple):
    """A file that the walk found: its path, and a handle to open it."""

    path: str
    folder: int
    name: str


def list_names(folder: str, args: Mapping[str, Any]) -> JSON:
    """Return the paths of the files below a folder."""
    offset, limit = args.get("offset", 0), args.get("limit", LISTED)
    files: list[str] = []
    for seen, found in enumerate(_walk(folder, args, frozenset()), 1):
        if seen > offset + limit:
            return {"files": files, "next_offset": offset + limit}
        if seen > offset:
            files.append(found.path)
    return {"files": files}


def search(folder: str, args: Mapping[str, Any]) -> JSON:
    """Return the lines of files below a folder that match a pattern; runs as a `limited` job."""
    import regex

    offset, limit, written = args.get("offset", 0), args.get("limit", FOUND), args["pattern"]
    if len(written) > MAX_PATTERN_CHARS:
        message = f"the pattern has {len(written):,} characters, {MAX_PATTERN_CHARS:,} are allowed"
        raise ToolFailed("tool", "tool.bad_pattern", message, "search for a part of it")
    try:
        pattern = regex.compile(
            written, regex.MULTILINE | (regex.IGNORECASE if args.get("ignore_case") else 0)
        )
    except (regex.error, RecursionError, OverflowError) as error:
        hint = "escape characters that are meant literally"
        raise ToolFailed("tool", "tool.bad_pattern", f"no regular expression: {error}", hint) from None
    until = time.monotonic() + SEARCH_S
    hits: list[JSON] = []
    seen = searched = 0
    for found in _walk(folder, args, _NOISE):
        text = _read_searched(found)
        if text is None:
            continue
        searched += 1
        try:
            for line, shown in _lines(pattern, text, until):
                seen += 1
                if seen > offset + limit:
                    return {"matches": hits, "next_offset": offset + limit}
                if seen > offset:
                    hits.append({"path": found.path, "line": line, "text": shown})
        except TimeoutError:
            message = f"the search took more than {SEARCH_S:g} s (at {found.path})"
            hint = "use a simpler pattern, a glob or a narrower path"
            raise ToolFailed("tool", "tool.timeout", message, hint) from None
    return {"matches": hits, "files_searched": searched}


def _read_searched(found: _FoundFile) -> str | None:
    """Return the text of a file; None for binary, very large and unreadable files."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(found.name, flags, dir_fd=found.folder)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        head = file.read(8_192)
        if b"\0" in head:
            return None
        data = head + file.read(MAX_FILE_BYTES + 1 - len(head))
    return None if len(data) > MAX_FILE_BYTES else data.decode("utf-8", "replace")


def _walk(folder: str, args: Mapping[str, Any], noise: frozenset[str]) -> Iterator[_FoundFile]:
    """Yield the files below the `path` of a call that match its `glob`."""
    path, glob = args.get("path", "."), args.get("glob")
    with resolve(folder, path) as spot:
        try:
            top = os.open(spot.name, _FOLDER, dir_fd=spot.folder)
        except NotADirectoryError:
            files: Iterator[_FoundFile] = iter([_FoundFile(spot.path, spot.folder, spot.name)])
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            code, why = ("not_found", "does not exist") if missing else ("io", error.strerror)
            raise ToolFailed("tool", f"tool.{code}", f'"{path}" {why}') from None
        else:
            files = _below(top, spot.path, noise, 0)
        for count, found in enumerate(files, 1):
            if count > MAX_FILES:
                message = f"there are more than {MAX_FILES:,} files"
                raise ToolFailed("tool", "tool.too_many", message, "name a folder in `path`")
            if glob is None or matches((glob,), found.path):
                yield found


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _below(folder: int, path: str, noise: frozenset[str], depth: int) -> Iterator[_FoundFile]:
    """Yield every regular file below an open folder, by name, and close the folder."""
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            where = f"{path}/{entry.name}" if path else entry.name
            if why_unreadable(where):
                continue
            if entry.is_file(follow_symlinks=False):
                yield _FoundFile(where, folder, entry.name)
            elif entry.is_dir(follow_symlinks=False) and entry.name not in _NEVER | noise:
                if depth == MAX_DEPTH:
                    continue
                try:
                    below = os.open(entry.name, _FOLDER, dir_fd=folder)
                except OSError:
                    continue  # removed or replaced since it was listed
                yield from _below(below, where, noise, depth + 1)
    finally:
        os.close(folder)


def _lines(pattern: Any, text: str, until: float) -> Iterator[tuple[int, str]]:
    """Yield number and text of each matching line, once each."""
    starts: list[int] | None = None
    last = 0
    left_s = max(0.001, until - time.monotonic())
    for match in pattern.finditer(text, timeout=left_s, concurrent=True):
        if starts is None:  # most files have no match
            starts = [0, *(i + 1 for i, char in enumerate(text) if char == "\n")]
        line = bisect_right(starts, match.start())
        if line == last:
            continue
        last = line
        end = starts[line] - 1 if line < len(starts) else len(text)
        shown = text[starts[line - 1] : end].rstrip("\r")
        yield line, shorten(shown, MAX_LINE_CHARS)


# -----------------------------------------------------------------------------------------------------------
# `artifacts/…` in the file tools: the files that a step leaves outside the project.
#
# If the project has a folder of that name, the path means that folder. `$FANFOLD_ARTIFACTS/…`, as in
# programs, always means the artifacts.

WORD = "artifacts"
_CHANGING = frozenset(("write_file", "edit_file", "delete_file"))


class ArtifactFiles:
    """The artifacts of one session."""

    def __init__(self, room: ArtifactRoom, workspace: str) -> None:
        self._room = room
        self._workspace = workspace

    def has(self, args: Mapping[str, Any]) -> bool:
        """Return whether a call is about artifacts."""
        path = args.get("path")
        if not isinstance(path, str):
            return False
        first = path.removeprefix("./").partition("/")[0]
        if first in (f"${VARIABLE}", f"${{{VARIABLE}}}"):
            return True
        return first == WORD and not os.path.isdir(os.path.join(self._workspace, WORD))

    def locate(self, path: str) -> tuple[Path, str]:
        """Return the folder of an artifact, and its path inside."""
        return self._room.open(), path.removeprefix("./").partition("/")[2].rstrip("/")

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        """Call any tool with a path."""
        folder, inside = await asyncio.to_thread(self.locate, str(args["path"]))
        owner = self._room.owner(str(PurePosixPath(inside))) if name in _CHANGING else ""
        if owner:
            message = f'"{WORD}/{inside}" was published by {owner}, and is only to be read'
            raise ToolFailed("permission", "tool.read_only", message, "write under another name")
        result = await FileTools(str(folder), read_only=False).call(name, {**args, "path": inside or "."})
        shown: dict[str, JSON] = dict(result)
        if "path" in shown:
            shown["path"] = f"{WORD}/{shown['path']}" if shown["path"] != "." else WORD
        if "files" in shown:
            shown["files"] = [f"{WORD}/{entry}" for entry in shown["files"]]
        if "matches" in shown:
            shown["matches"] = [{**entry, "path": f"{WORD}/{entry['path']}"} for entry in shown["matches"]]
        return shown


# -----------------------------------------------------------------------------------------------------------
# Files that earlier phases of the same run published, read as `ctx/wf/<run>/<phase>/…`.
#
# The files are outside the workspace, where no other path of an agent leads. Files of another run are not
# accessible.

PUBLISHED = "ctx/wf"


class PublishedFiles:
    """The published files of one run; `memory` is the project's `.fanfold`."""

    def __init__(self, memory: Path, run_id: str) -> None:
        self._prefix = f"{PUBLISHED}/{run_id}"
        self._home = memory.joinpath(*PUBLISHED.split("/"), run_id)

    def has(self, args: Mapping[str, Any]) -> bool:
        """Return whether a call is about published files."""
        path = args.get("path")
        return isinstance(path, str) and (path == PUBLISHED or path.startswith(f"{PUBLISHED}/"))

    def locate(self, path: str) -> tuple[Path, str]:
        """Return the folder of this run's files and the path inside; other paths are reported as missing."""
        inside = path.removeprefix(self._prefix)
        if not path.startswith(self._prefix) or inside[:1] not in ("", "/") or not self._home.is_dir():
            raise as_failed(beneath.missing(path))
        return self._home, inside.lstrip("/") or "."

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        """Call `read_file` or `list_files`."""
        path = str(args["path"]).rstrip("/")
        if name == "list_files" and path == PUBLISHED:
            path = self._prefix
        home, inside = self.locate(path)
        result: dict[str, JSON] = dict(await FileTools(str(home)).call(name, {**args, "path": inside}))
        if "files" in result:
            result["files"] = [f"{self._prefix}/{entry}" for entry in result["files"]]
        return {**result, "path": path}
