"""A run that this process drives: follow it, answer it, pause it, wait for its result."""

from __future__ import annotations

import asyncio
import inspect
import shlex
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from functools import cache, wraps
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from msgspec import Struct, structs

from fanfold.api.approvals import AnswerResult, open_approvals, pending_question, shown
from fanfold.api.history import find_run, find_session_ref, until
from fanfold.api.ownership import OwnedRun, continue_detached, own
from fanfold.api.project import ContinuedRun, Project
from fanfold.api.transcripts import Transcript, transcript_of
from fanfold.engine import requests
from fanfold.engine.driver import OnProgress
from fanfold.engine.run_tree import RunTree, run_status, wall_clock_ms
from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.decide import needs_people
from fanfold.kernel.events import Envelope, LimitsRaised
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import CANCELLED, PAUSED, PENDING, RUN_TERMINAL, WAITING
from fanfold.language.json_text import as_text, strict
from fanfold.language.terminal import shorten
from fanfold.sessions.processes import finish_despite_cancel
from fanfold.store.protocol import LeaseHeld, RunHead
from fanfold.workspace.seal import is_adopted, require_permitted

if TYPE_CHECKING:
    from fanfold.api.result import Result, TypedResult

# -----------------------------------------------------------------------------------------------------------
# Check the arguments of API methods against their declared types
#
# A type checker finds the same errors earlier, but not every program uses one. Without this check, a handle
# instead of a run's id, or a dictionary instead of `Options`, would fail in lower layers with a misleading
# error. A database, for example, would report damage.

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "True or False", NoneType: "None"}


