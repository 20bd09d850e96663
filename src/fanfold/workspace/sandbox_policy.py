"""The sandbox policy of one command, for every level of the sandbox.

Rules
* Mounted project paths are relative to the project. The process that creates the sandbox opens them right
  before, without following links. So a folder that was replaced by a link does not exist inside.
* Of the machine, the command sees the paths of `Outside`, and the programs on its PATH in hidden folders.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from fanfold.errors import WorldError
from fanfold.project_files import write_whole

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
        return [path for one in self.seen for path in around(one, [str(project)])]


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
    """Return paths below `top` that together contain everything except the closed ones.

    A folder that contains a closed path is replaced by its entries.
    """
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


def words(policy: Policy, sized: list[str]) -> list[str]:
    """Return bubblewrap's arguments for the covered paths; `sized` limits the size of a folder.

    Some agents write into an existing folder, and fail if they cannot. Such files are temporary.
    """
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
    " (~/.fanfold where that is not set)"
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
