"""Defects that gave wrong results once are noticed when they come back.

Two of them here, drawn by a seed; all of them with `make mutants`.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.mutants.wrong_results import MUTANTS, PACKAGE, ask, code_with, was_noticed

CHOSEN = sorted(Random(11).sample(sorted(MUTANTS), 2))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_defect_can_still_be_put_in(name: str):
    edit = MUTANTS[name].edit
    assert (PACKAGE / edit.file).read_text().count(edit.right) == 1, (
        "what it breaks has changed: change it too"
    )


@pytest.mark.full
@pytest.mark.parametrize("name", CHOSEN)
def test_a_defect_is_noticed(name: str):
    with code_with(MUTANTS[name]) as code:
        done = ask(MUTANTS[name].noticed_by[0], code)
    assert was_noticed(done), done.stdout[-5_000:] + done.stderr[-5_000:]
