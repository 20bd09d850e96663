"""Progress of a run on stderr: one plain line per transition, or a live tree on a terminal.

Progress is never the result: an error in it must not stop the run. A reader that closed the pipe gets no more
lines, and a slow reader does not delay the run.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Sequence
from time import time
from typing import TextIO

from fanfold.agents.entries import News, Preparing
from fanfold.api.report import Transition, Transitions
from fanfold.cli.output import COLOURS, Progress, clock, notify, paint, wants_colour
from fanfold.engine.run_tree import RunTree
from fanfold.kernel.events import Envelope
from fanfold.kernel.state import DEFERRED

_ITEM = r"\[\d+\]"
PATIENCE_S = 1.0
"""Longer work gets a line of its own."""


class Lines(Progress):
    """Progress as one line per transition."""

    def __init__(self, stream: TextIO, colour: bool) -> None:
        self._stream = stream
        self._colour = colour
        self._waiting: dict[tuple[str, str], asyncio.TimerHandle] = {}
        self._live: set[str] = set()
        """Items with an event other than waiting in a queue."""
        self._transitions = Transitions(name_items=True)

    def update(self, written: Sequence[Envelope], tree: RunTree) -> None:
        self._transitions.tree = tree
        found = (self._transitions.read(envelope) for envelope in written)
        lines = [
            line(one, tree.root.id, self._colour) for one in found if one is not None and self._is_shown(one)
        ]
        if lines:
            notify("".join(lines), self._stream)

    def _is_shown(self, one: Transition) -> bool:
        """Return whether to print a transition: not for queued items, nor for reused steps."""
        if one.word == DEFERRED:
            return False  # the run prints once what all items wait for
        if one.bare and one.path.endswith("]"):
            if one.word == "started":
                return False
            return one.word != "completed" or one.path in self._live
        items = [at.end() for at in re.finditer(_ITEM, one.path)]
        if one.reused and items:
            return False
        self._live.update(one.path[:end] for end in items)
        return True

    def hear(self, run: str, step: str, news: News) -> None:
        """Print a line for long work, in addition to the lines of transitions."""
        if not isinstance(news, Preparing):
            return
        waiting = self._waiting.pop((run, step), None)
        if waiting is not None:
            waiting.cancel()
        if news.what:
            later = asyncio.get_running_loop().call_later(PATIENCE_S, self._print_wait, run, step, news.what)
            self._waiting[run, step] = later

    def _print_wait(self, run: str, step: str, what: str) -> None:
        self._waiting.pop((run, step), None)
        tree = self._transitions.tree
        if tree is not None and (found := tree.state.runs.get(run)) is not None:
            transition = Transition(int(time() * 1_000), found.tree_path(step), "started", f"{what} …")
            notify(line(transition, tree.root.id, self._colour), self._stream)

    def close(self) -> None:
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting.clear()


def line(one: Transition, root: str, colour: bool) -> str:
    """Return a transition as one line of text."""
    name = one.path or f"run {root}"
    text = paint(one.text, COLOURS.get(one.word, "dim"), colour and one.word != "started")
    item = f" {paint(one.item, 'dim', colour)}" if one.item else ""
    return f"{paint(clock(one.at), 'dim', colour)} {paint(name, 'cyan', colour)}{item} {text}\n"


def open_progress(no_color: bool) -> Progress:
    """Return a live tree on a terminal, plain lines elsewhere."""
    stream = sys.stderr
    if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        from fanfold.cli.live import LiveTree

        return LiveTree(no_color=no_color)
    return Lines(stream, wants_colour(stream, no_color))
