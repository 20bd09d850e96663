"""The sandbox policy of one command, for every level of the sandbox.

Rules
* Mounted project paths are relative to the project. The process that creates the sandbox opens them right
  before, without following links. So a folder that was replaced by a link does not exist inside.
* Of the machine, the command sees the paths of `Outside`, and the programs on its PATH in hidden folders.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path

import msgspec

from fanfold.errors import WorldError
from fanfold.project_files import Closing, write_whole

GIVEN = "FANFOLD_GIVEN_"
"""The prefix of a step's own variables until the sandbox is ready. With their real names, they would affect
the programs that create the sandbox and are not inside it yet."""


class ProcessLimits(msgspec.Struct, frozen=True):
    """Resource limits of a command and all its child processes."""

    max_processes: int = 512
    max_memory_bytes: int = 8 * 1024**3
    max_file_bytes: int = 2 * 1024**3
    max_open_files: int = 4_096
    max_scratch_bytes: int = 1024**3
    """The size of each private temporary folder."""


class Bind(msgspec.Struct, frozen=True):
    """A mount: the file or folder at `path` beneath `top` appears at `inside`. No link is followed."""

    inside: str
    top: str
    path: str = ""
    read_only: bool = True


class ExtraMounts(msgspec.Struct, frozen=True, kw_only=True):
    """Mounts of a command in addition to the programs on its PATH."""

    home: Path | None = None
    """The folder to mount as its home; with None, the home is empty and temporary."""
    also: tuple[Path, ...] = ()
    """Paths that it needs to read."""
    covered: tuple[str, ...] = ()
    """Project paths that are hidden from it; see `covers`."""
    connects: bool = False
    """Whether the command is started by the connector, which needs sockets; see `programs.connector`."""
    artifacts: Path | None = None
    """The folder for files that are kept next to the project."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox policy of one command, created by `Workspaces.policy`."""

    project: Path
    """The path of the workspace inside the sandbox."""
    workspace: Path
    """The path of the workspace for this process."""
    place: Path
    """The path of the workspace for a process inside `namespaces`."""
    scratch: Path
    """A private folder for files that a sandbox level needs outside."""
    namespaces: tuple[str, str] | None = None
    read_only: bool = False
    network: bool = False
    environment: Mapping[str, str] = {}
    points: Mapping[str, bool] = {}
    """Paths of the project tree that are mounted read-only; True for folders."""
    writable: tuple[str, ...] = ()
    """Those of `points` that a step in the project itself may change."""
    repositories: tuple[str, ...] = ()
    """Git folders of the project that are outside of it; mounted read-only at their own path."""
    path: str = os.defpath
    home: Path = Path("/nonexistent")
    rooms: ExtraMounts = ExtraMounts()
    limits: ProcessLimits = ProcessLimits()

    @property
    def shared(self) -> bool:
        """Whether the workspace is the project itself."""
        return self.place == self.project


def programs(policy: Policy, hidden: tuple[str, ...]) -> tuple[Path, ...]:
    """Return paths in hidden folders that programs need: PATH entries and the prefixes of their interpreters.

    Virtual environments of the project are included. The project may contain untrusted files. So a link that
    leads out of it is followed only to a real Python installation.
    """
    own = f"{policy.project}/"
    entries = [name for name in policy.path.split(":") if name.startswith("/") and not name.startswith(own)]
    entries += [f"{own}{point}/bin" for point in sorted(policy.points) if policy.points[point]]
    # A scan of a long PATH takes a tenth of a second. A new program changes the time of its folder.
    stamped: list[tuple[str, int]] = []
    for name in entries:
        with suppress(OSError):
            now = os.stat(name)
            if stat.S_ISDIR(now.st_mode):
                stamped.append((name, now.st_mtime_ns))
    return _programs(tuple(stamped), policy.home, policy.project, hidden)


