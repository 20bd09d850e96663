"""What a program in its sandbox can see and change at most: the list that the log keeps of every such step.

Made from the policy and the functions that the levels themselves are made from. "At most", because what turns
out to be a link, or is gone, when the sandbox is put in place is not there inside.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from fanfold.workspace.artifacts import VARIABLE
from fanfold.workspace.sandbox import bubblewrap, landlock
from fanfold.workspace.sandbox.covered import covers
from fanfold.workspace.sandbox.policy import Bind, Policy, programs, scratch_folders


class Sight(Struct, frozen=True, kw_only=True):
    """Paths as they are inside."""

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


def sight(level: str, policy: Policy, hidden: list[Path]) -> Sight:
    """What a program sees that is started under a policy at a level."""
    confined = level != "unsafe"
    return Sight(
        at=str(policy.project if level == "bubblewrap" else policy.place),
        writes=not policy.read_only or not confined,
        network=policy.network or not confined,
        variables=tuple(sorted(policy.environment)),
        bound=tuple(_bound(level, policy)),
        programs=tuple(str(path) for path in programs(policy, hidden)) if confined else (),
        system=tuple(landlock.around(Path("/"), [*hidden, policy.project])) if confined else ("/",),
        private=tuple(_private(level, policy, hidden)),
        covered=tuple(covers(policy)),
    )


def _bound(level: str, policy: Policy) -> list[str]:
    if level == "bubblewrap":
        return [word.inside for word in bubblewrap.bound_in(policy) if isinstance(word, Bind)]
    if level == "unsafe" or policy.shared:
        return []  # all of it is in the workspace
    return [str(policy.project / path) for path in sorted(policy.points) if path != ".fanfold"]


def _private(level: str, policy: Policy, hidden: list[Path]) -> list[str]:
    own = [f"${VARIABLE}"] if policy.rooms.artifacts is not None and level != "unsafe" else []
    if level == "bubblewrap":
        return [*map(str, scratch_folders(policy, hidden)), *own]
    return ["$HOME", "$TMPDIR", *own] if level == "landlock" else []
