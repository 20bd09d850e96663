"""The names of a repository, read as data and, for one new branch, written.

Git run in somebody's repository obeys its configuration. So nobody here starts git in it: `HEAD` and branches
are read from the files, and a branch is made as git makes one: under a lock that only one can take.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from fanfold.errors import WorldError
from fanfold.trust.repository import Repository, has_long_hashes

MAX_BYTES = 4_096
MAX_PACKED_BYTES = 256 * 1024 * 1024
_OID = re.compile(r"[0-9a-f]{40}", re.ASCII)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refs:
    """The refs of one repository."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        if (repository.common / "reftable").exists():
            message = "the repository keeps its refs as reftable, which deliver steps cannot write"
            raise WorldError("deliver.unsupported", message)
        if has_long_hashes(repository):
            message = "the repository names its objects by SHA-256, which deliver steps cannot write"
            raise WorldError("deliver.unsupported", message)

    def head(self) -> tuple[str, str]:
        """The branch that is checked out (empty when none is) and the commit it is at."""
        said = self._read(self._repository.folder, "HEAD").strip()
        name = said.removeprefix("ref:").strip() if said.startswith("ref:") else ""
        commit = self.find(name) if name else said
        if not commit or not _OID.fullmatch(commit):
            message = "the repository has no commit yet" if name else "HEAD cannot be read"
            raise WorldError("deliver.no_commit", message, hint="make a first commit; a branch begins there")
        return name.removeprefix("refs/heads/"), commit

    def checked_out(self) -> set[str]:
        """The branches that are checked out in any work tree, also those that have no commit yet."""
        trees = self._repository.common / "worktrees"
        folders = {self._repository.common, self._repository.folder}
        with suppress(OSError):
            folders |= {trees / name for name in os.listdir(trees)}
        said = (self._read(folder, "HEAD").strip().removeprefix("ref:").strip() for folder in folders)
        return {name.removeprefix("refs/heads/") for name in said if name.startswith("refs/heads/")}

    def find(self, name: str) -> str:
        """The commit that a full name (`refs/heads/main`) stands for; empty when there is none."""
        said = self._read(self._repository.common, name).strip()
        if said.startswith("ref:"):  # one step, as in refs/remotes/origin/HEAD
            name = said.removeprefix("ref:").strip()
            said = self._read(self._repository.common, name).strip()
        return said if _OID.fullmatch(said) else self._packed().get(name, "")

    def default_of(self, remote: str) -> str:
        """The branch that the remote is known to take for its default one; empty when that is not known."""
        said = self._read(self._repository.common, f"refs/remotes/{remote}/HEAD").strip()
        prefix = f"ref: refs/remotes/{remote}/"
        return said.removeprefix(prefix) if said.startswith(prefix) else ""

    def tips_of(self, remote: str) -> list[str]:
        """The commits that a remote had when it was last looked at."""
        prefix = f"refs/remotes/{remote}/"
        found = {commit for name, commit in self._packed().items() if name.startswith(prefix)}
        for folder, _, files in os.walk(self._repository.common / prefix):
            found |= {self._read(Path(folder), file).strip() for file in files}
        return sorted(commit for commit in found if _OID.fullmatch(commit))

    def make(self, branch: str, commit: str) -> None:
        """Make a branch that is not there; `FileExistsError` when it is, or one that is in its way."""
        name = f"refs/heads/{branch}"
        self._check_packed(name)
        folder = self._folder_of(name)
        last = name.rpartition("/")[2]
        try:
            _lock(folder, last, commit, branch)
            try:
                self._check_packed(name)  # whoever packed it before had the lock that is ours now
                _remove_empty(folder, last)
                os.link(f"{last}.lock", last, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                os.unlink(f"{last}.lock", dir_fd=folder)
            os.fsync(folder)
        finally:
            os.close(folder)

    def unlock(self, branch: str, commit: str) -> None:
        """Take away the lock that a process left which died right after it had made the branch."""
        name = f"refs/heads/{branch}.lock"
        if self._read(self._repository.common, name).strip() == commit:
            with suppress(OSError):
                os.unlink(self._repository.common / name)

    def _folder_of(self, name: str) -> int:
        """The open folder in which a ref lies; folders on the way are made, links are not followed."""
        handle = os.open(self._repository.common, _FOLDER)
        for part in name.split("/")[:-1]:
            try:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=handle)
                inner = os.open(part, _FOLDER, dir_fd=handle)
            except NotADirectoryError as error:  # a branch, or a link
                raise FileExistsError(name) from error
            finally:
                os.close(handle)
            handle = inner
        return handle

    def _check_packed(self, name: str) -> None:
        for other in self._packed():
            if f"{other}/".startswith(f"{name}/") or name.startswith(f"{other}/"):
                raise FileExistsError(name)

    def _packed(self) -> dict[str, str]:
        said = self._read(self._repository.common, "packed-refs", MAX_PACKED_BYTES + 1)
        if len(said) > MAX_PACKED_BYTES:
            raise WorldError("deliver.unsupported", "the repository has more refs than can be looked through")
        rows = (line.partition(" ") for line in said.splitlines())
        return {name: commit for commit, _, name in rows if _OID.fullmatch(commit)}

    @staticmethod
    def _read(folder: Path, name: str, limit: int = MAX_BYTES) -> str:
        if ".." in name.split("/"):
            return ""
        try:
            handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return ""
            with os.fdopen(handle, "rb", closefd=False) as opened:
                return opened.read(limit).decode("utf-8", "replace")
        finally:
            os.close(handle)


def _lock(folder: int, last: str, commit: str, branch: str) -> None:
    """Take git's lock of a ref, our commit in it from the first: one that a dead process left is ours."""
    lock, beside = f"{last}.lock", f".{last}.{commit}.lock"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(beside, flags, 0o644, dir_fd=folder)
    try:
        os.write(handle, f"{commit}\n".encode())
        os.fsync(handle)
        os.link(beside, lock, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        held = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            if os.read(held, len(commit) + 2).strip() == commit.encode():
                return
        finally:
            os.close(held)
        message = f"another git has locked the branch {branch}, or died while it had"
        raise WorldError(
            "deliver.locked", message, hint=f"remove refs/heads/{branch}.lock if none runs, then resume"
        ) from None
    finally:
        os.close(handle)
        os.unlink(beside, dir_fd=folder)


def _remove_empty(folder: int, last: str) -> None:
    """Git leaves folders behind in which branches were, and they are in nobody's way."""
    with suppress(OSError):
        for _, inner, _, above in os.fwalk(last, topdown=False, dir_fd=folder):
            for one in inner:
                os.rmdir(one, dir_fd=above)
        os.rmdir(last, dir_fd=folder)
