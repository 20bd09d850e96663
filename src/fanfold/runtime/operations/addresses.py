"""Which run and which step a person means: ids, prefixes of ids, `last`; paths in a run or in its tree."""

from __future__ import annotations

from typing import NamedTuple

from fanfold.errors import NotFoundError
from fanfold.kernel.nodes import Node, Run
from fanfold.kernel.state import find_node
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.project import Project
from fanfold.runtime.records.subagents import child_name, is_agent


class Addressed(NamedTuple):
    """A run that somebody named, in a reader's copy of its tree."""

    tree: RunTree
    run: Run

    @property
    def root_id(self) -> str:
        return self.tree.root.id

    def turns(self, name: str) -> list[Node]:
        """The turns of a subagent, in order; empty where there is none of that name."""
        if not self.run.plan.open:
            return []
        return [node for node in self.run.scope.children if is_agent(node) and child_name(node.path) == name]

    def tree_path(self, path: str) -> str:
        """The path, seen from the root, of the instance a person means."""
        node = self.step(path)
        return node.run.tree_path(node.path)

    def step(self, path: str) -> Node:
        """The instance a person means: by its path in the run, or by that in the tree, as views show it."""
        run = self.run
        node = find_node(self.tree.state, run.tree_path(path))
        if node is None and run.path and path.startswith(f"{run.path}/"):
            node = find_node(self.tree.state, path)
        if node is not None:
            return node
        from fanfold.text.spelling import nearest

        near = nearest(path, tuple(run.nodes))
        hint = f'did you mean "{near}"?' if near else f"fanfold inspect {run.id} --steps lists them"
        raise NotFoundError("step.not_found", f"run {run.id} has no step {path}", hint=hint)


def find_run(project: Project, name: str, at: int | None = None) -> Addressed:
    """A run by id, unique prefix or `last`, as its log is now, or as it was after an event of its tree."""
    head = project.resolve(name)
    tree = project.view(head.root_run_id, at)
    run = tree.state.runs.get(head.run_id)
    if run is None:
        raise NotFoundError("run.not_found", f"run {head.run_id} has not begun")
    return Addressed(tree, run)
