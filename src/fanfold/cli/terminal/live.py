"""The live tree on a terminal, drawn with rich on stderr. With `frames`, the only module that imports rich.

Drawing happens on the event loop, between decisions and never in a thread: the tree it reads is the
scheduler's own. Its share of the time is bounded; a larger tree is drawn less often, and none while the
terminal has not taken the last drawing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import IO, Any, cast

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fanfold.agents.entries import News
from fanfold.cli.terminal.activity import Doing
from fanfold.cli.terminal.frames import Frames
from fanfold.cli.terminal.output import is_behind, tell
from fanfold.kernel.events import Envelope, StepEvent, SubagentEvent
from fanfold.kernel.lifecycle import TERMINAL
from fanfold.runtime.hosting.run_tree import RunTree

PERIOD_S = 0.1
SHARE = 20
"""Drawing waits at least this many times as long as the last drawing took."""
MAX_FINAL_LINES = 300


class _Told:
    """Stderr for rich: what is drawn is told like all else, and a terminal that is gone ends nothing."""

    def write(self, text: str) -> int:
        tell(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


class LiveTree:
    """Redraws a run's tree in place until closed."""

    def __init__(self, *, no_color: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(
            file=cast(IO[str], _Told()), no_color=no_color or None, highlight=False
        )
        self._live: Live | None = None
        self._tree: RunTree | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._suspended = False
        self._doing = Doing()
        unicode = self.console.encoding.lower().startswith("utf")
        self._frames = Frames(unicode=unicode, doing=self._doing.now)

    def hear(self, run: str, step: str, news: News) -> None:
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
            self._begin()

    def suspend(self) -> None:
        self._suspended = True
        self._end()

    def resume(self) -> None:
        self._suspended = False

    def close(self) -> None:
        self._end()
        self._suspended = True

    def picture(self, tree: RunTree, height: int | None) -> Group:
        """One frame; without a height everything there is, within reason."""
        lines = self._frames.draw(tree, self.console.width, height)
        if len(lines) > MAX_FINAL_LINES:
            more = Text(f"… {len(lines) - MAX_FINAL_LINES} more lines", "dim")
            lines = [*lines[:MAX_FINAL_LINES], more]
        return Group(*lines)

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
