"""Phases become loop groups; what each part of a phase turns into."""

from __future__ import annotations

import pytest

from fanfold.kernel.plan import GroupAction, Plan, Repeat, RetryPolicy, Step
from fanfold.language.leaf_steps import AgentBody, ApprovalBody, CommandBody, read_body
from tests.recipe.known import codes, compile_text

TASKS = (
    "    tasks: [{id: a, agent: explorer, prompt: x}, {id: b, agent: worker, depends_on: [a], prompt: y}]\n"
)


def plan_of(*phases: str, top: str = "") -> Plan:
    text = f"name: t\n{top}phases:\n" + "".join(phases)
    compiled = compile_text(text)
    assert compiled.plan is not None, compiled.report.diagnostics
    return compiled.plan


def phase(name: str, more: str = "", tasks: str = TASKS) -> str:
    return f"  - id: {name}\n{tasks}" + "".join(f"    {line}\n" for line in more.splitlines())


def only(more: str, tasks: str = TASKS, top: str = "") -> tuple[Step, dict[str, Step]]:
    (step,) = plan_of(phase("p", more, tasks), top=top).steps
    assert isinstance(step.action, GroupAction)
    return step, {inner.id: inner for inner in step.action.steps}


def test_a_phase_is_a_group_that_runs_once_and_folds():
    step, inner = only("goal: Find it\nkind: execute\nmax_concurrency: 2\nmax_agents: 9")
    assert isinstance(step.action, GroupAction)
    assert step.action.phase
    assert (step.action.phase_kind, step.action.goal) == ("execute", "Find it")
    assert (step.action.max_concurrency, step.action.max_agents) == (2, 9)
    assert list(inner) == ["a", "b"]
    assert step.repeat == Repeat(until="true", max_iterations=1)
    assert step.fold is not None
    assert step.fold.id == "fold"
    fold = read_body(AgentBody, step.fold)
    assert (fold.agent, fold.purpose) == ("summarizer", "fold")
    assert step.posture == "writer"


def test_phases_follow_one_another_unless_they_say_otherwise():
    steps = plan_of(
        phase("one"),
        phase("two"),
        phase("three", "depends_on: [one]"),
        phase("four", "depends_on: []"),
        phase("five"),
    ).steps
    assert [step.depends_on for step in steps] == [(), ("one",), ("one",), (), ("four",)]


def test_a_reference_to_an_earlier_phase_needs_no_edge_when_phases_follow_in_order():
    use = "    tasks: [{id: u, agent: explorer, prompt: '{{steps.one.output.tasks.a}}'}]\n"
    text = "name: t\nphases:\n" + phase("one") + phase("two") + phase("three", tasks=use)
    compiled = compile_text(text)
    assert codes(compiled) == []
    assert compiled.plan is not None
    assert compiled.plan.steps[2].depends_on == ("one", "two")
    assert codes(compile_text(text + "    depends_on: [two]\n")) == ["recipe.implied_edge"]


def test_a_reference_to_a_later_phase_is_a_ring():
    use = "    tasks: [{id: u, agent: explorer, prompt: '{{steps.two.output.summary}}'}]\n"
    compiled = compile_text("name: t\nphases:\n" + phase("one", tasks=use) + phase("two"))
    assert "recipe.cycle" in codes(compiled)


def test_for_each_maps_every_task():
    _, inner = only(
        "for_each: inputs.list\nas: thing\nmax_items: 7\nverify: {gate: critic}\nreview: {}",
        top="inputs: [{name: list, type: array}]\n",
    )
    for name in ("a", "b"):
        assert (inner[name].for_each, inner[name].item_name, inner[name].max_items) == (
            "inputs.list",
            "thing",
            7,
        )
    assert inner["verify"].for_each is None
    assert inner["review"].for_each == "[0]"


@pytest.mark.parametrize("kind", ["understand", "review"])
def test_phases_that_only_read_narrow_their_tasks(kind: str):
    step, inner = only(f"kind: {kind}")
    assert [task.posture for task in inner.values()] == ["read_only", "read_only"]
    assert step.posture == "read_only"


def test_reviewers_are_a_read_only_map_after_all_tasks():
    _, inner = only("goal: 'Say {{this}}'\nreview: {reviewers: 3, agent: planner}")
    review = inner["review"]
    said = read_body(AgentBody, review)
    assert (said.agent, said.purpose) == ("planner", "review")
    assert review.for_each == "[0, 1, 2]"
    assert review.depends_on == ("a", "b")
    assert (review.posture, review.output_schema["required"]) == ("read_only", ["verdicts"])
    assert said.prompt is not None
    assert "\\{{this}}" in said.prompt


@pytest.mark.parametrize("gate", ["command", "tests", "lint"])
def test_a_command_gate_asks_for_its_exit_status(gate: str):
    step, inner = only(
        f"review: {{}}\nverify: {{gate: {gate}, run: pytest -q}}\nconverge: {{max_iterations: 4}}"
    )
    verify = inner["verify"]
    assert verify.action == CommandBody(run=("pytest", "-q")).action()
    assert verify.outputs == ("exit_code", "stdout", "stderr")
    assert verify.depends_on == ("a", "b", "review")
    assert (verify.posture, verify.workspace_mode) == ("read_only", "isolated")
    assert step.repeat == Repeat(until="review.holds && steps.verify.output.exit_code == 0", max_iterations=4)


