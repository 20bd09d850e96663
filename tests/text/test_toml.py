"""TOML means what the standard library says, and everything in it has a place."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.language.toml_text import parse_toml
from fanfold.language.tree import Mapping, Node, Scalar, find, plain
from fanfold.language.yaml_text import TextFormat

ROLE = TextFormat(name="role")
EXAMPLE = '''\
# a role
name = "x"   # named
"quoted key" = 'y'
a.b . "c.d" = [1, 2.5, true,
  # between
  "z", ]
when = 1979-05-27 07:32:00
text = """
first \\
   joined \\u00e9
second"""
raw = \'\'\'
one "two"
three\'\'\'
[servers.docs]
url = "https://example.org"
env = { KEY = "v", deep = { er = [ {x = 1} ] } }
[[pipeline]]
tool = "read_file"
[pipeline.args]
path = "{{prompt}}"
[[pipeline]]
model = true
'''


def leaves(node: Node) -> list[Scalar]:
    if isinstance(node, Scalar):
        return [node]
    inner = [value for _, value in node.entries] if isinstance(node, Mapping) else node.items
    return [leaf for one in inner for leaf in leaves(one)]


def test_values_are_those_of_the_standard_library_and_dates_are_text():
    tree, _, report = parse_toml(EXAMPLE.encode(), "x.toml", ROLE)
    assert tree is not None
    assert report.ok
    expected = tomllib.loads(EXAMPLE)
    expected["when"] = "1979-05-27 07:32:00"
    assert plain(tree) == expected


def place(words: str, text: str = EXAMPLE) -> tuple[int, int]:
    before = text[: text.index(words)]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (("name",), '"x"'),
        (("quoted key",), "'y'"),
        (("a", "b", "c.d", 3), '"z"'),
        (("servers", "docs", "url"), '"https'),
        (("servers", "docs", "env", "deep", "er", 0, "x"), "1} ]"),
        (("pipeline", 0, "args", "path"), '"{{prompt}}"'),
        (("pipeline", 1, "model"), "true\n"),
    ],
)
def test_a_value_stands_where_it_was_written(way, words):
    tree, source, _ = parse_toml(EXAMPLE.encode(), "x.toml", ROLE)
    assert tree is not None
    node = find(tree, way)
    assert isinstance(node, Scalar)
    found = source.position(node.start)
    assert (found.line, found.column) == place(words)


def test_keys_have_places_too():
    tree, source, _ = parse_toml(EXAMPLE.encode(), "x.toml", ROLE)
    assert tree is not None
    key = tree.key("servers")
    assert key is not None
    assert source.text[key.start : key.end] == "servers"


def test_every_character_of_a_text_of_several_lines_has_its_place():
    tree, source, _ = parse_toml(EXAMPLE.encode(), "x.toml", ROLE)
    assert tree is not None
    for name, word in (("text", "second"), ("text", "joined"), ("raw", "three")):
        node = tree.get(name)
        assert isinstance(node, Scalar)
        at = node.text.index(word)
        assert slice_of(source.text, node.span(at, at + len(word))) == word
    node = tree.get("text")
    assert isinstance(node, Scalar)
    at = node.text.index("é")
    assert slice_of(source.text, node.span(at, at + 1)) == "\\u00e9"


def slice_of(text: str, span: tuple[int, int]) -> str:
    return text[span[0] : span[1]]


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ('name = "x"\ndescription = \n', "role.syntax", 2, 15),
        ("a = 1\na = 2\n", "role.syntax", 2, 6),
        ("a = [1,", "role.syntax", 1, 8),
        ("x = inf\n", "role.bad_value", 1, 5),
        ("x = 99999999999999999999\n", "role.bad_value", 1, 5),
        ("a = " + "[" * 5_000 + "]" * 5_000, "role.too_deep", 1, 1),
        ("a = " + "[" * 40 + "]" * 40, "role.too_deep", 1, 1),
        (".".join("a" * 40) + " = 1", "role.too_deep", 1, 1),
        ("x = " + "9" * 5_000, "role.bad_value", 1, 1),
        ("x = 'a\x01b'", "role.encoding", 1, 7),
        (b"x = 1\ny = '\xff'", "role.encoding", 2, 6),
    ],
)
def test_an_unreadable_file_is_reported_at_its_place(text, code, line, column):
    data = text if isinstance(text, bytes) else text.encode()
    _, _, report = parse_toml(data, "x.toml", ROLE)
    (found,) = report.diagnostics
    assert (found.code, found.range.start.line, found.range.start.column) == (code, line, column)


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=8)
PLAIN = TEXTS | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(-1e6, 1e6)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8
)


def written(value: object) -> str:
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(c):08x}" if c in '"\\' else c for c in value) + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[ " + " , ".join(map(written, value)) + " ]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{written(key)} = {written(one)}" for key, one in value.items()) + "}"
    return repr(value)


@pytest.mark.full
@given(st.dictionaries(TEXTS, VALUES, max_size=4), st.dictionaries(TEXTS, VALUES, max_size=3))
def test_any_document_gives_its_values_and_their_places(top, inner):
    lines = [f"{written(key)} = {written(value)} # {key!a}" for key, value in top.items()]
    name = written("".join([*top, "t"]))
    for _ in range(2):
        lines += [f"[[{name}]]", *(f"{written(key)} = {written(value)}" for key, value in inner.items())]
    text = "\r\n".join(lines)
    tree, source, report = parse_toml(text.encode(), "x.toml", ROLE)
    if not report.ok:  # invisible characters that no file of ours may hold
        assert {one.code for one in report.diagnostics} == {"role.encoding"}
        return
    assert tree is not None
    assert plain(tree) == tomllib.loads(text)
    for leaf in leaves(tree):
        assert tomllib.loads(f"x = {source.text[leaf.start : leaf.end]}")["x"] == leaf.value
