"""Which paths git tracks, read from its index: the few bytes of the format that names need.

Versions 2, 3 and 4, with names of objects of either length. An index that is anything else is not guessed at.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

MAX_BYTES = 1024**3


class UnreadableIndex(Exception):
    """The file is no index that this module can read."""


def tracked_below(index: Path, folder: str) -> list[str]:
    """The paths in an index that lie below a folder. Costs one search of the file where there are none."""
    try:
        handle = os.open(index, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    with os.fdopen(handle, "rb"):
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= MAX_BYTES:
            return []
        with mmap.mmap(handle, 0, access=mmap.ACCESS_READ) as data:
            word = folder.rpartition("/")[2].encode()
            # Version 4 leaves out what a name shares with the one before: the word may not stand there whole.
            if data[4:8] != b"\0\0\0\x04" and data.find(word) < 0:
                return []
            return [path for path in _names(data) if path.startswith(f"{folder}/")]


def _names(data: mmap.mmap) -> list[str]:
    for object_bytes in (20, 32):
        try:
            return list(_entries(data, object_bytes))
        except (UnreadableIndex, struct.error, IndexError, ValueError):
            continue
    raise UnreadableIndex


def _entries(data: mmap.mmap, object_bytes: int) -> Iterator[str]:
    signature, version, count = struct.unpack_from(">4sII", data, 0)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise UnreadableIndex
    at = 12
    before = b""
    for _ in range(count):
        start = at
        (mode,) = struct.unpack_from(">I", data, at + 24)
        if not stat.S_ISREG(mode) and stat.S_IFMT(mode) not in (0o120000, 0o160000, 0o040000):
            raise UnreadableIndex
        at += 40 + object_bytes
        (flags,) = struct.unpack_from(">H", data, at)
        at += 4 if version >= 3 and flags & 0x4000 else 2
        cut = 0
        if version == 4:
            cut, at = _number(data, at)
        end = data.find(b"\0", at)
        if end < 0 or cut > len(before):
            raise UnreadableIndex
        name = before[: len(before) - cut] + data[at:end] if version == 4 else data[at:end]
        at = end + 1 if version == 4 else start + ((end - start + 8) & ~7)
        before = name
        yield os.fsdecode(name)


def _number(data: mmap.mmap, at: int) -> tuple[int, int]:
    """A number of any size, as git writes offsets."""
    byte = data[at]
    at += 1
    value = byte & 0x7F
    while byte & 0x80:
        byte = data[at]
        at += 1
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at
