"""A run as boxes: its plan, with what became of each step, and closed strips where there are many.

What the plan declares is there from the beginning, so a picture keeps its shape while the run goes on; only
what nobody could know before (items, iterations, child runs, steps added to an open run) comes in later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fanfold.kernel.lifecycle import PENDING
from fanfold.kernel.nodes import LEAF, LOOP, MAP, SCOPE, Composite, Node, Run, WorkflowCall
from fanfold.kernel.plan import GroupAction, Step
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.views.graph.boxes import (
    Box,
    Boxes,
    Label,
    boxes_of_steps,
    edges_of,
    kind_of,
    label,
    steps_inside,
)
from fanfold.runtime.views.graph.drawing import Drawing, draw_boxes
from fanfold.runtime.views.items import item_name
from fanfold.runtime.views.standing import KINDS, status_of

MAX_OPEN_BY_ITSELF = 24
"""A group of more children is closed until somebody opens it."""


class Opened(Struct, frozen=True):
    """What a reader opened and closed, by tree path; everything else is as it is by itself."""

    opened: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()


def parse_opened(text: str) -> Opened:
    """`path,path,-path`: opened, and with a minus closed."""
    words = [word for word in text.split(",") if word]
    return Opened(
        frozenset(word for word in words if not word.startswith("-")),
        frozenset(word[1:] for word in words if word.startswith("-")),
    )


def draw_run(tree: RunTree, run: Run | None = None, opened: Opened | None = None) -> Drawing:
    """Lay out a run as its tree is now."""
    return draw_boxes(_Boxer(tree, opened or Opened()).boxes_of_run(run or tree.root))


class _Boxer:
    def __init__(self, tree: RunTree, opened: Opened) -> None:
        self._tree = tree
        self._opened = opened
        self._labels: dict[int, Label] = {}

    def boxes_of_run(self, run: Run) -> Boxes:
        children = run.scope.children
        if not children and not run.plan.open:
            return boxes_of_steps(run.plan.steps, f"{run.path}/" if run.path else "", PENDING)
        return self._scope(children, growing=run.plan.open)

    def _scope(self, nodes: Sequence[Node], *, growing: bool = False) -> Boxes:
        steps = [_drawn_after_its_parent(node.step) if growing else node.step for node in nodes]
        edges = edges_of(steps)
        return Boxes(tuple(self._box(node) for node in nodes), tuple(edges), added_one_by_one=growing)

    def _box(self, node: Node) -> Box:
        path = node.run.tree_path(node.path)
        held = None if node.kind == LEAF else tuple(self._statuses_inside(node))
        child = node.child if isinstance(node, WorkflowCall) else None
        return Box(
            path=path,
            label=self._label(node),
            kind=_kind(node),
            status=status_of(self._tree, node),
            inside=self._inside(node, path, held) if held is not None else None,
            held=held,
            run_id=child.id if child is not None else None,
        )

    def _inside(self, node: Node, path: str, held: tuple[str, ...]) -> Boxes | None:
        assert isinstance(node, Composite)
        if path in self._opened.closed or not held:
            return None
        by_itself = node.kind in (SCOPE, LOOP) and len(held) <= MAX_OPEN_BY_ITSELF
        if node.kind == LOOP and not isinstance(node.step.action, GroupAction):
            by_itself = False
        if not by_itself and path not in self._opened.opened:
            return None
        if isinstance(node, WorkflowCall):
            return self.boxes_of_run(node.child) if node.child is not None else None
        if node.kind == SCOPE and not node.children:
            return boxes_of_steps(steps_inside(node.step), f"{path}/", node.status)
        if node.kind == SCOPE:
            return self._scope(node.children)
        boxes = tuple(self._box(child) for child in node.children)
        if node.kind == MAP:
            return Boxes(boxes, (), grid=True)
        return Boxes(boxes, tuple((i, i + 1) for i in range(len(boxes) - 1)))

    def _statuses_inside(self, node: Node) -> Iterable[str]:
        assert isinstance(node, Composite)
        if node.kind == SCOPE and not node.children:
            return [PENDING] * len(steps_inside(node.step))
        children = node.children
        if isinstance(node, WorkflowCall):
            children = [] if node.child is None else node.child.scope.children
        return [status_of(self._tree, child) for child in children]

    def _label(self, node: Node) -> Label:
        step = node.step
        known = self._labels.get(id(step))
        if known is None:
            known = self._labels[id(step)] = label(step)
        if node.parent is None or node.parent.kind not in (MAP, LOOP):
            return known
        name = item_name(self._tree, node) or node.path.rpartition("/")[2]
        return Label(name, known.subtitle, known.kind, (), f"{name}: {known.kind} {known.subtitle}".rstrip())


def _kind(node: Node) -> str:
    if node.kind in KINDS:
        return KINDS[node.kind]
    return "phase" if kind_of(node.step) == "phase" else "group"


def _drawn_after_its_parent(step: Step) -> Step:
    """In an open run an edge shows who asked for a step."""
    return replace(step, after=(*step.after, step.parent)) if step.parent else step
