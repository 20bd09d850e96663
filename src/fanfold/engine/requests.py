"""Requests of other processes to a run: pause, cancel, answer an approval, record applied changes.

An open run also accepts requests about its children.

A request is checked twice. The first check is when it is made, so that the user sees errors at once. The
second is when the owner acts on it, because the run has continued in between. A request that no longer
applies is dropped. If the requester waits for the result, it is refused in the log.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.redaction import MARK
from fanfold.engine.run_tree import RunTree
from fanfold.errors import AuthorError, FanfoldError, NotFoundError, WorldError
from fanfold.kernel.events import (
    CancelRequested,
    CloseRequested,
    Evidence,
    Failure,
    LimitsRaised,
    PauseRequested,
    RequestRefused,
    ResumeRequested,
    StepAdded,
    StepEvent,
)
from fanfold.kernel.plan import JSON, Step
from fanfold.kernel.state import (
    ASKED,
    COMPLETED,
    FAILED,
    INTERRUPTED,
    LEAF,
    PAUSED,
    PENDING,
    READY,
    RUN_TERMINAL,
    RUNNING,
    TERMINAL,
    WAITING,
    Node,
    Run,
    State,
)
from fanfold.kernel.transitions import comes_after, find_node, why_not_added
from fanfold.language.diagnostics import nearest
from fanfold.language.json_text import as_text, strict
from fanfold.language.leaf_steps import AgentBody, find_body, read_body
from fanfold.language.template import literal
from fanfold.language.terminal import shorten
from fanfold.steps.records import (
    SENT,
    Apply,
    ChangedPath,
    Merge,
    SandboxUse,
    Undo,
    child_name,
    is_agent,
    subagent_event,
)
from fanfold.steps.run_config import how_to_resume, is_chat
from fanfold.steps.step_type import StepReply, answer
from fanfold.store.protocol import Request

MAX_TOLD_CHARS = 200
MAX_TEXT_CHARS = 32_000
"""The length of a message to an agent."""
LISTENING = ("model", "local")
"""Back ends whose agents read messages while they work."""


class PauseRequest(Struct, frozen=True, tag_field="kind", tag="pause"):
    """Pause the run. It starts no more steps and keeps all results."""

    by: str


class CancelRequest(Struct, frozen=True, tag_field="kind", tag="cancel"):
    """End the run, or the child run, and everything below it."""

    by: str


class AnswerRequest(Struct, frozen=True, tag_field="kind", tag="answer"):
    """A person's decision about an approval, or the text that answers a question; `path` is a tree path."""

    path: str
    decision: str
    by: str
    comment: str | None = None
    edited: JSON = None
    text: str | None = None


class MessageRequest(Struct, frozen=True, tag_field="kind", tag="message"):
    """A message for the agent of a running step, which reads it before its next turn."""

    path: str
    text: str
    by: str


class AppliedRequest(Struct, frozen=True, tag_field="kind", tag="applied"):
    """Record that the proposal of a step was applied to the project."""

    step: str
    proposal: str
    changes: list[ChangedPath]
    by: str
    receipt: str = ""


class UndoneRequest(Struct, frozen=True, tag_field="kind", tag="undone"):
    """Record that the merged changes of a step were reverted."""

    step: str
    receipt: str
    changes: list[ChangedPath]
    by: str


class FactRequest(Struct, frozen=True, tag_field="kind", tag="fact"):
    """Record a merge or a use of the sandbox that happened during a step."""

    fact: Merge | SandboxUse


class ContinueRequest(Struct, frozen=True, tag_field="kind", tag="continue"):
    """Continue a run that has no owner. A worker reads it when it becomes the owner."""

    raised: LimitsRaised | None = None
    keep_waits: bool = True


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


RunRequest: TypeAlias = (
    ContinueRequest
    | PauseRequest
    | CancelRequest
    | AnswerRequest
    | MessageRequest
    | AppliedRequest
    | UndoneRequest
    | FactRequest
    | ChildRequest
)


_LAST_PART = r"(/[^/]+|\[\d+\]|#\d+)$"


def to_row(root: str, run: str, request: RunRequest, at: int) -> Request:
    """A request as the store keeps it. Raises `AuthorError` if it cannot be stored as JSON."""
    try:
        data = strict(msgspec.to_builtins(request), "what is asked of the run")
        _read(data)  # an unreadable request would make every owner of the run fail
    except (ValueError, TypeError) as error:
        raise AuthorError("request.not_json", str(error)) from None
    return Request(root=root, run_id=run, kind=data.pop("kind"), data=data, at=at)


def from_row(row: Request) -> RunRequest:
    return _read({**row.data, "kind": row.kind})


def _read(data: Mapping[str, JSON]) -> RunRequest:
    request: RunRequest = msgspec.convert(data, RunRequest)
    return request


def this_person() -> str:
    """The name of the user of this process, or the user id if the name is unknown."""
    try:
        import getpass

        return getpass.getuser()
    except (KeyError, ImportError, OSError):
        return f"user {os.getuid()}"


# Checks


