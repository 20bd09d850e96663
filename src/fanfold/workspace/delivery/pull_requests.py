"""Pull requests, by the user's own `gh`: looked for first, made only when there is none.

`gh` is given arguments, never a command line, and the project of the server by name. It is started outside
any work tree, so that no tree's configuration counts.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from msgspec import Struct

from fanfold.errors import WorldError
from fanfold.workspace.delivery.calls import PATIENCE_S, ServerCalls
from fanfold.workspace.delivery.remotes import PASSED, RemoteAddress
from fanfold.workspace.files.git import passed_on
from fanfold.workspace.files.programs import find_program

_OWN = (
    "GH_TOKEN",
    "GITHUB_TOKEN",
    "GH_ENTERPRISE_TOKEN",
    "GITHUB_ENTERPRISE_TOKEN",
    "GH_HOST",
    "GH_CONFIG_DIR",
)
_NO_ACCESS = re.compile(r"gh auth login|authentication|HTTP 401|bad credentials|HTTP 403", re.IGNORECASE)
SIGNED_OUT = 4
"""The exit status of `gh` for somebody who is not signed in."""


class PullRequestText(Struct, frozen=True):
    title: str
    body: str
    base: str
    draft: bool = False


class FoundRequest(Struct, frozen=True, rename="camel"):
    """What `gh pr list` says of one."""

    url: str
    state: str = ""
    head_ref_oid: str = ""
    is_cross_repository: bool = False
    """From somebody's fork, where a branch may be called like ours."""


class PullRequests:
    """The pull requests of one project on a server."""

    def __init__(self, project: Path, folder: Path, address: RemoteAddress, calls: ServerCalls) -> None:
        program = find_program("gh", project)
        if program is None:
            message = "a pull request needs gh, which is not installed"
            raise WorldError("deliver.no_gh", message, hint="install it from cli.github.com, then resume")
        self._program = program
        self._project = project
        self._calls = calls
        self._folder = folder
        """Where it is started: a folder of ours that is in no work tree."""
        host = "" if address.host in ("", "github.com") else f"{address.host}/"
        self._repository = f"{host}{address.slug}"

    def find(self, branch: str, commit: str) -> str:
        """The address of the pull request for a branch, empty when there is none."""
        fields = ["--json", "url,state,headRefOid,isCrossRepository", "--limit", "50"]
        said = self._run(["pr", "list", "--head", branch, "--state", "all", *fields])
        try:
            found = msgspec.json.decode(said or b"[]", type=list[FoundRequest])
        except msgspec.DecodeError as error:
            raise WorldError(
                "deliver.gh_failed", f"gh did not say which pull requests there are: {error}"
            ) from None
        mine = [one for one in found if not one.is_cross_repository]
        ours = [one for one in mine if one.head_ref_oid == commit or one.state.upper() == "OPEN"]
        return ours[0].url if ours else ""

    def make(self, branch: str, text: PullRequestText) -> str:
        """Make one; its address."""
        arguments = ["pr", "create", "--head", branch, "--title", text.title, "--body-file", "-"]
        arguments += ["--base", text.base] if text.base else []
        arguments += ["--draft"] if text.draft else []
        lines = self._run(arguments, text.body.encode()).decode("utf-8", "replace").split()
        return next((word for word in reversed(lines) if "://" in word), "")

    def _run(self, arguments: list[str], stdin: bytes = b"") -> bytes:
        environment = passed_on((*PASSED, *_OWN), self._project) | {
            "GH_PROMPT_DISABLED": "1",
            "NO_COLOR": "1",
            "GIT_DIR": str(self._folder),
            "LC_ALL": "C",
        }
        command = [self._program, *arguments, "--repo", self._repository]
        try:
            ended = self._calls.run(command, environment, self._folder, stdin)
        except TimeoutError:
            message = f"gh did not answer within {PATIENCE_S} s"
            raise WorldError(
                "deliver.interrupted", message, hint="resume when the server can be reached"
            ) from None
        if ended.code == 0:
            return ended.stdout
        said = " ".join((ended.stderr + ended.stdout).decode("utf-8", "replace").split())[-400:]
        if ended.code == SIGNED_OUT or _NO_ACCESS.search(said):
            raise WorldError(
                "deliver.no_credential", f"gh is not signed in: {said}", hint="gh auth login, then resume"
            )
        raise WorldError(
            "deliver.gh_failed", f"gh {' '.join(arguments[:2])}: {said}", hint="resume when it works"
        )
