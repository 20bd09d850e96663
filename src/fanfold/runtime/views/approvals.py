"""The questions a run has for people: which are open, and how each reads with its templates filled in."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from msgspec import Struct

from fanfold.kernel.lifecycle import ASKED, RUN_TERMINAL, WAITING
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import find_node
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.steps.registry import Unrenderable, prepare
from fanfold.runtime.steps.step_type import Question
from fanfold.text.excerpts import shorten

MAX_ASKED_CHARS = 4_000


class OpenApproval(Struct, frozen=True):
    """`path` is a tree path. Without `choices` the answers to an approval are `approve` and `reject`; a
    question takes words, or data that fits `schema`."""

    path: str
    question: str
    show: str
    choices: tuple[str, ...]
    kind: str = "approval"
    schema: JSON = None


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
    return OpenApproval(path, asked.question, asked.show, asked.choices, asked.kind, asked.schema)


def default_due(tree: RunTree, path: str) -> int | None:
    """When the default of an open question answers it, if it has one."""
    node = find_node(tree.state, path)
    if node is None or node.step.traits.default is None:
        return None
    return next((timer[0] for timer in tree.state.timers if timer[3] is node), None)


def how_to_answer(run: str, approval: OpenApproval) -> str:
    """The command that answers; what is chosen or said in it is an example."""
    return answer_command(run, approval.path, approval.kind, approval.choices)


def answer_command(run: str, path: str, kind: str, choices: Sequence[str]) -> str:
    """The same for a step of a run by its path there."""
    where = f"{run} {shlex.quote(path)}"
    first = shlex.quote(choices[0]) if choices else ""
    if kind == "question":
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