def check_answer(tree: RunTree, request: AnswerRequest) -> None:
    """Raise an error with the reason if the run does not accept this answer now."""
    answer(tree.values, _find_asking(tree.state, request.path), _reply(request))


def check_message(tree: RunTree, request: MessageRequest) -> Node:
    """Return the step that a message is for; raise if it has no running agent that is a model."""
    node = find_node(tree.state, request.path)
    if node is None:
        raise _not_there(tree.state, request.path)
    if not is_agent(node) or node.kind != LEAF:
        raise AuthorError("message.not_agent", f"{request.path} has no agent: its type is {node.step.type}")
    if node.status != RUNNING and node.reason != ASKED:
        hint = "only a running agent can receive a message"
        raise AuthorError("message.not_running", f"{request.path} is {node.status}", hint=hint)
    frozen = tree.frozen(node)
    role = frozen.role_of(read_body(AgentBody, node.step))
    backend = "a pipeline" if role.pipeline else frozen.backend_of(role)
    if backend not in LISTENING:
        message = f"the agent of {request.path} is {backend}, which reads no messages while it works"
        raise AuthorError("message.not_model", message, hint="cancel it, or wait until it has finished")
    if not request.text.strip() or len(request.text) > MAX_TEXT_CHARS:
        message = f"a message has 1 to {MAX_TEXT_CHARS:,} characters"
        raise AuthorError("usage.bad_value", message)
    return node


def _find_asking(state: State, path: str) -> Node:
    """The step at a tree path that waits for a person. Raises if there is none."""
    node = find_node(state, path)
    if node is None:
        raise _not_there(state, path)
    if node.step.traits.waits != "person" and node.reason != ASKED and not node.agreed:
        raise AuthorError("approval.not_one", f"{path} asks no question: its type is {node.step.type}")
    if node.status in TERMINAL:
        hint = f"fanfold inspect {state.root.id} {shlex.quote(path)} shows how it ended"
        raise AuthorError("approval.closed", f"{path} is {node.status} already", hint=hint)
    if node.status != WAITING:
        raise AuthorError("approval.not_open", f"{path} is {node.status}; it asks no question yet")
    return node


def _not_there(state: State, path: str) -> AuthorError | NotFoundError:
    """The error for a tree path without a step. The enclosing step may not have started yet."""
    run, around = state.root.id, path
    if state.root.status == PENDING:
        return AuthorError("approval.not_open", f"run {run} has not begun; it asks no question yet")
    while (end := re.search(_LAST_PART, around)) is not None:
        around = around[: end.start()]
        above = find_node(state, around)
        if above is not None and above.status not in TERMINAL and above.kind != LEAF:
            return AuthorError("approval.not_open", f"nothing in {around} at {path} asks a question yet")
    near = nearest(path, [one.tree_path(at) for one in state.runs.values() for at in one.nodes])
    hint = f'did you mean "{near}"?' if near else f"fanfold inspect {run} --steps lists them"
    return NotFoundError("step.not_found", f"run {run} has no step {path}", hint=hint)


def _reply(request: AnswerRequest) -> StepReply:
    return StepReply(request.decision, request.by, request.comment, request.edited, request.text)


def check_recorded(tree: RunTree, request: AnswerRequest) -> None:
    """Raise if the log does not have this answer after the request was handled."""
    node = find_node(tree.state, request.path)
    if node is not None and is_agent(node) and request.text is not None:
        answers = [sent.text for sent in tree.memory.texts.get((node.run.id, node.path), ()) if sent.call]
        if any(_is_kept(request.text, text) for text in answers[-1:]):
            return
    if node is None or node.status == WAITING:
        raise AuthorError("approval.not_open", f"{request.path} did not accept the answer")
    if node.step.traits.waits is None and node.agreed == (request.decision == "approve"):
        return  # the output of such a step is not the answer
    if node.output is None:
        raise AuthorError("approval.closed", f"{request.path} is {node.status} already")
    found, given = tree.blobs.get(node.output), answer(tree.values, node, _reply(request)).output
    if not _is_kept(given, found):
        decided = isinstance(found, dict) and request.text is None
        told = f"{found['decision']} by {found['by']}" if decided else shorten(as_text(found), MAX_TOLD_CHARS)
        message = f"{request.path} was answered before: {told}"
        raise AuthorError("approval.closed", message, hint="the first answer counts")


def _is_kept(given: Any, found: Any) -> bool:
    """Whether the stored value equals the given one, apart from secrets, which are never stored."""
    if isinstance(given, dict) and isinstance(found, dict):
        return given.keys() == found.keys() and all(_is_kept(given[key], found[key]) for key in given)
    return bool(given == found) or MARK in str(found)


def is_applied(tree: RunTree, run: str, proposal: str) -> bool:
    """Whether the log of a run records that a proposal was applied."""
    rows = tree.memory.changes.get(run, [])
    return any(row.proposal == proposal and row.state == "applied" for row in rows)


# Actions of the owner


def act_on(tree: RunTree, rows: Sequence[Request]) -> None:
    """Act on the requests that still apply. The next commit removes all of them from the store."""
    for row in rows:
        run = tree.state.runs.get(row.run_id)
        if run is not None:
            _act_on(tree, run, row, tree.now_ms())
        tree.requests_done.append(row.id)


