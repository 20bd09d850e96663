"""Resolves paths beneath one folder, safe against links and concurrent replacement.

Rules
* No file is opened by a path that another program could redirect. Either the kernel resolves it beneath an
  open folder (`openat2` with RESOLVE_BENEATH), or each name is opened relative to the handle of its folder,
  without following links.
* If links may be followed (`resolve`), a link is read and its target is resolved in the same way. `..` in a
  link returns to a handle that is already open, never to the current parent folder. A path above the top, an
  absolute path and an absolute link are refused.
* So if a folder is replaced by a link meanwhile, another file may be found, but never one outside.
* Only regular files are read, and only through `open_regular`, which never blocks on a pipe or a device.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import msgspec

from fanfold.errors import EXIT_PERMISSION, WorldError
from fanfold.kernel.claims import why_unreadable
from fanfold.process_identity import boot_id

# -----------------------------------------------------------------------------------------------------------
# System calls that Python does not offer: openat2, renameat2, mounts
#
# Rules
# * Each function raises the `OSError` of the kernel, or `ENOSYS` if the system call does not exist. So
#   callers need only one fallback.
# * `ctypes` is imported at the first call: most commands never need it.

RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 1, 2, 4, 16384, 1 << 18
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
FICLONE = 0x40049409

_OPENAT2 = 437  # the same number on every architecture
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276, "riscv64": 276}


@cache
def _libc() -> Any:
    """Return the C library; raises `OSError` on systems other than Linux."""
    if not sys.platform.startswith("linux"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def openat2(folder: int, path: str, flags: int, mode: int, resolve: int) -> int:
    """Open `path` from an open folder under the rules of `resolve`."""
    import ctypes

    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, mode, resolve)
    arguments = (ctypes.c_long(folder), ctypes.c_char_p(os.fsencode(path)), how, ctypes.c_size_t(24))
    return _checked(_libc().syscall(ctypes.c_long(_OPENAT2), *arguments))


def renameat2(old_folder: int, old: str, new_folder: int, new: str, flags: int) -> None:
    """Rename without replacing, or exchange two names atomically."""
    import ctypes

    number = _RENAMEAT2.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    _checked(
        _libc().syscall(
            ctypes.c_long(number),
            ctypes.c_long(old_folder),
            ctypes.c_char_p(os.fsencode(old)),
            ctypes.c_long(new_folder),
            ctypes.c_char_p(os.fsencode(new)),
            ctypes.c_uint(flags),
        )
    )


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    """Mount a file system."""
    import ctypes

    words = [ctypes.c_char_p(os.fsencode(word)) for word in (source, target, kind)]
    _checked(_libc().mount(*words, ctypes.c_ulong(flags), ctypes.c_char_p(os.fsencode(options))))


def unmount(target: str) -> None:
    """Detach a mount at once; it ends when its last user ends."""
    import ctypes

    _checked(
        _libc().umount2(ctypes.c_char_p(os.fsencode(target)), ctypes.c_int(MNT_DETACH | UMOUNT_NOFOLLOW))
    )


def sync_file_system(folder: int) -> None:
    """Force all data of one file system to its disk."""
    _checked(_libc().syncfs(folder))


MAX_LINKS = 40
MAX_PATH_BYTES = 4_096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_INSIDE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS
_SWAPPED = (errno.ELOOP, errno.EXDEV, errno.ENOTDIR)

Problem: TypeAlias = Literal["refused", "missing", "not_a_folder", "is_a_folder", "gone"]


class PathProblem(WorldError):
    """A path that cannot be used beneath its folder; `problem` is the reason."""

    def __init__(self, problem: Problem, path: str, why: str) -> None:
        status = EXIT_PERMISSION if problem == "refused" else None
        hint = "name a file below the workspace" if problem == "refused" else ""
        super().__init__(f"workspace.path_{problem}", f'"{path}"{why}', hint=hint, exit_status=status)
        self.problem: Problem = problem


def refuse(path: str, why: str) -> PathProblem:
    """Return the error for a path that is not allowed."""
    return PathProblem("refused", path, f": {why}")


def missing(path: str) -> PathProblem:
    return PathProblem("missing", path, " does not exist")


class ResolvedPath:
    """A name in an open folder beneath the top; `path` is its real path with links resolved."""

    __slots__ = ("folder", "name", "path")

    def __init__(self, folder: int, name: str, path: str) -> None:
        self.folder = folder
        self.name = name
        self.path = path

    def status(self) -> os.stat_result | None:
        """Return the status of the file without following a link; None if there is none."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None


