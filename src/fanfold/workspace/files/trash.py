"""Throwing trees away without waiting for it.

Rules
* What is thrown away is renamed into the trash first: it is gone at once for everybody, and a crash in
  between leaves it where `empty` finds it.
* Deleting is bounded in time and done a little at a time by whoever calls `empty`: on common file systems,
  making files right after deleting many is slow for minutes.
* Nothing is followed: links are removed, folders are entered from their own handle and never across mounts.
* Whoever owns a project can delete it with `rm -rf` at any moment. So what programs left in folders of ours
  is made so that its owner may, before it is kept or waits here.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

MAX_DEPTH = 200
"""Folders inside one another; what is deeper no person's program made."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def throw_away(thing: Path, trash: Path) -> None:
    """Put a file or folder of ours out of the way."""
    try:
        os.rename(thing, trash / f"{thing.name[:80]}.{os.urandom(6).hex()}")
    except FileNotFoundError:
        pass


def let_be_removed(folder: Path) -> None:
    """Give the owner of what is in a folder back the right to delete it: programs make folders read-only."""
    try:
        top = os.open(folder, _FOLDER)
    except OSError:
        return
    try:
        _open_up(top, os.fstat(top).st_dev, MAX_DEPTH)
    finally:
        os.close(top)


def _open_up(folder: int, device: int, depth: int) -> None:
    with os.scandir(folder) as listing:
        names = [entry.name for entry in listing if entry.is_dir(follow_symlinks=False)]
    for name in names if depth else ():
        try:
            handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            continue
        try:
            status = os.fstat(handle)
            if status.st_dev != device:
                continue
            if status.st_mode & 0o700 != 0o700:
                os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(status.st_mode) | 0o700)
            below = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        finally:
            os.close(handle)
        try:
            _open_up(below, device, depth - 1)
        finally:
            os.close(below)


def empty(trash: Path, *, budget_s: float | None = None) -> bool:
    """Delete what was thrown away, for at most that long; whether nothing is left."""
    top = os.open(trash, _FOLDER)
    try:
        return _Emptying(top, None if budget_s is None else time.monotonic() + budget_s).run()
    finally:
        os.close(top)


class _Emptying:
    """Deletes what is in an open folder. What lies too deep to be reached is moved up there first: programs
    put folders into folders without end.
    """

    def __init__(self, top: int, until: float | None) -> None:
        self._top = top
        self._until = until
        self._device = os.fstat(top).st_dev

    def run(self) -> bool:
        done, tried = True, set[str]()
        while names := [name for name in os.listdir(self._top) if name not in tried]:
            for name in names:
                done = self._delete(self._top, name, MAX_DEPTH) and done
            tried.update(names)
        return done

    def _delete(self, folder: int, name: str, depth: int) -> bool:
        if self._until is not None and time.monotonic() > self._until:
            return False
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                os.unlink(name, dir_fd=folder)
                return True
            if status.st_dev != self._device:
                return False  # something is still mounted here: what is below is not ours
            if status.st_mode & 0o700 != 0o700:
                os.chmod(name, 0o700, dir_fd=folder)  # overlayfs leaves a folder that nobody may enter
            if depth == 0:
                os.rename(name, f"deep.{os.urandom(6).hex()}", src_dir_fd=folder, dst_dir_fd=self._top)
                return True
            below = os.open(name, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            done = True
            for inner in os.listdir(below):
                done = self._delete(below, inner, depth - 1) and done
        finally:
            os.close(below)
        if done:
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError:
                return False
        return done
