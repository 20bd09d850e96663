"""Reading back what was written below `.fanfold` by ourselves.

Somebody may have put another thing in its place since. A link is not followed and a pipe not waited for: what
is no file is not there.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_kept(file: Path) -> bytes:
    """The content of a file; raises `FileNotFoundError` when there is none, whatever else stands there."""
    with open_kept(file) as opened:
        return opened.read()


def open_kept(file: Path) -> BufferedReader:
    """The same, to be read in parts."""
    try:
        handle = os.open(file, _READ)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise _missing(file) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _missing(file)
    return os.fdopen(handle, "rb")


def is_kept(file: Path) -> bool:
    """Whether there is a file, and nothing else in its place."""
    try:
        return stat.S_ISREG(os.lstat(file).st_mode)
    except OSError:
        return False


def _missing(file: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "not a file", str(file))
