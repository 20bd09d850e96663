"""Every tool there is, by name; which of them a project offers; and how one is called.

Nothing that a model sends gets further than its struct: unknown words, wrong types and numbers out of range
are told back as data. So is whatever goes wrong behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from fanfold.errors import AuthorError, FanfoldError
from fanfold.kernel.plan import JSON
from fanfold.runtime.operations.project import Project
from fanfold.text.json_value import strict, with_text_only
from fanfold.tools.caller import Caller
from fanfold.tools.failures import crashed, failure_document
from fanfold.tools.permission import denied
from fanfold.tools.recipes import plan_workflow, save_workflow
from fanfold.tools.runs import query_workflow, run_workflow, workflow_status
from fanfold.tools.subagents import close_agent, list_agents, send_input, spawn_agent, wait_agent
from fanfold.tools.tasks import task, task_batch
from fanfold.tools.tool import Tool

TOOLS: tuple[Tool, ...] = (
    plan_workflow,
    run_workflow,
    workflow_status,
    query_workflow,
    save_workflow,
    task,
    task_batch,
    spawn_agent,
    wait_agent,
    send_input,
    close_agent,
    list_agents,
)
BY_NAME = {tool.name: tool for tool in TOOLS}
INSTRUCTIONS = """\
Fanfold runs teams of agents in this project. Choose by the shape of the work, not by how hard it is:
- run_workflow: repeatable work in several phases, with steps that depend on one another or writers that must
  not collide (audit, fix, verify; the same change in many files). plan_workflow drafts a recipe from a task;
  save_workflow keeps one.
- task, task_batch: one-off side tasks whose answers you need now, alone or side by side.
- spawn_agent, wait_agent, send_input, close_agent, list_agents: side tasks in the background.
Whether a workflow fits is a question of its own, apart from effort and reasoning budget.
Only short reports come back. query_workflow finds the rest; workflow_status shows where a run stands, and
close_agent cancels one.
Try dry_run before a large run. The user is asked before anything starts; you cannot answer for them."""
"""What a model is told about these tools as a whole."""
MAX_ARGS_BYTES = 1_000_000
"""Of what a call is given: a task or a recipe that is longer is nobody's work."""
_log = logging.getLogger(__name__)


def offered(project: Project) -> tuple[Tool, ...]:
    """The tools of a root session: none of them where workflows are switched off."""
    return TOOLS if project.config.switch("workflows.enabled") else ()


async def call_tool(caller: Caller, name: str, args: Mapping[str, JSON]) -> dict[str, JSON]:
    """Call a tool; its result as JSON, or the document of what went wrong (`ok` is false)."""
    try:
        tool = _find(caller.project, name)
        result: Struct = await tool.call(caller, _read(tool, args))
    except FanfoldError as error:
        result = failure_document(error)
    except Exception as error:  # noqa: BLE001 - whatever broke, the model hears of it and goes on
        _log.exception("the tool %s broke", name)
        result = crashed(name, error)
    document: dict[str, JSON] = with_text_only(msgspec.to_builtins(result))
    return document


def _find(project: Project, name: str) -> Tool:
    tool = BY_NAME.get(name)
    if tool is None:
        from fanfold.text.spelling import nearest

        near = nearest(name, tuple(BY_NAME))
        hint = f'did you mean "{near}"?' if near else f"there are {', '.join(BY_NAME)}"
        raise AuthorError("tool.not_found", f'there is no tool "{name}"', hint=hint)
    if tool not in offered(project):
        origin = project.config.origins["workflows.enabled"]
        raise denied(f"workflows are switched off ({origin})", "the user can set FANFOLD_WORKFLOWS=on")
    return tool


def _read(tool: Tool, args: Mapping[str, JSON]) -> Struct:
    hint = f"{tool.name} takes {', '.join(tool.takes.__struct_fields__)}"
    try:
        plain = strict(dict(args), "what it was given")
        size = len(msgspec.json.encode(plain))
        if size > MAX_ARGS_BYTES:
            message = f"{tool.name} was given {size:,} bytes, {MAX_ARGS_BYTES:,} are allowed"
            raise AuthorError(
                "tool.limit_exceeded", message, hint="put what is long into a file of the project"
            )
        taken: Struct = msgspec.convert(plain, tool.takes)
    except (msgspec.ValidationError, ValueError) as error:
        raise AuthorError("usage.bad_value", f"{tool.name}: {error}", hint=hint) from None
    return taken
