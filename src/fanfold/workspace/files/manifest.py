"""A manifest: what a tree held at one moment, precise enough to see later whether anything changed.

Rules
* A file is the same as before when inode, size, times and mode are. No program can set the change time,
  so a write cannot hide, except within the clock's grain: an entry changed that close to the moment of the
  manifest is *unsettled*, and its content is compared instead. A clock that was set back could give the same
  time twice: then nothing is settled.
* What was left out is remembered by name and kind. Where nothing has an unknown name and no rule changed,
  there is nobody to be asked what is ignored.
* Names are kept as the disk has them, also those that are not text.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from fanfold.errors import WorldError
from fanfold.process_identity import boot_id
from fanfold.workspace.files.beneath import open_top

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
GRAIN_NS = 20_000_000
"""Twice the coarsest tick of a clock that file systems stamp times with."""


class FileEntry(NamedTuple):
    """A regular file or a link."""

    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileEntry:
        return cls(status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def git_mode(self) -> int:
        """The three modes that content has: file, program, link."""
        return git_mode(self.mode)


def git_mode(mode: int) -> int:
    """What git keeps of a mode."""
    if stat.S_ISLNK(mode):
        return 0o120000
    return 0o100755 if mode & 0o100 else 0o100644


class Manifest:
    """A tree: its files, its folders, what was left out, and where the parent is bound in again."""

    __slots__ = ("clock_ns", "files", "folders", "left_out", "marked", "points", "rules", "taken_ns")

    def __init__(self) -> None:
        self.files: dict[str, FileEntry] = {}
        self.folders: set[str] = set()
        self.left_out: set[str] = set()
        """As `left_out_name` spells them: what is left out as a folder may be wanted as a file."""
        self.marked: dict[str, str] = {}
        """Folders that a tool says it made, and the file that says so."""
        self.points: dict[str, bool] = {}
        """`.git`, `.fanfold` and dependency folders: an empty place each, True for a folder."""
        self.rules: dict[str, FileEntry | None] = {}
        """What decides about ignoring: those files as they were."""
        self.taken_ns = 0
        self.clock_ns = 0
        """What the clock was ahead of the time since the machine started."""

    def settled_ns(self) -> int:
        """What changed before is told from a later write by its entry: nothing, if the clock was set back."""
        return -1 if clock_ns() < self.clock_ns - GRAIN_NS else self.taken_ns - GRAIN_NS


def differing(before: Manifest, now: Manifest) -> set[str]:
    """The files of a tree as it is now that may hold something else than before, by their entries."""
    known, settled_ns = before.files, before.settled_ns()
    return {
        path for path, entry in now.files.items() if known.get(path) != entry or entry.ctime_ns >= settled_ns
    }


def left_out_name(path: str, mode: int) -> str:
    """How something that is left out is remembered: its path, and what kind of thing it is."""
    if stat.S_ISDIR(mode):
        return path + "/"
    return path if stat.S_ISREG(mode) or stat.S_ISLNK(mode) else path + "//"


def clock_ns() -> int:
    """What the clock is ahead of the time since the machine started: it changes when somebody sets it."""
    # Whoever is interrupted between the two readings gets too little.
    return max(time.time_ns() - time.clock_gettime_ns(_ELAPSED) for _ in range(3))


class _Stored(msgspec.Struct, array_like=True):
    boot: str
    taken_ns: int
    clock_ns: int
    names: bytes
    entries: list[FileEntry]
    gone: bytes
    folders: bytes
    left_out: bytes
    points: bytes
    point_folders: list[bool]
    rule_names: bytes
    rules: list[FileEntry | None]
    marked: bytes
    marks: bytes


def encode(manifest: Manifest, under: Manifest | None = None) -> bytes:
    """A manifest as it is kept; of files only those that differ from `under`, where that is kept too."""
    files, gone = manifest.files, list[str]()
    if under is not None:
        known = under.files
        files = {path: entry for path, entry in files.items() if known.get(path) != entry}
        gone = [path for path in known if path not in manifest.files]
    return msgspec.msgpack.encode(
        _Stored(
            boot_id(),
            manifest.taken_ns,
            manifest.clock_ns,
            join_names(files),
            list(files.values()),
            join_names(gone),
            join_names(manifest.folders),
            join_names(manifest.left_out),
            join_names(manifest.points),
            list(manifest.points.values()),
            join_names(manifest.rules),
            list(manifest.rules.values()),
            join_names(manifest.marked),
            join_names(manifest.marked.values()),
        )
    )


def decode(data: bytes, where: Path, under: Manifest | None = None) -> tuple[Manifest, bool]:
    """A kept manifest, and whether it was written since the machine started."""
    try:
        stored = msgspec.msgpack.decode(data, type=_Stored)
    except msgspec.DecodeError as error:
        raise WorldError("workspace.damaged", f"{where} is damaged: {error}") from error
    manifest = Manifest()
    manifest.taken_ns, manifest.clock_ns = stored.taken_ns, stored.clock_ns
    if under is not None:
        manifest.files = dict(under.files)
    manifest.files.update(zip(split_names(stored.names), stored.entries, strict=True))
    for path in split_names(stored.gone):
        manifest.files.pop(path, None)
    manifest.folders = set(split_names(stored.folders))
    manifest.left_out = set(split_names(stored.left_out))
    manifest.points = dict(zip(split_names(stored.points), stored.point_folders, strict=True))
    manifest.rules = dict(zip(split_names(stored.rule_names), stored.rules, strict=True))
    manifest.marked = dict(zip(split_names(stored.marked), split_names(stored.marks), strict=True))
    return manifest, stored.boot == boot_id()


def join_names(names: Iterable[str]) -> bytes:
    """Names in one piece; none of them is empty, and none can hold a zero."""
    return os.fsencode("\0".join(names))


def split_names(data: bytes) -> list[str]:
    return os.fsdecode(data).split("\0") if data else []


class OpenLayers:
    """The trees of a base, held open, and which of them has the file of a path."""

    def __init__(self, trees: Sequence[Path], is_above: Callable[[str], bool]) -> None:
        self._handles: list[int] = []
        try:
            for tree in trees:
                self._handles.append(open_top(tree))
        except OSError:
            self.__exit__()
            raise
        self._is_above = is_above

    def at(self, path: str) -> int:
        """The tree to look into: what it has not got is not there."""
        return self._handles[0] if len(self._handles) == 1 or self._is_above(path) else self._handles[1]

    def split(self, paths: Iterable[str]) -> list[tuple[int, list[str]]]:
        """These paths by the tree that has them."""
        found: dict[int, list[str]] = {}
        for path in paths:
            found.setdefault(self.at(path), []).append(path)
        return list(found.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            os.close(handle)
