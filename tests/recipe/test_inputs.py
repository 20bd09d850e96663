"""Binding what was given to what a recipe declares."""

from __future__ import annotations

import pytest

from fanfold.errors import AuthorError
from fanfold.kernel.plan import JSON, Input, Plan
from fanfold.language.inputs import bind_inputs, parse_input_text

PLAN = Plan(
    name="p",
    steps=(),
    inputs=(
        Input("topic", required=True, type="string"),
        Input("depth", default="deep", has_default=True, enum=("shallow", "deep")),
        Input("count", type="integer"),
        Input("flag", enum=(True, 2)),
    ),
)


def test_defaults_fill_in_and_the_rest_is_null():
    assert bind_inputs(PLAN, {"topic": "x"}) == {"topic": "x", "depth": "deep", "count": None, "flag": None}


def test_a_given_value_takes_precedence():
    given = {"topic": "x", "depth": "shallow", "count": 3, "flag": True}
    assert bind_inputs(PLAN, given) == given


def test_every_problem_is_listed():
    with pytest.raises(AuthorError) as caught:
        bind_inputs(PLAN, {"topik": 1, "depth": "depe", "count": "three", "flag": 1})
    error = caught.value
    assert error.exit_status == 2
    problems = error.details["problems"]
    assert isinstance(problems, list)
    assert [(one["input"], one["code"]) for one in problems] == [
        ("topik", "recipe.unknown_input"),
        ("topic", "recipe.missing_input"),
        ("depth", "recipe.bad_value"),
        ("count", "recipe.bad_type"),
        ("flag", "recipe.bad_value"),
    ]
    assert "topic" in problems[0]["hint"]


def test_null_is_as_good_as_not_given():
    assert bind_inputs(PLAN, {"topic": "x", "count": None})["count"] is None
    with pytest.raises(AuthorError, match="required"):
        bind_inputs(PLAN, {"topic": None})


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("string", "x", 1),
        ("integer", 1, 1.5),
        ("integer", 0, True),
        ("number", 1, "1"),
        ("number", 1.5, False),
        ("boolean", True, 1),
        ("array", [1], {"a": 1}),
        ("array", (1,), "ab"),
        ("object", {"a": 1}, [1]),
    ],
)
def test_types_are_those_of_json(kind: str, good: JSON, bad: JSON):
    plan = Plan(name="p", steps=(), inputs=(Input("x", type=kind),))  # type: ignore[arg-type]  # any value
    assert bind_inputs(plan, {"x": good}) == {"x": list(good) if isinstance(good, tuple) else good}
    with pytest.raises(AuthorError) as caught:
        bind_inputs(plan, {"x": bad})
    assert caught.value.code == "recipe.bad_type"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (None, "3", "3"),
        ("string", "true", "true"),
        ("integer", "3", 3),
        ("number", "0.5", 0.5),
        ("boolean", "true", True),
        ("array", '["a", 1]', ["a", 1]),
        ("object", '{"a": null}', {"a": None}),
        ("object", "null", None),
    ],
)
def test_text_is_json_for_inputs_of_another_type(kind: str | None, text: str, value: JSON):
    assert parse_input_text(Input("x", type=kind), text) == value  # type: ignore[arg-type]  # any value


@pytest.mark.parametrize(("kind", "text"), [("integer", "three"), ("array", "[" * 100_000), ("boolean", "1")])
def test_text_that_is_not_json_of_the_type_is_refused(kind: str, text: str):
    with pytest.raises(AuthorError) as caught:
        parse_input_text(Input("x", type=kind), text)  # type: ignore[arg-type]  # any value
    assert caught.value.code == "recipe.bad_type"
    assert caught.value.details == {"input": "x"}


def test_a_plan_without_inputs_says_so():
    with pytest.raises(AuthorError) as caught:
        bind_inputs(Plan(name="p", steps=()), {"x": 1})
    assert caught.value.hint == "the recipe takes no inputs"


def test_values_that_are_no_json_are_shown_by_their_type():
    with pytest.raises(AuthorError, match="Path"):
        bind_inputs(PLAN, {"topic": __import__("pathlib").Path("x")})


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-1e400", "9223372036854775808", "-9223372036854775809"])
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_a_number_that_cannot_be_kept_as_it_is_is_refused_and_never_becomes_null(text: str, kind: str):
    with pytest.raises(AuthorError) as caught:
        parse_input_text(Input("n", type=kind), text)  # type: ignore[arg-type]  # a word of the list
    assert caught.value.code == "recipe.bad_value"


@pytest.mark.parametrize("value", [float("nan"), [{"deep": float("inf")}], 2**63, {"a": [-(2**63) - 1]}])
def test_such_a_number_is_refused_from_python_too_however_deep_it_is(value: JSON):
    plan = Plan(name="p", steps=(), inputs=(Input("x"),))
    with pytest.raises(AuthorError) as caught:
        bind_inputs(plan, {"x": value})
    assert caught.value.code == "recipe.bad_value"


def test_the_largest_numbers_are_kept_as_they_are():
    plan = Plan(name="p", steps=(), inputs=(Input("x"),))
    largest: list[JSON] = [2**63 - 1, -(2**63), 1e308]
    assert bind_inputs(plan, {"x": largest}) == {"x": largest}


def _nested(depth: int) -> list[JSON]:
    value: list[JSON] = []
    for _ in range(depth):
        value = [value]
    return value


def _ring() -> list[JSON]:
    ring: list[JSON] = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    "value", [_nested(5_000), _ring(), "\ud800", {"\udcff": 1}, {1: 2}, {"a": {1, 2}}, b"x", "x" * 2**25]
)
def test_values_no_log_can_store_are_refused_before_the_run(value: JSON):
    plan = Plan(name="p", steps=(), inputs=(Input("x"),))
    with pytest.raises(AuthorError) as caught:
        bind_inputs(plan, {"x": value})
    assert caught.value.code == "recipe.bad_value"


def test_a_value_that_the_caller_changes_later_is_not_changed_in_the_run():
    given: list[JSON] = [[1]]
    plan = Plan(name="p", steps=(), inputs=(Input("x"),))
    bound = bind_inputs(plan, {"x": given})
    given[0].append(2)
    assert bound == {"x": [[1]]}
