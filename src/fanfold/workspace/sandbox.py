"""The sandbox: starts a command so that it sees and changes only the paths that its step is allowed to.

    levels = detect(project)                       # the levels of this machine; `doctor` prints them
    level = choose_level(levels)                   # raises if there is none, unless `unsafe` is set
    launch = plan_sandbox(level, spaces.policy(child, ...))
    ... run launch.command([...]) with launch.environment in launch.cwd ...
    launch.close()                                 # when its last process has ended

Rules
* Bubblewrap is preferred: it has its own namespaces, the workspace at the project's own path, and all else
  read-only or empty. Landlock with seccomp is the second choice. Without both, the command is refused unless
  the user requested `unsafe`.
* Both fail closed: if a restriction cannot be applied, the command is not started.
* A plan contains no secret: the plan contains the names of environment variables, the environment their
  values.
* The launcher opens mounted paths beneath a folder, without following links, and passes on their handles. A
  path that is a link or missing by then does not exist inside.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias, cast

import msgspec
from msgspec import Struct, to_builtins

from fanfold.errors import EXIT_PERMISSION, WorldError
from fanfold.kernel.claims import OWNERS
from fanfold.process_identity import ProcessIdentity, this_process
from fanfold.workspace import layout, sandbox_policy
from fanfold.workspace.artifacts import INSIDE, VARIABLE
from fanfold.workspace.git import find_program
from fanfold.workspace.programs import connector, launcher
from fanfold.workspace.sandbox_policy import (
    GIVEN,
    Bind,
    Outside,
    Policy,
    around,
    covers,
    is_within,
    look_outside,
    programs,
)

# -----------------------------------------------------------------------------------------------------------
# The command line of bubblewrap for a policy
#
# Inside: `/` is read-only. User, pid, ipc, uts and cgroup namespaces are private, and the network namespace
# too unless the network is allowed. /proc and /dev are new. Folders that do not belong to the system are
# empty except for programs, and are writable only where programs store temporary files. The workspace is at
# the project's own path. In it, `.git` and dependency folders of the project tree are mounted read-only, and
# `.fanfold` is empty.
#
# A word of the command line is text, or a `Bind` that the launcher opens and passes on as a handle.

Word: TypeAlias = str | Bind

_KERNEL = tuple("sys sysrq-trigger irq bus fs acpi scsi mtrr dynamic_debug driver asound".split())
"""Parts of /proc that configure the whole machine; writable for processes that are root outside."""
TRIAL_S = 120.0
"""Long enough for a busy machine: a slow trial must not count as a missing feature."""
TRIALS = 3
_SCARCE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_KILLED = 128
"""The lowest exit status of a killed program; a negative status also means killed."""
_CLOSED_ALREADY = ("/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
"""Paths that bubblewrap protects itself if they are writable; each mount costs time."""


@cache
def program(project: Path) -> str | None:
    """Return the path of bubblewrap, never inside the project; None if it is not installed."""
    return find_program("bwrap", project)


def _options(project: Path) -> str:
    """Return the help text of bubblewrap, which lists its options."""
    found = program(project)
    return "" if found is None else _help_of(found)


@cache
def _help_of(found: str) -> str:
    return tried([found, "--help"]).stdout


@cache
def _trial(found: str, words: tuple[str, ...]) -> tuple[int, str]:
    """Return the status and the last message of a trial sandbox; one trial of a program is enough."""
    ended = tried([found, *words, "--dev", "/dev", "--proc", "/proc", "--", "/bin/sh", "-c", ":"])
    return ended.returncode, ended.stderr.strip()[-200:]


def tried(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a trial command that detects a feature. A lack of processes or memory is retried, not believed."""
    for left in reversed(range(TRIALS)):
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_S, check=False)
        except OSError as error:
            if error.errno not in _SCARCE or not left:
                raise
            continue
        if 0 <= ended.returncode < _KILLED or not left:
            return ended
    raise AssertionError("the last trial counts")


