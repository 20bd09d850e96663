"""Tools for runs: start a workflow, see how one stands, find what its agents wrote.

A run that a model starts goes on in a process of its own. It outlives the session that asked for it, is seen
and controlled from every other surface, and waits for people without anybody waiting for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, structs

from fanfold.errors import AuthorError
from fanfold.kernel.lifecycle import PENDING, RUN_TERMINAL
from fanfold.kernel.plan import JSON, Plan
from fanfold.recipe.inputs import bind_inputs
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.history.listing import list_heads
from fanfold.runtime.operations.history.query import query
from fanfold.runtime.operations.history.runs import inspect_step
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.recipes.checked import CheckedRecipe
from fanfold.runtime.operations.runs.background import Background, hand_over
from fanfold.runtime.operations.runs.control import cancel
from fanfold.runtime.operations.runs.starting.creation import start
from fanfold.runtime.operations.runs.starting.dry_run import foresee_run
from fanfold.runtime.operations.runs.starting.limits import check_budget, micro_usd
from fanfold.runtime.operations.runs.starting.options import Options
from fanfold.runtime.operations.runs.starting.permission import needs_permission
from fanfold.runtime.views.approvals import OpenApproval, open_approvals
from fanfold.runtime.views.recipes.forecasts import DryRun
from fanfold.runtime.views.runs.rows import RunUsage, run_row
from fanfold.sessions.insist import insist
from fanfold.text.excerpts import shorten
from fanfold.text.json_value import as_text
from fanfold.tools.caller import Caller
from fanfold.tools.following import answered_elsewhere, follow_run
from fanfold.tools.permission import Agreed, permit
from fanfold.tools.questions import approval_form, give_answer
from fanfold.tools.recipe_sources import find_recipe
from fanfold.tools.run_reports import RunReport, run_report
from fanfold.tools.tool import AnyValue, shared_fields, tool

MAX_STEP_CHARS = 8_000
MAX_CONFLICTS = 20
MAX_WAVES = 50
MAX_MISFITS = 3
"""Answers of a person to one question that do not fit, before it is left to wait."""


class RunWorkflow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(description="a saved recipe: its name, or a .yaml file of the project")] = ""
    spec: Annotated[
        str | dict[str, JSON] | None,
        Meta(description="instead of a name: a recipe, as YAML text or as an object"),
    ] = None
    inputs: Annotated[
        dict[str, JSON], Meta(description="values for the inputs that the recipe declares")
    ] = {}
    wait: Annotated[
        bool,
        Meta(description="wait for the end; false returns at once with the run id (use it for long runs)"),
    ] = True
    budget_usd: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="pause before spending more than this")
    ] = None
    budget_tokens: Annotated[
        Annotated[int, Meta(gt=0)] | None, Meta(description="pause before using more tokens")
    ] = None
    dry_run: Annotated[
        bool, Meta(description="only foretell it: waves, conflicts, agents, price; nothing is started")
    ] = False


class RunStarted(Struct, frozen=True, kw_only=True):
    """What came of it: `run` when there is one, `forecast` after a dry run."""

    ok: bool
    run: RunReport | None
    forecast: DryRun | None = None
    needs: list[str] = []
    """After a dry run: what a person will be asked to permit."""


class WorkflowStatus(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run: Annotated[str, Meta(description='id, its beginning, or "last"; left out: the latest runs')] = ""
    step: Annotated[str, Meta(description="one step of it, by its path, with its whole output")] = ""
    timeout_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600,
            description="wait this long for it to end (0); meanwhile the user is asked what it asks",
        ),
    ] = 0


class RunLine(Struct, frozen=True, kw_only=True):
    run_id: str
    recipe: str
    status: str
    created_at: str | None
    usage: RunUsage


class StepOutput(Struct, frozen=True, kw_only=True):
    path: str
    status: str
    role: str | None
    task: str
    output: AnyValue
    output_cut: bool
    error: str | None


class StatusReport(Struct, frozen=True, kw_only=True):
    ok: bool
    run: RunReport | None = None
    step: StepOutput | None = None
    runs: list[RunLine] = []


class QueryWorkflow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: Annotated[str, Meta(min_length=1, description="words to look for")]
    run: Annotated[str, Meta(description='only in this run and those below it: id or "last"')] = ""
    k: Annotated[int, Meta(ge=1, le=20, description="hits at most (5)")] = 5


class FoundOutput(Struct, frozen=True, kw_only=True):
    run_id: str
    path: str
    role: str
    excerpt: str


class QueryHits(Struct, frozen=True, kw_only=True):
    ok: bool
    hits: list[FoundOutput]


@tool(
    "Run a workflow",
    "Run a recipe: a team of agents does steps in an order that is kept, and you get one short"
    " report. Use it for repeatable work in several phases (audit, fix, verify; the same change"
    " in many files; several components at once); for a one-off side task use spawn_agent or"
    " task. Whether a workflow fits is a question of its own, apart from how much effort or"
    " reasoning the task deserves. Try `dry_run` first: it costs nothing and shows size and"
    " price. The user is asked before it starts. A run that waits for a person lists"
    " `questions`, which you cannot answer. Long outputs are cut: query_workflow finds the rest.",
    mutates=True,
)
async def run_workflow(caller: Caller, asked: RunWorkflow) -> RunStarted:
    if caller.memory.run:  # an answer came back to a call that began earlier
        return RunStarted(ok=True, run=await _see_to_end(caller, caller.memory.run))
    project, options = caller.project, _options(caller, asked)
    checked = find_recipe(project, asked.name, asked.spec, scripted=options.script is not None)
    plan = checked.runnable()
    bound = bind_inputs(plan, asked.inputs)
    forecast = _foresee(project, checked, bound, options)
    needs = needs_permission(plan, project.roles.find)
    if asked.dry_run:
        return RunStarted(ok=True, run=None, forecast=forecast, needs=needs)
    await permit(caller, f"run {plan.name}@{plan.version}", [*_size(forecast), *_given(plan, bound), *needs])
    owned = start(project, plan, bound, options, attendant=Agreed())
    caller.memory.run = owned.tree.root.id
    background = hand_over(owned)
    await caller.say(f"run {owned.tree.root.id} of {plan.name} has begun")
    if not asked.wait:
        return RunStarted(ok=True, run=run_report(project.view(owned.tree.root.id)))
    return RunStarted(ok=True, run=await _see_to_end(caller, owned.tree.root.id, background))


async def _see_to_end(caller: Caller, run: str, background: Background | None = None) -> RunReport:
    """Wait for a run, and have the person answer what it asks. Who stops waiting stops the run."""
    try:
        while True:
            tree = await follow_run(caller, run, background)
            waiting = open_approvals(tree)
            if not waiting or not await _answer(caller, run, waiting[0]):
                return run_report(tree)
            background = None
    except asyncio.CancelledError:
        if caller.was_cancelled():
            await insist(_cancel(caller.project, run))
        raise


async def _answer(caller: Caller, run: str, asked: OpenApproval) -> bool:
    """Put a question to the person; whether it is worth looking again.

    It is when they answered, or somebody did elsewhere, and also when their answer does not fit: then they
    are told why, and asked once more.
    """
    misfits = caller.memory.misfits.setdefault(asked.path, [])
    if caller.person is None or len(misfits) == MAX_MISFITS:
        return False
    again = f"{misfits[-1]} (try {len(misfits) + 1} of {MAX_MISFITS})" if misfits else ""
    form = approval_form(run, asked, again)  # no two are the same: an answer counts for one of them
    filling = asyncio.create_task(caller.person.fill_in(form))
    closing = asyncio.create_task(answered_elsewhere(caller.project, run, asked.path))
    try:
        await asyncio.wait({filling, closing}, return_when=asyncio.FIRST_COMPLETED)
        if not filling.done():
            return True
        filled = filling.result()
    finally:
        for task in (filling, closing):
            task.cancel()
        await asyncio.gather(filling, closing, return_exceptions=True)
    try:
        return filled is not None and await give_answer(caller.project, run, asked, filled)
    except AuthorError as error:
        misfits.append(error.message)
        return True


async def _cancel(project: Project, run: str) -> None:
    if project.resolve(run).status not in RUN_TERMINAL:
        await cancel(project, run)


def _options(caller: Caller, asked: RunWorkflow) -> Options:
    check_budget(asked.budget_usd, asked.budget_tokens)
    given = {"budget_micro_usd": micro_usd(asked.budget_usd), "budget_tokens": asked.budget_tokens}
    return structs.replace(
        caller.options, **{key: value for key, value in given.items() if value is not None}
    )


def _foresee(project: Project, checked: CheckedRecipe, bound: Mapping[str, JSON], options: Options) -> DryRun:
    found, _ = foresee_run(project, checked, bound, options)
    return structs.replace(found, waves=found.waves[:MAX_WAVES], conflicts=found.conflicts[:MAX_CONFLICTS])


def _size(forecast: DryRun) -> list[str]:
    """How large a run may get, as a person weighs it."""
    low, high = forecast.agents.min, forecast.agents.max
    agents = _many(high, "agent") if low == high else f"{low} to {high} agents"
    price = forecast.cost.usd_max
    bound = "price unknown" if price is None else f"at most ${price:.2f}"
    steps = sum(len(wave) for wave in forecast.waves)
    return [
        f"{_many(steps, 'step')}, {agents}, {bound}",
        *(f"warning: {one}" for one in forecast.warnings[:5]),
    ]


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _given(plan: Plan, bound: Mapping[str, JSON]) -> list[str]:
    named = [one.name for one in plan.inputs]
    return [f"input {name}: {shorten(as_text(bound.get(name)), 200)}" for name in named]


@tool(
    "See how a run stands",
    "How a run stands: status, steps, failures, questions that wait for a person, answer."
    " Without a run, the latest ones; with a step, what it was asked and its output. Runs that"
    " the user started in a terminal are found too.",
)
async def workflow_status(caller: Caller, asked: WorkflowStatus) -> StatusReport:
    project = caller.project
    if not asked.run:
        if asked.step:
            raise AuthorError("usage.missing", "a step needs a run", hint="name the run too")
        rows = [run_row(head) for head in list_heads(project, limit=10)]
        return StatusReport(ok=True, runs=[RunLine(**shared_fields(row, RunLine)) for row in rows])
    head = project.resolve(asked.run)
    if asked.step:
        return StatusReport(ok=True, step=_step_output(project, head.run_id, asked.step))
    if asked.timeout_s:
        await _wait_beside(caller, head.root_run_id, asked.timeout_s)
    return StatusReport(ok=True, run=run_report(*find_run(project, head.run_id)))


async def _wait_beside(caller: Caller, root: str, timeout_s: float) -> None:
    """Wait for a run that somebody started, and have the person answer what it asks.

    The run is waited for as long as was said; the person takes the time a person takes. Who stops waiting
    stops nothing: it is not this caller's run.
    """
    left_s, clock = timeout_s, asyncio.get_running_loop().time
    while left_s > 0:
        began = clock()
        try:
            tree = await asyncio.wait_for(follow_run(caller, root), left_s)
        except TimeoutError:
            return  # it goes on; how it stands is the answer
        left_s -= clock() - began
        if tree.root.status == PENDING:
            continue  # its process may only be about to begin
        questions = open_approvals(tree)
        if not questions or not await _answer(caller, root, questions[0]):
            return


def _step_output(project: Project, run: str, step: str) -> StepOutput:
    found = inspect_step(project, run, step)
    text = as_text(found.output)
    cut = len(text) > MAX_STEP_CHARS
    told = shared_fields(found, StepOutput) | {
        "output": shorten(text, MAX_STEP_CHARS) if cut else found.output,
        "error": None if found.error is None else found.error.message,
    }
    return StepOutput(output_cut=cut, **told)


@tool(
    "Search what agents wrote",
    "Search everything that agents of runs and subagents put out, by words; ranked excerpts"
    " with the run and step each is from. Use it instead of asking for long outputs.",
)
async def query_workflow(caller: Caller, asked: QueryWorkflow) -> QueryHits:
    found = await asyncio.to_thread(
        query, caller.project, asked.query.split(), run=asked.run or None, most=asked.k
    )
    return QueryHits(ok=True, hits=[FoundOutput(**shared_fields(hit, FoundOutput)) for hit in found.hits])
