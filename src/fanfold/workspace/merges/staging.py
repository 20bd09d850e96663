"""Staging: what a merge will put is made ready first, complete and in its final dress, and forced to disk."""

from __future__ import annotations

import os
import stat

from fanfold.workspace.files import syscalls
from fanfold.workspace.files.beneath import PathProblem, is_folder, open_folder, spot_beneath
from fanfold.workspace.files.copies import umask
from fanfold.workspace.merges.objects import FileState

FEW = 16
"""Up to so many staged files are forced to disk one by one, more of them together."""


def manner_of(top: int, path: str) -> tuple[int, int, int] | None:
    """Mode, owner and group of a real folder beneath an open one; None when there is none."""
    try:
        handle = open_folder(top, path)
    except (OSError, PathProblem):
        return None
    try:
        status = os.fstat(handle)
        return stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
    finally:
        os.close(handle)


def dress(slots: int, slot: str, state: FileState, top: int, path: str, known: int | None = None) -> int:
    """Give a staged file the mode and owner it will have in the parent; its inode. `known` is the mode of one
    that was there before.
    """
    if state.mode != 0o120000:
        mode, owner = _manner(top, path)
        mode = mode if known is None else known
        mode = mode | (mode & 0o444) >> 2 if state.mode & 0o111 else mode & ~0o111
        os.chmod(slot, mode, dir_fd=slots)
        if owner is not None and os.geteuid() == 0:
            os.chown(slot, *owner, dir_fd=slots)
    return os.stat(slot, dir_fd=slots, follow_symlinks=False).st_ino


def _manner(top: int, path: str) -> tuple[int, tuple[int, int] | None]:
    """Mode and owner of the file that is replaced; those usual in the nearest folder for a new one."""
    try:
        with spot_beneath(top, path) as spot:
            status = spot.status()
            if status is not None and stat.S_ISREG(status.st_mode):
                return status.st_mode & 0o777, (status.st_uid, status.st_gid)
    except (FileNotFoundError, PathProblem):
        pass
    folder = path.rpartition("/")[0]
    while folder and not is_folder(top, folder):
        folder = folder.rpartition("/")[0]
    handle = open_folder(top, folder)
    try:
        status = os.fstat(handle)
    finally:
        os.close(handle)
    return 0o666 & ~umask(), (status.st_uid, status.st_gid)


def sync_staged(slots: int, staged: list[str]) -> None:
    """Force staged files to disk."""
    if len(staged) > FEW:
        try:
            syscalls.sync_file_system(slots)
            return
        except OSError:
            pass  # one by one, then
    for slot in staged:
        if not stat.S_ISLNK(os.stat(slot, dir_fd=slots, follow_symlinks=False).st_mode):
            handle = os.open(slot, os.O_RDONLY | os.O_CLOEXEC, dir_fd=slots)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    os.fsync(slots)
