"""What was delegated in an open run, read from its log for `recipe.emission`.

Each child is one delegation, however often it had to be asked: a turn that failed and was followed by another
was tried again. A turn behind one that completed is a delegation of its own, which goes on in that
conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from fanfold.agents.entries import Response
from fanfold.kernel.events import Added, SubagentEvent, event_of
from fanfold.kernel.lifecycle import COMPLETED
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import EVERYTHING, JSON
from fanfold.recipe.emission.delegations import Delegation
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.body import read_body
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.records.subagents import child_name, is_agent, is_lead, session_of
from fanfold.runtime.steps.agent import words_of
from fanfold.sessions.log import read_entries

_MERGED = frozenset({"merged", "applied"})


def find_delegations(
    tree: RunTree, children: Sequence[str] = (), usual_timeout_ms: int = 0
) -> list[Delegation]:
    """The delegations of an open run in the order they were asked for; only those of `children`, if named."""
    asked, ended = _moments(tree)
    found: list[Delegation] = []
    for node in tree.root.scope.children:
        child = child_name(node.path)
        if not is_agent(node) or is_lead(node) or (children and child not in children):
            continue
        one = _delegation(tree, node, usual_timeout_ms)
        one = replace(one, asked=asked.get(node.path, 0), ended=ended.get(node.path, 0))
        before = next((n for n in range(len(found) - 1, -1, -1) if child_name(found[n].name) == child), None)
        if before is None:
            found.append(one)
        elif found[before].status == COMPLETED:
            found.append(replace(one, continues=found[before].name))
        else:  # it is told once more; what it was asked first is what the step is about
            failed = found[before]
            found[before] = replace(
                one,
                name=failed.name,
                prompt=failed.prompt,
                asked=failed.asked,
                failed_as=(*failed.failed_as, failed.failure) if failed.failure else failed.failed_as,
            )
    return found


def _moments(tree: RunTree) -> tuple[dict[str, int], dict[str, int]]:
    """When each step was asked for, and when it ended: numbers of events."""
    asked: dict[str, int] = {}
    ended: dict[str, int] = {}
    for envelope in tree.store.tree(tree.root.id):
        if envelope.log != tree.root.id:
            continue
        data = event_of(envelope).data
        if isinstance(data, Added):
            asked[data.step.id] = envelope.tree_seq
        elif isinstance(data, SubagentEvent) and data.status not in ("queued", "started", "input"):
            ended[data.step] = envelope.tree_seq
    return asked, ended


def _delegation(tree: RunTree, node: Node, usual_timeout_ms: int) -> Delegation:
    said = read_body(AgentBody, node.step)
    number = node.path.removeprefix(f"{said.agent}-")
    return Delegation(
        name=node.path,
        chosen=not number.isdecimal(),
        role=said.role,
        prompt=words_of(node),
        output=tree.values.output(node),
        status=node.status,
        failure=node.error.kind if node.error is not None else "",
        asked=0,
        ended=0,
        settings=dict(_settings(tree, node, said, usual_timeout_ms)),
        leaves_files=_leaves_files(tree, node),
        tools=tuple(_tools_used(tree, node)),
    )


def _settings(
    tree: RunTree, node: Node, said: AgentBody, usual_timeout_ms: int
) -> Iterator[tuple[str, JSON]]:
    """Keys of the step that differ from what a recipe's step has without a word."""
    step = node.step
    role = tree.frozen(node).roles.get(said.role)
    if step.posture == "read_only" and role is not None and not role.read_only:
        yield "posture", "read_only"
    if step.posture == "writer" and step.write_set != EVERYTHING:
        yield "write_set", list(step.write_set)
    if step.posture == "writer" and step.workspace_mode == "shared":
        yield "workspace_mode", "shared"
    if step.merge != "auto":
        yield "merge", step.merge
    if step.on_conflict != "fail":
        yield "on_conflict", step.on_conflict
    if said.model is not None:
        yield "model", said.model
    if said.tools is not None:
        yield "tools", list(said.tools)
    if step.output_schema is not None:
        yield "output_schema", step.output_schema
    if step.timeout_ms is not None and step.timeout_ms != usual_timeout_ms:
        yield "timeout", _duration(step.timeout_ms)


def _duration(ms: int) -> str:
    return f"{ms // 1_000}s" if ms % 1_000 == 0 else f"{ms}ms"


def _leaves_files(tree: RunTree, node: Node) -> bool:
    if node.step.posture != "writer":
        return False
    rows = tree.memory.changes.get(node.run.id, [])
    return node.step.workspace_mode == "shared" or any(
        row.step == node.path and row.state in _MERGED for row in rows
    )


def _tools_used(tree: RunTree, node: Node) -> Iterator[str]:
    for entry in read_entries(tree.store, session_of(node)) if node.attempt else ():
        if isinstance(entry, Response):
            yield from (call.tool for call in entry.tool_calls)
