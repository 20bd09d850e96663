"""What was recorded about a run: its own log, or the logs of its whole tree in the order things happened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from fanfold.kernel.events import Envelope
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.follow import follow
from fanfold.runtime.records.attempt_sessions import sessions_of
from fanfold.runtime.views.shown import shown
from fanfold.store.protocol import RunHead


def read_log(project: Project, head: RunHead, *, whole_tree: bool = False) -> Iterator[Envelope]:
    """What is there now."""
    store = project.store
    return shown(store, store.tree(head.root_run_id) if whole_tree else store.log(head.run_id))


def read_step_log(project: Project, run: str, name: str) -> list[Envelope]:
    """What was recorded about one step, or about a subagent with all its turns: by its run, and by its
    sessions themselves, in the order it happened.
    """
    found = find_run(project, run)
    nodes = found.turns(name) or [found.step(name)]
    paths = {node.path for node in nodes}
    store = project.store
    about = [one for one in store.log(nodes[0].run.id) if step_of(one) in paths]
    for node in nodes:
        for attempt in range(1, node.attempt + 1):
            for session in sessions_of(store, node, attempt):
                about += store.log(session)
    about.sort(key=lambda one: (one.at, not one.tree_seq))
    return list(shown(store, about))


def step_of(envelope: Envelope) -> str:
    """The step that an event of a run's log is about; empty when it is about none."""
    step = envelope.data.get("step", "") if isinstance(envelope.data, dict) else ""
    return str(step.get("id", "")) if isinstance(step, dict) else str(step)


async def follow_log(
    project: Project, head: RunHead, *, whole_tree: bool = False
) -> AsyncIterator[list[Envelope]]:
    """The same, and what is added, until the run has ended or nobody drives it."""
    async for written in follow(project, head.root_run_id):
        wanted = written if whole_tree else [one for one in written if one.log == head.run_id]
        if wanted:
            yield list(shown(project.store, wanted))
