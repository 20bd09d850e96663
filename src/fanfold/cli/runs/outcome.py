"""How a run is reported to whoever started, resumed or forked it: result on stdout, summary on stderr.

`run`, `resume` and `fork` print the same things and end with the same status, also for a run that ended
long ago, so that a script need not know which of them it was that finished the work.
"""

from __future__ import annotations

import shlex
import sys

from fanfold.cli.command import Invocation
from fanfold.cli.terminal.change_text import change_lines
from fanfold.cli.terminal.output import hand_over, paint, say, say_json, tell, wants_colour
from fanfold.cli.terminal.statuses import COLOURS, clock
from fanfold.errors import EXIT_OK
from fanfold.kernel.lifecycle import CANCELLED, RUN_TERMINAL, WAITING
from fanfold.kernel.nodes import Node
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.runs.starting.limits import how_to_raise
from fanfold.runtime.records.open_runs import how_to_resume
from fanfold.runtime.views.approvals import default_due, how_to_answer, open_approvals
from fanfold.runtime.views.items import named_path
from fanfold.runtime.views.runs.documents import (
    exit_status,
    how_to_retry,
    indented,
    run_document,
    run_error,
    waiting_proposals,
)
from fanfold.runtime.views.runs.rounds import last_objections
from fanfold.runtime.views.times import duration
from fanfold.text.terminal import one_line

MAX_FAILURES = 5
MAX_REASON_CHARS = 400
MAX_WORDS = 8
"""Lines of what a program said last."""
NO_FLAG = "no flag raises it: the limit is one of a phase or child recipe, or the highest there is"


def say_detached(call: Invocation, tree: RunTree) -> int:
    """Say at once which run goes on in the background."""
    if call.as_json:
        say_json(run_document(tree))
    else:
        say(f"{tree.root.id}\n")
        tell(f"goes on in the background; follow it: fanfold watch {tree.root.id}\n")
    return EXIT_OK


def say_outcome(call: Invocation, tree: RunTree) -> int:
    """Print the result and what a person should know beside it; returns the exit status."""
    try:
        _say_result(call, tree)
    except BrokenPipeError:
        from fanfold.cli.failures import reader_left

        reader_left()  # who ran it may not care for the answer; the status still tells how it went
    colour = wants_colour(sys.stderr, call.no_color)
    tell("".join(_summary(call, tree, colour)))
    return exit_status(tree)


