"""Tools for delegations that are waited for: one task, or a flat batch of them side by side.

A batch ends when every task of it is over: one that fails takes nothing away from the others. Whoever cancels
such a call stops its tasks too. Where only the connection was lost they go on, as runs do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from fanfold.errors import FanfoldError
from fanfold.kernel.lifecycle import COMPLETED
from fanfold.kernel.plan import JSON
from fanfold.runtime.operations.agents import subagents
from fanfold.runtime.operations.history.runs import inspect_step
from fanfold.runtime.views.sessions.subagents import LIVE, Subagent
from fanfold.sessions.insist import insist
from fanfold.text.excerpts import shorten
from fanfold.text.json_value import as_text
from fanfold.tools.caller import Caller
from fanfold.tools.permission import permit
from fanfold.tools.subagents import AgentState, DryRunFlag, SpawnAgent, agent_state, declared, start
from fanfold.tools.tool import AnyValue, tool

MAX_OUTPUT_CHARS = 6_000
"""Of the answer to one task; of those to a batch, together."""
MIN_SHARE_CHARS = 600
LOOK_S = 60.0


class TaskResult(Struct, frozen=True, kw_only=True):
    """What came of one task. An answer that was too long is cut, and query_workflow finds the rest."""

    agent: AgentState | None
    """None where it was not started."""
    output: AnyValue
    cut: bool
    error: str | None = None


class TaskDone(Struct, frozen=True, kw_only=True):
    ok: bool
    result: TaskResult | None
    would: str = ""


class TaskBatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tasks: Annotated[list[SpawnAgent], Meta(min_length=1, max_length=100, description="done side by side")]
    dry_run: DryRunFlag = False


class BatchDone(Struct, frozen=True, kw_only=True):
    ok: bool
    results: list[TaskResult]
    """In the order of the tasks."""
    completed: int
    would: list[str] = []


@tool(
    "Have one task done",
    "Delegate one bounded task to a subagent, wait for it and get its answer. Use it when you"
    " need the answer to go on; spawn_agent when you do not. For repeatable work in several"
    " phases use run_workflow.",
    mutates=True,
)
async def task(caller: Caller, asked: SpawnAgent) -> TaskDone:
    what = declared(caller, asked)
    if asked.dry_run:
        return TaskDone(ok=True, result=None, would=f"do with {what}")
    await permit(caller, "have a task done", [what])
    done = await _do(caller, [asked])
    return TaskDone(ok=True, result=done[0])


@tool(
    "Have tasks done side by side",
    "Delegate several independent tasks at once and get every answer, in order. One that fails"
    " does not stop the others. They cannot build on one another: for work with dependencies, or"
    " that you will want again, use run_workflow.",
    mutates=True,
)
async def task_batch(caller: Caller, asked: TaskBatch) -> BatchDone:
    lines = _declared(caller, asked.tasks)
    if asked.dry_run or any(one.dry_run for one in asked.tasks):
        return BatchDone(ok=True, results=[], completed=0, would=lines)
    await permit(caller, f"have {len(lines)} tasks done side by side", lines)
    results = await _do(caller, asked.tasks)
    completed = sum(one.agent is not None and one.agent.status == COMPLETED for one in results)
    return BatchDone(ok=True, results=results, completed=completed)


def _declared(caller: Caller, tasks: Sequence[SpawnAgent]) -> list[str]:
    """What the tasks of a batch would be. One that cannot be started takes nothing away from the others;
    where none can, what speaks against the first is raised.
    """
    lines: list[str] = []
    refusals: list[FanfoldError] = []
    for one in tasks:
        try:
            lines.append(declared(caller, one))
        except FanfoldError as error:
            refusals.append(error)
            lines.append(f"nothing: {error.message}")
    if len(refusals) == len(tasks):
        raise refusals[0]
    return lines


async def _do(caller: Caller, tasks: Sequence[SpawnAgent]) -> list[TaskResult]:
    started: list[Subagent | FanfoldError] = []
    names: list[str] = []
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
            await insist(_close(caller, names))
        raise
    share = max(MIN_SHARE_CHARS, MAX_OUTPUT_CHARS // len(tasks))
    return [
        TaskResult(agent=None, output=None, cut=False, error=one.message)
        if isinstance(one, FanfoldError)
        else _result(caller, over[one.id], share)
        for one in started
    ]


async def _wait(caller: Caller, names: Sequence[str]) -> dict[str, Subagent]:
    """Every one of them when it is over, or lost its process. A turn has its own limit of time."""
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


async def _close(caller: Caller, names: Sequence[str]) -> None:
    for name in names:
        if subagents.find(caller.project, name, run=caller.open_run).status in LIVE:
            await subagents.close(caller.project, name, run=caller.open_run)


def _result(caller: Caller, child: Subagent, most: int) -> TaskResult:
    output: JSON = None
    if child.status == COMPLETED:
        run = caller.open_run or subagents.current_run(caller.project)
        output = inspect_step(caller.project, run, child.id).output
    text = as_text(output)
    cut = len(text) > most
    error = None if child.error is None else child.error.message
    return TaskResult(
        agent=agent_state(child), output=shorten(text, most) if cut else output, cut=cut, error=error
    )
