"""Safe reads and writes of project files: links cannot lead out of the project.

A checkout is untrusted. A file in it may be a link to the user's keys, an endless pipe, a device, or ten
gigabytes long.

Rules
* A link is followed only if its target is inside the project. The target is then opened name by name without
  following links, so a link that is added in between has no effect. The target is computed from the text of
  the link. No path outside the project is accessed, because an access alone can mount a disk or contact a
  remote machine.
* Only regular files are read, and never more bytes than requested.
* A write to a project follows no link. A link in the place of the file is replaced, not written through.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_LINKS = 40
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class Closing:
    """Closes a file descriptor at the end of a `with` block.

    >>> with Closing(os.open(".", os.O_RDONLY)) as handle:
    ...     names = os.listdir(handle)
    """

    __slots__ = ("_handle",)

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __enter__(self) -> int:
        return self._handle

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


class LedOut(OSError, ValueError):
    """A path in the project leads out of it. Also a `ValueError`, for paths in decoded data."""

    def __init__(self, file: Path) -> None:
        super().__init__(0, "it leads out of the project", str(file))


class NotAFile(OSError):
    """The path is not a regular file."""

    def __init__(self, file: Path) -> None:
        super().__init__(0, "it is no regular file", str(file))


def read_beneath(top: Path, file: Path, max_bytes: int) -> bytes:
    """Return at most `max_bytes` of a file below `top`. Raises OSError, including `LedOut` and `NotAFile`."""
    folder, name = _open_parent(top, file)
    with Closing(folder):
        handle = os.open(name, _FILE, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotAFile(file)
    with os.fdopen(handle, "rb") as opened:
        return opened.read(max_bytes)


def read_named(top: Path, file: Path, max_bytes: int) -> bytes:
    """Return at most `max_bytes` of a file that the user named. Raises OSError.

    A path inside the project is read like any project file. Any other path belongs to the user, so links and
    pipes are allowed.
    """
    if Path(os.path.abspath(file)).is_relative_to(os.path.realpath(top)):
        return read_beneath(top, file, max_bytes)
    with file.open("rb") as opened:
        return opened.read(max_bytes)


def write_named(top: Path, file: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a file the user named. Inside the project, no link is written through. Raises OSError."""
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
    """Return the names in a folder below `top`, sorted. Raises OSError."""
    parent, name = _open_parent(top, folder)
    with Closing(parent), Closing(os.open(name, _FOLDER, dir_fd=parent)) as handle:
        return sorted(os.listdir(handle))


def walk_beneath(
    top: Path, folder: Path, suffixes: tuple[str, ...], *, max_depth: int, max_folders: int
) -> list[str]:
    """Return the files with these suffixes in a folder below `top` and its sub-folders, as sorted paths.

    Links and hidden sub-folders are not entered. Raises OSError, also if there are more than `max_folders`.
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
        with (
            Closing(parent),
            Closing(os.open(name, _FOLDER, dir_fd=parent)) as handle,
            os.scandir(handle) as entries,
        ):
            listed = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        for name, is_folder in listed:
            path = f"{below}/{name}" if below else name
            if not is_folder and name.endswith(suffixes):
                found.append(path)
            elif is_folder and not name.startswith(".") and path.count("/") < max_depth:
                waiting.append(path)
    raise OSError(0, f"it has more than {max_folders} folders", str(folder))


def names_below(path: str) -> list[str]:
    """Return the names in a relative path. Raises `LedOut` if one of them could lead out of its folder.

    >>> names_below("a/b.txt")
    ['a', 'b.txt']
    """
    if not {"", ".", ".."}.isdisjoint(names := path.split("/")) or "\0" in path:
        raise LedOut(Path(path[:200]))
    return names


def write_beneath(top: Path, path: str, data: bytes, *, replace: bool = True, mode: int = 0o644) -> bool:
    """Write a file below `top` atomically, never through a link; return whether it was written."""
    *folders, name = names_below(path)
    handle = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for folder in folders:
        with Closing(handle):
            try:
                below = os.open(folder, _FOLDER, dir_fd=handle)
            except FileNotFoundError:
                os.mkdir(folder, dir_fd=handle)
                below = os.open(folder, _FOLDER, dir_fd=handle)
        handle = below
    with Closing(handle):
        if not replace and name in os.listdir(handle):
            return False
        write_whole(name, data, folder=handle, mode=mode)
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
    """Write a file atomically: a reader sees the old or the new content, never a part.

    `file` is a path, or a name in an open `folder`. With `exactly`, the mode is set regardless of the umask.
    A crash leaves a temporary file whose name matches `LEFTOVER`, which merges recognize.
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
                os.fchmod(handle, mode)  # after writing, because a write clears special bits
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
    with Closing(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as handle:
        os.fsync(handle)


def resolve_beneath(top: Path, file: Path) -> str:
    """Return a path of the project with every link resolved. Raises `LedOut` if it is outside."""
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
        if name == os.pardir:  # leaves the project, but may return
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
    """Return the names of an absolute path below the first of these folders that contains it."""
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
        return None  # not a link, or it does not exist


def _open_parent(top: Path, file: Path) -> tuple[int, str]:
    """Return a handle of the folder that contains a file after resolving links, and the file's name in it."""
    above = os.path.realpath(top)
    names = os.path.relpath(resolve_beneath(top, file), above).split(os.sep)
    handle = os.open(above, _FOLDER)
    for name in names[:-1]:
        with Closing(handle):
            below = os.open(name, _FOLDER, dir_fd=handle)
        handle = below
    return handle, names[-1]
