"""Subagents as the command line shows them: a table, a line, a document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fanfold.cli.command import Call
from fanfold.cli.terminal.output import one_line, paint, plain, say, say_json
from fanfold.cli.terminal.progress import tell
from fanfold.cli.terminal.statuses import COLOURS
from fanfold.errors import EXIT_FAILED, EXIT_OK
from fanfold.runtime.operations.hand_changes import changed
from fanfold.runtime.views.runs import failure_document, step_usage
from fanfold.sessions.lineage import CLOSED, COMPLETED, Child
from fanfold.sessions.opened import read_opened
from fanfold.store.protocol import Store

MAX_LINES = 20


def say_result(call: Call, store: Store, child: Child, brief: bool = False) -> int:
    """Say what came of one, or with `brief` only how it stands; the exit status."""
    if call.as_json:
        say_json(child_document(store, child))
    elif brief or child.status != COMPLETED:
        say(f"{child.subagent_id} is {child.status}\n")
        if child.error is not None:
            say(f"  {plain(child.error.message)}\n")
            if child.error.hint:
                say(f"  {plain(child.error.hint)}\n")
    else:
        say(f"{plain(child.summary)}\n")
        tell("".join(f"{line}\n" for line in _changes(store, child)))
    return EXIT_OK if brief or child.status == COMPLETED else EXIT_FAILED


def say_none(call: Call) -> int:
    """There is nobody to show."""
    say_json([]) if call.as_json else say("no subagents\n")
    return EXIT_OK


def say_table(call: Call, store: Store, children: Sequence[Child], with_changes: bool = False) -> int:
    """One line for each, or one document for all."""
    if not children:
        return say_none(call)
    if call.as_json:
        say_json([child_document(store, child) for child in children])
        return EXIT_OK
    columns = ("subagent_id", "role", "status")
    widths = [max(len(getattr(child, name)) for child in children) for name in columns]
    for child in children:
        status = paint(child.status.ljust(widths[2]), COLOURS.get(child.status, "blue"), call.colour)
        name = paint(child.subagent_id.ljust(widths[0]), "cyan", call.colour)
        text = child.summary or child.task
        say(f"{name}  {child.role.ljust(widths[1])}  {status}  {one_line(text, 80)}\n")
        if with_changes:
            say("".join(f"  {line}\n" for line in _changes(store, child)))
    return EXIT_OK


def _changes(store: Store, child: Child) -> list[str]:
    """What a subagent changed and what became of it, as lines."""
    opened = read_opened(store, child.session_id)
    told = changed(store, child, opened)
    changes = told["changes"] or []
    lines = [f"{one['kind']} {one_line(one['path'])}" for one in changes[:MAX_LINES]]
    if len(changes) > MAX_LINES:
        lines.append(f"and {len(changes) - MAX_LINES} more")
    if told["proposal"]:
        lines.append(f"proposed as {told['proposal']}: the project is as it was")
    elif changes and opened.settings.merge == "discard":
        lines.append("discarded: the project is as it was")
    return lines


def left_something(store: Store, child: Child) -> bool:
    """Whether one that is over waits for a person: to be told more, closed, or applied."""
    if child.status == CLOSED:
        return False
    opened = read_opened(store, child.session_id)
    kept = child.workspace != opened.settings.workspace and Path(child.workspace).is_dir()
    return kept or changed(store, child, opened)["proposal"] is not None


def child_document(store: Store, child: Child) -> dict[str, object]:
    """A subagent as scripts read it."""
    opened = read_opened(store, child.session_id)
    return {
        "id": child.subagent_id,
        "role": child.role,
        "task": child.task,
        "status": child.status,
        "summary": child.summary,
        "error": failure_document(child.error),
        "usage": step_usage(child.usage) if child.usage is not None else None,
        "depth": child.depth,
        "attempts": child.attempt,
        "permission": opened.settings.permission,
        # A snapshot is there while somebody works in it, and when it was kept.
        "workspace": child.workspace if Path(child.workspace).is_dir() else None,
        **changed(store, child, opened),
    }
