"""One step with everything there is to be seen of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct, field, structs

from fanfold.kernel.events import Envelope, Failure, StepEvent, SubagentEvent, event_of
from fanfold.kernel.lifecycle import INTERRUPTED
from fanfold.kernel.nodes import Node
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.body import find_body
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.records.ids import session_id
from fanfold.runtime.records.subagents import is_agent
from fanfold.runtime.steps.agent import sections_of, sibling
from fanfold.runtime.steps.registry import preparation
from fanfold.runtime.views.runs.changes import StepChanges
from fanfold.runtime.views.runs.documents import (
    InspectStepDocument,
    PublishedFile,
    artifacts_of,
    inspect_step_document,
)
from fanfold.runtime.views.runs.rows import FailureDocument, StepUsage, failure_document, step_usage
from fanfold.runtime.views.standing import is_interrupted, stopped_at
from fanfold.runtime.views.steps.explanations import Explained
from fanfold.runtime.views.times import when
from fanfold.text.template import Hole, UnresolvedPath, parse_template, render


class PromptPart(Struct, frozen=True):
    """Characters of a prompt that were put in: from one, up to and not including another."""

    start: int = field(name="from")
    end: int = field(name="to")
    source: str
    """The path that was looked up: `inputs.topic`, `steps.gather.output`."""
    step: str | None
    """Tree path of the step that gave it."""


class PromptDocument(Struct, frozen=True):
    """`parts` in order; what lies between them stands in the recipe."""

    text: str
    parts: list[PromptPart]


def prompt_of(tree: RunTree, node: Node) -> PromptDocument | None:
    """What the agent of a step is told by its recipe; None where it has none, or it cannot be told yet."""
    said = find_body(AgentBody, node.step)
    if said is None:
        return None
    try:
        pieces = list(_pieces(tree, node, said))
    except UnresolvedPath:
        return None
    text, parts = "", []
    for piece, source, giver in pieces:
        if source:
            path = None if giver is None else giver.run.tree_path(giver.path)
            parts.append(PromptPart(len(text), len(text) + len(piece), source, path))
        text += piece
    return PromptDocument(text, parts)


def _pieces(tree: RunTree, node: Node, said: AgentBody) -> Iterator[tuple[str, str, Node | None]]:
    """Text, where it comes from (nowhere: the recipe's own words), and the step that gave it."""
    ready = preparation(tree.values, node)
    between = ""
    for part in parse_template(said.prompt or ""):
        between = "\n\n"
        if isinstance(part, Hole):
            name = str(part.path.parts[0]) if part.path.root == "steps" and part.path.parts else ""
            yield render((part,), ready.names), part.path.text, sibling(node, name) if name else None
        else:
            yield part, "", None
    for section in sections_of(ready, said):
        yield between, "", None
        between = "\n\n"
        yield section.text, section.source, section.step


_ENDINGS = {"finished": "completed", "completed": "completed", "failed": "failed", "timed_out": "timed_out"}


class AttemptRow(Struct, frozen=True, kw_only=True):
    """One try. `executions` is more than one where a process died and another went on."""

    attempt: int
    status: str
    started_at: str | None
    ended_at: str | None
    executions: int
    error: FailureDocument | None
    usage: StepUsage | None
    session_id: str | None


class StepPage(InspectStepDocument, frozen=True, kw_only=True):
    """`tree_path` is its path seen from the root of the tree."""

    root_run_id: str
    tree_path: str
    description: str
    prompt: PromptDocument | None
    tries: list[AttemptRow]
    files: list[StepChanges]
    artifacts: list[PublishedFile]
    why: Explained
    inside: list[str]
    """Tree paths of what it holds: items, iterations, inner steps."""
    child_run_id: str | None
    stopped_at: str | None
    """When its time stopped, in a run that is paused."""


def step_page(
    tree: RunTree, node: Node, log: Iterable[Envelope], files: list[StepChanges], why: Explained
) -> StepPage:
    """A step as its tree is now; `log` is that of its run."""
    child = getattr(node, "child", None)
    return StepPage(
        **structs.asdict(inspect_step_document(tree, node)),
        root_run_id=tree.root.id,
        tree_path=node.run.tree_path(node.path),
        description=node.step.description,
        prompt=prompt_of(tree, node) if node.attempt else None,
        tries=list(attempts_of(tree, node, log)),
        files=files,
        artifacts=[one for one in artifacts_of(tree, node.run) if one.step == node.path],
        why=why,
        inside=[one.run.tree_path(one.path) for one in getattr(node, "children", [])],
        child_run_id=None if child is None else child.id,
        stopped_at=when(stopped_at(tree)),
    )


class _Attempt:
    def __init__(self) -> None:
        self.status = "running"
        self.started: int | None = None
        self.ended: int | None = None
        self.executions = 0
        self.error: Failure | None = None
        self.usage: StepUsage | None = None


def attempts_of(tree: RunTree, node: Node, log: Iterable[Envelope]) -> Iterator[AttemptRow]:
    """The tries of a step as the log of its run tells them, up to what was folded."""
    found: dict[int, _Attempt] = {}
    for envelope in log:
        if envelope.tree_seq > tree.tree_seq:
            break
        data = event_of(envelope).data
        if not isinstance(data, StepEvent | SubagentEvent) or data.step != node.path or not data.attempt:
            continue
        one = found.setdefault(data.attempt, _Attempt())
        if data.status == "started":
            one.executions += 1
            one.started = one.started or envelope.at
        elif data.status in _ENDINGS:
            one.status, one.ended, one.error = _ENDINGS[data.status], envelope.at, data.error
        elif data.status in ("cancelled", "waiting"):
            one.status = data.status
        if data.usage is not None:
            one.usage = step_usage(data.usage)
    for number, one in sorted(found.items()):
        if number == node.attempt and one.status == "running" and is_interrupted(tree, node):
            one.status, one.ended = INTERRUPTED, stopped_at(tree)
        yield AttemptRow(
            attempt=number,
            status=one.status,
            started_at=when(one.started),
            ended_at=when(one.ended),
            executions=one.executions,
            error=failure_document(one.error, node),
            usage=one.usage,
            session_id=session_id(node.run.id, node.path, number) if is_agent(node) else None,
        )
