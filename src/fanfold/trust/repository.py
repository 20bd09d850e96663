"""Where the project's git repository is, found by reading a few files: git itself is not asked.

Rules
* Git run in a tree obeys that tree's configuration, which may name programs. So nobody here starts git in
  one: where the repository lies is read from `.git`, all else is asked of our private store (`git`).
* A repository counts only if it is of this user, as git itself insists, and if it names this work tree back:
  a `.git` file can be written by anybody, and what it names is bound into sandboxes.
* A `.git` that is a link is nobody's repository.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from msgspec import Struct

from fanfold.trust.project_files import read_beneath

MAX_BYTES = 4_096
MAX_CONFIG_BYTES = 1024 * 1024


class UnreadableIndex(Exception):
    """A repository's index that cannot be read (`git_index`)."""


class Repository(Struct, frozen=True):
    """A work tree, its git folder (with the index), and the folder it shares with other work trees."""

    top: Path
    folder: Path
    common: Path

    @property
    def index_file(self) -> Path:
        return self.folder / "index"

    @property
    def exclude_file(self) -> Path:
        return self.common / "info" / "exclude"


def find_repository(project: Path) -> Repository | None:
    """The repository that the project is, or lies in."""
    device = os.stat(project).st_dev
    above, top = "", str(project)
    while top != above:
        try:
            if os.stat(top).st_dev != device:
                return None  # git does not look for one on another disk either
            kind = os.lstat(os.path.join(top, ".git"))
        except FileNotFoundError:
            above, top = top, os.path.dirname(top)
            continue
        except OSError:
            return None
        return _read(Path(top), kind)
    return None


def has_long_hashes(repository: Repository) -> bool:
    """Whether a repository says of itself that its objects are named by SHA-256."""
    try:
        said = read_beneath(repository.common, repository.common / "config", MAX_CONFIG_BYTES)
    except OSError:
        return False
    rows = (line.lower().partition(b"=") for line in said.splitlines())
    return any(key.strip() == b"objectformat" and value.strip() == b"sha256" for key, _, value in rows)


def _read(top: Path, kind: os.stat_result) -> Repository | None:
    if not _is_ours(kind) or not _is_ours(os.stat(top)):
        return None
    git = top / ".git"
    if stat.S_ISDIR(kind.st_mode):
        return Repository(top, git, git) if os.path.isfile(git / "HEAD") else None
    folder = _named(git, "gitdir:", top) if stat.S_ISREG(kind.st_mode) else None
    if folder is None or not _is_git_folder(folder):
        return None
    shared = _named(folder / "commondir", "", folder)
    if shared is None:  # a submodule: its folder is kept by the repository around it
        return Repository(top, folder, folder) if _is_module(folder, top) else None
    back = _named(folder / "gitdir", "", folder)
    linked = back == git and folder.parent == shared / "worktrees"
    return Repository(top, folder, shared) if linked and _is_git_folder(shared) else None


def _named(file: Path, word: str, base: Path) -> Path | None:
    """The folder or file that a small file of git's names, with every link in it resolved."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as opened:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        said = os.fsdecode(opened.read(MAX_BYTES)).rstrip("\n")
    if not said.startswith(word) or "\0" in said:
        return None
    return Path(os.path.realpath(base / said.removeprefix(word).strip()))


def _is_module(folder: Path, top: Path) -> bool:
    """Whether this is where a repository around `top` keeps the git folder of a submodule."""
    return any(folder.is_relative_to(outer / ".git" / "modules") for outer in top.parents)


def _is_git_folder(folder: Path) -> bool:
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and _is_ours(status) and os.path.isfile(folder / "HEAD")


def _is_ours(status: os.stat_result) -> bool:
    """As git judges it: root may work in the repository of whom it was asked by."""
    if status.st_uid == os.geteuid():
        return True
    asked_by = os.environ.get("SUDO_UID", "")
    return os.geteuid() == 0 and asked_by.isdigit() and status.st_uid == int(asked_by)
