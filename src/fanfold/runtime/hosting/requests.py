"""What other processes ask of a run: approve, reject, cancel, pause; or to record what they applied.

A request is checked twice: when it is made, so that the person sees at once what is wrong with it, and
when its owner acts on it, because the run has gone on in between. One that no longer applies is dropped.
"""

from __future__ import annotations

import getpass
import os
from typing import Any

from msgspec import Struct

from fanfold.agents.redaction import MARK
from fanfold.errors import AuthorError, NotFoundError
from fanfold.kernel.events import CancelRequested, Evidence, Failure, PauseRequested, StepEvent
from fanfold.kernel.lifecycle import COMPLETED, FAILED, PAUSED, RUN_TERMINAL, RUNNING, TERMINAL, WAITING
from fanfold.kernel.nodes import Node, State
from fanfold.kernel.plan import ApprovalAction
from fanfold.kernel.state import find_node
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.store.protocol import Request


def this_person() -> str:
    """Who answers from this process, by name where the system knows one."""
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):
        return f"user {os.getuid()}"


class Verdict(Struct, frozen=True):
    """A person's answer to an approval."""

    decision: str
    by: str
    comment: str | None = None
    edited: Any = None


def find_approval(state: State, path: str) -> Node:
    """The open approval at a tree path; says what is wrong otherwise."""
    node = find_node(state, path)
    if node is None:
        raise NotFoundError(
            "step.not_found", f"this run has no step {path}", hint="fanfold inspect RUN --steps"
        )
    if not isinstance(node.step.action, ApprovalAction):
        raise AuthorError("approval.not_one", f"{path} is not an approval but a {node.step.type} step")
    if node.status in TERMINAL:
        raise AuthorError("approval.closed", f"{path} is {node.status} already")
    if node.status != WAITING:
        raise AuthorError("approval.not_open", f"{path} is {node.status}; nobody is asked yet")
    return node


def check_choice(node: Node, decision: str) -> None:
    action = node.step.action
    assert isinstance(action, ApprovalAction)
    if action.choices and decision not in action.choices:
        raise AuthorError(
            "approval.bad_choice",
            f"{node.path} cannot be answered with {decision!r}",
            hint=f"choose one of: {', '.join(action.choices)}",
        )


def check_recorded(tree: RunTree, run: str, path: str, verdict: Verdict) -> None:
    """After a request was acted on: that this answer is the one in the log, or say which one is."""
    full = tree.state.runs[run].tree_path(path)
    node = find_node(tree.state, full)
    if node is None or node.status == WAITING:
        raise AuthorError("approval.not_open", f"{full} did not take the answer")
    if node.output is None:
        raise AuthorError("approval.closed", f"{full} is {node.status} already")
    found = tree.blobs.get(node.output)
    if (found["decision"], found["by"]) != (verdict.decision, verdict.by) or not (
        _is_kept(verdict.comment, found["comment"]) and _is_kept(verdict.edited, found["edited"])
    ):
        raise AuthorError(
            "approval.closed",
            f"{full} was answered before: {found['decision']} by {found['by']}",
            hint="the first answer holds",
        )


def _is_kept(given: Any, found: Any) -> bool:
    """Whether this is what was given, but for secrets, which are never kept."""
    return bool(given == found) or MARK in str(found)


def apply_request(tree: RunTree, request: Request, at: int) -> None:
    """Act on one request, if it still applies."""
    state = tree.state
    run = state.runs.get(request.run_id)
    if run is not None and request.kind == "applied":  # it is done, whatever became of the run
        note_applied(tree, run.id, request.data, at)
    if run is None or state.root.status in RUN_TERMINAL:
        return
    if request.kind == "cancel":
        if run.status not in RUN_TERMINAL:
            tree.report(run.id, at, CancelRequested(str(request.data.get("by", ""))))
    elif request.kind == "pause":
        if state.root.status == RUNNING and not state.pausing:
            tree.report(state.root.id, at, PauseRequested())
    elif request.kind == "answer" and state.root.status in (RUNNING, PAUSED):
        given = request.data
        verdict = Verdict(str(given["decision"]), str(given["by"]), given.get("comment"), given.get("edited"))
        answer_approval(tree, str(given["path"]), verdict, at)


def note_applied(tree: RunTree, run: str, told: dict[str, Any], at: int) -> None:
    """Record once that a proposal of a step was applied; also in a run that has ended."""
    if not is_applied(tree, run, told["proposal"]):
        tree.report(run, at, Evidence("workspace_event", told))


def is_applied(tree: RunTree, run: str, proposal: str) -> bool:
    """Whether the log of a run says that a proposal was applied."""
    rows = tree.memory.changes.get(run, [])
    return any(row["proposal"] == proposal and row["state"] == "applied" for row in rows)


def answer_approval(tree: RunTree, path: str, verdict: Verdict, at: int) -> bool:
    """Fold a person's answer in; False when the approval is not open any more."""
    try:
        node = find_approval(tree.state, path)
        check_choice(node, verdict.decision)
    except (AuthorError, NotFoundError):
        return False
    action = node.step.action
    assert isinstance(action, ApprovalAction)
    output = tree.blobs.put(
        {
            "decision": verdict.decision,
            "by": verdict.by,
            "comment": verdict.comment,
            "edited": verdict.edited,
        }
    )
    if verdict.decision == "reject" and not action.choices:
        message = verdict.comment or f"{verdict.by} rejected {node.path}"
        failure = Failure(
            "permission", "approval.rejected", message, "", False, node.path, attempt=node.attempt
        )
        data = StepEvent(node.path, FAILED, node.attempt, node.execution, output, error=failure)
    else:
        data = StepEvent(node.path, COMPLETED, node.attempt, node.execution, output)
    tree.report(node.run.id, at, data)
    return True
