"""The live tree on a terminal, drawn with rich on stderr. The only module that imports rich.

Drawing happens on the event loop, between decisions and never in a thread: the tree it reads is the
scheduler's own. Its share of the time is bounded; a larger tree is drawn less often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter, time

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fanfold.agents.entries import News
from fanfold.cli.terminal.activity import Doing
from fanfold.cli.terminal.statuses import COLOURS
from fanfold.kernel.events import Envelope
from fanfold.kernel.lifecycle import PENDING, READY, RUN_TERMINAL, RUNNING, SKIPPED, TERMINAL
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.views.status_marks import MARKS
from fanfold.runtime.views.step_rows import Row, counts, rows, tallest
from fanfold.runtime.views.transitions import duration

PERIOD_S = 0.1
SHARE = 20
"""Drawing waits at least this many times as long as the last drawing took."""
MAX_FINAL_ROWS = 300
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
STYLES = {**COLOURS, RUNNING: "blue", PENDING: "dim", READY: "dim"}


class LiveTree:
    """Redraws a run's tree in place until closed."""

    def __init__(self, *, no_color: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, no_color=no_color or None, highlight=False)
        self._unicode = self.console.encoding.lower().startswith("utf")
        self._live: Live | None = None
        self._tree: RunTree | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._frame = 0
        self._suspended = False
        self._doing = Doing()

    def hear(self, run: str, step: str, news: News) -> None:
        found = self._tree.state.runs.get(run) if self._tree is not None else None
        if found is not None:
            self._doing.hear(found.tree_path(step), news)

    def update(self, written: Sequence[Envelope], tree: RunTree) -> None:
        del written  # the tree says it all
        self._tree = tree
        if self._live is None and not self._suspended:
            self._begin()

    def suspend(self) -> None:
        self._suspended = True
        self._end()

    def resume(self) -> None:
        self._suspended = False

    def close(self) -> None:
        self._end()
        self._suspended = True

    def _begin(self) -> None:
        self._live = Live(
            console=self.console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()
        self._tick()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._live is not None and self._tree is not None:
            self._live.vertical_overflow = "visible"
            self._live.update(self.picture(self._tree, MAX_FINAL_ROWS), refresh=True)
            self._live.stop()
        self._live = None

    def _tick(self) -> None:
        assert self._live is not None
        assert self._tree is not None
        began = perf_counter()
        self._frame += 1
        self._live.update(self.picture(self._tree, max(4, self.console.height - 3)), refresh=True)
        spent = perf_counter() - began
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(PERIOD_S, spent * SHARE), self._tick)

    def picture(self, tree: RunTree, height: int) -> Table:
        """One frame: a heading and the rows that fit."""
        now = int(time() * 1_000)
        table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, style="dim")
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, overflow="ellipsis")
        found = rows(tree, now) if height >= MAX_FINAL_ROWS else tallest(tree, now, height)
        for row in found:
            table.add_row(self._name(row), row.who, row.took, self._note(row))
        whole = Table.grid()
        whole.add_row(self._heading(tree, now))
        whole.add_row(table)
        return whole

    def _name(self, row: Row) -> Text:
        if not row.status:
            return Text(row.name, "dim")
        pair = MARKS.get(row.status, ("·", "."))
        mark = pair[0] if self._unicode else pair[1]
        if row.status == RUNNING and self._unicode:
            mark = SPINNER[self._frame % len(SPINNER)]
        text = Text("  " * row.depth)
        text.append(f"{mark} ", STYLES.get(row.status, ""))
        text.append(row.name, "dim" if row.status in (PENDING, READY, SKIPPED) else "")
        return text

    def _note(self, row: Row) -> Text:
        text = Text(row.note, STYLES.get(row.status, "dim"))
        if row.status != RUNNING:
            self._doing.forget(row.path)
        elif doing := self._doing.now(row.path):
            text.append(" · " if row.note else "").append(doing, "dim")
        return text

    def _heading(self, tree: RunTree, now: int) -> Text:
        status = run_status(tree.state, tree.root)
        found = counts(tree)
        done = sum(found[word] for word in TERMINAL)
        text = Text()
        text.append(f"{tree.root.plan.name}@{tree.root.plan.version}  ", "bold")
        text.append(f"run {tree.root.id}  ", "dim")
        text.append(f"{status}  ", STYLES.get(status, "bold"))
        started = tree.memory.run_started.get(tree.root.id)
        ended = tree.memory.run_ended.get(tree.root.id) if status in RUN_TERMINAL else None
        if started:
            text.append(f"{duration((ended or now) - started)}  ")
        text.append(f"{done}/{sum(found.values())} steps  ", "dim")
        usage, _ = tree.spent(tree.root)
        if usage.tokens:
            text.append(f"{usage.tokens:,} tokens  ", "dim")
        if found["failed"]:
            text.append(f"{found['failed']} failed", "red")
        return text
