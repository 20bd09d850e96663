"""The table of keys, and what is drawn from it: the editors' schema and the reference page."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from fanfold.language.draft import Ceilings
from fanfold.language.schema import json_schema, shapes
from tools.recipe_reference import reference_markdown

MINIMAL: dict[str, Any] = {"name": "t", "steps": [{"id": "a", "prompt": "x"}]}


def accepts(recipe: dict[str, Any], schema: dict[str, Any] | None = None) -> bool:
    return jsonschema_rs.validator_for(schema or json_schema()).is_valid(recipe)


def step(**more: Any) -> dict[str, Any]:
    return {"name": "t", "steps": [{"id": "a", "prompt": "x", **more}]}


def test_the_schema_is_a_schema():
    jsonschema_rs.meta.validate(json_schema(["explorer"]))
    assert json_schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert accepts(MINIMAL)


@pytest.mark.parametrize(
    "recipe",
    [
        {"name": "t"},
        {**MINIMAL, "name": "Bad Name"},
        {**MINIMAL, "stepz": 1},
        {**MINIMAL, "phases": []},
        {**MINIMAL, "limits": {"max_concurrency": 17}},
        {**MINIMAL, "limits": {"budget": {"usd": 0}}},
        {**MINIMAL, "inputs": [{"required": True}]},
        {"name": "t", "steps": [{"id": "a"}]},
        step(colour="red"),
        step(timeout="soon"),
        step(timeout_ms="5"),
        step(on_failure="skipp"),
        step(retry={"on": ["everything"]}),
        step(depends_on={"a": 1}),
        step(id="bad id"),
    ],
)
def test_the_schema_refuses_what_has_the_wrong_form(recipe: dict[str, Any]):
    assert not accepts(recipe)


def test_roles_are_suggested_and_others_still_allowed():
    schema = json_schema(["worker", "explorer"])
    assert schema["$defs"]["step"]["properties"]["agent"]["anyOf"][0] == {"enum": ["explorer", "worker"]}
    assert accepts(step(agent="someone-new"), schema)


def test_raised_ceilings_are_in_the_schema():
    recipe = {**MINIMAL, "limits": {"max_concurrency": 1_000}}
    assert accepts(recipe, json_schema((), Ceilings(1_024, 100_000)))


def test_every_key_has_a_sentence_and_is_in_the_reference():
    page = reference_markdown()
    for shape in shapes().values():
        assert shape.doc.endswith(".")
        for key in shape.keys.values():
            assert key.doc.endswith("."), key
            assert f"| `{key.name}` |" in page


def test_every_link_of_the_reference_leads_to_a_heading():
    page = reference_markdown()
    headings = {
        line.lstrip("# ").strip("`").lower().replace(" ", "-")
        for line in page.splitlines()
        if line[:1] == "#"
    }
    links = {part.split(")")[0] for part in page.split("](#")[1:]}
    assert links <= headings


def test_durations_always_have_their_twin_in_milliseconds():
    for shape in shapes().values():
        for key in list(shape.keys.values()):
            if key.kind == "duration":
                assert shape.keys[f"{key.name}_ms"].alias == key.name


def test_aliases_name_a_key_of_their_object():
    for shape in shapes().values():
        assert all(key.alias in shape.keys for key in shape.keys.values() if key.alias)
        assert all(key.of in shapes() for key in shape.keys.values() if key.kind in {"object", "objects"})
