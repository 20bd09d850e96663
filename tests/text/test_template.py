"""Templates hold paths and nothing else; they are rendered once."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.language.template import (
    MAX_HOLES,
    MAX_RENDERED_CHARS,
    Hole,
    TemplateError,
    UnresolvedPath,
    is_state_path,
    parse_path,
    parse_template,
    render,
    resolve,
    sole_path,
)

VALUES = {
    "inputs": {"topic": "tea", "n": 3, "none": None, "tricky": "{{inputs.topic}}", "list": [1, {"x": "é"}]},
    "steps": {
        "a-b": {"output": {"title": "T", "status": "mine"}, "status": "completed", "error": None},
        "skipped": {"output": None, "status": "skipped", "error": None},
        "text": {"output": "plain", "status": "completed", "error": None},
    },
    "item": {"x": [10, 20]},
    "index": 0,
}


def rendered(template: str) -> str:
    return render(parse_template(template), VALUES)


@pytest.mark.parametrize(
    ("text", "root", "parts"),
    [
        ("inputs.topic", "inputs", ("topic",)),
        ("steps.a-b.output.field[0].x", "steps", ("a-b", "output", "field", 0, "x")),
        ("steps.x.status", "steps", ("x", "status")),
        ("steps.0.output", "steps", ("0", "output")),
        ("item", "item", ()),
        ("item.x[0][12]", "item", ("x", 0, 12)),
        ("package.name", "package", ("name",)),
        ("feedback", "feedback", ()),
    ],
)
def test_paths_are_a_root_and_parts(text: str, root: str, parts: tuple[object, ...]) -> None:
    path = parse_path(text)
    assert (path.root, path.parts, path.text) == (root, parts, text)


@pytest.mark.parametrize(
    ("template", "under", "word"),
    [
        ("a {{}}", "{{}}", "empty"),
        ("a {{  }}", "{{  }}", "empty"),
        ("a {{inputs.x", "{{", "not closed"),
        ("a {{inputs.x {{inputs.y}}", "{{", "not closed"),
        ("{{inputs.x | upper}}", "|", "filters"),
        ("{{inputs.x|upper}}", "|", "filters"),
        ("{{inputs.x.upper()}}", "(", "call"),
        ("{{size(inputs.x)}}", "(", "call"),
        ("{{inputs.x + 1}}", "+", "logic"),
        ("{{inputs.x == 'y'}}", "=", "logic"),
        ("{{inputs['x']}}", "[", "brackets"),
        ("{{item[-1]}}", "[", "brackets"),
        ("{{inputs.}}", ".", "name"),
        ("{{inputs}}", "inputs", "name the input"),
        ("{{steps}}", "steps", "name the step"),
        ("{{steps.a}}", "steps.a", "steps.a.output"),
        ("{{index.x}}", ".x", "no fields"),
        ("{{{x}}}", "{", "path"),
        ("{{inputs.x y}}", "y", "path"),
        ("{{'text'}}", "'", "text"),
        ("{{" + "a." * 600 + "a}}", "a." * 600 + "a", "characters"),
        ("{{item" + ".a" * 40 + "}}", "item" + ".a" * 40, "parts"),
    ],
)
def test_anything_but_a_path_is_refused_at_its_place(template: str, under: str, word: str) -> None:
    with pytest.raises(TemplateError) as caught:
        parse_template(template)
    assert template[caught.value.position : caught.value.end] == under
    assert word in caught.value.message


@pytest.mark.parametrize("text", ["", " ", "9", "item.x "])
def test_a_path_alone_is_refused_the_same_way(text: str) -> None:
    with pytest.raises(TemplateError):
        parse_path(text)


def test_holes_know_the_place_of_their_path() -> None:
    template = "On {{ inputs.topic }} and {{steps.a-b.output}}."
    holes = [part for part in parse_template(template) if isinstance(part, Hole)]
    assert [template[h.start : h.end] for h in holes] == ["inputs.topic", "steps.a-b.output"]


def test_a_backslash_makes_braces_literal() -> None:
    assert rendered(r"\{{inputs.topic}} is {{inputs.topic}}, \{{") == "{{inputs.topic}} is tea, {{"


def test_text_goes_in_as_it_is_and_anything_else_as_compact_json() -> None:
    assert (
        rendered("{{inputs.topic}} {{inputs.n}} {{inputs.list}} {{inputs.none}}")
        == 'tea 3 [1,{"x":"é"}] null'
    )


def test_a_value_with_braces_is_not_rendered_again() -> None:
    assert rendered("{{inputs.tricky}}") == "{{inputs.topic}}"


def test_a_declared_output_is_found_without_naming_output() -> None:
    assert (
        rendered("{{steps.a-b.title}} {{steps.a-b.status}} {{steps.a-b.output.status}}") == "T completed mine"
    )


def test_through_null_a_path_is_null() -> None:
    for path in (
        "steps.skipped.output.a[3].b",
        "steps.skipped.title",
        "inputs.none.x",
        "steps.text.error.code",
    ):
        assert resolve(parse_path(path), VALUES) is None


@pytest.mark.parametrize(
    "path",
    [
        "inputs.nope", "steps.nope.output", "nope", "item.x[2]", "item.x.first", "item[0]", "inputs.topic.x",
        "inputs.n[0]", "steps.a-b.output.nope", "steps.text.title", "iteration", "steps.a-b.nope",
    ],
)  # fmt: skip
def test_a_path_that_leads_nowhere_is_an_error_that_names_it(path: str) -> None:
    with pytest.raises(UnresolvedPath) as caught:
        resolve(parse_path(path), VALUES)
    assert path in caught.value.message


def test_exactly_one_hole_keeps_its_type_and_anything_more_is_text() -> None:
    path = sole_path("{{ inputs.list }}")
    assert path is not None
    assert resolve(path, VALUES) == [1, {"x": "é"}]
    for text in (
        "{{inputs.a}} ",
        " {{inputs.a}}",
        "{{inputs.a}}{{inputs.b}}",
        "inputs.a",
        "{{}}",
        "{{a}} {{b}}",
        "",
    ):
        assert sole_path(text) is None


@pytest.mark.parametrize(
    "text",
    ["inputs.topic", "steps.prepare.extracted_data", "item", "item.x", "item[0]", "index", "iteration"],
)
def test_state_paths_are_references(text: str) -> None:
    assert is_state_path(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "inputs",
        "steps.a",
        "items",
        "topic",
        "inputs.a b",
        "{{inputs.a}}",
        "feedback",
        "output",
        "index.x",
        "1",
    ],
)
def test_other_words_are_literals(text: str) -> None:
    assert not is_state_path(text)


def test_the_item_is_known_by_the_name_the_step_gives_it() -> None:
    assert is_state_path("package.name", item_name="package")
    assert not is_state_path("item.name", item_name="package")


def test_too_many_holes_are_refused() -> None:
    assert len(parse_template("{{item}}" * MAX_HOLES)) == MAX_HOLES
    with pytest.raises(TemplateError, match="holes"):
        parse_template("{{item}}" * (MAX_HOLES + 1))


def test_a_rendered_text_has_a_limit() -> None:
    half = "x" * (MAX_RENDERED_CHARS // 2 + 1)
    with pytest.raises(UnresolvedPath, match="exceeds"):
        render(parse_template("{{item}}{{item}}"), {"item": half})


def test_values_that_json_cannot_hold_are_an_error() -> None:
    with pytest.raises(UnresolvedPath, match="JSON"):
        render(parse_template("{{item}}"), {"item": object()})


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.lists(st.text(alphabet="{}\\ a\n", max_size=8), min_size=1, max_size=5), JSON_VALUES)
def test_rendering_puts_each_value_once_between_the_texts(texts: list[str], value: object) -> None:
    # A text that ends in a brace or a backslash would change what the hole next to it means.
    texts = [text.replace("{", "{ ").strip("{}\\") for text in texts]
    template = "{{item}}".join(texts)
    shown = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert render(parse_template(template), {"item": value}) == shown.join(texts)


def test_parts_of_lists_are_found_by_number() -> None:
    assert resolve(parse_path("item.x[1]"), VALUES) == 20


@given(st.text(alphabet="{}\\ ab.[0]|'-", max_size=40))
def test_any_text_is_a_template_or_an_error_with_a_place(text: str) -> None:
    parts, error = outcome(text)
    if error is not None:
        assert 0 <= error.position < error.end <= len(text) + 1
    assert all(text[p.start : p.end] == p.path.text for p in parts if isinstance(p, Hole))


def outcome(text: str) -> tuple[tuple[str | Hole, ...], TemplateError | None]:
    try:
        return parse_template(text), None
    except TemplateError as error:
        return (), error
