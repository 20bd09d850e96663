"""The sandbox: how a command is started so that it sees and changes only what its step may.

    levels = detect(project)                       # what this machine can give; `doctor` prints it
    level = choose_level(levels)                   # refuses when there is nothing, unless told `unsafe`
    launch = plan_sandbox(level, spaces.policy(child, ...))
    ... run launch.command([...]) with launch.environment in launch.cwd ...
    launch.close()                                 # when its last process is gone

Rules
* Bubblewrap first: own namespaces, the workspace at the project's own path, all else read-only or empty.
  Landlock and seccomp second. Nothing third: the command is refused unless the user asked for `unsafe`.
* Both fail closed: what cannot be put in place ends the command before it began.
* A plan holds no secret: the environment's values travel in the environment, its names in the plan.
* What is bound in is opened by the launcher, beneath a folder and without following links, and handed over by
  its handle; what is a link by then, or gone, is not there inside.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias, cast

from msgspec import Struct, to_builtins

from fanfold.errors import EXIT_PERMISSION, WorldError
from fanfold.workspace.artifacts import INSIDE, VARIABLE
from fanfold.workspace.files import trash
from fanfold.workspace.sandbox import bubblewrap, cgroups, landlock, launcher, seccomp
from fanfold.workspace.sandbox.covered import covers
from fanfold.workspace.sandbox.levels import Levels
from fanfold.workspace.sandbox.outside import Outside, look_outside
from fanfold.workspace.sandbox.policy import GIVEN, Bind, Policy, programs

LevelName: TypeAlias = Literal["bubblewrap", "landlock", "unsafe"]
_ENVIRONMENT = [
    "PATH",
    "HOME",
    "LANG",
    "LC_*",
    "TERM",
    "TZ",
    "TMPDIR",
    "FANFOLD_SESSION",
]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Launch:
    """A planned start; used once."""

    def __init__(
        self,
        level: LevelName,
        prefix: list[str],
        policy: Policy,
        group: cgroups.Group,
        scratch: Path | None,
        seen: Sight,
    ) -> None:
        self.level: LevelName = level
        self.cwd = str(policy.workspace) if policy.namespaces is None else str(policy.project)
        """Where the process that is started stands; the command itself stands in its workspace."""
        self.environment = {f"{GIVEN}{name}": value for name, value in policy.environment.items()}
        """To be added to what the caller passes on; nothing else gets through."""
        self.sight = seen
        """What the command can see and change at most; for the log."""
        self._prefix = prefix
        self._group = group
        self._scratch = scratch
        self._trash = policy.scratch.parent / "trash"

    def command(self, argv: Sequence[str]) -> list[str]:
        """The whole command line."""
        return [*self._prefix, *argv]

    @property
    def has_files(self) -> bool:
        """Whether closing it deletes files, which may take a while."""
        return self._scratch is not None

    def close(self) -> bool:
        """Remove what the launch needed outside; whether nothing is left. May be called again."""
        if self._scratch is not None:
            trash.let_be_removed(self._scratch)
            trash.throw_away(self._scratch, self._trash)
            self._scratch = None
        return self._group.remove()


def choose_level(levels: Levels, *, unsafe: bool = False) -> LevelName:
    """The strongest level this machine gives; raises when there is none and `unsafe` was not asked for."""
    if levels.bubblewrap.available:
        return "bubblewrap"
    if levels.landlock.available:
        return "landlock"
    if unsafe:
        return "unsafe"
    why = f"bubblewrap: {levels.bubblewrap.why}; Landlock: {levels.landlock.why}"
    raise WorldError(
        "sandbox.unavailable",
        f"commands cannot be confined on this machine ({why})",
        hint="install bubblewrap, or accept the risk with --unsafe-no-sandbox",
        exit_status=EXIT_PERMISSION,
    )


def plan_sandbox(level: LevelName, policy: Policy) -> Launch:
    """How to start a command under a policy at a level."""
    for name in policy.environment:
        if not _VARIABLE.fullmatch(name):
            message = f"{name!r} cannot be the name of a variable"
            raise WorldError("sandbox.bad_variable", message, hint="use letters, digits and _")
    spec: dict[str, object] = {
        "cgroups": [],
        "namespaces": list(policy.namespaces or ()),
        "limits": {},
        "filter": "",
        "wrapper": [],
        "by_handle": level == "bubblewrap" and bubblewrap.takes_handles(policy.project),
        "place": str(policy.place),
        "cwd": "",
        "drop": False,
        "rules": None,
        "environment": _ENVIRONMENT,
        "given": GIVEN,
        "set": {},
    }
    outside = look_outside(policy.home)
    group = cgroups.Group([])
    scratch: Path | None = None
    if level != "unsafe":
        limits = policy.limits
        group = cgroups.make(limits.max_processes, limits.max_memory_bytes)
        spec["cgroups"] = group.entrances
        spec["limits"] = {
            "NPROC": limits.max_processes,
            "DATA": limits.max_memory_bytes,
            "FSIZE": limits.max_file_bytes,
            "NOFILE": limits.max_open_files,
            "CORE": 0,
        }
    if level == "bubblewrap":
        spec["wrapper"] = bubblewrap.arguments(policy, outside)
        if seccomp.is_available():
            code = seccomp.assemble(alone=False, network=policy.network)
            spec["filter"] = base64.b64encode(code).decode()
        spec["rules"] = landlock.scope_only()
        spec["set"] = {"HOME": str(policy.home), "TMPDIR": "/tmp"}  # noqa: S108 - private inside
    elif level == "landlock":
        scratch = landlock.make_scratch(policy)
        code = seccomp.assemble(alone=True, network=policy.network)
        spec["filter"] = base64.b64encode(code).decode()
        spec["rules"] = landlock.rules(policy, scratch, outside)
        spec["drop"] = True
        spec["cwd"] = str(policy.place)
        spec["set"] = landlock.environment(policy, scratch)
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


class Sight(Struct, frozen=True, kw_only=True):
    """What a program in its sandbox can see and change at most; paths as they are inside.

    Made from the policy and the functions that the levels themselves are made from. "At most", because what
    turns out to be a link, or is gone, when the sandbox is put in place is not there inside.
    """

    at: str
    """Where the workspace is."""
    writes: bool
    """Whether it may be written."""
    network: bool
    variables: tuple[str, ...]
    """The variables that its step gives it, by name."""
    bound: tuple[str, ...]
    """What of the project and its repository is there besides, read-only."""
    programs: tuple[str, ...]
    """What of homes and other hidden places is there because PATH leads to it, read-only."""
    system: tuple[str, ...]
    """What of the machine is there, read-only. Everything else is hidden."""
    private: tuple[str, ...]
    """What is writable and its own; gone afterwards, but for what it publishes."""
    covered: tuple[str, ...] = ()
    """What of the project is empty for it, because it would obey what is in there."""


def sight(level: str, policy: Policy, outside: Outside) -> Sight:
    """What a program sees that is started under a policy at a level."""
    confined = level != "unsafe"
    return Sight(
        at=str(policy.project if level == "bubblewrap" else policy.place),
        writes=not policy.read_only or not confined,
        network=policy.network or not confined,
        variables=tuple(sorted(policy.environment)),
        bound=tuple(_bound(level, policy)),
        programs=tuple(str(path) for path in programs(policy, outside.hidden)) if confined else (),
        system=tuple(sorted(["/dev", "/proc", *outside.around(policy.project)])) if confined else ("/",),
        private=tuple(_private(level, policy, outside)),
        covered=tuple(covers(policy)),
    )


def _bound(level: str, policy: Policy) -> list[str]:
    if level == "bubblewrap":
        return [word.inside for word in bubblewrap.bound_in(policy) if isinstance(word, Bind)]
    if level == "unsafe" or policy.shared:
        return []  # all of it is in the workspace
    return [str(policy.project / path) for path in sorted(policy.points) if path != ".fanfold"]


def _private(level: str, policy: Policy, outside: Outside) -> list[str]:
    own = [f"${VARIABLE}"] if policy.rooms.artifacts is not None and level != "unsafe" else []
    if level == "bubblewrap":
        return [*outside.scratch, *own]
    return ["$HOME", "$TMPDIR", *own] if level == "landlock" else []
