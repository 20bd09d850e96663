"""Edges: what each step waits for, written or implied, and that nobody waits for himself.

Rules
* A reference is an edge. One that was not written is reported, with the repair, because a reader of
  `depends_on` should see the whole graph; but not where other edges lead there through other steps.
* A ring is reported once, at the step of it that is declared first, with every step of it by name.
* Everything here is linear in steps and edges: a generated recipe may have ten thousand of them.
"""

from __future__ import annotations

from fanfold.recipe.drafts.draft import Draft, DraftScope
from fanfold.text.diagnostics import Fix
from fanfold.text.notes import Notes, quoted
from fanfold.text.trees import tree
from fanfold.text.trees.tree import Scalar

MAX_RING_SHOWN = 20


def connect(scope: DraftScope, notes: Notes) -> None:
    """Settle the edges of one scope; the result is each draft's `facts.depends_on`."""
    forward = False
    for draft in scope.drafts:
        targets = _targets(draft)
        draft.facts.depends_on = tuple(target.id for target in targets)
        forward = forward or any(target.order >= draft.order for target in targets)
    for draft in scope.drafts:
        _warn_implied(draft, notes)
    if forward:  # edges that all lead to earlier steps cannot make a ring
        _report_rings(scope, notes)


def _targets(draft: Draft) -> list[Draft]:
    """What the step depends on, in the order of declaration."""
    by_id = draft.scope.by_id
    names = dict.fromkeys([*draft.written, *draft.implied])
    found = {by_id[name].order: by_id[name] for name in names if name in by_id}
    if draft.phase and not draft.entries.has("depends_on") and draft.order > 0:
        previous = draft.scope.drafts[draft.order - 1]
        if previous.id in by_id:
            found[previous.order] = previous
    return [found[order] for order in sorted(found)]


def _warn_implied(draft: Draft, notes: Notes) -> None:
    by_id = draft.scope.by_id
    missing = [name for name in draft.implied if name not in draft.written and name != draft.id]
    if draft.phase and not draft.entries.has("depends_on"):
        # Phases that follow one another wait for all earlier ones anyway.
        missing = [name for name in missing if name in by_id and by_id[name].order > draft.order]
    if draft.entries.has("depends_on") and "depends_on" not in draft.entries.nodes:
        return  # the list could not be read, so nobody knows what was written
    if missing and len(draft.written) + len(missing) > 1:
        reached = _reached(draft, min((by_id[name].order for name in missing if name in by_id), default=0))
        missing = [name for name in missing if name not in reached]
    for i, name in enumerate(missing):
        at, who = draft.implied[name]
        what = (
            f"step {quoted(draft.id)}"
            if who is draft
            else f"{quoted(draft.id)}, by its step {quoted(who.id)},"
        )
        message = f"{what} refers to {quoted(name)} without depending on it; the edge is implied"
        # One repair for all missing edges of a step: two would each write a `depends_on` of their own.
        fix = _write_edges(draft, missing, notes) if i == 0 else None
        notes.warning("recipe.implied_edge", message, at.span(), f"add {quoted(name)} to its depends_on", fix)


def _reached(draft: Draft, first: int) -> set[str]:
    """Every step, from the one declared at place `first` on, to which edges lead from here through others.

    What stands before that place is not followed: edges lead back, and else there is one warning more.
    """
    by_id = draft.scope.by_id
    found: set[str] = set()
    stack = [name for name in (*draft.written, *draft.implied) if name in by_id and name != draft.id]
    seen = set(stack)
    while stack:
        step = by_id[stack.pop()]
        for name in (*step.written, *step.implied) if step.order > first else ():
            if name in by_id:
                found.add(name)
                if name not in seen:
                    seen.add(name)
                    stack.append(name)
    return found


def _write_edges(draft: Draft, names: list[str], notes: Notes) -> Fix | None:
    """The repair that adds names to `depends_on`, in the style the author uses."""
    text = notes.source.text
    node = draft.entries.nodes.get("depends_on")
    if isinstance(node, tree.Sequence):
        return _extend_list(node, names, notes)
    if isinstance(node, Scalar):
        return notes.fix(node.start, node.end, f"[{', '.join([node.text, *names])}]")
    identifier = draft.entries.nodes.get("id")
    word = draft.entries.keys.get("id")
    if not isinstance(identifier, Scalar) or word is None:
        return None
    listed = f"depends_on: [{', '.join(names)}]"
    mapping = draft.entries.mapping
    if text[mapping.start : mapping.start + 1] == "{":
        return notes.fix(identifier.end, identifier.end, f", {listed}")
    indent = " " * (word.start - (text.rfind("\n", 0, word.start) + 1))
    return notes.fix(identifier.end, identifier.end, f"\n{indent}{listed}")


def _extend_list(node: tree.Sequence, names: list[str], notes: Notes) -> Fix | None:
    text = notes.source.text
    if not node.items:
        return notes.fix(node.start + 1, node.start + 1, ", ".join(names))
    last = node.items[-1]
    if text[node.start : node.start + 1] == "[":
        return notes.fix(last.end, last.end, "".join(f", {name}" for name in names))
    dash = text.rfind("-", 0, last.start)
    indent = " " * (dash - (text.rfind("\n", 0, dash) + 1))
    return notes.fix(last.end, last.end, "".join(f"\n{indent}- {name}" for name in names))


def _report_rings(scope: DraftScope, notes: Notes) -> None:
    from fanfold.kernel.graph import find_rings

    graph = {draft.id: draft.facts.depends_on for draft in scope.by_id.values()}
    for ring in find_rings(graph):
        first = scope.by_id[ring[0]]
        shown = [quoted(step_id) for step_id in ring[:MAX_RING_SHOWN]]
        if len(ring) > MAX_RING_SHOWN:
            shown.append(f"… ({len(ring)} steps)")
        chain = " → ".join([*shown, quoted(first.id)])
        at = first.entries.nodes.get("id") or first.entries.head()
        if len(ring) == 1:
            message = f"step {quoted(first.id)} depends on itself: {chain}"
        else:
            message = f"steps depend on each other in a ring: {chain}"
        notes.error("recipe.cycle", message, at, "remove one of these edges")
