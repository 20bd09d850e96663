"""The remote of a repository: its address, read as data; what it has; and one branch pushed to it.

Rules
* The address comes from a file that may be anybody's. Only usual ways to a server are taken, and a folder of
  this machine only outside the project: git would run the hooks of what lies there.
* Git is started in the private store with the user's own configuration (helpers for credentials, ssh); that
  of no tree is read. It never asks at the terminal, and never forces.
* What the remote has is looked up before anything is pushed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from fanfold.errors import WorldError
from fanfold.trust.project_files import read_beneath
from fanfold.trust.repository import Repository
from fanfold.workspace.delivery.borrowed import find_shallow
from fanfold.workspace.delivery.calls import PATIENCE_S, ServerCalls
from fanfold.workspace.files import git

PASSED = (
    "HOME", "USER", "LOGNAME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "TMPDIR", "SSH_AUTH_SOCK",
    "GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "SSH_ASKPASS", "https_proxy", "HTTPS_PROXY", "no_proxy",
    "NO_PROXY", "ALL_PROXY", "all_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO",
)  # fmt: skip
"""What the user's own programs need of the environment besides PATH."""
MAX_CONFIG_BYTES = 1024 * 1024
_SCP = re.compile(r"(?:[A-Za-z0-9._-]+@)?([A-Za-z0-9][A-Za-z0-9.-]*):(?!/)([A-Za-z0-9._~/+-]+)", re.ASCII)
_NO_ACCESS = re.compile(
    r"authentication failed|could not read username|terminal prompts disabled|permission denied|"
    r"access denied|invalid credentials|403",
    re.IGNORECASE,
)
_PROTECTED = re.compile(
    r"protected branch|GH006|GH013|hook declined|deny updating|not allowed to push", re.IGNORECASE
)


class RemoteAddress(NamedTuple):
    """Where a remote is: as git takes it, and the server and project that it names, where it names any."""

    url: str
    host: str
    slug: str

    @property
    def shown(self) -> str:
        """Without what may be a password in it."""
        return re.sub(r"(?<=://)[^/@]*@", "", self.url)


class Remote:
    def __init__(self, project: Path, repository: Repository, store: Path, name: str = "origin") -> None:
        self._project = project
        self._repository = repository
        self._store = store
        self.name = name
        self.address = self._address()

    def _address(self) -> RemoteAddress:
        url = self._setting(f"remote.{self.name}.pushurl") or self._setting(f"remote.{self.name}.url")
        if not url:
            message = f'the repository has no remote "{self.name}"'
            raise WorldError("deliver.no_remote", message, hint=f"git remote add {self.name} ADDRESS")
        return _checked(url, self._repository)

    def _setting(self, key: str) -> str:
        try:
            config = read_beneath(
                self._repository.common, self._repository.common / "config", MAX_CONFIG_BYTES
            )
        except OSError:
            return ""
        command = [git.program(self._project), "config", "--no-includes", "--file", "-", "--get", key]
        environment = git.private_environment(self._project, self._store)
        code, said = git.run(command, environment, stdin=config, ok=(0, 1, 5))
        return said.decode("utf-8", "replace").strip() if code == 0 else ""

    def look(self, calls: ServerCalls, branch: str) -> tuple[str, str]:
        """What the remote has: the commit of a branch, empty when it has none, and its default branch."""
        said = self._run(calls, ["ls-remote", "--symref", self.address.url, "HEAD", f"refs/heads/{branch}"])
        commit = default = ""
        for line in said.splitlines():
            value, _, name = line.partition("\t")
            if name == "HEAD" and value.startswith("ref: refs/heads/"):
                default = value.removeprefix("ref: refs/heads/")
            elif name == f"refs/heads/{branch}":
                commit = value
        return commit, default

    def push(self, calls: ServerCalls, branch: str, commit: str) -> None:
        """Push one commit as a branch; never by force."""
        what = f"{commit}:refs/heads/{branch}"
        self._run(calls, ["push", "--no-verify", "--porcelain", self.address.url, what])

    def _run(self, calls: ServerCalls, arguments: list[str]) -> str:
        settings = ["-c", "core.hooksPath=/dev/null", "-c", "protocol.allow=never"]
        for way in ("https", "ssh", "file"):
            settings += ["-c", f"protocol.{way}.allow=always"]
        environment = git.passed_on(PASSED, self._project) | {
            "GIT_DIR": str(self._store),
            "GIT_OBJECT_DIRECTORY": str(self._repository.common / "objects"),
            **find_shallow(self._repository),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "LC_ALL": "C",
        }
        command = [git.program(self._project), *settings, *arguments]
        try:
            ended = calls.run(command, environment, self._store)
        except TimeoutError:
            message = f"{self.address.shown} did not answer within {PATIENCE_S} s"
            raise WorldError("deliver.interrupted", message, hint="resume when it can be reached") from None
        if ended.code != 0:
            raise self._failure(arguments[0], (ended.stderr + ended.stdout).decode("utf-8", "replace"))
        return ended.stdout.decode("utf-8", "replace")

    def _failure(self, what: str, said: str) -> WorldError:
        shown, words = (
            self.address.shown,
            " ".join(said.replace(self.address.url, self.address.shown).split())[-400:],
        )
        if _PROTECTED.search(said):
            message = f"{shown} does not take the branch: {words}"
            return WorldError(
                "deliver.protected", message, hint="choose a branch that may be pushed, or ask for it"
            )
        if _NO_ACCESS.search(said):
            message = f"{shown} does not let you in: {words}"
            hint = "sign in (gh auth login, or a key for ssh), then resume"
            return WorldError("deliver.no_credential", message, hint=hint)
        if "shallow update not allowed" in said:
            message = f"{shown} does not have the commit that this shallow clone begins with"
            return WorldError("deliver.shallow", message, hint="git fetch --unshallow origin, then resume")
        if "non-fast-forward" in said or "fetch first" in said or "[rejected]" in said:
            message = f"{shown} has the branch already, with other commits"
            return WorldError("deliver.branch_taken", message, hint="remove it there, then resume")
        message = f"git {what} with {shown} failed: {words}"
        return WorldError("deliver.interrupted", message, hint="resume when it can be reached")


def _checked(url: str, repository: Repository) -> RemoteAddress:
    """An address that git may be given."""
    scp = _SCP.fullmatch(url)
    if scp is not None:
        return RemoteAddress(url, scp[1], scp[2].removesuffix(".git").strip("/"))
    parts = urlsplit(url) if "://" in url else None
    named = parts is not None and parts.hostname is not None and not parts.hostname.startswith("-")
    if parts is not None and named and parts.scheme in ("https", "ssh"):
        return RemoteAddress(url, str(parts.hostname), parts.path.removesuffix(".git").strip("/"))
    path = Path(parts.path) if parts is not None and parts.scheme == "file" else Path(url)
    if (parts is None or parts.scheme == "file") and "::" not in url and path.is_absolute():
        real, top = os.path.realpath(path), os.path.realpath(repository.top)
        if real != top and not real.startswith(f"{top}/"):
            return RemoteAddress(str(path), "", path.name.removesuffix(".git"))
    message = f"the address of the remote cannot be used: {url!r:.200}"
    hint = "deliver takes https, ssh, and folders outside the project"
    raise WorldError("deliver.bad_remote", message, hint=hint)
