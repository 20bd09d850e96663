"""Attempts of every attacker, through the command line: none gets what it wants, and each is noticed.

Here one in seven of each attacker's is tried, for one victim at one level of the sandbox, chosen by its name.
`make hostile` tries all, for root and for an ordinary user, and at both levels what a sandbox decides.
HOSTILE_SEED=1 chooses others; HOSTILE=all with words of a name after `-k` tries one for everybody.
"""

import os
import shutil
from zlib import crc32

import pytest

from fanfold.workspace.sandbox import detect
from tests.hostile.attempt import Attempt, carry_out
from tests.hostile.attempts.ignored import ATTEMPTS as IGNORED
from tests.hostile.attempts.local_user import ATTEMPTS as LOCAL_USER
from tests.hostile.attempts.model import ATTEMPTS as MODEL
from tests.hostile.attempts.recipe import ATTEMPTS as RECIPE
from tests.hostile.attempts.repository import ATTEMPTS as REPOSITORY
from tests.hostile.attempts.role import ATTEMPTS as ROLE
from tests.hostile.attempts.server import ATTEMPTS as SERVER
from tests.hostile.attempts.shared import ATTEMPTS as SHARED
from tests.hostile.worlds import NOBODY, Setting, World, installation, matches
from tests.levels import needs
from tools.tidy import ROOT

pytestmark = pytest.mark.full

ATTACKERS: dict[str, tuple[Attempt, ...]] = {
    "repository": REPOSITORY,
    "recipe": RECIPE,
    "role file": ROLE,
    "model": MODEL,
    "server or page": SERVER,
    "local user": LOCAL_USER,
    "shared program": SHARED,
    "program in ignored folders": IGNORED,
}
USERS = ("root", "ordinary") if os.geteuid() == 0 else ("ordinary",)
LEVELS = ("bubblewrap", "landlock")
SAMPLED = 7
ALL = os.environ.get("HOSTILE") == "all"


def chance(attempt: Attempt) -> int:
    """A number that an attempt has by its name and the seed."""
    return crc32(f"{os.environ.get('HOSTILE_SEED', '0')} {attempt.name}".encode())


def tried(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """Of one attacker's attempts those that are tried this time, in their order."""
    drawn = sorted(attempts, key=chance)[: -(-len(attempts) // SAMPLED)]
    return attempts if ALL else tuple(one for one in attempts if one in drawn)


def every_setting(attempt: Attempt) -> list[Setting]:
    """In whose hands and at which levels something is tried."""
    levels = LEVELS if attempt.confined else LEVELS[:1]
    return [Setting(user, level) for user in USERS for level in levels]


def settings(attempt: Attempt) -> list[Setting]:
    """Those that are tried this time."""
    every = every_setting(attempt)
    return every if ALL else [every[chance(attempt) % len(every)]]


ROWS = [
    pytest.param(attempt, setting, id=f"{attacker}: {attempt.name} ({setting.user}, {setting.level})")
    for attacker, attempts in ATTACKERS.items()
    for attempt in tried(attempts)
    for setting in settings(attempt)
]


@pytest.mark.parametrize(("attempt", "setting"), ROWS)
def test_it_comes_to_nothing(attempt: Attempt, setting: Setting):
    if not getattr(detect(ROOT), setting.level).available:
        pytest.skip(needs(setting.level))
    if (
        setting.user == "ordinary"
        and os.geteuid() == 0
        and not (shutil.which("setpriv") and installation(NOBODY))
    ):
        pytest.skip("needs root: sudo make test-full")
    world = World(setting)
    try:
        carry_out(attempt, world)
        assert matches(attempt.says, world.said), world.said
    finally:
        world.close()


def table() -> str:
    """How many attempts there are, as SECURITY.md says it."""
    lines = [
        "| attacker | attempts | of which at both levels | tries, with both users |",
        "|---|---|---|---|",
    ]
    totals = [0, 0, 0]
    for attacker, attempts in ATTACKERS.items():
        tries = sum((2 if one.confined else 1) * 2 for one in attempts)
        counts = [len(attempts), sum(one.confined for one in attempts), tries]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        lines.append(f"| {attacker} | {' | '.join(map(str, counts))} |")
    lines.append(f"| together | {' | '.join(map(str, totals))} |")
    return "\n".join(lines)


def test_the_threat_model_counts_them():
    assert table() in (ROOT / "SECURITY.md").read_text(), f"SECURITY.md must hold:\n{table()}"


def test_no_two_attempts_have_one_name():
    names = [(attacker, one.name) for attacker, attempts in ATTACKERS.items() for one in attempts]
    assert len(names) == len(set(names))
