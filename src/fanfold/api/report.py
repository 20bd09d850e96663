"""The executive report of a run: the one text that every caller gets, at most 4,000 characters long.

Rules
* The command line, Python, MCP, a chat's lead and `report.md` get the same text.
* It covers the run and the runs below it: request, answer, a paragraph per phase, a line per step, files that
  changed, reviews, failures and what to do. The last line names where the details are.
* Sections share the space. A short section leaves its space to the others; what is cut is marked.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct, structs

from fanfold.api.approvals import gist, last_words, named_path, reason_of, status_of
from fanfold.api.display import duration
from fanfold.api.run_documents import (
    RunDocument,
    artifacts_below,
    changes_below,
    how_to_retry,
    indented,
    run_document,
    run_error,
    waiting_proposals,
)
from fanfold.api.step_documents import did_not_pass, last_objections, why_not
from fanfold.api.transcripts import speaker_of, transcript_of, transcript_text
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.kernel.events import Failure
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import (
    COMPLETED,
    LEAF,
    PENDING,
    RUN_TERMINAL,
    RUNNING,
    Composite,
    Map,
    Node,
    Run,
    Scope,
    WorkflowCall,
)
from fanfold.language.json_text import as_text
from fanfold.language.terminal import CUT, fair_shares, shorten, shorten_line
from fanfold.steps.published import phases_of, publish_run, write_folder, write_private
from fanfold.steps.records import DETACHED, is_agent
from fanfold.steps.run_config import how_to_resume
from fanfold.steps.values import ReviewedClaim, Vote
from fanfold.store.database import private_folder
from fanfold.workspace.artifacts import clear_staging

T = TypeVar("T")
MAX_REPORT_CHARS = 4_000
MAX_LINES = 200
"""Maximum of lines that are written per section, before the section is cut to its share."""
MAX_ITEMS = 20
"""A larger map has one line; only its items that did not complete have their own lines."""
MAX_PROGRAM_LINES = 3
LINE_CHARS = 160
FAILURE_CHARS = 300
ADVICE = {
    "timeout": "raise the step's `timeout`, or split the step",
    "transport": "check the connection, then retry the run: it keeps what was done",
    "rate_limit": "wait, or lower `max_concurrency`, then retry the run: it keeps what was done",
    "quota": "check the provider's account, then resume the run",
    "invalid_output": "compare the step's output with its `output_schema`",
    "permission": "give the permission it asked for, or narrow the step",
    "budget": "raise it when you resume the run",
    "conflict": "inspect the paths it names, then run the step again",
}
"""By the class of a failure that has no hint of its own."""
RUN_ADVICE = {"run.timeout": "raise `timeout` under the recipe's `limits`, or split the recipe"}
"""By the code of the failure of a whole run."""


class _Section(Struct):
    heading: str
    lines: list[str]
    weight: int
    kind: Literal["text", "paragraphs", "list"] = "list"
    """How it is cut: at a character, each paragraph separately, or at a line."""
    more: int = 0
    """Number of lines beyond `lines`."""
    fence: str = ""

    def text(self, limit: int) -> str:
        if self.kind == "text":
            body = shorten("\n".join(self.lines), limit)
            return f"```{self.fence}\n{body}\n```" if self.fence else body
        if self.kind == "paragraphs":
            shares = fair_shares([len(line) for line in self.lines], limit - 2 * len(self.lines))
            return "\n\n".join(shorten(line, share) for line, share in zip(self.lines, shares, strict=True))
        kept, used = 0, 0
        for line in self.lines:
            if used + len(line) + 1 > limit:
                break
            used += len(line) + 1
            kept += 1
        shown = self.lines[:kept] or [shorten(self.lines[0], limit)]
        left = len(self.lines) - len(shown) + self.more
        return "\n".join([*shown, *([f"- {CUT} {left} more"] if left else [])])


def standing(status: str, *, owned: bool) -> str:
    """Return the status for models and reports: a run that should run but has no owner is `detached`."""
    return status if owned or status not in (PENDING, RUNNING) else DETACHED


def executive_report(tree: RunTree, run: Run | None = None, *, owned: bool = True) -> str:
    """Return the report of a run as Markdown; without `run`, of the root. `owned`: the run has an owner."""
    run = run or tree.root
    status = standing(run_status(tree.state, run), owned=owned)
    runs = list(_below(run))
    usage, agents = tree.spent(run)
    head = [
        f"# {run.plan.name}: {status}",
        f"{agents} agents, {usage.tokens:,} tokens, {price(usage.micro_usd)}",
    ]
    sections = [
        _Section("Request", _request(tree, run), 2, "text"),
        _answer(tree, run),
        _Section("Phases", list(_phases(tree, run)), 5, "paragraphs"),
        _lines("Steps", 4, _steps(run), lambda node: _step_line(tree, node)),
        _lines("Changes", 3, _change_lines(tree, runs), str),
        _lines("Artifacts", 1, artifacts_below(tree, run), lambda one: f"- {one.path} ({one.size:,} bytes)"),
        _lines("Reviews", 3, _claims(tree, run), lambda one: _claim_line(*one)),
        _trouble(tree, run, runs, status),
        _lines("Warnings", 2, _warned(runs), _warning_line),
    ]
    tail = _references(run)
    sections = [one for one in sections if one.lines]
    # each section needs its heading, the mark of a cut and blank lines; a fence needs eight characters more
    fixed = len("\n".join(head)) + len(tail) + 2 + sum(len(one.heading) + 32 for one in sections)
    lengths = [sum(len(line) + 2 for line in one.lines) for one in sections]
    shares = fair_shares(lengths, MAX_REPORT_CHARS - fixed, [one.weight for one in sections])
    body = [f"## {one.heading}\n\n{one.text(share)}" for one, share in zip(sections, shares, strict=True)]
    return "\n\n".join(["\n\n".join(head), *body, tail])


def reported_document(tree: RunTree, run: Run | None = None, *, owned: bool = True) -> RunDocument:
    """Return the document of a run with its executive report."""
    return structs.replace(run_document(tree, run), report=executive_report(tree, run, owned=owned))


def _below(run: Run) -> Iterator[Run]:
    yield run
    for child in run.children:
        yield from _below(child)


def _lines(heading: str, weight: int, things: Iterable[T], line: Callable[[T], str]) -> _Section:
    kept = list(things)
    return _Section(
        heading, [line(one) for one in kept[:MAX_LINES]], weight, more=max(0, len(kept) - MAX_LINES)
    )


def _request(tree: RunTree, run: Run) -> list[str]:
    about = [shorten_line(run.plan.description, 300)] if run.plan.description else []
    inputs = tree.values.inputs(run)
    return about + [f"- **{name}**: {shorten(as_text(value), 500)}" for name, value in inputs.items()]


def _answer(tree: RunTree, run: Run) -> _Section:
    output: JSON = tree.blobs.get(run.output) if run.output is not None else None
    fence = "" if output is None or isinstance(output, str) else "json"
    return _Section(
        "Answer", ["_no answer_" if output is None else indented(output)], 6, kind="text", fence=fence
    )


def _phases(tree: RunTree, run: Run) -> Iterator[str]:
    """Yield a paragraph per phase: its status, rounds that did not pass, and its summary."""
    for loop, fold in phases_of(run):
        summary = as_text(tree.values.output(fold)) if fold is not None else ""
        rounds = [f"round {number} did not pass ({why})" if why else f"round {number} did not pass"
                  for number, one in enumerate(loop.children, 1)
                  if did_not_pass(one) for why in [why_not(tree, one)]]  # fmt: skip
        status = ", ".join([status_of(tree, loop), *rounds])
        yield f"**{loop.path}** ({status}): {shorten_line(summary, 900) or '_no summary_'}"


def _steps(run: Run) -> Iterator[Node]:
    """Yield steps with their own line: leaves, maps, sub-workflows and their steps, but not phases."""
    for node in run.nodes.values():
        fold = node.parent is not None and node.parent.step.fold is node.step
        whole = isinstance(node, WorkflowCall) or (isinstance(node, Map) and len(node.children) > MAX_ITEMS)
        if fold or (isinstance(node, Composite) and node.children and not whole and not did_not_pass(node)):
            continue
        if any(item.status == COMPLETED for item in _folded_items(node)):
            continue
        yield node
        if isinstance(node, WorkflowCall) and node.child is not None:
            yield from _steps(node.child)


def _folded_items(node: Node) -> Iterator[Node]:
    """Yield the items of large maps that a node is, or is inside of."""
    current, parent = node, node.parent
    while parent is not None and parent.run is node.run:
        if isinstance(parent, Map) and len(parent.children) > MAX_ITEMS:
            yield current
        current, parent = parent, parent.parent


def _step_line(tree: RunTree, node: Node) -> str:
    status, reason = status_of(tree, node), reason_of(tree, node)
    status = f"{status} ({reason})" if reason else status
    if did_not_pass(node):
        status = f"did not pass ({why})" if (why := why_not(tree, node)) else "did not pass"
    if isinstance(node, Map):
        counted = Counter(child.status for child in node.children)
        status += f", items: {', '.join(f'{count} {name}' for name, count in counted.items())}"
    took = f" in {duration(node.ended_at - node.started_at)}" if node.started_at and node.ended_at else ""
    line = f"- {named_path(tree, node)} ({node.step.traits.role or node.step.type}): {status}{took}"
    if usage := tree.memory.usage.get((node.run.id, node.path)):
        line += f", {usage.tokens:,} tokens, {price(usage.micro_usd)}"
    if node.status == COMPLETED and not isinstance(node, Map) and (gave := tree.values.summary(node)):
        line += f": {gave}"
    return shorten_line(line, LINE_CHARS)


def _change_lines(tree: RunTree, runs: Sequence[Run]) -> Iterator[str]:
    """Yield changed files of the run and the runs below it, and the commands that apply open proposals."""
    root = tree.root.id
    for run in runs:
        for path in waiting_proposals(tree, run):
            yield f"- proposed, not applied: {path}: `fanfold apply {root} {shlex.quote(path)}`"
    for row in changes_below(tree, runs[0]):
        yield f"- {row.kind} {row.path} ({row.step}, {row.state})"


def _claims(tree: RunTree, run: Run) -> list[tuple[str, ReviewedClaim]]:
    """Return the claims of each reviewed round, refuted ones first."""
    claims = [
        (node.path, claim)
        for node in run.nodes.values()
        if isinstance(node, Scope) and (review := tree.values.review(node)) is not None
        for claim in review.claims
    ]
    return sorted(claims, key=lambda one: one[1].fate != "refuted")


def _claim_line(path: str, claim: ReviewedClaim) -> str:
    text = shorten_line(claim.text, 80)
    return f"- {path} {claim.name} {claim.fate}: {text} ({'; '.join(_votes(claim)) or 'no vote'})"


def _votes(claim: ReviewedClaim) -> Iterator[str]:
    for vote in claim.votes:
        word = "holds" if vote.holds else "refuted"
        void = f", which does not count ({vote.void})" if vote.void else ""
        name = vote.reviewer.rpartition("/")[2]
        yield f"{name} {word}{void}: {shorten_line(vote.reason, 80)}{_places(vote)}"


def _places(vote: Vote) -> str:
    places = [f"{one.get('file')}:{one.get('line')}" for one in vote.evidence if isinstance(one, dict)]
    return f" [{', '.join(places[:3])}]" if places else ""


def _trouble(tree: RunTree, run: Run, runs: Sequence[Run], status: str) -> _Section:
    """List the first-hand failures of the tree, else why the run ended or stopped; and the retry command."""
    failed = [node for one in runs for node in one.nodes.values() if _failed_first_hand(node)]
    error = run_error(tree, run)
    heading = "What went wrong" if failed or status in RUN_TERMINAL else "What holds it"
    if status == COMPLETED:
        heading += ", and was tolerated"
    again = (
        [f"- `{retry}` runs what failed again and keeps the rest."] if (retry := how_to_retry(tree)) else []
    )
    if status == DETACHED:
        root = tree.root.id
        calls = f'`run_workflow(resume: "{root}")`; in a terminal `{how_to_resume(root)}`'
        again = [f"- its process ended before the run did. Continue it: {calls}."]
    if failed or status == DETACHED:
        lines = [line for node in failed[:MAX_LINES] for line in _failure_lines(tree, node)]
        return _Section(heading, again + lines, 5, more=max(0, len(failed) - MAX_LINES))
    if error is None:
        return _Section(heading, [], 5)
    return _Section(heading, [*again, *_error_lines("", error, RUN_ADVICE.get(error.code, ""))], 5)


def _failed_first_hand(node: Node) -> bool:
    """Whether a node failed itself. A composite that failed because of a step inside it does not count."""
    if node.error is None or node.status == COMPLETED:
        return False
    if isinstance(node, Composite):
        return node.failed_child is None
    return True


def _failure_lines(tree: RunTree, node: Node) -> list[str]:
    assert node.error is not None
    lines = _error_lines(f"**{node.run.tree_path(node.path)}** {node.status}: ", node.error)
    return lines + [f"  > {shorten_line(line, LINE_CHARS)}" for line in last_objections(tree, node)]


def _error_lines(who: str, error: Failure, advice: str = "") -> list[str]:
    """Return a failure in one line with advice, then the last output lines of the failed program."""
    advice = error.hint or advice or ADVICE.get(error.kind, "")
    text = f"- {who}{gist(error, FAILURE_CHARS)} (`{error.code}`)"
    if advice:
        first = advice.partition(" ")[0]
        advice = advice[:1].upper() + advice[1:] if first.isalpha() else advice  # `require_changes` stays
        text += f". {shorten_line(advice, FAILURE_CHARS)}."
    return [text, *(f"  > {shorten_line(line, LINE_CHARS)}" for line in last_words(error, MAX_PROGRAM_LINES))]


def _warned(runs: Sequence[Run]) -> Iterator[Node]:
    """Yield the steps that completed with a warning."""
    for run in runs:
        yield from (
            node for node in run.nodes.values() if node.error is not None and node.status == COMPLETED
        )


def _warning_line(node: Node) -> str:
    assert node.error is not None
    return _error_lines(f"**{node.run.tree_path(node.path)}**: ", node.error)[0]


def _references(run: Run) -> str:
    """Return where a model and a person find the details."""
    tools = f'`query_workflow(run: "{run.id}", query: …)`, `workflow_status(run: "{run.id}", step: …)`'
    return f"Details: {tools}; in a terminal `fanfold inspect {run.id}`."


def price(micro_usd: int | None) -> str:
    if micro_usd is None:
        return "price unknown"
    return "< $0.0001" if 0 < micro_usd < 100 else f"${micro_usd / 1_000_000:.4f}"


# -----------------------------------------------------------------------------------------------------------
# The mirror files under `.fanfold/runs/<run>/`: report, outputs of steps, transcripts
#
# Files are written after the log, for people and other tools. They are never read back, and are written again
# whenever they are missing.

MAX_TRANSCRIPTS = 50
"""Maximum of transcripts per run. `fanfold transcript` shows any.