def namespaces(project: Path, network: bool) -> list[str]:
    """Return the options for namespaces, inside which no user namespaces can be created if supported."""
    found = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if not network:
        found.append("--unshare-net")
    if "--disable-userns" in _options(project):
        found.append("--disable-userns")
    # Otherwise root would keep its capabilities inside. Root also stays the owner of the kernel's settings.
    return [*found, "--cap-drop", "ALL", "--die-with-parent", "--new-session"]


def takes_handles(project: Path) -> bool:
    """Return whether this bubblewrap can mount by handle; older versions get the path of the handle."""
    return "--ro-bind-fd" in _options(project)


def arguments(policy: Policy, outside: Outside) -> list[Word]:
    """Return the bubblewrap command line up to the command; the program starts in the project."""
    found: list[Word] = [program(policy.project) or "bwrap", *namespaces(policy.project, policy.network)]
    found += [word for path, target in outside.links for word in ("--symlink", target, path)]
    found += [Bind(path, "/", path[1:]) for path in outside.seen if path != "/sys"]
    found += ["--dev", "/dev", "--proc", "/proc"]
    for part in (f"/proc/{name}" for name in _KERNEL):
        if not (part in _CLOSED_ALREADY and os.access(part, os.W_OK)):
            found += ["--ro-bind-try", part, part]
    for folder in outside.hidden:
        found += [*_sized(policy), "--tmpfs", folder] if folder in outside.scratch else ["--dir", folder]
    home = str(policy.home)
    if any(is_within(home, folder) for folder in outside.hidden):
        found += ["--dir", home]  # programs expect their home to exist
    if policy.rooms.home is not None:
        found.append(Bind(home, str(policy.rooms.home), read_only=False))
    if policy.rooms.artifacts is not None:
        found.append(Bind(INSIDE, str(policy.rooms.artifacts), read_only=False))
    for path in (*programs(policy, outside.hidden), *policy.rooms.also):
        found += ["--ro-bind-try", str(path), str(path)]
    if policy.network:  # some systems keep the DNS configuration in a hidden run-time folder
        real = os.path.realpath("/etc/resolv.conf")
        if any(is_within(real, folder) for folder in outside.hidden):
            found += ["--ro-bind-try", real, real]
    found.append(Bind(str(policy.project), str(policy.place), read_only=policy.read_only))
    found += [*bound_in(policy), *sandbox_policy.cover_arguments(policy, _sized(policy))]
    if "/sys" in outside.seen:
        found.append(Bind("/sys", "/", "sys"))  # last: each later mount would read the mounts in it again
    found += ["--remount-ro", "/"]
    return [*found, "--chdir", str(policy.project), "--"]


def _sized(policy: Policy) -> list[str]:
    return ["--size", str(policy.limits.max_scratch_bytes)] if "--size" in _options(policy.project) else []


def bound_in(policy: Policy) -> list[Word]:
    """Return the mounts of project paths in the workspace, read-only."""
    found: list[Word] = []
    project, place = str(policy.project), str(policy.place)
    for path in sorted(policy.points):
        inside = f"{project}/{path}"
        if path == ".fanfold":
            found += ["--tmpfs", inside, "--remount-ro", inside]
        elif path not in policy.writable or not policy.shared:
            found.append(Bind(inside, project, path))
    found += [Bind(folder, folder) for folder in policy.repositories]
    others = (name for name in OWNERS if name not in (".git", ".fanfold"))
    return [*found, *(Bind(f"{project}/{name}", place, name) for name in others)]


# -----------------------------------------------------------------------------------------------------------
# The second level: Landlock rules for a policy, with a system-call filter and limits
#
# `Level.cannot` lists its gaps: the workspace is at its own path instead of the project's, processes outside
# are visible (but protected), modes cannot be changed, and there are no sockets in the file system. Landlock
# allows only listed paths, each with everything below it. To protect a path inside, the rules list everything
# around it (`around`), and no new entry can be created next to it.

MIN_ABI = 3
"""Older versions let a program truncate a file that is read-only."""
_CREATE_RULESET = 444
_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_CHAR, _BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_READING = _EXECUTE | _READ | _LIST
_ON_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_DEVICES = ("null", "zero", "full", "random", "urandom")
"""No terminals: the user's terminals are in the same folder as new ones."""


