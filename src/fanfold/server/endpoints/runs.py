"""Starting runs, and what is done to them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from fanfold.errors import AuthorError
from fanfold.kernel.events import Raised
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.kernel.plan import JSON
from fanfold.recipe.inputs import bind_known
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.overview.recipes import find_named
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs import control
from fanfold.runtime.operations.runs.again.fork import (
    ChosenAgents,
    Fork,
    at_turn,
    foretell,
    plan_fork,
    start_fork,
)
from fanfold.runtime.operations.runs.again.recipe_changes import ForkForecast
from fanfold.runtime.operations.runs.again.retry import Retried, plan_retry
from fanfold.runtime.operations.runs.background import hand_over, resume_detached
from fanfold.runtime.operations.runs.files import changes
from fanfold.runtime.operations.runs.files.undo import undo
from fanfold.runtime.operations.runs.starting.creation import start
from fanfold.runtime.operations.runs.starting.dry_run import foresee_run
from fanfold.runtime.operations.runs.starting.limits import (
    check_agents,
    check_budget,
    check_concurrency,
    check_raised,
    micro_usd,
)
from fanfold.runtime.operations.runs.starting.options import Options
from fanfold.runtime.operations.runs.starting.permission import permit_adopted
from fanfold.runtime.views.approvals import Answered
from fanfold.runtime.views.recipes.forecasts import DryRun
from fanfold.runtime.views.runs.changes import Applied, Undone
from fanfold.server.desk import Desk
from fanfold.server.endpoints.parameters import RecipeName, RunAsked, StepAsked, StepPath, Word
from fanfold.server.endpoints.recipes import RecipeAsked
from fanfold.server.routes import Routes
from fanfold.store.protocol import RunHead

ROUTES = Routes()
Amount = Annotated[int, Meta(ge=1, le=2**53)]
Dollars = Annotated[float, Meta(gt=0, le=1_000_000_000)]
Comment = Annotated[str, Meta(max_length=20_000)]
Answer = Annotated[str, Meta(max_length=1_000_000)]
Seen = Annotated[str, Meta(max_length=64)]


class RunOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be fixed for one run; what is left out, recipe and configuration say."""

    model: Word | None = None
    agent_backend: Word | None = None
    max_concurrency: Amount | None = None
    max_agents: Amount | None = None
    budget_usd: Dollars | None = None
    budget_tokens: Amount | None = None
    permission: Literal["read_only", "ask", "auto"] = "ask"


class DryRunBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run that is only foretold."""

    inputs: dict[str, JSON] = {}
    options: RunOptions = RunOptions()
    scripted: bool = False


class StartBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run of a recipe. `script` has scripted agents answer instead of models; `yes` allows what the recipe
    declares.
    """

    recipe: RecipeName
    inputs: dict[str, JSON] = {}
    options: RunOptions = RunOptions()
    script: dict[str, JSON] | None = None
    yes: bool = False


class ResumeBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits that are raised. `yes` permits what an adopted run does."""

    budget_usd: Dollars | None = None
    budget_tokens: Amount | None = None
    max_agents: Amount | None = None
    max_steps: Amount | None = None
    yes: bool = False


class AgentsBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who works instead of the agents that the other run had."""

    model: Word | None = None
    agent_backend: Word | None = None
    script: dict[str, JSON] | None = None

    def chosen(self) -> ChosenAgents:
        script = _script(self.script)
        file = "" if script is None else "script"
        return ChosenAgents(model=self.model, backend=self.agent_backend, script=script, script_file=file)


