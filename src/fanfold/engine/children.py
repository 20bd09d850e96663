"""Requests about the children of an open run: add, send input, close, resume. The owner handles them.

Rules
* The requester fixes everything that the step needs, including role and permission. The owner adds the name
  and the position. A request with a known key adds nothing, so a request is safe to repeat.
* Input is the next turn of a child: a step after the previous turn, with the same configuration.
* Closing cancels a child that is queued or running. Any other child is closed permanently.
* A request that is no longer possible is refused in the log, under the number of the request.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from fanfold.engine.run_tree import RunTree
from fanfold.errors import FanfoldError, NotFoundError, WorldError
from fanfold.kernel.events import CloseRequested, Failure, RequestRefused, ResumeRequested, StepAdded
from fanfold.kernel.plan import Step
from fanfold.kernel.state import COMPLETED, INTERRUPTED, READY, RUNNING, TERMINAL, WAITING, Node
from fanfold.kernel.transitions import comes_after, why_not_added
from fanfold.language.diagnostics import nearest
from fanfold.language.leaf_steps import AgentBody, find_body
from fanfold.language.template import literal
from fanfold.language.terminal import shorten
from fanfold.steps.records import child_name, subagent_event
from fanfold.steps.run_config import how_to_resume, is_chat

TASK_CHARS = 200


class AddRequest(Struct, frozen=True, kw_only=True, tag_field="kind", tag="add"):
    """Append a step. A step without an id is named after its role."""

    step: Step
    frozen: dict[str, Any]
    """The configuration of the step: role, back end, script, permission."""
    key: str


class InputRequest(Struct, frozen=True, kw_only=True, tag_field="kind", tag="input"):
    """Send a message to a child, as its next turn."""

    child: str
    text: str
    key: str


class CloseRequest(Struct, frozen=True, tag_field="kind", tag="close"):
    """Cancel or close a child."""

    child: str


class ResumeRequest(Struct, frozen=True, tag_field="kind", tag="resume"):
    """Resume a child that lost its process."""

    child: str


ChildRequest: TypeAlias = AddRequest | InputRequest | CloseRequest | ResumeRequest


class SubagentRefused(WorldError):
    """A request to a subagent is not possible: `subagent.closed`, `.detached`, `.limit_exceeded` …"""


def turns_of(tree: RunTree, child: str) -> list[Node]:
    """The turns of a child in order. Raises `subagent.not_found` for an unknown name."""
    turns = tree.turns(child)
    if not turns:
        raise no_subagent(child, {child_name(node.path) for node in tree.root.scope.children})
    return turns


def no_subagent(name: str, known: Collection[str] = ()) -> NotFoundError:
    """The error for a name that no subagent has; `known` are the existing names."""
    near = nearest(name, known)
    hint = f'did you mean "{near}"?' if near else "fanfold ps --all lists them"
    if is_chat(name):
        hint = f"it is a chat: {how_to_resume(name)}"
    return NotFoundError("subagent.not_found", f"there is no subagent {name}", hint=hint)


def detached(name: str) -> SubagentRefused:
    """The error for input to a subagent that lost its process."""
    message = f"{name} is detached: nobody knows what it did last"
    return SubagentRefused("subagent.detached", message, hint=f"fanfold send {shlex.quote(name)} --resume")


def is_interrupted(node: Node) -> bool:
    """Whether a step lost its process and waits for a request to resume it."""
    return node.status == WAITING and node.reason == INTERRUPTED


def act_on_child(tree: RunTree, number: int, request: ChildRequest, at: int) -> None:
    """Act on a request to an open run, or record in the log why it is refused."""
    try:
        match request:
            case AddRequest():
                _add(tree, request, at)
            case InputRequest():
                _send(tree, request, at)
            case CloseRequest():
                turns = turns_of(tree, request.child)
                live = [turn for turn in turns if turn.status not in TERMINAL]
                if live:
                    for_good = is_interrupted(live[0])
                    tree.report(tree.root.id, at, CloseRequested(live[0].path))
                else:
                    for_good = not turns[-1].closed
                if for_good:
                    last = turns[-1]
                    task = tree.memory.tasks.get((last.run.id, last.path), last.step.description)
                    tree.report(
                        tree.root.id, at, subagent_event(last, "closed", last.attempt, last.execution, task)
                    )
            case ResumeRequest():
                _resume(tree, request.child, at)
    except FanfoldError as error:
        failure = Failure("agent", error.code, error.message, error.hint, retryable=False)
        tree.report(tree.root.id, at, RequestRefused(number, failure))


def _add(tree: RunTree, request: AddRequest, at: int) -> None:
    if request.key in tree.memory.keys:
        return
    step = request.step
    if not step.id:
        role = step.traits.role or step.type
        plain = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in role)
        prefix = plain.strip("-") or "agent"
        number = tree.child_count() + 1
        while tree.turns(f"{prefix}-{number}"):
            number += 1
        step = replace(step, id=f"{prefix}-{number}")
    _append(tree, step, tree.blobs.put(request.frozen), request.key, at)


def check_addable(tree: RunTree, step: Step) -> None:
    """Raise `subagent.refused` with the reason if a step cannot be added to an open run now."""
    refusal = why_not_added(tree.root, step)
    if refusal:
        raise SubagentRefused("subagent.refused", refusal)


def _append(tree: RunTree, step: Step, frozen: str | None, key: str, at: int) -> None:
    check_addable(tree, step)
    tree.report(tree.root.id, at, StepAdded(step=step, frozen=frozen, key=key))


def _send(tree: RunTree, request: InputRequest, at: int) -> None:
    if request.key in tree.memory.keys:
        return
    turns = turns_of(tree, request.child)
    last = turns[-1]
    check_spoken_to(tree, request.child)
    body = find_body(AgentBody, last.step)
    if body is None:
        raise SubagentRefused(
            "subagent.not_one", f"{request.child} is no agent: its type is {last.step.type}"
        )
    step = replace(
        last.step,
        id=f"{request.child}#{len(turns) + 1}",
        action=replace(body, prompt=literal(request.text), continue_from=last.path).action(),
        description=shorten(request.text, TASK_CHARS),
        after=comes_after(turns),
        depends_on=(),
        inputs={},
    )
    _append(tree, step, tree.memory.added[tree.root.id, last.path], request.key, at)


def check_spoken_to(tree: RunTree, child: str) -> None:
    """Raise an error with the reason if a child cannot get another turn."""
    last = turns_of(tree, child)[-1]
    if last.closed:
        raise SubagentRefused("subagent.closed", f"{child} is closed", hint="spawn a new subagent")
    if is_interrupted(last):
        raise detached(child)
    proposal = waiting_proposal(tree, last)
    if proposal is not None:
        message = f"what {child} proposed is not applied yet ({proposal}), and it would not see it"
        hint = f"fanfold apply {tree.root.id} {shlex.quote(last.path)} merges it; or spawn another subagent"
        raise SubagentRefused("subagent.proposal_waits", message, hint=hint)


def waiting_proposal(tree: RunTree, node: Node) -> str | None:
    """The proposal of a completed step that is not applied yet, if any."""
    rows = tree.memory.changes_of(node.run.id, node.path) if node.status == COMPLETED else []
    found = (row.proposal for row in rows if row.state == "proposed")
    return next(found, None)


def _resume(tree: RunTree, child: str, at: int) -> None:
    for turn in turns_of(tree, child):
        if is_interrupted(turn):
            tree.report(tree.root.id, at, ResumeRequested(turn.path))
            return
        if turn.status in (READY, RUNNING):
            return  # an earlier request has resumed it
    raise SubagentRefused("subagent.not_detached", f"{child} is not detached", hint="say something to it")
