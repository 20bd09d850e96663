"""Texts for tools: whole files, read beneath the workspace."""

from __future__ import annotations

import os

from fanfold.agents.toolbox import ToolFailed
from fanfold.agents.toolbox.confinement import as_failed
from fanfold.workspace.files.beneath import PathProblem, open_regular, resolve

MAX_TEXT_BYTES = 4 * 1024 * 1024


def read_text(folder: str, path: str) -> str | None:
    """The text of a file; None when there is no such file. Raises `ToolFailed` for anything but text."""
    try:
        with resolve(folder, path) as spot:
            handle = open_regular(spot, path)
            try:
                data = _all(handle)
            finally:
                os.close(handle)
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


def _all(handle: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while size <= MAX_TEXT_BYTES and (piece := os.read(handle, 1024 * 1024)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)
