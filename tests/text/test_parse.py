"""Recipes are read with positions, and refused with the right code at the right place."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.language.diagnostics import Diagnostic, render_text
from fanfold.language.tree import Mapping, Node, Scalar, Sequence, plain
from fanfold.language.yaml_text import MAX_BYTES, MAX_VALUES, parse_yaml
from tests.work import patience

RECIPE = """\
name: research-and-brief                # a comment
version: 1
inputs:
  - {name: topic, required: true}
  - name: depth
    default: "deep"
steps:
  - id: gather
    subagent: researcher
    prompt: 'Research {{inputs.topic}}'
  - id: brief
    depends_on: [gather]
    retry: {attempts: 3, on: [timeout]}
    prompt: |
      Write a brief.
      {{steps.gather.output}}
output: >-
  {{steps.brief.output}}
"""


def problems(text: str | bytes) -> list[Diagnostic]:
    data = text.encode() if isinstance(text, str) else text
    return list(parse_yaml(data, "r.yaml")[2].diagnostics)


def places(text: str | bytes) -> list[tuple[str, int, int]]:
    return [(d.code, d.range.start.line, d.range.start.column) for d in problems(text)]


def marked(text: str, problem: Diagnostic) -> str:
    """The text the carets stand under."""
    line = text.split("\n")[problem.range.start.line - 1]
    same_line = problem.range.end.line == problem.range.start.line
    return line[problem.range.start.column - 1 : problem.range.end.column - 1 if same_line else None]


def test_a_recipe_is_read_as_data_with_places() -> None:
    tree, source, report = parse_yaml(RECIPE.encode(), "r.yaml")
    assert report.ok
    assert isinstance(tree, Mapping)
    assert plain(tree)["steps"][1] == {
        "id": "brief",
        "depends_on": ["gather"],
        "retry": {"attempts": 3, "on": ["timeout"]},
        "prompt": "Write a brief.\n{{steps.gather.output}}\n",
    }
    steps = tree.get("steps")
    key = tree.key("steps")
    assert isinstance(steps, Sequence)
    assert key is not None
    assert source.position(key.start).line == 7
    first, second = steps.items
    assert isinstance(first, Mapping)
    assert isinstance(second, Mapping)
    assert source.text[first.start : first.end].endswith("{{inputs.topic}}'")
    depends = second.get("depends_on")
    assert isinstance(depends, Sequence)
    assert source.text[depends.start : depends.end] == "[gather]"
    assert tree.get("nope") is None
    assert tree.key("nope") is None


def test_flow_and_block_styles_give_the_same_tree() -> None:
    block, _, _ = parse_yaml(b"a:\n  - b: 1\n  - [x]\n", "r")
    flow, _, _ = parse_yaml(b'{"a": [{"b": 1}, ["x"]]}', "r")
    assert block is not None
    assert flow is not None
    assert plain(block) == plain(flow) == {"a": [{"b": 1}, ["x"]]}


@pytest.mark.parametrize(
    ("text", "code", "line", "column", "under"),
    [
        ("a: &x b\n", "recipe.alias", 1, 4, "&x"),
        ("a: *x\n", "recipe.alias", 1, 4, "*x"),
        ("<<: *x\n", "recipe.alias", 1, 5, "*x"),
        ("&x a: b\n", "recipe.alias", 1, 1, "&x"),
        ("a:\n  &x\n  - b\n", "recipe.alias", 2, 3, "&x"),
        ("a: !!str b\n", "recipe.tag", 1, 4, "!!str"),
        ("a: !py b\n", "recipe.tag", 1, 4, "!py"),
        ("a: !<tag:x> b\n", "recipe.tag", 1, 4, "!<tag:x>"),
        ("a: ! b\n", "recipe.tag", 1, 4, "!"),
        ("a: !!python/object/apply:os.system [ls]\n", "recipe.tag", 1, 4, "!!python/object/apply:os.system"),
        ("%TAG ! tag:x:\n---\na: 1\n", "recipe.tag", 1, 1, "%TAG"),
        ("a: 1\nb: 2\na: 3\n", "recipe.duplicate_key", 3, 1, "a"),
        ("x: {a: 1, 'a': 2}\n", "recipe.duplicate_key", 1, 11, "'a'"),
        ("1: a\n", "recipe.bad_type", 1, 1, "1"),
        ("a:\n  true: b\n", "recipe.bad_type", 2, 3, "true"),
        ("? [a]\n: b\n", "recipe.bad_type", 1, 3, "[a]"),
        ("? {a: b}\n: c\n", "recipe.bad_type", 1, 3, "{a: b}"),
        ("a: 1\n---\nb: 2\n", "recipe.syntax", 2, 1, "---"),
        ("a: 1\n...\nb: 2\n", "recipe.syntax", 3, 1, "b"),
        ("a:\n\tb: 1\n", "recipe.syntax", 2, 1, "\t"),
        ("a: |\n  b\n\tc\n", "recipe.syntax", 3, 1, "\t"),
        ("a: b: c\n", "recipe.syntax", 1, 5, ":"),
        ("a: 'x\nb: 1\n", "recipe.syntax", 1, 4, "'"),
        ("a: 1\nb\nc: 2\n", "recipe.syntax", 2, 1, "b"),
        ("a: @x\n", "recipe.syntax", 1, 4, "@"),
        ("- a\nb: 1\n", "recipe.syntax", 2, 1, "b"),
        ("a: [1, 2\n", "recipe.syntax", 2, 1, ""),
        ('a: "\\q"\n', "recipe.syntax", 1, 5, "\\"),
        ("a: {{inputs.x}}\n", "recipe.syntax", 1, 4, "{{inputs.x}}"),
        ("a: {{inputs.x}} and\n", "recipe.syntax", 1, 4, "{{inputs.x}}"),
        ("a: {{ item[0] }}\n", "recipe.syntax", 1, 4, "{{ item[0] }}"),
        ("- {{item}}\n", "recipe.syntax", 1, 3, "{{item}}"),
        ('a: "\\0"\n', "recipe.encoding", 1, 5, "\\0"),
        ('a: "x\\x1by"\n', "recipe.encoding", 1, 6, "\\x1b"),
        ('a: "x\\ud800"\n', "recipe.encoding", 1, 6, "\\ud800"),
        ('a: "\\U00110000"\n', "recipe.encoding", 1, 5, "\\U00110000"),
        ("a: b\x07\n", "recipe.encoding", 1, 5, "\x07"),
        ("a: \x7f\n", "recipe.encoding", 1, 4, "\x7f"),
        ("a: \x00\n", "recipe.encoding", 1, 4, "\x00"),
        ("a: b\ufeff\n", "recipe.encoding", 1, 5, "\ufeff"),
        ("a: b\u2028c\n", "recipe.encoding", 1, 5, "\u2028"),
    ],
)
def test_each_refusal_points_at_its_word(text: str, code: str, line: int, column: int, under: str) -> None:
    (problem,) = problems(text)
    assert (problem.code, problem.range.start.line, problem.range.start.column) == (code, line, column)
    if under:
        assert marked(text, problem) == under


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "~\n", "---\n...\n"])
def test_an_empty_recipe_is_a_syntax_error(text: str) -> None:
    tree, _, report = parse_yaml(text.encode(), "r")
    assert tree is None
    assert [d.code for d in report.diagnostics] == ["recipe.syntax"]


def test_an_unquoted_template_is_explained_and_can_be_repaired() -> None:
    text = "a: {{inputs.x}}\nb: 1\n"
    tree, _, report = parse_yaml(text.encode(), "r")
    (problem,) = report.diagnostics
    assert "quote" in problem.help
    assert problem.fix is not None
    assert problem.fix.text == '"{{inputs.x}}"'
    assert tree is not None
    assert plain(tree) == {"a": "{{inputs.x}}", "b": 1}


def test_tabs_are_named_in_the_message() -> None:
    (problem,) = problems("a:\n\tb: 1\n")
    assert "tab" in problem.message
    assert "spaces" in problem.help


def test_the_second_of_two_equal_keys_names_the_place_of_the_first() -> None:
    (problem,) = problems("steps: []\nname: x\n'steps': []\n")
    assert "line 1, column 1" in problem.message


def test_numeric_keys_can_be_repaired_by_quotes() -> None:
    (problem,) = problems("200: ok\n")
    assert problem.fix is not None
    assert problem.fix.text == '"200"'


def test_problems_that_do_not_stop_reading_are_reported_together() -> None:
    text = "a: &x 1\nb: !t 2\na: *x\n3: .inf\nc: 99999999999999999999\n"
    codes = [code for code, _, _ in places(text)]
    assert codes == [
        "recipe.alias",
        "recipe.tag",
        "recipe.duplicate_key",
        "recipe.alias",
        "recipe.bad_type",
        "recipe.bad_value",
        "recipe.bad_value",
    ]


def test_findings_before_a_syntax_error_are_kept() -> None:
    assert [c for c, _, _ in places("a: 1\na: 2\nb: 'x\n")] == ["recipe.duplicate_key", "recipe.syntax"]


@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_wide_encodings_are_named(codec: str) -> None:
    (problem,) = problems("name: x\n".encode(codec))
    assert problem.code == "recipe.encoding"
    assert codec[:6].upper() in problem.message


def test_a_byte_order_mark_is_refused_with_a_repair() -> None:
    (problem,) = problems(b"\xef\xbb\xbfname: x\n")
    assert (problem.code, problem.help) == ("recipe.encoding", "save without BOM")
    assert problem.fix is not None
    assert problem.fix.text == ""


def test_a_bad_byte_is_found_at_its_character() -> None:
    assert places("é: ".encode() + b"\xff\n") == [("recipe.encoding", 1, 4)]


def test_text_beyond_the_limit_is_refused_unread() -> None:
    assert [d.code for d in problems(b"a: " + b"x" * (MAX_BYTES - 3))] == []
    assert places(b"[" * (MAX_BYTES + 1)) == [("recipe.too_large", 1, 1)]


def test_twenty_levels_are_allowed_and_no_more() -> None:
    assert problems("[" * 20 + "]" * 20) == []
    assert places("[" * 21 + "]" * 21) == [("recipe.too_deep", 1, 21)]
    block = "".join(" " * i + "a:\n" for i in range(20))
    assert problems(block) == []
    assert places(block + " " * 20 + "a: 1\n") == [("recipe.too_deep", 21, 21)]


HOSTILE = {
    "deep flow lists": "[" * 3_000,
    "a file of brackets": "[" * MAX_BYTES,
    "brackets on lines": "[\n" * (MAX_BYTES // 2),
    "deep flow mappings": "{a: " * (MAX_BYTES // 4),
    "deep block lists": "- " * (MAX_BYTES // 2),
    "deep complex keys": "? " * (MAX_BYTES // 2),
    "many values": "[" + "a," * (MAX_BYTES // 2 - 1) + "]",
    "many empty texts": "[" + '"",' * (MAX_BYTES // 3 - 1) + "]",
    "many anchors": "[" + "&a ," * (MAX_BYTES // 4 - 1) + "]",
    "many tags": "[" + "!a ," * (MAX_BYTES // 4 - 1) + "]",
    "many duplicates": "a:\n" * (MAX_BYTES // 3),
    "one long key": "a" * (MAX_BYTES - 2) + ": ",
    "control characters": "\x01" * MAX_BYTES,
    "colons": ":" * MAX_BYTES,
    "digits": "9" * MAX_BYTES,
    "almost a float": "0" * (MAX_BYTES - 1) + "x",
    "many dots": "." * MAX_BYTES,
    "open templates": "{{" * (MAX_BYTES // 2),
    "templates in a line": "a: " + "- {{" * (MAX_BYTES // 4 - 1),
    "properties": "&a " * (MAX_BYTES // 3),
    "spaces": "a: " + " " * (MAX_BYTES - 4) + "@",
    "blank lines in a block": "a: |\n" + " \n" * (MAX_BYTES // 2 - 3),
    "stairs in a block": "a: |9\n" + "".join(" " * (i % 500) + "\n" for i in range(1_000)),
    "deep lines in a block": "a: |1\n" + (" " * 60_000 + "x\n") * 4,
    "bad escapes": 'a: "' + "\\x07" * (MAX_BYTES // 4 - 2) + '"',
}


@pytest.mark.full
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_is_answered(name: str) -> None:
    data = HOSTILE[name].encode()
    assert len(data) <= MAX_BYTES
    with patience():
        tree, source, report = parse_yaml(data, "r.yaml")
        render_text(report.diagnostics, {"r.yaml": source})
        for node in walk(tree) if tree is not None else []:
            if isinstance(node, Scalar) and len(node.text) > 1_000:
                node.at(len(node.text) // 2)
    assert not report.ok or tree is not None


@pytest.mark.full
def test_memory_stays_small_for_as_many_values_as_are_allowed() -> None:
    data = ("[" + "a," * (MAX_VALUES - 2) + "]").encode()
    tracemalloc.start()
    tree, _, report = parse_yaml(data, "r.yaml")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.ok
    assert tree is not None
    assert peak < 50_000_000


def walk(node: Node) -> list[Node]:
    if isinstance(node, Scalar):
        return [node]
    inner = node.items if isinstance(node, Sequence) else [n for entry in node.entries for n in entry]
    return [node, *(found for child in inner for found in walk(child))]


def assert_answered(data: bytes) -> None:
    """No exception, every place inside the text, every problem can be shown."""
    tree, source, report = parse_yaml(data, "r.yaml")
    assert tree is not None or not report.ok
    render_text(report.diagnostics, {"r.yaml": source})
    for node in walk(tree) if tree is not None else []:
        assert 0 <= node.start <= node.end <= len(source.text)
        if isinstance(node, Scalar):
            for i in range(len(node.text) + 1):
                assert node.start <= node.at(i) <= len(source.text)


@given(st.binary(max_size=200))
def test_any_bytes_are_answered(data: bytes) -> None:
    assert_answered(data)


@pytest.mark.full
@given(st.text(alphabet="ab:-[]{},&*!|>'\"%@#?\\ \n\t~<.1é", max_size=60))
@settings(max_examples=500)
def test_any_mixture_of_indicators_is_answered(text: str) -> None:
    assert_answered(text.encode())


@given(st.randoms(use_true_random=False), st.integers(1, 6))
@settings(max_examples=200)
def test_damaged_recipes_are_answered(chance: random.Random, damages: int) -> None:
    text = RECIPE
    for _ in range(damages):
        at, length = chance.randrange(len(text)), chance.randrange(8)
        put = chance.choice(
            ["", " ", "\t", "\n", ":", "- ", "{{", "'", '"', "[", "]", "&a ", "*a", "!t ", "|", "\\", "\x00"]
        )
        text = text[:at] + put + text[at + length :]
    assert_answered(text.encode())
