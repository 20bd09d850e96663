"""A manifest: what a tree held at one moment, precise enough to see later whether anything changed.

Rules
* A file is the same as before when inode, size, times and mode are. No program can set the change time,
  so a write cannot hide, except within the clock's grain: an entry changed that close to the moment of the
  manifest is *unsettled*, and its content is compared instead.
* What was left out is remembered by name. Where nothing has an unknown name and no rule changed, there is
  nobody to be asked what is ignored.
* Names are kept as the disk has them, also those that are not text.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

import msgspec

from fanfold.errors import WorldError
from fanfold.process_identity import boot_id

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

    __slots__ = ("files", "folders", "left_out", "points", "rules", "taken_ns")

    def __init__(self) -> None:
        self.files: dict[str, FileEntry] = {}
        self.folders: set[str] = set()
        self.left_out: set[str] = set()
        self.points: dict[str, bool] = {}
        """`.git`, `.fanfold` and dependency folders: an empty place each, True for a folder."""
        self.rules: dict[str, FileEntry | None] = {}
        """What decides about ignoring: those files as they were."""
        self.taken_ns = 0

    def settled(self, entry: FileEntry) -> bool:
        """Whether the entry was old enough when the manifest was taken to be told from a later write."""
        return entry.ctime_ns < self.taken_ns - GRAIN_NS


class _Stored(msgspec.Struct, array_like=True):
    boot: str
    taken_ns: int
    names: bytes
    entries: list[FileEntry]
    folders: bytes
    left_out: bytes
    points: bytes
    point_folders: list[bool]
    rule_names: bytes
    rules: list[FileEntry | None]


def encode(manifest: Manifest) -> bytes:
    """A manifest as it is kept."""
    return msgspec.msgpack.encode(
        _Stored(
            boot_id(),
            manifest.taken_ns,
            _join(manifest.files),
            list(manifest.files.values()),
            _join(manifest.folders),
            _join(manifest.left_out),
            _join(manifest.points),
            list(manifest.points.values()),
            _join(manifest.rules),
            list(manifest.rules.values()),
        )
    )


def decode(data: bytes, where: Path) -> tuple[Manifest, bool]:
    """A kept manifest, and whether it was written since the machine started."""
    try:
        stored = msgspec.msgpack.decode(data, type=_Stored)
    except msgspec.DecodeError as error:
        raise WorldError("workspace.damaged", f"{where} is damaged: {error}") from error
    manifest = Manifest()
    manifest.taken_ns = stored.taken_ns
    manifest.files = dict(zip(_split(stored.names), stored.entries, strict=True))
    manifest.folders = set(_split(stored.folders))
    manifest.left_out = set(_split(stored.left_out))
    manifest.points = dict(zip(_split(stored.points), stored.point_folders, strict=True))
    manifest.rules = dict(zip(_split(stored.rule_names), stored.rules, strict=True))
    return manifest, stored.boot == boot_id()


def _join(names: dict[str, bool] | dict[str, FileEntry] | dict[str, FileEntry | None] | set[str]) -> bytes:
    return os.fsencode("\0".join(names))


def _split(data: bytes) -> list[str]:
    return os.fsdecode(data).split("\0") if data else []
