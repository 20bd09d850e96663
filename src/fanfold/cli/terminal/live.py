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

from fanfold.agents.entries import (
    AskingFor,
    Calling,
    Compacting,
    Fallback,
    News,
    Preparing,
    Retrying,
    Spent,
    StageNews,
    TextDelta,
)
from fanfold.cli.terminal.frames import Frames
from fanfold.cli.terminal.output import is_behind, tell
from fanfold.kernel.events import Envelope, StepEvent, SubagentEvent
from fanfold.kernel.lifecycle import TERMINAL
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.text.terminal import cells, cut_start, one_line

PERIOD_S = 0.1
SHARE = 20
"""Drawing waits at least this many times as long as the last drawing took."""
MAX_FINAL_LINES = 300
KEPT_CHARS = 400
"""Of the last words of a session."""


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


class Doing:
    """The last word of every running session, by the tree path of its step."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._does: dict[str, str] = {}
        self._spent: dict[str, int] = {}

    def hear(self, path: str, news: News) -> None:
        """A session lets us know what it does."""
        match news:
            case TextDelta(delta=""):
                pass  # a sign of life, and nothing to show
            case TextDelta(delta=delta):
                self._said[path] = (self._said.get(path, "") + delta)[-KEPT_CHARS:]
                self._does.pop(path, None)
            case Spent(tokens=tokens):
                self._spent[path] = tokens
            case Preparing(what=""):
                self._does.pop(path, None)
            case _:
                self._does[path] = words_for(news)
                self._said.pop(path, None)

    def forget(self, path: str) -> None:
        """The session is over."""
        self._said.pop(path, None)
        self._does.pop(path, None)
        self._spent.pop(path, None)

    def now(self, path: str, room: int) -> str:
        """A few words within so many cells, or none: what it does or says, and what it has spent."""
        spent = _short(self._spent[path]) if path in self._spent else ""
        left = room - cells(spent) - 3 if spent else room
        if left < 8:
            return spent if cells(spent) <= room else ""
        if path in self._does:
            words = one_line(self._does[path], left)
        else:
            words = cut_start(one_line(self._said.get(path, "")), left)
        return f"{words} · {spent}" if words and spent else words or spent


def words_for(news: News) -> str:
    """What a session does, said by a third."""
    match news:
        case AskingFor(tool=tool):
            return f"→ {tool}"
        case Calling(tool=tool, about=about):
            return f"→ {tool} {about}" if about else f"→ {tool}"
        case Preparing(what=what):
            return what
        case Retrying(kind=kind, wait_s=wait_s):
            return f"{kind}, tries again in {wait_s:.0f} s"
        case Fallback(model=model):
            return f"{model} does not answer, asks another"
        case Compacting():
            return "sums up what was said so far"
        case StageNews(stage=stage, of=of, name=name):
            return f"stage {stage} of {of}" + (f": {name}" if name else "")
        case Spent(tokens=tokens):
            return _short(tokens)
        case TextDelta(delta=delta):
            return delta


def _short(tokens: int) -> str:
    """
    >>> _short(940), _short(12_345)
    ('940 tokens', '12.3k tokens')
    """
    return f"{tokens} tokens" if tokens < 1_000 else f"{tokens / 1_000:.1f}k tokens"