def names_of(path: str) -> list[str]:
    """Return the names of a relative path; refuses paths that could leave the top.

    >>> names_of("src/./fanfold//cli.py")
    ['src', 'fanfold', 'cli.py']
    """
    if "\0" in path or len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise refuse(path[:80], "this is no path")
    if path.startswith("/"):
        raise refuse(path, "absolute paths are not allowed")
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise refuse(path, '".." is not allowed')
    return names


class _PathWalk:
    """Walks down from the top; keeps a handle of every folder on the way."""

    def __init__(self, top: str, path: str, before_making: Callable[[str], None] | None) -> None:
        self._asked = path
        self._before_making = before_making
        self._links = 0
        self._handles = [os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        self._names: list[str] = []

    def close(self) -> None:
        for handle in self._handles:
            os.close(handle)

    def go(self, names: list[str], follow_last: bool) -> ResolvedPath:
        ahead = names[::-1]
        while ahead:
            name = ahead.pop()
            if name == "..":
                self._up()
                continue
            target = self._link(name) if ahead or follow_last else None
            if target is not None:
                ahead.extend(part for part in target.split("/")[::-1] if part not in ("", "."))
            elif ahead:
                self._down(name, ahead)
            else:
                return ResolvedPath(self._handles[-1], name, "/".join([*self._names, name]))
        return ResolvedPath(self._handles[-1], ".", "/".join(self._names))

    def _up(self) -> None:
        if not self._names:
            raise refuse(self._asked, "it leads out of the workspace")
        self._names.pop()
        os.close(self._handles.pop())

    def _link(self, name: str) -> str | None:
        try:
            target = os.readlink(name, dir_fd=self._handles[-1])
        except OSError:
            return None  # not a link, or missing: opening it will show which
        self._links += 1
        if target.startswith("/"):
            raise refuse(self._asked, "it leads out of the workspace")
        if self._links > MAX_LINKS:
            raise refuse(self._asked, "too many links")
        return target

    def _down(self, name: str, ahead: list[str]) -> None:
        try:
            handle = self._open(name, ahead)
        except FileNotFoundError:
            raise missing(self._asked) from None
        except NotADirectoryError:
            raise PathProblem("not_a_folder", self._asked, f': "{name}" is no folder') from None
        except OSError as error:  # a link that was created meanwhile, or no permission
            raise refuse(self._asked, error.strerror or "it cannot be opened") from None
        self._handles.append(handle)
        self._names.append(name)

    def _open(self, name: str, ahead: list[str]) -> int:
        try:
            return os.open(name, _FOLDER, dir_fd=self._handles[-1])
        except FileNotFoundError:
            if self._before_making is None:
                raise
            if ".." in ahead:  # the rest of a link whose target does not exist yet
                raise refuse(self._asked, "it goes through a folder that does not exist") from None
        self._before_making("/".join([*self._names, name, *ahead[::-1]]))
        try:
            os.mkdir(name, dir_fd=self._handles[-1])
        except FileExistsError:
            pass  # another process created it; opening it shows its type
        return os.open(name, _FOLDER, dir_fd=self._handles[-1])


@contextmanager
def resolve(
    top: str, path: str, *, before_making: Callable[[str], None] | None = None, follow_last: bool = True
) -> Iterator[ResolvedPath]:
    """Resolve `path` beneath `top`, following links that stay inside.

    The folder of the result is open until the context ends. Paths with Fanfold's state or credentials are
    always refused. With `before_making`, missing folders are created. It gets the resolved path, and raises
    to forbid it.
    """
    names = names_of(path)
    try:
        walk = _PathWalk(top, path, before_making)
    except OSError as error:
        raise PathProblem("gone", top, f": the workspace is gone: {error.strerror}") from None
    try:
        spot = walk.go(names, follow_last)
        if why := why_unreadable(spot.path):
            raise refuse(path, why)
        yield spot
    finally:
        walk.close()


def open_regular(spot: ResolvedPath, asked: str) -> int:
    """Open a regular file for reading; other files are refused without blocking."""
    try:
        handle = os.open(
            spot.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=spot.folder
        )
    except FileNotFoundError:
        raise missing(asked) from None
    except OSError as error:
        raise refuse(asked, error.strerror or "it cannot be opened") from None
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return handle
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise PathProblem("is_a_folder", asked, " is a folder")
    raise refuse(asked, "only regular files can be read")


# ----------------------------------------------------------------- without following any link


def open_top(folder: str | os.PathLike[str]) -> int:
    """Open one of our own folders, to resolve paths beneath it."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def open_readable(folder: str | os.PathLike[str]) -> int:
    """Open a folder like `open_top`; if a program removed our permissions, restore them as the owner."""
    try:
        return open_top(folder)
    except PermissionError:
        set_mode(None, os.fspath(folder), stat.S_IMODE(os.lstat(folder).st_mode) | 0o700)
        return open_top(folder)


def set_mode(folder: int | None, name: str, mode: int) -> None:
    """Set the mode of a file in an open folder, even if it is not accessible; a link is not changed."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not stat.S_ISLNK(os.fstat(handle).st_mode):
            os.chmod(f"/proc/self/fd/{handle}", mode)
    finally:
        os.close(handle)


def open_folder(top: int, path: str) -> int:
    """Open a folder beneath an open one, through no link. Raises FileNotFoundError or PathProblem."""
    names = names_of(path)
    if not names:
        return os.open(".", _FOLDER, dir_fd=top)
    try:
        return _open_inside(top, names)
    except OSError as error:
        if error.errno in _SWAPPED:
            raise refuse(path, "a link or a file stands where a folder was") from None
        raise


_openat2_works = True


def _open_inside(top: int, names: list[str]) -> int:
    global _openat2_works  # noqa: PLW0603 - asked once: the kernel does not change under us
    if len(names) == 1:
        return os.open(names[0], _FOLDER, dir_fd=top)
    if _openat2_works:
        try:
            return openat2(top, "/".join(names), os.O_RDONLY | os.O_DIRECTORY, 0, _INSIDE)
        except OSError as error:
            # Containers that do not know the call return EPERM; the walk shows the real cause.
            if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EAGAIN):
                raise
            _openat2_works = error.errno == errno.EAGAIN
    return walk_inside(top, names)


