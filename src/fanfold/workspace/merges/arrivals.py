"""What merges put into the parent lately, whoever made them: no watch holds it against its step.

    .fanfold/workspace/merges.jsonl   how many bytes were dropped before; then one list of paths per merge

Rules
* Paths are noted before the merge touches them, under the workspace lock. So one that is rolled back is noted
  too, which does no harm, and one that arrived is never missing.
* A mark is a place in everything that was ever noted. Old lines are dropped when there are too many; whoever
  asks for more than is left is told that it is not all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from fanfold.trust.project_files import write_whole
from fanfold.workspace.files.layout import Layout, is_kept, open_kept, read_kept

MAX_BYTES = 1_000_000
_HEAD = 21

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Arrived(NamedTuple):
    """What came since a mark; `complete` says that nothing of it was dropped."""

    paths: frozenset[str]
    complete: bool


class Arrivals:
    """The notes of merges of one project."""

    def __init__(self, layout: Layout) -> None:
        self._file = layout.private / "merges.jsonl"

    def note(self, paths: Iterable[str]) -> None:
        """These paths are about to change. Called with the workspace lock held."""
        line = msgspec.json.encode(sorted(paths)) + b"\n"
        dropped, data = self._read()
        if os.path.lexists(self._file) and not is_kept(self._file):
            os.unlink(self._file)  # not written through, nor waited for
        if len(data) + len(line) > MAX_BYTES and data:
            # Cut behind the end of a line; only the newer half stays.
            cut = data.find(b"\n", len(data) // 2) + 1 or len(data)
            write_whole(self._file, _head(dropped + cut) + data[cut:] + line)
            return
        # Not forced to disk: who watches does not outlive the machine either.
        handle = os.open(self._file, _APPEND, 0o600)
        with os.fdopen(handle, "ab") as out:
            # Whoever died while writing left half a line, which must not spoil this one.
            torn = bool(data) and not data.endswith(b"\n")
            begun = os.fstat(handle).st_size
            out.write((b"\n" if torn else b"" if begun else _head(0)) + line)

    def mark(self) -> int:
        """Where the notes end now. Called with the workspace lock held."""
        if not is_kept(self._file):
            return 0
        with open_kept(self._file) as file:
            return _dropped(file.read(_HEAD)) + max(0, os.fstat(file.fileno()).st_size - _HEAD)

    def since(self, mark: int) -> Arrived:
        """What was noted after a mark."""
        dropped, data = self._read()
        start = mark - dropped
        complete = 0 <= start <= len(data)
        found: set[str] = set()
        for line in data[start if complete else 0 :].splitlines():
            try:
                found.update(msgspec.json.decode(line, type=list[str]))
            except msgspec.DecodeError:
                continue  # half a line: its merge never began
        return Arrived(frozenset(found), complete)

    def _read(self) -> tuple[int, bytes]:
        """How much was dropped, and what is left."""
        try:
            whole = read_kept(self._file)
        except FileNotFoundError:
            return 0, b""
        return _dropped(whole[:_HEAD]), whole[_HEAD:]


def _head(dropped: int) -> bytes:
    return b"%020d\n" % dropped


def _dropped(head: bytes) -> int:
    return int(head) if len(head) == _HEAD and head.strip().isdigit() else 0
