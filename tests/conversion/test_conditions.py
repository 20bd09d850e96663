"""Conditions of other languages mean here what they meant there, or nothing."""

from __future__ import annotations

import pytest

from fanfold.recipe.conversion.conditions import to_cel


@pytest.mark.parametrize(
    ("said", "here"),
    [
        ("{{ not a == 'x' }}", '!(o.a == "x")'),
        ("a not in ['x', 'y']", '!(o.a in ["x", "y"])'),
        ("not (a and b) or c", "!((o.a && o.b)) || o.c"),
        ("!a && b !== -1", "!o.a && o.b != -1"),
        ("a is not none and b is None", "o.a != null && o.b == null"),
        ("items | length >= 2", "size(o.items) >= 2"),
        (r"a == 'it\'s' or a == 'c:\\d \"q\"'", r'o.a == "it' + r"'s" + r'" || o.a == "c:\\d \"q\""'),
    ],
)
def test_a_condition_is_read_as_its_language_binds_it(said: str, here: str) -> None:
    assert to_cel(said, lambda path: f"o.{path}") == here


@pytest.mark.parametrize(
    "said",
    [
        "a is defined", "0 < a < 5", "a b", "a == 1e3", "a['x'] == 1", "a.startswith('x')", "a if b else c",
        "a | upper == 'X'", "(a", "a)", "[a", "a ==", "", "- a", "a % 2 == 0", "not", "!" * 10_000 + "a",
        "(" * 10_000 + "a" + ")" * 10_000,
    ],
)  # fmt: skip
def test_what_is_no_condition_here_is_not_guessed(said: str) -> None:
    assert to_cel(said, lambda path: f"o.{path}") is None
