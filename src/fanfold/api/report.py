"""Texts about a run: the executive report of at most 4,000 characters, and one line per transition.

Rules of the report
* The command line, Python, MCP, a chat's lead and `report.md` get the same text.
* It covers the run and the runs below it: request, answer, a paragraph per phase, a line per step, files that
  changed, reviews, failures and what to do. The last line names where the details are.
* Sections share the space. A short section leaves its space to the others; what is cut is marked.

Rules of the lines
* One line per transition of a step and of the root run. Events that only the kernel needs (times, decisions,
  requested stops) are omitted.
* The end of a loop's round is one line, written when it is known whether the round passed.
* Names come from the events, and otherwise from a tree that has the steps. So the same lines work for the
  owner, a follower and a stored log.
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

from fanfold.api.approvals import gist, item_around, last_output_lines, named_path, reason_of, status_of
from fanfold.api.display import counted, duration, local_time
from fanfold.api.run_documents import (
    RunDocument,
    artifacts_below,
    changes_below,
    how_to_retry,
    indented,
    run_document,
    run_error,
    wait_text,
    waiting_proposals,
)
from fanfold.api.step_documents import did_not_pass, last_objections, why_not
from fanfold.api.transcripts import session_ref_of, transcript_of, transcript_text
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.kernel import events
from fanfold.kernel.explain import SKIPPED_FOR
from fanfold.kernel.plan import JSON, Step
from fanfold.kernel.state import (
    ASKED,
    COMPLETED,
    DEFERRED,
    HELD,
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
from fanfold.language.terminal import CUT, fair_shares, one_line, shorten, shorten_line
from fanfold.steps.phases import phases_of, publish_run, write_folder, write_private
from fanfold.steps.records import DETACHED, REQUEST_STATES, SENT, is_agent
from fanfold.steps.run_config import how_to_resume
from fanfold.steps.step_type import type_of
from fanfold.steps.values import ReviewedClaim, extract, runs_below
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
    runs = list(runs_below(run))
    usage, agents = tree.spent(run)
    request = [shorten_line(run.plan.description, 300)] if run.plan.description else []
    inputs = tree.values.inputs(run)
    request += [f"- **{name}**: {shorten(as_text(value), 500)}" for name, value in inputs.items()]
    output: JSON = tree.blobs.get(run.output) if run.output is not None else None
    answer = "_no answer_" if output is None else indented(output)
    warned = (
        _error_lines(f"**{node.run.tree_path(node.path)}**: ", node.error)[0]
        for one in runs
        for node in one.nodes.values()
        if node.error is not None and node.status == COMPLETED
    )
    claims = [
        (node.path, claim)
        for node in run.nodes.values()
        if isinstance(node, Scope) and (review := tree.values.review(node)) is not None
        for claim in review.claims
    ]
    claims.sort(key=lambda one: one[1].fate != "refuted")
    proposed = (
        f"- proposed, not applied: {path}: `fanfold apply {tree.root.id} {shlex.quote(path)}`"
        for one in runs
        for path in waiting_proposals(tree, one)
    )
    changed = (f"- {row.kind} {row.path} ({row.step}, {row.state})" for row in changes_below(tree, run))
    head = [
        f"# {run.plan.name}: {status}",
        f"{counted(agents, 'agent')}, {counted(usage.tokens, 'token')}, {price(usage.micro_usd)}",
    ]
    sections = [
        _Section("Request", request, 2, "text"),
        _Section("Answer", [answer], 6, "text", fence="" if output is None or output is answer else "json"),
        _Section("Phases", list(_phases(tree, run)), 5, "paragraphs"),
        _lines("Steps", 4, _steps(run), lambda node: _step_line(tree, node)),
        _lines("Changes", 3, [*proposed, *changed], str),
        _lines("Artifacts", 1, artifacts_below(tree, run), lambda one: f"- {one.path} ({one.size:,} bytes)"),
        _lines("Reviews", 3, claims, lambda one: _claim_line(*one)),
        _trouble(tree, run, runs, status),
        _lines("Warnings", 2, warned, str),
    ]
    tools = f'`query_workflow(run: "{run.id}", query: …)`, `workflow_status(run: "{run.id}", step: …)`'
    tail = f"Details: {tools}; in a terminal `fanfold inspect {run.id}`."
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


def _lines(heading: str, weight: int, things: Iterable[T], line: Callable[[T], str]) -> _Section:
    kept = list(things)
    return _Section(
        heading, [line(one) for one in kept[:MAX_LINES]], weight, more=max(0, len(kept) - MAX_LINES)
    )


def _phases(tree: RunTree, run: Run) -> Iterator[str]:
    """Yield a paragraph per phase: its status, rounds that did not pass, and its summary.

    Without a summary, it has the start of each output of the last round.
    """
    for loop, fold in phases_of(run):
        if fold is not None:
            summary = as_text(tree.values.output(fold))
        else:
            scopes = [one for one in loop.children if isinstance(one, Scope)]
            pieces = tree.values.pieces(scopes[-1]) if scopes else []
            summary = f"(Extract of the outputs.) {extract(pieces, 900)}" if pieces else ""
        rounds = [f"round {number} {_did_not_pass(tree, one)}"
                  for number, one in enumerate(loop.children, 1) if did_not_pass(one)]  # fmt: skip
        status = ", ".join([status_of(tree, loop), *rounds])
        yield f"**{loop.path}** ({status}): {shorten_line(summary, 900) or '_no summary_'}"


def _did_not_pass(tree: RunTree, node: Node) -> str:
    return f"did not pass ({why})" if (why := why_not(tree, node)) else "did not pass"


def _steps(run: Run) -> Iterator[Node]:
    """Yield steps with their own line: leaves, maps, sub-workflows and their steps, but not phases."""
    for node in run.nodes.values():
        fold = node.parent is not None and node.parent.step.fold is node.step
        whole = isinstance(node, WorkflowCall) or (isinstance(node, Map) and len(node.children) > MAX_ITEMS)
        if fold or (isinstance(node, Composite) and node.children and not whole and not did_not_pass(node)):
            continue
        item = node  # completed items of a large map are omitted, with all that is inside
        while (map_ := item.parent) is not None and map_.run is node.run:
            if isinstance(map_, Map) and len(map_.children) > MAX_ITEMS and item.status == COMPLETED:
                break
            item = map_
        else:
            yield node
            if isinstance(node, WorkflowCall) and node.child is not None:
                yield from _steps(node.child)


def _step_line(tree: RunTree, node: Node) -> str:
    status, reason = status_of(tree, node), reason_of(tree, node)
    status = f"{status} ({reason})" if reason else status
    if did_not_pass(node):
        status = _did_not_pass(tree, node)
    if isinstance(node, Map):
        counted = Counter(child.status for child in node.children)
        status += f", items: {', '.join(f'{count} {name}' for name, count in counted.items())}"
    took = f" in {duration(node.ended_at - node.started_at)}" if node.started_at and node.ended_at else ""
    line = f"- {named_path(tree, node)} ({node.step.traits.role or node.step.type}): {status}{took}"
    if usage := tree.usage_of(node):
        line += f", {usage.tokens:,} tokens, {price(usage.micro_usd)}"
    if node.status == COMPLETED and not isinstance(node, Map) and (gave := tree.values.summary(node)):
        line += f": {gave}"
    return shorten_line(line, LINE_CHARS)


def _claim_line(path: str, claim: ReviewedClaim) -> str:
    votes = []
    for vote in claim.votes:
        word = "holds" if vote.holds else "refuted"
        void = f", which does not count ({vote.void})" if vote.void else ""
        places = [f"{one.get('file')}:{one.get('line')}" for one in vote.evidence if isinstance(one, dict)]
        evidence = f" [{', '.join(places[:3])}]" if places else ""
        name = vote.reviewer.rpartition("/")[2]
        votes.append(f"{name} {word}{void}: {shorten_line(vote.reason, 80)}{evidence}")
    text = shorten_line(claim.text, 80)
    return f"- {path} {claim.name} {claim.fate}: {text} ({'; '.join(votes) or 'no vote'})"


def _trouble(tree: RunTree, run: Run, runs: Sequence[Run], status: str) -> _Section:
    """List the first-hand failures of the tree, else why the run ended or stopped; and the retry command."""
    nodes = (node for one in runs for node in one.nodes.values() if node.status != COMPLETED)
    # A composite that failed because of a step inside it does not count.
    own = (node for node in nodes if not isinstance(node, Composite) or node.failed_child is None)
    failed = [(node, node.error) for node in own if node.error is not None]
    error = run_error(tree, run)
    heading = "What went wrong" if failed or status in RUN_TERMINAL else "What holds it"
    if status == COMPLETED:
        heading += ", and was tolerated"
    retry = how_to_retry(tree)
    again = [f"- In a terminal `{retry}` runs what failed again and keeps the rest."] if retry else []
    if status == DETACHED:
        root = tree.root.id
        calls = f'`run_workflow(resume: "{root}")`; in a terminal `{how_to_resume(root)}`'
        again = [f"- its process ended before the run did. Continue it: {calls}."]
    if failed or status == DETACHED:
        for node, cause in failed[:MAX_LINES]:
            again += _error_lines(f"**{node.run.tree_path(node.path)}** {node.status}: ", cause)
            again += [f"  > {shorten_line(line, LINE_CHARS)}" for line in last_objections(tree, node)]
        return _Section(heading, again, 5, more=max(0, len(failed) - MAX_LINES))
    if error is None:
        return _Section(heading, [], 5)
    return _Section(heading, [*again, *_error_lines("", error, RUN_ADVICE.get(error.code, ""))], 5)


def _error_lines(who: str, error: events.Failure, advice: str = "") -> list[str]:
    """Return a failure in one line with advice, then the last output lines of the failed program."""
    advice = error.hint or advice or ADVICE.get(error.kind, "")
    text = f"- {who}{gist(error, FAILURE_CHARS)} (`{error.code}`)"
    if advice:
        first = advice.partition(" ")[0]
        is_word = first.isalpha() and first != "fanfold"  # `require_changes` and commands stay
        advice = advice[:1].upper() + advice[1:] if is_word else advice
        text += f". {shorten_line(advice, FAILURE_CHARS)}."
    return [
        text,
        *(f"  > {shorten_line(line, LINE_CHARS)}" for line in last_output_lines(error, MAX_PROGRAM_LINES)),
    ]


def price(micro_usd: int | None) -> str:
    if micro_usd is None:
        return "price unknown"
    return "< $0.0001" if 0 < micro_usd < 100 else f"${micro_usd / 1_000_000:.4f}"


# -----------------------------------------------------------------------------------------------------------
# The mirror files under `.fanfold/runs/<run>/`: report, outputs of steps, transcripts
#
# Files are written after the log, for people and other tools. They are never read back, and are written again
# whenever they are missing.

MIRROR_FILES = ("report.md", "outputs", "transcripts")
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
        # Replaced atomically: a reader never sees half a report.
        target = home / "report.md"
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        write_private(str(temporary), executive_report(tree, run).encode("utf-8", "replace"))
        temporary.replace(target)
        write_folder(home, "outputs", _outputs(tree, run))
        write_folder(home, "transcripts", _transcripts(tree, run))
        if run.status in RUN_TERMINAL:
            clear_staging(home)
        publish_run(folder.parent, tree.values, run)
    return folder / tree.root.id / "report.md"


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
    leaves = ((path, node) for path, node in run.nodes.items() if node.kind == LEAF)
    begun = ((path, node) for path, node in leaves if node.attempt and is_agent(node))
    for path, node in islice(begun, MAX_TRANSCRIPTS):
        refs = (session_ref_of(tree, node, attempt) for attempt in range(1, node.attempt + 1))
        texts = [transcript_text(transcript_of(tree, one, owned=False)) for one in refs]
        yield f"{path}.md", "\n".join(texts).encode("utf-8", "replace")


# -----------------------------------------------------------------------------------------------------------
# Progress: events as short lines

MAX_NOTE_CHARS = 160


class Transition(Struct, frozen=True):
    """One line. `path` is a tree path, empty for the run itself; `text` completes the sentence."""

    at: int
    path: str
    word: str
    text: str
    item: str = ""
    """The name of the item of a map."""
    bare: bool = False
    """Whether it is a group: its steps have their own lines."""
    reused: bool = False


class Transitions:
    """Reads events in order, and remembers start times to compute durations.

    `tree` has the steps of the events, as far as they are known. With `name_items`, lines about items of maps
    have the names of the items.
    """

    def __init__(self, tree: RunTree | None = None, *, name_items: bool = False) -> None:
        self.tree = tree
        self._names_items = name_items
        self._started: dict[tuple[str, str], int] = {}
        self._rounds: dict[tuple[str, str], int] = {}
        self._ended_badly: set[tuple[str, str]] = set()
        self._to_be_judged: dict[tuple[str, str], Transition] = {}
        """Completed rounds for which it is not known yet whether they passed."""

    def read(self, envelope: events.Envelope) -> Transition | None:
        """Return the transition of an event, or None."""
        data = events.event_of(envelope).data if isinstance(envelope.data, dict) else envelope.data
        if isinstance(data, events.Evidence) and data.type == "session_event":
            return self._of_model_request(envelope, data.data)
        if isinstance(data, events.ValueDecided):
            return self._of_decision(envelope, data)
        if isinstance(data, events.WorkflowEvent):
            return self._of_run(envelope, data)
        if isinstance(data, (events.StepEvent, events.SubagentEvent)) and not data.late:
            word = "completed" if data.status == "finished" else data.status
            text = self._of_step(envelope, data, word)
            if text is None:
                return None
            item = self._item(envelope.run_id, data.step)
            step = self._find_step(envelope.run_id, data.step)
            group = step is not None and step.type == "group"
            reused = isinstance(data, events.StepEvent) and data.cached
            transition = Transition(envelope.at, _path(envelope, data.step), word, text, item, group, reused)
            loop, _, number = data.step.rpartition("#")
            loop_step = self._find_step(envelope.run_id, loop) if number.isdecimal() else None
            # A round of a loop, and not a turn of a subagent.
            if word == "completed" and loop_step is not None and loop_step.repeat is not None:
                self._to_be_judged[envelope.run_id, data.step] = transition
                return None
            return transition
        return None

    def _find_step(self, run: str, path: str) -> Step | None:
        node = None if self.tree is None else self.tree.node(run, path)
        return None if node is None else node.step

    def _item(self, run: str, path: str) -> str:
        named = self.tree if self._names_items else None
        return "" if named is None else item_around(named, named.node(run, path))

    def _of_decision(self, envelope: events.Envelope, data: events.ValueDecided) -> Transition | None:
        """Return the transition of a map that got its items, or of a round that is now judged."""
        if data.what == "for_each" and data.items is not None:
            self._started[envelope.run_id, data.step] = envelope.at
            items = f"{data.value} item{'' if data.value == 1 else 's'}"
            return Transition(envelope.at, _path(envelope, data.step), "started", f"started ({items})")
        if data.what != "until":
            return None
        key = (envelope.run_id, data.step)
        self._rounds[key] = self._rounds.get(key, 0) + 1
        turn = (envelope.run_id, f"{data.step}#{self._rounds[key]}")
        ended = self._to_be_judged.pop(turn, None)
        if data.value is False and turn not in self._ended_badly:
            text = "did not pass" + (ended.text.removeprefix("completed") if ended is not None else "")
            return Transition(envelope.at, _path(envelope, turn[1]), "failed", text)
        return ended

    def _of_run(self, envelope: events.Envelope, data: events.WorkflowEvent) -> Transition | None:
        key = (envelope.run_id, "")
        if envelope.parent_run_id is not None:
            return None  # the step that called the child run reports it
        if isinstance(data, events.WaitClosed):
            return Transition(envelope.at, "", "resumed", f"continues: {data.subject} can be used again")
        if isinstance(data, events.WaitOpened):
            return Transition(envelope.at, "", "waiting", f"waits: {wait_text(data)}")
        if isinstance(data, events.StepAdded):
            text = f"added: {one_line(data.step.description, MAX_NOTE_CHARS)}".removesuffix(": ")
            return Transition(envelope.at, _path(envelope, data.step.id), "added", text)
        if isinstance(data, events.CloseRequested | events.ResumeRequested):
            text = "was asked to end" if isinstance(data, events.CloseRequested) else "was asked to continue"
            return Transition(envelope.at, _path(envelope, data.step), data.kind, text)
        if isinstance(data, events.RequestRefused):
            return Transition(envelope.at, "", data.kind, f"refused a request{_why(data.error)}")
        if isinstance(data, events.RunStarted | events.RunResumed):
            self._started.setdefault(key, envelope.at)
            return Transition(envelope.at, "", data.kind, data.kind)
        if isinstance(data, events.RunPaused):
            # The budget is one of several limits.
            reason = "a limit is reached" if data.reason == "budget" else data.reason
            return Transition(envelope.at, "", "paused", f"paused ({reason})")
        if isinstance(data, events.CancelRequested):
            return Transition(envelope.at, "", "cancelled", "was asked to cancel")
        if isinstance(data, events.RunFinished):
            text = data.status + self._took(key, envelope.at)
            return Transition(envelope.at, "", data.status, text)
        return None

    def _of_step(
        self, envelope: events.Envelope, data: events.StepEvent | events.SubagentEvent, word: str
    ) -> str | None:
        key, step = (envelope.run_id, data.step), self._find_step(envelope.run_id, data.step)
        if word == "started":
            self._started[key] = envelope.at
            return f"started{_who(data, step)}"
        took = self._took(key, envelope.at)
        if word == "completed":
            if isinstance(data, events.StepEvent) and data.cached:
                return "completed (reused)"
            if step is not None and step.traits.ends is not None:
                summary = one_line(data.summary, MAX_NOTE_CHARS)
                return f"ends the run as {step.traits.ends}{': ' if summary else ''}{summary}"
            return f"completed{took}{_why(data.error, 'warning: ')}"
        if word in ("failed", "timed_out", "cancelled", "interrupted"):
            self._ended_badly.add(key)
            # The step, item or iteration inside that failed was reported before, with its cause.
            inside = step is not None and (
                step.type == "group"
                or (step.for_each is not None and not data.step.endswith("]"))
                or (step.repeat is not None and not data.step.rpartition("/")[2].rpartition("#")[1])
            )
            return word.replace("_", " ") + took + ("" if inside else _why(data.error))
        if word == "agreed":
            is_answer = step is not None and step.traits.role is not None
            done = "was answered by" if is_answer else "was agreed to by"
            return f"{done} {one_line(data.summary, MAX_NOTE_CHARS)}"
        if word in ("waiting", ASKED):
            self._started[key] = envelope.at
            asked = one_line(data.summary.partition(chr(10) * 2)[0], MAX_NOTE_CHARS)
            waits = "waits for approval" if step is None else type_of(step).waiting
            return f"{waits}: {asked}" if asked else waits
        if word == "retrying":
            wait_s = max(0, data.retry_at - envelope.at) / 1_000
            return f"tries again in {wait_s:.1f} s (attempt {data.attempt})"
        if word in (DEFERRED, HELD):
            what = f"files of {data.summary}" if word == HELD else data.reason
            return f"waits for {one_line(what, MAX_NOTE_CHARS)}"
        if word == "closed":
            return word
        if word == "skipped":
            return f"skipped ({SKIPPED_FOR.get(data.reason, data.reason)})"
        return None

    def _of_model_request(self, envelope: events.Envelope, data: dict[str, JSON]) -> Transition | None:
        """Return the transition of a request to a model that failed or waits, or of a message to an agent."""
        step = str(data.get("step", ""))
        word, text = SENT, f"received a message from {one_line(str(data.get('by', '')), MAX_NOTE_CHARS)}"
        if data.get("kind") != SENT or data.get("call"):
            if data.get("kind") not in REQUEST_STATES or not step:
                return None
            word, text = "retrying", request_text(data)
        item = self._item(envelope.run_id, step)
        return Transition(envelope.at, _path(envelope, step), word, text, item)

    def _took(self, key: tuple[str, str], at: int) -> str:
        started = self._started.pop(key, None)
        return "" if started is None else f" {duration(at - started)}"


def request_text(data: dict[str, JSON]) -> str:
    """Describe a request to a model that failed or waits: why, and when it is made again."""
    message, next_at = one_line(str(data.get("message", "")), MAX_NOTE_CHARS), data.get("next_at")
    text = f"request {REQUEST_STATES[str(data.get('kind'))]}: {message}"
    return text + (f"; next attempt at {local_time(next_at)}" if isinstance(next_at, int) and next_at else "")


def _who(data: events.StepEvent | events.SubagentEvent, step: Step | None) -> str:
    """Return the role or type of a started step, and which attempt it is."""
    names: list[str] = []
    if isinstance(data, events.SubagentEvent):
        names.append(one_line(data.role))
    elif step is not None and step.type != "group":
        names.append(step.type)
    if data.attempt > 1:
        names.append(f"attempt {data.attempt}")
    if data.execution > 1:
        names.append("again")
    return f" ({', '.join(names)})" if names else ""


def _why(error: events.Failure | None, kind: str = "") -> str:
    return "" if error is None else f": {kind}{gist(error)}"


def _path(envelope: events.Envelope, step: str) -> str:
    return f"{envelope.path}/{step}" if envelope.path else step