@cache
def abi() -> int:
    """Return the Landlock version of this kernel; 0 for none."""
    import ctypes

    try:
        return max(0, int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, 1)))
    except (OSError, AttributeError):
        return 0


def rules(policy: Policy, scratch: Path, outside: Outside) -> dict[str, object]:
    """Return the rules of a policy for the launcher: rights on a path beneath a folder."""
    everything = (1 << 13) - 1
    for version, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL)):
        if abi() >= version:
            everything |= right
    writing = everything & ~(_CHAR | _BLOCK)
    paths = [_rule(path, _READING) for path in outside.around(policy.project)]
    paths += [_rule("/proc", _READING), _rule("/dev", _LIST)]
    paths += [_rule(f"/dev/{name}", _READ | _WRITE | _IOCTL & everything) for name in _DEVICES]
    paths += [_rule(path, _READING) for path in programs(policy, (*outside.hidden, "/dev", "/proc", "/sys"))]
    paths += [_rule(path, _READING) for path in policy.rooms.also]
    own_folders = (scratch, policy.rooms.home, policy.rooms.artifacts)
    paths += [_rule(path, writing) for path in own_folders if path is not None]
    top = str(policy.project)
    if policy.shared:
        own = f"{top}/.fanfold"
        paths += [_beneath(top, path, _READING) for path in around(top, [own])]
        if not policy.read_only:
            closed = [f"{top}/{path}" for path in (*policy.points, *OWNERS) if path not in policy.writable]
            paths += [_beneath(top, path, writing) for path in around(top, [own, *closed])]
    else:
        paths.append(_rule(policy.place, _READING if policy.read_only else writing))
        paths += [(top, path, _READING) for path in policy.points if path != ".fanfold"]
        paths += [_rule(path, _READING) for path in policy.repositories]
    net = 3 if abi() >= 4 and not (policy.network or policy.rooms.connects) else 0
    scoped = 3 if abi() >= 6 else 0
    return {"fs": everything, "net": net, "scoped": scoped, "files": _ON_FILES & everything, "paths": paths}


def _rule(path: str | Path, access: int) -> tuple[str, str, int]:
    return str(path), "", access


def _beneath(top: str, path: str, access: int) -> tuple[str, str, int]:
    """Return a rule for a path in the project: no link on the way is followed."""
    return top, os.path.relpath(path, top) if path != top else "", access


def make_scratch(policy: Policy) -> Path:
    """Create a private home and temporary folder for one launch, named after this process for cleanup."""
    scratch = policy.scratch / f"{this_process()}_{os.urandom(8).hex()}"
    scratch.mkdir(mode=0o700)
    for name in ("home", "tmp"):
        (scratch / name).mkdir(mode=0o700)
    return scratch


def abandoned(scratches: Path) -> list[Path]:
    """Return the private folders whose process died before it removed them."""
    makers = (
        (folder, ProcessIdentity.parse(folder.name.rpartition("_")[0])) for folder in scratches.iterdir()
    )
    return [one for one, maker in makers if maker is None or not maker.is_alive()]


def environment(policy: Policy, scratch: Path) -> dict[str, str]:
    """Return the variables for home and temporary files, and stop git from searching above the workspace."""
    return {
        "HOME": str(policy.rooms.home or scratch / "home"),
        "TMPDIR": str(scratch / "tmp"),
        "GIT_CEILING_DIRECTORIES": str(policy.place.parent),
    }


# -----------------------------------------------------------------------------------------------------------
# Detection of the sandbox levels of this machine, and their gaps
#
# Every feature is tested in a trial, because a container may forbid a feature that the kernel has.


class Level(msgspec.Struct, frozen=True):
    """One level of the sandbox."""

    name: str
    available: bool
    why: str = ""
    """The reason if it is not available."""
    cannot: tuple[str, ...] = ()
    """The protections that it lacks on this machine."""
    fix: str = ""
    """What makes it available: a package, a profile, a system setting or an option of the container."""
    keeps_agents: bool = True
    """Whether it can restrict an agent that is a program to its provider."""


