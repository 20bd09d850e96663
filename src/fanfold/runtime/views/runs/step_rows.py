"""A run as rows: its steps, the instances they became, and the child runs below them, in plan order.

A fan-out is shown by what needs attention: counts for the whole, rows for the items that run, wait or
failed, as many as there is room for. Where rows are scarce, what is finished is folded away first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct, structs

from fanfold.kernel.explain import SKIPPED_FOR
from fanfold.kernel.lifecycle import ASKED, COMPLETED, PENDING, READY, RUNNING, SKIPPED, TERMINAL, WAITING
from fanfold.kernel.nodes import LEAF, MAP, Composite, Node, Run, WorkflowCall
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.steps.registry import label_of
from fanfold.runtime.views.approvals import is_open
from fanfold.runtime.views.errors import gist
from fanfold.runtime.views.items import item_name
from fanfold.runtime.views.runs.rounds import did_not_pass, why_not
from fanfold.runtime.views.runs.rows import step_usage
from fanfold.runtime.views.standing import KINDS, is_interrupted, status_of, stopped_at
from fanfold.runtime.views.times import duration, when
from fanfold.text.terminal import cut_name, one_line

MAX_ITEMS = 12
"""Items of a fan-out that are all shown."""
MAX_BUSY_ITEMS = 6
"""Items of a longer one, where nobody says how much room there is."""
MAX_NOTE_CHARS = 100
MAX_WHO_CHARS = 30
MAX_ITEM_CHARS = 44


_RANKS = {RUNNING: 0, WAITING: 0, PENDING: 2, READY: 2, COMPLETED: 3, SKIPPED: 3}
_FAILED_RANK = 1
_LAST_RANK = 3
MAX_ROWS = 20_000


class Row(Struct, frozen=True):
    """One line; `note` says what is special: a question, an error, counts."""

    depth: int
    name: str
    path: str
    """As seen from the root of the tree."""
    status: str
    who: str
    took: str
    note: str
    leaf: bool = False
    """Whether it is work, and no group, map or child run around work."""
    item: str = ""
    """The last part of the name, where it is what an item is called."""


def run_rows(
    tree: RunTree, run: Run, now: int, *, every: bool = False, fold_finished: bool = False
) -> list[Row]:
    """The rows of one run and of the runs below it; `every` leaves nothing out."""
    return list(_Walk(tree, now, every, fold_finished).children(run.scope.children, 0))


def tallest(tree: RunTree, now: int, height: int) -> list[Row]:
    """As much as fits into `height` rows, the interesting parts first."""
    walk = _Walk(tree, now, every=False, fold_finished=False)
    found = list(walk.children(tree.root.scope.children, 0))
    if len(found) < height and walk.left_out:
        more = _Walk(tree, now, every=False, fold_finished=False, most=MAX_BUSY_ITEMS + height - len(found))
        all_of_it = list(more.children(tree.root.scope.children, 0))
        found = all_of_it if len(all_of_it) <= height else found
    if len(found) > height:
        found = run_rows(tree, tree.root, now, fold_finished=True)
    if len(found) <= height:
        return found
    ranks = _ranks(found)
    best = sorted(range(len(found)), key=lambda i: (ranks[i], i))[: height - 1]
    rest = f"… {len(found) - len(best)} more steps"
    return [*(found[i] for i in sorted(best)), Row(0, rest, "", "", "", "", "")]


def _ranks(found: Sequence[Row]) -> list[int]:
    """How soon each row is given up where there is no room for all: what runs stays longest, then what
    failed, then what is to come; a row is worth as much as the best below it.
    """
    ranks: list[int] = []
    best: list[int] = []  # depth → the best of the rows there since the last row above them
    for row in reversed(found):
        rank = min([_RANKS.get(row.status, _FAILED_RANK), *best[row.depth + 1 : row.depth + 2]])
        del best[row.depth + 1 :]
        best += [_LAST_RANK] * (row.depth + 1 - len(best))
        best[row.depth] = min(best[row.depth], rank)
        ranks.append(rank)
    return ranks[::-1]


def counts(tree: RunTree) -> Counter[str]:
    """How many steps that do work are in each status, over all runs."""
    return Counter(
        status_of(tree, node)
        for run in tree.state.runs.values()
        for node in run.nodes.values()
        if node.kind == LEAF
    )


class _Walk:
    def __init__(
        self, tree: RunTree, now: int, every: bool, fold_finished: bool, most: int = MAX_BUSY_ITEMS
    ) -> None:
        self._tree = tree
        self._most = most
        self.left_out = False
        """Whether an item that runs, waits or failed has no row."""
        self._questions = tree.memory.questions
        stopped = stopped_at(tree)
        self._now = now if stopped is None else stopped
        self._every = every
        self._fold_finished = fold_finished
        self._shown: dict[int, str] = {}

    def children(self, nodes: Sequence[Node], depth: int) -> Iterator[Row]:
        for node in nodes:
            yield from self._node(node, depth)

    def _node(self, node: Node, depth: int) -> Iterator[Row]:
        inside = self._inside(node)
        yield self._row(node, depth, inside)
        if not inside or (self._fold_finished and node.status in (COMPLETED, SKIPPED)):
            return
        if node.kind == MAP and not self._every and len(inside) > MAX_ITEMS:
            yield from self.children(self._attention(inside), depth + 1)
            return
        yield from self.children(inside, depth + 1)

    def _inside(self, node: Node) -> Sequence[Node]:
        if not isinstance(node, Composite):
            return ()
        if isinstance(node, WorkflowCall):
            return node.child.scope.children if node.child is not None else ()
        return node.children

    def _row(self, node: Node, depth: int, inside: Sequence[Node]) -> Row:
        name = node.path.rpartition("/")[2]
        item = cut_name(item_name(self._tree, node), MAX_ITEM_CHARS)
        name = f"{name} {item}" if item else name
        path = node.run.tree_path(node.path)
        status = "failed" if did_not_pass(node) else self._status(node)
        who, took, note = self._who(node), self._took(node, status), self._note(node, inside)
        return Row(depth, name, path, status, who, took, note, node.kind == LEAF, item)

    def _who(self, node: Node) -> str:
        if isinstance(node, WorkflowCall):
            child = node.child
            return f"{child.plan.name}@{child.plan.version}" if child is not None else "workflow"
        if node.kind != LEAF:
            return ""
        label = label_of(node.step)
        return label.kind if node.step.traits.waits is not None else one_line(label.who, MAX_WHO_CHARS)

    def _status(self, node: Node) -> str:
        """Its status; a group of which nothing runs or waits for somebody only stands in line."""
        if node.status != RUNNING or not isinstance(node, Composite) or not self._inside(node):
            return status_of(self._tree, node)
        found = self._shown.get(id(node))
        if found is None:
            inside = {self._status(one) for one in self._inside(node)}
            found = next((word for word in (RUNNING, WAITING) if word in inside), READY)
            self._shown[id(node)] = found
        return found

    def _took(self, node: Node, status: str) -> str:
        if not node.started_at or status == SKIPPED:
            return ""
        if node.ended_at:
            return duration(node.ended_at - node.started_at)
        return duration(self._now - node.started_at) if status in (RUNNING, WAITING) else ""

    def _note(self, node: Node, inside: Sequence[Node]) -> str:
        parts: list[str] = []
        if node.kind == MAP and inside:
            parts.append(self._tally(inside))
        if node.attempt > 1 and node.kind == LEAF:
            parts.append(f"attempt {node.attempt}")
        if node.status == WAITING and (node.step.traits.waits is not None or node.reason == ASKED):
            asked = self._questions.get((node.run.id, node.path), "")
            parts.append(one_line(asked.partition("\n\n")[0], MAX_NOTE_CHARS))
        elif node.status == WAITING:
            parts.append("waits before its next attempt")
        if is_interrupted(self._tree, node) and node.kind == LEAF:
            parts.append("was stopped; runs again when the run is resumed")
        if node.status == SKIPPED:
            parts.append(SKIPPED_FOR.get(node.reason, node.reason))
        first_hand = not isinstance(node, Composite) or node.failed_child is None
        if node.error is not None and first_hand and node.status in TERMINAL - {COMPLETED, SKIPPED}:
            parts.append(gist(node.error, MAX_NOTE_CHARS))
        if did_not_pass(node):
            why = why_not(self._tree, node)
            parts.append(f"did not pass: {why}" if why else "did not pass")
        if isinstance(node, WorkflowCall) and node.child is not None:
            parts.append(f"run {node.child.id}")
        return " · ".join(parts)

    def _attention(self, items: Sequence[Node]) -> list[Node]:
        """Of many items the first that run or wait, and the first that failed, as they stand in the list."""
        busy = [one for one in items if self._status(one) in (RUNNING, WAITING)]
        settled = (PENDING, READY, COMPLETED, SKIPPED, RUNNING, WAITING)
        failed = [one for one in items if one.status not in settled]
        running = busy[: self._most]
        shown = (*running, *failed[: self._most - len(running) or 1])
        self.left_out |= len(shown) < len(busy) + len(failed)
        chosen = {id(one) for one in shown}
        return [one for one in items if id(one) in chosen]

    def _tally(self, items: Sequence[Node]) -> str:
        found = Counter(self._status(item) for item in items)
        done = sum(found[status] for status in TERMINAL)
        words = (RUNNING, WAITING, "failed", "timed_out")
        parts = [f"{done}/{len(items)}", *(f"{found[word]} {word}" for word in words if found[word])]
        return ", ".join(parts)


class TableRow(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One step instance. `path` is its path in the tree, `run_id` the run whose step it is."""

    path: str
    depth: int
    name: str
    kind: str
    type: str
    who: str
    status: str
    run_id: str
    started_at: str | None = None
    ended_at: str | None = None
    attempts: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    stopped_at: str | None = None
    """When its time stopped, in a run that is paused."""
    note: str = ""
    asks: bool = False
    """Whether somebody may answer it now."""
    child_run_id: str | None = None


