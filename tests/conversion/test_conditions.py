"""Conditions of other languages mean here what they meant there, or nothing."""

from __future__ import annotations

import pytest

from fanfold.language.convert.source import rewrite, to_cel, to_value


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
        (r"a == 'x\ny\\n'", r'o.a == "x\ny\\n"'),
        ("a == 'bell\a, sun ☀ and line\u2028'", r'o.a == "bell\u0007, sun ☀ and line\u2028"'),
    ],
)
def test_a_condition_is_read_as_its_language_binds_it(said: str, here: str) -> None:
    assert to_cel(said, lambda path: f"o.{path}") == here


@pytest.mark.parametrize(
    "said",
    [
        "a is defined", "0 < a < 5", "a b", "a == 1e3", "a['x'] == 1", "a.startswith('x')", "a if b else c",
        "a | upper == 'X'", "(a", "a)", "[a", "a ==", "", "- a", "a % 2 == 0", "not", "!" * 10_000 + "a",
        "(" * 10_000 + "a" + ")" * 10_000, r"a == '\x41'", r"a == '\u0041'", "a == " + "9" * 19,
        "a < " + "9" * 5_000,
    ],
)  # fmt: skip
def test_an_unsupported_condition_is_not_guessed(said: str) -> None:
    assert to_cel(said, lambda path: f"o.{path}") is None


def test_a_choice_is_carried_over_and_one_of_thousands_is_not() -> None:
    said = "{{ 'low' if a < 3 else 'middle'  if  a < 5 else 'high' }}"
    assert to_value(said, lambda path: f"o.{path}") == (
        '(o.a < 3) ? ("low") : ((o.a < 5) ? ("middle") : ("high"))'
    )
    assert to_value("{{ " + "a if b else " * 5_000 + "c }}", lambda path: path) is None


@pytest.mark.parametrize("begun", ["{{", "{%", "{{ {% "])
def test_an_unclosed_placeholder_is_text(begun: str) -> None:
    lost: list[str] = []
    text = begun * 100_000
    assert rewrite(text, lambda path: path, lost.append, lost.append) == text
    assert lost == []


@pytest.mark.parametrize("word", [" ", " if b"])
def test_a_choice_without_another_is_none(word: str) -> None:
    assert to_value("{{ a" + word * 60_000 + " b }}", lambda path: path) is None