class ForkBody(AgentsBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is different in a fork: from which step on, inputs, prompts of top-level steps, or the turn of an
    agent after which it is told something else; and who works.
    """

    step: str | None = msgspec.field(default=None, name="from")
    inputs: dict[str, JSON] = {}
    prompt: dict[str, str] = {}
    turn: Amount | None = None
    say: Comment | None = None
    dry_run: bool = False
    yes: bool = False


class RetryBody(AgentsBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is different in a retry."""

    dry_run: bool = False
    yes: bool = False


class UndoBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is taken back: what one step merged into the project, or all that the run did."""

    step: StepPath | None = None
    dry_run: bool = False


class AnswerBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A person's answer to exactly what they saw (`seen` of the question). Where it offers choices, `choice`
    is one of them, and `decision` says `approve`.
    """

    decision: Literal["approve", "reject"]
    choice: Annotated[str, Meta(max_length=1_000)] | None = None
    comment: Comment | None = None
    edit: JSON = None
    seen: Seen


class ReplyBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a person says to an `ask` step: words, one of its choices, or JSON where it has a schema."""

    text: Answer
    seen: Seen | None = None


class ApplyBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    dry_run: bool = False


class StartedRun(Struct, frozen=True):
    """A run that goes on in a process of its own."""

    run_id: str


class ForkedRun(Struct, frozen=True):
    """What was begun, or what would be reused and run again."""

    run_id: str | None
    forecast: ForkForecast


class Steered(Struct, frozen=True):
    """What happened, in words."""

    run_id: str
    status: str
    said: str
    ok: bool = True


@ROUTES.change("POST", "/api/recipes/{name}/dry-run", "What a run would do")
def foresee(desk: Desk, asked: RecipeAsked, body: DryRunBody) -> DryRun:
    project = desk.fresh()
    checked = find_named(project, asked.name, scripted=body.scripted)
    inputs, missing = bind_known(checked.runnable(), body.inputs)
    options = _options(project, body.options, "" if body.scripted else None)
    return foresee_run(project, checked, inputs, options, missing)[0]


@ROUTES.change("POST", "/api/runs", "Start a recipe", status=201)
def start_run(desk: Desk, body: StartBody) -> StartedRun:
    project = desk.fresh()
    script = _script(body.script)
    plan = find_named(project, body.recipe, scripted=script is not None).runnable()
    options = _options(project, body.options, script)
    return StartedRun(hand_over(start(project, plan, body.inputs, options, yes=body.yes)).root)


def _options(project: Project, given: RunOptions, script: str | None) -> Options:
    check_concurrency(project.config, given.max_concurrency)
    check_agents(project.config, given.max_agents)
    check_budget(given.budget_usd, given.budget_tokens)
    said = msgspec.structs.asdict(given)
    named = {"backend": said.pop("agent_backend"), "budget_micro_usd": micro_usd(said.pop("budget_usd"))}
    return Options(script=script, script_file="" if script is None else "script", **named, **said)


def _script(given: dict[str, JSON] | None) -> str | None:
    """The text of a script that was checked: a mistake in it must not wait for the step it concerns."""
    if given is None:
        return None
    from fanfold.agents.scripts.script import Script

    return Script.load(msgspec.json.encode(given), "script").source


@ROUTES.change("POST", "/api/runs/{run}/pause", "Pause a whole run")
async def pause_run(desk: Desk, asked: RunAsked) -> Steered:
    return _said(await control.pause(desk.fresh(), asked.run))


@ROUTES.change("POST", "/api/runs/{run}/cancel", "Cancel a run")
async def cancel_run(desk: Desk, asked: RunAsked) -> Steered:
    return _said(await control.cancel(desk.fresh(), asked.run))


def _said(head: RunHead) -> Steered:
    return Steered(head.run_id, head.status, f"run {head.run_id} is {head.status}")


@ROUTES.change("POST", "/api/runs/{run}/resume", "Go on with a run")
def resume_run(desk: Desk, asked: RunAsked, body: ResumeBody) -> Steered:
    project = desk.fresh()
    root = project.resolve(asked.run).root_run_id
    seen = project.view(root)
    if seen.root.status in RUN_TERMINAL:
        raise AuthorError("run.ended", f"run {root} is {seen.root.status} already", hint="fork or retry it")
    check_budget(body.budget_usd, body.budget_tokens)
    wanted = Raised(body.max_agents, body.max_steps, body.budget_tokens, micro_usd(body.budget_usd))
    raised = check_raised(project, seen, wanted)
    permit_adopted(project, seen, yes=body.yes, attendant=None)
    resume_detached(project, root, raised)
    return Steered(root, "running", f"run {root} goes on in the background")


@ROUTES.change("POST", "/api/runs/{run}/fork", "Run again from a step on")
def fork_run(desk: Desk, asked: RunAsked, body: ForkBody) -> ForkedRun:
    project = desk.fresh()
    found = find_run(project, asked.run)
    step = None if body.step is None else found.tree_path(body.step)
    at = at_turn(body.turn, body.say)
    fork = plan_fork(found.tree, step, body.inputs, body.prompt, at, body.chosen())
    return _fork(project, fork, dry_run=body.dry_run, yes=body.yes)


@ROUTES.change("POST", "/api/runs/{run}/retry", "Run again what failed")
def retry_run(desk: Desk, asked: RunAsked, body: RetryBody) -> ForkedRun:
    project = desk.fresh()
    found = find_run(project, asked.run)
    wanted = Retried(agents=body.chosen())
    return _fork(project, plan_retry(project, found.tree, wanted), dry_run=body.dry_run, yes=body.yes)


def _fork(project: Project, fork: Fork, *, dry_run: bool, yes: bool) -> ForkedRun:
    forecast = foretell(fork)
    if dry_run:
        return ForkedRun(None, forecast)
    return ForkedRun(hand_over(start_fork(project, fork, yes=yes)).root, forecast)


@ROUTES.change("POST", "/api/runs/{run}/undo", "Take a merge back")
async def undo_run(desk: Desk, asked: RunAsked, body: UndoBody) -> Undone:
    return await undo(desk.fresh(), asked.run, body.step, dry_run=body.dry_run)


@ROUTES.change("POST", "/api/runs/{run}/approvals/{step}", "Answer a question")
async def answer_question(desk: Desk, asked: StepAsked, body: AnswerBody) -> Answered:
    decision = body.choice or body.decision
    return await control.answer(
        desk.fresh(), asked.run, asked.step, decision, body.comment, body.edit, seen=body.seen
    )


@ROUTES.change("POST", "/api/runs/{run}/answers/{step}", "Answer the question of an ask step")
async def reply_to_question(desk: Desk, asked: StepAsked, body: ReplyBody) -> Answered:
    return await control.reply(desk.fresh(), asked.run, asked.step, body.text, seen=body.seen)


@ROUTES.change("POST", "/api/runs/{run}/steps/{step}/apply", "Merge what a step proposed")
async def apply_changes(desk: Desk, asked: StepAsked, body: ApplyBody) -> Applied:
    return await changes.apply(desk.fresh(), asked.run, asked.step, dry_run=body.dry_run)
