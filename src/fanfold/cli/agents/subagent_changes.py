"""What `fanfold diff` and `fanfold apply` do for a subagent that was started by hand."""

from __future__ import annotations

from msgspec import convert

from fanfold.cli.agents.subagents import find_child, open_hand, until_taken
from fanfold.cli.command import Call
from fanfold.errors import NotFoundError
from fanfold.runtime.hosting.requests import this_person
from fanfold.runtime.operations.by_hand import HAND, ask, is_taken
from fanfold.runtime.operations.hand_changes import (
    child_changes,
    conflicting,
    find_proposal,
    put,
    was_applied,
)
from fanfold.runtime.records.memory import ChangedPath
from fanfold.runtime.views.changes import Applied, StepChanges
from fanfold.sessions.opened import read_opened


def is_subagent(name: str) -> bool:
    """Whether this is how subagents are called; no run has a dot in its name."""
    return name.startswith(f"{HAND}.")


def find_changes(call: Call, id: str) -> list[StepChanges]:
    """What a subagent changed; raises NotFoundError when nothing of it is there."""
    with open_hand(call) as hand:
        child = find_child(hand, id)
        found = child_changes(hand.project, child, read_opened(hand.project.store, child.session_id))
    if not found:
        raise NotFoundError("changes.none", f"{id} is {child.status}, and nothing that it changed is there")
    return found


def apply_changes(call: Call, id: str, *, dry_run: bool) -> Applied:
    """Put what a subagent proposed into the project: by its host, so that its log tells of it."""
    with open_hand(call) as hand:
        child = find_child(hand, id)
        done = was_applied(hand.project.store, child)
        if done is not None:
            return Applied(
                run_id=id,
                step=id,
                proposal=done["proposal"],
                dry_run=dry_run,
                already=True,
                changes=convert(done["changes"], list[ChangedPath]),
            )
        spaces = hand.project.isolation.spaces
        proposal = find_proposal(spaces, child)
        would = spaces.apply(proposal, dry_run=True)
        if would.conflicts:
            raise conflicting(id, would)
        if not dry_run:
            number = ask(hand.project, "apply", {"id": id, "by": this_person()})
            until_taken(hand, number, lambda: True if is_taken(hand.project, number) else None)
    return Applied(
        run_id=id, step=id, proposal=proposal, dry_run=dry_run, changes=convert(put(would), list[ChangedPath])
    )
