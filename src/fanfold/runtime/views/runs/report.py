"""The executive report: status, what was asked, the answer, who did what, what failed and what to do."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from fanfold.kernel.events import NOTHING_SPENT, Failure, Usage
from fanfold.kernel.lifecycle import COMPLETED, RUN_TERMINAL
from fanfold.kernel.nodes import Composite, Map, Node, Run, Scope
from fanfold.kernel.plan import JSON
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.records.reviews import ReviewedClaim, Vote
from fanfold.runtime.views.errors import REASON_CHARS as FAILURE_CHARS
from fanfold.runtime.views.errors import gist, last_words
from fanfold.runtime.views.items import item_around
from fanfold.runtime.views.runs.documents import (
    artifacts_of,
    how_to_retry,
    indented,
    run_error,
    waiting_proposals,
)
from fanfold.runtime.views.runs.rounds import did_not_pass, last_objections, why_not
from fanfold.runtime.views.standing import reason_of, status_of
from fanfold.runtime.views.times import duration
from fanfold.text.excerpts import shorten, shorten_line
from fanfold.text.json_value import as_text
from fanfold.text.terminal import one_line

MAX_SAID_CHARS = 200
MAX_WORDS = 20
ADVICE = {
    "timeout": "raise the step's `timeout`, or split the step",
    "transport": "check the connection, then retry the run: it keeps what was done",
    "rate_limit": "wait, or lower `max_concurrency`, then retry the run: it keeps what was done",
    "quota": "check the provider's account, then resume the run",
    "invalid_output": "look at the step's output and its `output_schema`",
    "permission": "give the permission it asked for, or narrow the step",
    "budget": "raise it when you resume the run",
    "conflict": "look at the paths it names, then run the step again",
}
RUN_ADVICE = {
    "run.timeout": "raise `timeout` under the recipe's `limits`, or split the recipe",
}
"""By the code: what a whole run ended or rests for."""


MAX_ROWS = 200
MAX_ITEMS = 20
"""Of a map, each with a row of its own."""
MAX_CLAIMS = 100
CLAIM_CHARS = 120
REASON_CHARS = 160


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
        lines += [_wrong_heading(status, bool(failures)), ""]
        for node in failures[:MAX_ROWS]:
            lines.append(_failure_line(node))
            lines += [f"  > {shorten_line(said, MAX_SAID_CHARS)}  " for said in last_objections(tree, node)]
        if error is not None and not failures:
            lines.append(_error_line("", error, RUN_ADVICE.get(error.code, "")))
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
    lines: list[str] = []
    if rows:
        told = [[cell(one) for one in (row.path, row.kind, row.step, row.state)] for row in rows]
        lines += ["## Changes", "", *_table(["file", "change", "step", ""], told), ""]
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
    rows = [[cell(one.name), f"{one.size:,}", cell(one.step)] for one in published]
    where = f"In `.fanfold/runs/{run.id}/artifacts/`:"
    return ["## Artifacts", "", where, "", *_table(["file", "bytes", "step"], rows), ""]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], most: int = MAX_ROWS) -> list[str]:
    """A table of at most so many rows, and how many are left out."""
    lines = [_line(heads), "|" + "---|" * len(heads), *map(_line, rows[:most])]
    if len(rows) > most:
        lines.append(_line([f"… {len(rows) - most} more", *[""] * (len(heads) - 1)]))
    return lines


def _line(cells: Sequence[str]) -> str:
    return "".join(f"| {one} " if one else "| " for one in cells) + "|"


def _answer(output: JSON) -> list[str]:
    if output is None:
        return ["_no answer_"]
    return [output] if isinstance(output, str) else ["```json", indented(output), "```"]


def _asked(inputs: dict[str, JSON]) -> list[str]:
    if not inputs:
        return ["_no inputs_"]
    return [f"- **{name}**: {shorten(as_text(value), 500)}" for name, value in inputs.items()]


def _failure_line(node: Node) -> str:
    assert node.error is not None
    return _error_line(f"**{node.path}** {node.status}: ", node.error)


def _wrong_heading(status: str, failed: bool) -> str:
    if status == COMPLETED:
        return "## What went wrong, and was tolerated"
    return "## What went wrong" if failed or status in RUN_TERMINAL else "## What holds it"


def _error_line(who: str, error: Failure, advice: str = "") -> str:
    """A failure in a line, with what to do about it; below it what a program said last."""
    advice = error.hint or advice or ADVICE.get(error.kind, "")
    text = f"- {who}{gist(error, FAILURE_CHARS)} (`{error.code}`)"
    words = "".join(f"\n      {one_line(line)}" for line in last_words(error, MAX_WORDS))
    return (f"{text}. {advice[:1].upper()}{advice[1:]}." if advice else text) + (
        f"\n{words}\n" if words else ""
    )


def step_table(tree: RunTree, nodes: Sequence[Node]) -> list[str]:
    """Who did what, for how long, at what cost: a table with its head.

    Rows are bounded, and a map of many items does not push out what came after it: its items stand in one
    row, with what they used together, but for those that did not complete.
    """
    spent = _spent_by_items(tree, nodes)
    told = [node for node in nodes if all(item.status != COMPLETED for item, _ in _folded_items(node))]
    rows = [_step_row(tree, node, spent.get(node)) for node in told]
    return _table(["step", "who", "status", "took", "tokens", "cost"], rows)


def price(micro_usd: int | None) -> str:
    if micro_usd is None:
        return "price unknown"
    return "< $0.0001" if 0 < micro_usd < 100 else f"${micro_usd / 1_000_000:.4f}"


def _folded_items(node: Node) -> Iterator[tuple[Node, Map]]:
    """The items of large maps that a node is or is inside of, each with its map."""
    current, parent = node, node.parent
    while parent is not None and parent.run is node.run:
        if isinstance(parent, Map) and len(parent.children) > MAX_ITEMS:
            yield current, parent
        current, parent = parent, parent.parent


def _spent_by_items(tree: RunTree, nodes: Sequence[Node]) -> dict[Node, Usage]:
    """What the items of large maps used together."""
    found: dict[Node, Usage] = {}
    for node in nodes:
        usage = tree.memory.usage.get((node.run.id, node.path))
        if usage is not None:
            for _, around in _folded_items(node):
                found[around] = found.get(around, NOTHING_SPENT) + usage
    return found


def _step_row(tree: RunTree, node: Node, of_items: Usage | None) -> list[str]:
    who = node.step.traits.role or node.step.type
    usage = tree.memory.usage.get((node.run.id, node.path)) or of_items
    took = duration(node.ended_at - node.started_at) if node.started_at and node.ended_at else ""
    status, reason = status_of(tree, node), reason_of(tree, node)
    status = f"{status} ({reason})" if reason else status
    if did_not_pass(node):
        status = f"did not pass ({why})" if (why := why_not(tree, node)) else "did not pass"
    if isinstance(node, Map) and len(node.children) > MAX_ITEMS:
        counted = Counter(child.status for child in node.children)
        status += f", items: {', '.join(f'{count} {name}' for name, count in counted.items())}"
    name = f"{node.path} {item}" if (item := item_around(tree, node)) else node.path
    spent = [str(usage.tokens), price(usage.micro_usd)] if usage else ["", ""]
    return [cell(name), who, cell(status), took, *spent]


def review_lines(tree: RunTree, run: Run) -> list[str]:
    """A table of claims for every reviewed round, with who said what; empty where nothing was reviewed."""
    found = [
        (node.path, review)
        for node in list(run.nodes.values())
        if isinstance(node, Scope) and (review := tree.values.review(node)) is not None
    ]
    if not found:
        return []
    rows = [
        [path, _claim(claim), claim.fate, cell("; ".join(_said(claim)))]
        for path, review in found
        for claim in review.claims
    ]
    return ["## Review", "", *_table(["round", "claim", "fate", "who said what"], rows, MAX_CLAIMS), ""]


def _claim(claim: ReviewedClaim) -> str:
    return f"{cell(claim.name)}: {cell(shorten_line(claim.text, CLAIM_CHARS))}"


def _said(claim: ReviewedClaim) -> Iterator[str]:
    for vote in claim.votes:
        word = "holds" if vote.holds else "refuted"
        does = f"{word}, which does not count ({vote.void})" if vote.void else word
        name = vote.reviewer.rpartition("/")[2]
        yield f"{name} {does}: {shorten_line(vote.reason, REASON_CHARS)}{_places(vote)}"
    if not claim.votes:
        yield "nobody"


def _places(vote: Vote) -> str:
    places = [f"{one.get('file')}:{one.get('line')}" for one in vote.evidence if isinstance(one, dict)]
    return f" [{', '.join(places[:3])}]" if places else ""


def cell(text: str) -> str:
    """A text that may hold anything, as the cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