@lru_cache(maxsize=16)
def _programs(
    entries: tuple[tuple[str, int], ...], home: Path, project: Path, hidden: tuple[str, ...]
) -> tuple[Path, ...]:
    found: list[Path] = []
    tried: set[Path] = set()
    below = tuple(f"{folder}/" for folder in hidden)

    def add(folder: Path) -> None:
        if folder in tried or not str(folder).startswith(below) or not folder.exists():
            return
        tried.add(folder)
        if home.is_relative_to(folder) or project.is_relative_to(folder):
            return  # a whole home folder is not a program, and the project is mounted separately
        if not any(folder.is_relative_to(one) for one in found) and len(found) < 256:
            found.append(folder)

    for name, _ in entries:
        entry = Path(name)
        trusted = not entry.is_relative_to(project)
        for folder in dict.fromkeys((entry, Path(os.path.realpath(entry)))) if trusted else ():
            add(folder)
            _add_prefix(folder.parent, add, trusted)
        links: list[str] = []
        with suppress(OSError), os.scandir(entry) as listing:
            links = [link.path for link in listing if link.is_symlink()][:500]
        for target in (Path(os.path.realpath(link)) for link in links):
            if target in tried or not str(target).startswith(below) or target.is_relative_to(project):
                continue
            if trusted or _is_python(target):
                add(target if trusted else target.parent)  # inside it, the link may lead through other links
                _add_prefix(target.parent.parent, add, trusted)
    # Drop paths inside another path of the result, which would be mounted twice.
    return tuple(one for one in found if not any(other in one.parents for other in found))


def _add_prefix(prefix: Path, add: Callable[[Path], None], trusted: bool) -> None:
    """Add the parts of an installation prefix that programs load from, and no other files of the user.

    If the user's PATH led here, the `home` of the virtual environment is added too. If the project led here,
    it is not: the path may be another checkout of the same author.
    """
    for part in ("lib", "lib64", "libexec", "include", "pyvenv.cfg"):
        add(prefix / part)
    config = prefix / "pyvenv.cfg"
    if trusted and config.is_file():
        for line in config.read_text(errors="replace").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "home":
                add(Path(value.strip()))
                _add_prefix(Path(value.strip()).parent, add, trusted)
    if prefix.name == ".cargo":
        add(prefix.parent / ".rustup" / "toolchains")
    if prefix.name == ".pyenv":
        for part in ("versions", "libexec", "version", "plugins"):
            add(prefix / part)


def _is_python(program: Path) -> bool:
    """Return whether a file is the interpreter of a Python installation; its name alone is not enough."""
    library = program.parent.parent / "lib"
    named = re.fullmatch(r"(python|pypy)[\d.]*t?", program.name) is not None
    return named and program.parent.name == "bin" and any(library.glob("p*/os.py"))


# -----------------------------------------------------------------------------------------------------------
# Visible paths of the machine, for every level of the sandbox
#
# Rules
# * Only the system's own folders are visible. Homes, temporary and run-time folders, data and all other
#   top-level folders are hidden. They may contain private files. Their sockets and pipes lead to programs
#   outside, even if the mount is read-only.
# * The visible paths are a list of names, and everything else is hidden. So a new top-level folder is hidden
#   too. The list must be read again only if `/` or `/var` has changed.

SYSTEM = frozenset("bin boot dev etc gnu lib lib32 lib64 libx32 nix opt proc sbin snap sys usr var".split())
"""The top-level folders of a system; all other folders there are hidden."""
VARIABLE = frozenset(("cache", "lib"))
"""The visible folders of /var: certificates, fonts and package databases that programs need."""
_MADE_ANEW = frozenset(("/dev", "/proc", "/var"))
"""Folders that the sandbox creates itself, or mounts in parts."""
_SCRATCH = ("/home", "/root", "/tmp", "/var/tmp", "/run")  # noqa: S108 - hidden, not used


class Outside(msgspec.Struct, frozen=True):
    """The visible and hidden paths of the machine; absolute and sorted."""

    seen: tuple[str, ...]
    """The system's own folders, and files next to them."""
    links: tuple[tuple[str, str], ...]
    """Links next to them, and their targets."""
    hidden: tuple[str, ...]
    """All other folders there, without folders inside each other."""
    scratch: tuple[str, ...]
    """Hidden folders in which programs expect to write: homes, temporary and run-time folders."""

    def around(self, project: Path) -> list[str]:
        """Return the visible paths without the project."""
        return [path for folder in self.seen for path in around(folder, [str(project)])]


