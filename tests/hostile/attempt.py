"""What an attempt is: something hostile put in place, commands of the victim, and how it is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.hostile.worlds import World

RUN = ("run", "one.yaml", "--script", "script.yaml", "--yes")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One row. `says` is found in what the commands print: an attempt that nobody noticed proves nothing."""

    name: str
    commands: tuple[tuple[str, ...], ...] = (RUN,)
    says: str
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    plant: Callable[[World], None] | None = None
    after: Callable[[World], None] | None = None
    """What must hold besides, or what the attacker does when the victim is done."""
    environment: Mapping[str, str] = field(default_factory=dict)
    behind: tuple[str, ...] = ()
    """A program that starts the victim's commands."""
    confined: bool = False
    """A program runs in the sandbox, so that both levels are tried."""
    only_as_root: bool = False
    """Needs a second user."""


def carry_out(attempt: Attempt, world: World) -> None:
    """Put it in place, let the victim do what they do, and see that nothing came of it."""
    world.write(world.project, attempt.files)
    world.link(attempt.links)
    if attempt.plant is not None:
        attempt.plant(world)
    world.own()
    for arguments in attempt.commands:
        given = {name: world.filled(value) for name, value in attempt.environment.items()}
        world.fanfold(*arguments, behind=attempt.behind, **given)
    if attempt.after is not None:
        attempt.after(world)
    world.check()
