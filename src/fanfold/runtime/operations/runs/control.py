"""Asking something of a run, wherever it is driven: pause, cancel, answer an approval.

A request is a row in the store; the run's owner acts on it. Who asks waits until it has, because "cancelled"
must mean cancelled. If nobody owns the run, a pause or cancellation is carried out here, and an answer lets
the run go on in the background.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection

from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.lifecycle import CANCELLED, PAUSED, RUN_TERMINAL, WAITING
from fanfold.kernel.plan import JSON
from fanfold.runtime.hosting.clock import wall_clock_ms
from fanfold.runtime.hosting.requests import (
    AnswerRequest,
    CancelRequest,
    PauseRequest,
    RunRequest,
    check_answer,
    check_recorded,
    this_person,
    to_row,
)
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.background import Background, go_on_detached
from fanfold.runtime.operations.runs.follow import until
from fanfold.runtime.operations.runs.ownership import own
from fanfold.runtime.views.approvals import Answered, open_approvals, pending_question
from fanfold.store.protocol import LeaseHeld, RunHead
from fanfold.text.json_value import as_text, strict
from fanfold.trust.adopted import is_adopted, require_permitted

MAX_NAMED = 5
PATIENCE_S = 60.0
"""An owner that does not act for this long is stuck, or its machine is."""


async def pause(project: Project, run: str) -> RunHead:
    """Pause a whole run and wait until it has paused; its head then."""
    head = project.resolve(project.resolve(run).root_run_id)
    if head.status in RUN_TERMINAL:
        raise AuthorError("run.ended", f"run {head.run_id} is {head.status} already")
    # A run that somebody is just taking up still says that it is paused.
    if head.status != PAUSED or project.has_owner(head.run_id):
        await _ask_and_wait(project, head, PauseRequest(this_person()), {*RUN_TERMINAL, PAUSED})
    return project.resolve(head.run_id)


async def cancel(project: Project, run: str) -> RunHead:
    """Cancel a run or child run and wait until nothing of it runs any more; its head then."""
    head = project.resolve(run)
    if head.status not in RUN_TERMINAL:
        await _ask_and_wait(project, head, CancelRequest(this_person()), RUN_TERMINAL)
    elif head.status != CANCELLED:
        raise AuthorError("run.ended", f"run {head.run_id} is {head.status} already")
    return project.resolve(head.run_id)


async def answer(
    project: Project,
    run: str,
    step: str | None,
    decision: str,
    comment: str | None = None,
    edited: JSON = None,
    *,
    by: str = "",
    seen: str | None = None,
) -> Answered:
    """Answer an approval, and wait until the answer is in the log.

    `decision` is `approve`, `reject` or one of the choices; `step` is relative to the run, and on the root
    anywhere in the tree; without it the only one that waits is meant. `seen` is the digest of what the person
    had before them: an answer to anything else is refused. What is wrong with the answer is said before
    anything is left behind.
    """
    head = project.resolve(run)
    tree = project.view(head.root_run_id)
    path = tree.state.runs[head.run_id].tree_path(step) if step is not None else _only_open(tree, head)
    given = AnswerRequest(path, decision, by or this_person(), comment, edited)
    detached = await _give(project, head, tree, given, seen)
    return Answered(head.run_id, path if step is None else step, decision, detached)


async def reply(
    project: Project, run: str, step: str, text: str, *, by: str = "", seen: str | None = None
) -> Answered:
    """Answer the question of an `ask` step, and wait until the answer is in the log.

    `text` is the answer itself, one of the choices, or JSON where the step has a schema. What is wrong with
    it is said before anything is left behind.
    """
    head = project.resolve(run)
    tree = project.view(head.root_run_id)
    path = tree.state.runs[head.run_id].tree_path(step)
    given = AnswerRequest(path, "", by or this_person(), text=text)
    detached = await _give(project, head, tree, given, seen)
    return Answered(head.run_id, step, text, detached)


def as_answer(given: JSON) -> str:
    """What a program answers, as a person would have written it."""
    try:
        return as_text(strict(given, "the answer"))
    except ValueError as error:
        raise AuthorError("usage.bad_value", str(error)) from None


async def _give(
    project: Project, head: RunHead, tree: RunTree, given: AnswerRequest, seen: str | None
) -> bool:
    """Have an answer taken; whether the run goes on in the background for it."""
    check_answer(tree, given)
    if seen is not None and seen != pending_question(tree, given.path).seen:
        message = f"what {given.path} asks is not what you saw any more"
        raise WorldError("approval.changed", message, hint="look at it again, then answer")
    _, background = await ask_owner(project, head, given)
    check_recorded(project.view(head.root_run_id), given)
    return background is not None


def _only_open(tree: RunTree, head: RunHead) -> str:
    """The tree path of the only approval of a run, or below it, that waits."""
    below = f"{head.execution_path}/" if head.execution_path else ""
    asked = [one for one in open_approvals(tree) if one.kind != "question"]
    waiting = [one.path for one in asked if one.path.startswith(below)]
    if len(waiting) == 1:
        return waiting[0]
    if not waiting:
        message = f"nothing of run {head.run_id} waits for an answer"
        raise AuthorError("approval.none", message, hint=f"fanfold inspect {head.run_id} shows how it stands")
    message = f"{len(waiting)} approvals of run {head.run_id} wait: {', '.join(waiting[:MAX_NAMED])}"
    hint = f"name one: fanfold approve {head.run_id} {shlex.quote(waiting[0].removeprefix(below))}"
    raise AuthorError("approval.which", message, hint=hint, details={"waiting": waiting})


async def ask_owner(project: Project, head: RunHead, request: RunRequest) -> tuple[int, Background | None]:
    """Have the owner of a run act on a request: its number, and the process that was started for it.

    Where nobody drives the run, a process that goes on with it in the background takes the request with it.
    """
    require_permitted(project.folder, head.root_run_id)  # a refusal leaves nothing behind
    number = leave(project, head, request)
    return number, await _have_taken(project, head.root_run_id, number)


async def _have_taken(project: Project, root: str, number: int) -> Background | None:
    """Return when a request was acted on: the process that was started for it, where nobody drove the run."""
    background: Background | None = None
    taken = await until_taken(project, root, number)
    if taken is False:
        background = go_on_detached(project, root)
        taken = await until_taken(project, root, number, background)
        if taken is False and project.resolve(root).status not in RUN_TERMINAL:
            raise background.ended_at_once()
    if taken is None:
        raise _stuck(project, root)
    return background


def leave(project: Project, head: RunHead, request: RunRequest) -> int:
    """Leave a request for the owner of a run, who is woken for it; its number."""
    return project.store.request(to_row(head.root_run_id, head.run_id, request, wall_clock_ms()))


async def until_taken(
    project: Project, root: str, number: int, starting: Background | None = None
) -> bool | None:
    """Whether the owner acted on a request: False when there is none, None when it did not in time.

    `starting` is about to become the owner: as long as it lives there may be one.
    """

    def look() -> bool | None:
        owned = (starting is not None and starting.lives()) or project.has_owner(root)
        # Looked at last: whoever was the owner, or ended, had done so by then.
        if all(request.id != number for request in project.store.requests(root)):
            return True
        return None if owned else False

    return await until(project, root, look, PATIENCE_S)


async def _ask_and_wait(
    project: Project, head: RunHead, request: RunRequest, statuses: Collection[str]
) -> None:
    """Have the owner do it; without one, do it here. Returns when it is done."""
    root = head.root_run_id
    number = leave(project, head, request)

    def look() -> bool | None:
        now, owned = project.store.head(head.run_id), project.has_owner(root)
        if now is None or now.status in statuses:
            # Who wants to go on with a whole run could not while its owner still clears up.
            return None if owned and head.run_id == root else True
        return None if owned else False

    while not (done := await until(project, root, look, PATIENCE_S)):
        if done is None:
            raise _stuck(project, root)
        await _carry_out(project, head, number)
    if head.run_id == root and any(left.id == number for left in project.store.requests(root)):
        # Its owner left before it looked; the next one must not take it up.
        await _carry_out(project, head, number)


async def _carry_out(project: Project, head: RunHead, number: int) -> None:
    """Own the run just long enough to act on what was asked."""
    root = head.root_run_id
    if head.parent_run_id is not None:
        # Only a part of the run was meant; the rest does not go on in here. Where people are waited for, what
        # was behind that part goes on as after an answer; any other run rests.
        if project.resolve(root).status == WAITING and not is_adopted(project.folder, root):
            await _have_taken(project, root, number)
            return
        leave(project, project.resolve(root), PauseRequest(this_person()))
    try:
        owned = own(project, root, goes_on=False)
    except LeaseHeld:
        return  # somebody else took it over meanwhile and will act
    try:
        await owned.host().resume()
    finally:
        owned.done()


def _stuck(project: Project, root: str) -> WorldError:
    owner = project.store.owner(root)
    who = f"process {owner[0].pid}" if owner is not None else "its process"
    return WorldError(
        "run.busy",
        f"{who} has not acted on the request within {PATIENCE_S:g} s",
        hint=f"the request stays; if the process hangs, end it and use fanfold resume {root}",
    )
