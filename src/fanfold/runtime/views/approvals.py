"""The questions a run has for people: which are open, how each reads with its templates filled in, and what
goes on if the answer is yes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from hashlib import blake2b

import msgspec
from msgspec import Struct, structs

from fanfold.errors import NotFoundError
from fanfold.kernel.lifecycle import ASKED, RUN_TERMINAL, WAITING
from fanfold.kernel.nodes import Composite, Node
from fanfold.kernel.plan import JSON, GroupAction, Step
from fanfold.kernel.state import find_node
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.steps.registry import Unrenderable, declare, prepare
from fanfold.runtime.steps.step_type import Question
from fanfold.runtime.views.standing import may_write
from fanfold.runtime.views.times import when
from fanfold.text.excerpts import shorten

MAX_ASKED_CHARS = 4_000
MAX_NEXT = 50


class OpenApproval(Struct, frozen=True):
    """`path` is a tree path. Without `choices` the answers to an approval are `approve` and `reject`; a
    question takes words, or data that fits `schema`."""

    path: str
    question: str
    show: str
    choices: tuple[str, ...]
    kind: str = "approval"
    schema: JSON = None
    default: str | None = None


class ApprovalDocument(Struct, frozen=True, omit_defaults=True):
    """What a person must see to answer; long texts are cut, and say so by their last character."""

    question: str
    show: str
    choices: list[str]
    kind: str = "approval"
    """`approval` and `delivery` take a decision, `question` an answer in words, or in data that fits
    `schema`."""
    schema: JSON = None


class Answered(Struct, frozen=True):
    """An answer that is in the log. `detached`: nobody drove the run, and it goes on in the background."""

    run_id: str
    step: str
    decision: str
    detached: bool


def open_approvals(tree: RunTree) -> list[OpenApproval]:
    """Every approval somebody may answer now, in plan order."""
    if tree.root.status in RUN_TERMINAL or not tree.state.approvals:
        return []
    nodes = [node for run in tree.state.runs.values() for node in run.nodes.values() if is_open(node)]
    return [read_approval(tree, node) for node in sorted(nodes, key=lambda node: node.order)]


def is_open(node: Node) -> bool:
    """Whether this is a question that waits for its answer."""
    return node.status == WAITING and (node.step.traits.waits == "person" or node.reason == ASKED)


def read_approval(tree: RunTree, node: Node) -> OpenApproval:
    """A question as the person reads it who is to answer it."""
    path = node.run.tree_path(node.path)
    if node.reason == ASKED:
        shown = tree.blobs.get(tree.memory.shown[node.run.id, node.path])
        return OpenApproval(path, shown["question"], shown["show"], (), "delivery")
    try:
        asked = prepare(tree.values, node)
    except Unrenderable:  # it could be rendered when it was opened, so only a damaged store leads here
        return OpenApproval(path, tree.memory.questions.get((node.run.id, node.path), ""), "", ())
    assert isinstance(asked, Question)
    return OpenApproval(
        path, asked.question, asked.show, asked.choices, asked.kind, asked.schema, asked.default
    )


def default_due(tree: RunTree, path: str) -> int | None:
    """When the default of an open question answers it, if it has one."""
    node = find_node(tree.state, path)
    return None if node is None or node.step.traits.default is None else due_at(tree, path)


def due_at(tree: RunTree, path: str) -> int | None:
    """When time answers an open question, or fails it; None where it never does."""
    node = find_node(tree.state, path)
    return next((timer[0] for timer in tree.state.timers if timer[3] is node), None)


def how_to_answer(run: str, path: str, asked: OpenApproval | ApprovalDocument) -> str:
    """The command that answers a step of a run by its path there; what is chosen or said is an example."""
    where = f"{run} {shlex.quote(path)}"
    first = shlex.quote(asked.choices[0]) if asked.choices else ""
    if asked.kind == "question":
        example = "'…'"
        return f"fanfold answer {where} {first or example}"
    return f"fanfold approve {where}{f' --choice {first}' if first else ''}"


def approval_document(tree: RunTree, node: Node) -> ApprovalDocument:
    """What an open approval asks."""
    asked = read_approval(tree, node)
    return ApprovalDocument(
        shorten(asked.question, MAX_ASKED_CHARS),
        shorten(asked.show, MAX_ASKED_CHARS),
        list(asked.choices),
        asked.kind,
        asked.schema,
    )


class NextStep(Struct, frozen=True):
    """A step that may begin once the question is answered."""

    path: str
    type: str
    writes: list[str]
    needs: str
    """What it does beyond reading, in words that follow its name."""


class PendingQuestion(Struct, frozen=True, kw_only=True):
    """One question. An `approval` is approved or rejected, or given one of its `choices`; a `question` is
    answered by one of its `choices`, by data that fits `schema`, or in words where it has neither; `type` is
    that of its step. `seen` is a digest of all that one should see before answering: an answer that carries
    it is an answer to exactly this.
    """

    run_id: str
    """Of the whole run; `step` is a path in its tree."""
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
    """What is answered when time is up; without one, the step fails then."""
    due_at: str | None = None
    """When that is. It is moved by a pause, so `seen` does not depend on it."""
    seen: str = ""


class PendingQuestions(Struct, frozen=True):
    """Oldest first."""

    items: list[PendingQuestion]
    next: None = None


def pending_questions(tree: RunTree) -> list[PendingQuestion]:
    """Every question of a tree that waits, in plan order."""
    nodes = [node for run in tree.state.runs.values() for node in run.nodes.values() if is_open(node)]
    return [_read(tree, node) for node in sorted(nodes, key=lambda node: node.order)]


def pending_question(tree: RunTree, path: str) -> PendingQuestion:
    """The one at a tree path."""
    node = find_node(tree.state, path)
    if node is None or not is_open(node):
        raise NotFoundError("approval.none", f"nothing at {path} waits for an answer")
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
        next=[_next_step(one) for one, _ in zip(_following(node), range(MAX_NEXT), strict=False)],
        since=when(node.started_at),
        default=asked.default,
    )
    digest = blake2b(msgspec.json.encode(question), digest_size=16).hexdigest()
    return structs.replace(question, seen=digest, due_at=when(due_at(tree, asked.path)))


def _following(node: Node) -> Iterator[Node]:
    """What waits for a step, or for the group or run that it is the last of."""
    yield from node.dependents
    above = node.parent
    if above is not None and not node.dependents:
        yield from _following(above)


def _next_step(node: Node) -> NextStep:
    path = node.run.tree_path(node.path)
    steps = list(_inside(node.step)) if isinstance(node, Composite) else [node.step]
    writes = dict.fromkeys(one for step in steps for one in may_write(step, step.write_set))
    needs = "; ".join(dict.fromkeys(words for step in steps if (words := declare(step))))
    return NextStep(path, node.step.type, may_write(node.step, node.write_set) or list(writes), needs)


def _inside(step: Step) -> Iterator[Step]:
    yield step
    if isinstance(step.action, GroupAction):
        for inner in step.action.steps:
            yield from _inside(inner)
