"""Check what steps of every type say: edges, conditions, inputs, sets, schemas, retries.

Every field is checked on its own, so that one mistake hides no other. What passes is kept in the draft's
`facts` in the form the plan wants; `assembly` only puts it together. What the types add is checked by them.
"""

from __future__ import annotations

from fanfold.kernel.plan import USUAL_RETRY, RetryPolicy
from fanfold.recipe.checks.references import References, TextPlace, hint_to_owner
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.language.keys import RETRY
from fanfold.text.notes import Notes, listed, quoted, with_article
from fanfold.text.tables.entries import read_entries
from fanfold.text.trees.tree import Node, Scalar

ONCE = RetryPolicy(attempts=1)


def check_common(draft: Draft, unit: Unit, place: TextPlace) -> None:
    """Check what a step says with keys that belong to no type; inner steps are checked by themselves."""
    references = unit.references
    check_edges(draft, unit.notes, references)
    check_conditions(draft, references)
    _check_loop(draft, references)
    _check_contract(draft, unit, place)


def check_edges(draft: Draft, notes: Notes, references: References) -> None:
    """`depends_on` names steps of the same scope."""
    for step_id, node in draft.written.items():
        target = draft.scope.by_id.get(step_id)
        if target is not None:
            target.used = True
            continue
        hidden = references.elsewhere.get(step_id)
        outer = draft.scope.outer.find(step_id) if draft.scope.outer is not None else None
        owner = draft.scope.owner
        if outer is not None and owner is not None:
            hint = f"it is outside; put the edge on {quoted(owner.id)}, or refer to its output"
        elif hidden is not None and hidden.scope.owner is not None:
            hint = hint_to_owner(hidden, hidden.scope.owner)
        else:
            hint = notes.did_you_mean(step_id, draft.scope.by_id.keys() - {draft.id})
        what = "phase" if draft.phase else "step"
        message = f"{what} {quoted(draft.id)} depends on {quoted(step_id)}, which does not exist"
        notes.error("recipe.unknown_step", message if outer is None else message + " here", node, hint)


def check_conditions(draft: Draft, references: References) -> None:
    """`when` and `for_each`, of a step or a phase."""
    entries = draft.entries
    around = draft.scope.names
    when = entries.nodes.get("when")
    if isinstance(when, Scalar):
        # Judged per item in a map; before the first iteration of a loop, so it knows no iteration. A
        # phase hands its items to its tasks and is judged once.
        items = {draft.item_name, "index"} if draft.item_name is not None and not draft.phase else set()
        place = TextPlace(draft, draft.scope, around | frozenset(name for name in items if name))
        draft.facts.when = references.expression(when, place, "bool")
    for_each = entries.nodes.get("for_each")
    if isinstance(for_each, Scalar):
        place = TextPlace(draft, draft.scope, around)
        draft.facts.for_each = references.expression(for_each, place, "list")


def _check_loop(draft: Draft, references: References) -> None:
    until = draft.repeat.nodes.get("until") if draft.repeat is not None else None
    if isinstance(until, Scalar):
        place = TextPlace(draft, draft.inner or draft.scope, draft.names() | {"output"})
        draft.facts.until = references.expression(until, place, "bool")


def _check_contract(draft: Draft, unit: Unit, place: TextPlace) -> None:
    """What goes in and out: inputs, sets, schema, output names, retry."""
    entries = draft.entries
    references = unit.references
    if "inputs" in entries.nodes:
        from fanfold.recipe.checks.values import read_values

        giving = TextPlace(draft, draft.scope, place.names, placing=True)
        draft.facts.inputs = read_values(entries.nodes["inputs"], references, giving)
    if "read_set" in entries.nodes or "write_set" in entries.nodes:
        _check_sets(draft, references)
    if "output_schema" in entries.nodes:
        from fanfold.recipe.checks.output_schemas import read_schema

        draft.facts.output_schema = read_schema(entries.nodes["output_schema"], unit.notes)
    if "retry" in entries.nodes:
        draft.facts.retry = read_retry(entries.nodes["retry"], unit.notes)
    _check_output_names(draft, unit.notes)


def _check_sets(draft: Draft, references: References) -> None:
    from fanfold.recipe.checks.sets import read_set

    facts, nodes = draft.facts, draft.entries.nodes
    if "read_set" in nodes:
        facts.read_set, facts.templated_sets = read_set("read_set", draft, references)
    if "write_set" in nodes:
        facts.write_set, templated = read_set("write_set", draft, references)
        facts.templated_sets |= templated


def _check_output_names(draft: Draft, notes: Notes) -> None:
    seen: set[str] = set()
    syntax = draft.syntax
    allowed = syntax.output_names if syntax is not None and not draft.entries.has("output_schema") else ()
    for item in draft.entries.scalars("outputs"):
        if item.text in seen:
            notes.error("recipe.bad_value", f"output {quoted(item.text)} is named twice", item)
        seen.add(item.text)
        if syntax is not None and allowed and item.text not in allowed:
            what = with_article(syntax.name)
            hint = notes.did_you_mean(item.text, allowed) or f"{what} gives {listed(allowed)}"
            notes.error("recipe.bad_value", f"{what} has no output {quoted(item.text)}", item, hint)


def read_retry(node: Node, notes: Notes) -> RetryPolicy:
    """A `retry` object; what was not said keeps its default."""
    entries = read_entries(node, RETRY, notes)
    if entries is None:
        return USUAL_RETRY
    said: dict[str, object] = {
        "attempts": entries.integer("attempts"),
        "backoff_ms": entries.milliseconds("backoff"),
        "max_backoff_ms": entries.milliseconds("max_backoff"),
        "on": tuple(item.text for item in entries.scalars("on")) if "on" in entries.nodes else None,
    }
    return RetryPolicy(**{name: value for name, value in said.items() if value is not None})  # type: ignore[arg-type]  # checked words
