"""`list_files` and `search_files`: finding files by name and by what is in them.

Rules
* The walk goes down by handles, never follows a link and never enters `.git` or `.fanfold`. Searching also
  leaves out dependency and build folders, where a match is noise, unless it starts inside one.
* A pattern comes from a model and may be one that never ends, or that takes all memory: it is compiled and
  matched in a process of its own (`limited`), with a deadline.
* Order is by name, so `offset` means the same the next time.
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from fanfold.agents.toolbox import ToolFailed
from fanfold.agents.toolbox.confinement import as_failed
from fanfold.agents.toolbox.limited import do_limited
from fanfold.kernel.paths import matches
from fanfold.kernel.plan import JSON
from fanfold.text.excerpts import shorten
from fanfold.workspace.files.beneath import PathProblem, resolve

LISTED = 500
FOUND = 100
MAX_FILES = 200_000
MAX_DEPTH = 64
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_LINE_CHARS = 300
SEARCH_S = 20.0
GRACE_S = 5.0
"""For starting the process that searches."""
MAX_PATTERN_CHARS = 4_000
_NEVER = frozenset({".git", ".fanfold"})
_NOISE = frozenset(
    "node_modules .venv venv __pycache__ .mypy_cache .ruff_cache .pytest_cache .tox .nox dist build target"
    " .gradle .next .cache vendor site-packages .hypothesis".split()
)


class FoundFile(NamedTuple):
    """A file the walk came by: where it is, and how to open it."""

    path: str
    folder: int
    name: str


class SearchTools:
    """The searching tools of one session."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    async def list_files(self, args: Mapping[str, Any]) -> JSON:
        return await asyncio.to_thread(_list, self._folder, args)

    async def search_files(self, args: Mapping[str, Any]) -> JSON:
        return await do_limited("search", self._folder, dict(args), timeout_s=SEARCH_S + GRACE_S)


def _list(folder: str, args: Mapping[str, Any]) -> JSON:
    offset, limit = args.get("offset", 0), args.get("limit", LISTED)
    fits = _glob(args.get("glob"))
    files: list[str] = []
    seen = 0
    for found in _walk(folder, args.get("path", "."), frozenset()):
        if not fits(found.path):
            continue
        seen += 1
        if seen > offset + limit:
            return {"files": files, "next_offset": offset + limit}
        if seen > offset:
            files.append(found.path)
    return {"files": files}


def search(folder: str, args: Mapping[str, Any]) -> JSON:
    """The lines of files below a folder that match a pattern. Runs as a `limited` job."""
    offset, limit = args.get("offset", 0), args.get("limit", FOUND)
    pattern = _compiled(args["pattern"], bool(args.get("ignore_case")))
    fits = _glob(args.get("glob"))
    until = time.monotonic() + SEARCH_S
    hits: list[JSON] = []
    seen = searched = 0
    for found in _walk(folder, args.get("path", "."), _NOISE):
        if not fits(found.path):
            continue
        text = _text(found)
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


def _compiled(pattern: str, ignore_case: bool) -> Any:
    import regex

    if len(pattern) > MAX_PATTERN_CHARS:
        message = f"the pattern has {len(pattern):,} characters, {MAX_PATTERN_CHARS:,} are allowed"
        raise ToolFailed("tool", "tool.bad_pattern", message, "search for a part of it")
    try:
        return regex.compile(pattern, regex.MULTILINE | (regex.IGNORECASE if ignore_case else 0))
    except (regex.error, RecursionError, OverflowError) as error:
        hint = "escape characters that are meant literally"
        raise ToolFailed("tool", "tool.bad_pattern", f"no regular expression: {error}", hint) from None


def _walk(folder: str, path: str, noise: frozenset[str]) -> Iterator[FoundFile]:
    try:
        with resolve(folder, path) as spot:
            try:
                top = os.open(spot.name, _FOLDER, dir_fd=spot.folder)
            except NotADirectoryError:
                yield FoundFile(spot.path, spot.folder, spot.name)
                return
            except OSError as error:
                missing = isinstance(error, FileNotFoundError)
                code, why = ("not_found", "does not exist") if missing else ("io", error.strerror)
                raise ToolFailed("tool", f"tool.{code}", f'"{path}" {why}') from None
            for count, found in enumerate(_below(top, spot.path, noise, 0), 1):
                if count > MAX_FILES:
                    message = f"there are more than {MAX_FILES:,} files"
                    raise ToolFailed("tool", "tool.too_many", message, "name a folder in `path`")
                yield found
    except PathProblem as problem:
        raise as_failed(problem) from problem


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _below(folder: int, path: str, noise: frozenset[str], depth: int) -> Iterator[FoundFile]:
    """Every regular file below an open folder, by name. Closes the folder."""
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            where = f"{path}/{entry.name}" if path else entry.name
            if entry.is_file(follow_symlinks=False):
                yield FoundFile(where, folder, entry.name)
            elif entry.is_dir(follow_symlinks=False) and entry.name not in _NEVER | noise:
                if depth == MAX_DEPTH:
                    continue
                try:
                    below = os.open(entry.name, _FOLDER, dir_fd=folder)
                except OSError:
                    continue  # gone or swapped since it was listed
                yield from _below(below, where, noise, depth + 1)
    finally:
        os.close(folder)


def _text(found: FoundFile) -> str | None:
    """The text of a file; None for binary, very large and unreadable ones."""
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


def _lines(pattern: Any, text: str, until: float) -> Iterator[tuple[int, str]]:
    """Number and text of each line that matches, once each."""
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


def _glob(pattern: str | None) -> Callable[[str], bool]:
    if pattern is None:
        return lambda _: True
    return lambda path: matches((pattern,), path)
