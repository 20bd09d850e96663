"""The file tools: `read_file`, `write_file`, `delete_file`, confined to one folder.

Rules
* Paths are relative to the workspace and resolved beneath it (see `beneath`). What is compared with the
  write-set is where the path really leads, not how it was written.
* A read-only session writes nothing. A writer writes inside its write-set, which is everything when it
  declares none; never what is `protected`, where a file is an instruction to programs.
* A write replaces: a new file beside the old one is renamed over it. Readers see the old or the new text,
  links planted at the last moment are replaced and not followed, and hard links elsewhere keep their text.
* What comes back is bounded; the agent is told what was left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fanfold.agents.backend import SessionRequest
from fanfold.agents.toolbox import ToolFailed
from fanfold.agents.toolbox.confinement import missing, open_regular, refuse, resolve
from fanfold.kernel.paths import matches
from fanfold.kernel.plan import EVERYTHING, JSON
from fanfold.kernel.sets.protected import owner_of
from fanfold.trust.project_files import write_whole
from fanfold.workspace.files.beneath import Spot

MAX_READ_BYTES = 256 * 1024
MAX_WRITE_BYTES = 16 * 1024 * 1024


class FileTools:
    """The file tools of one session."""

    def __init__(self, folder: str, *, read_only: bool = True, write_set: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._read_only = read_only
        self._write_set = write_set or EVERYTHING
        self._tools: dict[str, Callable[[Mapping[str, Any]], JSON]] = {
            "read_file": self._read,
            "write_file": self._write,
            "delete_file": self._delete,
        }

    @classmethod
    def of(cls, request: SessionRequest) -> FileTools:
        """The tools that a session's request allows."""
        return cls(request.workspace, read_only=request.role.read_only, write_set=request.write_set)

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        tool = self._tools.get(name)
        if tool is None:
            hint = f"there are {', '.join(self._tools)}"
            raise ToolFailed("tool", "tool.unknown", f'there is no tool "{name}"', hint)
        try:
            return tool(args)
        except OSError as error:  # the disk is full, the file is somebody else's …
            path = args.get("path", ".")
            raise ToolFailed("tool", "tool.io", f'"{path}": {error.strerror or error}') from error

    def _read(self, args: Mapping[str, Any]) -> JSON:
        path = _text(args, "path")
        offset = _whole(args, "offset", 0)
        limit = min(_whole(args, "limit", MAX_READ_BYTES), MAX_READ_BYTES)
        with resolve(self._folder, path) as spot:
            handle = open_regular(spot, path)
            try:
                size = os.fstat(handle).st_size
                data = os.pread(handle, limit, offset)
            finally:
                os.close(handle)
        result: dict[str, JSON] = {"path": spot.path, "text": data.decode("utf-8", "replace"), "bytes": size}
        if offset + len(data) < size:
            result["next_offset"] = offset + len(data)
        return result

    def _write(self, args: Mapping[str, Any]) -> JSON:
        path, text = _text(args, "path"), _text(args, "content")
        data = text.encode("utf-8", "replace")
        if len(data) > MAX_WRITE_BYTES:
            message = f'"{path}": {len(data):,} bytes; at most {MAX_WRITE_BYTES:,} are written at once'
            raise ToolFailed("tool", "tool.too_large", message)
        check = partial(self._check_writable, path)
        self._check_posture(path)
        with resolve(self._folder, path, before_making=check, follow_last=False) as spot:
            check(spot.path)
            before = _replaceable(spot, path)
            known = None if before is None else stat.S_IMODE(before.st_mode) & 0o777
            mode = 0o666 if known is None else known
            write_whole(spot.name, data, folder=spot.folder, mode=mode, exactly=known is not None)
        return {"path": spot.path, "bytes": len(data), "created": before is None}

    def _delete(self, args: Mapping[str, Any]) -> JSON:
        path = _text(args, "path")
        self._check_posture(path)
        with resolve(self._folder, path, follow_last=False) as spot:
            self._check_writable(path, spot.path)
            before = spot.status()
            if before is None:
                raise missing(path)
            if stat.S_ISDIR(before.st_mode):
                raise ToolFailed("tool", "tool.is_a_folder", f'"{path}" is a folder', "delete its files")
            os.unlink(spot.name, dir_fd=spot.folder)  # a link goes, what it leads to stays
        return {"path": spot.path, "deleted": True}

    def _check_posture(self, asked: str) -> None:
        if self._read_only:
            message = f'"{asked}": this session may only read'
            raise ToolFailed("permission", "tool.read_only", message, "give the step a role that writes")

    def _check_writable(self, asked: str, real: str) -> None:
        owner = owner_of(real)
        if owner:
            raise refuse(asked, f"this belongs to {owner}")
        if real in ("", ".") or not matches(self._write_set, real):
            shown = ", ".join(self._write_set[:5])
            message = f'"{asked}" is outside the write_set ({shown})'
            raise ToolFailed("violation", "tool.outside_write_set", message, "widen the step's write_set")


def _replaceable(spot: Spot, path: str) -> os.stat_result | None:
    before = spot.status()
    if before is None:
        if spot.name == ".":
            raise refuse(path, "this is no file")
        return None
    if stat.S_ISDIR(before.st_mode):
        raise ToolFailed("tool", "tool.is_a_folder", f'"{path}" is a folder')
    if not stat.S_ISREG(before.st_mode):
        raise refuse(path, "only regular files can be written")
    return before


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
