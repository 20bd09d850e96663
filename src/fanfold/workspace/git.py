"""Runs git, always in Fanfold's private store, so that git obeys no configuration of a work tree.

Rules
* In a user's work tree, git obeys that tree's `.git/config`, which may name programs to run. So `GIT_DIR` is
  the private store in every call, also for queries about the user's files. Git reads the user's index and
  writes nothing there.
* Git runs and fetches nothing else: no hooks, no file-system monitor, no protocol, no lazy fetch, no prompts.
  Variables that a hook may have set are not passed on.
* Merges ignore global and system configuration, so a merge gives the same result everywhere. Ignore rules
  also come from the user's global configuration.
* The git program is never one inside the project, where the author of the project could choose it.
"""

from __future__ import annotations

import fcntl
import os
import re
import resource
import select
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from fanfold.errors import WorldError
from fanfold.process_identity import ProcessIdentity, boot_id, pid_namespace, start_time
from fanfold.project_files import Closing, read_beneath, write_whole
from fanfold.workspace.layout import MAX_CONFIG_BYTES, Repository, folders_above, is_kept, read_kept

# -----------------------------------------------------------------------------------------------------------
# Trusted programs: git and bubblewrap, never from the project
#
# `PATH` may contain folders of the project (an active virtual environment, `node_modules/.bin`, `.`, an empty
# entry). A step's command may come from there, inside the sandbox. A program that the host runs may not. The
# same applies to programs that it starts in turn: the interpreter in its first line, the `ssh` behind a push.
# Folders around the project in the same repository came with the same checkout, and count as the project.


def find_program(name: str, project: Path) -> str | None:
    """Return the first program of this name on PATH whose resolved folder is outside the project."""
    checkout = _checkout(project)
    for folder in _trusted_folders(checkout):
        file = os.path.join(folder, name)
        runs = os.path.isfile(file) and os.access(file, os.X_OK)
        if runs and not _is_below(os.path.realpath(file), checkout):
            return file
    return None


def search_path(project: Path) -> str:
    """Return the PATH for programs that the host runs: without folders of the project."""
    return os.pathsep.join(_trusted_folders(_checkout(project))) or os.defpath


def _checkout(project: Path) -> str:
    """Return the top folder of the project's checkout, but never a home folder."""
    home = os.path.realpath(os.path.expanduser("~"))
    around = [str(folder) for folder in folders_above(project) if not _is_below(home, str(folder))]
    return around[-1] if around else os.path.realpath(project)


def _trusted_folders(checkout: str) -> Iterator[str]:
    for folder in os.get_exec_path():
        if os.path.isabs(folder) and not _is_below(os.path.realpath(folder), checkout):
            yield folder


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


_PASSED = ("HOME", "XDG_CONFIG_HOME", "TMPDIR")
_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.untrackedCache": "false",
    "core.splitIndex": "false",
    "core.bare": "false",
    "protocol.allow": "never",
    "index.threads": "1",
}
LOOK_AFTER_S = 3.0
GIVE_UP_AFTER_S = 1_200.0
ASKING_CPU_S = 10
"""The CPU time limit of one query about ignored files. The project writes the patterns, and a few of them can
take years; a million files take seconds."""
FindObstacle: TypeAlias = Callable[[], Path | None]
"""Finds a file that git may be waiting for."""


@cache
def program(project: Path) -> str:
    """Return the path of git; raises a clear error if it is not installed."""
    found = find_program("git", project)
    if found is None:
        message = "git is not installed; isolated workspaces need it to see what is ignored and to merge"
        raise WorldError("workspace.no_git", message, hint="install git 2.38 or newer")
    return found


def asking(arguments: Sequence[str], project: Path, folder: Path, top: Path) -> list[str]:
    """Return the command for a query about files below `folder`, a part of the work tree `top`."""
    settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    return [program(project), *settings, "-C", str(folder), f"--work-tree={top}", *arguments]


def passed_on(names: Sequence[str], project: Path) -> dict[str, str]:
    """Return the environment for a program of the user, with a PATH without folders of the project."""
    return {name: os.environ[name] for name in names if name in os.environ} | {"PATH": search_path(project)}


