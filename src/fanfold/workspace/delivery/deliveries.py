"""Deliveries: what a deliver step is about to do, worked out and written down before anything is done.

Rules
* A delivery is composed in the private store and remembered under its step, whole, before anybody is asked
  and before the first effect. Whoever goes on after a crash carries out this one, not another.
* Every effect is looked up first: a branch that is at our commit is ours, a remote that has it has it, a pull
  request that is there is the one. So nothing is made twice, wherever the process died.
* Never the base, the default or the checked-out branch, and nothing is ever overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from fanfold.errors import WorldError
from fanfold.kernel.branch_names import check_branch_name
from fanfold.kernel.paths import matches
from fanfold.trust.project_files import write_whole
from fanfold.trust.repository import Repository, find_repository
from fanfold.workspace.delivery.calls import ServerCalls
from fanfold.workspace.delivery.commits import Commits, CommitText
from fanfold.workspace.delivery.pull_requests import PullRequests, PullRequestText
from fanfold.workspace.delivery.refs import Refs
from fanfold.workspace.delivery.remotes import Remote
from fanfold.workspace.files.layout import Layout, read_kept
from fanfold.workspace.merges.objects import Objects
from fanfold.workspace.merges.receipts import Receipt
from fanfold.workspace.merges.revision import Revised

IN_CI = (
    ".github/**", ".gitlab-ci.yml", ".gitlab/**", ".circleci/**", ".buildkite/**", ".travis.yml", ".ci/**",
    ".drone.yml", "azure-pipelines*.yml", "bitbucket-pipelines.yml", "appveyor.yml", "**/action.yml",
    "Jenkinsfile", "Makefile", "**/Dockerfile", "package.json", "setup.py", "pyproject.toml", "conftest.py",
    ".pre-commit-config.yaml",
)  # fmt: skip
"""Files that a server is likely to run, or to take commands from, when the branch arrives."""


class Wish(Struct, frozen=True):
    """What a step asks for, every template rendered."""

    branch: str
    message: str
    paths: tuple[str, ...]
    push: bool = False
    pull_request: PullRequestText | None = None


class Delivery(Struct, frozen=True):
    """What will be done."""

    wish: Wish
    base: str
    """The commit it goes on."""
    base_name: str
    commit: str
    files: tuple[str, ...]
    text: CommitText
    receipts: tuple[str, ...]
    address: str
    """Of the remote, as it is shown; empty when nothing is pushed."""


class Deliveries:
    """The deliveries of one project."""

    def __init__(self, project: Path, layout: Layout, objects: Objects, begin: Callable[[], None]) -> None:
        repository = find_repository(project)
        if repository is None:
            message = f"{project} is in no git repository of yours"
            raise WorldError("deliver.no_repository", message, hint="git init, and a first commit")
        self._project = project
        self._repository: Repository = repository
        self._layout = layout
        self._begin = begin
        """Raises when this process may not act any more; right before each effect."""
        self._refs = Refs(repository)
        self._commits = Commits(project, repository, objects, layout.store)

    # Before anybody is asked

    def find(self, name: str) -> Delivery | None:
        """What was worked out before for a step."""
        try:
            return msgspec.json.decode(read_kept(self._file(name)), type=Delivery)
        except FileNotFoundError:
            return None

    def compose(self, name: str, wish: Wish, receipts: Sequence[Receipt]) -> Delivery:
        """Work out what a step is to deliver, and remember it."""
        _check_text(wish)
        wish = _with_push(wish)
        checked_out, head = self._refs.head()
        base_name = wish.pull_request.base if wish.pull_request is not None else ""
        remote = self._remote() if wish.push else None
        base = self._base(base_name) or head
        taken = {base_name, self._refs.default_of("origin")} | self._refs.checked_out()
        self._check_branch(wish.branch, taken)
        who, mail = self._commits.identity()
        at = max((receipt.merged_ns for receipt in receipts), default=0) // 1_000_000_000
        text = CommitText(wish.message.rstrip("\n") + "\n", who, mail, at)
        commit, files = self._commits.compose(base, *self._of(wish, receipts), text)
        if not commit:
            message = "there is nothing to deliver: this run merged no change of these paths"
            raise WorldError(
                "deliver.nothing", message, hint="a deliver step takes what steps before it merged"
            )
        if self._refs.find(f"refs/heads/{wish.branch}") not in ("", commit):
            raise _branch_exists(wish.branch)  # nobody is to agree to what cannot be done
        made = Delivery(
            wish=wish,
            base=base,
            base_name=base_name or checked_out,
            commit=commit,
            files=files,
            text=text,
            receipts=tuple(receipt.id for receipt in receipts),
            address=remote.address.shown if remote is not None else "",
        )
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_whole(self._file(name), msgspec.json.encode(made), durable=True)
        return made

    def question(self, made: Delivery) -> tuple[str, str]:
        """What a person is asked, and what is shown with it: everything that will happen, and the patch."""
        wish = made.wish
        lines = [f"branch {wish.branch}, new, from {made.base_name or 'HEAD'} at {made.base[:12]}"]
        first, _, more = made.text.message.strip().partition("\n")
        lines.append(f"commit {made.commit[:12]} by {made.text.name} <{made.text.email}>: {first}")
        lines += _set_in(more)
        lines.append(f"pushed to {made.address}" if wish.push else "not pushed")
        if wish.push and (along := self._commits.list_new(made.base, self._refs.tips_of("origin"))):
            lines.append("together with commits of yours that are not known to be there:")
            lines += _set_in(along)
        if wish.pull_request is not None:
            kind = "draft pull request" if wish.pull_request.draft else "pull request"
            lines.append(f"{kind}: {' '.join(wish.pull_request.title.split())}")
            lines.append(f"  into {wish.pull_request.base or 'the default branch'}")
            lines += _set_in(wish.pull_request.body)
        lines += [
            f"  {path if path.isprintable() else repr(path)}"
            + ("   (runs in CI)" if matches(IN_CI, path) else "")
            for path in made.files
        ]
        what = "a pull request" if wish.pull_request is not None else "a push" if wish.push else "a commit"
        files = f"{len(made.files)} file{'' if len(made.files) == 1 else 's'}"
        return f"Deliver {files} as {what} on branch {wish.branch}?", "\n".join(
            [*lines, "", self._commits.difference(made.base, made.commit)]
        )

    @staticmethod
    def _of(wish: Wish, receipts: Sequence[Receipt]) -> tuple[list[Sequence[Revised]], Callable[[str], bool]]:
        return [receipt.files for receipt in receipts], lambda path: matches(wish.paths, path)

    def _base(self, name: str) -> str:
        if not name:
            return ""
        found = self._refs.find(f"refs/remotes/origin/{name}") or self._refs.find(f"refs/heads/{name}")
        if not found:
            raise WorldError(
                "deliver.no_base", f"there is no branch {name!r:.120} here", hint="git fetch origin"
            )
        return found

    def _check_branch(self, branch: str, taken: set[str]) -> None:
        problem = check_branch_name(branch)
        if problem:
            raise WorldError("deliver.bad_branch", problem, hint="letters, digits, - _ . and / in the middle")
        if branch in taken:
            message = (
                f"{branch} is the base, the default or the checked-out branch, which is never delivered to"
            )
            raise WorldError("deliver.bad_branch", message, hint="name a branch of its own")

    def _remote(self) -> Remote:
        return Remote(self._project, self._repository, self._layout.store)

    def _calls(self, made: Delivery) -> ServerCalls:
        return ServerCalls(self._folder, made.commit, self._begin)

    @property
    def _folder(self) -> Path:
        return self._layout.private / "deliveries"

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    # Effects, each looked up first

    def make_branch(self, made: Delivery, receipts: Sequence[Receipt]) -> None:
        """See that the branch is there, at the commit."""
        now = self._refs.find(f"refs/heads/{made.wish.branch}")
        if now == made.commit:
            self._refs.unlock(made.wish.branch, made.commit)
            return
        if not now:
            self._check_branch(made.wish.branch, self._refs.checked_out())  # since it was shown
            # Made again: the private store may have been cleared meanwhile. The same comes out.
            commit, _ = self._commits.compose(made.base, *self._of(made.wish, receipts), made.text)
            if commit != made.commit:
                raise WorldError(
                    "deliver.changed", "what was shown cannot be made again", hint="run the step anew"
                )
            self._begin()
            self._commits.publish(made.base, made.commit)
            try:
                self._refs.make(made.wish.branch, made.commit)
                return
            except FileExistsError:
                pass
        if self._refs.find(f"refs/heads/{made.wish.branch}") != made.commit:
            raise _branch_exists(made.wish.branch)

    def push(self, made: Delivery) -> None:
        """See that the remote has the branch, at the commit."""
        remote, branch = self._remote(), made.wish.branch
        if remote.address.shown != made.address:
            message = f"the remote is {remote.address.shown} now, and {made.address} was shown"
            raise WorldError("deliver.changed", message, hint="put it back, or run the step anew")
        calls = self._calls(made)
        there, default = remote.look(calls, branch)
        if there == made.commit:
            return
        if branch == default:
            message = f"{branch} is the default branch of {made.address}, which is never delivered to"
            raise WorldError("deliver.protected", message, hint="name a branch of its own")
        if there:
            message = f"{made.address} has a branch {branch} already, with other commits"
            raise WorldError("deliver.branch_taken", message, hint="remove it there, then resume")
        remote.push(calls, branch, made.commit)

    def request(self, made: Delivery) -> str:
        """See that there is a pull request; its address."""
        text = made.wish.pull_request
        assert text is not None
        address = self._remote().address
        requests = PullRequests(self._project, self._layout.store, address, self._calls(made))
        return requests.find(made.wish.branch, made.commit) or requests.make(made.wish.branch, text)


def _branch_exists(branch: str) -> WorldError:
    message = f"there is a branch {branch} already, or one that its name stands in the way of"
    hint = "rename or remove it, then resume; or cancel the run, name another in the recipe, and retry"
    return WorldError("deliver.branch_exists", message, hint=hint)


def _with_push(wish: Wish) -> Wish:
    """A pull request needs its branch on the server."""
    return msgspec.structs.replace(wish, push=True) if wish.pull_request is not None else wish


def _check_text(wish: Wish) -> None:
    """A commit needs a message and a pull request a title, in text that a program can be given."""
    texts = {"the message of the commit": wish.message}
    if wish.pull_request is not None:
        texts["the title of the pull request"] = wish.pull_request.title
    for name, text in texts.items():
        if not text.strip() or "\0" in text:
            message = f"{name} {'holds a NUL character' if text.strip() else 'is empty'}"
            raise WorldError("deliver.bad_text", message, hint="say it in the recipe, or run the step anew")


def _set_in(text: str) -> list[str]:
    """The lines of a text that others wrote, so that none is taken for one of ours."""
    return [f"  | {line}".rstrip() for line in text.strip().splitlines()]
