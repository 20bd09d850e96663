"""Which paths git tracks, read from its index: the few bytes of the format that names need.

Versions 2, 3 and 4, with names of objects of either length. An index that is anything else is not guessed at.
A split index keeps most names in a second file, which it names. What it says is left out of there counts all
the same: who asks wants to know what a commit may have brought.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from pathlib import Path
from typing import NamedTuple

from fanfold.trust.repository import UnreadableIndex

MAX_BYTES = 1024**3
SHARED = "sharedindex"


class _Parsed(NamedTuple):
    names: list[str]
    shared: str
    """The name of the object that the second file of a split index is called after, or nothing."""


def tracked_below(index: Path, folder: str) -> list[str]:
    """The paths in an index that lie below a folder. Costs one search of the file where there are none."""
    found, shared = _look(index, folder, is_split(index))
    if shared:
        second = index.with_name(f"{SHARED}.{shared}")
        if not second.is_file():
            raise UnreadableIndex
        found += _look(second, folder, False)[0]
    return found


def is_split(index: Path) -> bool:
    """Whether an index may have most of its names in a second file beside it."""
    try:
        return any(name.startswith(f"{SHARED}.") for name in os.listdir(index.parent))
    except OSError:
        return False


def _look(index: Path, folder: str, whole: bool) -> tuple[list[str], str]:
    try:
        handle = os.open(index, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return [], ""
    with os.fdopen(handle, "rb"):
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= MAX_BYTES:
            return [], ""
        with mmap.mmap(handle, 0, access=mmap.ACCESS_READ) as data:
            word = folder.rpartition("/")[2].encode()
            # Version 4 leaves out what a name shares with the one before: the word may not stand there whole.
            if not whole and data[4:8] != b"\0\0\0\x04" and data.find(word) < 0:
                return [], ""
            parsed = _parse(data)
            return [path for path in parsed.names if path.startswith(f"{folder}/")], parsed.shared


def _parse(data: mmap.mmap) -> _Parsed:
    for object_bytes in (20, 32):
        try:
            names, at = _entries(data, object_bytes)
            return _Parsed(names, _named_second_file(data, at, object_bytes))
        except (UnreadableIndex, struct.error, IndexError, ValueError):
            continue
    raise UnreadableIndex


def _entries(data: mmap.mmap, object_bytes: int) -> tuple[list[str], int]:
    """The names, and where what follows them begins."""
    signature, version, count = struct.unpack_from(">4sII", data, 0)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise UnreadableIndex
    at = 12
    before = b""
    names: list[str] = []
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
        names.append(os.fsdecode(name))
    return names, at


def _named_second_file(data: mmap.mmap, at: int, object_bytes: int) -> str:
    """What the extension of a split index says; the extensions follow the names, then comes a checksum."""
    named = ""
    while at + 8 <= len(data) - object_bytes:
        signature, size = struct.unpack_from(">4sI", data, at)
        at += 8
        if at + size > len(data) - object_bytes:
            raise UnreadableIndex
        if signature == b"link":
            shared = data[at : at + object_bytes]
            named = shared.hex() if any(shared) else ""
        at += size
    if at != len(data) - object_bytes:
        raise UnreadableIndex
    return named


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
