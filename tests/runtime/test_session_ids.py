"""Names of sessions: the same for an attempt, never the same for two, and near where steps are near."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fanfold.steps.ids import session_id

PATHS = ["ask", "ask[{}]", "s{}", "a[3].b[{}]", "a[{}].b[3]", "a{}b", "x[{}]/y", "0{}", "00{}"]


def test_no_two_attempts_share_a_session() -> None:
    paths = {path.format(number) for path in PATHS for number in (*range(2_000), 10**13, 10**14, 10**20)}
    paths |= {"", "s", "s01", "s1\0", "s٣", "s\n1"}
    of = {
        (run, path, attempt): session_id(run, path, attempt)
        for run in ("r", "r2")
        for path in paths
        for attempt in (1, 2)
    }
    assert len(set(of.values())) == len(of)


@pytest.mark.parametrize("path", ["ask[{}]", "s{}", "a[3].b[{}]"])
def test_sessions_of_numbered_steps_follow_one_another(path: str) -> None:
    ids = [session_id("r", path.format(number), 1) for number in range(1_000)]
    steps_back = sum(after < before for before, after in pairwise(ids))
    assert steps_back <= 1, "the row may go over the end of all names once"


def test_the_first_characters_distinguish_neighbours() -> None:
    ids = [session_id("r", f"ask[{number}]", 1) for number in range(1_000)]
    assert len({name[:6] for name in ids}) == len(ids)
    assert {len(name) for name in ids} == {13}
