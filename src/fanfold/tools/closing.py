"""The tool that ends things: a subagent, or a whole run, whoever started it and from wherever."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fanfold.errors import AuthorError, NotFoundError
from fanfold.kernel.lifecycle import CANCELLED, RUN_TERMINAL
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.agents import subagents
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.control import cancel
from fanfold.runtime.views.sessions.subagents import LIVE
from fanfold.store.protocol import RunHead
from fanfold.tools.caller import Caller
from fanfold.tools.permission import permit
from fanfold.tools.run_reports import RunReport, run_report
from fanfold.tools.subagents import AgentState, DryRunFlag, agent_state
from fanfold.tools.tool import tool


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
    return None if head is None or subagents.is_kept_open(name) else head


async def _cancel_run(caller: Caller, head: RunHead, *, trial: bool) -> Closed:
    if head.status in RUN_TERMINAL and head.status != CANCELLED:
        raise AuthorError("run.ended", f"run {head.run_id} is {head.status} already")
    what = f"cancel the run {head.run_id} of {head.recipe}"
    if not trial:
        await permit(caller, what, [f"it is {head.status}"])
        await cancel(caller.project, head.run_id)
    now = run_report(*find_run(caller.project, head.run_id))
    return Closed(ok=True, run=now, would=what if trial else "")
