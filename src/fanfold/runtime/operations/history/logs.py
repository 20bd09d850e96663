"""What was recorded about a run: its own log, or the logs of its whole tree in the order things happened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from fanfold.kernel.events import Envelope
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.follow import follow
from fanfold.runtime.views.shown import shown
from fanfold.store.protocol import RunHead


def read_log(project: Project, head: RunHead, *, whole_tree: bool = False) -> Iterator[Envelope]:
    """What is there now."""
    store = project.store
    return shown(store, store.tree(head.root_run_id) if whole_tree else store.log(head.run_id))


async def follow_log(
    project: Project, head: RunHead, *, whole_tree: bool = False
) -> AsyncIterator[list[Envelope]]:
    """The same, and what is added, until the run has ended or nobody drives it."""
    async for written in follow(project, head.root_run_id):
        wanted = written if whole_tree else [one for one in written if one.log == head.run_id]
        if wanted:
            yield list(shown(project.store, wanted))