def asking_environment(project: Path, store: Path, index: Path | None) -> dict[str, str]:
    """Return the environment for queries; `index` lists the tracked files, None if there are none."""
    passed = passed_on(_PASSED, project)
    quiet = {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
    place = {"GIT_DIR": str(store), "GIT_ATTR_NOSYSTEM": "1", "GIT_ALLOW_PROTOCOL": ""}
    return passed | quiet | place | {"GIT_INDEX_FILE": str(index or store / "no-index")}


def private_environment(project: Path, store: Path) -> dict[str, str]:
    isolated = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_ATTR_NOSYSTEM": "1"}
    who = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "fanfold"), ("EMAIL", "fanfold@localhost"), ("DATE", "0 +0000"))
    }
    own = {"HOME": str(store), "XDG_CONFIG_HOME": str(store)}
    return asking_environment(project, store, None) | isolated | who | own


def run(
    command: Sequence[str],
    environment: dict[str, str],
    *,
    stdin: bytes = b"",
    ok: Sequence[int] = (0,),
    blocked_by: FindObstacle = lambda: None,
    cpu_s: int | None = None,
) -> tuple[int, bytes]:
    """Run a git command until it ends; return its exit code and output."""
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile() as given:  # a pipe would need a writer for as long as git reads
        given.write(stdin)
        given.seek(0)
        with subprocess.Popen(command, env=environment, stdin=given, stdout=pipe, stderr=pipe) as process:
            output, complaint = hear(process, blocked_by, cpu_s)
    if process.returncode not in ok:
        why = complaint.decode("utf-8", "replace").strip()[-500:]
        raise WorldError("workspace.git_failed", f"git {_words(command)}: {why or process.returncode}")
    return process.returncode, output


def hear(
    process: subprocess.Popen[bytes], blocked_by: FindObstacle, cpu_s: int | None
) -> tuple[bytes, bytes]:
    """Return the output of a git process.

    Git opens files by name and blocks if one of them is a pipe. So after some time its files are checked, and
    much later it is killed. The kernel kills it after `cpu_s` seconds of CPU time; then this raises
    `workspace.costly_patterns`.
    """
    if cpu_s is not None and hasattr(resource, "prlimit"):  # only on Linux
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    output, complaint = _until_end(process, blocked_by)
    if cpu_s is not None and process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        message = f"git took more than {cpu_s} s to find out which files are ignored"
        hint = "simplify patterns with many wildcards in .gitignore files and .git/info/exclude"
        raise WorldError("workspace.costly_patterns", message, hint=hint)
    return output, complaint


def _until_end(process: subprocess.Popen[bytes], blocked_by: FindObstacle) -> tuple[bytes, bytes]:
    waited, patience = 0.0, LOOK_AFTER_S
    while True:
        try:
            output, complaint = process.communicate(timeout=patience)
            return output, complaint or b""
        except subprocess.TimeoutExpired as late:
            obstacle = blocked_by()
            waited, patience = waited + patience, patience * 2
            if obstacle is None and waited < GIVE_UP_AFTER_S:
                continue
            process.kill()
            if obstacle is None:
                message = f"git {_words(late.cmd)} did not end within {waited:.0f} s"
                raise WorldError("workspace.git_failed", message) from None
            message = f"{obstacle} is no regular file, and git waits for it"
            raise WorldError("workspace.not_a_file", message, hint=f"remove {obstacle}") from None
        except BaseException:
            process.kill()
            raise


def _words(command: Sequence[str]) -> str:
    return " ".join(word for word in command[1:] if not word.startswith("-"))[:120]


# -----------------------------------------------------------------------------------------------------------
# Remotes of a repository: settings from its `.git/config`, pushes and pull requests
#
# Settings are read as data: no include is followed.


def read_setting(project: Path, repository: Repository, store: Path, key: str) -> str:
    """Return the value of a setting; empty if the repository has none."""
    try:
        config = read_beneath(repository.common, repository.common / "config", MAX_CONFIG_BYTES)
    except OSError:
        return ""
    command = [program(project), "config", "--no-includes", "--file", "-", "--get", key]
    environment = private_environment(project, store)
    code, output = run(command, environment, stdin=config, ok=(0, 1, 5))
    return output.decode("utf-8", "replace").strip() if code == 0 else ""


