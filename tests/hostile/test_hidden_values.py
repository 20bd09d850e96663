"""Values that a question must show although the recipe takes a detour to them.

A path may stand for a value that is only known during the run. Then the question shows its definition, and
every value that the definition reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fanfold.errors import WorldError
from tests.hostile.test_hidden_effects import EVIL, INNER, ROLE, Hidden, asked, project, read, role, run

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

FAILS = {"on_failure": "inline"}
WRONG = {"set": {"x": "1"}, "output_schema": {"properties": {"x": {"const": EVIL}}}}


def ending(**keys: Any) -> dict[str, str]:
    """A recipe that an `end` step ends, although its output is another one."""
    steps = [{"id": "e", **keys}]
    return {"inner.yaml": json.dumps({"name": "inner", "steps": steps, "output": "safe"})}


def looped(*steps: dict[str, Any], **keys: Any) -> list[dict[str, Any]]:
    return [{"id": "g", "repeat": {"until": "false", "max_iterations": 2}, "steps": list(steps), **keys}]


def fixed_call(text: str, **keys: Any) -> dict[str, str]:
    """The role `explorer` of a checkout, whose pipeline runs a command with its prompt."""
    stage = f'[[pipeline]]\ntool = "run_command"\nargs = {{argv = ["sh", "-c", {json.dumps(text)}]}}\n'
    return {ROLE: f"{role(sandbox_mode='workspace-write', **keys)}\n{stage}"}


def agent(**keys: Any) -> dict[str, Any]:
    return {"id": "w", "agent": "explorer", "write_set": ["o/**"], **keys}


PLACED = {**agent(prompt="{{steps.s.output.x}}"), "depends_on": ["s"]}
FEEDBACK = run("sh", "-c", "{{feedback}}")
VALUES += [
    # A called recipe ends before its output.
    Hidden(
        "the output of an end step",
        use({"id": "s", "workflow": "./inner.yaml"}, path="steps.s.output"),
        (EVIL,),
        files=ending(end="completed", output=EVIL),
    ),
    Hidden(
        "the message of an end step, as an error",
        use({"id": "s", "workflow": "./inner.yaml", **FAILS}, path="steps.s.error"),
        (EVIL,),
        files=ending(end="failed", message=EVIL),
    ),
    Hidden(
        "the message of an end step, as an error of an item",
        [
            {"id": "s", "for_each": "[1]", "workflow": "./inner.yaml", **FAILS},
            *run("sh", "-c", "{{item.error}}", for_each="steps.s.output", depends_on=["s"]),
        ],
        (EVIL,),
        files=ending(end="failed", message=EVIL),
    ),
    Hidden(
        "the message of an end step that reads an input",
        use({"id": "s", "workflow": "./inner.yaml", "inputs": {"v": EVIL}, **FAILS}, path="steps.s.error"),
        (EVIL,),
        files={
            "inner.yaml": json.dumps(
                {
                    "name": "inner",
                    "inputs": [{"name": "v"}],
                    "steps": [{"id": "e", "end": "failed", "message": "{{inputs.v}}"}],
                }
            )
        },
    ),
    # A failure quotes the recipe.
    Hidden(
        "a schema that a set value breaks", use({"id": "s", **WRONG, **FAILS}, path="steps.s.error"), (EVIL,)
    ),
    Hidden("a schema, by the output", use({"id": "s", **WRONG, **FAILS}, path="steps.s.output"), (EVIL,)),
    Hidden(
        "a schema that a group breaks",
        use({"id": "s", "steps": [{"id": "t", **WRONG}], **FAILS}, path="steps.s.error"),
        (EVIL,),
    ),
    Hidden(
        "a schema that a step of a called recipe breaks",
        use({"id": "s", "workflow": "./inner.yaml", **FAILS}, path="steps.s.error"),
        (EVIL,),
        files={"inner.yaml": json.dumps({"name": "inner", "steps": [{"id": "t", **WRONG}]})},
    ),
    Hidden(
        "the values that a called recipe allows for an input",
        use(
            {"id": "s", "workflow": "./inner.yaml", "inputs": {"v": "{{inputs.y}}"}, **FAILS},
            path="steps.s.error",
        ),
        (EVIL,),
        [{"name": "y", "default": "other"}],
        files={
            "inner.yaml": json.dumps(
                {
                    "name": "inner",
                    "inputs": [{"name": "v", "enum": [EVIL]}],
                    "steps": [{"id": "t", "set": {"x": "1"}}],
                }
            )
        },
    ),
    Hidden(
        "the fields that a group must give",
        use(
            {"id": "s", "outputs": ["EVIL"], "steps": [{"id": "t", "set": {"x": "1"}}], **FAILS},
            path="steps.s.error",
        ),
        ("EVIL",),
    ),
    Hidden(
        "a schema that an agent breaks",
        use(
            {"id": "s", "agent": "explorer", "prompt": "p", "output_schema": {"const": EVIL}, **FAILS},
            path="steps.s.error",
        ),
        (EVIL,),
    ),
    Hidden(
        "a condition that fails",
        use({"id": "s", "when": f"int('{EVIL}') == 1", "set": {"x": "1"}, **FAILS}, path="steps.s.error"),
        (EVIL,),
    ),
    # A recipe tells an agent what to answer.
    Hidden(
        "the answer that a prompt dictates",
        use({"id": "s", "agent": "explorer", "prompt": f"Answer: {EVIL}"}, path="steps.s.output"),
        (EVIL,),
    ),
    Hidden(
        "the answer that a prompt dictates by a set value",
        use(
            late(f"'{EVIL}'", "k"),
            {"id": "s", "agent": "explorer", "prompt": "Answer: {{steps.k.output.x}}"},
            path="steps.s.output",
        ),
        (EVIL,),
    ),
    Hidden(
        "the answer that an input of the agent dictates",
        use({"id": "s", "agent": "explorer", "prompt": "p", "inputs": {"k": EVIL}}, path="steps.s.output"),
        (EVIL,),
    ),
    Hidden(
        "the answer that a summary dictates",
        use(
            late(f"'{EVIL}'", "k"),
            {"id": "s", "agent": "explorer", "prompt": "p", "depends_on": ["k"]},
            path="steps.s.output",
        ),
        (EVIL,),
    ),
    Hidden(
        "the answer that a schema dictates",
        use(
            {"id": "s", "agent": "explorer", "prompt": "p", "output_schema": {"const": EVIL}},
            path="steps.s.output",
        ),
        (EVIL,),
    ),
    Hidden(
        "the answer of an agent in a called recipe",
        use({"id": "s", "workflow": "./inner.yaml"}, path="steps.s.output"),
        (EVIL,),
        files={
            "inner.yaml": json.dumps(
                {"name": "inner", "steps": [{"id": "t", "agent": "explorer", "prompt": f"Answer: {EVIL}"}]}
            )
        },
    ),
    # A value depends on whether another step completed.
    *(
        Hidden(
            f"a choice by the {part} of a set step that fails",
            use(
                {"id": "t", "set": {"x": "1"}, "output_schema": {"required": ["y"]}, **FAILS},
                {
                    "id": "s",
                    "set": {"x": f"steps.t.{part} == {good} ? 'safe' : '{EVIL}'"},
                    "depends_on": ["t"],
                },
            ),
            (USED, EVIL),
        )
        for part, good in (("status", "'completed'"), ("error", "null"), ("output", "{'x': 1}"))
    ),
    Hidden(
        "a choice by the status of a set step that is skipped",
        use(
            {"id": "n", "run": ["false"]},
            {"id": "t", "set": {"x": "1"}, "depends_on": ["n"], **FAILS},
            {
                "id": "s",
                "set": {"x": f"steps.t.status == 'completed' ? 'safe' : '{EVIL}'"},
                "depends_on": ["t"],
            },
        ),
        (USED, EVIL),
    ),
    # Feedback is what the iteration before gave.
    Hidden("feedback from the output of a loop", looped(*FEEDBACK, output=EVIL), (EVIL,)),
    Hidden(
        "feedback from a step of a loop", looped(*FEEDBACK, {"id": "s", "set": {"x": f"'{EVIL}'"}}), (EVIL,)
    ),
    Hidden("feedback from a failure", looped(*FEEDBACK, {"id": "s", **WRONG}), (EVIL,)),
    Hidden(
        "feedback in a set value", looped(*use({"id": "s", "set": {"x": "feedback"}}), output=EVIL), (EVIL,)
    ),
    Hidden(
        "feedback that is passed to a called recipe",
        looped({"id": "s", "workflow": "./inner.yaml", "inputs": {"x": "{{feedback}}"}}, output=EVIL),
        (EVIL,),
        files={"inner.yaml": json.dumps(INNER).replace(EVIL, "safe")},
    ),
    # A fixed call of a role inserts the prompt of the step.
    Hidden("a prompt", [agent(prompt=EVIL)], (EVIL,), files=fixed_call("{{prompt}}")),
    Hidden(
        "a prompt with an input",
        [agent(prompt="{{inputs.y}}")],
        (EVIL,),
        DEFAULT,
        files=fixed_call("{{prompt}}"),
    ),
    Hidden(
        "a prompt with a set value",
        [{"id": "s", "set": {"x": f"'{EVIL}'"}}, PLACED],
        (EVIL,),
        files=fixed_call("{{prompt}}"),
    ),
    Hidden(
        "a prompt with an uncertain value",
        [late(f"'{EVIL}'"), PLACED],
        (EVIL,),
        files=fixed_call("{{prompt}}"),
    ),
    Hidden(
        "a prompt with the summary of a step",
        [late(f"'{EVIL}'"), agent(prompt="p", depends_on=["s"])],
        (EVIL,),
        files=fixed_call("{{prompt}}"),
    ),
    Hidden(
        "a prompt with an item",
        mapped(agent(prompt="{{o}}")),
        (EVIL,),
        files=fixed_call("{{prompt}}"),
    ),
    Hidden(
        "the prompt of a role with an input of the step",
        [agent(inputs={"k": EVIL})],
        (EVIL,),
        files=fixed_call("{{prompt}}", prompt_template="do {{inputs.k}}"),
    ),
    Hidden("the prompt of a role", [agent()], (EVIL,), files=fixed_call("{{prompt}}", prompt_template=EVIL)),
    Hidden(
        "a prompt with feedback",
        looped(agent(prompt="p"), output=EVIL),
        (EVIL,),
        files=fixed_call("{{prompt}}"),
    ),
]


@pytest.mark.parametrize("hidden", VALUES, ids=lambda hidden: hidden.name)
def test_the_value_is_shown(project: Path, hidden: Hidden) -> None:
    shown = read(asked(project, hidden), 200)
    for text in hidden.shows:
        assert text in shown


def test_a_question_with_more_text_than_a_person_reads_is_refused(project: Path) -> None:
    double = [
        {"id": f"s{n + 1}", "set": {"x": f"steps.s{n}.output.x + steps.s{n}.output.x"}} for n in range(18)
    ]
    steps = use({"id": "s0", "set": {"x": "'12345678'"}}, *double, path="steps.s18.output.x")
    with pytest.raises(WorldError, match="more than 2,000,000 characters of effects"):
        asked(project, Hidden("a value that doubles", steps, ()))
