"""Tools for subagents: one agent with one bounded task each, in the background or awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from fanfold.api import subagents
from fanfold.api.agents import find_role
from fanfold.api.history import find_run, inspect_step
from fanfold.api.permission import consent_of
from fanfold.api.project import Project
from fanfold.api.run_handle import cancel
from fanfold.api.subagents import LIVE, OVER, Subagent, Task, by_status
from fanfold.api.tools import (
    ITEMS_AS,
    AnyValue,
    PriorConsent,
    RunReport,
    ToolContext,
    permit,
    run_report,
    shared_fields,
    tool,
)
from fanfold.errors import AuthorError, FanfoldError, NotFoundError
from fanfold.kernel.plan import JSON, Plan
from fanfold.kernel.state import CANCELLED, COMPLETED, RUN_TERMINAL
from fanfold.language.json_text import as_text
from fanfold.language.terminal import shorten, shorten_line
from fanfold.sessions.processes import finish_despite_cancel
from fanfold.steps.run_config import is_kept_open

MAX_LISTED = 100
MAX_CHANGES = 20
MAX_TASK_CHARS = 300
MAX_ROLE_CHARS = 100

Name = Annotated[str, Meta(description="id of a subagent")]
DryRunFlag = Annotated[bool, Meta(description="try only")]


class RoleLine(Struct, frozen=True):
    name: str
    reads_only: bool
    description: str


class AgentState(Struct, frozen=True, kw_only=True):
    """A subagent as a model needs to know it. `summary` is what it said last, shortened."""

    id: str
    role: str
    task: str
    status: str
    summary: str
    error: str | None
    turns: int
    changes: list[str]
    """The changes of its last turn, at most 20."""
    proposal: bool
    """Whether its changes are a proposal that a person has not applied yet."""


class SpawnAgent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Annotated[str, Meta(description="explorer, worker or another role")]
    task: Annotated[str, Meta(min_length=1, description="its whole prompt")]
    name: Annotated[str, Meta(description="id for it")] = ""
    timeout_s: Annotated[float, Meta(gt=0, le=86_400, description="seconds per turn")] = 120
    write_set: Annotated[list[str], Meta(description='globs it may change: "src/**"')] = []
    merge: Annotated[
        Literal["auto", "propose", "discard"], Meta(description="what to do with its changes")
    ] = "auto"
    output_schema: Annotated[dict[str, JSON] | None, Meta(description="of its answer")] = None
    dry_run: DryRunFlag = False


class OneAgent(Struct, frozen=True, kw_only=True):
    ok: bool
    agent: AgentState | None
    """None after a dry run."""
    would: str = ""
    """After a dry run: the action that was not taken."""


class WaitAgent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agents: Annotated[list[str], Meta(description="ids; default: all that run")] = []
    timeout_s: Annotated[float, Meta(ge=0, le=3_600, description="seconds; 0 polls")] = 30


class ManyAgents(Struct, frozen=True, kw_only=True):
    ok: bool
    agents: list[AgentState]
    by_status: dict[str, list[str]]
    """Their ids."""
    still_running: int
    left_out: int = 0
    """Number of subagents that are not listed."""
    roles: list[RoleLine] = []
    """Only in list_agents: the roles that subagents and steps may have."""


class SendInput(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agent: Name
    text: Annotated[str, Meta(min_length=1, description="prompt of its next turn")]
    resume: Annotated[bool, Meta(description="first resume it if it is detached")] = False
    dry_run: DryRunFlag = False


class ListAgents(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    all: Annotated[bool, Meta(description="also finished ones")] = False


def agent_state(child: Subagent) -> AgentState:
    fields = shared_fields(child, AgentState) | {
        "task": shorten(child.task, MAX_TASK_CHARS),
        "error": None if child.error is None else child.error.message,
        "changes": [f"{one.kind} {one.path}" for one in (child.changes or [])[:MAX_CHANGES]],
        "proposal": child.proposal is not None,
    }
    return AgentState(**fields)


def declared(caller: ToolContext, request: SpawnAgent) -> str:
    """Describe the task and the effects of a subagent, one per line; raises if it would be refused."""
    project = caller.project
    step = subagents.foresee(project, as_task(caller, request), run=caller.open_run)
    plan = Plan(name=step.id, steps=(step,))
    effects = consent_of(project, plan, project.roles.find, caller.options).effects
    lines = [one.text for one in effects] or ["it only reads"]
    return "\n".join([f"{request.role} gets the task: {request.task}", *lines])


def as_task(caller: ToolContext, request: SpawnAgent) -> Task:
    reads = find_role(caller.project.roles, request.role).read_only
    return Task(
        role=request.role,
        task=request.task,
        name=request.name,
        timeout_ms=round(request.timeout_s * 1_000),
        write_set=tuple(request.write_set),
        merge=None if reads and request.merge == "auto" else request.merge,
        output_schema=request.output_schema,
    )


async def start(caller: ToolContext, request: SpawnAgent) -> Subagent:
    """Start a subagent that the caller is permitted to start."""
    task, run = as_task(caller, request), caller.open_run
    return await subagents.spawn(caller.project, task, caller.options, prompter=PriorConsent(), run=run)


@tool(
    "Start a subagent",
    "Start a subagent on one bounded one-off task in the background; then use wait_agent. For repeatable"
    " multi-phase work use run_workflow. Its changes are merged when it succeeds.",
    mutates=True,
)
async def spawn_agent(caller: ToolContext, request: SpawnAgent) -> OneAgent:
    what = declared(caller, request)
    if request.dry_run:
        return OneAgent(ok=True, agent=None, would=f"start {what}")
    await permit(caller, "start a subagent", [what])
    return OneAgent(ok=True, agent=agent_state(await start(caller, request)))


@tool(
    "Wait for subagents",
    "Wait until subagents finish or the time is up; returns status and shortened answers. Never cancels."
    " send_input(resume: true) continues a `detached` one.",
)
async def wait_agent(caller: ToolContext, request: WaitAgent) -> ManyAgents:
    if not request.agents and not caller.project.has_runs:
        return several([])
    names = list(dict.fromkeys(request.agents))
    found = await subagents.wait(caller.project, names, request.timeout_s, run=caller.open_run)
    children = [child for bucket in found.values() for child in bucket]
    if names:
        children.sort(key=lambda child: names.index(child.id))
    return several(children)


@tool(
    "Send input to a subagent",
    "Send a subagent its next turn; a finished, failed or cancelled one restarts, a closed one does not.",
    mutates=True,
)
async def send_input(caller: ToolContext, request: SendInput) -> OneAgent:
    child = subagents.check_input(
        caller.project, request.agent, request.text, resume=request.resume, run=caller.open_run
    )
    what = f"tell {child.id} ({child.role}, {child.status})"
    if request.dry_run:
        return OneAgent(
            ok=True, agent=agent_state(child), would=f"{what}: {shorten(request.text, MAX_TASK_CHARS)}"
        )
    await permit(caller, what, [request.text])
    sent = await subagents.send_input(
        caller.project, child.id, request.text, resume=request.resume, run=caller.open_run
    )
    return OneAgent(ok=True, agent=agent_state(sent))


@tool("List subagents", "List subagents that are unfinished or need attention, and the roles that exist.")
async def list_agents(caller: ToolContext, request: ListAgents) -> ManyAgents:
    found = subagents.list_subagents(caller.project, run=caller.open_run) if caller.project.has_runs else []
    shown = several([one for one in found if request.all or one.status not in OVER or one.left_something])
    return structs.replace(shown, roles=list(role_lines(caller.project)))


def role_lines(project: Project) -> Iterator[RoleLine]:
    """Yield every role with a one-line description."""
    for name in project.roles.names():
        if (role := project.roles.find(name)) is not None:
            yield RoleLine(name, role.read_only, shorten_line(role.description, MAX_ROLE_CHARS))


def several(children: Sequence[Subagent]) -> ManyAgents:
    """Return the latest subagents, in order, grouped by status."""
    latest = children[-MAX_LISTED:]
    return ManyAgents(
        ok=True,
        agents=[agent_state(child) for child in latest],
        by_status={status: [child.id for child in bucket] for status, bucket in by_status(latest).items()},
        still_running=sum(child.status in LIVE for child in children),
        left_out=max(0, len(children) - MAX_LISTED),
    )


class CloseAgent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agent: Annotated[str, Meta(description="id of a subagent, or full id of a run")]
    dry_run: DryRunFlag = False


class CloseResult(Struct, frozen=True, kw_only=True):
    """The subagent or the run that was closed, after the call."""

    ok: bool
    agent: AgentState | None = None
    run: RunReport | None = None
    would: str = ""
    """After a dry run: what would have happened."""


@tool(
    "Close a subagent",
    "Cancel a queued or running subagent or a run; close any other subagent for good.",
    mutates=True,
    ends_something=True,
)
async def close_agent(caller: ToolContext, request: CloseAgent) -> CloseResult:
    try:
        child = subagents.find(caller.project, request.agent, run=caller.open_run)
    except NotFoundError:
        # A run by its full id: a tool that ends something accepts no prefix and not `last`.
        head = caller.project.store.head(request.agent) if caller.project.has_runs else None
        if head is None or is_kept_open(request.agent):
            raise
        if head.status in RUN_TERMINAL and head.status != CANCELLED:
            raise AuthorError("run.ended", f"run {head.run_id} is {head.status} already") from None
        what = f"cancel the run {head.run_id} of {head.recipe}"
        if not request.dry_run:
            await permit(caller, what, [f"it is {head.status}"])
            await cancel(caller.project, head.run_id)
        now = run_report(*find_run(caller.project, head.run_id))
        return CloseResult(ok=True, run=now, would=what if request.dry_run else "")
    what = f"{'cancel' if child.status in LIVE else 'close'} the subagent {child.id}"
    if request.dry_run:
        return CloseResult(ok=True, agent=agent_state(child), would=what)
    await permit(caller, what, [child.task])
    return CloseResult(
        ok=True, agent=agent_state(await subagents.close(caller.project, child.id, run=caller.open_run))
    )


# -----------------------------------------------------------------------------------------------------------
# Tools for awaited delegations: one task, or a flat batch of concurrent tasks
#
# A batch ends when all its tasks have finished: a failed task does not affect the others. Cancelling the call
# stops its tasks. If only the connection is lost, the tasks continue, as runs do.

MAX_OUTPUT_CHARS = 6_000
"""Limit for the answer to one task; for a batch, the limit of all answers together."""
MIN_SHARE_CHARS = 600
LOOK_S = 60.0


_EACH = {ITEMS_AS: {"type": "object", "required": ["role", "task"]}}
"""The schema of `task` has the rest: every request of a model would pay for a second copy."""


class TaskResult(Struct, frozen=True, kw_only=True):
    """The result of one task. A long answer is cut; query_workflow finds the rest."""

    agent: AgentState | None
    """None if it was not started."""
    output: AnyValue
    cut: bool
    error: str | None = None


class TaskDone(Struct, frozen=True, kw_only=True):
    ok: bool
    result: TaskResult | None
    would: str = ""


class TaskBatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tasks: Annotated[
        list[SpawnAgent],
        Meta(
            min_length=1,
            max_length=100,
            description="each with the arguments of task",
            extra_json_schema=_EACH,
        ),
    ]
    dry_run: DryRunFlag = False


class BatchDone(Struct, frozen=True, kw_only=True):
    ok: bool
    results: list[TaskResult]
    """In the order of the tasks."""
    completed: int
    would: list[str] = []


@tool("Have one task done", "Have a subagent do one bounded task and return its answer.", mutates=True)
async def task(caller: ToolContext, request: SpawnAgent) -> TaskDone:
    what = declared(caller, request)
    if request.dry_run:
        return TaskDone(ok=True, result=None, would=f"do with {what}")
    await permit(caller, "have a task done", [what])
    done = await _do(caller, [request])
    return TaskDone(ok=True, result=done[0])


@tool(
    "Have tasks done side by side",
    "Run independent tasks concurrently; one failure does not stop the others. For dependent work use"
    " run_workflow.",
    mutates=True,
)
async def task_batch(caller: ToolContext, request: TaskBatch) -> BatchDone:
    lines: list[str] = []
    refusals: list[FanfoldError] = []
    for one in request.tasks:  # a task that cannot be started does not affect the others
        try:
            lines.append(declared(caller, one))
        except FanfoldError as error:
            refusals.append(error)
            lines.append(f"nothing: {error.message}")
    if len(refusals) == len(lines):
        raise refusals[0]
    if request.dry_run or any(one.dry_run for one in request.tasks):
        return BatchDone(ok=True, results=[], completed=0, would=lines)
    await permit(caller, f"have {len(lines)} tasks done side by side", lines)
    results = await _do(caller, request.tasks)
    completed = sum(one.agent is not None and one.agent.status == COMPLETED for one in results)
    return BatchDone(ok=True, results=results, completed=completed)


async def _do(caller: ToolContext, tasks: Sequence[SpawnAgent]) -> list[TaskResult]:
    started: list[Subagent | FanfoldError] = []
    names: list[str] = []

    async def close_all() -> None:
        for name in names:
            if subagents.find(caller.project, name, run=caller.open_run).status in LIVE:
                await subagents.close(caller.project, name, run=caller.open_run)

    try:
        for one in tasks:
            try:
                child = await start(caller, one)
            except FanfoldError as error:
                started.append(error)
            else:
                started.append(child)
                names.append(child.id)
        if not names and isinstance(started[0], FanfoldError):
            raise started[0]
        over = await _wait(caller, names)
    except asyncio.CancelledError:
        if caller.was_cancelled():
            await finish_despite_cancel(close_all())
        raise
    share = max(MIN_SHARE_CHARS, MAX_OUTPUT_CHARS // len(tasks))
    return [
        TaskResult(agent=None, output=None, cut=False, error=one.message)
        if isinstance(one, FanfoldError)
        else _result(caller, over[one.id], share)
        for one in started
    ]


async def _wait(caller: ToolContext, names: Sequence[str]) -> dict[str, Subagent]:
    """Wait until every subagent has finished or lost its process. Each turn has its own time-out."""
    left = len(names)
    while True:
        found = await subagents.wait(caller.project, names, LOOK_S, run=caller.open_run)
        children = {child.id: child for bucket in found.values() for child in bucket}
        running = sum(child.status in LIVE for child in children.values())
        if running < left:
            await caller.say(f"{len(names) - running} of {len(names)} done")
            left = running
        if not running:
            return children


def _result(caller: ToolContext, child: Subagent, most: int) -> TaskResult:
    output: JSON = None
    if child.status == COMPLETED:
        run = caller.open_run or subagents.current_run(caller.project)
        output = inspect_step(caller.project, run, child.id).output
    text, state = as_text(output), agent_state(child)
    cut = len(text) > most
    return TaskResult(agent=state, output=shorten(text, most) if cut else output, cut=cut, error=state.error)