# -----------------------------------------------------------------------------------------------------------
# Access of git in the private store to a repository's objects


def borrow(repository: Repository) -> dict[str, str]:
    """Return the variables that let git also read the repository's objects; git needs the path quoted."""
    path = str(repository.common / "objects").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return {"GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{path}"', **find_shallow(repository)}


def find_shallow(repository: Repository) -> dict[str, str]:
    """Return the variable for the file of a shallow clone's boundary commits; empty for a full clone."""
    file = repository.common / "shallow"
    return {"GIT_SHALLOW_FILE": str(file)} if is_kept(file) else {}


# -----------------------------------------------------------------------------------------------------------
# Calls of the user's own git and gh, which contact a server: one at a time, each recorded until it has ended
#
# Rules
# * If a Fanfold process dies during such a call, the program continues without it. A process that takes the
#   delivery over would find no result yet, and repeat the call. So a call is recorded before its program
#   starts, and the next process waits for the end of that program before it checks anything. Two runs that
#   deliver the same commit run one after the other.
# * A process that was stopped between check and call may have lost its run meanwhile. So a program starts
#   only if its process still owns the run (`begin` raises otherwise).
# * The output of a program goes into files. A background process (an ssh connection that stays open) could
#   keep a pipe open for hours.
# * A program that takes too long is killed with all its child processes.

PATIENCE_S = 300
MAX_HEARD_BYTES = 4 * 1024 * 1024
"""The maximum size of each stream: the output of a server is untrusted, and at most a list of branches is
needed."""
_ONCE_KNOWN = 'read -r known && exec "$@" < "$0"'
"""Starts the program after its process is recorded, and never if the recording process has died."""


class EndedServerCall(NamedTuple):
    code: int
    stdout: bytes
    stderr: bytes


class ServerCalls:
    """The calls for one delivery; `folder` is one of our own folders."""

    def __init__(self, folder: Path, delivery: str, begin: Callable[[], None]) -> None:
        self._folder = folder
        self._may_begin = begin
        self._note = folder / f"{delivery}.call"

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], where: Path, stdin: bytes = b""
    ) -> EndedServerCall:
        """Run a program and return its output; raises `TimeoutError` if it does not end."""
        with (
            tempfile.TemporaryFile(dir=self._folder) as given,
            tempfile.TemporaryFile(dir=self._folder) as output,
            tempfile.TemporaryFile(dir=self._folder) as why,
        ):
            given.write(stdin)
            given.flush()

            def waiting() -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    ["/bin/sh", "-c", _ONCE_KNOWN, f"/dev/fd/{given.fileno()}", *command],
                    env=environment, cwd=where, start_new_session=True, pass_fds=[given.fileno()],
                    stdin=subprocess.PIPE, stdout=output.fileno(), stderr=why.fileno(),
                )  # fmt: skip

            process, own = self._begin(waiting)
            assert process.stdin is not None
            try:
                process.stdin.write(b"known\n")  # lets the recorded program start
                process.stdin.close()
                code = process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise TimeoutError from None
            finally:
                try:
                    _end(process)
                finally:
                    with self._lock():
                        if self._known() == own:  # no other call has started since
                            self._note.unlink(missing_ok=True)
            output.seek(0)
            why.seek(0)
            return EndedServerCall(code, output.read(MAX_HEARD_BYTES), why.read(MAX_HEARD_BYTES))

    def _begin(
        self, waiting: Callable[[], subprocess.Popen[bytes]]
    ) -> tuple[subprocess.Popen[bytes], ProcessIdentity]:
        """Start a program and record it, after the currently running one has ended."""
        earlier: ProcessIdentity | None = None
        while True:
            with self._lock():
                known = self._known()
                if known is None or known == earlier:
                    self._may_begin()
                    process = waiting()
                    try:
                        begun = start_time(process.pid) or ""
                        own = ProcessIdentity(boot_id(), process.pid, begun, pid_namespace())
                        write_whole(self._note, str(own).encode())
                    except BaseException:
                        _end(process)
                        raise
                    return process, own
            _wait_for(earlier := known)

    def _known(self) -> ProcessIdentity | None:
        """Return the recorded program."""
        try:
            return ProcessIdentity.parse(read_kept(self._note).decode("ascii", "replace"))
        except FileNotFoundError:
            return None

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock while a record is read and written, never while a program runs."""
        with Closing(os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a program that is still running, with all its child processes."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(earlier: ProcessIdentity) -> None:
    """Wait for an earlier program; a process of another container is not visible, and not waited for."""
    if not earlier.is_visible() or not earlier.is_alive():
        return
    try:
        handle = os.pidfd_open(earlier.pid)
    except ProcessLookupError:
        return
    with Closing(handle):
        ended = select.select([handle], [], [], PATIENCE_S)[0]
    if not ended:
        message = f"a program that this delivery called before is still at work (process {earlier.pid})"
        raise WorldError("deliver.interrupted", message, hint="wait for it or end it, then resume")


# -----------------------------------------------------------------------------------------------------------
# The remote of a repository: its address, its branches, and the push of one branch
#
# Rules
# * The address comes from a file that may be untrusted. Only common protocols are accepted, and a local
#   folder only outside the project: git would run its hooks.
# * Git is started in the private store with the user's own configuration (credential helpers, ssh); the
#   configuration of a work tree is not read. It never prompts at the terminal, and never forces a push.
# * The state of the remote is read before a push.

PASSED = (
    "HOME", "USER", "LOGNAME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "TMPDIR", "SSH_AUTH_SOCK",
    "GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "SSH_ASKPASS", "https_proxy", "HTTPS_PROXY", "no_proxy",
    "NO_PROXY", "ALL_PROXY", "all_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO",
)  # fmt: skip
"""Environment variables that the user's own programs need in addition to PATH."""
_SCP = r"(?a)(?:[A-Za-z0-9._-]+@)?([A-Za-z0-9][A-Za-z0-9.-]*):(?!/)([A-Za-z0-9._~/+-]+)"
_NO_ACCESS = (
    r"(?i)authentication failed|could not read username|terminal prompts disabled|permission denied|"
    r"access denied|invalid credentials|403"
)
_PROTECTED = r"(?i)protected branch|GH006|GH013|hook declined|deny updating|not allowed to push"


