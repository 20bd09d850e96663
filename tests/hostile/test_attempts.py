"""Attempts of every attacker, through the command line: none gets what it wants, and each is noticed.

Here each is tried for one victim at one level of the sandbox, chosen by its name; `make hostile` tries all of
them for root and for an ordinary user, at both levels.
"""

import os
import shutil
from zlib import crc32

import pytest

from fanfold.workspace.sandbox.levels import detect
from tests.hostile.attempt import Attempt, carry_out
from tests.hostile.attempts.repository import ATTEMPTS as REPOSITORY
from tests.hostile.worlds import NOBODY, Setting, World, installation, matches
from tools.tidy import ROOT

ATTACKERS: dict[str, tuple[Attempt, ...]] = {"repository": REPOSITORY}
USERS = ("root", "ordinary") if os.geteuid() == 0 else ("ordinary",)
LEVELS = ("bubblewrap", "landlock")


def settings(attempt: Attempt) -> list[Setting]:
    """In whose hands and at which levels something is tried."""
    levels = LEVELS if attempt.confined else LEVELS[:1]
    every = [Setting(user, level) for user in USERS for level in levels]
    if os.environ.get("HOSTILE") == "all":
        return every
    return [every[crc32(attempt.name.encode()) % len(every)]]


ROWS = [
    pytest.param(attempt, setting, id=f"{attacker}: {attempt.name} ({setting.user}, {setting.level})")
    for attacker, attempts in ATTACKERS.items()
    for attempt in attempts
    for setting in settings(attempt)
]


@pytest.mark.parametrize(("attempt", "setting"), ROWS)
def test_it_comes_to_nothing(attempt: Attempt, setting: Setting):
    if not getattr(detect(ROOT), setting.level).available:
        pytest.skip(f"no {setting.level} here")
    if (
        setting.user == "ordinary"
        and os.geteuid() == 0
        and not (shutil.which("setpriv") and installation(NOBODY))
    ):
        pytest.skip("no second user can be had here")
    world = World(setting)
    try:
        carry_out(attempt, world)
        assert matches(attempt.says, world.said), world.said
    finally:
        world.close()
