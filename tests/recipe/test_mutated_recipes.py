"""Whatever is done to a recipe, compiling it reports problems or gives a plan; it never raises.

Mutations work on the text (a word replaced, a line moved) and on the values (any value anywhere becomes
any other), because the first mostly break the form and the second mostly break the meaning.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.kernel.plan import Plan
from fanfold.language import tree, yaml_text
from tests.recipe.known import HERE, compile_text
from tests.sampling import examples

pytestmark = pytest.mark.full

TEXTS = [file.read_text() for folder in ("good", "bad") for file in sorted((HERE / folder).glob("*.yaml"))]
TREES = [
    tree.plain(found)
    for file in sorted((HERE / "good").glob("*.yaml"))
    if (found := yaml_text.parse_yaml(file.read_bytes(), "x")[0]) is not None
]
WORDS = sorted({word for text in TEXTS for word in re.findall(r"[\w.{}\[\]@/-]+", text)})
WORD = re.compile(r"[\w.{}\[\]@/-]+")

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**6)
    | st.floats(allow_nan=False)
    | st.sampled_from(WORDS)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS) | st.text(), inner, max_size=3)
    ),
    max_leaves=6,
)


def check(text: str) -> None:
    compiled = compile_text(text, str(HERE / "good" / "mutated.yaml"))
    assert (compiled.plan is None) == any(d.severity == "error" for d in compiled.report.diagnostics)
    for diagnostic in compiled.report.diagnostics:
        assert diagnostic.file in compiled.sources
        assert diagnostic.range.start <= diagnostic.range.end
    if compiled.plan is not None:
        assert msgspec.json.decode(msgspec.json.encode(compiled.plan), type=Plan) == compiled.plan


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_a_recipe_with_words_replaced_never_raises(data: st.DataObject):
    text = data.draw(st.sampled_from(TEXTS))
    for _ in range(data.draw(st.integers(1, 4))):
        found = list(WORD.finditer(text))
        if not found:
            break
        spot = data.draw(st.sampled_from(found))
        word = data.draw(st.sampled_from(WORDS) | st.text(max_size=5))
        text = text[: spot.start()] + word + text[spot.end() :]
    check(text)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_a_recipe_with_lines_moved_never_raises(data: st.DataObject):
    lines = data.draw(st.sampled_from(TEXTS)).splitlines(keepends=True)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        line = lines.pop(at) if data.draw(st.booleans()) and len(lines) > 1 else lines[at]
        lines.insert(data.draw(st.integers(0, len(lines))), line)
    check("".join(lines))


@settings(max_examples=examples(400), deadline=None)
@given(st.data())
def test_a_recipe_with_any_values_replaced_never_raises(data: st.DataObject):
    tree = copy.deepcopy(data.draw(st.sampled_from(TREES)))
    for _ in range(data.draw(st.integers(1, 3))):
        places = list(_places(tree))
        if not places:
            break
        holder, key = data.draw(st.sampled_from(places))
        value = data.draw(
            VALUES | st.sampled_from(places).map(lambda place: copy.deepcopy(place[0][place[1]]))
        )
        if isinstance(holder, dict) and data.draw(st.booleans()):
            del holder[key]
            key = data.draw(st.sampled_from(WORDS))
        holder[key] = value
    check(json.dumps(tree))


def _places(value: Any) -> Any:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield value, key
            yield from _places(inner)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield value, i
            yield from _places(inner)