class RemoteAddress(NamedTuple):
    """The address of a remote for git, and the server and project that it names, if any."""

    url: str
    host: str
    slug: str

    @property
    def shown(self) -> str:
        """The address without a password."""
        return re.sub(r"(?<=://)[^/@]*@", "", self.url)


class Remote:
    def __init__(self, project: Path, repository: Repository, store: Path, name: str = "origin") -> None:
        self._project = project
        self._repository = repository
        self._store = store
        keys = (f"remote.{name}.pushurl", f"remote.{name}.url")
        url = next(filter(None, (read_setting(project, repository, store, key) for key in keys)), "")
        if not url:
            message = f'the repository has no remote "{name}"'
            raise WorldError("deliver.no_remote", message, hint=f"git remote add {name} ADDRESS")
        self.address = _checked(url, repository)

    def look(self, calls: ServerCalls, branch: str) -> tuple[str, str]:
        """Return the commit of a branch on the remote (empty if there is none), and its default branch."""
        refs = self._run(calls, ["ls-remote", "--symref", self.address.url, "HEAD", f"refs/heads/{branch}"])
        commit = default = ""
        for line in refs.splitlines():
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
        environment = passed_on(PASSED, self._project) | {
            "GIT_DIR": str(self._store),
            "GIT_OBJECT_DIRECTORY": str(self._repository.common / "objects"),
            **find_shallow(self._repository),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "LC_ALL": "C",
        }
        command = [program(self._project), *settings, *arguments]
        try:
            ended = calls.run(command, environment, self._store)
        except TimeoutError:
            message = f"{self.address.shown} did not answer within {PATIENCE_S} s"
            raise WorldError("deliver.interrupted", message, hint="resume when it can be reached") from None
        if ended.code != 0:
            raise self._failure(arguments[0], (ended.stderr + ended.stdout).decode("utf-8", "replace"))
        return ended.stdout.decode("utf-8", "replace")

    def _failure(self, what: str, message: str) -> WorldError:
        shown = self.address.shown
        words = " ".join(message.replace(self.address.url, shown).split())[-400:]
        if re.search(_PROTECTED, message):
            message = f"{shown} does not take the branch: {words}"
            hint = "choose a branch that may be pushed, or ask for it"
            return WorldError("deliver.protected", message, hint=hint)
        if re.search(_NO_ACCESS, message):
            message = f"{shown} does not let you in: {words}"
            hint = "sign in (gh auth login, or a key for ssh), then resume"
            return WorldError("deliver.no_credential", message, hint=hint)
        if "shallow update not allowed" in message:
            message = f"{shown} does not have the commit that this shallow clone begins with"
            return WorldError("deliver.shallow", message, hint="git fetch --unshallow origin, then resume")
        if "non-fast-forward" in message or "fetch first" in message or "[rejected]" in message:
            message = f"{shown} has the branch already, with other commits"
            return WorldError("deliver.branch_taken", message, hint="remove it there, then resume")
        message = f"git {what} with {shown} failed: {words}"
        return WorldError("deliver.interrupted", message, hint="resume when it can be reached")


