"""Questions that wait for a person, with everything one should see before answering: what is asked and shown,
and what goes on if the answer is yes.

`seen` is a digest of all of that. An answer that carries it is an answer to exactly this.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import msgspec
from msgspec import Struct, structs

from fanfold.errors import NotFoundError
from fanfold.kernel.nodes import Composite, Node
from fanfold.kernel.plan import JSON, GroupAction, Step
from fanfold.kernel.state import find_node
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.steps.registry import declare
from fanfold.runtime.views.approvals import is_open, read_approval
from fanfold.runtime.views.standing import may_write
from fanfold.runtime.views.times import when

MAX_NEXT = 50


class NextStep(Struct, frozen=True):
    """A step that may begin once the question is answered."""

    path: str
    type: str
    writes: list[str]
    needs: str
    """What it does beyond reading, in words that follow its name."""


class PendingQuestion(Struct, frozen=True, kw_only=True):
    """One question. An `approval` is approved or rejected, or given one of its `choices`; a `question` is
    answered in words, or by data that fits `schema`; `type` is that of its step.
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
        next=[_next(one) for one, _ in zip(_following(node), range(MAX_NEXT), strict=False)],
        since=when(node.started_at),
    )
    digest = blake2b(msgspec.json.encode(question), digest_size=16).hexdigest()
    return structs.replace(question, seen=digest)


def _following(node: Node) -> Iterator[Node]:
    """What waits for a step, or for the group or run that it is the last of."""
    yield from node.dependents
    above = node.parent
    if above is not None and not node.dependents:
        yield from _following(above)


def _next(node: Node) -> NextStep:
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