class RunTable(Struct, frozen=True):
    """`left_off` rows are more than anybody reads. Outputs are read one by one, where somebody looks: a page
    about two thousand steps must not carry them all.
    """

    rows: list[TableRow]
    left_off: int


def nodes_by_path(tree: RunTree) -> dict[str, Node]:
    """Every step instance of a tree, by its path in it."""
    return {one.tree_path(path): node for one in tree.state.runs.values() for path, node in one.nodes.items()}


def run_table(tree: RunTree, run: Run, now: int) -> RunTable:
    """The rows of a run and of the runs below it."""
    nodes = nodes_by_path(tree)
    rows = run_rows(tree, run, now, every=True)
    found = [_table_row(tree, nodes[row.path], row) for row in rows[:MAX_ROWS]]
    return RunTable(found, max(0, len(rows) - MAX_ROWS))


def _table_row(tree: RunTree, node: Node, row: Row) -> TableRow:
    spent = tree.memory.usage.get((node.run.id, node.path))
    child = getattr(node, "child", None)
    return TableRow(
        path=row.path,
        depth=row.depth,
        name=row.name,
        kind=KINDS.get(node.kind, "group"),
        type=node.step.type,
        who=row.who,
        status=status_of(tree, node),
        run_id=node.run.id,
        started_at=when(node.started_at),
        ended_at=when(node.ended_at),
        stopped_at=when(stopped_at(tree)),
        attempts=node.attempt,
        note=row.note,
        asks=is_open(node),
        child_run_id=child.id if isinstance(child, Run) else None,
        **(structs.asdict(step_usage(spent)) if spent is not None else {}),
    )