def walk_inside(top: int, names: list[str]) -> int:
    """Do the same as `openat2`, name by name."""
    here = os.open(".", _FOLDER, dir_fd=top)
    for name in names:
        try:
            below = os.open(name, _FOLDER, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here


@contextmanager
def spot_beneath(top: int, path: str) -> Iterator[ResolvedPath]:
    """Open the folder of a path, without following any link; raises like `open_folder`."""
    names = names_of(path)
    if not names:
        raise refuse(path, "this is no file")
    folder = open_folder(top, "/".join(names[:-1]))
    try:
        yield ResolvedPath(folder, names[-1], "/".join(names))
    finally:
        os.close(folder)


def is_folder(top: int, path: str) -> bool:
    """Return whether there is a real folder at a path beneath an open one."""
    try:
        os.close(open_folder(top, path))
    except (OSError, PathProblem):
        return False
    return True


# -----------------------------------------------------------------------------------------------------------
# Manifests: the content of a tree at one moment, precise enough to detect later changes
#
# Rules
# * A file is unchanged if inode, size, times and mode are the same. No program can set the change time, so a
#   write cannot be hidden, except within the resolution of the clock. An entry that changed that close to the
#   time of the manifest is *unsettled*, and its content is compared instead. A clock that was set back could
#   give the same time twice: then no entry is settled.
# * Left-out files are recorded by name and type. If there is no unknown name and no rule changed, git need
#   not be asked which files are ignored.
# * Names are stored as on disk, even if they are not text.

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
GRAIN_NS = 20_000_000
"""Twice the coarsest resolution of file system times."""


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
        """The mode of the content: file, executable or link."""
        return git_mode(self.mode)


def git_mode(mode: int) -> int:
    """Return git's mode for a file mode."""
    if stat.S_ISLNK(mode):
        return 0o120000
    return 0o100755 if mode & 0o100 else 0o100644


class Manifest:
    """The content of a tree: its files, its folders, left-out paths, and mount points of the project tree."""

    __slots__ = ("clock_ns", "files", "folders", "left_out", "marked", "points", "rules", "taken_ns")

    def __init__(self) -> None:
        self.files: dict[str, FileEntry] = {}
        self.folders: set[str] = set()
        self.left_out: set[str] = set()
        """Named by `left_out_name`: a path that is left out as a folder may be included as a file."""
        self.marked: dict[str, str] = {}
        """Folders with a marker file of a tool, and the name of that file."""
        self.points: dict[str, bool] = {}
        """`.git`, `.fanfold` and dependency folders: each is an empty mount point, True for a folder."""
        self.rules: dict[str, FileEntry | None] = {}
        """The entries of the files that define the ignore rules."""
        self.taken_ns = 0
        self.clock_ns = 0
        """The difference between the clock and the time since boot."""

    def settled_ns(self) -> int:
        """Return the time before which an entry is settled; -1 if the clock was set back."""
        return -1 if clock_ns() < self.clock_ns - GRAIN_NS else self.taken_ns - GRAIN_NS


def differing(before: Manifest, now: Manifest) -> set[str]:
    """Return the files of the current tree that may have changed, judged by their entries."""
    known, settled_ns = before.files, before.settled_ns()
    return {
        path for path, entry in now.files.items() if known.get(path) != entry or entry.ctime_ns >= settled_ns
    }


def left_out_name(path: str, mode: int) -> str:
    """Return the name that records a left-out path and its type."""
    if stat.S_ISDIR(mode):
        return path + "/"
    return path if stat.S_ISREG(mode) or stat.S_ISLNK(mode) else path + "//"


def clock_ns() -> int:
    """Return the difference between the clock and the time since boot; it changes when the clock is set."""
    # An interruption between the two reads makes the value too small.
    return max(time.time_ns() - time.clock_gettime_ns(_ELAPSED) for _ in range(3))


class _StoredManifest(msgspec.Struct, array_like=True):
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
    """Encode a manifest; with `under`, only the files that differ from it."""
    files, gone = manifest.files, list[str]()
    if under is not None:
        known = under.files
        files = {path: entry for path, entry in files.items() if known.get(path) != entry}
        gone = [path for path in known if path not in manifest.files]
    return msgspec.msgpack.encode(
        _StoredManifest(
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
    """Decode a manifest, and return whether it was written since the machine booted."""
    try:
        stored = msgspec.msgpack.decode(data, type=_StoredManifest)
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
    """Join names with zero bytes; a name is never empty and contains no zero byte."""
    return os.fsencode("\0".join(names))


def split_names(data: bytes) -> list[str]:
    return os.fsdecode(data).split("\0") if data else []


class OpenLayers:
    """The open trees of a base, and which of them contains a path."""

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
        """Return the tree that contains a path; if it is not in there, it does not exist."""
        return self._handles[0] if len(self._handles) == 1 or self._is_above(path) else self._handles[1]

    def split(self, paths: Iterable[str]) -> list[tuple[int, list[str]]]:
        """Group paths by the tree that contains them."""
        found: dict[int, list[str]] = {}
        for path in paths:
            found.setdefault(self.at(path), []).append(path)
        return list(found.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            os.close(handle)


# -----------------------------------------------------------------------------------------------------------
# Copying and comparing files beneath open folders
#
# Rules
# * A copy is cloned if the file system can share blocks, else read and written. It is never a hard link to a
#   file of the user: a program that writes in place would change both.
# * If the source changed while it was read, it is copied again, so that content and entry match.
# * Times are kept (builds use them). Owner, extended attributes and special bits are not.

CHUNK = 1024 * 1024
MAX_TRIES = 5
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_CLONES = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM)


class Copier:
    """Copies files and links from one open folder to another, by the fastest method that works."""

    def __init__(self) -> None:
        self.clones: bool | None = None
        """Whether files can be cloned; None until the first attempt."""
        self._mask = umask()

    def copy(self, source: int, name: str, target: int, path: str) -> FileEntry | None:
        """Copy a file or link; return its entry in the source, or None if it is gone."""
        for _ in range(MAX_TRIES):
            try:
                handle = os.open(name, _READ, dir_fd=source)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno == errno.ELOOP:
                    return _copy_link(source, name, target)
                if error.errno == errno.ENXIO:
                    return None
                message = f'"{path}" cannot be read: {error.strerror}'
                hint = "make it readable, or have .gitignore name it"
                raise WorldError("workspace.unreadable", message, hint=hint) from error
            try:
                before = os.fstat(handle)
                if not stat.S_ISREG(before.st_mode):
                    return None
                self._content(handle, before, name, target)
                after = os.fstat(handle)
            finally:
                os.close(handle)
            entry = FileEntry.of(after)
            if entry == FileEntry.of(before):
                return entry
            os.unlink(name, dir_fd=target)
        hint = "wait until the program that writes it is done"
        raise WorldError("workspace.changing", f'"{path}" changes faster than it can be read', hint=hint)

    def _content(self, handle: int, status: os.stat_result, name: str, target: int) -> None:
        mode = status.st_mode & 0o777
        made = os.open(name, _MAKE, mode, dir_fd=target)
        try:
            if status.st_size and not (self.clones is not False and self._clone(handle, made)):
                # One byte more than expected: a short read then means the end of the file.
                size = min(status.st_size + 1, CHUNK)
                while data := os.read(handle, size):
                    written = os.write(made, data)
                    while written < len(data):
                        written += os.write(made, data[written:])
                    if len(data) < size:
                        break
            if mode & self._mask:
                os.fchmod(made, mode)
            os.utime(made, ns=(status.st_mtime_ns, status.st_mtime_ns))
        except BaseException:
            os.unlink(name, dir_fd=target)
            raise
        finally:
            os.close(made)

    def _clone(self, handle: int, made: int) -> bool:
        try:
            fcntl.ioctl(made, FICLONE, handle)
        except OSError as error:
            if error.errno not in _NO_CLONES:
                raise
            self.clones = False
        else:
            self.clones = True
        return self.clones


def _copy_link(source: int, name: str, target: int) -> FileEntry | None:
    try:
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        return FileEntry.of(os.stat(name, dir_fd=source, follow_symlinks=False))
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None  # no longer a link
        raise


def same_content(one: int, other: int, name: str) -> bool:
    """Return whether a name has the same content and executable bit in two open folders."""
    try:
        ours = os.stat(name, dir_fd=one, follow_symlinks=False)
        theirs = os.stat(name, dir_fd=other, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if stat.S_IFMT(ours.st_mode) != stat.S_IFMT(theirs.st_mode):
        return False
    if stat.S_ISLNK(ours.st_mode):
        return os.readlink(name, dir_fd=one) == os.readlink(name, dir_fd=other)
    if not stat.S_ISREG(ours.st_mode) or ours.st_size != theirs.st_size:
        return False
    if (ours.st_mode ^ theirs.st_mode) & 0o100:
        return False
    first = os.open(name, _READ, dir_fd=one)
    try:
        second = os.open(name, _READ, dir_fd=other)
        try:
            while data := os.read(first, CHUNK):
                if data != os.read(second, CHUNK):
                    return False
            return not os.read(second, 1)
        finally:
            os.close(second)
    finally:
        os.close(first)


def umask() -> int:
    """Return the umask, without changing it for other threads."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except OSError:
        pass
    return 0o022