def checked(method: F) -> F:
    """Return the method with a check: arguments of undeclared types are refused with `usage.bad_value`."""

    @cache
    def declared() -> tuple[inspect.Signature, dict[str, Any]]:
        return inspect.signature(method), get_type_hints(method)

    def check(args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        parameters, hints = declared()
        given = parameters.bind(*args, **named)  # raises Python's usual TypeError, which names the method
        for name, value in given.arguments.items():
            kind = parameters.parameters[name].kind
            values = value if kind is inspect.Parameter.VAR_POSITIONAL else (value,)
            if kind is not inspect.Parameter.VAR_KEYWORD:
                for one in values:
                    _require(name, one, hints.get(name, Any))

    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def wait(*args: Any, **named: Any) -> Any:
            check(args, named)
            return await method(*args, **named)

        return wait  # type: ignore[return-value]  # it takes and gives the same

    @wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        check(args, named)
        return method(*args, **named)

    return call  # type: ignore[return-value]  # it takes and gives the same


def all_checked(kind: type[T]) -> type[T]:
    """Return the class with all public methods `checked`."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, checked(method))
    return kind


def _require(name: str, value: object, declared: Any) -> None:
    kinds = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
    if all(_is(value, kind) is False for kind in kinds):
        wanted = " or ".join(_word(kind) for kind in kinds)
        message = f"{name} cannot be {shorten(repr(value), 80)}: it is {wanted}"
        known = getattr(value, "id", None) or getattr(value, "run_id", None)
        hint = f'name it by its id: "{known}"' if str in kinds and isinstance(known, str) else ""
        raise AuthorError("usage.bad_value", message, hint=hint, details={"option": name})


def _is(value: object, kind: Any) -> bool | None:
    """Whether a value is of a type; None if that cannot be checked."""
    origin = get_origin(kind)
    if origin is Literal:
        return value in get_args(kind)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            return False
        key, item = get_args(kind)
        return all(_is(name, key) is not False and _is(one, item) is not False for name, one in value.items())
    known = origin or kind
    if known is Any or not isinstance(known, type) or known is type:
        return None
    if known in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if known is float else known)


def _word(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if origin is Mapping:
        text = "" if get_args(kind)[1] is Any else " to texts"
        return f"a mapping from names{text}"
    known = origin or kind
    return _WORDS.get(known, "a path" if known.__name__ == "PathLike" else f"fanfold.{known.__name__}")


API = "api"
"""The name of the answering person if a program answers."""


class RunHandle:
    """One run that this process drives, from the creation of the handle on."""

    def __init__(
        self,
        owned: OwnedRun,
        *,
        resumed: bool = False,
        raised: LimitsRaised | None = None,
        keep_waits: bool = False,
        leave_when_waiting: bool = False,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.id = owned.tree.root.id
        self.tree: RunTree = owned.tree
        self._owned = owned
        self._loop = asyncio.get_running_loop()
        self._followers: list[asyncio.Queue[list[Envelope]]] = []
        self._host = owned.host(
            leave_when_waiting=leave_when_waiting, on_commit=self._committed, on_progress=on_progress
        )
        driving = self._host.resume(raised, keep_waits=keep_waits) if resumed else self._host.start()

        async def drive() -> None:
            try:
                await driving
            except BaseException:
                owned.let_go()
                raise
            owned.done()

        self._work = asyncio.create_task(drive())
        self._work.add_done_callback(lambda _: self._committed([]))
        self._heard = False
        """Whether a caller received the result or the error of driving the run."""

    def _committed(self, written: list[Envelope]) -> None:
        for follower in self._followers:
            follower.put_nowait(written)

    def when_at_rest(self, callback: Callable[[RunHandle], object]) -> None:
        """Call `callback` when driving the run stopped without an error."""

        def over(work: asyncio.Task[None]) -> None:
            if not work.cancelled() and work.exception() is None:
                callback(self)

        self._work.add_done_callback(over)

    @property
    def status(self) -> str:
        return run_status(self.tree.state, self.tree.root)

    @property
    def is_over(self) -> bool:
        """Whether this process has stopped driving the run."""
        return self._work.done()

    async def follow(
        self, after: int | None = None, *, until_asked: bool = False, every_s: float = 0.0
    ) -> AsyncIterator[list[Envelope]]:
        """Yield events after `after`, or from now on, in batches, until this process stops driving the run.

        With `until_asked`, stop also when the run can only continue after a person's answer. With `every_s`,
        events within that time after a batch become part of the next batch.

        Works like `follow` of a run that another process drives, but does not read recent events from the
        store.
        """
        self.check_loop()
        batches: asyncio.Queue[list[Envelope]] = asyncio.Queue()
        self._followers.append(batches)
        try:
            if after is not None and (recorded := list(self._owned.project.store.tree(self.id, after))):
                after = recorded[-1].tree_seq
                yield recorded
            taken: list[Envelope] = []
            while True:
                over, state = self._work.done(), self.tree.state
                while not batches.empty():
                    taken += batches.get_nowait()
                written = [one for one in taken if after is None or one.tree_seq > after]
                taken = []
                if written:
                    yield written
                    if every_s and not over:
                        await asyncio.wait([self._work], timeout=every_s)
                elif over:
                    return
                elif until_asked and self.status == WAITING and (state.approvals or needs_people(state)):
                    return  # in an open run, also if it can only continue after a new request
                else:
                    taken = list(await batches.get())
        finally:
            self._followers.remove(batches)

    @checked
    async def events(self, after: int = 0) -> AsyncIterator[Envelope]:
        """Yield every event of the tree in order, then live until the run stops or waits for an answer.

        `after` is the `tree_seq` of the last known event: `run.events(last.tree_seq)` continues after the
        answer was given.
        """
        async for written in self.follow(after, until_asked=True):
            for envelope in shown(self._owned.project.store, written):
                yield envelope

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.tree.root.plan.name}, {self.status}>"

    async def wait(self) -> RunTree:
        """Wait until this process stops driving the run; return the tree.

        The run finished, paused, or waits only for people. A caller that stops waiting (`asyncio.wait_for`)
        does not affect it.
        """
        self.check_loop()
        try:
            await asyncio.shield(self._work)
        finally:
            self._heard = self._work.done()
        return self.tree

    @overload
    async def result(self) -> Result: ...
    @overload
    async def result(self, output: type[T]) -> TypedResult[T]: ...
    async def result(self, output: type[T] | None = None) -> Result | TypedResult[T]:
        """Wait until the run finished, paused or waits for an answer, and return its result so far.

        Its `status` shows which of these applies. After an answer, call it again. With `output`, a type, the
        output is a value of that type.

        A caller that stops waiting (`asyncio.wait_for`) does not affect the run.
        """
        if output is not None:
            from fanfold.api.result import check_type

            check_type(output)
        async for _ in self.follow(until_asked=True):
            pass
        return self.result_now() if output is None else self.result_now(output)

    @overload
    def result_now(self) -> Result: ...
    @overload
    def result_now(self, output: type[T]) -> TypedResult[T]: ...
    def result_now(self, output: type[T] | None = None) -> Result | TypedResult[T]:
        """Return the result so far, without waiting; raises the error that stopped the run."""
        from fanfold.api.result import to_result, with_type

        if self._work.cancelled():  # the task was cancelled here, or together with its event loop
            self._check_driven()
        elif self._work.done():
            self._heard = True
            self._work.result()
        done = to_result(self.tree)
        return done if output is None else with_type(done, output)

    @checked
    def transcript(self, step: str, *, attempt: int | None = None) -> Transcript:
        """Return the conversation and the tool calls of the agent of a step so far."""
        found = find_run(self._owned.project, self.id)
        return transcript_of(found.tree, find_session_ref(found, step, attempt), owned=not self._work.done())

    @checked
    async def approve(
        self, step: str, *, choice: str | None = None, comment: str | None = None, edited: JSON = None
    ) -> None:
        await self._answer(step, choice or "approve", comment, edited)

    @checked
    async def reject(self, step: str, *, comment: str | None = None) -> None:
        await self._answer(step, "reject", comment)

    async def _answer(self, step: str, decision: str, comment: str | None, edited: JSON = None) -> None:
        await self._has_begun()
        await answer(self._owned.project, self.id, step, decision, comment, edited, by=API)

    @checked
    async def answer(self, step: str, answer: JSON) -> None:
        """Answer the question of an `ask` step: with text, or with data that fits its schema."""
        await self._has_begun()
        await reply(self._owned.project, self.id, step, as_answer(answer), by=API)

    async def _has_begun(self) -> None:
        """Wait for the first events of a pending run: before them no question can be open."""
        self._check_driven()
        if self.status == PENDING:
            async for _ in self.follow():
                break

    def check(self, request: requests.AnswerRequest) -> None:
        """Check whether an answer would be accepted now; raises `AuthorError` if not."""
        requests.check_answer(self.tree, request)

    def post(self, request: requests.AnswerRequest) -> None:
        """Answer without waiting. An answer to a closed question changes nothing."""
        self._owned.project.store.request(requests.to_row(self.id, self.id, request, wall_clock_ms()))
        self._host.look_for_requests()

    def _check_driven(self) -> None:
        if not self._work.done():
            return
        if self.status in RUN_TERMINAL:
            raise AuthorError("run.ended", f"run {self.id} is {self.status} already")
        message = f"run {self.id} is {self.status} and this process does not drive it"
        hint = f'resume it first: ff.resume("{self.id}") of its project'
        raise AuthorError("run.not_driven", message, hint=hint)

    def check_loop(self) -> None:
        """Refuse a call from another event loop: the loop that drives the run would not be notified."""
        if self._loop is not asyncio.get_running_loop() and not self._work.done():
            hint = "use one loop for a project and its runs; threads share one with fanfold.open_sync"
            message = f"run {self.id} is driven in another event loop than this one"
            raise AuthorError("run.other_loop", message, hint=hint)

    def interrupt(self) -> None:
        """Request a pause and return: the user wants to leave a run in the foreground."""
        self._host.pause("interrupted")

    def abort(self) -> None:
        """Stop driving at once. Recorded events are safe; interrupted steps run again after a resume."""
        self._work.cancel()

    def leave_when_waiting(self) -> None:
        """Stop driving as soon as the run waits only for people: no person is here to answer."""
        self._host.leave_when_waiting()

    async def cancel(self) -> None:
        if self.status in RUN_TERMINAL:
            return
        self._check_driven()
        self.check_loop()
        self._host.cancel()
        await self.wait()

    async def pause(self) -> None:
        self.check_loop()
        self._host.pause()
        await self.wait()

    async def leave(self) -> None:
        """Pause and release the run, and wait until that is done.

        A cancellation is delayed until then. Otherwise the run would keep its owner forever.
        """
        await finish_despite_cancel(self.let_go())

    def let_go(self) -> asyncio.Task[None]:
        """Pause the run if it is unfinished. Any process can resume it when the returned task is done."""
        self.check_loop()
        if self.status not in RUN_TERMINAL and not self._work.done():
            self._host.pause()
        return self._work

    async def release_if_at_rest(self) -> None:
        """Wait until a paused or finished run has no owner here: its log shows the status earlier."""
        if self.status in (PAUSED, *RUN_TERMINAL) and not self._work.done():
            self.check_loop()
            await asyncio.wait([self._work])

    @property
    def is_stranded(self) -> bool:
        """Whether the event loop that drives the run was closed before the run stopped."""
        return self._loop.is_closed() and not self._work.done()

    def log_unread_failure(self) -> None:
        """Report the error that stopped the run to the event loop, unless a caller received it."""
        if self._heard or not self._work.done() or self._work.cancelled():
            return
        error = self._work.exception()
        if isinstance(error, Exception):  # the sender of an interrupt knows about it
            message = f"run {self.id} could not continue, and no caller waited for it"
            self._loop.call_exception_handler({"message": message, "exception": error})


# -----------------------------------------------------------------------------------------------------------
# Requests to a run, regardless of the process that drives it: pause, cancel, answer
#
# A request is a row in the store; the owner of the run acts on it. The caller waits until that is done,
# because "cancelled" must mean cancelled. Without an owner, a pause or cancellation is carried out here, and
# an answer continues the run in the background.

MAX_NAMED = 5
PATIENCE_S = 60.0
"""An owner that does not act for this long is stuck, or its machine is."""


async def pause(project: Project, run: str) -> RunHead:
    """Pause a whole run, wait until it has paused, and return its head."""
    head = project.resolve(project.resolve(run).root_run_id)
    if head.status in RUN_TERMINAL:
        raise AuthorError("run.ended", f"run {head.run_id} is {head.status} already")
    # A run that another process is just resuming still has the status paused.
    if head.status != PAUSED or project.has_owner(head.run_id):
        await _request_and_wait(
            project, head, requests.PauseRequest(requests.this_person()), {*RUN_TERMINAL, PAUSED}
        )
    return project.resolve(head.run_id)


async def cancel(project: Project, run: str) -> RunHead:
    """Cancel a run or child run, wait until nothing of it is running, and return its head."""
    head = project.resolve(run)
    if head.status not in RUN_TERMINAL:
        await _request_and_wait(project, head, requests.CancelRequest(requests.this_person()), RUN_TERMINAL)
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
) -> AnswerResult:
    """Answer an approval, and wait until the answer is in the log.

    `decision` is `approve`, `reject` or one of the choices. `step` is relative to the run; on the root it may
    be any path in the tree. Without `step`, the only open approval is answered. `seen` is the digest of the
    question that the person saw: if the question has changed since, the answer is refused. An invalid answer
    is refused before a request is stored.
    """
    return await _give(project, run, step, requests.AnswerRequest("", decision, by, comment, edited), seen)


async def reply(
    project: Project, run: str, step: str, text: str, *, by: str = "", seen: str | None = None
) -> AnswerResult:
    """Answer the question of an `ask` step, and wait until the answer is in the log.

    `text` is the answer itself, one of the choices, or JSON if the step has a schema. An invalid answer is
    refused before a request is stored.
    """
    return await _give(project, run, step, requests.AnswerRequest("", "", by, text=text), seen)


class MessageResult(Struct, frozen=True):
    """A message that is in the log; the agent of the step reads it before its next turn."""

    run_id: str
    step: str
    detached: bool


async def send_message(project: Project, run: str, step: str, text: str, *, by: str = "") -> MessageResult:
    """Send a message to the agent of a running step, and wait until the message is in the log."""
    head = project.resolve(run)
    tree = project.view(head.root_run_id)
    path = tree.state.runs[head.run_id].tree_path(step)
    given = requests.MessageRequest(path, text, by or requests.this_person())
    node = requests.check_message(tree, given)
    address = (node.run.id, node.path)
    _, background = await request_from_owner(project, head, given)
    texts = project.view(head.root_run_id).memory.texts.get(address, ())
    if len(texts) <= len(tree.memory.texts.get(address, ())):
        raise AuthorError("message.not_running", f"{path} ended before it could read the message")
    return MessageResult(head.run_id, step, background is not None)


def as_answer(given: JSON) -> str:
    """Return the answer of a program as the text that a person would have written."""
    try:
        return as_text(strict(given, "the answer"))
    except ValueError as error:
        raise AuthorError("usage.bad_value", str(error)) from None


async def _give(
    project: Project, run: str, step: str | None, given: requests.AnswerRequest, seen: str | None
) -> AnswerResult:
    """Have the owner record an answer, which gets its path here."""
    head = project.resolve(run)
    tree = project.view(head.root_run_id)
    path = tree.state.runs[head.run_id].tree_path(step) if step is not None else _only_open(tree, head)
    given = structs.replace(given, path=path, by=given.by or requests.this_person())
    requests.check_answer(tree, given)
    if seen is not None and seen != pending_question(tree, path).seen:
        message = f"the question of {path} changed since you read it"
        raise WorldError("approval.changed", message, hint="read the new question, then answer")
    _, background = await request_from_owner(project, head, given)
    requests.check_recorded(project.view(head.root_run_id), given)
    text = given.decision if given.text is None else given.text
    return AnswerResult(head.run_id, path if step is None else step, text, background is not None)


def _only_open(tree: RunTree, head: RunHead) -> str:
    """Return the tree path of the only open approval of a run or of the runs below it."""
    below = f"{head.execution_path}/" if head.execution_path else ""
    asked = [one for one in open_approvals(tree) if one.kind != "question"]
    waiting = [one.path for one in asked if one.path.startswith(below)]
    if len(waiting) == 1:
        return waiting[0]
    if not waiting:
        message = f"no step of run {head.run_id} waits for an answer"
        raise AuthorError("approval.none", message, hint=f"fanfold inspect {head.run_id} shows its status")
    message = f"{len(waiting)} approvals of run {head.run_id} wait: {', '.join(waiting[:MAX_NAMED])}"
    hint = f"name one: fanfold approve {head.run_id} {shlex.quote(waiting[0].removeprefix(below))}"
    raise AuthorError("approval.which", message, hint=hint, details={"waiting": waiting})


async def request_from_owner(
    project: Project, head: RunHead, request: requests.RunRequest
) -> tuple[int, ContinuedRun | None]:
    """Have the owner, or a new background process, act on a request; return its number and that process."""
    require_permitted(project.folder, head.root_run_id)  # checked first, so that a refusal stores no request
    number = leave(project, head, request)
    return number, await _until_handled_or_started(project, head.root_run_id, number)


async def _until_handled_or_started(project: Project, root: str, number: int) -> ContinuedRun | None:
    """Wait until a request was acted on; return the process that was started if the run had no owner."""
    background, taken = None, await until_handled(project, root, number)
    if taken is False:
        background = continue_detached(project, root)
        taken = await until_handled(project, root, number, background)
        if taken is False and project.resolve(root).status not in RUN_TERMINAL:
            raise background.ended_at_once()
    if taken is None:
        raise _stuck(project, root)
    return background


def leave(project: Project, head: RunHead, request: requests.RunRequest) -> int:
    """Store a request and wake the owner of the run; return its number."""
    return project.store.request(requests.to_row(head.root_run_id, head.run_id, request, wall_clock_ms()))


async def until_handled(
    project: Project, root: str, number: int, starting: ContinuedRun | None = None
) -> bool | None:
    """Whether the owner acted on a request: False if there is no owner, None after a time-out.

    `starting` is about to become the owner: while it lives, the run may have an owner.
    """

    def look() -> bool | None:
        owned = (starting is not None and starting.lives()) or project.has_owner(root)
        # Read last: an owner that has since ended has removed the request by then.
        if all(request.id != number for request in project.store.requests(root)):
            return True
        return None if owned else False

    return await until(project, root, look, PATIENCE_S)


async def _request_and_wait(
    project: Project, head: RunHead, request: requests.RunRequest, statuses: Collection[str]
) -> None:
    """Have the owner act on a request, or act here if there is no owner. Returns when it is done."""
    root = head.root_run_id
    number = leave(project, head, request)

    def look() -> bool | None:
        now, owned = project.store.head(head.run_id), project.has_owner(root)
        if now is None or now.status in statuses:
            # A caller cannot continue the whole run while its owner still cleans up.
            return None if owned and head.run_id == root else True
        return None if owned else False

    while not (done := await until(project, root, look, PATIENCE_S)):
        if done is None:
            raise _stuck(project, root)
        await _carry_out(project, head, number)
    if head.run_id == root and any(left.id == number for left in project.store.requests(root)):
        # The owner stopped before it read the request. The next owner must not act on it.
        await _carry_out(project, head, number)


async def _carry_out(project: Project, head: RunHead, number: int) -> None:
    """Own the run just long enough to act on the request, or have a worker do so."""
    root = head.root_run_id
    if project.continuation.takes(project, root):
        project.continuation.continue_run(project, root, None, keep_waits=True)
        await until(project, root, lambda: project.has_owner(root) or None, PATIENCE_S)
        return
    if head.parent_run_id is not None:
        # The request is for a part of the run; the rest does not continue in this process. If the run waits
        # for people, the steps after that part continue as after an answer. Any other run is paused.
        if project.resolve(root).status == WAITING and not is_adopted(project.folder, root):
            await _until_handled_or_started(project, root, number)
            return
        leave(project, project.resolve(root), requests.PauseRequest(requests.this_person()))
    try:
        owned = own(project, root, goes_on=False)
    except LeaseHeld:
        return  # another process acquired the lease and will act
    try:
        await owned.host().resume(keep_waits=True)
    finally:
        owned.done()


def _stuck(project: Project, root: str) -> WorldError:
    owner = project.store.owner(root)
    who = owner[0].place if owner is not None else "its process"
    return WorldError(
        "run.busy",
        f"{who} has not acted on the request within {PATIENCE_S:g} s",
        hint=f"the request stays; if the process hangs, end it and use fanfold resume {root}",
    )
