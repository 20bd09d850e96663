"""Files that came with a project: read, and written beside, without being led out of it.

A checkout is somebody else's work. What it calls a file may be a link to the user's keys, a pipe that never
ends, a device, or ten gigabytes.

Rules
* A link is followed only if it ends inside the project; then what it ends at is opened name by name without
  following any, so that one put there in between leads nowhere. Where a link leads is read from its text:
  nothing outside is even looked at, since that alone can wake a disk or a machine far away.
* Only regular files are read, and no more of one than was asked for.
* What we write into a project goes where its name says: no link is followed, and one that is in the place of
  a file is replaced, not written through.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_LINKS = 40
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class LedOut(OSError):
    """A path of the project that leads out of it."""

    def __init__(self, file: Path) -> None:
        super().__init__(0, "it leads out of the project", str(file))


class NotAFile(OSError):
    """Something that is no regular file."""

    def __init__(self, file: Path) -> None:
        super().__init__(0, "it is no regular file", str(file))


def read_beneath(top: Path, file: Path, max_bytes: int) -> bytes:
    """At most `max_bytes` of a file below `top`; raises OSError, `LedOut` and `NotAFile` among them."""
    folder, name = _open_parent(top, file)
    try:
        handle = os.open(name, _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotAFile(file)
    with os.fdopen(handle, "rb") as opened:
        return opened.read(max_bytes)


def read_named(top: Path, file: Path, max_bytes: int) -> bytes:
    """At most `max_bytes` of a file that the user named; raises OSError.

    Named inside the project it is the project's, and is read like all that is. Anything else, pipes and links
    too, is the user's own.
    """
    if Path(os.path.abspath(file)).is_relative_to(os.path.realpath(top)):
        return read_beneath(top, file, max_bytes)
    with file.open("rb") as opened:
        return opened.read(max_bytes)


def write_named(top: Path, file: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a file that the user named; raises OSError, `FileExistsError` without `replace` where one is.

    Named inside the project it goes where its name says: a link that somebody put there is not written
    through. Anywhere else, links and pipes are the user's own.
    """
    named, above = os.path.abspath(file), os.path.realpath(top)
    if os.path.isdir(named):
        raise IsADirectoryError(0, "it is a folder", str(file))
    if Path(named).is_relative_to(above):
        if not write_beneath(Path(above), os.path.relpath(named, above), data, replace=replace):
            raise FileExistsError(0, "it is there already", str(file))
        return
    with file.open("wb" if replace else "xb") as opened:
        opened.write(data)


def list_beneath(top: Path, folder: Path) -> list[str]:
    """The names in a folder below `top`, sorted; raises OSError."""
    parent, name = _open_parent(top, folder)
    try:
        handle = os.open(name, _FOLDER, dir_fd=parent)
    finally:
        os.close(parent)
    try:
        return sorted(os.listdir(handle))
    finally:
        os.close(handle)


def walk_beneath(
    top: Path, folder: Path, suffixes: tuple[str, ...], *, max_depth: int, max_folders: int
) -> list[str]:
    """The files of these suffixes in a folder below `top` and in its sub-folders, as paths, sorted.

    A sub-folder that is a link, or hidden, is not entered. Raises OSError, also for what is too much.
    """
    found: list[str] = []
    waiting = [""]
    for visited in range(max_folders + 1):
        if not waiting:
            return sorted(found)
        if visited == max_folders:
            break
        below = waiting.pop(0)
        parent, name = _open_parent(top, folder / below)
        try:
            handle = os.open(name, _FOLDER, dir_fd=parent)
        finally:
            os.close(parent)
        try:
            with os.scandir(handle) as entries:
                listed = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        finally:
            os.close(handle)
        for name, is_folder in listed:
            path = f"{below}/{name}" if below else name
            if not is_folder and name.endswith(suffixes):
                found.append(path)
            elif is_folder and not name.startswith(".") and path.count("/") < max_depth:
                waiting.append(path)
    raise OSError(0, f"it has more than {max_folders} folders", str(folder))


