"""Recipes built in code mean what their YAML means, and are refused for the same reasons."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import AuthorError
from fanfold.language.builder import Recipe
from fanfold.language.compile import compile_recipe
from fanfold.language.yaml_text import MAX_BYTES
from tests.recipe.known import surroundings

AROUND = surroundings()
STEP = {"id": "a", "agent": "explorer", "prompt": "Look"}

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.full
@given(st.dictionaries(st.text(), values, max_size=5))
def test_every_recipe_survives_a_round_trip_through_yaml(metadata):
    recipe = Recipe(name="r", steps=[STEP], metadata=metadata)
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe


@pytest.mark.parametrize(
    "text",
    [
        "0o17",
        "0x1f",
        "1e3",
        "1_000",
        "yes",
        "null",
        "~",
        "12:30",
        "- a",
        "{{inputs.x}}",
        " a ",
        "a\n b\n",
        "\t",
        "…",
        "'",
        "#x",
        "a: b",
        "",
    ],
)
def test_text_that_looks_like_something_else_stays_text(text):
    recipe = Recipe(name="r", steps=[{**STEP, "prompt": text}])
    assert Recipe.from_yaml(recipe.to_yaml()).value["steps"][0]["prompt"] == text


def test_a_built_recipe_compiles_to_the_plan_of_its_yaml():
    recipe = Recipe(
        name="greet",
        description="Says hello",
        version=3,
        inputs=[{"name": "who", "required": True}],
        steps=[STEP, {"id": "b", "agent": "explorer", "prompt": "Greet {{inputs.who}}: {{steps.a.output}}"}],
        output="{{steps.b.output}}",
        limits={"max_agents": 5},
    )
    built = recipe.compile(AROUND)
    written = compile_recipe(recipe.to_yaml().encode(), "greet.yaml", AROUND)
    assert built.plan is not None
    assert built.plan == written.plan
    assert (built.plan.version, [step.id for step in built.plan.steps]) == (3, ["a", "b"])


def test_mistakes_are_found_by_the_same_compiler_and_point_into_the_yaml():
    report = Recipe(name="r", steps=[{**STEP, "agent": "nobody"}]).compile(AROUND).report
    first = report.diagnostics[0]
    assert first.code == "recipe.unknown_role"
    assert first.range.start.line == 4


def test_limits_on_text_do_not_bind_recipes_built_in_code():
    steps = [{"id": f"s{i}", "agent": "explorer", "prompt": "x" * 3_000 + "\x07"} for i in range(100)]
    recipe = Recipe(name="r", steps=steps)
    assert len(recipe.to_yaml()) > MAX_BYTES
    assert recipe.compile(AROUND).plan is not None
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe
    written = compile_recipe(recipe.to_yaml().encode(), "r.yaml", AROUND)
    assert written.report.diagnostics[0].code == "recipe.too_large"


def test_later_changes_of_what_was_given_do_not_change_the_recipe():
    steps = [dict(STEP)]
    recipe = Recipe(name="r", steps=steps)
    steps.append({"id": "b"})
    steps[0]["id"] = "other"
    assert [step["id"] for step in recipe.value["steps"]] == ["a"]


def test_inputs_may_be_a_map_by_name():
    recipe = Recipe(name="r", steps=[STEP], inputs={"a": {"default": 1}}, max_concurrency=2)
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe


@pytest.mark.parametrize(
    "thing",
    [object(), {1, 2}.__iter__(), lambda: None, b"x", bytearray(b"x"), math.nan, [{"a": (math.inf,)}]],
)
def test_a_recipe_holds_data_only(thing):
    with pytest.raises(AuthorError) as refused:
        Recipe(name="r", steps=[{**STEP, "prompt": thing}])
    assert refused.value.code == "recipe.bad_type"


@pytest.mark.parametrize(
    ("text", "code"), [("name: [", "recipe.syntax"), ("- a", "recipe.bad_type"), ("a: &x 1", "recipe.alias")]
)
def test_yaml_that_is_no_recipe_is_refused(text, code):
    with pytest.raises(AuthorError) as refused:
        Recipe.from_yaml(text)
    assert refused.value.code == code


def test_every_key_of_a_recipe_can_be_given() -> None:
    from inspect import signature

    from fanfold.language.keys import RECIPE

    assert set(signature(Recipe).parameters) == set(RECIPE.keys)
