"""Following what a call does for whoever waits for it: what happens, told in lines."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fanfold.kernel.lifecycle import PAUSED, RUN_TERMINAL, TERMINAL, WAITING
from fanfold.kernel.nodes import LEAF
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.background import Background
from fanfold.runtime.operations.runs.follow import follow, until
from fanfold.runtime.views.approvals import open_approvals
from fanfold.runtime.views.runs.transitions import Transitions, step_at
from fanfold.tools.caller import Caller


async def follow_run(caller: Caller, root: str, background: Background | None = None) -> RunTree:
    """Wait until a run has ended, pauses, or only people can go on; the tree as it is then.

    `background` is the process that was started for it, if this call did that.
    """
    project = caller.project
    tree = project.view(root)
    transitions = Transitions(lambda run, path: step_at(tree, run, path))
    async for written in follow(project, root, tree.tree_seq, starting=background):
        tree.catch_up(written)
        for envelope in written:
            told = transitions.read(envelope)
            if told is not None:
                name = f"{told.path} " if told.path else ""
                await caller.say(f"{_count(tree)}: {name}{told.text}")
    status = run_status(tree.state, tree.root)
    if background is not None and status not in (*RUN_TERMINAL, WAITING, PAUSED):
        raise background.ended_at_once()
    return tree


@asynccontextmanager
async def narrated(caller: Caller) -> AsyncIterator[Callable[[str], None]]:
    """Lines for whoever waits for the call, from work that cannot wait until each was told."""
    lines: asyncio.Queue[str | None] = asyncio.Queue()

    async def tell() -> None:
        while (line := await lines.get()) is not None:
            await caller.say(line)

    telling = asyncio.create_task(tell())
    try:
        yield lines.put_nowait
        lines.put_nowait(None)
        await telling
    finally:
        telling.cancel()


async def answered_elsewhere(project: Project, root: str, path: str) -> None:
    """Return when a question of a run is not open any more."""
    tree = project.view(root)

    def look() -> bool | None:
        tree.catch_up(list(project.store.tree(root, tree.tree_seq)))
        return None if any(one.path == path for one in open_approvals(tree)) else True

    await until(project, root, look, math.inf)


def _count(tree: RunTree) -> str:
    steps = [node for run in tree.state.runs.values() for node in run.nodes.values() if node.kind == LEAF]
    return f"{sum(node.status in TERMINAL for node in steps)} of {len(steps)} steps done"
