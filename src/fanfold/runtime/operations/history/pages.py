"""Runs and events in pieces, for whoever cannot or will not have all of them."""

from __future__ import annotations

from itertools import islice

from msgspec import Struct

from fanfold.errors import NotFoundError
from fanfold.kernel.events import Envelope
from fanfold.runtime.operations.history.listing import listed
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.runs.rows import RunRow
from fanfold.runtime.views.shown import shown
from fanfold.store.protocol import RunHead


class RunPage(Struct, frozen=True):
    """Newest first. `next` is the cursor of what follows, None at the end."""

    items: list[RunRow]
    next: str | None


class EventPage(Struct, frozen=True):
    """Events of a tree in the order they happened. `next` and `previous` are the numbers to ask on from."""

    items: list[Envelope]
    next: int | None
    """`after` for the events that follow; None where the log ends for now."""
    previous: int | None
    """`before` for the events that came earlier; None at the first."""


SEARCHED = 200
"""Runs that are read at a time while those with some words are looked for."""
MAX_SEARCHED = 10_000


def page_of_runs(
    project: Project,
    *,
    status: str | None = None,
    recipe: str | None = None,
    words: str = "",
    limit: int = 50,
    cursor: str | None = None,
) -> RunPage:
    """Root runs, newest first, from a cursor on. `words` are looked for in ids, recipes and errors."""
    if not project.has_runs:
        return RunPage([], None)
    if cursor is not None and project.store.head(cursor) is None:
        raise NotFoundError("run.not_found", "this cursor is of no list here", hint="begin without one")
    found: list[RunHead] = []
    wanted = words.lower().split()
    looked_at, unseen = 0, None
    while len(found) <= limit:
        if looked_at >= MAX_SEARCHED:
            unseen = cursor  # enough for one question: whoever wants more asks on from here
            break
        size = SEARCHED if wanted else limit + 1
        heads = project.store.heads(status=status, recipe=recipe, before=cursor, limit=size)
        found += [head for head in heads if all(word in _text(head) for word in wanted)]
        looked_at += len(heads)
        if len(heads) < size:
            break
        cursor = heads[-1].run_id
    shown_heads = found[:limit]
    rows = [listed(project, head) for head in shown_heads]
    return RunPage(rows, shown_heads[-1].run_id if len(found) > limit else unseen)


def _text(head: RunHead) -> str:
    error = "" if head.error is None else head.error.message
    return f"{head.run_id} {head.recipe} {head.status} {error}".lower()


def page_of_events(
    project: Project, run: str, *, after: int | None = None, before: int | None = None, limit: int = 200
) -> EventPage:
    """Events of the tree that a run belongs to: behind a number, before one, or the last ones."""
    root = project.resolve(run).root_run_id
    reach = project.store.reach(root)
    if not reach:
        raise NotFoundError("run.not_found", f"run {run} has recorded nothing")
    if after is None:
        end = reach if before is None else min(before - 1, reach)
        after = max(0, end - limit)
        limit = max(0, end - after)
    elif before is not None:
        limit = max(0, min(limit, before - 1 - after))
    after = min(after, reach)
    events = list(shown(project.store, islice(project.store.tree(root, after), limit)))
    last = events[-1].tree_seq if events else after
    return EventPage(events, last if last < reach else None, after + 1 if after > 0 else None)
