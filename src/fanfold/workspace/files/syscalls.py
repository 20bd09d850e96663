"""The few system calls that Python does not offer: resolving beneath, exchanging names, mounting.

Rules
* Each function raises the `OSError` the kernel gave, `ENOSYS` where there is no such kernel, so that callers
  have one way to fall back.
* `ctypes` is imported at the first call: most commands of the program never need it.
"""

from __future__ import annotations

import errno
import os
import platform
import sys
from functools import cache
from typing import Any

RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 1, 2, 4, 16384, 1 << 18
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
FICLONE = 0x40049409

_OPENAT2 = 437  # the same number on every architecture
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276, "riscv64": 276}


@cache
def _libc() -> Any:
    """The C library; only Linux is asked."""
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
    """Rename without replacing, or exchange two names in one step."""
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
    """Take a mount away from everybody's sight, at once; it ends when its last user does."""
    import ctypes

    _checked(
        _libc().umount2(ctypes.c_char_p(os.fsencode(target)), ctypes.c_int(MNT_DETACH | UMOUNT_NOFOLLOW))
    )


def sync_file_system(folder: int) -> None:
    """Write everything of one file system to its disk."""
    _checked(_libc().syncfs(folder))
