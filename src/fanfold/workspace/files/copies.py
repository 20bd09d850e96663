"""Copying files beneath open folders, and comparing them.

Rules
* A copy is cloned where the file system shares blocks, else read and written. Never a hard link to a file
  of the user's: a program that writes in place would write into both.
* What is copied is what was described: when the source changed while it was read, it is read again.
* Times are kept (builds look at them), owner, extended attributes and special bits are not.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

from fanfold.errors import WorldError
from fanfold.workspace.files import syscalls
from fanfold.workspace.files.manifest import FileEntry

CHUNK = 1024 * 1024
MAX_TRIES = 5
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_CLONES = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM)


class Copier:
    """Copies entries from one open folder to another, by the fastest means that worked so far."""

    def __init__(self) -> None:
        self.clones: bool | None = None
        """Whether files could be cloned; None until one was tried."""
        self._mask = umask()

    def copy(self, source: int, name: str, target: int, path: str) -> FileEntry | None:
        """Copy a file or link of that name; its entry in the source, None when it is gone."""
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
                # Room for one byte more than there should be: a short answer is then the end of the file.
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
            fcntl.ioctl(made, syscalls.FICLONE, handle)
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
    """Whether the entries of that name in two open folders hold the same, mode included."""
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
    """The mask for new files, read without changing it for the other threads."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except OSError:
        pass
    return 0o022
