"""Diagnostics are data with places; on a terminal they look like a compiler's."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.language.diagnostics import (
    MAX_DIAGNOSTICS,
    Diagnostic,
    Fix,
    Position,
    Range,
    Report,
    Source,
    nearest,
    render_github,
    render_text,
)


def rendered(line: str, start: int, end: int, hint: str = "", before: int = 0) -> list[str]:
    source = Source("\n" * before + line + "\n", "r.yaml")
    report = Report()
    report.error("recipe.x", "no", source, (before + start, before + end), hint)
    return render_text(report.diagnostics, {"r.yaml": source}).splitlines()


def test_a_problem_looks_like_the_one_in_the_contract() -> None:
    source = Source("\n" * 18 + "    depends_on: [gahter, angles]\n", "research.yaml")
    report = Report()
    message = 'step "brief" depends on "gahter", which does not exist'
    start = source.text.index("gahter")
    report.error("recipe.unknown_step", message, source, (start, start + 6), 'did you mean "gather"?')
    assert render_text(report.diagnostics, {"research.yaml": source}) == (
        'error[recipe.unknown_step]: step "brief" depends on "gahter", which does not exist\n'
        "  --> research.yaml:19:18\n"
        "   |\n"
        "19 |     depends_on: [gahter, angles]\n"
        '   |                  ^^^^^^ did you mean "gather"?\n'
    )


def test_the_json_shape_is_the_one_scripts_rely_on() -> None:
    place = Range(Position(1, 2), Position(1, 5))
    diagnostic = Diagnostic("recipe.x", "error", "no", "r.yaml", place, fix=Fix(place, "yes"))
    spot = {"start": {"line": 1, "column": 2}, "end": {"line": 1, "column": 5}}
    assert json.loads(msgspec.json.encode(diagnostic)) == {
        "code": "recipe.x",
        "severity": "error",
        "message": "no",
        "file": "r.yaml",
        "range": spot,
        "help": "",
        "fix": {"range": spot, "text": "yes"},
    }


def test_the_gutter_is_as_wide_as_the_line_number() -> None:
    assert rendered("ab", 1, 2)[1:] == [" --> r.yaml:1:2", "  |", "1 | ab", "  |  ^"]
    assert rendered("ab", 1, 2, before=999)[1:] == [
        "    --> r.yaml:1000:2",
        "     |",
        "1000 | ab",
        "     |  ^",
    ]


def test_tabs_are_shown_as_spaces_so_that_carets_stay_under_their_word() -> None:
    assert rendered("\tab", 1, 3)[-2:] == ["1 |     ab", "  |     ^^"]


def test_wide_characters_take_two_cells_and_combining_ones_none() -> None:
    assert rendered("日本 x", 3, 4)[-1] == "  |      ^"
    assert rendered("日本 x", 0, 2)[-1] == "  | ^^^^"
    assert rendered("e\u0301 x", 3, 4)[-1] == "  |   ^"


def test_an_empty_range_still_has_a_caret_even_past_the_end() -> None:
    assert rendered("ab", 2, 2)[-1] == "  |   ^"
    assert rendered("", 0, 0)[-2:] == ["1 |", "  | ^"]


def test_a_range_over_several_lines_shows_the_first() -> None:
    assert rendered("a: [1,\n 2]", 3, 10)[-2:] == ["1 | a: [1,", "  |    ^^^"]


@pytest.mark.parametrize("at", [0, 50, 5_000, 9_990])
def test_long_lines_are_clipped_around_the_caret(at: int) -> None:
    line = "x" * at + "wrong" + "y" * (10_000 - at)
    shown, carets = rendered(line, at, at + 5)[-2:]
    assert len(shown) < 120
    assert shown[carets.index("^") : carets.index("^") + carets.count("^")] == "wrong"


@given(st.text(max_size=300), st.integers(0, 300), st.integers(0, 300))
def test_any_line_can_be_shown_and_never_drives_the_terminal(line: str, start: int, end: int) -> None:
    source = Source(line, "r.yaml")
    report = Report()
    report.error("recipe.x", line, source, (start, end), line)
    shown = render_text(report.diagnostics, {"r.yaml": source})
    assert all(c == "\n" or c.isprintable() for c in shown)
    assert "^" in shown


def test_long_help_moves_below_the_source() -> None:
    assert rendered("ab", 0, 1, "h" * 100)[-1] == f"  = help: {'h' * 100}"


def test_without_its_source_a_problem_is_shown_without_an_excerpt() -> None:
    source = Source("ab", "r.yaml")
    report = Report()
    report.warning("recipe.x", "no", source, (0, 1), "do")
    assert render_text(report.diagnostics, {}).splitlines() == [
        "warning[recipe.x]: no",
        " --> r.yaml:1:1",
        "  = help: do",
    ]


def test_colour_adds_escapes_and_nothing_else() -> None:
    source = Source("ab", "r.yaml")
    report = Report()
    report.error("recipe.x", "no", source, (0, 1), "do")
    import re

    sources = {"r.yaml": source}
    coloured = render_text(report.diagnostics, sources, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render_text(report.diagnostics, sources)


def test_github_annotations_escape_what_github_would_act_on() -> None:
    source = Source("a: b\nc", "a,b:c%.yaml")
    report = Report()
    report.error("recipe.x", "50% ::error::\nno", source, (3, 4))
    report.warning("recipe.y", "long", source, (0, 6), "do")
    assert render_github(report.diagnostics).splitlines() == [
        "::warning file=a%2Cb%3Ac%25.yaml,line=1,endLine=2,title=recipe.y::long%0Ado",
        "::error file=a%2Cb%3Ac%25.yaml,line=1,col=4,endColumn=5,title=recipe.x::50%25 ::error::%0Ano",
    ]


@given(st.text(alphabet="ab\r\n日", max_size=30), st.integers(0, 40))
def test_positions_count_lines_as_editors_do(text: str, offset: int) -> None:
    source = Source(text, "r.yaml")
    before = text[: min(offset, len(text))]
    if before.endswith("\r") and text[len(before) :].startswith("\n"):
        before = before[:-1] + "\r"  # between the two halves of one line break
        lines = (before[:-1].replace("\r\n", "\n").replace("\r", "\n") + "\r").split("\n")
    else:
        lines = before.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    position = source.position(offset)
    assert position.line == len(lines)
    assert position.column == len(lines[-1]) + 1
    whole = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert [source.line(n + 1) for n in range(len(whole))] == whole
    assert source.line(0) == source.line(len(whole) + 1) == ""


def test_reports_are_sorted_by_file_and_place_whatever_the_order_of_finding() -> None:
    a, b = Source("xyz", "a.yaml"), Source("xyz", "b.yaml")
    report, other = Report(), Report()
    report.warning("recipe.w", "w", b, (1, 2))
    report.error("recipe.e", "e", b, (1, 2))
    other.error("recipe.f", "f", a, (2, 3))
    other.error("recipe.g", "g", a, (0, 1))
    report.extend(other)
    assert [d.code for d in report.diagnostics] == ["recipe.g", "recipe.f", "recipe.e", "recipe.w"]


def test_warnings_alone_leave_a_report_ok() -> None:
    report = Report()
    report.warning("recipe.w", "w", Source("", "a"), (0, 0))
    assert report.ok
    report.error("recipe.e", "e", Source("", "a"), (0, 0))
    assert not report.ok


def test_a_report_keeps_a_limited_number_and_counts_the_rest() -> None:
    report, source = Report(), Source("x", "a")
    for _ in range(MAX_DIAGNOSTICS + 3):
        report.error("recipe.e", "e", source, (0, 1))
    report.warning("recipe.w", "w", source, (0, 1))
    assert report.full
    assert len(report.diagnostics) == MAX_DIAGNOSTICS + 1
    assert report.dropped == 3


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("gahter", ["angles", "gather"], "gather"),
        ("promt", ["prompt", "type"], "prompt"),
        ("Prompt", ["prompt"], "prompt"),
        ("depend_on", ["depends_on", "defaults"], "depends_on"),
        ("xyz", ["prompt"], None),
        ("", ["a"], None),
        ("ab", [], None),
        ("cat", ["bat", "car"], "bat"),
        ("w" * 100, ["w" * 99], None),
    ],
)
def test_the_nearest_word_is_what_was_probably_meant(word: str, known: list[str], meant: str | None) -> None:
    assert nearest(word, known) == meant
    assert nearest(word, reversed(known)) == meant
