"""The names of a repository, read as data and, for one new branch, written.

Git run in somebody's repository obeys its configuration. So nobody here starts git in it: `HEAD` and branches
are read from the files, and a branch is made as git makes one: under a lock that only one can take.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from fanfold.errors import WorldError
from fanfold.trust.repository import Repository

MAX_BYTES = 4 * 1024 * 1024
_OID = re.compile(r"[0-9a-f]{40}", re.ASCII)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refs:
    """The refs of one repository."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        if (repository.common / "reftable").exists():
            message = "the repository keeps its refs as reftable, which deliver steps cannot write"
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

    def find(self, name: str) -> str:
        """The commit that a full name (`refs/heads/main`) stands for; empty when there is none."""
        said = self._read(self._repository.common, name).strip()
        if said.startswith("ref:"):  # one step, as in refs/remotes/origin/HEAD
            said = self._read(self._repository.common, said.removeprefix("ref:").strip()).strip()
        return said if _OID.fullmatch(said) else self._packed().get(name, "")

    def default_of(self, remote: str) -> str:
        """The branch that the remote is known to take for its default one; empty when that is not known."""
        said = self._read(self._repository.common, f"refs/remotes/{remote}/HEAD").strip()
        prefix = f"ref: refs/remotes/{remote}/"
        return said.removeprefix(prefix) if said.startswith(prefix) else ""

    def make(self, branch: str, commit: str) -> None:
        """Make a branch that is not there; `FileExistsError` when it, or one that contains it, is."""
        name = f"refs/heads/{branch}"
        if any(other == name or other.startswith(f"{name}/") for other in self._packed()):
            raise FileExistsError(branch)
        folder = self._folder_of(name)
        last = name.rpartition("/")[2]
        try:
            lock = os.open(
                f"{last}.lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder
            )
            try:
                os.write(lock, f"{commit}\n".encode())
                os.fsync(lock)
            finally:
                os.close(lock)
            try:
                os.link(f"{last}.lock", last, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                os.unlink(f"{last}.lock", dir_fd=folder)
            os.fsync(folder)
        finally:
            os.close(folder)

    def _folder_of(self, name: str) -> int:
        """The open folder in which a ref lies; folders on the way are made, links are not followed."""
        handle = os.open(self._repository.common, _FOLDER)
        for part in name.split("/")[:-1]:
            try:
                try:
                    inner = os.open(part, _FOLDER, dir_fd=handle)
                except FileNotFoundError:
                    os.mkdir(part, 0o755, dir_fd=handle)
                    inner = os.open(part, _FOLDER, dir_fd=handle)
            except OSError as error:
                raise FileExistsError(name) from error
            finally:
                os.close(handle)
            handle = inner
        return handle

    def _packed(self) -> dict[str, str]:
        rows = (
            line.partition(" ") for line in self._read(self._repository.common, "packed-refs").splitlines()
        )
        return {name: commit for commit, _, name in rows if _OID.fullmatch(commit)}

    @staticmethod
    def _read(folder: Path, name: str) -> str:
        if ".." in name.split("/"):
            return ""
        try:
            handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return ""
        with os.fdopen(handle, "rb") as opened:
            try:
                return opened.read(MAX_BYTES).decode("utf-8", "replace")
            except OSError:  # a folder
                return ""
