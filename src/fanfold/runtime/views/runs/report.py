"""The executive report: status, what was asked, the answer, who did what, what failed and what to do."""

from __future__ import annotations

import shlex

from fanfold.kernel.lifecycle import COMPLETED
from fanfold.kernel.nodes import Composite, Node, Run
from fanfold.kernel.plan import JSON
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.views.runs.artifacts import artifacts_of
from fanfold.runtime.views.runs.documents import how_to_retry, indented, run_error, waiting_proposals
from fanfold.runtime.views.runs.report_rows import MAX_ROWS, price, step_table
from fanfold.runtime.views.runs.reviews import cell, review_lines
from fanfold.runtime.views.runs.rounds import last_objections
from fanfold.text.excerpts import shorten, shorten_line
from fanfold.text.json_value import as_text

MAX_SAID_CHARS = 200
ADVICE = {
    "timeout": "raise the step's `timeout`, or split the step",
    "transport": "check the connection, then retry the run: it keeps what was done",
    "rate_limit": "wait, or lower `max_concurrency`, then retry the run: it keeps what was done",
    "quota": "check the provider's account, then resume the run",
    "invalid_output": "look at the step's output and its `output_schema`",
    "permission": "give the permission it asked for, or narrow the step",
    "budget": "raise the budget when you resume the run",
    "conflict": "look at the paths it names, then run the step again",
}


def report_markdown(tree: RunTree, run: Run | None = None) -> str:
    """Status, what was asked, the answer, who did what, what failed and what to do about it."""
    run = run or tree.root
    usage, agents = tree.spent(run)
    status = run_status(tree.state, run)
    lines = [f"# {run.plan.name}: {status}", ""]
    if run.plan.description:
        lines += [run.plan.description, ""]
    lines += ["## Asked", "", *_asked(tree.values.inputs(run)), "", "## Answer", ""]
    output = tree.blobs.get(run.output) if run.output is not None else None
    lines += [*_answer(output), ""]
    nodes = list(run.nodes.values())
    lines += ["## Steps", "", *step_table(tree, nodes)]
    lines += ["", f"{agents} agents, {usage.tokens} tokens, {price(usage.micro_usd)}.", ""]
    lines += _changes(tree, run)
    lines += _artifacts(tree, run)
    lines += review_lines(tree, run)
    failures = [node for node in nodes if _failed_first_hand(node)]
    error = run_error(tree, run)
    if failures or error is not None:
        tolerated = run.status == COMPLETED
        lines += ["## What went wrong" + (", and was tolerated" if tolerated else ""), ""]
        for node in failures[:MAX_ROWS]:
            lines.append(_failure_line(node))
            lines += [f"  > {shorten_line(said, MAX_SAID_CHARS)}  " for said in last_objections(tree, node)]
        if error is not None and not failures:
            lines.append(f"- {error.message} ({error.code})")
        lines.append("")
        if again := how_to_retry(tree):
            lines += [f"`{again}` runs what failed again and keeps the rest.", ""]
    warnings = [node for node in nodes if node.error is not None and node.status == COMPLETED]
    if warnings:
        lines += ["## Warnings", "", *(_failure_line(node) for node in warnings[:MAX_ROWS]), ""]
    children = [other for other in tree.state.runs.values() if other.parent is run]
    if children:
        lines += ["## Child runs", ""]
        lines += [
            f"- {c.path}: {c.plan.name} ({c.id}) {run_status(tree.state, c)}" for c in children[:MAX_ROWS]
        ]
        lines.append("")
    return "\n".join(lines)


def _failed_first_hand(node: Node) -> bool:
    """A group or map that failed because of what it holds says nothing that is not said there."""
    if node.error is None or node.status == COMPLETED:
        return False
    return not isinstance(node, Composite) or node.failed_child is None


def _changes(tree: RunTree, run: Run) -> list[str]:
    """What the run's own steps changed, and how to see and apply what waits in it or below it."""
    rows = tree.memory.changes.get(run.id, [])
    lines = ["## Changes", "", "| file | change | step | |", "|---|---|---|---|"] if rows else []
    for row in rows[:MAX_ROWS]:
        cells = (row.path, row.kind, row.step, row.state)
        lines.append("| " + " | ".join(cell(one) for one in cells) + " |")
    if len(rows) > MAX_ROWS:
        lines.append(f"| … {len(rows) - MAX_ROWS} more | | | |")
    lines += [""] if rows else []
    waiting = waiting_proposals(tree, run if run.parent is not None else None)
    if waiting:
        many = f"{len(waiting)} proposals wait" if len(waiting) > 1 else "A proposal waits"
        root = tree.root.id
        first = shlex.quote(next(iter(waiting)))
        how = f"`fanfold diff {root}` shows what it is, `fanfold apply {root} {first}` applies the first"
        lines += [f"{many} to be applied ({', '.join(list(waiting)[:10])}): {how}.", ""]
    return lines


def _artifacts(tree: RunTree, run: Run) -> list[str]:
    """The files that steps published beside the project."""
    published = list(artifacts_of(tree, run))
    if not published:
        return []
    lines = ["## Artifacts", "", f"In `.fanfold/runs/{run.id}/artifacts/`:", ""]
    lines += ["| file | bytes | step |", "|---|---|---|"]
    for one in published[:MAX_ROWS]:
        lines.append(f"| {cell(one.name)} | {one.size:,} | {cell(one.step)} |")
    if len(published) > MAX_ROWS:
        lines.append(f"| … {len(published) - MAX_ROWS} more | | |")
    return [*lines, ""]


def _answer(output: JSON) -> list[str]:
    if output is None:
        return ["_no answer_"]
    return [output] if isinstance(output, str) else ["```json", indented(output), "```"]


def _asked(inputs: dict[str, JSON]) -> list[str]:
    if not inputs:
        return ["_no inputs_"]
    return [f"- **{name}**: {shorten(as_text(value), 500)}" for name, value in inputs.items()]


def _failure_line(node: Node) -> str:
    error = node.error
    assert error is not None
    advice = error.hint or ADVICE.get(error.kind, "")
    text = f"- **{node.path}** {node.status}: {shorten(error.message, 500)} (`{error.code}`)"
    return f"{text}. {advice[:1].upper()}{advice[1:]}." if advice else text