@pytest.mark.parametrize("gate", ["tests", "lint"])
def test_the_project_chooses_the_command_of_a_gate_that_names_none(gate: str):
    step, inner = only(f"verify: {{gate: {gate}}}")
    assert inner["verify"].action == CommandBody(run=(f"run-{gate}",)).action()
    assert inner["verify"].description == f"the project's own {gate}, by somewhere"
    assert step.repeat is not None
    assert step.repeat.max_iterations == 2


def test_a_critic_gate_asks_for_a_verdict():
    step, inner = only("verify: {gate: critic, agent: explorer@2}", top="defaults: {model: m, timeout: 5s}\n")
    verify = inner["verify"]
    said = read_body(AgentBody, verify)
    assert (said.agent, said.agent_version, said.model) == ("explorer", "2", "m")
    assert said.purpose == "critic"
    assert verify.timeout_ms == 5000
    assert set(verify.output_schema["properties"]) == {"pass", "feedback", "evidence"}
    assert step.repeat == Repeat(until="steps.verify.output.pass")


def test_a_review_without_a_gate_decides_whether_the_phase_iterates():
    step, _ = only("review: {}")
    assert step.repeat == Repeat(until="review.holds", max_iterations=2)
    step, _ = only("review: {}\nconverge: {max_iterations: 5}")
    assert step.repeat is not None
    assert step.repeat.max_iterations == 5


def test_an_approval_gate_passes_when_approved():
    step, inner = only("verify: {gate: approval}")
    assert read_body(ApprovalBody, inner["verify"]).choices == ("approve", "reject")
    assert step.repeat == Repeat(until='steps.verify.output.decision == "approve"')


def test_a_gate_that_stops_does_not_iterate():
    step, _ = only("verify: {gate: tests, on_fail: stop}\nconverge: {max_iterations: 4}")
    assert step.on_failure == "stop"
    assert step.repeat is not None
    assert step.repeat.max_iterations == 1


def test_a_phase_takes_the_recipes_policy_and_has_no_attempts():
    step, inner = only("verify: {gate: tests}", top="on_failure: inline\n")
    assert (step.on_failure, step.retry) == ("inline", RetryPolicy(attempts=1))
    assert inner["verify"].on_failure == "skip"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ("review: {agent: nobody}", "recipe.unknown_role"),
        ("verify: {gate: critic, agent: nobody}", "recipe.unknown_role"),
        ("verify: {gate: tests, agent: critic}", "recipe.conflicting_keys"),
        ("verify: {gate: tests, run: ['{{item}}']}", "recipe.bad_template"),
        ("verify: {run: [ls]}", "recipe.missing_key"),
        ("verify: {gate: guess}", "recipe.bad_value"),
        ("review: {reviewers: 0}", "recipe.limit"),
        ("when: item == 1\nfor_each: '[1]'", "recipe.bad_expression"),
        ("as: thing", "recipe.conflicting_keys"),
        ("depends_on: [q]", "recipe.unknown_step"),
        ("kind: guess", "recipe.bad_value"),
        ("max_agents: 501", "recipe.limit"),
        ("description: no such key", "recipe.unknown_key"),
    ],
)
def test_the_keys_of_a_phase_are_checked(more: str, code: str):
    assert codes(compile_text("name: t\nphases:\n" + phase("p", more))) == [code]


def test_a_task_may_not_hide_a_step_that_the_list_of_its_phase_names():
    tasks = "    tasks: [{id: one, agent: explorer, prompt: '{{item}}'}]\n"
    text = "name: t\nphases:\n" + phase("one") + phase("two", "for_each: steps.one.output.tasks.a", tasks)
    assert codes(compile_text(text)) == ["recipe.bad_id"]


def test_paths_into_the_output_of_a_phase_are_checked():
    for path, code in [
        ("steps.one.output.summary", None),
        ("steps.one.output.tasks", None),
        ("steps.one.output.tasks.a", None),
        ("steps.one.output.tasks.c", "recipe.bad_template"),
        ("steps.one.output.result", "recipe.bad_template"),
        ("steps.one.output.summary.x", "recipe.bad_template"),
        ("steps.one.output[0]", "recipe.bad_template"),
    ]:
        use = f"    tasks: [{{id: u, agent: explorer, prompt: '{{{{{path}}}}}'}}]\n"
        found = codes(compile_text("name: t\nphases:\n" + phase("one") + phase("two", tasks=use)))
        assert found == ([code] if code else []), path


def test_two_hundred_tasks_are_enough():
    tasks = "    tasks: [" + ", ".join(f"{{id: t{i}, agent: explorer, prompt: x}}" for i in range(30)) + "]\n"
    text = "name: t\nphases:\n" + "".join(phase(f"p{i}", tasks=tasks) for i in range(7))
    (diagnostic,) = compile_text(text).report.diagnostics
    assert diagnostic.code == "recipe.limit"
    assert "200" in diagnostic.message
