"""Front matter is read as people write it, and every value of it has a place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.language.toml_text import FrontMatter, parse_front_matter
from fanfold.language.tree import Node, Scalar, plain
from fanfold.language.yaml_text import TextFormat
from tests.work import patience

ROLE = TextFormat(name="role", clean_text=False, clean_values=False)


def read(block: str, body: str = "Do it.\n") -> FrontMatter:
    return parse_front_matter(f"---\n{block}\n---\n{body}".encode(), "a.md", ROLE)


def values(found: FrontMatter) -> object:
    assert found.tree is not None, found.report.diagnostics
    return plain(found.tree)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("", {}),
        ("# nothing", {}),
        ("name: x\ntools: [Read, Grep]", {"name": "x", "tools": ["Read", "Grep"]}),
        ("a:\n- b\n- c", {"a": ["b", "c"]}),
        ("a:\n  b: {c: 1}", {"a": {"b": {"c": 1}}}),
        ("a: |\n  one\n    two\n", {"a": "one\n  two\n"}),
        ("n: 5\nb: true\nt: 'it''s'", {"n": 5, "b": True, "t": "it's"}),
        # what people write and YAML refuses
        ("a: Use when: asked", {"a": "Use when: asked"}),
        ("a: b: c\nn: 5\ny: true\nz:\nl: [x]", {"a": "b: c", "n": 5, "y": True, "z": None, "l": ["x"]}),
        ("a: one: 1\n  two\nb: c", {"a": "one: 1 two", "b": "c"}),
        ("a: *bold* words", {"a": "*bold* words"}),
        ("a: @someone\nb: `code`", {"a": "@someone", "b": "`code`"}),
        ("a: {{inputs.x}}", {"a": "{{inputs.x}}"}),
        ("a: {{inputs.x}} and more", {"a": "{{inputs.x}} and more"}),
        ("a: 50% of: it\nb: !important", {"a": "50% of: it", "b": "!important"}),
        # one such value changes nothing about the others
        ("m: small\n# why: it is cheap\na: b: c", {"m": "small", "a": "b: c"}),
        ("m: small # cheap\n  # and good\n\na: b: c\n# end", {"m": "small", "a": "b: c"}),
        ("l:\n  - x\n  # no more\n  - y\na: b: c", {"l": ["x", "y"], "a": "b: c"}),
        ("t: |\n  one\n  # two\na: b: c", {"t": "one\n# two\n", "a": "b: c"}),
    ],
)  # fmt: skip
def test_a_block_means_what_its_author_meant(block, expected):
    found = read(block)
    assert values(found) == expected
    assert (found.report.ok, found.unread, found.body) == (True, {}, "Do it.\n")


def test_line_ends_of_other_systems_are_line_ends():
    found = parse_front_matter(b"---\r\na: b: c\r\nd: e\r\n---\r\nText", "a.md", ROLE)
    assert (values(found), found.body) == ({"a": "b: c", "d": "e"}, "Text")


@pytest.mark.parametrize("strict", [True, False])
def test_every_value_stands_where_it_was_written(strict):
    block = f"name: reader\nwhat: Use when{'' if strict else ':'} asked\ntools: [Read, 'Grep']\nn: 12"
    found = read(block)
    text = found.source.text
    assert found.tree is not None
    leaves: list[Node] = [found.tree.get("name") or found.tree, found.tree.get("n") or found.tree]
    tools = found.tree.get("tools")
    leaves += getattr(tools, "items", [])
    written = [text[leaf.start : leaf.end] for leaf in leaves]
    assert written == ["reader", "12", "Read", "'Grep'"]
    what, key = found.tree.get("what"), found.tree.key("what")
    assert isinstance(what, Scalar)
    assert key is not None
    assert text[slice(*what.span(4, 8))] == "when"
    assert found.source.position(key.start).line == 3


def test_invalid_values_are_kept_as_text_and_reported():
    found = read("name: x\nservers: {a: [}\nother: [")
    assert found.report.ok
    assert sorted(found.unread) == ["other", "servers"]
    assert found.unread["servers"].range.start.line == 3
    assert values(found) == {"name": "x", "servers": "{a: [}", "other": "["}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "must begin"),
        ("name: x\n", 1, "must begin"),
        ("---\nname: x\n", 2, "not closed"),
        ("---\nname: x\nwhat: is: this\nname: y\n---\n", 4, "already given at line 2"),
        ("---\nwhat is this\n---\n", 2, "key: value"),
        ("---\nx: y: z\n" + "".join(f"k{i}: v\n" for i in range(200)) + "---\n", 102, "more than 100 keys"),
        (b"---\nname: \xff\n---\n", 2, "UTF-8"),
    ],
)
def test_invalid_front_matter_is_reported_at_its_place(text, line, words):
    data = text if isinstance(text, bytes) else text.encode()
    found = parse_front_matter(data, "a.md", ROLE)
    (problem,) = found.report.diagnostics
    assert (problem.severity, problem.range.start.line) == ("error", line)
    assert words in problem.message


@given(st.text(alphabet=st.sampled_from("ab:- \n\t\r#[]{}'\"|>&*!%@,é\x00\x1b\u2028"), max_size=60))
def test_no_block_breaks_the_reader(block):
    found = read(block)
    assert found.tree is not None or not found.report.ok


HOSTILE_BLOCKS = [
    "[" * 100_000,
    "a: " + "[" * 100_000,
    "a: b: c\n" * 30_000,
    "-\n" * 100_000,
    "a:\n" + " b: c: d\n" * 20_000,
]


@pytest.mark.full
@pytest.mark.parametrize("block", HOSTILE_BLOCKS)
def test_a_hostile_block_is_not_read_without_end(block):
    with patience():
        read(block)