def look_outside(home: Path) -> Outside:
    """Return the visible and hidden paths of the machine for a user with this home."""
    wanted = (str(home), os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 - hidden, not used
    return _look(tuple(os.path.realpath(name) for name in wanted if name), tuple(map(_stamp, ("/", "/var"))))


def _stamp(folder: str) -> tuple[int, ...]:
    """Return a value that changes when an entry of a folder is added, removed or replaced."""
    try:
        now = os.stat(folder)
    except OSError:
        return ()
    return now.st_dev, now.st_ino, now.st_mtime_ns, now.st_ctime_ns


@lru_cache(maxsize=4)
def _look(own: tuple[str, ...], stamps: tuple[tuple[int, ...], ...]) -> Outside:  # noqa: ARG001 - says when
    seen: list[str] = []
    links: list[tuple[str, str]] = []
    wanted = list(own)
    for top, shown in (("/", SYSTEM), ("/var", VARIABLE)):
        at_its_place = not os.path.islink(top)
        entries: list[os.DirEntry[str]] = []
        with suppress(FileNotFoundError), os.scandir(top) as listing:
            entries = list(listing)
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name not in shown:
                wanted.append(entry.path)
            if at_its_place and entry.is_symlink():
                links.append((entry.path, os.readlink(entry.path)))
            elif at_its_place and (entry.name in shown if is_folder else entry.is_file()):
                seen.append(entry.path)
    hidden: list[str] = []
    folders = {os.path.realpath(name) for name in wanted if os.path.isdir(name)}
    for name in sorted(folders, key=lambda name: name.split("/")):
        inside = hidden and is_within(name, hidden[-1])
        if (
            name != "/" and not inside and not _is_system(name)
        ):  # a top-level link may lead to a system folder
            hidden.append(name)
    real = {*own, *map(os.path.realpath, _SCRATCH)}
    scratch = tuple(folder for folder in hidden if any(is_within(name, folder) for name in real))
    return Outside(tuple(sorted({*seen} - _MADE_ANEW)), tuple(sorted(links)), tuple(hidden), scratch)


def is_within(path: str, folder: str) -> bool:
    """Return whether a path is a folder or lies below it; both are absolute and normalized.

    >>> is_within("/var/tmp", "/var"), is_within("/var", "/var"), is_within("/variable", "/var")
    (True, True, False)
    """
    return path == folder or path.startswith(folder if folder == "/" else f"{folder}/")


def _is_system(folder: str) -> bool:
    """Return whether hiding this folder would hide files that programs need.

    >>> _is_system("/usr/lib"), _is_system("/home"), _is_system("/var/tmp")
    (True, False, False)
    """
    names = folder.split("/")[1:]
    if names[0] == "var":
        return len(names) == 1 or names[1] in VARIABLE
    return names[0] in SYSTEM


def around(top: str, closed: list[str]) -> list[str]:
    """Return paths below `top` that together contain everything except the closed ones."""
    shut = [path for path in closed if is_within(path, top)]
    if not shut:
        return [top]
    found: list[str] = []
    try:
        with os.scandir(top) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        return []
    for entry in entries:
        path = entry.path
        if path in shut or entry.is_symlink():
            continue  # a link needs no rule; only the rules for its target apply
        found += around(path, shut)
    return found


# -----------------------------------------------------------------------------------------------------------
# Project files that are hidden from agents, because they configure what an agent runs
#
# Many agents start the servers, hooks or plugins that a file in their working folder names. If such a file
# came with the repository, the user did not choose it, and the agent has the user's credentials. So a file is
# covered by an empty one, and a folder by an empty folder. Only a mount can do that, and it cannot be placed
# on a link. If it is not possible, the agent is not started.


def covers(policy: Policy) -> dict[str, bool]:
    """Return the existing paths to cover, True for folders; raises for a link or a special file."""
    return _existing(policy.workspace, policy.rooms.covered)


def _existing(top: Path, names: Iterable[str]) -> dict[str, bool]:
    return {name: kind for name in names if (kind := _kind(top, name)) is not None}


def check_level(level: str, policy: Policy) -> None:
    """Raise `WorldError` if this level cannot hide paths that must be covered."""
    check_brought(level, policy.workspace, policy.rooms.covered)


def check_brought(level: str, top: Path, names: Iterable[str]) -> None:
    """Raise `WorldError` if one of these paths exists below a folder, and this level cannot hide it."""
    there = list(_existing(top, names))
    if there and level != "bubblewrap":
        message = (
            f"this project brings {', '.join(there)}, which the agent would obey and {level} cannot hide"
        )
        hint = f"remove it, or if you trust what is in there: {ALLOW}"
        raise WorldError("sandbox.insufficient", message, hint=hint)


def cover_arguments(policy: Policy, sized: list[str]) -> list[str]:
    """Return bubblewrap's arguments for covered paths; folders are temporary, writable and `sized`."""
    found: list[str] = []
    for name, is_folder in covers(policy).items():
        inside = str(policy.project / name)
        if is_folder:
            found += [*sized, "--tmpfs", inside]
            continue
        data = b"{}\n" if name.endswith((".json", ".jsonc")) else b""  # a file without settings
        file = policy.scratch / f"nothing-{len(data)}"
        if not file.exists():
            write_whole(file, data)
        found += ["--ro-bind", str(file), inside]
    return found


ALLOW = (
    "write brought = [] below [state] into the agent's file in the folder backends of FANFOLD_HOME"
    " (~/.fanfold where that is not set), or accept it for one run with --unsafe-no-sandbox"
)


def _kind(top: Path, path: str) -> bool | None:
    """Return True for a folder, False for a file, None if the path does not exist; raises for a link."""
    here = top
    names = path.split("/")
    for number, name in enumerate(names, 1):
        here /= name
        try:
            mode = os.lstat(here).st_mode
        except OSError:
            return None
        if stat.S_ISDIR(mode):
            continue
        if stat.S_ISREG(mode) and number == len(names):
            return False
        if stat.S_ISREG(mode):
            return None  # a file in place of a folder
        message = f"{path} of this project is a link, and the agent would obey what is behind it"
        hint = f"remove it, or if you trust what is in there: {ALLOW}"
        raise WorldError("agent.brought_link", message, hint=hint)
    return True


# -----------------------------------------------------------------------------------------------------------
# Cgroups that limit the number of processes and the memory of a whole process tree
#
# Only root can create them, and only if the controllers are mounted. Otherwise `make_group` returns an
# empty group. A group is removed after its last process has ended, by `remove` or by the next
# `sweep_groups`. Its name contains the pid namespace of its creator, because a process of another namespace
# looks dead.

_TOP = Path("/sys/fs/cgroup")
_PREFIX = "fanfold-"


class Group:
    """The cgroup folders of one launch; empty if there are no cgroups."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders

    @property
    def entrances(self) -> list[str]:
        """The files into which a process writes `0` to join."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def remove(self) -> bool:
        """Remove the folders; return whether none is left."""
        left = []
        for folder in self.folders:
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                left.append(folder)  # a process is still ending
        self.folders = left
        return not left


def make_group(max_processes: int, max_memory_bytes: int) -> Group:
    """Create a group with these limits, as far as this machine supports them."""
    made: list[Path] = []
    for parent, limits in _places(max_processes, max_memory_bytes):
        folder = parent / f"{_prefix()}{os.getpid()}-{os.urandom(4).hex()}"
        try:
            os.mkdir(folder)
        except OSError:
            continue
        try:
            for file, value in limits.items():
                with Closing(os.open(f"{folder}/{file}", os.O_WRONLY | os.O_CLOEXEC)) as handle:
                    os.write(handle, b"%d" % value)
            made.append(folder)
        except OSError:
            os.rmdir(folder)
    return Group(made)


def limits_processes() -> bool:
    """Return whether a group can limit the number of processes."""
    group = make_group(64, 0)
    useful = any((folder / "pids.max").exists() for folder in group.folders)
    group.remove()
    return useful


def sweep_groups() -> None:
    """Remove empty groups that dead processes left."""
    for parent, _ in _places(1, 1):
        for folder in parent.glob(f"{_prefix()}*"):
            pid = folder.name.removeprefix(_prefix()).partition("-")[0]
            if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                Group([folder]).remove()


def _prefix() -> str:
    return f"{_PREFIX}{os.stat('/proc/self/ns/pid').st_ino}-"


def _places(max_processes: int, max_memory_bytes: int) -> list[tuple[Path, dict[str, int]]]:
    """Return the parent folders for groups by controller; the unified hierarchy has one for all."""
    if os.geteuid() != 0:
        return []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    pids = {"pids.max": max_processes}
    found: list[tuple[Path, dict[str, int]]] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "pids" in controllers.split(","):
            found.append((_TOP / "pids" / path.lstrip("/"), pids))
        elif "memory" in controllers.split(",") and max_memory_bytes:
            limits = {"memory.limit_in_bytes": max_memory_bytes}
            found.append((_TOP / "memory" / path.lstrip("/"), limits))
        elif not controllers and not found and (_TOP / "cgroup.controllers").exists():
            place = _TOP / path.lstrip("/")
            found.append((place, pids | ({"memory.max": max_memory_bytes} if max_memory_bytes else {})))
    return found


# -----------------------------------------------------------------------------------------------------------
# The system-call filter of the sandbox, assembled without a library
#
# Rules
# * The filter lists denied calls, not allowed ones, because all kinds of programs run inside. It denies calls
#   that change the system: mounts, namespaces, modules, keys, clocks, io_uring (which bypasses filters),
#   input into a terminal, and all but the common socket families. AF_VSOCK would reach a hypervisor past any
#   network namespace. It also denies calls that act on a file that is only open for reading, and so on files
#   of the system and of the user. These are attributes (flags, generation), folder notifications by signals
#   (dnotify), and leases, which delay the next process that opens it.
# * Some effects would outlive the program in a workspace that is the project itself. So no file gets a
#   set-user-id or set-group-id bit, and extended attributes are not supported. `openat2` hides the mode of a
#   new file from filters, so it does not exist inside.
# * `clone3` hides its flags from filters, so it does not exist inside; programs fall back to `clone`.
# * Landlock alone has no mounts. Then the filter also denies changes of modes and owners (Landlock does not
#   check these), IPC that is shared with the outside, folder watches, and sockets in the file system. Socket
#   pairs are allowed if they can only reach each other. A datagram socket of a pair could send to any named
#   socket.

_LOAD, _JEQ, _JGE, _JSET, _RETURN, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_NUMBER, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24
_SET_ID = 0o6000
_CREATES = os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY)
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NEW_NAMESPACES = 0x7E020000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_X32 = 0x40000000
_SOCKET_KIND = 0xF
_PAIRED = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
_KIND = 0xC000FF00
_SETS_ATTRIBUTES = tuple(0x40000000 | kind << 8 for kind in (0x66, 0x58, 0x76, 0x94, 0xF5, 0xBC))
"""ioctl requests that set attributes of a file (immutable, generation …) or change volumes of a disk, by file
system. Landlock allows them for every readable file."""
_ENCRYPTS = 0x800C6613
_CLONES = (0x40049409, 0x4020940D)
"""ioctl requests that clone blocks; allowed, because the target is open for writing."""
_ACTS_ON_OTHERS = (1024, 1026, 1040)
"""Denied fcntl requests: F_SETLEASE, F_NOTIFY, F_SETDELEG."""

