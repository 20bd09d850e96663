"""Phases: the shape people think in, lowered to groups of steps.

A phase becomes a loop group. Its tasks are steps; a review becomes the step `review`, one instance per
reviewer; the gate becomes the step `verify`, and the loop's `until` asks for its verdict; the summary is
the step `fold`, which runs once after the last iteration. Nothing in the kernel knows about reviews or
gates, and everything that holds for steps holds for phases.

Rules
* Phases follow one another in the order written, unless they say `depends_on`.
* `for_each` on a phase maps each of its tasks, so a task cannot have a `for_each` of its own then.
* `understand` and `review` phases only read; what is inside is narrowed, and a `write_set` is refused.
* A phase without a gate runs once. So does one whose gate says `on_fail: stop`.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec.structs import replace

from fanfold.kernel.plan import (
    USUAL_RETRY,
    GroupAction,
    Repeat,
    Retry,
    Step,
)
from fanfold.recipe.checks.commands import read_arguments
from fanfold.recipe.checks.fields import COMMAND_OUTPUTS, check_conditions, check_edges
from fanfold.recipe.checks.references import Place
from fanfold.recipe.checks.unit import Defaults, Unit
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.drafts.facts import PhaseParts
from fanfold.recipe.drafts.roles import NamedRole, find_role
from fanfold.recipe.drafts.survey import new_draft, survey_body, survey_map
from fanfold.recipe.language.keys import CONVERGE, PHASE, REVIEW, VERIFY
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.approval import ApprovalBody
from fanfold.recipe.types.body import Body
from fanfold.recipe.types.command import CommandBody
from fanfold.text.entries import Entries, read_entries
from fanfold.text.notes import quoted
from fanfold.text.parse import Node, Scalar

MAX_PHASES = 16
MAX_TASKS_PER_PHASE = 32
MAX_TASKS = 200
RESERVED_IDS = frozenset({"review", "verify", "fold"})
ONCE = Retry(attempts=1)
LOOP_NAMES = frozenset({"iteration", "feedback", "digest"})

VERDICT_SCHEMA = {
    "type": "object",
    "properties": {"pass": {"type": "boolean"}, "feedback": {"type": "string"}},
    "required": ["pass", "feedback"],
    "additionalProperties": False,
}


# ---------------------------------------------------------------------------------------------------
# Reading


def survey_phases(nodes: list[Node], unit: Unit) -> None:
    """Read the phases and their tasks into drafts."""
    notes = unit.notes
    ceilings = unit.around.ceilings
    highs = {"max_concurrency": ceilings.concurrency, "max_agents": ceilings.agents}
    tasks = 0
    for node in nodes:
        entries = read_entries(node, PHASE, notes, highs)
        if entries is None:
            continue
        draft = new_draft(entries, unit.scope, notes, "")
        draft.phase = True
        draft.type = "group"
        draft.narrowed = entries.text("kind") in {"understand", "review"}
        draft.facts.phase = _read_parts(entries, unit)
        for item in entries.scalars("depends_on"):
            draft.written.setdefault(item.text, item)
        survey_map(draft, notes)
        survey_body(draft, entries.items("tasks"), notes, LOOP_NAMES)
        _adopt_tasks(draft, unit)
        assert draft.inner is not None
        tasks = _count_tasks(draft, tasks, unit)
    if len(unit.scope.drafts) > MAX_PHASES:
        extra = unit.scope.drafts[MAX_PHASES]
        at = extra.entries.nodes.get("id") or extra.entries.head()
        notes.error("recipe.limit", f"a recipe has at most {MAX_PHASES} phases", at)


def _read_parts(entries: Entries, unit: Unit) -> PhaseParts:
    parts = PhaseParts()
    if "review" in entries.nodes:
        parts.review = read_entries(entries.nodes["review"], REVIEW, unit.notes)
    if "verify" in entries.nodes:
        parts.verify = read_entries(entries.nodes["verify"], VERIFY, unit.notes)
    if "converge" in entries.nodes:
        parts.converge = read_entries(entries.nodes["converge"], CONVERGE, unit.notes)
    return parts


def _adopt_tasks(draft: Draft, unit: Unit) -> None:
    """What a phase says holds for its tasks."""
    assert draft.inner is not None
    for task in draft.inner.drafts:
        node = task.entries.nodes.get("id")
        if task.id in RESERVED_IDS and node is not None:
            message = f"{quoted(task.id)} is a step that phases have themselves"
            unit.notes.error("recipe.bad_id", message, node, "choose another id")
        if draft.item_name is None:
            continue
        if task.entries.has("for_each"):
            message = (
                f"phase {quoted(draft.id)} has a {quoted('for_each')}, which runs each task once per item"
            )
            unit.notes.error("recipe.conflicting_keys", message, task.entries.keys["for_each"])
        task.item_name = draft.item_name


def _count_tasks(draft: Draft, before: int, unit: Unit) -> int:
    assert draft.inner is not None
    tasks = draft.inner.drafts
    for limit, what in ((MAX_TASKS_PER_PHASE, "a phase"), (MAX_TASKS - before, "a recipe")):
        if 0 <= limit < len(tasks):
            at = tasks[limit].entries.nodes.get("id") or tasks[limit].entries.head()
            most = MAX_TASKS_PER_PHASE if what == "a phase" else MAX_TASKS
            unit.notes.error("recipe.limit", f"{what} has at most {most} tasks", at)
            break
    return before + len(tasks)


# ---------------------------------------------------------------------------------------------------
# Checking


def check_phase(draft: Draft, unit: Unit) -> None:
    """Check what a phase says itself; its tasks are checked as steps."""
    check_edges(draft, unit.notes, unit.references)
    check_conditions(draft, unit.references)
    parts = draft.facts.phase
    if parts.review is not None:
        parts.reviewer = _role(parts.review, unit)
    if parts.verify is not None:
        _check_gate(draft, parts, parts.verify, unit)
    _keep_items_apart(draft, unit)


def _role(entries: Entries, unit: Unit) -> NamedRole:
    node = entries.nodes.get("agent")
    if isinstance(node, Scalar):
        return find_role(node.text, node, unit.around, unit.notes)
    return find_role("critic", None, unit.around, unit.notes)


def _check_gate(draft: Draft, parts: PhaseParts, verify: Entries, unit: Unit) -> None:
    parts.gate = verify.text("gate") or ""
    if not parts.gate:
        return
    by_command = parts.gate in {"command", "tests", "lint"}
    if "run" in verify.nodes and by_command:
        assert draft.inner is not None
        names = draft.inner.names - draft.items()
        parts.run = read_arguments(verify, unit.references, Place(draft, draft.inner, names))
    if parts.gate == "command" and verify.lacks("run"):
        message = f"a {quoted('command')} gate needs {quoted('run')}"
        unit.notes.error("recipe.missing_key", message, verify.nodes["gate"])
    if parts.gate == "critic":
        parts.critic = _role(verify, unit)
    for name, fits in (("run", by_command), ("agent", parts.gate == "critic")):
        if verify.has(name) and not fits:
            message = f"{quoted(name)} means nothing for {quoted(parts.gate)} gates"
            unit.notes.error("recipe.conflicting_keys", message, verify.keys[name])


def _keep_items_apart(draft: Draft, unit: Unit) -> None:
    """The list of a phase is evaluated for each task, among the tasks; no task may hide what it names."""
    assert draft.inner is not None
    if draft.item_name is None:
        return
    for name in draft.implied:
        task = draft.inner.by_id.get(name)
        node = task.entries.nodes.get("id") if task is not None else None
        if node is not None:
            message = f"the phase refers to a step {quoted(name)} outside, so no task can be called that"
            unit.notes.error("recipe.bad_id", message, node, "choose another id")


# ---------------------------------------------------------------------------------------------------
# Lowering


def lower_phase(draft: Draft, tasks: tuple[Step, ...], unit: Unit) -> Step:
    """The group a phase becomes."""
    parts = draft.facts.phase
    facts = draft.facts
    entries = draft.entries
    goal = entries.text("goal") or ""
    steps = [_mapped(task, facts.for_each, draft) for task in tasks]
    names = tuple(task.id for task in tasks)
    if parts.review is not None:
        steps.append(_review(parts, parts.review, goal, names, unit.defaults))
    if parts.verify is not None:
        steps.append(_verify(draft.id, parts, goal, tuple(step.id for step in steps), unit.defaults))
    stops = parts.verify is not None and parts.verify.text("on_fail") == "stop"
    iterations = (parts.converge.integer("max_iterations") if parts.converge is not None else None) or 2
    return Step(
        id=draft.id,
        action=GroupAction(
            steps=tuple(steps),
            max_concurrency=entries.integer("max_concurrency"),
            max_agents=entries.integer("max_agents"),
            phase=True,
            phase_kind=entries.text("kind") or "custom",
            goal=goal,
        ),
        depends_on=facts.depends_on,
        when=facts.when,
        repeat=Repeat(
            until=_UNTIL[parts.gate],
            max_iterations=1 if parts.verify is None or stops else iterations,
        ),
        fold=_fold(draft.id, goal),
        posture="writer" if any(task.posture == "writer" for task in tasks) else "read_only",
        retry=ONCE,
        on_failure="stop" if stops else unit.defaults.on_failure,
    )


_UNTIL = {
    "": "true",
    "command": "steps.verify.output.exit_code == 0",
    "tests": "steps.verify.output.exit_code == 0",
    "lint": "steps.verify.output.exit_code == 0",
    "critic": "steps.verify.output.pass",
    "approval": 'steps.verify.output.decision == "approve"',
}


def _mapped(task: Step, for_each: str | None, draft: Draft) -> Step:
    if for_each is None:
        return task
    return replace(
        task,
        for_each=for_each,
        item_name=draft.item_name or "item",
        max_items=draft.entries.integer("max_items") or 100,
    )


def _review(
    parts: PhaseParts, review: Entries, goal: str, tasks: tuple[str, ...], defaults: Defaults
) -> Step:
    instruction = (
        "Try to refute the result below: look for what is wrong, missing or unproven, and check it against "
        "the files. Say clearly what does not hold and why; say so if you found nothing."
    )
    action = _judge(parts.reviewer, _with_results(instruction, goal, tasks), "review", defaults)
    reviewers = review.integer("reviewers") or 1
    return _own_step("review", action, tasks, defaults, for_each=str(list(range(reviewers))))


def _verify(phase: str, parts: PhaseParts, goal: str, before: tuple[str, ...], defaults: Defaults) -> Step:
    if parts.gate == "critic":
        instruction = (
            "Judge whether the result below reaches the goal. Answer with `pass`, and in `feedback` what "
            "has to change; check it against the files before you let it pass."
        )
        action = _judge(parts.critic, _with_results(instruction, goal, before), "critic", defaults)
        return _own_step("verify", action, before, defaults, output_schema=VERDICT_SCHEMA)
    if parts.gate == "approval":
        question = ApprovalBody(
            approve=f'Accept the result of phase "{phase}"?',
            show=_with_results("", goal, before),
            choices=("approve", "reject"),
        )
        return Step(id="verify", action=question.action(), depends_on=before, retry=ONCE)
    command = CommandBody(run=parts.run, gate=parts.gate)  # type: ignore[arg-type]  # one of the table's words
    # Like every command without a write-set: in a snapshot that is thrown away.
    return _own_step("verify", command, before, defaults, outputs=COMMAND_OUTPUTS, workspace_mode="isolated")


def _judge(
    role: NamedRole | None, prompt: str, purpose: Literal["review", "critic"], defaults: Defaults
) -> AgentBody:
    assert role is not None
    return AgentBody(
        agent=role.name, agent_version=role.version, prompt=prompt, model=defaults.model, purpose=purpose
    )


def _own_step(step_id: str, body: Body, before: tuple[str, ...], defaults: Defaults, **more: Any) -> Step:
    """A step of the phase's own. Its failure is the gate's to judge, so `on_failure` stays `skip`: the
    loop's `until` then finds no verdict, which counts as false."""
    return Step(
        id=step_id,
        action=body.action(),
        depends_on=before,
        posture="read_only",
        timeout_ms=defaults.timeout_ms,
        retry=defaults.retry or USUAL_RETRY,
        **more,
    )


def _fold(phase: str, goal: str) -> Step:
    prompt = f'Summarize what phase "{phase}" found and did, for those who work on the next one.'
    return Step(
        id="fold",
        action=AgentBody(agent="summarizer", prompt=_with_results(prompt, goal, ()), purpose="fold").action(),
    )


def _with_results(instruction: str, goal: str, steps: tuple[str, ...]) -> str:
    """A prompt with the goal and the outputs of the steps before; the goal is text, never a template."""
    parts = [instruction] if instruction else []
    if goal:
        parts.append("Goal: " + goal.replace("{{", "\\{{"))
    parts += [f"Result of {step}:\n{{{{steps.{step}.output}}}}" for step in steps]
    return "\n\n".join(parts)
