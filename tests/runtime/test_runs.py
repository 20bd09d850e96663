"""What recipes do when they run: one situation a test, real store, scripted agents."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanfold.api.run_options import Options
from fanfold.steps.ids import session_id
from tests.runtime.running import client, run
from tests.work import PATIENCE_S


def test_outputs_flow_along_the_edges(tmp_path: Path) -> None:
    recipe = """
name: chain
inputs: [{name: topic, required: true}]
steps:
  - {id: a, agent: explorer, prompt: "Look at {{inputs.topic}}"}
  - {id: b, agent: explorer, depends_on: [a], prompt: "Use {{steps.a.output}}"}
"""
    result = run(tmp_path, recipe, "steps: {a: found, b: used}", topic="x")
    assert (result.status, result.output) == ("completed", "used")
    assert result.steps["a"].output == "found"


@pytest.mark.full
def test_a_value_that_looks_like_a_template_stays_text(tmp_path: Path) -> None:
    recipe = """
name: literal
inputs: [{name: x, required: true}]
steps:
  - {id: a, run: [printf, "%s", "{{inputs.x}}"]}
output: "got {{steps.a.output}}"
"""
    result = run(tmp_path, recipe, x="{{steps.a.output}} $(id)")
    assert result.output == "got {{steps.a.output}} $(id)"


def test_a_map_gives_a_list_in_item_order_with_null_for_items_left_out(tmp_path: Path) -> None:
    recipe = """
name: map
inputs: [{name: items, type: array, required: true}]
steps:
  - {id: m, agent: explorer, for_each: inputs.items, when: item != "b", prompt: "{{item}} {{index}}"}
"""
    result = run(tmp_path, recipe, items=["a", "b", "c"])
    assert result.output == ["ok from m[0]", None, "ok from m[2]"]
    assert result.steps["m[1]"].reason == "condition"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "m: for_each needs a list, not null"),
        ("a, b", "m: for_each needs a list, not text"),
        ({"a": 1}, "m: for_each needs a list, not an object"),
        ([1, 2, 3], "m: for_each gave 3 items, max_items is 2; the step may say more"),
    ],
)
def test_a_map_over_what_is_no_list_or_too_long_says_so_in_words(
    given: object, says: str, tmp_path: Path
) -> None:
    recipe = (
        "name: m\ninputs: [{name: x}]\nsteps: [{id: m, for_each: inputs.x, max_items: 2, set: {v: item}}]"
    )
    failed = run(tmp_path, recipe, x=given).steps["m"].error
    assert failed is not None
    assert failed.message == says


@pytest.mark.full
def test_a_pipeline_renders_its_own_output_per_item(tmp_path: Path) -> None:
    recipe = """
name: pipeline
steps:
  - id: g
    for_each: "['x', 'y']"
    as: letter
    steps:
      - {id: one, run: [echo, "{{letter}}1"]}
      - {id: two, run: [echo, "{{steps.one.output}}2"], depends_on: [one]}
    output: {first: steps.one.output, last: "<{{steps.two.output}}>"}
"""
    result = run(tmp_path, recipe)
    assert result.output == [{"first": "x1", "last": "<x12>"}, {"first": "y1", "last": "<y12>"}]


def test_an_inline_failure_is_in_the_list_and_tolerated_by_its_readers(tmp_path: Path) -> None:
    recipe = """
name: inline
steps:
  - {id: m, agent: explorer, for_each: "[1, 2]", on_failure: inline, prompt: "{{item}}"}
  - {id: z, agent: explorer, depends_on: [m], prompt: "{{steps.m.output}}"}
"""
    script = 'default: fine\nsteps: {"m[0]": {fail: {class: agent, message: no luck}}}'
    result = run(tmp_path, recipe, script)
    assert result.status == "completed"
    assert result.steps["m"].output[0]["error"]["message"] == "no luck"
    assert result.steps["z"].status == "completed"


@pytest.mark.full
def test_a_loop_hands_the_last_output_to_its_next_iteration(tmp_path: Path) -> None:
    recipe = """
name: loop
steps:
  - id: l
    run: [echo, "{{iteration}}<{{feedback}}>"]
    repeat: {until: "output.contains('<1')", max_iterations: 3}
