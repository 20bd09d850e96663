"""Values that a question must show although the recipe takes a detour to them.

A path may stand for a value that is only known during the run. Then the question shows its definition, and
every value that the definition reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.test_hidden_effects import EVIL, Hidden, asked, project, read, run

__all__ = ["project"]

USED = "sh -c '{{steps.s.output.x}}'"
DEFAULT = [{"name": "y", "default": EVIL}]
SAYS_SO = {"output_schema": {"type": "object"}, "run": ["echo", json.dumps({"x": EVIL})]}
CALLED = {
    "inner.yaml": json.dumps(
        {
            "name": "inner",
            "inputs": [{"name": "v", "default": EVIL}],
            "steps": [{"id": "s", "set": {"x": "inputs.v"}}],
            "output": "{{steps.s.output.x}}",
        }
    )
}


def use(*steps: dict[str, Any], path: str = "steps.s.output.x") -> list[dict[str, Any]]:
    """Steps, and a command that gets a value of the last one."""
    return [*steps, *run("sh", "-c", f"{{{{{path}}}}}", depends_on=[steps[-1]["id"]])]


def late(value: str, name: str = "s") -> dict[str, Any]:
    """A set step whose value is not certain before the run."""
    return {"id": name, "when": "true", "set": {"x": value}}


def inside(*steps: dict[str, Any], name: str = "s", path: str = "steps.s.output.x") -> list[dict[str, Any]]:
    """Steps of a group, the last of which has the name of a harmless step around the group."""
    return [{"id": name, "set": {"x": "'safe'"}}, {"id": "g", "steps": use(*steps, path=path)}]


def mapped(*steps: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": "m", "for_each": json.dumps([EVIL, "b"]), "as": "o", "steps": list(steps)}]


VALUES = [
    # A step in a group replaces the step with its name around the group.
    Hidden("a name around it, with a condition", inside(late(f"'{EVIL}'")), (USED, EVIL)),
    Hidden(
        "a name around it, in a loop",
        inside({"id": "s", "repeat": {"max_iterations": 1, "until": "true"}, "set": {"x": f"'{EVIL}'"}}),
        (USED, EVIL),
    ),
    Hidden("a name around it, by a command", inside({"id": "s", **SAYS_SO}), (USED,)),
    Hidden(
        "a name around it, by an agent",
        inside({"id": "s", "agent": "explorer", "prompt": "p", "outputs": ["x"]}),
        (USED,),
    ),
    Hidden(
        "a name two groups around it",
        [
            {"id": "s", "set": {"x": "'safe'"}},
            {"id": "h", "steps": [{"id": "g", "steps": use({"id": "s", **SAYS_SO})}]},
        ],
        (USED,),
    ),
    Hidden(
        "a name around it, spelled with another sign",
        inside({"id": "s_t", **SAYS_SO}, name="s-t", path="steps.s_t.output.x"),
        ("sh -c '{{steps.s_t.output.x}}'",),
    ),
    # A definition reads items.
    Hidden("an item in a set value", mapped(*use({"id": "s", "set": {"x": "o"}})), (EVIL, "s gives x = o")),
    Hidden(
        "an item in a list of a map",
        mapped(*run("sh", "-c", "{{p}}", for_each="[o + '']", **{"as": "p"})),
        (EVIL, "where p is each of [o + '']"),
    ),
    Hidden(
        "an item in the output of a group",
        mapped(*use({"id": "s", "steps": [{"id": "t", "set": {"x": "o"}}]})),
        (EVIL,),
    ),
    # A definition reads inputs.
    Hidden("an input in a set value", use(late("inputs.y")), (EVIL,), DEFAULT),
    Hidden("an input that is given", use(late("inputs.y")), (EVIL,), [{"name": "y"}], {"y": EVIL}),
    Hidden("an input by its key", use(late('inputs["y"]')), (EVIL,), DEFAULT),
    Hidden("an input in a loop of an expression", use(late("['a'].map(c, c + inputs.y)")), (EVIL,), DEFAULT),
    Hidden(
        "an input in a list of a map",
        [
            {"id": "n", "run": ["echo", "1"]},
            *run(
                "sh", "-c", "{{item}}", for_each="steps.n.output == '1' ? [inputs.y] : []", depends_on=["n"]
            ),
        ],
        (EVIL,),
        DEFAULT,
    ),
    Hidden(
        "an input in the output of a group",
        use({"id": "s", "steps": [{"id": "n", "run": ["true"]}], "output": {"x": "{{inputs.y}}"}}),
        (EVIL,),
        DEFAULT,
    ),
    # A definition reads other steps.
    Hidden(
        "a set value in another",
        use({"id": "k", "set": {"c": f"'{EVIL}'"}}, late("steps.k.output.c")),
        (EVIL,),
    ),
    Hidden(
        "a set value by its key",
        use({"id": "k", "set": {"c": f"'{EVIL}'"}}, late("steps['k'].output.c")),
        (EVIL,),
    ),
    Hidden(
        "an uncertain value by its key", use(late(f"'{EVIL}'", "k"), late("steps['k'].output.x")), (EVIL,)
    ),
    # A person chooses among texts of the recipe.
    Hidden(
        "a choice of a question",
        use({"id": "s", "ask": "Which?", "choices": ["safe", EVIL]}, path="steps.s.output"),
        (EVIL,),
    ),
    Hidden(
        "a choice of an approval",
        use({"id": "s", "approve": "Which?", "choices": ["safe", EVIL]}, path="steps.s.output.decision"),
        (EVIL,),
    ),
    Hidden(
        "a choice of a list in another step",
        use(
            late(f"['safe', '{EVIL}']", "k"),
            {"id": "s", "ask": "Which?", "choices": "steps.k.output.x"},
            path="steps.s.output",
        ),
        (EVIL,),
    ),
    # A definition is in a called recipe.
    Hidden(
        "a default in the output of a called recipe",
        use({"id": "s", "workflow": "./inner.yaml"}, path="steps.s.output"),
        (EVIL,),
        files=CALLED,
    ),
    Hidden(
        "an argument in the output of a called recipe",
        use({"id": "s", "workflow": "./inner.yaml", "inputs": {"v": f"{EVIL} #2"}}, path="steps.s.output"),
        (f"{EVIL} #2",),
        files=CALLED,
    ),
    Hidden(
        "an input that is passed on, in the output of a called recipe",
        use(
            {"id": "s", "workflow": "./inner.yaml", "inputs": {"v": "{{inputs.y}} #2"}}, path="steps.s.output"
        ),
        (EVIL, "{{inputs.y}} #2"),
        [{"name": "y", "default": f"x{EVIL}"}],
        files=CALLED,
    ),
    Hidden(
        "the argument of the second of two calls",
        use(
            {
                "id": "s",
                "steps": [
                    {"id": "t", "workflow": "./inner.yaml", "inputs": {"v": "safe"}},
                    {"id": "u", "workflow": "./inner.yaml", "inputs": {"v": f"{EVIL} #2"}},
                ],
                "output": "{{steps.u.output}}",
            },
            path="steps.s.output",
        ),
        (f"{EVIL} #2",),
        files=CALLED,
    ),
]


@pytest.mark.parametrize("hidden", VALUES, ids=lambda hidden: hidden.name)
def test_the_value_is_shown(project: Path, hidden: Hidden) -> None:
    shown = read(asked(project, hidden), 200)
    for text in hidden.shows:
        assert text in shown
