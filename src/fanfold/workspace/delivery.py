"""Deliveries: the work of a deliver step, planned and stored before its first effect.

Rules
* A delivery is composed in the private store and stored under its step, complete, before the user is asked
  and before the first effect. A process that continues after a crash performs this same delivery.
* The current state is checked before every effect: a branch at our commit, a remote that has it, an existing
  pull request. So nothing is created twice, wherever the process died.
* It never writes the base, the default or the checked-out branch, and never overwrites anything.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from fanfold.errors import WorldError
from fanfold.kernel.paths import matches
from fanfold.kernel.plan import check_branch_name
from fanfold.project_files import Closing, write_whole
from fanfold.workspace import git
from fanfold.workspace.git import PullRequests, PullRequestText, Remote, ServerCalls, borrow, read_setting
from fanfold.workspace.layout import (
    Layout,
    Repository,
    find_repository,
    has_long_hashes,
    open_kept,
    read_kept,
)
from fanfold.workspace.merge import FileState, Objects, PathRevision, merge_fully, read_listing
from fanfold.workspace.receipts import Receipt

# -----------------------------------------------------------------------------------------------------------
# The commit of a delivery: a base commit plus the merges of a run, three-way
#
# Rules
# * No content comes from the working tree. The files of a merge are in the private store. They are merged
#   onto the base as a change (before, after), so uncommitted changes of the user are not included.
# * The commit is created with a separate index in the private store, which temporarily uses the repository's
#   objects. The user's index, branches and files are not touched, and no configuration, filter or hook is
#   read.
# * The same base, merges, author, time and message always give the same commit.

AT_ONCE = 400
"""The maximum number of paths per command."""
NOTHING = "0" * 40
MAX_LISTED = 50
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class CommitText(Struct, frozen=True):
    """The message, author and time (seconds since the epoch) of a commit."""

    message: str
    name: str
    email: str
    at: int


class DeliveryConflict(WorldError):
    """The merged changes conflict with the base."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__(
            "deliver.conflict",
            f"what the run changed does not go together with the base: {', '.join(paths[:5])}",
            hint="commit or take back your own changes of these files, or fetch a newer base; then resume",
            details={"paths": [*paths]},
        )