class Levels(msgspec.Struct, frozen=True):
    """All levels of the sandbox on this machine, as `doctor` prints them."""

    bubblewrap: Level
    landlock: Level


@cache
def detect(project: Path) -> Levels:
    """Detect the levels for this project; cached for the life of this process."""
    if sys.platform != "linux":
        return Levels(Level("bubblewrap", False, NOT_LINUX), Level("landlock", False, NOT_LINUX))
    return Levels(_bubblewrap(project), _landlock())


NOT_LINUX = "both need Linux"
MAC_HINT = (
    "use models and functions here, and Linux (a container or a virtual machine) for commands and programs"
)
_SYSCTLS = Path("/proc/sys")
_PROFILE = (
    "printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\n"
    "profile bwrap {program} flags=(unconfined) {{ userns, }}\\n'"
    " | sudo tee /etc/apparmor.d/bwrap && sudo apparmor_parser -r /etc/apparmor.d/bwrap"
)
_CONTAINER = (
    "start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
    " --security-opt systempaths=unconfined"
)


def how_to_allow(program: str, settings: Path = _SYSCTLS, root: Path = Path("/")) -> str:
    """Return what allows bubblewrap here; container options first, as a container shows host settings."""
    if any((root / name).exists() for name in (".dockerenv", "run/.containerenv")):
        return _CONTAINER

    def value(name: str) -> str:
        try:
            return (settings / name).read_text().strip()
        except OSError:
            return ""

    if value("kernel/apparmor_restrict_unprivileged_userns") == "1":
        profile = _PROFILE.format(program=program)
        return f"{profile}; or: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    if value("kernel/unprivileged_userns_clone") == "0":
        return "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if value("user/max_user_namespaces") == "0":
        return "sudo sysctl -w user.max_user_namespaces=15000"
    return f"allow user namespaces for {program}; inside a container, {_CONTAINER}"


def _limits() -> list[str]:
    if os.geteuid() != 0 or sandbox_policy.limits_processes():
        return []
    return ["a limit on processes (root needs the pids cgroup for that)"]


def _bubblewrap(project: Path) -> Level:
    found = program(project)
    if found is None:
        return Level("bubblewrap", False, "bwrap is not installed", fix="install bubblewrap")
    try:
        status, message = _trial(found, (*namespaces(project, False), "--ro-bind", "/", "/"))
    except (OSError, subprocess.TimeoutExpired) as error:
        return Level("bubblewrap", False, str(error))
    if status:
        why = message or f"it ends with {status}"
        return Level("bubblewrap", False, why, fix=how_to_allow(found))
    cannot = [
        *_limits(),
        "a limit on the bytes a workspace takes on disk, beyond that on each file",
        "closing sockets and pipes that lie below /usr, /etc, /opt or /var/lib",
    ]
    if not takes_handles(project):
        cannot.append("binding by handle: this version is given paths, checked right before")
    if not sandbox_policy.has_call_filter():
        cannot.append("a filter of system calls on this processor")
    if abi() < 6:
        cannot.append("with a network: closing abstract sockets of the host")
    return Level("bubblewrap", True, cannot=tuple(cannot))


def _landlock() -> Level:
    version = abi()
    if version < MIN_ABI:
        why = f"the kernel offers version {version}, {MIN_ABI} is needed" if version else "not in this kernel"
        return Level("landlock", False, why)
    if not sandbox_policy.has_call_filter():
        return Level("landlock", False, "no filter of system calls on this processor")
    cannot = [
        *_limits(),
        "the workspace at the project's own path",
        "a pid namespace: processes outside are seen, and what escapes its parent is found by its mark",
        "chmod, chown and extended attributes inside (they are refused, since they cannot be confined)",
        "unix sockets, pairs of datagram sockets, watches on folders, and terminals inside",
        "new entries beside closed ones for a shared writer (at the top of the project)",
        "hiding that a file outside is there, how large it is and when it changed, from who knows its path",
        "keeping the times of files outside from being changed by their owner",
        "a limit on the bytes a workspace or its temporary files take on disk, beyond that on each file",
    ]
    if version < 6:
        cannot.append("keeping signals from other processes of this user")
    keeps = connector.is_available()
    if not keeps:
        cannot.append("keeping an agent that is a program to its provider (it is refused)")
    return Level("landlock", True, cannot=tuple(cannot), keeps_agents=keeps)