Reading a session takes twice as long as a step that does nothing, and a caller that waits for the run waits
for these files, too.
"""


def write_mirror(tree: RunTree, folder: Path) -> Path:
    """Write report, outputs and transcripts of every run of the tree; return the root's report file."""
    for run in tree.state.runs.values():
        home = folder / run.id
        for one in (folder, home):
            private_folder(one)
        _replace(home / "report.md", executive_report(tree, run))
        write_folder(home, "outputs", _outputs(tree, run))
        write_folder(home, "transcripts", _transcripts(tree, run))
        if run.status in RUN_TERMINAL:
            clear_staging(home)
        publish_run(folder.parent, tree.values, run)
    return folder / tree.root.id / "report.md"


def has_mirror(tree: RunTree, folder: Path) -> bool:
    """Whether the mirror files exist. Their contents are not checked."""
    homes = [folder / run.id for run in tree.state.runs.values()]
    return all((home / name).exists() for home in homes for name in ("report.md", "outputs", "transcripts"))


def _outputs(tree: RunTree, run: Run) -> Iterator[tuple[str, bytes]]:
    for path, node in run.nodes.items():
        if node.output is not None:
            value = tree.blobs.get(node.output)
            if isinstance(value, str):
                yield f"{path}.md", value.encode("utf-8", "replace")
            else:
                yield f"{path}.json", msgspec.json.encode(value)


def _transcripts(tree: RunTree, run: Run) -> Iterator[tuple[str, bytes]]:
    """Yield one file for each agent step, with all its attempts."""
    begun = (
        (path, node)
        for path, node in run.nodes.items()
        if node.kind == LEAF and node.attempt and is_agent(node)
    )
    for path, node in islice(begun, MAX_TRANSCRIPTS):
        speakers = (speaker_of(tree, node, attempt) for attempt in range(1, node.attempt + 1))
        told = [transcript_text(transcript_of(tree, one, owned=False)) for one in speakers]
        yield f"{path}.md", "\n".join(told).encode("utf-8", "replace")


def _replace(target: Path, text: str) -> None:
    """Replace a file atomically: a reader never sees half a file."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    write_private(str(temporary), text.encode("utf-8", "replace"))
    temporary.replace(target)