class Commits:
    """Creates commits for one project."""

    def __init__(self, project: Path, repository: Repository, objects: Objects, store: Path) -> None:
        self._project = project
        self._repository = repository
        self._objects = objects
        self._store = store
        top = os.path.realpath(repository.top)
        inside = os.path.relpath(os.path.realpath(project), top)
        self._prefix = "" if inside == "." else f"{inside}/"
        """The path of the project in the repository."""

    def compose(
        self,
        base: str,
        merges: Iterable[Sequence[PathRevision]],
        wanted: Callable[[str], bool],
        text: CommitText,
    ) -> tuple[str, tuple[str, ...]]:
        """Create the commit; return its hash and paths. Raises `DeliveryConflict`."""
        chosen = [[file for file in merge if wanted(file.path)] for merge in merges]
        paths = sorted({self._prefix + file.path for merge in chosen for file in merge})
        before: dict[str, FileState] = {}
        for start in range(0, len(paths), AT_ONCE):
            asked = ["--literal-pathspecs", "ls-tree", "-r", "-z", "--full-tree", base, "--"]
            before |= read_listing(self._git([*asked, *paths[start : start + AT_ONCE]]))
        state: dict[str, FileState | None] = {path: before.get(path) for path in paths}
        for merge in chosen:
            self._carry(state, merge)
        changed = tuple(path for path in paths if state[path] != before.get(path))
        if not changed:
            return "", ()
        with tempfile.TemporaryDirectory(dir=self._store) as folder:
            index = Path(folder) / "index"
            self._git(["read-tree", base], index=index)
            rows = []
            for path in changed:
                mode, oid = state[path] or (0, NOTHING)
                rows.append(b"%o %s\t%s\0" % (mode, oid.encode(), os.fsencode(path)))
            self._git(["update-index", "-z", "--index-info"], index=index, stdin=b"".join(rows))
            # A partial clone may lack content that the commit does not change.
            tree = self._git(["write-tree", "--missing-ok"], index=index).decode().strip()
        listed = self._git(["diff-tree", "-r", "-z", "--name-only", "--no-renames", base, tree])
        others = {os.fsdecode(name) for name in listed.split(b"\0")[:-1]}.difference(changed)
        if others:  # a file replaces a folder
            raise DeliveryConflict(sorted(others))
        commit = self._git(
            ["commit-tree", tree, "-p", base, "-F", "-"], text=text, stdin=text.message.encode()
        )
        return commit.decode().strip(), changed

    def difference(self, base: str, commit: str) -> str:
        """Return the changes of the commit as a patch."""
        flags = ["--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--full-index"]
        return self._git(["diff", *flags, base, commit]).decode("utf-8", "replace")

    def list_new(self, base: str, known: Sequence[str]) -> str:
        """List the newest commits up to `base` that no known commit contains, one per line."""
        words = ["log", f"--max-count={MAX_LISTED}", "--format=%h %s", "--ignore-missing", "--stdin"]
        asked = "\n".join([base, *(f"^{commit}" for commit in known), ""])
        return self._git(words, stdin=asked.encode()).decode("utf-8", "replace")

    def publish(self, base: str, commit: str) -> None:
        """Copy the new objects of a commit into the repository's object store."""
        listed = self._git(["rev-list", "--objects", commit, f"^{base}"]).decode("utf-8", "replace")
        wanted = "".join(f"{line.partition(' ')[0]}\n" for line in listed.splitlines())
        batch = self._git(["cat-file", "--batch"], stdin=wanted.encode())
        target = Objects(self._repository.common, self._project, published=True)
        at = 0
        while at < len(batch):
            end = batch.index(b"\n", at)
            oid, kind, size = batch[at:end].decode().split(" ")
            at = end + 1 + int(size)
            if target.put(kind, batch[end + 1 : at]) != oid:
                raise WorldError("workspace.damaged", f"object {oid} does not match its name (its hash)")
            at += 1

    def identity(self) -> tuple[str, str]:
        """Return the author's name and email, from the repository's or the user's git configuration."""
        # Only the user's own configuration applies, not that of a work tree.
        environment = git.passed_on(("HOME", "XDG_CONFIG_HOME"), self._project)
        environment |= {"GIT_DIR": str(self._store), "LC_ALL": "C"}
        values = []
        for key in ("user.name", "user.email"):
            value = read_setting(self._project, self._repository, self._store, key)
            if not value:
                command = [git.program(self._project), "config", "--global", "--get", key]
                _, output = git.run(command, environment, ok=(0, 1, 128))
                value = output.decode("utf-8", "replace").strip()
            values.append(value)
        if not all(values):
            message = "git does not know who you are, and a commit needs to say so"
            hint = 'git config --global user.name "Your Name"; git config --global user.email you@example.org'
            raise WorldError("deliver.no_identity", message, hint=hint)
        return values[0], values[1]

    def _carry(self, state: dict[str, FileState | None], merge: Sequence[PathRevision]) -> None:
        """Apply the changes of one merge to the current state."""
        open_files: list[PathRevision] = []
        for file in merge:
            path = self._prefix + file.path
            if file.after is not None and not self._objects.has(file.after.oid):
                self._recover(file.path, file.after)
            if state[path] == file.before:
                state[path] = file.after
            elif state[path] != file.after:
                open_files.append(PathRevision(path, file.before, file.after))
        if not open_files:
            return
        for file in open_files:
            for side in (file.before, state[file.path]):
                if side is not None and not self._objects.has(side.oid):
                    self._objects.put("blob", self._git(["cat-file", "blob", side.oid]))
        open_files = [self._as_kept(file, state[file.path]) for file in open_files]
        base = {file.path: file.before for file in open_files if file.before is not None}
        ours = {file.path: now for file in open_files if (now := state[file.path]) is not None}
        theirs = {file.path: file.after for file in open_files if file.after is not None}
        outcome = merge_fully(base, ours, theirs, self._objects)
        if outcome.conflicts:
            raise DeliveryConflict([conflict.path for conflict in outcome.conflicts])
        for step in outcome.steps:
            state[step.path] = step.after

    def _as_kept(self, file: PathRevision, kept: FileState | None) -> PathRevision:
        """Return a change with the line endings of the repository, if the checkout had converted them."""
        if file.before is None or file.after is None or kept is None:
            return file
        before, after, base = (self._objects.get(side.oid) for side in (file.before, file.after, kept))
        wholly = 0 < before.count(b"\r\n") == before.count(b"\n")
        if not wholly or b"\r\n" in base or b"\0" in before:
            return file
        ends = [self._objects.put("blob", side.replace(b"\r\n", b"\n")) for side in (before, after)]
        return PathRevision(file.path, file.before._replace(oid=ends[0]), file.after._replace(oid=ends[1]))

    def _recover(self, path: str, wanted: FileState) -> None:
        """Store a very large file again, if the project still has it with the same hash."""
        try:
            handle = os.open(self._project / path, _FILE)
        except OSError:
            handle = -1
        if handle >= 0:
            with Closing(handle):
                if self._objects.put_file(handle) == wanted.oid:
                    return
        message = f"what was merged into {path} is not there any more"
        raise WorldError("deliver.gone", message, hint="gc may have deleted it")

    def _git(
        self,
        arguments: Sequence[str],
        *,
        index: Path | None = None,
        stdin: bytes = b"",
        text: CommitText | None = None,
    ) -> bytes:
        environment = git.private_environment(self._project, self._store) | borrow(self._repository)
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        if text is not None:
            for role in ("AUTHOR", "COMMITTER"):
                environment[f"GIT_{role}_NAME"] = text.name
                environment[f"GIT_{role}_EMAIL"] = text.email
                environment[f"GIT_{role}_DATE"] = f"{text.at} +0000"
        return git.run([git.program(self._project), *arguments], environment, stdin=stdin)[1]


