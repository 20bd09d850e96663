"""The live tree on a terminal, drawn with rich on stderr. No other module imports rich.

Drawing happens on the event loop, never in a thread, because it reads the tree of the scheduler. Its share of
the time is limited: a larger tree is drawn less often, and none while the terminal has pending output.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from time import perf_counter, time
from typing import IO, Any, cast

from msgspec.structs import replace
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fanfold.agents import entries
from fanfold.api.approvals import MARKS
from fanfold.api.display import duration
from fanfold.api.run_documents import wait_text
from fanfold.api.step_documents import Row, counts, rows_that_fit, run_rows
from fanfold.cli.output import COLOURS, MAX_FAILURES, Progress, is_behind, notify
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.kernel.events import Envelope, StepEvent, SubagentEvent
from fanfold.kernel.state import FAILED, PENDING, READY, RUN_TERMINAL, RUNNING, SKIPPED, TERMINAL, TIMED_OUT
from fanfold.language.terminal import cells, cut_end, cut_name, cut_start, one_line

# -----------------------------------------------------------------------------------------------------------
# One frame of the live view: a heading and the rows that fit, as lines of styled text.
#
# Rules
# * No line is wider and no frame is taller than the terminal: a wrapped line cannot be drawn over.
# * In a small terminal, agents are left out first, then names are cut. Running, waiting and failed steps have
#   priority over finished and pending ones.
# * Below `NARROW` cells, a note that does not fit beside the name has its own line. The activity of an agent
#   always has its own line, so that lines do not appear and disappear.

NARROW = 64
WIDE = 100
GAP = 2
MIN_NOTE = 12
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
STYLES = {**COLOURS, RUNNING: "blue", PENDING: "dim", READY: "dim"}

ActivityText = Callable[[str, int], str]
"""Returns the activity of the step at a path, cut to a number of cells."""


class Frames:
    """Draws a tree for a terminal of any size."""

    def __init__(self, *, unicode: bool, doing: ActivityText) -> None:
        self._unicode = unicode
        self._doing = doing
        self._moves = False
        self._levels = 0
        """Return the maximum depth of rows: indentation takes at most a fourth of the terminal."""
        self._drawn = 0

    def draw(self, tree: RunTree, width: int, height: int | None) -> list[Text]:
        """Return the next frame; without a height, all rows."""
        self._drawn += 1
        self._moves = self._unicode and height is not None
        self._levels = width // 8
        now = int(time() * 1_000)
        heading = self._heading(tree, now, width)
        if height is None:
            rows = run_rows(tree, tree.root, now)
            failed = [row.path for row in rows if row.leaf and row.status in (FAILED, TIMED_OUT)]
            if tree.root.status in RUN_TERMINAL and len(failed) <= MAX_FAILURES:  # the summary describes them
                rows = [replace(row, note="") if row.path in failed else row for row in rows]
            return [heading, *self._lines(rows, width)]
        room = max(1, height - 1)
        lines = self._lines(rows_that_fit(tree, now, room), width)
        if len(lines) > room:  # notes on their own lines
            most = max(1, room - (len(lines) - room) - 1)
            lines = self._lines(rows_that_fit(tree, now, most), width)[:room]
        return [heading, *lines]

    def _lines(self, found: Sequence[Row], width: int) -> list[Text]:
        if width < NARROW:
            return [line for row in found for line in self._narrow(row, width)]
        name = max((2 * row.depth + 2 + cells(row.name) for row in found), default=0)
        who = max((cells(row.who) for row in found), default=0) if width >= WIDE else 0
        took = max((len(row.took) for row in found), default=0)
        rest = took + GAP + (who + GAP if who else 0) + MIN_NOTE + GAP
        name = min(name, max(width // 2, width - rest - width // 3))
        return [self._wide(row, width, name, who, took) for row in found]

    def _wide(self, row: Row, width: int, name: int, who: int, took: int) -> Text:
        text = _padded(self._name(row, name), name + GAP)
        if who:
            text.append(row.who + " " * max(0, (who + GAP) - cells(row.who)), "dim")
        if took:
            text.append(row.took.rjust(took) + " " * GAP)
        text.append_text(self._note(row, width - cells(text.plain)))
        text.rstrip()
        return text

    def _narrow(self, row: Row, width: int) -> list[Text]:
        took = f" {row.took}" if row.took else ""
        text = self._name(row, width - len(took))
        indent = 2 * row.depth + 4
        note = self._note(row, max(0, width - indent))
        changes = row.leaf and row.status == RUNNING
        beside = not changes and cells(text.plain) + GAP + cells(note.plain) + len(took) <= width
        if note.plain and beside:
            text.append(" " * GAP).append_text(note)
        line = _padded(text, width - len(took)).append(took) if took else text
        return [line, Text(" " * indent).append_text(note)] if note.plain and not beside else [line]

    def _name(self, row: Row, room: int) -> Text:
        if not row.status:
            return Text(cut_end(row.name, room), "dim")
        pair = MARKS.get(row.status, ("·", "."))
        mark = pair[0] if self._unicode else pair[1]
        if row.status == RUNNING and self._moves:
            mark = SPINNER[self._drawn % len(SPINNER)]
        indent = "  " * min(row.depth, self._levels)
        text = Text(indent)
        text.append(f"{mark} ", STYLES.get(row.status, ""))
        room = max(1, room - len(indent) - 2)
        address = row.name.removesuffix(row.item)  # its whole path if it fits, and the distinctive part of it
        left = room - cells(address)
        name = address + cut_name(row.item, left) if row.item and left > 1 else cut_end(row.name, room)
        return text.append(name, "dim" if row.status in (PENDING, READY, SKIPPED) else "")

    def _note(self, row: Row, room: int) -> Text:
        note = cut_end(row.note, max(0, room)) if room > 1 else ""
        text = Text().append(note, STYLES.get(row.status, "dim"))
        if row.status != RUNNING or not row.leaf:
            return text
        left = room - cells(note) - 3 if note else room
        if doing := self._doing(row.path, left):
            text.append(" · " if note else "").append(doing)
        return text

    def _heading(self, tree: RunTree, now: int, width: int) -> Text:
        """Return the parts that fit; the less important ones are left out first."""
        status = run_status(tree.state, tree.root)
        found = counts(tree)
        started = tree.memory.run_started.get(tree.root.id)
        ended = tree.memory.run_ended.get(tree.root.id) if status in RUN_TERMINAL else None
        spent, _ = tree.spent(tree.root)
        plan = tree.root.plan
        done = sum(found[word] for word in TERMINAL)
        parts = [  # (priority, text, style), in order of display
            (1, cut_end(one_line(f"{plan.name}@{plan.version}"), max(12, width // 3)), "bold"),
            (6, f"run {tree.root.id}", "dim"),
            (0, status, STYLES.get(status, "bold")),
            (3, duration((ended or now) - started) if started else "", ""),
            (2, f"{done}/{sum(found.values())} steps", "dim"),
            (4, f"{found[RUNNING]} running" if found[RUNNING] else "", "blue"),
            (1, f"{found['failed']} failed" if found["failed"] else "", "red"),
            (5, f"{spent.tokens:,} tokens" if spent.tokens else "", "dim"),
        ]
        kept = sorted(part for part in parts if part[1])
        while len(kept) > 1 and sum(cells(said) + GAP for _, said, _ in kept) - GAP > width:
            kept.pop()
        text = Text()
        for part in parts:
            if part in kept:
                text.append(" " * GAP if text.plain else "").append(part[1], part[2])
        return text


def _padded(text: Text, width: int) -> Text:
    return text.append(" " * max(0, width - cells(text.plain)))


PERIOD_S = 0.1
SHARE = 20
"""The pause between drawings, as a multiple of the time of the last one."""
MAX_FINAL_LINES = 300
KEPT_CHARS = 400
"""The number of characters of the latest text of a session to keep."""


class _LiveOutput:
    """Stderr for rich: writes through `notify`, so that a closed terminal does not end the run."""

    def write(self, text: str) -> int:
        notify(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


class LiveTree(Progress):
    """Redraws the tree of a run in place until closed."""

    def __init__(self, *, no_color: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(
            file=cast("IO[str]", _LiveOutput()), no_color=no_color or None, highlight=False
        )
        self._live: Live | None = None
        self._tree: RunTree | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._suspended = False
        self._doing = SessionActivities()
        unicode = self.console.encoding.lower().startswith("utf")
        self._frames = Frames(unicode=unicode, doing=self._doing.now)

    def hear(self, run: str, step: str, news: entries.News) -> None:
        found = self._tree.state.runs.get(run) if self._tree is not None else None
        if found is not None:
            self._doing.hear(found.tree_path(step), news)

    def update(self, written: Sequence[Envelope], tree: RunTree) -> None:
        self._tree = tree
        for envelope in written:
            if isinstance(envelope.data, StepEvent | SubagentEvent):
                node = tree.state.runs[envelope.run_id].nodes.get(envelope.data.step)
                if node is not None and node.status in TERMINAL:
                    self._doing.forget(node.run.tree_path(node.path))
        if self._live is None and not self._suspended:
            self._live = Live(
                console=self.console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
            self._tick()

    def suspend(self) -> None:
        self._suspended = True
        self._end()

    def resume(self) -> None:
        self._suspended = False

    def close(self) -> None:
        self._end()
        self._suspended = True

    def picture(self, tree: RunTree, height: int | None) -> Group:
        """Return one frame; without a height, all rows up to a limit."""
        lines = self._frames.draw(tree, self.console.width, height)
        for wait in tree.state.waits.values():
            lines.append(Text(one_line(f"waits: {wait_text(wait)}", self.console.width - 1), "yellow"))
        if len(lines) > MAX_FINAL_LINES:
            more = Text(f"… {len(lines) - MAX_FINAL_LINES} more lines", "dim")
            lines = [*lines[:MAX_FINAL_LINES], more]
        return Group(*lines)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._live is not None and self._tree is not None:
            self._live.vertical_overflow = "visible"
            self._live.update(self.picture(self._tree, None), refresh=True)
            self._live.stop()
        self._live = None

    def _tick(self) -> None:
        assert self._live is not None
        assert self._tree is not None
        began = perf_counter()
        if not is_behind(sys.stderr):
            self._live.update(self.picture(self._tree, max(4, self.console.height - 2)), refresh=True)
        spent = perf_counter() - began
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(PERIOD_S, spent * SHARE), self._tick)


class SessionActivities:
    """The latest activity of every running session, by the tree path of its step."""

    def __init__(self) -> None:
        self._replies: dict[str, str] = {}
        self._does: dict[str, str] = {}
        self._spent: dict[str, int] = {}

    def hear(self, path: str, news: entries.News) -> None:
        """Note an update from a session."""
        match news:
            case entries.TextDelta(delta=""):
                pass  # a heartbeat without text
            case entries.TextDelta(delta=delta):
                self._replies[path] = (self._replies.get(path, "") + delta)[-KEPT_CHARS:]
                self._does.pop(path, None)
            case entries.UsageUpdate(tokens=tokens):
                self._spent[path] = tokens
            case entries.Preparing(what=""):
                self._does.pop(path, None)
            case _:
                self._does[path] = activity_text(news)
                self._replies.pop(path, None)

    def forget(self, path: str) -> None:
        """Forget a finished session."""
        self._replies.pop(path, None)
        self._does.pop(path, None)
        self._spent.pop(path, None)

    def now(self, path: str, room: int) -> str:
        """Return the activity and spending of a session within a number of cells; empty if unknown."""
        spent = _short(self._spent[path]) if path in self._spent else ""
        left = room - cells(spent) - 3 if spent else room
        if left < 8:
            return spent if cells(spent) <= room else ""
        if path in self._does:
            words = one_line(self._does[path], left)
        else:
            words = cut_start(one_line(self._replies.get(path, "")), left)
        return f"{words} · {spent}" if words and spent else words or spent


def activity_text(news: entries.News) -> str:
    """Return the activity of a session, in the third person."""
    match news:
        case entries.AskingFor(tool=tool):
            return f"→ {tool}"
        case entries.Calling(tool=tool, about=about):
            return f"→ {tool} {about}" if about else f"→ {tool}"
        case entries.Preparing(what=what):
            return what
        case entries.FailedRequest():
            return news.words
        case entries.QueuedRequest():
            return news.message
        case entries.Fallback(model=model):
            return f"{model} does not answer, asks another"
        case entries.Compacting():
            return "sums up the conversation so far"
        case entries.StageNews(stage=stage, of=of, name=name):
            return f"stage {stage} of {of}" + (f": {name}" if name else "")
        case entries.UsageUpdate(tokens=tokens):
            return _short(tokens)
        case entries.TextDelta(delta=delta):
            return delta


def _short(tokens: int) -> str:
    """
    >>> _short(940), _short(12_345)
    ('940 tokens', '12.3k tokens')
    """
    return f"{tokens} tokens" if tokens < 1_000 else f"{tokens / 1_000:.1f}k tokens"