"""
    result = run(tmp_path, recipe)
    assert result.output == "2<1<>>"
    assert "l#3" not in result.steps


def test_a_loop_that_never_passes_fails_and_keeps_its_last_output(tmp_path: Path) -> None:
    recipe = 'name: never\nsteps: [{id: l, agent: explorer, prompt: go, repeat: {until: "false"}}]'
    result = run(tmp_path, recipe)
    assert result.status == "partial"
    error = result.steps["l"].error
    assert error is not None
    assert error.code == "step.not_converged"
    assert result.steps["l"].output == "ok from l#2"


@pytest.mark.full
def test_a_child_run_sees_its_inputs_alone_and_gives_back_its_output(tmp_path: Path) -> None:
    (tmp_path / "kid.yaml").write_text(
        'name: kid\ninputs: [{name: x, type: integer}]\nsteps: [{id: s, run: [echo, "{{inputs.x}}"]}]\n'
    )
    recipe = """
name: parent
steps:
  - {id: c, workflow: ./kid.yaml, for_each: "[1, 2]", inputs: {x: item}}
"""
    result = run(tmp_path, recipe)
    assert result.output == ["1", "2"]
    assert len(result.children) == 2


@pytest.mark.full
def test_a_child_run_with_inputs_of_the_wrong_type_fails_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "kid.yaml").write_text(
        'name: kid\ninputs: [{name: x, type: integer}]\nsteps: [{id: s, run: [echo, "{{inputs.x}}"]}]\n'
    )
    recipe = """
name: parent
steps:
  - {id: a, agent: explorer, prompt: "say"}
  - {id: c, workflow: ./kid.yaml, depends_on: [a], inputs: {x: steps.a.output}}
"""
    result = run(tmp_path, recipe)
    error = result.steps["c"].error
    assert error is not None
    assert error.code == "recipe.bad_type"
    assert result.children == []


def test_an_output_that_breaks_its_schema_fails_the_step(tmp_path: Path) -> None:
    recipe = """
name: typed
steps:
  - id: a
    agent: explorer
    prompt: "count"
    output_schema: {type: object, required: [n], properties: {n: {type: integer}}}
"""
    good = run(tmp_path, recipe, "steps: {a: {output: {n: 3}}}")
    assert good.output == {"n": 3}
    bad = run(tmp_path, recipe, "steps: {a: {output: {n: three}}}")
    error = bad.steps["a"].error
    assert error is not None
    assert (error.kind, error.code) == ("invalid_output", "output.invalid")


def test_a_path_that_does_not_resolve_fails_the_step_before_it_starts(tmp_path: Path) -> None:
    recipe = """
name: unresolved
steps:
  - {id: a, agent: explorer, prompt: "x", output_schema: {type: object}}
  - {id: b, agent: explorer, depends_on: [a], prompt: "{{steps.a.output.missing}}"}
"""
    result = run(tmp_path, recipe, "steps: {a: {output: {there: 1}}, b: never}")
    error = result.steps["b"].error
    assert error is not None
    assert error.code == "template.unresolved"
    assert result.steps["b"].attempts == 1


@pytest.mark.full
def test_functions_get_their_inputs_and_return_data(tmp_path: Path) -> None:
    (tmp_path / "handlers.py").write_text(
        "import fanfold\n\n@fanfold.function\ndef double(n):\n    return {'twice': n * 2}\n\n"
        "@fanfold.function\nasync def later(n):\n    return n + 1\n"
    )
    recipe = """
name: functions
steps:
  - {id: a, handler: double, inputs: {n: 21}, outputs: [twice]}
  - {id: b, handler: later, inputs: {n: steps.a.twice}, depends_on: [a]}
"""
    result = run(tmp_path, recipe)
    assert result.output == 43


@pytest.mark.full
def test_a_command_that_fails_fails_its_step_unless_its_exit_status_is_asked_for(tmp_path: Path) -> None:
    recipe = """
name: commands
steps:
  - {id: bad, run: [bash, -c, "echo out; echo err >&2; exit 3"], on_failure: inline}
  - {id: asked, run: [bash, -c, "echo out; exit 3"], outputs: [exit_code, stdout, stderr]}
