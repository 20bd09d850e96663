"""A run as rows: its steps, their instances, and the child runs below them, in plan order.

A fan-out shows what needs attention: counts for the whole map, and rows for items that run, wait or failed,
as many as fit. If there is little space, finished steps are folded first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import UNSET, Struct, UnsetType, field, structs
from msgspec.structs import replace

from fanfold.api.approvals import (
    KINDS,
    ApprovalDocument,
    gist,
    is_interrupted,
    is_open,
    item_name,
    status_of,
    stopped_at,
)
from fanfold.api.display import FailureDocument, StepUsage, duration, failure_document, step_usage, when
from fanfold.api.recipes import SuggestedSet
from fanfold.api.run_documents import (
    InspectStepDocument,
    PublishedFile,
    StepChanges,
    artifacts_of,
    inspect_step_document,
)
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.kernel import events
from fanfold.kernel.explain import SKIPPED_FOR
from fanfold.kernel.state import (
    ASKED,
    COMPLETED,
    DEFERRED,
    FAILED,
    HELD,
    INTERRUPTED,
    LEAF,
    MAP,
    PENDING,
    READY,
    RUN_TERMINAL,
    RUNNING,
    SKIPPED,
    TERMINAL,
    WAITING,
    Composite,
    Loop,
    Node,
    Run,
    Scope,
    WorkflowCall,
)
from fanfold.language.leaf_steps import AgentBody, find_body
from fanfold.language.template import Hole, UnresolvedPath, parse_template, render
from fanfold.language.terminal import CUT, cut_name, one_line
from fanfold.steps.agent import sections_of, sibling
from fanfold.steps.ids import session_id
from fanfold.steps.records import is_agent
from fanfold.steps.step_type import label_of, preparation
from fanfold.steps.values import VERIFY, against, is_phase, last_iteration

# -----------------------------------------------------------------------------------------------------------
# Rounds of loops that did not pass: every step of the round completed, but the round failed

MAX_WHY_CHARS = 100
MAX_LINES = 10


def did_not_pass(node: Node) -> bool:
    """Whether a node is a completed round that did not pass: its loop continued, or failed."""
    loop = node.parent
    if not isinstance(loop, Loop) or node.status != COMPLETED:
        return False
    if node is loop.children[-1] and node.step is loop.step.fold:
        return False
    newest = node is loop.children[loop.iteration - 1]
    return not newest or (not loop.converged and (loop.exhausted or loop.status in TERMINAL - {COMPLETED}))


def why_not(tree: RunTree, node: Node) -> str:
    """Return the short objections to a round of a phase; empty for loops that are not phases."""
    if not isinstance(node, Scope):
        return ""
    verdicts = []
    gate = next((child for child in node.children if child.step.id == VERIFY), None)
    if gate is not None and gate.status == COMPLETED:
        verdicts.append(verdict_in_words(tree.values.output(gate)))
    review = tree.values.review(node)
    if review is not None:
        verdicts.append(against(review))
    return ", ".join(word for word in verdicts if word)


def last_objections(tree: RunTree, node: Node) -> list[str]:
    """Return the objections to the last round of a phase that never passed: first line and last lines.

    Empty if a step failed, which has its own error.
    """
    if not isinstance(node, Loop) or node.status != FAILED or not is_phase(node):
        return []
    if not did_not_pass(last_iteration(node)):
        return []
    review = tree.values.feedback_on(last_iteration(node))
    lines = [line for line in review.splitlines() if line.strip()] if isinstance(review, str) else []
    return lines if len(lines) <= MAX_LINES else [lines[0], CUT, *lines[-(MAX_LINES - 2) :]]


def verdict_in_words(output: object) -> str:
    """Return the objection of a gate; empty if the phase passed."""
    if not isinstance(output, dict):
        return ""
    if output.get("exit_code"):
        return f"exit status {output['exit_code']}"
    if output.get("pass") is False:
        return one_line(f"the critic: {output.get('feedback') or 'no'}", MAX_WHY_CHARS)
    if output.get("decision") not in (None, "approve"):
        comment = f": {output['comment']}" if output.get("comment") else ""
        return one_line(f"answered {output['decision']}{comment}", MAX_WHY_CHARS)
    return ""


MAX_ITEMS = 12
"""A fan-out with at most this many items shows all of them."""
MAX_BUSY_ITEMS = 6
"""Shown items of a longer fan-out, if the available height is not known."""
MAX_NOTE_CHARS = 100
MAX_WHO_CHARS = 30
MAX_ITEM_CHARS = 44


_RANKS = {RUNNING: 0, WAITING: 0, PENDING: 2, READY: 2, COMPLETED: 3, SKIPPED: 3}
"""Running rows have the lowest rank, then failed, then pending ones."""
_FAILED_RANK = 1
_LAST_RANK = 3
MAX_ROWS = 20_000


class Row(Struct, frozen=True):
    """One row of a run. `note` shows a question, an error or counts."""

    depth: int
    name: str
    path: str
    """Tree path from the root."""
    status: str
    who: str
    took: str
    note: str
    leaf: bool = False
    """Whether it is a leaf step, not a group, map or child run."""
    item: str = ""
    """The last part of the name, if it is the name of an item."""
    asks: bool = False
    """Whether it waits for a person's answer."""


