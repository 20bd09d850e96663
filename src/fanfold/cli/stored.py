"""The runs of a project, for every command that looks at one or asks something of it.

A project in which nothing ran yet has no database; looking must not make one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fanfold.cli.command import Call
from fanfold.errors import NotFoundError
from fanfold.wiring import wire

if TYPE_CHECKING:
    from fanfold.kernel.nodes import Node, Run
    from fanfold.runtime.hosting.run_tree import RunTree
    from fanfold.runtime.operations.project import Project


def has_runs(call: Call) -> bool:
    """Whether anything was ever recorded in this project."""
    return wire(call.project).store.exists()


@contextmanager
def stored(call: Call, *, to_read: bool = False) -> Iterator[Project]:
    """The project with its store; refused when there is none. `to_read`: nothing in it will be changed."""
    wired = wire(call.project)
    project = wired.open_to_read() if to_read or not wired.store.exists() else wired.open()
    try:
        yield project
    finally:
        project.close()


def find_step(tree: RunTree, run: Run, path: str) -> Node:
    """The instance a person means: relative to the run, and on the root anywhere in the tree."""
    from fanfold.kernel.state import find_node

    node = find_node(tree.state, run.tree_path(path))
    if node is not None:
        return node
    from fanfold.text.diagnostics import nearest

    near = nearest(path, tuple(run.nodes))
    hint = f'did you mean "{near}"?' if near else f"fanfold inspect {run.id} --steps lists them"
    raise NotFoundError("step.not_found", f"run {run.id} has no step {path}", hint=hint)
