"""One frame of the live view: a heading and the rows that fit, as lines of styled text.

Rules
* No line is wider than the terminal and no frame is taller: a line that wraps cannot be drawn over, and what
  was there before stays on the screen.
* Where there is little room, what matters least goes first: who does a step, then how long names are. What
  runs, waits or failed is on the screen before anything that is over or to come.
* Below `NARROW` cells a note that does not fit beside the name stands on a line of its own, under it. What an
  agent does right now always does: it changes, and lines should not come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import time

from rich.text import Text

from fanfold.cli.terminal.statuses import COLOURS
from fanfold.kernel.lifecycle import PENDING, READY, RUN_TERMINAL, RUNNING, SKIPPED, TERMINAL
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.views.runs.step_rows import Row, counts, run_rows, tallest
from fanfold.runtime.views.standing import MARKS
from fanfold.runtime.views.times import duration
from fanfold.text.terminal import cells, cut_end, cut_name, one_line

NARROW = 64
WIDE = 100
GAP = 2
MIN_NOTE = 12
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
STYLES = {**COLOURS, RUNNING: "blue", PENDING: "dim", READY: "dim"}

Doing = Callable[[str, int], str]
"""What the step at a path does right now, within so many cells."""


class Frames:
    """Draws a tree for a terminal of any size."""

    def __init__(self, *, unicode: bool, doing: Doing) -> None:
        self._unicode = unicode
        self._doing = doing
        self._moves = False
        self._levels = 0
        """How deep rows may stand: a fourth of the terminal is for their indentation at most."""
        self._drawn = 0

    def draw(self, tree: RunTree, width: int, height: int | None) -> list[Text]:
        """The next frame; without a height everything there is."""
        self._drawn += 1
        self._moves = self._unicode and height is not None
        self._levels = width // 8
        now = int(time() * 1_000)
        heading = self._heading(tree, now, width)
        if height is None:
            return [heading, *self._lines(run_rows(tree, tree.root, now), width)]
        room = max(1, height - 1)
        lines = self._lines(tallest(tree, now, room), width)
        if len(lines) > room:  # notes took lines of their own
            most = max(1, room - (len(lines) - room) - 1)
            lines = self._lines(tallest(tree, now, most), width)[:room]
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
            text.append(_fill(row.who, who + GAP), "dim")
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
        name = _cut(row, max(1, room - len(indent) - 2))
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
        """The parts that fit, the more important first to be sure of a place."""
        status = run_status(tree.state, tree.root)
        found = counts(tree)
        started = tree.memory.run_started.get(tree.root.id)
        ended = tree.memory.run_ended.get(tree.root.id) if status in RUN_TERMINAL else None
        spent, _ = tree.spent(tree.root)
        plan = tree.root.plan
        done = sum(found[word] for word in TERMINAL)
        parts = [  # (how important, text, style), as they stand
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


def _cut(row: Row, room: int) -> str:
    """The name of a row: its address whole, if there is any room, and of its item what tells it apart."""
    address = row.name.removesuffix(row.item)
    left = room - cells(address)
    return address + cut_name(row.item, left) if row.item and left > 1 else cut_end(row.name, room)


def _padded(text: Text, width: int) -> Text:
    return text.append(" " * max(0, width - cells(text.plain)))


def _fill(text: str, width: int) -> str:
    return text + " " * max(0, width - cells(text))