def _say_result(call: Invocation, tree: RunTree) -> None:
    document = run_document(tree)
    if call.as_json:
        say_json(document)
    elif document.output is not None:
        text = indented(document.output)
        hand_over(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


def _summary(call: Invocation, tree: RunTree, colour: bool) -> list[str]:
    status = run_status(tree.state, tree.root)
    lines = [f"{paint(status, COLOURS.get(status, 'bold'), colour)}  {_facts(tree)}\n"]
    lines += change_lines(tree, tree.root)
    lines += _proposals(tree)
    lines += _left_behind(tree)
    if status in RUN_TERMINAL:
        return lines + _failures(call, tree, colour) + _warnings(tree, colour) + _again(tree)
    held = run_error(tree, tree.root)
    if status == WAITING:
        lines += _how_to_answer(tree, colour)
        lines += _how_to_say_more(tree)
    elif held is not None and tree.state.pausing == "budget":
        lines.append(f"  {held.message}\n")
        raising = how_to_raise(tree)
        lines.append(f"  raise it: {raising}\n" if raising else f"  {NO_FLAG}\n")
    else:
        if held is not None and tree.memory.held_by is not None:
            lines.append(f"  {one_line(held.message)} [{held.code}]\n")
            lines.append(f"    {one_line(held.hint)}\n")
        lines.append(f"  resume it: {how_to_resume(tree.root.id)}\n")
    return lines


def _facts(tree: RunTree) -> str:
    usage, agents = tree.spent(tree.root)
    parts = [f"run {tree.root.id}"]
    started, ended = tree.memory.run_started.get(tree.root.id), tree.memory.run_ended.get(tree.root.id)
    if started and ended:
        parts.append(duration(ended - started))
    if agents:
        parts.append(f"{agents} agent{'' if agents == 1 else 's'}")
    if usage.tokens:
        parts.append(f"{usage.tokens:,} tokens")
    if usage.micro_usd:
        parts.append(f"${usage.micro_usd / 1_000_000:.4f}")
    return " · ".join(parts)


def _how_to_answer(tree: RunTree, colour: bool) -> list[str]:
    from fanfold.cli.terminal.step_text import shown_lines

    lines: list[str] = []
    for approval in open_approvals(tree)[:MAX_FAILURES]:
        lines.append(f"  {approval.path}: {one_line(approval.question)}\n")
        whole = f"fanfold inspect {tree.root.id} {shlex.quote(approval.path)}"
        lines += shown_lines(approval.show, approval, "    ", colour, rest=whole)
        lines.append(f"    answer it: {how_to_answer(tree.root.id, approval.path, approval)}\n")
        if (due := default_due(tree, approval.path)) is not None:
            lines.append(f"    from {clock(due)} on its default answers: fanfold resume {tree.root.id}\n")
    return lines


def _how_to_say_more(tree: RunTree) -> list[str]:
    """An open run waits for nothing but somebody who asks for something."""
    if not tree.root.growing:
        return []
    from fanfold.runtime.operations.history.runs import how_to_go_on

    on = how_to_go_on(tree, driven=False)
    return [f"  go on: {on}\n"] if on else []


def _proposals(tree: RunTree) -> list[str]:
    """What waits to be applied, and the command that shows it."""
    waiting = waiting_proposals(tree)
    lines = [
        f"  {one_line(path)} proposes to change {files} file{'' if files == 1 else 's'}:"
        f" fanfold diff {tree.root.id} {one_line(shlex.quote(path))}\n"
        for path, files in list(waiting.items())[:MAX_FAILURES]
    ]
    if len(waiting) > MAX_FAILURES:
        lines.append(f"  and {len(waiting) - MAX_FAILURES} more: fanfold diff {tree.root.id}\n")
    return lines


def _left_behind(tree: RunTree) -> list[str]:
    """Steps that wrote files of which none came home: what looks like work that was lost."""
    home = {(run, row.step) for run, rows in tree.memory.changes.items() for row in rows}
    bare = [(at, left.count) for at, left in tree.memory.left_out.items() if at not in home]
    lines: list[str] = []
    for (run, step), count in bare[:MAX_FAILURES]:
        path = one_line(tree.state.runs[run].tree_path(step))
        files = f"{count} file{'' if count == 1 else 's'}"
        lines.append(
            f"  {path} wrote only {files} that git ignores: fanfold diff {tree.root.id} {shlex.quote(path)}\n"
        )
    return lines


def _failures(call: Invocation, tree: RunTree, colour: bool) -> list[str]:
    """What failed first hand; a group or map fails only because of what it holds."""
    failed = [node for run in tree.state.runs.values() for node in run.nodes.values() if _failed(node)]
    lines: list[str] = []
    for node in failed[:MAX_FAILURES]:
        lines += _failure_lines(tree, node, colour) + _kept_work(call, tree, node)
    if len(failed) > MAX_FAILURES:
        lines.append(f"  and {len(failed) - MAX_FAILURES} more: fanfold inspect {tree.root.id} --steps\n")
    error = tree.root.error
    if not failed and error is not None:
        from fanfold.runtime.views.errors import gist

        lines.append(f"  {gist(error, MAX_REASON_CHARS)} [{error.code}]\n")
        lines += [f"    {one_line(error.hint)}\n"] if error.hint else []
    return lines


def _kept_work(call: Invocation, tree: RunTree, node: Node) -> list[str]:
    from fanfold.runtime.operations.runs.files.changes import has_left_work

    if not has_left_work(call.project, node):
        return []
    path = one_line(node.run.tree_path(node.path))
    return [f"    what it changed is kept: fanfold diff {tree.root.id} {shlex.quote(path)}\n"]


def _again(tree: RunTree) -> list[str]:
    again = how_to_retry(tree)
    what = "what is left" if tree.root.status == CANCELLED else "what failed"
    return [f"  run again {what}: {again}\n"] if again else []


def _warnings(tree: RunTree, colour: bool) -> list[str]:
    """What went wrong in steps that completed all the same."""
    told = [node for run in tree.state.runs.values() for node in run.nodes.values() if _is_warned(node)]
    return [
        f"  {paint(node.run.tree_path(node.path), 'cyan', colour)} {paint('warning', 'yellow', colour)}:"
        f" {one_line(node.error.message)}\n"
        for node in told[:MAX_FAILURES]
        if node.error is not None
    ]


def _is_warned(node: Node) -> bool:
    return node.error is not None and node.status == "completed" and node.step.traits.ends is None


def _failed(node: Node) -> bool:
    return (
        node.error is not None
        and node.status in ("failed", "timed_out")
        and getattr(node, "failed_child", None) is None
    )


def _failure_lines(tree: RunTree, node: Node, colour: bool) -> list[str]:
    from fanfold.runtime.views.errors import GIST_CHARS, gist, last_words

    error = node.error
    assert error is not None
    path = named_path(tree, node)
    attempts = f" after {node.attempt} attempts" if node.attempt > 1 else ""
    tolerated = " and was tolerated" if node.run.status == "completed" else ""
    how = f"{node.status.replace('_', ' ')}{attempts}{tolerated}"
    most = GIST_CHARS if tolerated else MAX_REASON_CHARS
    said = gist(error, most)
    if error.code == "step.timeout" and node.step.timeout_ms is not None:  # it says no more than its status
        said = f"its timeout is {duration(node.step.timeout_ms)}"
    lines = [f"  {paint(path, 'cyan', colour)} {how}: {said} [{error.code}]\n"]
    if not tolerated:
        words = last_words(error, MAX_WORDS) or last_objections(tree, node)
        lines += (f"    {paint('│', 'dim', colour)} {one_line(said, MAX_REASON_CHARS)}\n" for said in words)
    return [*lines, f"    {one_line(error.hint)}\n"] if error.hint else lines
