"""Signs of life: which process drives a run, and how long ago it was heard of.

They are no events, so nothing that is kept until the next event may hold them.
"""

from __future__ import annotations

from msgspec import Struct

from fanfold.kernel.lifecycle import RUNNING, WAITING
from fanfold.runtime.operations.history.listing import owner_of
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.runs.rows import OwnerDocument

MAX_RUNS = 500


class Pulse(Struct, frozen=True):
    """Who drives the tree of a run, and how long ago it gave a sign of life; null when nobody does."""

    run_id: str
    owner: OwnerDocument | None
    heartbeat_age_ms: int | None


class Pulses(Struct, frozen=True):
    items: list[Pulse]


def pulse_of(project: Project, run: str) -> Pulse:
    """That of the tree a run belongs to, by the id of its root."""
    return _pulse(project, project.resolve(run).root_run_id)


def live_pulses(project: Project) -> Pulses:
    """Those of every root run that runs, or waits for somebody; the newest first."""
    if not project.has_runs:
        return Pulses([])
    heads = [head for word in (RUNNING, WAITING) for head in project.store.heads(status=word, limit=MAX_RUNS)]
    return Pulses([_pulse(project, head.run_id) for head in heads])


def _pulse(project: Project, root: str) -> Pulse:
    return Pulse(root, owner_of(project, root), project.store.heartbeat_age_ms(root))