def write_beneath(top: Path, path: str, data: bytes, *, replace: bool = True, mode: int = 0o644) -> bool:
    """Put a file at a path below `top`, as a whole or not at all; whether it was put there.

    Missing folders are made. Without `replace`, whatever is there stays. Raises OSError, for links too.
    """
    *folders, name = path.split("/")
    handle = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for folder in folders:
        try:
            below = _enter_or_make(handle, folder)
        finally:
            os.close(handle)
        handle = below
    try:
        if not replace and name in os.listdir(handle):
            return False
        write_whole(name, data, folder=handle, mode=mode)
    finally:
        os.close(handle)
    return True


def write_whole(
    file: str | Path,
    data: bytes,
    *,
    folder: int | None = None,
    mode: int = 0o600,
    exactly: bool = False,
    durable: bool = False,
) -> None:
    """Put a file in its place, all or nothing: a reader sees what was there or what is new, never half of it.

    `file` is a path, or a name in an open `folder`. A mode that is meant `exactly` is given whatever the mask
    of this process takes away. What is left where one was cut short has a name that merges know: `LEFTOVER`.
    """
    above = os.path.dirname(file)
    beside = os.path.join(above, f".fanfold-{os.urandom(8).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(beside, flags, mode, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            if exactly:
                os.fchmod(handle, mode)  # last: writing takes special bits away
            if durable:
                os.fsync(handle)
        os.replace(beside, file, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=folder)
        raise
    if durable and folder is not None:
        os.fsync(folder)
    elif durable:
        sync_folder(above or ".")


def sync_folder(folder: str | Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _enter_or_make(parent: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        os.mkdir(name, dir_fd=parent)
        return os.open(name, _FOLDER, dir_fd=parent)


def resolve_beneath(top: Path, file: Path) -> str:
    """Where a path of the project really is, with every link resolved; raises `LedOut` when not in it."""
    above = os.path.realpath(top)
    here: list[str] = []
    tops = (above, os.path.abspath(top))
    given = os.path.join(os.getcwd(), file)
    named = given if given.startswith(tuple(f"{one}{os.sep}" for one in tops)) else os.path.abspath(file)
    ahead = _names_below(file, named, tops)[::-1]
    links = 0
    while ahead:
        name = ahead.pop()
        if name == os.pardir and here:
            here.pop()
            continue
        if name == os.pardir:  # out, and perhaps back in
            around = os.path.normpath(os.path.join(os.path.dirname(above), *ahead[::-1]))
            ahead = _names_below(file, around, (above,))[::-1]
            links += 1
        else:
            here.append(name)
            target = _link_at(os.path.join(above, *here))
            if target is None:
                continue
            links += 1
            here.pop()
            if os.path.isabs(target):
                here, names = [], _names_below(file, target, tops)
            else:
                names = _split(target)
            ahead += names[::-1]
        if links > MAX_LINKS:
            raise LedOut(file)
    return os.path.join(above, *here)


def _names_below(file: Path, path: str, tops: tuple[str, ...]) -> list[str]:
    """The names that lead to an absolute path from the first of these folders that it names."""
    for top in tops:
        if path == top or path.startswith(f"{top.rstrip(os.sep)}{os.sep}"):
            return _split(path[len(top) :])
    raise LedOut(file)


def _split(path: str) -> list[str]:
    return [name for name in path.split(os.sep) if name not in ("", os.curdir)]


def _link_at(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None  # no link, or nothing at all


def _open_parent(top: Path, file: Path) -> tuple[int, str]:
    """The open folder that really holds a file, and the file's name in it."""
    above = os.path.realpath(top)
    names = os.path.relpath(resolve_beneath(top, file), above).split(os.sep)
    handle = os.open(above, _FOLDER)
    for name in names[:-1]:
        try:
            below = os.open(name, _FOLDER, dir_fd=handle)
        finally:
            os.close(handle)
        handle = below
    return handle, names[-1]
