"""The steps of a run as lines of text, for reading rather than watching."""

from __future__ import annotations

from collections.abc import Iterator
from time import time

from fanfold.cli.terminal.output import one_line, paint, plain
from fanfold.cli.terminal.statuses import COLOURS
from fanfold.cli.terminal.step_rows import MARKS, MAX_NOTE_CHARS, Row, run_rows
from fanfold.kernel.lifecycle import COMPLETED
from fanfold.kernel.nodes import LEAF, Run
from fanfold.kernel.state import find_node
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.views.approvals import is_open
from fanfold.runtime.views.runs import MAX_ASKED_CHARS, approval_document, as_text

MAX_STEP_LINES = 12


def step_lines(tree: RunTree, run: Run, *, every: bool, colour: bool) -> Iterator[str]:
    """One line per step; with `every`, nothing is left out and outputs follow."""
    found = run_rows(tree, run, int(time() * 1_000), every=every)
    widths = [
        max((len(text) for text in column), default=0)
        for column in (
            ["  " * row.depth + row.name for row in found],
            [row.who for row in found],
            [row.took for row in found],
        )
    ]
    for row in found:
        yield _line(row, widths, colour)
        yield from _asked(tree, row, colour, every=every)
        if every:
            yield from _more(tree, row, colour)


def _line(row: Row, widths: list[int], colour: bool) -> str:
    shade = COLOURS.get(row.status, "dim" if row.status == "pending" else "blue")
    name = ("  " * row.depth + row.name).ljust(widths[0])
    mark = MARKS.get(row.status, ("·", "."))[0]
    parts = [
        f"  {paint(mark, shade, colour)} {name}",
        paint(row.status.ljust(9), shade, colour),
        paint(row.who.ljust(widths[1]), "dim", colour),
        row.took.rjust(widths[2]),
        paint(row.note, shade, colour),
    ]
    return "  ".join(parts).rstrip() + "\n"


def _asked(tree: RunTree, row: Row, colour: bool, *, every: bool) -> Iterator[str]:
    """What somebody must read before answering an approval; the row holds its question, if that is short."""
    node = find_node(tree.state, row.path)
    if node is not None and is_open(node):
        asked = approval_document(tree, node)
        long = len(" ".join(asked.question.split())) > MAX_NOTE_CHARS
        text = "\n".join([asked.question] * long + [asked.show] * bool(asked.show))
        indent = "  " * (row.depth + 3)
        yield from _quoted(text, indent, colour, MAX_ASKED_CHARS if every else MAX_STEP_LINES)
        if asked.choices:
            yield f"{indent}{paint('choices', 'cyan', colour)}: {plain(', '.join(asked.choices))}\n"


def _more(tree: RunTree, row: Row, colour: bool) -> Iterator[str]:
    node = find_node(tree.state, row.path)
    if node is None or node.kind != LEAF:
        return
    indent = "  " * (row.depth + 3)
    if node.error is not None and node.status != COMPLETED and node.error.hint:
        yield f"{indent}{paint('hint', 'cyan', colour)}: {one_line(node.error.hint)}\n"
    if node.output is None:
        return
    yield from _quoted(as_text(tree.blobs.get(node.output)), indent, colour, MAX_STEP_LINES)


def _quoted(text: str, indent: str, colour: bool, most: int) -> Iterator[str]:
    lines = plain(text).splitlines()
    yield from (f"{indent}{paint('│', 'dim', colour)} {one}\n" for one in lines[:most])
    if len(lines) > most:
        yield f"{indent}{paint('│', 'dim', colour)} … {len(lines) - most} more lines\n"
