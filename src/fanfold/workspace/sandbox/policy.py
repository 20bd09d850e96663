"""What one command may see and do: the sandbox's input, whatever level carries it out.

Rules
* What of the project is bound in is named beneath the project and opened so, no link followed, by the process
  that makes the sandbox, right before it does: a folder that somebody replaced by a link is not there.
* Of the machine it sees what `outside` says, and of what is hidden there the programs on its PATH.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

GIVEN = "FANFOLD_GIVEN_"
"""What a step's own variables are called on their way in. Under their real names they would be variables of
the programs that make the sandbox, which are not in it yet."""


class ProcessLimits(msgspec.Struct, frozen=True):
    """What a command and all it starts may use."""

    max_processes: int = 512
    max_memory_bytes: int = 8 * 1024**3
    max_file_bytes: int = 2 * 1024**3
    max_open_files: int = 4_096
    max_scratch_bytes: int = 1024**3
    """Of each private temporary folder."""


class Bind(msgspec.Struct, frozen=True):
    """Something that appears inside: what is at `path` beneath the folder `top`, no link followed."""

    inside: str
    top: str
    path: str = ""
    read_only: bool = True


class Rooms(msgspec.Struct, frozen=True, kw_only=True):
    """What a command has of hidden folders beyond the programs on its PATH."""

    home: Path | None = None
    """What is kept in its home; None: nothing, it is empty and gone afterwards."""
    also: tuple[Path, ...] = ()
    """What it needs to see, read-only."""
    covered: tuple[str, ...] = ()
    """What of the project it does not see; see `covered`."""
    artifacts: Path | None = None
    """Where it may leave files that are kept beside the project."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One command's confines. Made by `Workspaces.policy`."""

    project: Path
    """Where the workspace appears inside."""
    workspace: Path
    """Its files, as this process reaches them."""
    place: Path
    """Its files, as a process inside `namespaces` reaches them."""
    scratch: Path
    """A private folder of ours for what a level needs outside."""
    namespaces: tuple[str, str] | None = None
    read_only: bool = False
    network: bool = False
    environment: Mapping[str, str] = {}
    points: Mapping[str, bool] = {}
    """What is bound in read-only from the parent, True for folders."""
    repositories: tuple[str, ...] = ()
    """Folders of git's outside the project that belong to it: bound in read-only where they are."""
    path: str = os.defpath
    home: Path = Path("/nonexistent")
    rooms: Rooms = Rooms()
    limits: ProcessLimits = ProcessLimits()

    @property
    def shared(self) -> bool:
        """Whether the workspace is the project itself."""
        return self.place == self.project


def programs(policy: Policy, hidden: tuple[str, ...]) -> tuple[Path, ...]:
    """What of hidden folders is needed to run programs: PATH entries and their interpreters' prefixes.

    Virtual environments of the project count too. The project may be somebody else's work, so of these only
    what really is an installation of Python is followed out of it.
    """
    own = f"{policy.project}/"
    entries = [name for name in policy.path.split(":") if name.startswith("/") and not name.startswith(own)]
    entries += [f"{own}{point}/bin" for point in sorted(policy.points) if policy.points[point]]
    # Looking takes a tenth of a second where PATH is long; a new program changes its folder's time.
    return _programs(tuple(_stamped(entries)), policy.home, policy.project, hidden)


def _stamped(folders: Sequence[str]) -> Iterator[tuple[str, int]]:
    for name in folders:
        try:
            now = os.stat(name)
        except OSError:
            continue
        if stat.S_ISDIR(now.st_mode):
            yield name, now.st_mtime_ns


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
            return  # a whole home is no program, and the project has its own place
        if not any(folder.is_relative_to(one) for one in found) and len(found) < 256:
            found.append(folder)

    for name, _ in entries:
        entry = Path(name)
        trusted = not entry.is_relative_to(project)
        for folder in dict.fromkeys((entry, Path(os.path.realpath(entry)))) if trusted else ():
            add(folder)
            _add_prefix(folder.parent, add, trusted)
        for target in _targets(entry):
            if target in tried or not str(target).startswith(below) or target.is_relative_to(project):
                continue
            if trusted or _is_python(target):
                add(target if trusted else target.parent)  # there the link may lead through other links
                _add_prefix(target.parent.parent, add, trusted)
    # What was found before the folder around it would be bound in twice.
    return tuple(one for one in found if not any(other in one.parents for other in found))


def _add_prefix(prefix: Path, add: Callable[[Path], None], trusted: bool) -> None:
    """The parts of an installation prefix that programs load from; not what else people keep beside them.

    Where the user's PATH led here, what its virtual environment calls home counts too. Where the project led
    here it does not: the place may be another checkout of whoever wrote this one.
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
    """Whether a file is the interpreter of an installation, whatever its name claims."""
    library = program.parent.parent / "lib"
    named = re.fullmatch(r"(python|pypy)[\d.]*t?", program.name) is not None
    return named and program.parent.name == "bin" and any(library.glob("p*/os.py"))


def _targets(folder: Path) -> list[Path]:
    """Where the links of a PATH entry really lead."""
    try:
        with os.scandir(folder) as listing:
            links = [entry.path for entry in listing if entry.is_symlink()][:500]
    except OSError:
        return []
    return [Path(os.path.realpath(link)) for link in links]
