"""`artifacts/…` in the file tools: the files that a step leaves beside the project.

The word is the project's where it has a folder of that name; `$FANFOLD_ARTIFACTS/…`, as programs say, always
means these.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from fanfold.agents.toolbox import ToolFailed
from fanfold.agents.toolbox.edits import EditTools
from fanfold.agents.toolbox.files import FileTools
from fanfold.agents.toolbox.search import SearchTools
from fanfold.kernel.plan import JSON
from fanfold.workspace.artifacts import VARIABLE, ArtifactRoom

WORD = "artifacts"
TOOLS = ("read_file", "list_files", "search_files", "write_file", "edit_file", "delete_file")
_CHANGING = frozenset(("write_file", "edit_file", "delete_file"))


class ArtifactFiles:
    """The artifacts of one session."""

    def __init__(self, room: ArtifactRoom, workspace: str) -> None:
        self._room = room
        self._workspace = workspace

    def has(self, args: Mapping[str, Any]) -> bool:
        """Whether a call is about artifacts."""
        path = args.get("path")
        if not isinstance(path, str):
            return False
        first = path.removeprefix("./").partition("/")[0]
        if first in (f"${VARIABLE}", f"${{{VARIABLE}}}"):
            return True
        return first == WORD and not os.path.isdir(os.path.join(self._workspace, WORD))

    def locate(self, path: str) -> tuple[Path, str]:
        """The folder that an artifact lies in, and its path there."""
        return self._room.open(), _inside(path)

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        """Any tool of `TOOLS`."""
        inside = _inside(str(args["path"]))
        owner = self._room.owner(str(PurePosixPath(inside))) if name in _CHANGING else ""
        if owner:
            message = f'"{WORD}/{inside}" was published by {owner}, and is only to be read'
            raise ToolFailed("permission", "tool.read_only", message, "write under another name")
        folder = str(await asyncio.to_thread(self._room.open))
        result = await _tool(name, folder)({**args, "path": inside or "."})
        return _outward(result)


def _inside(path: str) -> str:
    return path.removeprefix("./").partition("/")[2].rstrip("/")


def _tool(name: str, folder: str) -> Callable[[Mapping[str, Any]], Awaitable[JSON]]:
    files = FileTools(folder, read_only=False)
    if name == "list_files":
        return SearchTools(folder).list_files
    if name == "search_files":
        return SearchTools(folder).search_files
    if name == "edit_file":
        return EditTools(folder, files).edit_file
    return lambda args: files.call(name, args)


def _outward(result: JSON) -> JSON:
    """The same with paths as the agent writes them."""
    if not isinstance(result, dict):
        return result
    told = dict(result)
    if isinstance(told.get("path"), str):
        told["path"] = f"{WORD}/{told['path']}" if told["path"] != "." else WORD
    if isinstance(told.get("files"), list):
        told["files"] = [f"{WORD}/{one}" for one in told["files"]]
    if isinstance(told.get("matches"), list):
        told["matches"] = [{**one, "path": f"{WORD}/{one['path']}"} for one in told["matches"]]
    return told
