"""Recipes that are right: the plan each becomes is kept beside it, and together they use every key.

`FANFOLD_UPDATE_GOLDEN=1` writes the plans anew; look at the difference before committing it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema_rs
import msgspec
import pytest
from msgspec import structs

from fanfold.kernel.plan import Plan
from fanfold.language import keys, tree, yaml_text
from fanfold.language.diagnostics import render_text
from fanfold.language.leaf_steps import STEPS
from fanfold.language.schema import json_schema, shapes
from fanfold.language.tables import Shape
from fanfold.wiring import BUILT_IN_RECIPES
from tests.recipe.known import HERE, ROLES, compile_file

FILES = sorted((HERE / "good").glob("*.yaml"))
SHIPPED = sorted(BUILT_IN_RECIPES.glob("*.yaml"))
assert SHIPPED
names = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@names
def test_a_good_recipe_becomes_the_plan_kept_beside_it(file: Path):
    compiled = compile_file(file)
    assert compiled.plan is not None, render_text(compiled.report.diagnostics, compiled.sources)
    assert compiled.plan.source == file.read_text()
    bare = structs.replace(
        compiled.plan,
        source="",
        workflows={name: structs.replace(one, source="") for name, one in compiled.plan.workflows.items()},
    )
    found = msgspec.json.decode(msgspec.json.encode(bare))
    golden = file.with_suffix(".plan.json")
    if os.environ.get("FANFOLD_UPDATE_GOLDEN"):
        golden.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    assert found == json.loads(golden.read_text())


@names
def test_a_plan_survives_json(file: Path):
    plan = compile_file(file).plan
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


@names
def test_a_good_recipe_gives_no_warnings_but_for_edges_left_to_references(file: Path):
    found = {diagnostic.code for diagnostic in compile_file(file).report.diagnostics}
    assert found <= ({"recipe.implied_edge"} if file.stem == "seed-composition" else set())


@pytest.mark.parametrize("file", [*FILES, *SHIPPED], ids=lambda file: file.stem)
def test_the_editors_schema_accepts_every_good_recipe(file: Path):
    found, _, _ = yaml_text.parse_yaml(file.read_bytes(), str(file))
    assert found is not None
    jsonschema_rs.validator_for(json_schema(ROLES.names())).validate(tree.plain(found))


def test_the_good_recipes_use_every_key_of_the_language():
    used: set[tuple[str, str]] = set()

    def walk(node: tree.Node | None, shape: Shape) -> None:
        assert isinstance(node, tree.Mapping)
        for word, value in node.entries:
            used.add((shape.name, word.text))
            key = shape.keys[word.text]
            if key.kind == "object":
                walk(value, shapes()[key.of])
            elif key.kind in ("objects", "named_objects") and isinstance(value, tree.Sequence):
                for item in value.items:
                    walk(item, shapes()[key.of])

    for file in FILES:
        walk(yaml_text.parse_yaml(file.read_bytes(), str(file))[0], keys.RECIPE)
    known = {(shape.name, name) for shape in shapes().values() for name in shape.keys}
    assert known - used == set()


def test_every_step_type_is_among_them():
    types = set()
    for file in FILES:
        plan = compile_file(file).plan
        assert plan is not None
        types |= {step.type for step in plan.steps}
    assert types == set(STEPS.syntaxes)
