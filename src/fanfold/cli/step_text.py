"""The steps and changes of a run as lines of text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from fanfold.api.approvals import MARKS, MAX_ASKED_CHARS, ApprovalDocument, OpenApproval
from fanfold.api.display import counted
from fanfold.api.run_documents import (
    InspectDocument,
    PulledChanges,
    indented,
    net_changes,
    steps_by_tree_path,
)
from fanfold.api.step_documents import MAX_NOTE_CHARS, Row
from fanfold.cli.output import COLOURS, first_lines, paint, plain, wrap_text
from fanfold.engine.run_tree import RunTree
from fanfold.kernel.state import Run
from fanfold.language.json_text import fitting
from fanfold.language.terminal import one_line

MAX_STEP_LINES = 12
MAX_NOTE_COLUMN = 60
"""A note that starts further right is not aligned when it is broken."""


def step_lines(run: InspectDocument, rows: Sequence[Row], *, every: bool, colour: bool) -> Iterator[str]:
    """Yield one line per row, and the question of waiting steps; with `every`, also outputs."""
    steps = steps_by_tree_path(run)
    widths = [
        max((len(text) for text in column), default=0)
        for column in (
            ["  " * row.depth + row.name for row in rows],
            [row.who for row in rows],
            [row.took for row in rows],
        )
    ]
    for row in rows:
        shade = COLOURS.get(row.status, "dim" if row.status == "pending" else "blue")
        name = ("  " * row.depth + row.name).ljust(widths[0])
        mark = MARKS.get(row.status, ("·", "."))[0]
        parts = [
            f"  {paint(mark, shade, colour)} {name}",
            paint(row.status.ljust(9), shade, colour),
            paint(row.who.ljust(widths[1]), "dim", colour),
            row.took.rjust(widths[2]),
        ]
        if row.note:
            before = " " * (sum(widths) + 21)
            fits = len(before) <= MAX_NOTE_COLUMN
            note = wrap_text(before + row.note, before)[len(before) :] if fits else row.note
            parts.append(paint(note, shade, colour))
        yield "  ".join(parts).rstrip() + "\n"
        step = steps.get(row.path)
        if step is None:
            continue
        indent = "  " * (row.depth + 3)
        if step.approval is not None:
            rest = f"fanfold inspect {run.run_id} {shlex.quote(row.path)}"
            # What a user must read before answering; the row contains a short question.
            asked = step.approval
            long = len(" ".join(asked.question.split())) > MAX_NOTE_CHARS
            text = "\n".join([asked.question] * long + [asked.show] * bool(asked.show))
            most, rest = (MAX_ASKED_CHARS, "") if every else (MAX_STEP_LINES, rest)
            yield from shown_lines(text, asked, indent, colour, most, rest)
        if every and row.leaf:
            if step.error is not None and step.error.hint:
                yield f"{indent}{paint('hint', 'cyan', colour)}: {one_line(step.error.hint)}\n"
            if step.output is not None:
                yield from _quoted(indented(step.output), indent, colour, MAX_STEP_LINES)


def question_lines(asked: ApprovalDocument, colour: bool) -> Iterator[str]:
    """Yield the whole question of a step."""
    text = "\n\n".join(part for part in (asked.question, asked.show) if part)
    yield from shown_lines(text, asked, "  ", colour, MAX_ASKED_CHARS)


def shown_lines(
    text: str,
    asked: OpenApproval | ApprovalDocument,
    indent: str,
    colour: bool,
    most: int = MAX_STEP_LINES,
    rest: str = "",
) -> Iterator[str]:
    """Yield the content of a question and the possible answers; with `rest`, uncut."""
    yield from _quoted(text, indent, colour, most, rest)
    if asked.choices:
        yield f"{indent}{paint('choices', 'cyan', colour)}: {plain(', '.join(asked.choices))}\n"
    elif asked.schema is not None:
        yield f"{indent}{paint('answer', 'cyan', colour)}: {one_line(fitting(asked.schema))}\n"


def _quoted(text: str, indent: str, colour: bool, most: int, rest: str = "") -> Iterator[str]:
    lines = plain(text).splitlines()
    most += len(lines) == most + 1  # the last line takes as much room as a note about it
    yield from (f"{indent}{paint('│', 'dim', colour)} {one}\n" for one in lines[:most])
    if len(lines) > most:
        more = f"… {len(lines) - most} more lines{f': {rest}' if rest else ''}"
        yield f"{indent}{paint('│', 'dim', colour)} {more}\n"


# -----------------------------------------------------------------------------------------------------------
# The file changes of a run, as lines of text.

MAX_CHANGES = 10
MAX_FILES = 20


def change_lines(tree: RunTree, run: Run) -> Iterator[str]:
    """Yield a line for each merged file: the kind of its change, and the last step that changed it."""
    merged = net_changes(tree, run)
    width = max((len(one_line(row.path)) for row in merged[:MAX_CHANGES]), default=0)
    for row in merged[:MAX_CHANGES]:
        yield f"  {one_line(row.path).ljust(width)}  {row.kind:8}  {one_line(row.step)}\n"
    if len(merged) > MAX_CHANGES:
        yield f"  and {len(merged) - MAX_CHANGES} more files: fanfold diff {run.id}\n"


def pulled(done: PulledChanges) -> Iterator[str]:
    """Yield the lines that report a pull."""
    if not done.changes:
        yield "this folder has all changes of the run\n"
        return
    yield f"pulled {counted(len(done.changes), 'file')}\n"
    lines = (f"  {change.kind} {one_line(change.path)}\n" for change in done.changes)
    yield from first_lines(lines, MAX_FILES, "  … {} more\n")
