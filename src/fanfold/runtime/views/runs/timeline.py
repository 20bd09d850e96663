"""A run over time: for every step the spans in which it ran or waited, and when nothing happened at all.

Spans come from the log, since the state remembers only the last attempt of a step. A gap is a long time in
which nothing ran: a run that waited a night for a person is drawn without the night.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fanfold.kernel.events import Envelope, Event, Finished, Paused, StepEvent, SubagentEvent, event_of
from fanfold.kernel.lifecycle import RUN_TERMINAL, RUNNING, WAITING
from fanfold.kernel.nodes import Run
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.views.runs.step_rows import MAX_ROWS, Row, nodes_by_path, run_rows
from fanfold.runtime.views.standing import status_of, stopped_at

MIN_GAP_MS = 5_000
GAP_SHARE = 0.08
"""What is no longer than this share of the whole is drawn as it was."""
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
    """`until` is now for a run that goes on, else when it ended."""

    rows: list[TimelineRow]
    gaps: list[TimeGap]
    start: int
    until: int
    left_off: int


def timeline(tree: RunTree, run: Run, envelopes: Iterable[Envelope], now: int) -> Timeline:
    """The spans of a run and of the runs below it; `envelopes` are those that `tree` was folded from."""
    ended = run_status(tree.state, run) in RUN_TERMINAL
    now = now if (stopped := stopped_at(tree)) is None else stopped
    until = tree.memory.run_ended.get(run.id, tree.state.now) if ended else now
    spans = _spans(envelopes)
    nodes = nodes_by_path(tree)
    # A round that did not pass is no failure here, as it is none in the graph and the table.
    rows = [
        replace(row, status=status_of(tree, nodes[row.path])) for row in run_rows(tree, run, now, every=True)
    ]
    _around(rows, spans)
    found = [
        TimelineRow(row.path, row.name, row.depth, row.status, row.leaf, spans.get(row.path, []))
        for row in rows[:MAX_ROWS]
    ]
    begun = tree.memory.run_started.get(run.id) or tree.memory.created_at
    ran = (span for row in found if row.leaf for span in row.spans if span.status != WAITING)
    work = [(span.start, until if span.end is None else span.end) for span in ran]
    return Timeline(found, _gaps(work, begun, until), begun, max(until, begun), max(0, len(rows) - MAX_ROWS))


def _spans(envelopes: Iterable[Envelope]) -> dict[str, list[Span]]:
    """By tree path. A span ends with the next word about its step, or when the run paused or ended."""
    spans: dict[str, list[Span]] = {}
    open_paths: dict[str, None] = {}

    def close(path: str, at: int, status: str) -> None:
        if path in open_paths:
            del open_paths[path]
            last = spans[path][-1]
            spans[path][-1] = replace(last, end=at, status=last.status if last.status == WAITING else status)

    for envelope in envelopes:
        event = (
            event_of(envelope) if isinstance(envelope.data, dict) else Event("", envelope.at, envelope.data)
        )
        data = event.data
        if isinstance(data, Finished | Paused) and envelope.parent_run_id is None:
            for path in list(open_paths):
                close(path, envelope.at, "interrupted")
        if not isinstance(data, StepEvent | SubagentEvent) or data.late:
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


def _around(rows: Sequence[Row], spans: dict[str, list[Span]]) -> None:
    """What holds others lasts from the first start inside it to the last end: the log has no word for it."""
    at_depth: dict[int, list[Span]] = {}
    for row in reversed(rows):  # what is inside comes after what holds it
        inside = at_depth.pop(row.depth + 1, None)
        if inside and not row.leaf:
            spans[row.path] = [replace(_hull(inside), status=row.status)]
        if found := spans.get(row.path):
            at_depth[row.depth] = [_hull([*at_depth.get(row.depth, ()), *found])]


def _hull(spans: Sequence[Span]) -> Span:
    ends = [span.end for span in spans if span.end is not None]
    end = max(ends) if len(ends) == len(spans) else None
    return Span(min(span.start for span in spans), end, 1, "")


def _gaps(work: list[tuple[int, int]], start: int, until: int) -> list[TimeGap]:
    least = max(MIN_GAP_MS, round((until - start) * GAP_SHARE))
    gaps: list[TimeGap] = []
    reached = start
    for begun, ended in sorted([*work, (until, until)]):
        if begun - reached > least:
            gaps.append(TimeGap(reached, begun))
        reached = max(reached, ended)
    return gaps
