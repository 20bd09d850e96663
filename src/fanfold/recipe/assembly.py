"""Put checked drafts together into the plan. Nothing is judged here: every problem was reported before."""

from __future__ import annotations

from fanfold.kernel.plan import (
    USUAL_MAX_ITEMS,
    USUAL_RETRY,
    Action,
    GroupAction,
    Plan,
    Posture,
    Repeat,
    Step,
    WorkflowAction,
)
from fanfold.recipe.checks.fields import ONCE
from fanfold.recipe.checks.outputs import declared_names
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.drafts.draft import Draft, DraftScope
from fanfold.recipe.survey import key_path
from fanfold.recipe.types.grammar import LeafGrammar
from fanfold.recipe.types.table import STEPS
from fanfold.text.trees.tree import plain


def assemble_plan(unit: Unit) -> Plan:
    """The plan of one file; its sub-workflows are added by `closure`."""
    entries = unit.entries
    return Plan(
        name=unit.name,
        version=unit.version,
        description=entries.text("description") or "",
        inputs=tuple(unit.inputs.values()),
        steps=assemble_steps(unit.scope, unit),
        output=unit.output,
        limits=unit.limits,
        phased=unit.phased,
        metadata=plain(entries.nodes["metadata"]) if "metadata" in entries.nodes else {},
        source_hash=unit.source_hash,
    )


def assemble_steps(scope: DraftScope, unit: Unit) -> tuple[Step, ...]:
    """The steps of one scope, in the order they are declared."""
    return tuple(_assemble_step(draft, unit) for draft in scope.drafts)


def _assemble_step(draft: Draft, unit: Unit) -> Step:
    if draft.phase:
        from fanfold.recipe.phases import lower_phase  # most recipes have none

        assert draft.inner is not None
        return lower_phase(draft, assemble_steps(draft.inner, unit), unit)
    facts = draft.facts
    entries = draft.entries
    action = _action(draft, unit)
    attempting = draft.syntax is not None and draft.syntax.attempts
    defaults = unit.defaults
    timeout_ms = entries.milliseconds("timeout")
    return Step(
        id=draft.id,
        action=action,
        description=entries.text("description") or "",
        depends_on=facts.depends_on,
        when=facts.when,
        for_each=facts.for_each,
        item_name=draft.item_name or "item",
        key=key_path(entries) if entries.has("key") else "",
        max_items=entries.integer("max_items") or USUAL_MAX_ITEMS,
        max_concurrency=entries.integer("max_concurrency"),
        repeat=_repeat(draft),
        posture=_posture(draft, action),
        read_set=facts.read_set,
        write_set=facts.write_set,
        templated_sets=facts.templated_sets,
        workspace_mode=facts.workspace_mode,
        merge=entries.text("merge") or "auto",  # type: ignore[arg-type]  # the table allows these words only
        on_conflict=entries.text("on_conflict") or "fail",  # type: ignore[arg-type]  # checked words
        output_schema=facts.output_schema,
        outputs=tuple(declared_names(draft)),
        inputs=facts.inputs,
        timeout_ms=defaults.timeout_ms if timeout_ms is None and attempting else timeout_ms,
        # Groups, workflows and approvals have no attempts of their own.
        retry=facts.retry or defaults.retry or USUAL_RETRY if attempting else ONCE,
        on_failure=entries.text("on_failure") or defaults.on_failure,  # type: ignore[arg-type]  # checked words
        read_by=_read_by(draft) if facts.inline else (),
        cache=entries.flag("cache"),
    )


def _read_by(draft: Draft) -> tuple[str, ...]:
    """Who is told what the step leaves: by a reference, by the summary an agent gets, by its phase's fold."""
    owner = draft.scope.owner
    told = [
        other.id
        for other in draft.scope.drafts
        if other.id in draft.readers or (other.type == "agent" and draft.id in other.facts.depends_on)
    ]
    return (*told, "") if "" in draft.readers or (owner is not None and owner.phase) else tuple(told)


def _repeat(draft: Draft) -> Repeat | None:
    if draft.repeat is None:
        return None
    exhausted = draft.repeat.text("on_exhausted") or draft.entries.text("on_exhausted") or "fail"
    return Repeat(
        until=draft.facts.until,
        max_iterations=draft.repeat.integer("max_iterations") or 2,
        on_exhausted=exhausted,  # type: ignore[arg-type]  # checked words
    )


def _posture(draft: Draft, action: Action) -> Posture:
    if isinstance(action, GroupAction):
        return "writer" if any(step.posture == "writer" for step in action.steps) else "read_only"
    if isinstance(action, WorkflowAction):
        return "writer" if draft.facts.child_writes else "read_only"
    return draft.facts.posture


def _action(draft: Draft, unit: Unit) -> Action:
    if draft.inner is not None:
        return GroupAction(steps=assemble_steps(draft.inner, unit), output=draft.facts.output)
    assert draft.type is not None
    grammar = STEPS.grammars[draft.type]()
    if isinstance(grammar, LeafGrammar):
        return grammar.action(draft)
    return WorkflowAction(workflow=draft.facts.workflow)
