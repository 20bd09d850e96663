"""`edit_file` and `apply_patch`: changes of parts of files.

Rules
* The new text is worked out from the file as it is and put in place by `write_file`, so posture, write-set
  and confinement are checked in one place and readers never see half a change.
* Nothing is guessed: a piece that is missing, or there twice, is an error that says so.
* A patch is worked out as a whole before anything is written. When a write is refused after others were made,
  those are put back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fanfold.agents.toolbox import ToolFailed
from fanfold.agents.toolbox.confinement import as_failed
from fanfold.agents.toolbox.files import FileTools
from fanfold.agents.toolbox.patches import PatchError, apply, parse
from fanfold.kernel.plan import JSON
from fanfold.workspace.files.beneath import PathProblem, open_regular, resolve

MAX_TEXT_BYTES = 4 * 1024 * 1024


class EditTools:
    """The editing tools of one session; `files` does the writing."""

    def __init__(self, folder: str, files: FileTools) -> None:
        self._folder = folder
        self._files = files

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
            hint = "take more lines around it, or set `all`"
            raise ToolFailed("tool", "tool.ambiguous", f'"{path}" holds that text {count} times', hint)
        if old == new:
            raise ToolFailed("tool", "tool.no_change", "old and new are the same")
        written = await self._files.call("write_file", {"path": path, "content": text.replace(old, new)})
        return {"path": written["path"], "replaced": count, "line": text[: text.find(old)].count("\n") + 1}

    async def apply_patch(self, args: Mapping[str, Any]) -> JSON:
        before: dict[str, str | None] = {}
        after: dict[str, str | None] = {}
        try:
            for change in parse(args["patch"]):
                for path in {change.old, change.new} - {None}:
                    assert path is not None
                    if path not in before:
                        before[path] = after[path] = read_text(self._folder, path)
                source = None if change.old is None else after[change.old]
                result = apply(change, source)
                if change.old is not None and change.old != change.new:
                    after[change.old] = None
                if change.new is not None:
                    after[change.new] = result
        except PatchError as error:
            hint = "read the file again and make the patch from what it holds now"
            raise ToolFailed("tool", "tool.patch_failed", str(error), hint) from None
        changed = [path for path in after if after[path] != before[path]]
        await self._put(changed, before, after)
        return {"files": [{"path": path, "change": _kind(before[path], after[path])} for path in changed]}

    async def _put(
        self, changed: list[str], before: dict[str, str | None], after: dict[str, str | None]
    ) -> None:
        done: list[str] = []
        try:
            for path in changed:
                await self._set(path, after[path])
                done.append(path)
        except ToolFailed:
            for path in reversed(done):
                await self._set(path, before[path])
            raise

    async def _set(self, path: str, text: str | None) -> None:
        if text is None:
            await self._files.call("delete_file", {"path": path})
        else:
            await self._files.call("write_file", {"path": path, "content": text})


def _kind(before: str | None, after: str | None) -> str:
    if before is None:
        return "created"
    return "deleted" if after is None else "changed"


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
    """The text of a file; None when there is no such file. Raises `ToolFailed` for anything but text."""
    try:
        with resolve(folder, path) as spot, os.fdopen(open_regular(spot, path), "rb") as file:
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
