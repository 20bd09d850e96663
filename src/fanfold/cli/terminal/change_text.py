"""What a run did to the project's files, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from fanfold.kernel.nodes import Run
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.text.terminal import one_line

MAX_CHANGES = 10


def change_lines(tree: RunTree, run: Run) -> Iterator[str]:
    """A line for each file that came home: how it changed, and which step changed it last."""
    if not tree.memory.changes:
        return
    from fanfold.runtime.views.runs.changes import came_home

    merged = came_home(tree, run)
    width = max((len(one_line(row.path)) for row in merged[:MAX_CHANGES]), default=0)
    for row in merged[:MAX_CHANGES]:
        yield f"  {one_line(row.path).ljust(width)}  {row.kind:8}  {one_line(row.step)}\n"
    if len(merged) > MAX_CHANGES:
        yield f"  and {len(merged) - MAX_CHANGES} more files: fanfold diff {run.id}\n"