def run_rows(
    tree: RunTree, run: Run, now: int, *, every: bool = False, fold_finished: bool = False
) -> list[Row]:
    """Return the rows of one run and of the runs below it; `every` shows all of them."""
    return [row for row, _ in _Walk(tree, now, every, fold_finished).rows(run.scope.children)]


def rows_that_fit(tree: RunTree, now: int, height: int) -> list[Row]:
    """Return at most `height` rows, the interesting ones first."""
    walk = _Walk(tree, now)
    found = [row for row, _ in walk.rows(tree.root.scope.children)]
    if len(found) < height and walk.left_out:
        more = _Walk(tree, now, most=MAX_BUSY_ITEMS + height - len(found))
        all_of_it = [row for row, _ in more.rows(tree.root.scope.children)]
        found = all_of_it if len(all_of_it) <= height else found
    if len(found) > height:
        found = run_rows(tree, tree.root, now, fold_finished=True)
    if len(found) <= height:
        return found
    # Rows with a high rank are dropped first. A row has the best rank of the rows below it.
    ranks: dict[int, int] = {}
    best: list[int] = []  # depth → the best rank at that depth since the last row above
    for i, row in reversed(list(enumerate(found))):
        ranks[i] = min([_RANKS.get(row.status, _FAILED_RANK), *best[row.depth + 1 : row.depth + 2]])
        del best[row.depth + 1 :]
        best += [_LAST_RANK] * (row.depth + 1 - len(best))
        best[row.depth] = min(best[row.depth], ranks[i])
    kept = sorted(range(len(found)), key=lambda i: (ranks[i], i))[: height - 1]
    rest = f"… {len(found) - len(kept)} more steps"
    return [*(found[i] for i in sorted(kept)), Row(0, rest, "", "", "", "", "")]


def counts(tree: RunTree) -> Counter[str]:
    """Count the leaf steps in each status, over all runs."""
    return Counter(status_of(tree, node) for node in tree.nodes() if node.kind == LEAF)