# -----------------------------------------------------------------------------------------------------------
# Refs of a repository, read as files; one new branch is written
#
# In a user's repository, git obeys its configuration. So git is never started there: `HEAD` and branches are
# read from the files, and a branch is created as git does it, under an exclusive lock.

MAX_BYTES = 4_096
MAX_PACKED_BYTES = 256 * 1024 * 1024
_OID = r"(?a)[0-9a-f]{40}"
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
        """Return the checked-out branch (empty if there is none) and its commit."""
        head = self._read(self._repository.folder, "HEAD").strip()
        name = head.removeprefix("ref:").strip() if head.startswith("ref:") else ""
        commit = self.find(name) if name else head
        if not commit or not re.fullmatch(_OID, commit):
            message = "the repository has no commit yet" if name else "HEAD cannot be read"
            raise WorldError("deliver.no_commit", message, hint="make a first commit: a branch needs one")
        return name.removeprefix("refs/heads/"), commit

    def checked_out(self) -> set[str]:
        """Return the branches that are checked out in any work tree, including those without a commit."""
        trees = self._repository.common / "worktrees"
        folders = {self._repository.common, self._repository.folder}
        with suppress(OSError):
            folders |= {trees / name for name in os.listdir(trees)}
        heads = (self._read(folder, "HEAD").strip().removeprefix("ref:").strip() for folder in folders)
        return {name.removeprefix("refs/heads/") for name in heads if name.startswith("refs/heads/")}

    def find(self, name: str) -> str:
        """Return the commit of a full name (`refs/heads/main`); empty if there is none."""
        value = self._read(self._repository.common, name).strip()
        if value.startswith("ref:"):  # one step, as in refs/remotes/origin/HEAD
            name = value.removeprefix("ref:").strip()
            value = self._read(self._repository.common, name).strip()
        return value if re.fullmatch(_OID, value) else self._packed().get(name, "")

    def default_of(self, remote: str) -> str:
        """Return the last known default branch of the remote; empty if unknown."""
        value = self._read(self._repository.common, f"refs/remotes/{remote}/HEAD").strip()
        prefix = f"ref: refs/remotes/{remote}/"
        return value.removeprefix(prefix) if value.startswith(prefix) else ""

    def tips_of(self, remote: str) -> list[str]:
        """Return the last known commits of a remote's branches."""
        prefix = f"refs/remotes/{remote}/"
        found = {commit for name, commit in self._packed().items() if name.startswith(prefix)}
        for folder, _, files in os.walk(self._repository.common / prefix):
            found |= {self._read(Path(folder), file).strip() for file in files}
        return sorted(commit for commit in found if re.fullmatch(_OID, commit))

    def make(self, branch: str, commit: str) -> None:
        """Create a branch; raises `FileExistsError` if it or a conflicting name exists."""
        name = f"refs/heads/{branch}"
        self._check_packed(name)
        last = name.rpartition("/")[2]
        with Closing(self._folder_of(name)) as folder:
            _lock(folder, last, commit, branch)
            try:
                self._check_packed(name)  # check again: it may have been packed before this lock was acquired
                with suppress(OSError):  # empty folders that git leaves after branches are deleted
                    for _, inner, _, above in os.fwalk(last, topdown=False, dir_fd=folder):
                        for empty in inner:
                            os.rmdir(empty, dir_fd=above)
                    os.rmdir(last, dir_fd=folder)
                os.link(f"{last}.lock", last, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                os.unlink(f"{last}.lock", dir_fd=folder)
            os.fsync(folder)

    def unlock(self, branch: str, commit: str) -> None:
        """Remove the lock of a process that died right after it created the branch."""
        name = f"refs/heads/{branch}.lock"
        if self._read(self._repository.common, name).strip() == commit:
            with suppress(OSError):
                os.unlink(self._repository.common / name)

    def _folder_of(self, name: str) -> int:
        """Open the folder of a ref; missing folders are created, links are not followed."""
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
        packed = self._read(self._repository.common, "packed-refs", MAX_PACKED_BYTES + 1)
        if len(packed) > MAX_PACKED_BYTES:
            raise WorldError("deliver.unsupported", "the repository has too many refs to search")
        rows = (line.partition(" ") for line in packed.splitlines())
        return {name: commit for commit, _, name in rows if re.fullmatch(_OID, commit)}

    @staticmethod
    def _read(folder: Path, name: str, limit: int = MAX_BYTES) -> str:
        if ".." in name.split("/"):
            return ""
        try:
            with open_kept(folder / name) as opened:
                return opened.read(limit).decode("utf-8", "replace")
        except OSError:
            return ""


def _lock(folder: int, last: str, commit: str, branch: str) -> None:
    """Acquire git's lock of a ref with our commit; a lock of a dead process with that commit is ours."""
    lock, beside = f"{last}.lock", f".{last}.{commit}.lock"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(beside, flags, 0o644, dir_fd=folder)
    try:
        os.write(handle, f"{commit}\n".encode())
        os.fsync(handle)
        os.link(beside, lock, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        with Closing(os.open(lock, _FILE, dir_fd=folder)) as held:
            if os.read(held, len(commit) + 2).strip() == commit.encode():
                return
        message = f"another git has locked the branch {branch}, or died while it had"
        hint = f"remove refs/heads/{branch}.lock if none runs, then resume"
        raise WorldError("deliver.locked", message, hint=hint) from None
    finally:
        os.close(handle)
        os.unlink(beside, dir_fd=folder)


IN_CI = (
    ".github/**", ".gitlab-ci.yml", ".gitlab/**", ".circleci/**", ".buildkite/**", ".travis.yml", ".ci/**",
    ".drone.yml", "azure-pipelines*.yml", "bitbucket-pipelines.yml", "appveyor.yml", "**/action.yml",
    "Jenkinsfile", "Makefile", "**/Dockerfile", "package.json", "setup.py", "pyproject.toml", "conftest.py",
    ".pre-commit-config.yaml",
)  # fmt: skip
"""Files that a server probably executes, or reads commands from, when the branch arrives."""


class Wish(Struct, frozen=True):
    """The request of a step, with all templates rendered."""

    branch: str
    message: str
    paths: tuple[str, ...]
    push: bool = False
    pull_request: PullRequestText | None = None


class Delivery(Struct, frozen=True):
    """The planned delivery."""

    wish: Wish
    base: str
    """The parent commit."""
    base_name: str
    commit: str
    files: tuple[str, ...]
    text: CommitText
    receipts: tuple[str, ...]
    address: str
    """The address of the remote, without passwords; empty if nothing is pushed."""


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
        """Raises if this process no longer owns the run; called right before each effect."""
        self._refs = Refs(repository)
        self._commits = Commits(project, repository, objects, layout.store)

    # Before the approval

    def find(self, name: str) -> Delivery | None:
        """Return the stored delivery of a step; None if there is none."""
        try:
            return msgspec.json.decode(read_kept(self._file(name)), type=Delivery)
        except FileNotFoundError:
            return None

    def compose(self, name: str, wish: Wish, receipts: Sequence[Receipt]) -> Delivery:
        """Plan the delivery of a step, and store it."""
        _check_text(wish)
        request, base_name = wish.pull_request, ""
        if request is not None:  # it needs its branch on the server
            wish, base_name = msgspec.structs.replace(wish, push=True), request.base
        checked_out, base = self._refs.head()
        remote = self._remote() if wish.push else None
        if base_name:
            find = self._refs.find
            base = find(f"refs/remotes/origin/{base_name}") or find(f"refs/heads/{base_name}")
            if not base:
                message = f"there is no branch {base_name!r:.120} here"
                raise WorldError("deliver.no_base", message, hint="git fetch origin")
        taken = {base_name, self._refs.default_of("origin")} | self._refs.checked_out()
        self._check_branch(wish.branch, taken)
        who, mail = self._commits.identity()
        at = max((receipt.merged_ns for receipt in receipts), default=0) // 1_000_000_000
        text = CommitText(wish.message.rstrip("\n") + "\n", who, mail, at)
        commit, files = self._commits.compose(base, *self._of(wish, receipts), text)
        if not commit:
            message = "there is nothing to deliver: this run merged no change of these paths"
            hint = "a deliver step takes what steps before it merged"
            raise WorldError("deliver.nothing", message, hint=hint)
        if self._refs.find(f"refs/heads/{wish.branch}") not in ("", commit):
            raise _branch_exists(wish.branch)  # do not ask for approval of an impossible delivery
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
        """Return the question to the user, and the details: everything that will happen, and the patch."""
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
    def _of(
        wish: Wish, receipts: Sequence[Receipt]
    ) -> tuple[list[Sequence[PathRevision]], Callable[[str], bool]]:
        return [receipt.files for receipt in receipts], lambda path: matches(wish.paths, path)

    def _check_branch(self, branch: str, taken: set[str]) -> None:
        problem = check_branch_name(branch)
        if problem:
            raise WorldError("deliver.bad_branch", problem, hint="letters, digits, - _ . and / in the middle")
        if branch in taken:
            message = (
                f"{branch} is the base, the default or the checked-out branch, which is never delivered to"
            )
            raise WorldError("deliver.bad_branch", message, hint="choose another branch name")

    def _remote(self) -> Remote:
        return Remote(self._project, self._repository, self._layout.store)

    @property
    def _folder(self) -> Path:
        return self._layout.private / "deliveries"

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    # Effects, each with a check of the current state first

    def make_branch(self, made: Delivery, receipts: Sequence[Receipt]) -> None:
        """Ensure that the branch exists at the commit."""
        now = self._refs.find(f"refs/heads/{made.wish.branch}")
        if now == made.commit:
            self._refs.unlock(made.wish.branch, made.commit)
            return
        if not now:
            self._check_branch(made.wish.branch, self._refs.checked_out())  # may differ since the approval
            # Created again with the same result: the private store may have been cleared meanwhile.
            commit, _ = self._commits.compose(made.base, *self._of(made.wish, receipts), made.text)
            if commit != made.commit:
                message = "what was shown cannot be made again"
                raise WorldError("deliver.changed", message, hint="run the step anew")
            self._begin()
            self._commits.publish(made.base, made.commit)
            with suppress(FileExistsError):
                self._refs.make(made.wish.branch, made.commit)
                return
        if self._refs.find(f"refs/heads/{made.wish.branch}") != made.commit:
            raise _branch_exists(made.wish.branch)

    def push(self, made: Delivery) -> None:
        """Ensure that the remote has the branch at the commit."""
        remote, branch = self._remote(), made.wish.branch
        if remote.address.shown != made.address:
            message = f"the remote is {remote.address.shown} now, and {made.address} was shown"
            raise WorldError("deliver.changed", message, hint="restore it, or run the step again")
        calls = ServerCalls(self._folder, made.commit, self._begin)
        there, default = remote.look(calls, branch)
        if there == made.commit:
            return
        if branch == default:
            message = f"{branch} is the default branch of {made.address}, which is never delivered to"
            raise WorldError("deliver.protected", message, hint="choose another branch name")
        if there:
            message = f"{made.address} has a branch {branch} already, with other commits"
            raise WorldError("deliver.branch_taken", message, hint="remove it there, then resume")
        remote.push(calls, branch, made.commit)

    def request(self, made: Delivery) -> str:
        """Ensure that there is a pull request, and return its address."""
        text = made.wish.pull_request
        assert text is not None
        calls = ServerCalls(self._folder, made.commit, self._begin)
        requests = PullRequests(self._project, self._layout.store, self._remote().address, calls)
        return requests.find(made.wish.branch, made.commit) or requests.make(made.wish.branch, text)


def _branch_exists(branch: str) -> WorldError:
    message = f"there is a branch {branch} already, or one that its name stands in the way of"
    hint = "rename or remove it, then resume; or cancel the run, name another in the recipe, and retry"
    return WorldError("deliver.branch_exists", message, hint=hint)


def _check_text(wish: Wish) -> None:
    """Raise `WorldError` if the commit message or the title is empty, or contains a NUL character."""
    texts = {"the message of the commit": wish.message}
    if wish.pull_request is not None:
        texts["the title of the pull request"] = wish.pull_request.title
    for name, text in texts.items():
        if not text.strip() or "\0" in text:
            message = f"{name} {'holds a NUL character' if text.strip() else 'is empty'}"
            raise WorldError("deliver.bad_text", message, hint="change the recipe, or run the step again")


def _set_in(text: str) -> list[str]:
    """Indent and mark the lines of a text by others, so that they cannot look like lines of Fanfold."""
    return [f"  | {line}".rstrip() for line in text.strip().splitlines()]