def _checked(url: str, repository: Repository) -> RemoteAddress:
    """Return an accepted address; raises `WorldError` for others."""
    scp = re.fullmatch(_SCP, url)
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


# -----------------------------------------------------------------------------------------------------------
# Pull requests, by the user's own `gh`: an existing one is used, else one is created
#
# `gh` gets arguments, never a command line, and the name of the project on the server. It is started outside
# any work tree, so that no configuration of a work tree applies.

_OWN = tuple(
    "GH_TOKEN GITHUB_TOKEN GH_ENTERPRISE_TOKEN GITHUB_ENTERPRISE_TOKEN GH_HOST GH_CONFIG_DIR".split()
)
_PULL_REQUESTS_NO_ACCESS = r"(?i)gh auth login|authentication|HTTP 401|bad credentials|HTTP 403"
SIGNED_OUT = 4
"""The exit status of `gh` if the user is not signed in."""


class PullRequestText(Struct, frozen=True):
    title: str
    body: str
    base: str
    draft: bool = False


class FoundRequest(Struct, frozen=True, rename="camel"):
    """One pull request in the output of `gh pr list`."""

    url: str
    state: str = ""
    head_ref_oid: str = ""
    is_cross_repository: bool = False
    """Whether it comes from a fork, in which a branch may have the same name."""


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
        """The working directory of `gh`: one of our own folders outside any work tree."""
        host = "" if address.host in ("", "github.com") else f"{address.host}/"
        self._repository = f"{host}{address.slug}"

    def find(self, branch: str, commit: str) -> str:
        """Return the address of the pull request for a branch; empty if there is none."""
        fields = ["--json", "url,state,headRefOid,isCrossRepository", "--limit", "50"]
        listing = self._run(["pr", "list", "--head", branch, "--state", "all", *fields])
        try:
            found = msgspec.json.decode(listing or b"[]", type=list[FoundRequest])
        except msgspec.DecodeError as error:
            message = f"gh did not say which pull requests there are: {error}"
            raise WorldError("deliver.gh_failed", message) from None
        mine = [request for request in found if not request.is_cross_repository]
        ours = [
            request for request in mine if request.head_ref_oid == commit or request.state.upper() == "OPEN"
        ]
        return ours[0].url if ours else ""

    def make(self, branch: str, text: PullRequestText) -> str:
        """Create a pull request and return its address."""
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
            hint = "resume when the server can be reached"
            raise WorldError("deliver.interrupted", message, hint=hint) from None
        if ended.code == 0:
            return ended.stdout
        message = " ".join((ended.stderr + ended.stdout).decode("utf-8", "replace").split())[-400:]
        if ended.code == SIGNED_OUT or re.search(_PULL_REQUESTS_NO_ACCESS, message):
            hint = "gh auth login, then resume"
            raise WorldError("deliver.no_credential", f"gh is not signed in: {message}", hint=hint)
        hint = "resume when it works"
        raise WorldError("deliver.gh_failed", f"gh {' '.join(arguments[:2])}: {message}", hint=hint)
