"""Every character of a scalar is traced back to the characters of the file that produced it."""

from __future__ import annotations

import json
import math

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from fanfold.language.tree import Mapping, Scalar, plain, resolve
from fanfold.language.yaml_text import parse_yaml

WORDS = st.text(alphabet="ab é日-:#'\"\\{}|>\t", max_size=12)
LINES = st.lists(st.text(alphabet=" \tab日:#", max_size=6), max_size=6)


def value_of(text: str, *, ok: bool = True) -> Scalar:
    tree, _, report = parse_yaml(text.encode(), "t.yaml")
    assert report.ok is ok, report.diagnostics
    assert isinstance(tree, Mapping)
    scalar = tree.get("k")
    assert isinstance(scalar, Scalar)
    return scalar


def sources(text: str, scalar: Scalar) -> list[str]:
    """What the file says for each character of the value."""
    return [text[slice(*scalar.span(i, i + 1))] for i in range(len(scalar.text))]


def assert_traced(text: str) -> None:
    """Each character comes from itself, an escape, a doubled quote or a line break; places only grow."""
    tree, _, _ = parse_yaml(text.encode(), "t.yaml")
    if not isinstance(tree, Mapping):
        return
    scalar = tree.get("k")
    if not isinstance(scalar, Scalar):
        return
    assert [piece[0] for piece in scalar._characters()] == list(scalar.text)
    last = scalar.start
    for i, char in enumerate(scalar.text):
        start, end = scalar.span(i, i + 1)
        assert last <= start < end
        assert scalar.at(i) == start
        written = text[start:end]
        if written in ("\n", "\r\n", "\r"):
            assert char in " \n"
        elif written == "''":
            assert char == "'"
        elif written.startswith("\\") and scalar.style == '"':
            assert yaml.load(f'"{written}"', Loader=yaml.CBaseLoader) == char
        else:
            assert written == char
        last = end


def test_plain_text_maps_to_itself() -> None:
    text = "é: 1\nk: né ok # no\n"
    scalar = value_of(text)
    assert sources(text, scalar) == list("né ok")


def test_a_plain_text_over_two_lines_has_its_space_at_the_line_break() -> None:
    text = "k: one\n   two\n\n   three\n"
    scalar = value_of(text)
    assert scalar.text == "one two\nthree"
    assert sources(text, scalar)[3] == "\n"
    assert text[scalar.at(4) :].startswith("two")
    assert text[scalar.at(8) :].startswith("three")


def test_escapes_in_double_quotes_take_their_whole_length() -> None:
    text = r'k: "a\tb\u00e9\U0001F600\\\"c"' + "\n"
    scalar = value_of(text)
    assert sources(text, scalar) == ["a", r"\t", "b", r"\u00e9", r"\U0001F600", "\\\\", '\\"', "c"]
    assert scalar.span(1, 4) == (text.index(r"\t"), text.index(r"\U"))


def test_an_escaped_line_break_joins_lines_without_a_character() -> None:
    text = 'k: "ab\\\n     cd"\n'
    scalar = value_of(text)
    assert scalar.text == "abcd"
    assert sources(text, scalar) == list("abcd")


def test_a_doubled_single_quote_is_one_character() -> None:
    text = "k: 'it''s {{x}}'\n"
    scalar = value_of(text)
    assert sources(text, scalar)[2] == "''"
    assert text[scalar.at(5) :].startswith("{{x}}")


@pytest.mark.parametrize("header", ["|", "|-", "|+", "|2", "|2-", "|+2", "| # why"])
def test_literal_blocks_skip_their_indentation(header: str) -> None:
    text = f"k: {header}\n  one {{{{inputs.x}}}}\n\n    two\n\n\nz: 1\n"
    scalar = value_of(text)
    assert text[scalar.at(4) :].startswith("{{inputs.x}}")
    assert text[scalar.at(scalar.text.index("two")) :].startswith("two")
    assert_traced(text)


def test_folded_blocks_turn_single_breaks_into_spaces() -> None:
    text = "k: >\n  one\n  two\n\n  three\n    four\n  five\n"
    scalar = value_of(text)
    assert scalar.text == "one two\nthree\n  four\nfive\n"
    assert sources(text, scalar)[3] == "\n"
    for word in ("two", "three", "four", "five"):
        assert text[scalar.at(scalar.text.index(word)) :].startswith(word)


def test_windows_line_breaks_are_one_character_of_the_value() -> None:
    text = "k: |\r\n  a\r\n  b\r\n"
    scalar = value_of(text)
    assert scalar.text == "a\nb\n"
    assert sources(text, scalar) == ["a", "\r\n", "b", "\r\n"]


def test_a_block_ends_at_its_last_text() -> None:
    text = "k: |\n  a\n\n\nz: 1\n"
    assert text[: value_of(text).end] == "k: |\n  a"