LevelName: TypeAlias = Literal["bubblewrap", "landlock", "unsafe"]
_ENVIRONMENT = ["PATH", "HOME", "LANG", "LC_*", "TERM", "TZ", "TMPDIR", "FANFOLD_SESSION"]
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"


class Launch:
    """A planned start of a command; used once."""

    def __init__(
        self,
        level: LevelName,
        prefix: list[str],
        policy: Policy,
        group: sandbox_policy.Group,
        scratch: Path | None,
        seen: VisiblePaths,
    ) -> None:
        self.level: LevelName = level
        self.cwd = str(policy.workspace) if policy.namespaces is None else str(policy.project)
        """The working directory of the started process; the command itself starts in its workspace."""
        self.environment = {f"{GIVEN}{name}": value for name, value in policy.environment.items()}
        """Variables to add to the environment that the caller passes on; the command gets no others."""
        self.sight = seen
        """The paths that the command can see and change at most; for the log."""
        self._prefix = prefix
        self._group = group
        self._scratch = scratch
        self._trash = policy.scratch.parent / "trash"

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the whole command line."""
        return [*self._prefix, *argv]

    @property
    def has_files(self) -> bool:
        """Whether `close` deletes files, which may be slow."""
        return self._scratch is not None

    def close(self) -> bool:
        """Remove the files and cgroups of the launch; return whether nothing is left. May be called again."""
        if self._scratch is not None:
            layout.let_be_removed(self._scratch)
            layout.throw_away(self._scratch, self._trash)
            self._scratch = None
        return self._group.remove()


def choose_level(levels: Levels, *, unsafe: bool = False) -> LevelName:
    """Return the strongest level of this machine; raises if there is none and `unsafe` is not set."""
    if levels.bubblewrap.available:
        return "bubblewrap"
    if levels.landlock.available:
        return "landlock"
    if unsafe:
        return "unsafe"
    why = f"bubblewrap: {levels.bubblewrap.why}; Landlock: {levels.landlock.why}"
    message = f"commands cannot be confined on this machine ({why})"
    hint = f"{levels.bubblewrap.fix or MAC_HINT}; or accept the risk with --unsafe-no-sandbox"
    raise WorldError("sandbox.unavailable", message, hint=hint, exit_status=EXIT_PERMISSION)


def check_reach(levels: Levels, *, unsafe: bool = False) -> None:
    """Raise if this machine cannot restrict an agent that is a program to its provider."""
    if choose_level(levels, unsafe=unsafe) == "landlock" and not levels.landlock.keeps_agents and not unsafe:
        message = "an agent cannot be limited to its provider here: Landlock cannot restrict its network"
        hint = f"{levels.bubblewrap.fix}; or accept the risk with --unsafe-no-sandbox"
        raise WorldError("sandbox.insufficient", message, hint=hint, exit_status=EXIT_PERMISSION)


def plan_sandbox(level: LevelName, policy: Policy) -> Launch:
    """Plan the start of a command under a policy at a level."""
    for name in policy.environment:
        if not re.fullmatch(_VARIABLE, name):
            message = f"{name!r} cannot be the name of a variable"
            raise WorldError("sandbox.bad_variable", message, hint="use letters, digits and _")
    spec: dict[str, object] = {
        "cgroups": [],
        "namespaces": list(policy.namespaces or ()),
        "limits": {},
        "filter": "",
        "wrapper": [],
        "by_handle": level == "bubblewrap" and takes_handles(policy.project),
        "place": str(policy.place),
        "cwd": "",
        "drop": False,
        "rules": None,
        "environment": _ENVIRONMENT,
        "given": GIVEN,
        "set": {},
    }
    outside = look_outside(policy.home)
    group = sandbox_policy.Group([])
    scratch: Path | None = None
    if level != "unsafe":
        limits = policy.limits
        group = sandbox_policy.make_group(limits.max_processes, limits.max_memory_bytes)
        spec["cgroups"] = group.entrances
        spec["limits"] = {
            "NPROC": limits.max_processes,
            "DATA": limits.max_memory_bytes,
            "FSIZE": limits.max_file_bytes,
            "NOFILE": limits.max_open_files,
            "CORE": 0,
        }
    if level == "bubblewrap":
        spec["wrapper"] = arguments(policy, outside)
        if sandbox_policy.has_call_filter():
            code = sandbox_policy.assemble_call_filter(alone=False, network=policy.network)
            spec["filter"] = base64.b64encode(code).decode()
        if abi() >= 6:  # without rules for files: keeps abstract sockets inside if the network is allowed
            spec["rules"] = {"fs": 0, "net": 0, "scoped": 1, "files": 0, "paths": []}
        spec["set"] = {"HOME": str(policy.home), "TMPDIR": "/tmp"}  # noqa: S108 - private inside
    elif level == "landlock":
        scratch = make_scratch(policy)
        code = sandbox_policy.assemble_call_filter(
            alone=True, network=policy.network or policy.rooms.connects
        )
        spec["filter"] = base64.b64encode(code).decode()
        spec["rules"] = rules(policy, scratch, outside)
        spec["drop"] = True
        spec["cwd"] = str(policy.place)
        spec["set"] = environment(policy, scratch)
    else:
        spec["cwd"] = str(policy.place)
        spec["environment"] = ["*"]
        if policy.rooms.home is not None:
            spec["set"] = {"HOME": str(policy.rooms.home)}
    if policy.rooms.artifacts is not None:
        where = INSIDE if level == "bubblewrap" else str(policy.rooms.artifacts)
        spec["set"] = {**cast(dict[str, str], spec["set"]), VARIABLE: where}
    prefix = [sys.executable, "-I", "-S", launcher.__file__, json.dumps(spec, default=to_builtins)]
    return Launch(level, prefix, policy, group, scratch, sight(level, policy, outside))


class VisiblePaths(Struct, frozen=True, kw_only=True):
    """The paths that a program in its sandbox can see and change at most, as seen inside.

    It is computed from the same policy and functions as the levels. "At most", because a path that is a link
    or missing when the sandbox starts does not exist inside.
    """

    at: str
    """The path of the workspace."""
    writes: bool
    """Whether the workspace is writable."""
    network: bool
    variables: tuple[str, ...]
    """The names of the variables that its step sets."""
    bound: tuple[str, ...]
    """Other paths of the project and its repository, read-only."""
    programs: tuple[str, ...]
    """Paths in homes and other hidden folders that PATH requires, read-only."""
    system: tuple[str, ...]
    """Visible paths of the machine, read-only. Everything else is hidden."""
    private: tuple[str, ...]
    """Private writable paths. They are deleted afterwards, except published artifacts."""
    covered: tuple[str, ...] = ()
    """Project paths that are replaced by empty ones, because the program would obey their content."""


def sight(level: str, policy: Policy, outside: Outside) -> VisiblePaths:
    """Return the visible paths of a program under a policy at a level."""
    confined = level != "unsafe"
    own = [f"${VARIABLE}"] if policy.rooms.artifacts is not None and confined else []
    bound: list[str] = []
    private: list[str] = []
    if level == "bubblewrap":
        bound = [word.inside for word in bound_in(policy) if isinstance(word, Bind)]
        private = [*outside.scratch, *own]
    elif level == "landlock":
        if not policy.shared:  # else the workspace contains all of it
            bound = [str(policy.project / path) for path in sorted(policy.points) if path != ".fanfold"]
        private = ["$HOME", "$TMPDIR", *own]
    return VisiblePaths(
        at=str(policy.project if level == "bubblewrap" else policy.place),
        writes=not policy.read_only or not confined,
        network=policy.network or not confined,
        variables=tuple(sorted(policy.environment)),
        bound=tuple(bound),
        programs=tuple(str(path) for path in programs(policy, outside.hidden)) if confined else (),
        system=tuple(sorted(["/dev", "/proc", *outside.around(policy.project)])) if confined else ("/",),
        private=tuple(private),
        covered=tuple(covers(policy)),
    )
