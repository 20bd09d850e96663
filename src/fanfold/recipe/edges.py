"""Edges: what each step waits for, written or implied, and that nobody waits for himself.

Rules
* A reference is an edge. One that was not written is reported, with the repair, because a reader of
  `depends_on` should see the whole graph.
* A ring is reported once, at the step of it that is declared first, with every step of it by name.
* Everything here is linear in steps and edges: a generated recipe may have ten thousand of them.
"""

from __future__ import annotations

from collections import deque

from fanfold.recipe import parse
from fanfold.recipe.diagnostics import Fix
from fanfold.recipe.drafts import Draft, Scope
from fanfold.recipe.notes import Notes, quoted
from fanfold.recipe.parse import Scalar

MAX_RING_SHOWN = 20


def connect(scope: Scope, notes: Notes) -> None:
    """Settle the edges of one scope; the result is each draft's `facts["depends_on"]`."""
    forward = False
    for draft in scope.drafts:
        targets = _targets(draft)
        draft.facts["depends_on"] = tuple(target.id for target in targets)
        forward = forward or any(target.order >= draft.order for target in targets)
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


def _write_edges(draft: Draft, names: list[str], notes: Notes) -> Fix | None:
    """The repair that adds names to `depends_on`, in the style the author uses."""
    text = notes.source.text
    node = draft.entries.nodes.get("depends_on")
    if isinstance(node, parse.Sequence):
        if text[node.start : node.start + 1] == "[":
            if node.items:
                return notes.fix(
                    node.items[-1].end, node.items[-1].end, "".join(f", {name}" for name in names)
                )
            return notes.fix(node.start + 1, node.start + 1, ", ".join(names))
        if not node.items:
            return None
        last = node.items[-1]
        dash = text.rfind("-", 0, last.start)
        indent = " " * (dash - (text.rfind("\n", 0, dash) + 1))
        return notes.fix(last.end, last.end, "".join(f"\n{indent}- {name}" for name in names))
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


# ---------------------------------------------------------------------------------------------------
# Rings


def _report_rings(scope: Scope, notes: Notes) -> None:
    edges = {draft.id: _targets(draft) for draft in scope.by_id.values()}
    left = _not_sortable(scope, edges)
    for members in _strong_components(left, edges):
        first = min(members, key=lambda draft: draft.order)
        ring = _shortest_ring(first, {draft.id for draft in members}, edges)
        shown = [quoted(draft.id) for draft in ring[:MAX_RING_SHOWN]]
        if len(ring) > MAX_RING_SHOWN:
            shown.append(f"… ({len(ring)} steps)")
        chain = " → ".join([*shown, quoted(first.id)])
        at = first.entries.nodes.get("id") or first.entries.head()
        if len(ring) == 1:
            message = f"step {quoted(first.id)} depends on itself: {chain}"
        else:
            message = f"steps depend on each other in a ring: {chain}"
        notes.error("recipe.cycle", message, at, "remove one of these edges")


def _not_sortable(scope: Scope, edges: dict[str, list[Draft]]) -> list[Draft]:
    """Steps that are on a ring or behind one: what remains when all others have been put in order."""
    waiting = {step_id: len(targets) for step_id, targets in edges.items()}
    dependents: dict[str, list[str]] = {step_id: [] for step_id in edges}
    for step_id, targets in edges.items():
        for target in targets:
            dependents[target.id].append(step_id)
    ready = deque(step_id for step_id, count in waiting.items() if count == 0)
    while ready:
        done = ready.popleft()
        del waiting[done]
        for dependent in dependents[done]:
            waiting[dependent] -= 1
            if waiting[dependent] == 0:
                ready.append(dependent)
    return [scope.by_id[step_id] for step_id in waiting]


def _strong_components(drafts: list[Draft], edges: dict[str, list[Draft]]) -> list[list[Draft]]:
    """Tarjan's algorithm without recursion; only components that hold a ring are returned."""
    here = {draft.id for draft in drafts}
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[Draft] = []
    on_stack: set[str] = set()
    found: list[list[Draft]] = []
    for root in drafts:
        if root.id in number:
            continue
        work = [(root, iter(edges[root.id]))]
        number[root.id] = low[root.id] = len(number)
        stack.append(root)
        on_stack.add(root.id)
        while work:
            draft, targets = work[-1]
            target = next(targets, None)
            if target is not None:
                if target.id not in here:
                    continue
                if target.id not in number:
                    number[target.id] = low[target.id] = len(number)
                    stack.append(target)
                    on_stack.add(target.id)
                    work.append((target, iter(edges[target.id])))
                elif target.id in on_stack:
                    low[draft.id] = min(low[draft.id], number[target.id])
                continue
            work.pop()
            if work:
                parent = work[-1][0]
                low[parent.id] = min(low[parent.id], low[draft.id])
            if low[draft.id] == number[draft.id]:
                members = _pop_component(stack, on_stack, draft)
                if len(members) > 1 or draft in edges[draft.id]:
                    found.append(members)
    return found


def _pop_component(stack: list[Draft], on_stack: set[str], last: Draft) -> list[Draft]:
    members: list[Draft] = []
    while True:
        draft = stack.pop()
        on_stack.discard(draft.id)
        members.append(draft)
        if draft is last:
            return members


def _shortest_ring(first: Draft, members: set[str], edges: dict[str, list[Draft]]) -> list[Draft]:
    """The steps of a shortest ring through `first`, beginning with it."""
    came_from: dict[str, Draft] = {}
    queue = deque([first])
    while queue:
        draft = queue.popleft()
        for target in edges[draft.id]:
            if target is first:
                ring = [draft]
                while ring[-1] is not first:
                    ring.append(came_from[ring[-1].id])
                return ring[::-1]
            if target.id in members and target.id not in came_from:
                came_from[target.id] = draft
                queue.append(target)
    return [first]