def test_places_beyond_the_value_are_its_ends() -> None:
    text = "k: 'ab'\n"
    scalar = value_of(text)
    assert scalar.at(2) == scalar.at(99) == text.rindex("'")
    assert value_of("k: ''\n").span(0, 5) == (4, 4)


@given(LINES, st.sampled_from(["|", "|-", "|+", ">", ">-", ">+", "|1", ">1", "|2-"]), st.booleans())
@example(["", " a", "", "  b", "a", ""], ">", False)
@example(["   ", "a"], "|1", False)
def test_every_character_of_a_block_is_traced(lines: list[str], header: str, windows: bool) -> None:
    text = f"k: {header}\n" + "".join(f" {line}\n" for line in lines) + "z: 1\n"
    assert_traced(text.replace("\n", "\r\n") if windows else text)


@given(LINES, st.sampled_from(["'", '"', ""]), st.booleans())
def test_every_character_of_folded_flow_text_is_traced(lines: list[str], quote: str, cut: bool) -> None:
    body = ("\\\n  " if cut and quote == '"' else "\n  ").join(lines)
    assert_traced(f"k: {quote}{body}{quote}\nz: 1\n")


@given(WORDS, st.sampled_from(["'", '"', ""]))
def test_every_character_of_one_line_is_traced(words: str, quote: str) -> None:
    body = {"'": words.replace("'", "''"), '"': words.replace("\\", "\\\\").replace('"', '\\"')}
    assert_traced(f"k: {quote}{body.get(quote, words)}{quote}\n")


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=30))
def test_double_quoted_json_comes_back_as_it_was(text: str) -> None:
    document = f"k: {json.dumps(text, ensure_ascii=False)}\n"
    if any(c in document for c in "\u2028\u2029\ufeff\ufffe\uffff"):
        return
    assert value_of(document).text == text
    assert_traced(document)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("null", None), ("~", None), ("", None), ("true", True), ("False", False), ("12", 12), ("-7", -7),
        ("+7", 7), ("0o17", 15), ("0xfF", 255), ("010", 10), ("1.5", 1.5), (".5", 0.5), ("1.", 1.0),
        ("1e3", 1000.0),
        ("-1.5E-3", -0.0015), ("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63)),
        ("yes", "yes"), ("on", "on"), ("NO", "NO"), ("2020-01-01", "2020-01-01"), ("1_000", "1_000"),
        ("12:30", "12:30"), ("0b1", "0b1"), ("1e", "1e"), ("-x", "-x"), ("v1", "v1"),
        ("'12'", "12"), ('"null"', "null"),
    ],
)  # fmt: skip
def test_plain_scalars_follow_the_core_schema(written: str, meant: object) -> None:
    scalar = value_of(f"k: {written}\n")
    assert (scalar.value, type(scalar.value)) == (meant, type(meant))


@pytest.mark.parametrize(
    "written", [".inf", "-.Inf", ".nan", "1e999", "9223372036854775808", "0x" + "f" * 17, "9" * 5_000]
)
def test_numbers_that_json_cannot_hold_are_refused_at_their_place(written: str) -> None:
    tree, _, report = parse_yaml(f"a: 1\nk: {written}\n".encode(), "t.yaml")
    (problem,) = report.diagnostics
    assert problem.code == "recipe.bad_value"
    assert (problem.range.start.line, problem.range.start.column) == (2, 4)
    assert tree is not None


def is_text_to_both(text: str) -> bool:
    """`0E0` is text to YAML 1.1 and a number to the core schema; PyYAML leaves it without quotes."""
    try:
        return text == "" or isinstance(resolve(text), str)
    except ValueError:
        return False


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(
        alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=8
    ).filter(is_text_to_both)
)
TREES = st.recursive(
    LEAVES, lambda t: st.lists(t, max_size=4) | st.dictionaries(st.text("abé ", max_size=4), t, max_size=4)
)


@pytest.mark.full
@given(st.dictionaries(st.text("abc", min_size=1), TREES, max_size=4), st.booleans())
def test_what_pyyaml_writes_is_read_as_pyyaml_reads_it(value: dict[str, object], flow: bool) -> None:
    text = yaml.safe_dump(value, allow_unicode=True, default_flow_style=flow)
    tree, _, report = parse_yaml(text.encode(), "t.yaml")
    if any(d.code == "recipe.encoding" for d in report.diagnostics):  # a byte order mark inside
        return
    assert report.ok, report.diagnostics
    assert tree is not None
    assert_same(plain(tree), value)


def assert_same(a: object, b: object) -> None:
    if isinstance(a, dict) and isinstance(b, dict):
        assert set(a) == set(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list) and isinstance(b, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, float) or isinstance(b, float):
        assert isinstance(a, float | int)
        assert isinstance(b, float | int)
        assert math.isclose(a, b)
    else:
        assert a == b
        assert type(a) is type(b)
