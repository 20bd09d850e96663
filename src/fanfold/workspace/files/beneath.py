"""Confinement: paths resolved beneath one folder, whatever links and swaps are in the way.

Rules
* Nothing of ours is opened by a path that somebody else could bend. Either the kernel resolves it beneath an
  open folder (`openat2` with RESOLVE_BENEATH), or each name is opened relative to the handle of the folder
  before it, without following links.
* Where links may be followed (`resolve`), a link is read and its target walked in the same manner; `..` in
  a link goes back to a handle already held, never to whatever the parent is called now. A step above the top,
  an absolute path, an absolute link: refused.
* So a folder swapped for a link in between changes what is found, but never leads out.
* Only regular files are read and only through `open_regular`, which never waits for a pipe or a device.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from fanfold.errors import EXIT_PERMISSION, WorldError
from fanfold.workspace.files import syscalls

MAX_LINKS = 40
MAX_PATH_BYTES = 4_096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_INSIDE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
_SWAPPED = (errno.ELOOP, errno.EXDEV, errno.ENOTDIR)

Problem: TypeAlias = Literal["refused", "missing", "not_a_folder", "is_a_folder", "gone"]


class PathProblem(WorldError):
    """A path that cannot be used beneath its folder; `problem` says in which way."""

    def __init__(self, problem: Problem, path: str, why: str) -> None:
        status = EXIT_PERMISSION if problem == "refused" else None
        hint = "name a file below the workspace" if problem == "refused" else ""
        super().__init__(f"workspace.path_{problem}", f'"{path}"{why}', hint=hint, exit_status=status)
        self.problem: Problem = problem


def refuse(path: str, why: str) -> PathProblem:
    """The refusal of a path that nobody inside may use."""
    return PathProblem("refused", path, f": {why}")


def missing(path: str) -> PathProblem:
    return PathProblem("missing", path, " does not exist")


class Spot:
    """A name in an open folder beneath the top; `path` is where it really is, links resolved."""

    __slots__ = ("folder", "name", "path")

    def __init__(self, folder: int, name: str, path: str) -> None:
        self.folder = folder
        self.name = name
        self.path = path

    def status(self) -> os.stat_result | None:
        """What is there now, not following a link; None when nothing is."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None


def names_of(path: str) -> list[str]:
    """The names of a relative path; refuses what could never stay beneath the top.

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
    """One walk down from the top; holds a handle of every folder on the way."""

    def __init__(self, top: str, path: str, before_making: Callable[[str], None] | None) -> None:
        self._asked = path
        self._before_making = before_making
        self._links = 0
        self._handles = [os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        self._names: list[str] = []

    def close(self) -> None:
        for handle in self._handles:
            os.close(handle)

    def go(self, names: list[str], follow_last: bool) -> Spot:
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
                return Spot(self._handles[-1], name, "/".join([*self._names, name]))
        return Spot(self._handles[-1], ".", "/".join(self._names))

    def _up(self) -> None:
        if not self._names:
            raise refuse(self._asked, "it leads out of the workspace")
        self._names.pop()
        os.close(self._handles.pop())

    def _link(self, name: str) -> str | None:
        try:
            target = os.readlink(name, dir_fd=self._handles[-1])
        except OSError:
            return None  # not a link, or not there: opening it will tell
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
        except OSError as error:  # a link that was put there after we looked, or no permission
            raise refuse(self._asked, error.strerror or "it cannot be opened") from None
        self._handles.append(handle)
        self._names.append(name)

    def _open(self, name: str, ahead: list[str]) -> int:
        try:
            return os.open(name, _FOLDER, dir_fd=self._handles[-1])
        except FileNotFoundError:
            if self._before_making is None:
                raise
            if ".." in ahead:  # the tail of a link that leads nowhere yet
                raise refuse(self._asked, "it goes through a folder that does not exist") from None
        self._before_making("/".join([*self._names, name, *ahead[::-1]]))
        try:
            os.mkdir(name, dir_fd=self._handles[-1])
        except FileExistsError:
            pass  # somebody else made it; what it is, opening tells
        return os.open(name, _FOLDER, dir_fd=self._handles[-1])


@contextmanager
def resolve(
    top: str, path: str, *, before_making: Callable[[str], None] | None = None, follow_last: bool = True
) -> Iterator[Spot]:
    """Find `path` beneath `top`, following links that stay inside. The spot's folder is open for as long as
    the context lasts.

    Missing folders are made when `before_making` is given; it is told where the path really leads and
    raises to forbid it.
    """
    names = names_of(path)
    try:
        walk = _PathWalk(top, path, before_making)
    except OSError as error:
        raise PathProblem("gone", top, f": the workspace is gone: {error.strerror}") from None
    try:
        yield walk.go(names, follow_last)
    finally:
        walk.close()


def open_regular(spot: Spot, asked: str) -> int:
    """A handle of a regular file for reading; anything else is refused without waiting for it."""
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
    """A handle of a folder of ours to resolve beneath."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def open_folder(top: int, path: str) -> int:
    """A handle of a folder beneath an open one; no link is followed anywhere on the way.

    Raises FileNotFoundError when it is not there, PathProblem when something else is in the way.
    """
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
            return syscalls.openat2(top, "/".join(names), os.O_RDONLY | os.O_DIRECTORY, 0, _INSIDE)
        except OSError as error:
            # EPERM is what containers answer that do not know the call; the walk tells them apart.
            if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EAGAIN):
                raise
            _openat2_works = error.errno == errno.EAGAIN
    return walk_inside(top, names)


def walk_inside(top: int, names: list[str]) -> int:
    """What `openat2` does, name by name."""
    here = os.open(".", _FOLDER, dir_fd=top)
    for name in names:
        try:
            below = os.open(name, _FOLDER, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here


@contextmanager
def spot_beneath(top: int, path: str) -> Iterator[Spot]:
    """The spot of a path whose folders are all real ones; raises as `open_folder` does."""
    names = names_of(path)
    if not names:
        raise refuse(path, "this is no file")
    folder = open_folder(top, "/".join(names[:-1]))
    try:
        yield Spot(folder, names[-1], "/".join(names))
    finally:
        os.close(folder)


def is_folder(top: int, path: str) -> bool:
    """Whether a real folder is at a path beneath an open one."""
    try:
        os.close(open_folder(top, path))
    except (OSError, PathProblem):
        return False
    return True