class _Walk:
    def __init__(
        self,
        tree: RunTree,
        now: int,
        every: bool = False,
        fold_finished: bool = False,
        most: int = MAX_BUSY_ITEMS,
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

    def rows(self, nodes: Sequence[Node], depth: int = 0) -> Iterator[tuple[Row, Node]]:
        """Yield the row of each node, with the node, then the rows inside it."""
        for node in nodes:
            inside = self._inside(node)
            yield self._row(node, depth, inside), node
            if self._fold_finished and node.status in (COMPLETED, SKIPPED):
                continue
            if node.kind == MAP and not self._every and len(inside) > MAX_ITEMS:
                inside = self._attention(inside)
            yield from self.rows(inside, depth + 1)

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
        took = who = ""
        if node.started_at and status != SKIPPED and (node.ended_at or status in (RUNNING, WAITING)):
            took = duration((node.ended_at or self._now) - node.started_at)
        if isinstance(node, WorkflowCall):
            child = node.child
            who = f"{child.plan.name}@{child.plan.version}" if child is not None else "workflow"
        elif node.kind == LEAF:
            label = label_of(node.step)
            who = label.kind if node.step.traits.waits is not None else one_line(label.who, MAX_WHO_CHARS)
        note = self._note(node, inside)
        return Row(depth, name, path, status, who, took, note, node.kind == LEAF, item, is_open(node))

    def _status(self, node: Node) -> str:
        """Return the status. A running group in which nothing runs or waits is shown as ready."""
        if node.status != RUNNING or not isinstance(node, Composite) or not self._inside(node):
            return status_of(self._tree, node)
        found = self._shown.get(id(node))
        if found is None:
            inside = {self._status(one) for one in self._inside(node)}
            found = next((word for word in (RUNNING, WAITING) if word in inside), READY)
            self._shown[id(node)] = found
        return found

    def _note(self, node: Node, inside: Sequence[Node]) -> str:
        if node.kind == LEAF and node.status == COMPLETED and node.error is None and node.attempt <= 1:
            return ""  # as most steps end
        parts: list[str] = []
        if node.kind == MAP and inside:
            found = Counter(self._status(item) for item in inside)
            done = sum(found[status] for status in TERMINAL)
            words = (RUNNING, WAITING, "failed", "timed_out")
            busy = [f"{found[word]} {word}" for word in words if found[word]]
            parts.append(", ".join([f"{done}/{len(inside)}", *busy]))
        if node.attempt > 1 and node.kind == LEAF:
            parts.append(f"attempt {node.attempt}")
        if node.status == WAITING and (node.step.traits.waits is not None or node.reason == ASKED):
            asked = self._questions.get((node.run.id, node.path), "")
            parts.append(one_line(asked.partition("\n\n")[0], MAX_NOTE_CHARS))
        elif node.status == WAITING:
            other = {DEFERRED: f"waits for {node.subject}", HELD: "waits for files of another run"}
            parts.append(other.get(node.reason, "waits before its next attempt"))
        if is_interrupted(self._tree, node) and node.kind == LEAF:
            parts.append("was stopped; runs again when the run is resumed")
        if node.status == SKIPPED:
            parts.append(SKIPPED_FOR.get(node.reason, node.reason))
        first_hand = not isinstance(node, Composite) or node.failed_child is None
        if node.error is not None and first_hand and node.status in TERMINAL - {COMPLETED, SKIPPED}:
            parts.append(gist(node.error, MAX_NOTE_CHARS))
        elif node.error and node.kind == LEAF and node.status == COMPLETED and not node.step.traits.ends:
            parts.append(f"warning: {gist(node.error, MAX_NOTE_CHARS)}")
        if did_not_pass(node):
            why = why_not(self._tree, node)
            parts.append(f"did not pass: {why}" if why else "did not pass")
        if isinstance(node, WorkflowCall) and node.child is not None:
            parts.append(f"run {node.child.id}")
        return " · ".join(parts)

    def _attention(self, items: Sequence[Node]) -> list[Node]:
        """Of many items, return the first that run or wait and the first that failed, in list order."""
        busy = [one for one in items if self._status(one) in (RUNNING, WAITING)]
        settled = (PENDING, READY, COMPLETED, SKIPPED, RUNNING, WAITING)
        failed = [one for one in items if one.status not in settled]
        running = busy[: self._most]
        shown = (*running, *failed[: self._most - len(running) or 1])
        self.left_out |= len(shown) < len(busy) + len(failed)
        chosen = {id(one) for one in shown}
        return [one for one in items if id(one) in chosen]


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
    """When its clock stopped, in a paused run."""
    note: str = ""
    asks: bool = False
    """Whether it can be answered now."""
    child_run_id: str | None = None


class RunTable(Struct, frozen=True):
    """The rows of a run; `left_off` counts those beyond the limit.

    Outputs are not part of it: a page about two thousand steps must not carry them all.
    """

    rows: list[TableRow]
    left_off: int


def run_table(tree: RunTree, run: Run, now: int) -> RunTable:
    """Return the table of a run and of the runs below it."""
    rows = []
    walk = list(_Walk(tree, now, every=True).rows(run.scope.children))
    for row, node in walk[:MAX_ROWS]:
        spent, child = tree.usage_of(node), getattr(node, "child", None)
        table_row = TableRow(
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
            asks=row.asks,
            child_run_id=child.id if isinstance(child, Run) else None,
            **(structs.asdict(step_usage(spent)) if spent is not None else {}),
        )
        rows.append(table_row)
    return RunTable(rows, max(0, len(walk) - MAX_ROWS))


# -----------------------------------------------------------------------------------------------------------
# Explanations of runs and steps, as every surface shows them


class UsedSets(Struct, frozen=True):
    """The files that a step read and changed. `unseen_*` is the reason why there may be more of them."""

    reads: list[str]
    writes: list[str]
    unseen_reads: str = ""
    unseen_writes: str = ""
    unmerged: str = ""
    """Why the changes are not in the project."""


class ExplanationDocument(Struct, frozen=True):
    """`path` is a tree path; `reason` is a word, `message` the sentence for people."""

    path: str
    status: str
    reason: str
    blocked_by: list[str]
    message: str


class HistoryEntry(Struct, frozen=True):
    """Something that happened to a step, in one line."""

    at: str | None
    text: str


class ExplainedStep(ExplanationDocument, frozen=True):
    ran_then: str
    """Why it started when it did; empty if it did not start."""
    history: list[HistoryEntry]
    approval: ApprovalDocument | UnsetType = UNSET
    used: UsedSets | UnsetType = UNSET
    """The files that it read and changed, as far as known."""
    suggested: list[SuggestedSet] | UnsetType = UNSET
    """Sets that this run suggests for its step."""


class ExplainedRun(ExplanationDocument, frozen=True):
    steps: list[ExplanationDocument]
    """The steps that did not complete at once."""


# -----------------------------------------------------------------------------------------------------------
# One step with all its details


class PromptPart(Struct, frozen=True):
    """Inserted characters of a prompt, from the first up to and not including the last."""

    start: int = field(name="from")
    end: int = field(name="to")
    source: str
    """The path that was inserted: `inputs.topic`, `steps.gather.output`."""
    step: str | None
    """Tree path of the step that produced it."""


class PromptDocument(Struct, frozen=True):
    """`parts` are in order; the text between them is from the recipe."""

    text: str
    parts: list[PromptPart]


def prompt_of(tree: RunTree, node: Node) -> PromptDocument | None:
    """Return the prompt of an agent step; None for other steps, or if a value is not known yet."""
    body = find_body(AgentBody, node.step)
    if body is None:
        return None
    ready = preparation(tree.values, node)
    text: str = ""
    parts: list[PromptPart] = []

    def insert(value: str, source: str, giver: Node | None) -> None:
        nonlocal text
        if source:
            path = None if giver is None else giver.run.tree_path(giver.path)
            parts.append(PromptPart(len(text), len(text) + len(value), source, path))
        text += value

    try:
        template = parse_template(body.prompt or "")
        for part in template:
            if isinstance(part, Hole):
                name = str(part.path.parts[0]) if part.path.root == "steps" and part.path.parts else ""
                insert(render((part,), ready.names), part.path.text, sibling(node, name) if name else None)
            else:
                text += part
        for number, section in enumerate(sections_of(ready, body)):
            text += "\n\n" if template or number else ""
            insert(section.text, section.source, section.step)
    except UnresolvedPath:
        return None
    return PromptDocument(text, parts)


_ENDINGS = {"finished": "completed", "completed": "completed", "failed": "failed", "timed_out": "timed_out"}


class AttemptRow(Struct, frozen=True, kw_only=True):
    """One attempt. `executions` is more than 1 if another process continued it."""

    attempt: int
    status: str
    started_at: str | None
    ended_at: str | None
    executions: int
    error: FailureDocument | None
    usage: StepUsage | None
    session_id: str | None


class StepPage(InspectStepDocument, frozen=True, kw_only=True):
    """`tree_path` is its path seen from the root of the tree."""

    root_run_id: str
    tree_path: str
    description: str
    prompt: PromptDocument | None
    tries: list[AttemptRow]
    files: list[StepChanges]
    artifacts: list[PublishedFile]
    why: ExplanationDocument
    inside: list[str]
    """Tree paths of its contents: items, iterations, inner steps."""
    child_run_id: str | None
    stopped_at: str | None
    """When its clock stopped, in a paused run."""


def step_page(
    tree: RunTree,
    node: Node,
    log: Iterable[events.Envelope],
    files: list[StepChanges],
    why: ExplanationDocument,
) -> StepPage:
    """Return the page of a step; `log` is the log of its run."""
    child = getattr(node, "child", None)
    return StepPage(
        **structs.asdict(inspect_step_document(tree, node)),
        root_run_id=tree.root.id,
        tree_path=node.run.tree_path(node.path),
        description=node.step.description,
        prompt=prompt_of(tree, node) if node.attempt else None,
        tries=list(attempts_of(tree, node, log)),
        files=files,
        artifacts=[one for one in artifacts_of(tree, node.run) if one.step == node.path],
        why=why,
        inside=[one.run.tree_path(one.path) for one in getattr(node, "children", [])],
        child_run_id=None if child is None else child.id,
        stopped_at=when(stopped_at(tree)),
    )


class _Attempt(Struct):
    status: str = "running"
    started: int | None = None
    ended: int | None = None
    executions: int = 0
    error: events.Failure | None = None
    usage: events.Usage | None = None


def attempts_of(tree: RunTree, node: Node, log: Iterable[events.Envelope]) -> Iterator[AttemptRow]:
    """Yield the attempts of a step from the log of its run, up to the last folded event."""
    found: dict[int, _Attempt] = {}
    for envelope in log:
        if envelope.tree_seq > tree.tree_seq:
            break
        data = events.event_of(envelope).data
        if isinstance(data, events.Payment) and data.step == node.path:
            one = found.setdefault(data.attempt, _Attempt())
            one.usage = (one.usage or events.NOTHING_SPENT) + data.usage
        if not isinstance(data, events.StepData) or data.step != node.path or not data.attempt:
            continue
        one = found.setdefault(data.attempt, _Attempt())
        if data.status == "started":
            one.executions += 1
            one.started = one.started or envelope.at
        elif data.status in _ENDINGS:
            one.status, one.ended, one.error = _ENDINGS[data.status], envelope.at, data.error
        elif data.status in ("cancelled", "waiting"):
            one.status = data.status
        if data.usage is not None:
            one.usage = data.usage
    for number, one in sorted(found.items()):
        if number == node.attempt and one.status == "running" and is_interrupted(tree, node):
            one.status, one.ended = INTERRUPTED, stopped_at(tree)
        yield AttemptRow(
            attempt=number,
            status=one.status,
            started_at=when(one.started),
            ended_at=when(one.ended),
            executions=one.executions,
            error=failure_document(one.error, node),
            usage=None if one.usage is None else step_usage(one.usage),
            session_id=session_id(node.run.id, node.path, number) if is_agent(node) else None,
        )


# -----------------------------------------------------------------------------------------------------------
# A run over time: the spans in which each step ran or waited, and gaps without activity
#
# Spans come from the log, because the state only has the last attempt of a step. A gap is a long time in
# which nothing ran. So a run that waited overnight for a person is drawn without the night.

MIN_GAP_MS = 5_000
GAP_SHARE = 0.08
"""A pause of at most this share of the whole time is not a gap."""
_OPENING = {"started": RUNNING, "waiting": WAITING, "held": WAITING}
_CLOSING = {
    "completed", "finished", "failed", "timed_out", "cancelled", "interrupted", "retrying", "skipped",
}  # fmt: skip


class Span(Struct, frozen=True):
    """`end` is null while it lasts. Times are milliseconds since 1970."""

    start: int
    end: int | None
    attempt: int
    status: str


class TimelineRow(Struct, frozen=True):
    path: str
    label: str
    depth: int
    status: str
    leaf: bool
    spans: list[Span]


class TimeGap(Struct, frozen=True):
    start: int
    end: int


class Timeline(Struct, frozen=True):
    """The spans of the steps. `until` is now for an unfinished run, else its end."""

    rows: list[TimelineRow]
    gaps: list[TimeGap]
    start: int
    until: int
    left_off: int


def timeline(tree: RunTree, run: Run, envelopes: Iterable[events.Envelope], now: int) -> Timeline:
    """Return the timeline of a run and the runs below it; `tree` was folded from `envelopes`."""
    ended = run_status(tree.state, run) in RUN_TERMINAL
    now = now if (stopped := stopped_at(tree)) is None else stopped
    until = tree.memory.run_ended.get(run.id, tree.state.now) if ended else now
    spans = _spans(envelopes)
    walk = _Walk(tree, now, every=True)
    # A round that did not pass is not shown as failed, as in the graph and the table.
    rows = [replace(row, status=status_of(tree, node)) for row, node in walk.rows(run.scope.children)]
    # Composites are not in the log: their span is from the first start inside to the last end.
    at_depth: dict[int, list[Span]] = {}
    for row in reversed(rows):  # contents come after their container
        inside = at_depth.pop(row.depth + 1, None)
        if inside and not row.leaf:
            spans[row.path] = [replace(_hull(inside), status=row.status)]
        if own := spans.get(row.path):
            at_depth[row.depth] = [_hull([*at_depth.get(row.depth, ()), *own])]
    found = [
        TimelineRow(row.path, row.name, row.depth, row.status, row.leaf, spans.get(row.path, []))
        for row in rows[:MAX_ROWS]
    ]
    begun = tree.memory.run_started.get(run.id) or tree.memory.created_at
    ran = (span for row in found if row.leaf for span in row.spans if span.status != WAITING)
    work = [(span.start, until if span.end is None else span.end) for span in ran]
    gaps, reached = [], begun
    for start, end in sorted([*work, (until, until)]):
        if start - reached > max(MIN_GAP_MS, round((until - begun) * GAP_SHARE)):
            gaps.append(TimeGap(reached, start))
        reached = max(reached, end)
    return Timeline(found, gaps, begun, max(until, begun), max(0, len(rows) - MAX_ROWS))


def _spans(envelopes: Iterable[events.Envelope]) -> dict[str, list[Span]]:
    """Return spans by tree path. One ends with the next event of its step, or when the run pauses or ends."""
    spans: dict[str, list[Span]] = {}
    open_paths: dict[str, None] = {}

    def close(path: str, at: int, status: str) -> None:
        if path in open_paths:
            del open_paths[path]
            last = spans[path][-1]
            spans[path][-1] = replace(last, end=at, status=last.status if last.status == WAITING else status)

    for envelope in envelopes:
        data = events.event_of(envelope).data if isinstance(envelope.data, dict) else envelope.data
        if isinstance(data, events.RunFinished | events.RunPaused) and envelope.parent_run_id is None:
            for path in list(open_paths):
                close(path, envelope.at, "interrupted")
        if not isinstance(data, events.StepData) or data.late:
            continue
        path = f"{envelope.path}/{data.step}" if envelope.path else data.step
        if data.status in _OPENING:
            close(path, envelope.at, "interrupted")
            found = Span(envelope.at, None, data.attempt, _OPENING[data.status])
            spans.setdefault(path, []).append(found)
            open_paths[path] = None
        elif data.status in _CLOSING:
            close(path, envelope.at, "completed" if data.status == "finished" else data.status)
    return spans


def _hull(spans: Sequence[Span]) -> Span:
    ends = [span.end for span in spans if span.end is not None]
    end = max(ends) if len(ends) == len(spans) else None
    return Span(min(span.start for span in spans), end, 1, "")