_SINCE_5 = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435,
    "openat2": 437, "pidfd_getfd": 438, "mount_setattr": 442, "quotactl_fd": 443, "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466, "file_setattr": 469,
}  # fmt: skip
_X86_64 = {
    "socket": 41, "socketpair": 53, "clone": 56, "ioctl": 16, "fcntl": 72, "mount": 165, "umount2": 166,
    "open": 2, "creat": 85, "openat": 257, "mknod": 133, "mknodat": 259,
    "pivot_root": 155, "chroot": 161,
    "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172,
    "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179, "nfsservctl": 180, "acct": 163,
    "settimeofday": 164, "adjtimex": 159, "clock_settime": 227, "clock_adjtime": 305, "kexec_load": 246,
    "kexec_file_load": 320, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "setns": 308,
    "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304,
    "finit_module": 313, "bpf": 321, "userfaultfd": 323, "syslog": 103, "vhangup": 153, "kcmp": 312,
    "lookup_dcookie": 212, "uselib": 134, "_sysctl": 156, "chmod": 90, "fchmod": 91, "fchmodat": 268,
    "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260, "setxattr": 188, "lsetxattr": 189,
    "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "shmget": 29,
    "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66, "semtimedop": 220, "msgget": 68,
    "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240, "mq_unlink": 241, "prlimit64": 302,
    "sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setparam": 142, "sched_setattr": 314,
    "setpriority": 141, "ioprio_set": 251, "migrate_pages": 256, "move_pages": 279, "inotify_add_watch": 254,
}  # fmt: skip
_AARCH64 = {
    "socket": 198, "socketpair": 199, "clone": 220, "ioctl": 29, "fcntl": 25, "mount": 40, "umount2": 39,
    "openat": 56, "mknodat": 33,
    "pivot_root": 41, "chroot": 51,
    "swapon": 224, "swapoff": 225, "reboot": 142, "sethostname": 161, "setdomainname": 162,
    "init_module": 105, "delete_module": 106, "quotactl": 60, "nfsservctl": 42, "acct": 89,
    "settimeofday": 170, "adjtimex": 171, "clock_settime": 112, "clock_adjtime": 266, "kexec_load": 104,
    "kexec_file_load": 294, "add_key": 217, "request_key": 218, "keyctl": 219, "unshare": 97, "setns": 268,
    "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265,
    "finit_module": 273, "bpf": 280, "userfaultfd": 282, "syslog": 116, "vhangup": 58, "kcmp": 272,
    "lookup_dcookie": 18, "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "setxattr": 5,
    "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
    "shmget": 194, "shmctl": 195, "shmat": 196, "semget": 190, "semctl": 191, "semtimedop": 192,
    "semop": 193, "msgget": 186, "msgctl": 187, "msgrcv": 188, "msgsnd": 189, "mq_open": 180,
    "mq_unlink": 181, "prlimit64": 261, "sched_setaffinity": 122, "sched_setscheduler": 119,
    "sched_setparam": 118, "sched_setattr": 274, "setpriority": 140, "ioprio_set": 30, "migrate_pages": 238,
    "move_pages": 239, "inotify_add_watch": 27,
}  # fmt: skip
_MACHINES: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "x86_64": (0xC000003E, _X86_64),
    "aarch64": (0xC00000B7, _AARCH64),
}
_ABSENT = ("clone3", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register")
_SETS_MODE = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}
"""Calls that set the mode of a file, with the index of the argument. The calls in `_OPENS` do so only for a
new file."""
_OPENS = {"open": 2, "openat": 3}
_UNSUPPORTED = tuple(f"{what}{call}" for what in ("set", "remove") for call in ("xattr", "xattrat")) + tuple(
    f"{kind}{what}xattr" for kind in "lf" for what in ("set", "remove")
)
_OF_OTHERS = {
    "prlimit64": 0, "sched_setaffinity": 0, "sched_setscheduler": 0, "sched_setparam": 0, "sched_setattr": 0,
    "migrate_pages": 0, "move_pages": 0, "setpriority": 1, "ioprio_set": 1,
}  # fmt: skip
"""Calls that change another process of the same user, with the index of the argument that names it. Without a
pid namespace, only 0 (the process itself) is allowed."""
_SPECIAL = ("socket", "socketpair", "clone", "ioctl", "fcntl", *_ABSENT, *_UNSUPPORTED, *_OPENS, *_OF_OTHERS)
_LANDLOCK_ONLY = frozenset(
    """chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat shmget shmat shmctl semget semop semctl
    semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink inotify_add_watch""".split()
)


