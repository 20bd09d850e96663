"""The open questions of a run, with their texts filled in and the steps that follow an approval.

Also the status, errors and item names that every document shows.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct, structs

from fanfold.agents.backend import SUMMARY_CHARS
from fanfold.api.display import FailureDocument, when
from fanfold.engine.run_tree import RunTree
from fanfold.errors import FanfoldError, NotFoundError
from fanfold.kernel.events import Envelope, Failure, SubagentEvent
from fanfold.kernel.plan import JSON, Plan, Step
from fanfold.kernel.state import (
    ASKED,
    CALL,
    COMPLETED,
    INTERRUPTED,
    LEAF,
    LOOP,
    MAP,
    PAUSED,
    PENDING,
    READY,
    RUN_TERMINAL,
    RUNNING,
    SKIPPED,
    WAITING,
    Node,
)
from fanfold.kernel.transitions import find_node
from fanfold.language.diagnostics import Diagnostic, FileRefused
from fanfold.language.json_text import as_text
from fanfold.language.template import UnresolvedPath, parse_path, resolve
from fanfold.language.terminal import cut_name, one_line, shorten, visible
from fanfold.steps.order import Question
from fanfold.steps.records import completed
from fanfold.steps.run_config import all_steps_below
from fanfold.steps.step_type import Unrenderable, effects_of, foresee, prepare
from fanfold.store.protocol import Store

# -----------------------------------------------------------------------------------------------------------
# The status of a step, as every document shows it
#
# The log of a paused run ends while steps are running. A pause stopped them, and they start again after a
# resume. The kernel records this at the resume; documents show it already before.


def is_interrupted(tree: RunTree, node: Node) -> bool:
    """Whether a pause interrupted this step."""
    return node.status == RUNNING and tree.root.status == PAUSED


def status_of(tree: RunTree, node: Node) -> str:
    """Return the status of a step. In a paused run no step is running."""
    return WAITING if is_interrupted(tree, node) else node.status


def reason_of(tree: RunTree, node: Node) -> str:
    """Return the reason of that status in one word; empty for most steps."""
    return INTERRUPTED if is_interrupted(tree, node) else node.reason


def stopped_at(tree: RunTree) -> int | None:
    """Return when the clock of a paused run stopped; None if the run is not paused."""
    return tree.state.now if tree.root.status == PAUSED else None


def may_write(step: Step, patterns: tuple[str, ...]) -> list[str]:
    """Return the patterns that a step may write. A step that only claims its write set writes nothing."""
    return [] if step.traits.workspace == "claims" else list(patterns)


KINDS = {LEAF: "step", MAP: "map", LOOP: "loop", CALL: "run"}
"""The kind of a node in drawings and lists. Any other node contains the steps of a scope."""
MARKS = {
    PENDING: ("·", "."),
    READY: ("·", "."),
    RUNNING: ("▸", ">"),
    WAITING: ("?", "?"),
    COMPLETED: ("✓", "+"),
    "failed": ("✗", "x"),
    "timed_out": ("✗", "x"),
    "cancelled": ("⊘", "/"),
    SKIPPED: ("∅", "-"),
}
"""Status → the mark in front of a row, and the same in ASCII."""

MAX_ASKED_CHARS = 4_000


class OpenApproval(Struct, frozen=True):
    """An open question. `path` is a tree path.

    Without `choices`, the answers to an approval are `approve` and `reject`. A question takes text, or data
    that fits `schema`.
    """

    path: str
    question: str
    show: str
    choices: tuple[str, ...]
    kind: str = "approval"
    schema: JSON = None
    default: str | None = None


class ApprovalDocument(Struct, frozen=True, omit_defaults=True):
    """The question that a person answers. The last character of a cut text is `…`."""

    question: str
    show: str
    choices: list[str]
    kind: str = "approval"
    """`approval` and `delivery` take a decision; `question` takes text, or data that fits `schema`."""
    schema: JSON = None


class AnswerResult(Struct, frozen=True):
    """A recorded answer. `detached`: the run had no owner and continues in the background."""

    run_id: str
    step: str
    decision: str
    detached: bool


def open_approvals(tree: RunTree) -> list[OpenApproval]:
    """List the open approvals and questions, in plan order."""
    if tree.root.status in RUN_TERMINAL or not tree.state.approvals:
        return []
    return [read_approval(tree, node) for node in _open_nodes(tree)]


def _open_nodes(tree: RunTree) -> list[Node]:
    return sorted((node for node in tree.nodes() if is_open(node)), key=lambda node: node.order)


def is_open(node: Node) -> bool:
    """Whether this step is a question that waits for its answer."""
    return node.status == WAITING and (node.step.traits.waits == "person" or node.reason == ASKED)


def read_approval(tree: RunTree, node: Node) -> OpenApproval:
    """Return a question as a person reads it."""
    path = node.run.tree_path(node.path)
    if node.reason == ASKED:
        shown = tree.blobs.get(tree.memory.shown[node.run.id, node.path])
        kind = "question" if shown.get("call") else "delivery"
        return OpenApproval(path, shown["question"], shown["show"], (), kind)
    try:
        asked = prepare(tree.values, node)
    except Unrenderable:  # it was rendered when it was opened, so only a damaged store leads here
        return OpenApproval(path, tree.memory.questions.get((node.run.id, node.path), ""), "", ())
    assert isinstance(asked, Question)
    about = (asked.question, asked.show, asked.choices, asked.kind, asked.schema, asked.default)
    return OpenApproval(path, *about)


def due_at(tree: RunTree, path: str) -> int | None:
    """Return when the time-out of an open question applies; None if it has none."""
    node = find_node(tree.state, path)
    return next((timer[0] for timer in tree.state.timers if timer[3] is node), None)


def how_to_answer(run: str, path: str, asked: OpenApproval | ApprovalDocument) -> str:
    """Return the command that answers a step of a run by its path; the choice or text is an example."""
    where = f"{run} {shlex.quote(path)}"
    first = shlex.quote(asked.choices[0]) if asked.choices else ""
    if asked.kind == "question":
        example = "'…'"
        return f"fanfold answer {where} {first or example}"
    return f"fanfold approve {where}{f' --choice {first}' if first else ''}"


def approval_document(tree: RunTree, node: Node) -> ApprovalDocument:
    """Return the document of an open approval."""
    asked = read_approval(tree, node)
    question, show = (shorten(text, MAX_ASKED_CHARS) for text in (asked.question, asked.show))
    return ApprovalDocument(question, show, list(asked.choices), asked.kind, asked.schema)


class NextStep(Struct, frozen=True):
    """A step that may begin once the question is answered."""

    path: str
    type: str
    writes: list[str]
    needs: str
    """Its effects beyond reading, as a phrase that follows its name."""


class PendingQuestion(Struct, frozen=True, kw_only=True):
    """One question. An `approval` is approved or rejected, or given one of its `choices`; a `question` is
    answered by one of its `choices`, by data that fits `schema`, or in words where it has neither; `type` is
    that of its step. `seen` is a digest of all that one should see before answering: an answer that carries
    it is an answer to exactly this.
    """

    run_id: str
    """Id of the root run; `step` is a path in its tree."""
    recipe: str
    step: str
    kind: str
    type: str
    message: str
    shown: str
    choices: list[str]
    schema: JSON
    next: list[NextStep]
    since: str | None
    default: str | None
    """The answer after the time-out. Without one, the step fails then."""
    due_at: str | None = None
    """When the time-out applies. A pause moves it, so `seen` does not depend on it."""
    seen: str = ""


class PendingQuestions(Struct, frozen=True):
    """Oldest first."""

    items: list[PendingQuestion]
    next: None = None


def pending_questions(tree: RunTree) -> list[PendingQuestion]:
    """List the open questions of a tree, in plan order."""
    return [_read(tree, node) for node in _open_nodes(tree)]


def pending_question(tree: RunTree, path: str) -> PendingQuestion:
    """Return the open question at a tree path."""
    node = find_node(tree.state, path)
    if node is None or not is_open(node):
        raise NotFoundError("approval.none", f"no step at {path} waits for an answer")
    return _read(tree, node)


def _read(tree: RunTree, node: Node) -> PendingQuestion:
    asked = read_approval(tree, node)
    question = PendingQuestion(
        run_id=tree.root.id,
        recipe=tree.root.plan.name,
        step=asked.path,
        kind=asked.kind,
        type=node.step.type,
        message=asked.question,
        shown=asked.show,
        choices=list(asked.choices),
        schema=asked.schema,
        next=[_next_step(tree, one) for one in _following(node)],
        since=when(node.started_at),
        default=asked.default,
    )
    digest = blake2b(msgspec.json.encode(question), digest_size=16).hexdigest()
    return structs.replace(question, seen=digest, due_at=when(due_at(tree, asked.path)))


def _following(node: Node) -> Iterator[Node]:
    """Yield the steps that wait for a step, or for the group or run that it is the last step of."""
    yield from node.dependents
    above = node.parent
    if above is not None and not node.dependents:
        yield from _following(above)


def _next_step(tree: RunTree, node: Node) -> NextStep:
    known: dict[str, JSON] = {"inputs": tree.values.inputs(node.run)}
    path = node.run.tree_path(node.path)
    steps = all_steps_below(Plan(name=node.step.id, steps=(node.step,)))
    writes = dict.fromkeys(one for step in steps for one in may_write(step, step.write_set))
    effects = [one for step in steps for one in effects_of(step, foresee(step, known, {}))]
    texts = dict.fromkeys(one.text.removeprefix(f"{one.who} ") for one in effects)
    needs = visible("\n".join(texts), keep="\n")
    return NextStep(path, node.step.type, may_write(node.step, node.write_set) or list(writes), needs)


# -----------------------------------------------------------------------------------------------------------
# Errors, as every surface shows them

PROGRAM_FAILED = "command.failed"
_ENDED = r".*? ended with status -?\d+(?=: )"
"""How a program ended, also inside the failure of a child run."""
GIST_CHARS = 160
REASON_CHARS = 600
"""Limit where more than one line fits."""


class ErrorBody(Struct, frozen=True):
    """`code` is for programs, `message` and `hint` are for people, `details` depend on the code."""

    code: str
    message: str
    hint: str
    details: dict[str, Any]


class ErrorDocument(Struct, frozen=True):
    ok: bool
    """Always false."""
    error: ErrorBody


class RefusedDocument(ErrorDocument, frozen=True):
    """The same where a text is wrong: with `ok` it is what `check --json` says. Each problem has its code,
    message, help, and its place in a file; none where it is no text that is wrong.
    """

    diagnostics: list[Diagnostic]


def gist(error: Failure | FailureDocument, most: int = GIST_CHARS) -> str:
    """Summarize a failure in one short line. The output of a program is reduced to its last line."""
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    ended = re.match(_ENDED, lines[0]) if len(lines) > 1 else None
    if ended is None or not (error.code == PROGRAM_FAILED or error.code.startswith("run.")):
        return one_line(error.message or error.code, most)
    return one_line(f"{ended[0]}: … {lines[-1]}", most)


def last_output_lines(error: Failure, most: int) -> list[str]:
    """Return the last output lines of a failed program; empty for any other failure."""
    lines = [line.rstrip() for line in error.message.splitlines() if line.strip()]
    return lines[1:][-most:] if error.code == PROGRAM_FAILED else []


def error_body(error: FanfoldError) -> ErrorBody:
    return ErrorBody(error.code, error.message, error.hint, error.details)


def error_document(error: FanfoldError) -> ErrorDocument:
    """Return the document that replaces a result after an error."""
    return ErrorDocument(False, error_body(error))


def refused_document(error: FanfoldError) -> RefusedDocument:
    """Return the document of an error in a text, with its diagnostics."""
    found = list(error.diagnostics) if isinstance(error, FileRefused) else []
    return RefusedDocument(False, error_body(error), found)


# -----------------------------------------------------------------------------------------------------------
# Names of the items of maps: the value of a step's `key`, else the value of the item
#
# An index does not help a reader: `per_file[7]` is `src/shop/m08.py`. The names come from the list that the
# log stores for each map. They are read once for a tree, and are never part of a path.

MAX_NAME_CHARS = 60
_ENDS_CHARS = 1_000
"""Length of the beginning and of the end of a long value. The middle is never visible."""
_NAME_FIELDS = ("name", "id", "key", "path", "file", "title")
"""Fields that name an object if the step has no `key`."""


def item_name(tree: RunTree, node: Node) -> str:
    """Return the name of the item that an instance of a map works on; empty for other nodes."""
    if node.parent is None or node.parent.kind != MAP:
        return ""
    mapped, index = node.parent, node.order[-1]
    address = (mapped.run.id, mapped.path)
    names = tree.memory.item_names.get(address)
    if names is None:
        kept = tree.memory.items.get(address)
        items = tree.blobs.get(kept) if kept is not None else []
        names = tree.memory.item_names[address] = tuple(_called(mapped.step, item) for item in items)
    return names[index] if index < len(names) else ""


def item_around(tree: RunTree, node: Node | None) -> str:
    """Return the name of the item that a step works on: its own, or that of the nearest map around it."""
    while node is not None:
        if name := item_name(tree, node):
            return name
        node = node.parent if node.parent is not None else node.run.call
    return ""


def named_path(tree: RunTree, node: Node) -> str:
    """Return the path of a step from the root with the name of its item, for people."""
    path, item = node.run.tree_path(node.path), item_around(tree, node)
    return f"{one_line(path)} {item}" if item else one_line(path)


def _called(step: Step, item: JSON) -> str:
    value = item
    if step.key:
        try:
            value = resolve(parse_path(step.key), {step.item_name: item})
        except UnresolvedPath:
            value = None
    if isinstance(value, dict):
        value = next((value[field] for field in _NAME_FIELDS if isinstance(value.get(field), str)), value)
    if value is None:
        return ""
    text = as_text(value)
    if len(text) > 2 * _ENDS_CHARS:
        text = text[:_ENDS_CHARS] + text[-_ENDS_CHARS:]
    return cut_name(one_line(text), MAX_NAME_CHARS)


# -----------------------------------------------------------------------------------------------------------
# Events as surfaces print them, with the fields that the log omits because they follow from the rest
#
# To save space on disk, a log stores no text twice, and no field that its position implies. Use this function
# before events are shown or passed to a program.


def shown(store: Store, envelopes: Iterable[Envelope]) -> Iterator[Envelope]:
    """Yield the events with plain JSON as their data, and with every field of a `subagent_event`."""
    for envelope in envelopes:
        data = envelope.data
        if envelope.type == "subagent_event" and envelope.tree_seq:
            event = data if isinstance(data, SubagentEvent) else msgspec.convert(data, SubagentEvent)
            event = completed(event, envelope.run_id, envelope.depth)
            if event.output is not None and not event.summary:
                with suppress(NotFoundError):
                    text = as_text(msgspec.json.decode(store.blob(event.output)))
                    event = structs.replace(event, summary=shorten(text, SUMMARY_CHARS))
            data = structs.asdict(event)
        elif isinstance(data, dict):  # as read from a store
            yield envelope
            continue
        yield structs.replace(envelope, data=msgspec.to_builtins(data))
