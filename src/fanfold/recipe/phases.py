"""Phases: the shape people think in, lowered to groups of steps.

A phase becomes a loop group. Its tasks are steps; a review becomes the step `review`, one instance per
reviewer; the gate becomes the step `verify`, and the loop's `until` asks for both verdicts; the summary is
the step `fold`, which runs once after the last iteration. Nothing in the kernel knows about reviews or
gates, and everything that holds for steps holds for phases.

Rules
* Phases follow one another in the order written, unless they say `depends_on`.
* `for_each` on a phase maps each of its tasks, so a task cannot have a `for_each` of its own then.
* `understand` and `review` phases only read; what is inside is narrowed, and a `write_set` is refused.
* A phase with neither gate nor review runs once. So does one whose gate says `on_fail: stop`. A review in
  which a result does not survive makes the round false, like a gate.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fanfold.kernel.plan import USUAL_MAX_ITEMS, GroupAction, Repeat, Step
from fanfold.recipe.checks.fields import ONCE, check_conditions, check_edges
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.drafts.facts import PhaseParts
from fanfold.recipe.drafts.roles import NamedRole
from fanfold.recipe.gates.gate import Gate, Judged, read_role
from fanfold.recipe.gates.table import GATES
from fanfold.recipe.gates.verdicts import REVIEW_SCHEMA, REVIEWER
from fanfold.recipe.language.keys import CONVERGE, PHASE, REVIEW
from fanfold.recipe.survey import new_draft, survey_body, survey_map
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.table import STEPS
from fanfold.text.notes import quoted
from fanfold.text.tables.entries import Entries, read_entries
from fanfold.text.trees.tree import Node

MAX_PHASES = 16
MAX_TASKS_PER_PHASE = 32
MAX_TASKS = 200
RESERVED_IDS = frozenset({"review", "verify", "fold"})
REVIEW_HOLDS = "review.holds"
"""Sees the tally of the round's votes as `review`."""
LOOP_NAMES = frozenset({"iteration", "feedback", "digest"})


# ---------------------------------------------------------------------------------------------------
# Reading


def survey_phases(nodes: list[Node], unit: Unit) -> None:
    """Read the phases and their tasks into drafts."""
    notes = unit.notes
    tasks = 0
    for node in nodes:
        entries = read_entries(node, PHASE, notes, unit.around.ceilings.highs)
        if entries is None:
            continue
        draft = new_draft(entries, unit.scope, notes, "")
        draft.phase = True
        draft.syntax = STEPS.syntaxes["group"]
        draft.narrowed = unit.narrowed or entries.text("kind") in {"understand", "review"}
        draft.facts.phase = _read_parts(entries, unit)
        for item in entries.scalars("depends_on"):
            draft.written.setdefault(item.text, item)
        survey_map(draft, notes)
        survey_body(draft, entries.items("tasks"), notes, unit.around.ceilings.highs, LOOP_NAMES)
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
        parts.verify = read_entries(entries.nodes["verify"], GATES.shape, unit.notes)
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
        parts.reviewer = read_role(parts.review, unit)
    if parts.verify is not None:
        _check_gate(draft, parts, parts.verify, unit)
    _check_rounds(draft, parts, unit)
    _keep_items_apart(draft, unit)


def _check_rounds(draft: Draft, parts: PhaseParts, unit: Unit) -> None:
    """Whether anything could ever make the phase run again, where it says how often."""
    word = draft.entries.keys.get("converge")
    if word is None or (_judges(parts) and not _stops(parts)):
        return
    if _judges(parts):
        message = f"phase {quoted(draft.id)} runs once: its gate says `on_fail: stop`"
        hint = "leave out `converge`, or say `on_fail: iterate`"
    else:
        message = f"phase {quoted(draft.id)} runs once: it has neither `verify` nor `review`"
        hint = "nothing says when it has to run again; add one of them, or leave out `converge`"
    unit.notes.warning("recipe.unused_key", message, word, hint)


def _judges(parts: PhaseParts) -> bool:
    return parts.verify is not None or parts.review is not None


def _stops(parts: PhaseParts) -> bool:
    return parts.verify is not None and parts.verify.text("on_fail") == "stop"


def _check_gate(draft: Draft, parts: PhaseParts, verify: Entries, unit: Unit) -> None:
    parts.gate = verify.text("gate") or ""
    if not parts.gate:
        return
    parts.judge = GATES.gates[parts.gate].check(verify, draft, unit)
    for name, word in verify.keys.items():
        only = verify.shape.keys[name].only
        if only and parts.gate not in only:
            message = f"{quoted(name)} means nothing for {quoted(parts.gate)} gates"
            unit.notes.error("recipe.conflicting_keys", message, word)


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
    phase = Judged(draft.id, entries.text("goal") or "", (), unit.defaults)
    steps = [_mapped(task, facts.for_each, draft) for task in tasks]
    reviewed = parts.review is not None and parts.reviewer is not None
    if parts.review is not None and parts.reviewer is not None:
        judged = replace(phase, steps=tuple(step.id for step in steps))
        steps.append(_review(parts.reviewer, parts.review.integer("reviewers") or 1, judged))
    gate = GATES.gates.get(parts.gate)
    if gate is not None:
        steps.append(gate.step(parts.judge, replace(phase, steps=tuple(step.id for step in steps))))
    stops = _stops(parts)
    iterations = (parts.converge.integer("max_iterations") if parts.converge is not None else None) or 2
    return Step(
        id=draft.id,
        action=GroupAction(
            steps=tuple(steps),
            max_concurrency=entries.integer("max_concurrency"),
            max_agents=entries.integer("max_agents"),
            phase=True,
            phase_kind=entries.text("kind") or "custom",
            goal=phase.goal,
        ),
        depends_on=facts.depends_on,
        when=facts.when,
        repeat=Repeat(
            until=_until(gate, reviewed),
            max_iterations=iterations if (parts.verify is not None or reviewed) and not stops else 1,
        ),
        fold=_fold(phase),
        posture="writer" if any(task.posture == "writer" for task in tasks) else "read_only",
        retry=ONCE,
        on_failure="stop" if stops else unit.defaults.on_failure,
    )


def _mapped(task: Step, for_each: str | None, draft: Draft) -> Step:
    if for_each is None:
        return task
    return replace(
        task,
        for_each=for_each,
        item_name=draft.item_name or "item",
        max_items=draft.entries.integer("max_items") or USUAL_MAX_ITEMS,
    )


def _review(reviewer: NamedRole, reviewers: int, phase: Judged) -> Step:
    body = AgentBody(
        agent=reviewer.name,
        agent_version=reviewer.version,
        prompt=phase.question(REVIEWER),
        model=phase.defaults.model,
        purpose="review",
    )
    return phase.step("review", body, for_each=str(list(range(reviewers))), output_schema=REVIEW_SCHEMA)


def _until(gate: Gate[Any] | None, reviewed: bool) -> str:
    """What must hold for the phase to be done: what was reviewed as a whole survived, and the gate passed."""
    held = [REVIEW_HOLDS] if reviewed else []
    passed = [gate.until] if gate is not None else []
    return " && ".join((*held, *passed)) or "true"


def _fold(phase: Judged) -> Step:
    prompt = f'Summarize what phase "{phase.id}" found and did, for those who work on the next one.'
    body = AgentBody(agent="summarizer", prompt=phase.question(prompt), purpose="fold")
    return Step(id="fold", action=body.action())