def has_call_filter() -> bool:
    """Return whether the system calls of this processor are known."""
    return platform.machine() in _MACHINES


@cache
def assemble_call_filter(*, alone: bool, network: bool) -> bytes:
    """Return the filter in the kernel's format; `alone` if there are no namespaces."""
    arch, own = _MACHINES[platform.machine()]
    numbers = {**own, **_SINCE_5}
    families = [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK]
    if alone:
        families = families[1:] if network else []
    code = [(_LOAD, 0, 0, _ARCH), (_JEQ, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    if platform.machine() == "x86_64":
        code += [(_JGE, 0, 1, _X32), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for name, number in numbers.items():
        if name in _LANDLOCK_ONLY and not alone and name not in _SETS_MODE:
            continue
        if name in _SETS_MODE and not (alone and name in _LANDLOCK_ONLY):
            code += _case(
                number, _ARG0 + 8 * _SETS_MODE[name], [(_JSET, 0, 1, _SET_ID), *_refuse(errno.EPERM)]
            )
        elif name in _OPENS:
            place = _ARG0 + 8 * _OPENS[name]
            making = [(_LOAD, 0, 0, place - 8), (_JSET, 0, 1, _CREATES), *_refuse(errno.EPERM)]
            code += _case(number, place, [(_JSET, 0, len(making), _SET_ID), *making])
        elif name in _UNSUPPORTED:
            code += [(_JEQ, 0, 1, number), *_refuse(errno.EOPNOTSUPP)]
        elif name in _ABSENT:
            code += [(_JEQ, 0, 1, number), *_refuse(errno.ENOSYS)]
        elif name not in _SPECIAL:
            code += [(_JEQ, 0, 1, number), *_refuse(errno.EPERM)]
    code += _case(numbers["clone"], _ARG0, [(_JSET, 0, 1, _NEW_NAMESPACES), *_refuse(errno.EPERM)])
    typing = [
        line
        for command in (_TIOCSTI, _TIOCLINUX, _ENCRYPTS)
        for line in ((_JEQ, 0, 1, command), *_refuse(errno.EPERM))
    ]
    cloning = [line for command in _CLONES for line in ((_JEQ, 0, 1, command), (_RETURN, 0, 0, _ALLOW))]
    marking = [
        (_AND, 0, 0, _KIND),
        *(line for kind in _SETS_ATTRIBUTES for line in ((_JEQ, 0, 1, kind), *_refuse(errno.EPERM))),
    ]
    code += _case(numbers["ioctl"], _ARG1, [*typing, *cloning, *marking])
    leasing = [line for command in _ACTS_ON_OTHERS for line in ((_JEQ, 0, 1, command), *_refuse(errno.EPERM))]
    code += _case(numbers["fcntl"], _ARG1, leasing)
    allowed = [line for family in families for line in ((_JEQ, 0, 1, int(family)), (_RETURN, 0, 0, _ALLOW))]
    code += _case(numbers["socket"], _ARG0, [*allowed, *_refuse(errno.EPERM)])
    if alone:
        paired = [line for kind in _PAIRED for line in ((_JEQ, 0, 1, int(kind)), (_RETURN, 0, 0, _ALLOW))]
        code += _case(
            numbers["socketpair"], _ARG1, [(_AND, 0, 0, _SOCKET_KIND), *paired, *_refuse(errno.EPERM)]
        )
        for name, argument in _OF_OTHERS.items():
            body = [(_JEQ, 1, 0, 0), *_refuse(errno.EPERM)]
            code += _case(numbers[name], _ARG0 + 8 * argument, body)
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in code)


def _refuse(number: int) -> list[tuple[int, int, int, int]]:
    return [(_RETURN, 0, 0, _ERRNO | number)]


def _case(
    number: int, argument: int, body: list[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int]]:
    """Return code that checks an argument of one system call; what `body` does not decide is allowed."""
    whole = [(_LOAD, 0, 0, argument), *body, (_RETURN, 0, 0, _ALLOW)]
    return [(_JEQ, 0, len(whole), number), *whole]