def _act_on(tree: RunTree, run: Run, row: Request, at: int) -> None:
    state, request = tree.state, from_row(row)
    # Recorded in any state of the run: they have happened already.
    if isinstance(request, AppliedRequest):
        note_applied(tree, run.id, request, at)
    elif isinstance(request, UndoneRequest):
        note_undone(tree, run.id, request, at)
    elif isinstance(request, FactRequest):
        _note_fact(tree, run.id, request.fact, at)
    elif state.root.status in RUN_TERMINAL or isinstance(request, ContinueRequest):
        return  # the run has an owner, or needs none
    elif isinstance(request, CancelRequest):
        if run.status not in RUN_TERMINAL:
            tree.report(run.id, at, CancelRequested(request.by))
    elif isinstance(request, PauseRequest):
        if state.root.status == RUNNING and not state.pausing:
            tree.report(state.root.id, at, PauseRequested())
    elif isinstance(request, AnswerRequest):
        if state.root.status in (RUNNING, PAUSED):
            _answer(tree, request, at)
    elif isinstance(request, MessageRequest):
        _pass_on(tree, request, at)
    else:
        act_on_child(tree, row.id, request, at)


def _pass_on(tree: RunTree, request: MessageRequest, at: int) -> None:
    try:
        node = check_message(tree, request)
    except (AuthorError, NotFoundError):
        return
    _note_text(tree, node, request.text, request.by, at)


def _note_text(tree: RunTree, node: Node, text: str, by: str, at: int, call: str = "") -> None:
    """Record a text for the agent of a step. The agent reads it from there, also after a crash."""
    about = {"step": node.path, "kind": SENT, "text": text, "by": by}
    tree.report(node.run.id, at, Evidence("session_event", {**about, "call": call} if call else about))


def note_applied(tree: RunTree, run: str, applied: AppliedRequest, at: int) -> None:
    """Record once that a proposal of a step was applied, also in a finished run."""
    if not is_applied(tree, run, applied.proposal):
        fact = Apply(
            step=applied.step,
            proposal=applied.proposal,
            changes=tuple(applied.changes),
            by=applied.by,
            receipt=applied.receipt,
        )
        tree.report(run, at, Evidence("workspace_event", fact))


def is_undone(tree: RunTree, run: str, step: str) -> bool:
    """Whether the log of a run records that the merged changes of a step were reverted."""
    return any(row.state == "undone" for row in tree.memory.changes_of(run, step))


def note_undone(tree: RunTree, run: str, undone: UndoneRequest, at: int) -> None:
    """Record once that the merged changes of a step were reverted, also in a finished run."""
    if not is_undone(tree, run, undone.step):
        fact = Undo(step=undone.step, receipt=undone.receipt, changes=tuple(undone.changes), by=undone.by)
        tree.report(run, at, Evidence("workspace_event", fact))


def _note_fact(tree: RunTree, run: str, fact: Merge | SandboxUse, at: int) -> None:
    known = tree.memory.receipts.get((run, fact.step), [])
    # After a crash, a merge may be reported twice.
    if not isinstance(fact, Merge) or fact.receipt not in known:
        tree.report(run, at, Evidence("workspace_event", fact))


def _answer(tree: RunTree, request: AnswerRequest, at: int) -> None:
    """Apply the answer of a person, unless the question is closed."""
    try:
        node = _find_asking(tree.state, request.path)
        outcome = answer(tree.values, node, _reply(request))
    except (AuthorError, NotFoundError):
        return
    if node.reason == ASKED and outcome.error is None:
        if request.text is not None:
            call = tree.blobs.get(tree.memory.shown[node.run.id, node.path]).get("call", "")
            _note_text(tree, node, request.text, request.by, at, call)
        agreed = StepEvent(node.path, "agreed", node.attempt, node.execution, summary=request.by)
        tree.report(node.run.id, at, agreed)
        return
    word = COMPLETED if outcome.error is None else FAILED
    output = tree.blobs.put(outcome.output) if node.reason != ASKED else None
    data = StepEvent(node.path, word, node.attempt, node.execution, output, error=outcome.error)
    tree.report(node.run.id, at, data)


# -----------------------------------------------------------------------------------------------------------
# Requests about the children of an open run: add, send input, close, resume. The owner handles them.
#
# Rules
# * The requester fixes everything that the step needs, including role and permission. The owner adds the name
#   and the position. A request with a known key adds nothing, so a request is safe to repeat.
# * Input is the next turn of a child: a step after the previous turn, with the same configuration.
# * Closing cancels a child that is queued or running. Any other child is closed permanently.
# * A request that is no longer possible is refused in the log, under the number of the request.

TASK_CHARS = 200


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
    message = f"{name} is detached: its process ended without a result"
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
        message = (
            f"the proposal of {child} is not applied yet ({proposal}), so its next turn would not see it"
        )
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
    raise SubagentRefused("subagent.not_detached", f"{child} is not detached", hint="send it a text")
