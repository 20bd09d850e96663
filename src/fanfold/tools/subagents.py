"""Tools for subagents: one agent, one bounded task each, in the background or waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from fanfold.errors import AuthorError, NotFoundError
from fanfold.kernel.lifecycle import CANCELLED, RUN_TERMINAL
from fanfold.kernel.plan import JSON
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.agents import subagents
from fanfold.runtime.operations.agents.delegation import Task
from fanfold.runtime.operations.agents.roles import find_role
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.control import cancel
from fanfold.runtime.records.open_runs import is_kept_open
from fanfold.runtime.views.sessions.subagents import LIVE, OVER, Subagent, by_status
from fanfold.store.protocol import RunHead
from fanfold.text.excerpts import shorten
from fanfold.tools.caller import Caller
from fanfold.tools.permission import Agreed, permit
from fanfold.tools.run_reports import RunReport, run_report
from fanfold.tools.tool import shared_fields, tool

MAX_LISTED = 100
MAX_CHANGES = 20
MAX_TASK_CHARS = 300

Name = Annotated[str, Meta(description="the id of a subagent, as spawn_agent gave it")]
DryRunFlag = Annotated[bool, Meta(description="only say what would happen; nothing is started or changed")]


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
    """What its last turn changed, at most 20."""
    proposal: bool
    """Whether what it changed waits for a person to apply it."""


class SpawnAgent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Annotated[
        str, Meta(description="who does it: explorer reads, worker writes, or a role of the project")
    ]
    task: Annotated[str, Meta(min_length=1, description="all it is told; it does not see this conversation")]
    name: Annotated[str, Meta(description="what to call it; left out: its role and a number")] = ""
    timeout_s: Annotated[float, Meta(gt=0, le=86_400, description="seconds that a turn may take (120)")] = 120
    write_set: Annotated[list[str], Meta(description='globs of files it may change, e.g. "src/**"')] = []
    merge: Annotated[
        Literal["auto", "propose", "discard"],
        Meta(description="what becomes of its changes: merged, proposed to a person, or thrown away"),
    ] = "auto"
    output_schema: Annotated[
        dict[str, JSON] | None, Meta(description="JSON Schema that its answer must fit")
    ] = None
    dry_run: DryRunFlag = False


class OneAgent(Struct, frozen=True, kw_only=True):
    ok: bool
    agent: AgentState | None
    """None where it was only tried."""
    would: str = ""
    """What would have happened."""


class WaitAgent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agents: Annotated[list[str], Meta(description="ids; left out: all that run")] = []
    timeout_s: Annotated[float, Meta(ge=0, le=3_600, description="seconds to wait (30); 0 only looks")] = 30


class ManyAgents(Struct, frozen=True, kw_only=True):
    ok: bool
    agents: list[AgentState]
    by_status: dict[str, list[str]]
    """Their ids."""
    still_running: int
    left_out: int = 0
    """How many more there are."""


class SendInput(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agent: Name
    text: Annotated[str, Meta(min_length=1, description="what to tell it: its next turn")]
    resume: Annotated[bool, Meta(description="first go on with one that is detached")] = False
    dry_run: DryRunFlag = False


class ListAgents(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    all: Annotated[bool, Meta(description="also those that are over and left nothing to do")] = False


def agent_state(child: Subagent) -> AgentState:
    told = shared_fields(child, AgentState) | {
        "task": shorten(child.task, MAX_TASK_CHARS),
        "error": None if child.error is None else child.error.message,
        "changes": [f"{one.kind} {one.path}" for one in (child.changes or [])[:MAX_CHANGES]],
        "proposal": child.proposal is not None,
    }
    return AgentState(**told)


def declared(caller: Caller, asked: SpawnAgent) -> str:
    """What a subagent would be and do, in a line; raises what would be refused."""
    step = subagents.foresee(caller.project, as_task(caller, asked), run=caller.open_run)
    may = "only reads" if step.posture == "read_only" else f"may change {', '.join(step.write_set)}"
    if step.posture != "read_only" and step.merge != "auto":
        may += f" ({step.merge})"
    return f"{asked.role}, which {may}: {shorten(asked.task, MAX_TASK_CHARS)}"


def as_task(caller: Caller, asked: SpawnAgent) -> Task:
    reads = find_role(caller.project.roles, asked.role).read_only
    return Task(
        role=asked.role,
        task=asked.task,
        name=asked.name,
        timeout_ms=round(asked.timeout_s * 1_000),
        write_set=tuple(asked.write_set),
        merge=None if reads and asked.merge == "auto" else asked.merge,
        output_schema=asked.output_schema,
    )


async def start(caller: Caller, asked: SpawnAgent) -> Subagent:
    """Start one that the caller was permitted to."""
    task, run = as_task(caller, asked), caller.open_run
    return await subagents.spawn(caller.project, task, caller.options, attendant=Agreed(), run=run)


@tool(
    "Start a subagent",
    "Delegate one bounded task to a subagent in the background and get its id. For one-off side"
    " tasks: a question to look into, a contained change. For repeatable work in several phases"
    " use run_workflow instead. The subagent sees only `task`, so say in it all it needs. Over"
    " capacity it queues. Its changes are made in a snapshot and merged when it succeeds. Then"
    " use wait_agent.",
    mutates=True,
)
async def spawn_agent(caller: Caller, asked: SpawnAgent) -> OneAgent:
    what = declared(caller, asked)
    if asked.dry_run:
        return OneAgent(ok=True, agent=None, would=f"start {what}")
    await permit(caller, "start a subagent", [what])
    return OneAgent(ok=True, agent=agent_state(await start(caller, asked)))


@tool(
    "Wait for subagents",
    "Wait until subagents are over or the time is, and get how they stand and what they said,"
    " shortened. Waiting never ends a subagent; timeout_s 0 only looks. query_workflow finds"
    " more of what they wrote. `detached` means that its process is gone: send_input with"
    " `resume` goes on with it.",
)
async def wait_agent(caller: Caller, asked: WaitAgent) -> ManyAgents:
    if not asked.agents and not caller.project.has_runs:
        return several([])
    names = list(dict.fromkeys(asked.agents))
    found = await subagents.wait(caller.project, names, asked.timeout_s, run=caller.open_run)
    children = [child for bucket in found.values() for child in bucket]
    if names:
        children.sort(key=lambda child: names.index(child.id))
    return several(children)


@tool(
    "Tell a subagent more",
    "Give a subagent more input: its next turn, behind the one that runs. One that is over"
    " (also failed, timed out or cancelled) runs again with what it knows; a closed one never"
    " does.",
    mutates=True,
)
async def send_input(caller: Caller, asked: SendInput) -> OneAgent:
    child = subagents.foresee_input(
        caller.project, asked.agent, asked.text, resume=asked.resume, run=caller.open_run
    )
    what = f"tell {child.id} ({child.role}, {child.status})"
    if asked.dry_run:
        return OneAgent(
            ok=True, agent=agent_state(child), would=f"{what}: {shorten(asked.text, MAX_TASK_CHARS)}"
        )
    await permit(caller, what, [asked.text])
    sent = await subagents.send_input(
        caller.project, child.id, asked.text, resume=asked.resume, run=caller.open_run
    )
    return OneAgent(ok=True, agent=agent_state(sent))


@tool(
    "List subagents",
    "Subagents that are not over, or left something to be looked at; with `all` every one of them.",
)
async def list_agents(caller: Caller, asked: ListAgents) -> ManyAgents:
    found = subagents.list_subagents(caller.project, run=caller.open_run) if caller.project.has_runs else []
    return several([one for one in found if asked.all or one.status not in OVER or one.left_something])


def several(children: Sequence[Subagent]) -> ManyAgents:
    """The latest of them, in order, and which of them stand how."""
    latest = children[-MAX_LISTED:]
    return ManyAgents(
        ok=True,
        agents=[agent_state(child) for child in latest],
        by_status={status: [child.id for child in bucket] for status, bucket in by_status(latest).items()},
        still_running=sum(child.status in LIVE for child in children),
        left_out=max(0, len(children) - MAX_LISTED),
    )


class CloseAgent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agent: Annotated[str, Meta(description="the id of a subagent, or that of a run, in full")]
    dry_run: DryRunFlag = False


class Closed(Struct, frozen=True, kw_only=True):
    """Which of the two it was, as it stands now."""

    ok: bool
    agent: AgentState | None = None
    run: RunReport | None = None
    would: str = ""
    """What would have happened."""


@tool(
    "Close a subagent",
    "Cancel a subagent that is queued or running; close any other for good, with whatever"
    " workspace was kept of it. With the id of a run, cancel that run, also one that you did not wait for or"
    " that the user started in a terminal.",
    mutates=True,
    ends_something=True,
)
async def close_agent(caller: Caller, asked: CloseAgent) -> Closed:
    try:
        child = subagents.find(caller.project, asked.agent, run=caller.open_run)
    except NotFoundError:
        head = _find_run(caller.project, asked.agent)
        if head is None:
            raise
        return await _cancel_run(caller, head, trial=asked.dry_run)
    what = f"{'cancel' if child.status in LIVE else 'close'} the subagent {child.id}"
    if asked.dry_run:
        return Closed(ok=True, agent=agent_state(child), would=what)
    await permit(caller, what, [child.task])
    return Closed(
        ok=True, agent=agent_state(await subagents.close(caller.project, child.id, run=caller.open_run))
    )


def _find_run(project: Project, name: str) -> RunHead | None:
    """A run by its whole id: what ends something does not complete words, nor mean the latest."""
    head = project.store.head(name) if project.has_runs else None
    return None if head is None or is_kept_open(name) else head


async def _cancel_run(caller: Caller, head: RunHead, *, trial: bool) -> Closed:
    if head.status in RUN_TERMINAL and head.status != CANCELLED:
        raise AuthorError("run.ended", f"run {head.run_id} is {head.status} already")
    what = f"cancel the run {head.run_id} of {head.recipe}"
    if not trial:
        await permit(caller, what, [f"it is {head.status}"])
        await cancel(caller.project, head.run_id)
    now = run_report(*find_run(caller.project, head.run_id))
    return Closed(ok=True, run=now, would=what if trial else "")
