"""Two runs held side by side: their recipes, what they were given, and what came of each step."""

from __future__ import annotations

from msgspec import Struct

from fanfold.kernel.nodes import LEAF, Node
from fanfold.kernel.plan import JSON
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.addresses import Addressed, find_run
from fanfold.runtime.operations.history.listing import owner_of
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.again.recipe_changes import RecipeChanges
from fanfold.runtime.operations.runs.again.recipe_changes import compare as compare_recipes
from fanfold.runtime.views.runs.rows import RunRow, StepUsage, run_row, step_usage
from fanfold.runtime.views.standing import status_of, stopped_at


class ComparedInput(Struct, frozen=True):
    name: str
    a: JSON
    b: JSON
    same: bool


class ComparedSide(Struct, frozen=True):
    """A step in one of the two."""

    status: str
    output: JSON
    usage: StepUsage | None
    """None for what spends nothing."""
    seconds: float | None


class ComparedStep(Struct, frozen=True):
    """`same`: both ended alike, with the same output. A side is None where the run has no such step."""

    path: str
    a: ComparedSide | None
    b: ComparedSide | None
    same: bool


class Comparison(Struct, frozen=True):
    a: RunRow
    b: RunRow
    recipe: RecipeChanges
    inputs: list[ComparedInput]
    steps: list[ComparedStep]
    left_off: int
    """Steps beyond those that are shown."""


MAX_STEPS = 1_000


def compare_runs(project: Project, a: str, b: str) -> Comparison:
    """The two runs, step by step; steps of either that the other does not have included."""
    one, two = find_run(project, a), find_run(project, b)
    left, right = _steps(one), _steps(two)
    paths = list(dict.fromkeys((*left, *right)))
    given, other = one.tree.values.inputs(one.run), two.tree.values.inputs(two.run)
    return Comparison(
        a=_row(project, one),
        b=_row(project, two),
        recipe=compare_recipes(one.run.plan, two.run.plan),
        inputs=[
            ComparedInput(name, given.get(name), other.get(name), given.get(name) == other.get(name))
            for name in dict.fromkeys((*given, *other))
        ],
        steps=[
            _compared(path, one.tree, left.get(path), two.tree, right.get(path)) for path in paths[:MAX_STEPS]
        ],
        left_off=max(0, len(paths) - MAX_STEPS),
    )


def _row(project: Project, found: Addressed) -> RunRow:
    tree = found.tree
    return run_row(tree.head(found.run), owner_of(project, found.root_id), stopped_at(tree))


def _steps(found: Addressed) -> dict[str, Node]:
    """Steps that do work, of a run and of those below it, by their path seen from it."""
    prefix = f"{found.run.path}/" if found.run.path else ""
    nodes = (node for run in found.tree.state.runs.values() for node in run.nodes.values())
    by_path = {node.run.tree_path(node.path): node for node in nodes if node.kind == LEAF}
    return {path.removeprefix(prefix): node for path, node in by_path.items() if path.startswith(prefix)}


def _compared(path: str, a: RunTree, left: Node | None, b: RunTree, right: Node | None) -> ComparedStep:
    one, two = _side(a, left), _side(b, right)
    same = one is not None and two is not None and (one.status, one.output) == (two.status, two.output)
    return ComparedStep(path, one, two, same)


def _side(tree: RunTree, node: Node | None) -> ComparedSide | None:
    if node is None:
        return None
    usage = tree.memory.usage.get((node.run.id, node.path))
    took = (node.ended_at - node.started_at) / 1_000 if node.ended_at and node.started_at else None
    return ComparedSide(
        status_of(tree, node),
        tree.blobs.get(node.output) if node.output is not None else None,
        None if usage is None else step_usage(usage),
        took,
    )