"""
    result = run(tmp_path, recipe)
    assert result.steps["bad"].status == "failed"
    assert result.steps["asked"].output == {"exit_code": 3, "stdout": "out\n", "stderr": ""}


PHASES = """
name: phased
phases:
  - id: look
    kind: understand
    tasks:
      - {id: scan, agent: explorer, prompt: "scan"}
  - id: fix
    kind: execute
    tasks:
      - {id: apply, run: [echo, "{{iteration}}|{{digest}}|{{feedback}}"]}
    verify: {gate: critic, on_fail: iterate}
    converge: {max_iterations: 3}
output: "{{steps.fix.output.tasks.apply}}"
"""


@pytest.mark.full
def test_phases_hand_on_digests_and_iterate_with_the_gates_words(tmp_path: Path) -> None:
    script = """
default: "sum of {{step}}"
steps:
  "fix#1/verify": {output: {pass: false, feedback: "try harder", evidence: []}}
  "fix#2/verify":
    output: {pass: true, feedback: "", evidence: [{file: result, line: 1, quote: "try harder"}]}
"""
    result = run(tmp_path, PHASES, script)
    assert result.status == "completed"
    assert result.output == "2|look: sum of look/fold|try harder"
    assert result.steps["look"].output == {
        "tasks": {"scan": "sum of look#1/scan"},
        "summary": "sum of look/fold",
    }


def test_a_step_with_a_cache_is_not_asked_again_until_its_files_change(tmp_path: Path) -> None:
    recipe = 'name: cached\nsteps: [{id: a, agent: explorer, prompt: p, cache: true, read_set: ["*.txt"]}]'
    file = tmp_path / "x.txt"
    file.write_text("1")
    spent = {"usage": {"input_tokens": 5}}
    script = f"steps: {{a: {{output: x, usage: {spent['usage']}}}}}"
    assert run(tmp_path, recipe, script).usage.input_tokens == 5
    assert run(tmp_path, recipe, script).usage.input_tokens == 0
    file.write_text("2")
    assert run(tmp_path, recipe, script).usage.input_tokens == 5


def test_a_token_budget_pauses_and_a_raised_one_resumes(tmp_path: Path) -> None:
    recipe = """
name: budget
steps:
  - {id: a, agent: explorer, prompt: a}
  - {id: b, agent: explorer, depends_on: [a], prompt: b}
  - {id: c, agent: explorer, depends_on: [b], prompt: c}
"""
    script = "default: {output: x, usage: {input_tokens: 6, output_tokens: 4}}"
    result = run(tmp_path, recipe, script, options={"budget_tokens": 25})
    assert result.status == "paused"
    assert result.usage.input_tokens + result.usage.output_tokens == 20


@pytest.mark.full
def test_an_approval_is_answered_through_the_handle(tmp_path: Path) -> None:
    recipe = """
name: approved
steps:
  - {id: ok, approve: "Go?"}
  - {id: a, run: [echo, "{{steps.ok.output.decision}}"], depends_on: [ok]}
"""

    async def work() -> None:
        async with client(tmp_path) as opened:
            handle = await opened.start(recipe, options=Options(permission="auto", script="default: x"))
            async for event in handle.events():
                if event.type == "step_event" and event.data["status"] == "waiting":
                    await handle.approve("ok", comment="fine")
            result = await handle.result()
            assert (result.status, result.output) == ("completed", "approve")
            assert result.steps["ok"].output["comment"] == "fine"

    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


def test_a_step_without_a_prompt_gets_the_inputs_that_its_role_names(tmp_path):
    (tmp_path / ".fanfold/agents").mkdir(parents=True)
    (tmp_path / ".fanfold/agents/guide.toml").write_text(
        'name = "guide"\ndescription = "d"\ndeveloper_instructions = "i"\nsandbox_mode = "read-only"\n'
        'prompt_template = "Show the way to {{inputs.place}}."\n'
    )
    recipe = "name: way\nsteps: [{id: show, agent: guide, inputs: {place: Rome}}]\n"
    result = run(tmp_path, recipe)
    assert result.status == "completed"
    project = client(tmp_path).project
    said = [event.data for event in project.store.log(session_id(result.run_id, "show", 1))]
    project.close()
    assert said[0]["text"] == "Show the way to Rome.\n\nplace:\nRome"
