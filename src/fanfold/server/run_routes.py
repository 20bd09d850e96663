"""Starting runs, and what is done to them."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, structs

from fanfold.api import changes, run_handle
from fanfold.api.addresses import find_run
from fanfold.api.approvals import AnswerResult
from fanfold.api.authoring import CaptureResult, capture
from fanfold.api.changes import OpenedArtifact, list_artifacts, open_artifact, undo
from fanfold.api.fork import (
    ChosenAgents,
    Fork,
    ForkForecast,
    at_turn,
    forecast_fork,
    plan_fork,
    plan_retry,
    start_fork,
)
from fanfold.api.overview import (
    CheckedText,
    Pulse,
    Pulses,
    RecipePage,
    RecipeRows,
    find_named,
    list_shelf,
    live_pulses,
    pulse_of,
    save_text,
    show_page,
    try_text,
)
from fanfold.api.ownership import hand_over, resume_detached
from fanfold.api.permission import permit_adopted
from fanfold.api.project import Project
from fanfold.api.run_documents import (
    ApplyResult,
    ArtifactList,
    RunHeadDocument,
    Undone,
    changes_below,
    run_head,
)
from fanfold.api.run_options import PRINTABLE, RaisedLimits, RunOptions, Word, check_raised
from fanfold.api.schedules import ScheduleRows, list_schedules
from fanfold.api.start import foresee_run, start, start_consent
from fanfold.api.step_documents import RunTable, Timeline, run_table, timeline
from fanfold.engine.forecast_documents import DryRun
from fanfold.engine.run_tree import wall_clock_ms
from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import RUN_TERMINAL
from fanfold.language.inputs import bind_inputs, bind_known
from fanfold.server.api import NoParameters, Routes
from fanfold.server.console_files import BYTES
from fanfold.server.requests import AppState
from fanfold.steps.records import FileChange
from fanfold.store.protocol import RunHead

# -----------------------------------------------------------------------------------------------------------
# What routes are asked with: parts of the path and of the query, with their bounds.

RunName: TypeAlias = Annotated[
    str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$", description="An id, the beginning of one, or `last`.")
]
RecipeName: TypeAlias = Annotated[
    str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,63}(@v?[1-9][0-9]{0,8})?$", description="`name` or `name@2`.")
]
StepPath: TypeAlias = Annotated[
    str, Meta(max_length=2_000, pattern=PRINTABLE, description="A slash in it is %2F.")
]
Number: TypeAlias = Annotated[int, Meta(ge=1, le=2**53)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=500)]
Words: TypeAlias = Annotated[str, Meta(max_length=1_000, pattern=r"^[^\x00-\x1f\x7f]*$")]
Status: TypeAlias = Literal[
    "pending", "running", "waiting", "paused", "completed", "partial", "failed", "cancelled", "timed_out"
]


class RunQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    run: RunName


class RunAt(RunQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    at: Annotated[int, Meta(ge=1, le=2**53, description="As it was after this event.")] | None = None


class StepQuery(RunQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    step: StepPath


class StepAt(StepQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    at: Number | None = None


# -----------------------------------------------------------------------------------------------------------
# Recipes: found, looked at, tried, changed.

ROUTES = Routes()
Text = Annotated[str, Meta(max_length=512 * 1024)]


class RecipeQuery(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: RecipeName


class RecipeText(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A recipe that is being written."""

    text: Text
    name: RecipeName = "recipe"


class RecipeEdit(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new text; `seen` is the digest of the one it takes the place of, None where there is none."""

    text: Text
    seen: Annotated[str, Meta(max_length=64)] | None


class CaptureBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What of an open run becomes a recipe. With a `name` it is kept; `request` is what was asked for."""

    subagents: Annotated[list[Word], Meta(max_length=500)] = []
    name: RecipeName | None = None
    replace: bool = False
    request: Annotated[str, Meta(max_length=100_000)] = ""


@ROUTES.change("POST", "/api/runs/{run}/capture", "What was delegated, as a recipe")
def capture_run(desk: AppState, asked: RunQuery, body: CaptureBody) -> CaptureResult:
    return capture(
        desk.fresh(),
        asked.run,
        children=body.subagents,
        name=body.name or "",
        request=body.request,
        save=body.name is not None,
        replace=body.replace,
    )


@ROUTES.get("/api/recipes", "Recipes of the project, the user, and built in")
def list_recipes(desk: AppState) -> RecipeRows:
    return list_shelf(desk.fresh())


@ROUTES.get("/api/recipes/{name}", "One recipe with its text and picture")
def show_recipe(desk: AppState, asked: RecipeQuery) -> RecipePage:
    return show_page(desk.fresh(), asked.name)


@ROUTES.change("POST", "/api/check", "What is wrong with a text")
def check_recipe(desk: AppState, body: RecipeText) -> CheckedText:
    return try_text(desk.fresh(), body.text, body.name)


@ROUTES.change("PUT", "/api/recipes/{name}", "Keep a text")
def save_recipe(desk: AppState, asked: RecipeQuery, body: RecipeEdit) -> RecipePage:
    return save_text(desk.fresh(), asked.name, body.text, body.seen)


Comment = Annotated[str, Meta(max_length=20_000)]
Answer = Annotated[str, Meta(max_length=1_000_000)]
Seen = Annotated[str, Meta(max_length=64)]


class DryRunBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run that is only foretold."""

    inputs: dict[str, JSON] = {}
    options: RunOptions = RunOptions()
    scripted: bool = False


class StartBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run of a recipe. `script` has scripted agents answer instead of models; `yes` permits its effects,
    and only those that were shown, where `seen` is the digest from the dry run.
    """

    recipe: RecipeName
    inputs: dict[str, JSON] = {}
    options: RunOptions = RunOptions()
    script: dict[str, JSON] | None = None
    yes: bool = False
    seen: Seen | None = None


class ResumeBody(RaisedLimits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits that are raised. `yes` permits what an adopted run does; `wait` keeps waits for providers."""

    wait: bool = False
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
    turn: Number | None = None
    say: Comment | None = None
    dry_run: bool = False
    yes: bool = False
    seen: Seen | None = None


class RetryBody(AgentsBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is different in a retry."""

    dry_run: bool = False
    yes: bool = False
    seen: Seen | None = None


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


class ForeseenRun(DryRun, frozen=True, kw_only=True):
    """A dry run, and what the run needs permission for; `seen` is the digest of exactly that."""

    needs: list[str]
    totals: list[str]
    seen: str


class StartedRun(Struct, frozen=True):
    """A run that goes on in a process of its own."""

    run_id: str


class ForkedRun(Struct, frozen=True):
    """What was begun, or what would be reused and run again."""

    run_id: str | None
    forecast: ForkForecast


class ActionResult(Struct, frozen=True):
    """What happened, in words."""

    run_id: str
    status: str
    said: str
    ok: bool = True


@ROUTES.change("POST", "/api/recipes/{name}/dry-run", "What a run would do")
def foresee(desk: AppState, asked: RecipeQuery, body: DryRunBody) -> ForeseenRun:
    project = desk.fresh()
    checked = find_named(project, asked.name, scripted=body.scripted)
    plan = checked.runnable()
    inputs, missing = bind_known(plan, body.inputs)
    options = body.options.checked(project.config, script="" if body.scripted else None)
    found = foresee_run(project, checked, inputs, options, missing)[0]
    consent = start_consent(project, plan, inputs, options)
    request = consent.request
    return ForeseenRun(
        **structs.asdict(found), needs=consent.needs, totals=list(request.totals), seen=request.digest
    )


@ROUTES.get("/api/schedules", "Schedules and webhooks of the project")
def show_schedules(desk: AppState) -> ScheduleRows:
    return list_schedules(desk.fresh())


@ROUTES.change("POST", "/api/runs", "Start a recipe", status=201)
def start_run(desk: AppState, body: StartBody, traceparent: str) -> StartedRun:
    project = desk.fresh()
    script = _script(body.script)
    plan = find_named(project, body.recipe, scripted=script is not None).runnable()
    options = body.options.checked(
        project.config, script=script, script_file="" if script is None else "script"
    )
    options = structs.replace(options, traceparent=traceparent)
    if body.seen is not None:
        consent = start_consent(project, plan, bind_inputs(plan, body.inputs), options)
        if consent.request.digest != body.seen:
            message = f"what {plan.name} does changed since it was shown"
            raise WorldError("permission.changed", message, hint="look at it again, then start it")
    return StartedRun(hand_over(start(project, plan, body.inputs, options, yes=body.yes)).root)


def _script(given: dict[str, JSON] | None) -> str | None:
    """The text of a script that was checked: a mistake in it must not wait for the step it concerns."""
    if given is None:
        return None
    from fanfold.agents.script import Script

    return Script.load(msgspec.json.encode(given), "script").source


@ROUTES.change("POST", "/api/runs/{run}/pause", "Pause a whole run")
async def pause_run(desk: AppState, asked: RunQuery) -> ActionResult:
    return _action_result(await run_handle.pause(desk.fresh(), asked.run))


@ROUTES.change("POST", "/api/runs/{run}/cancel", "Cancel a run")
async def cancel_run(desk: AppState, asked: RunQuery) -> ActionResult:
    return _action_result(await run_handle.cancel(desk.fresh(), asked.run))


def _action_result(head: RunHead) -> ActionResult:
    return ActionResult(head.run_id, head.status, f"run {head.run_id} is {head.status}")


@ROUTES.change("POST", "/api/runs/{run}/resume", "Go on with a run")
def resume_run(desk: AppState, asked: RunQuery, body: ResumeBody) -> ActionResult:
    project = desk.fresh()
    root = project.resolve(asked.run).root_run_id
    seen = project.view(root)
    if seen.root.status in RUN_TERMINAL:
        raise AuthorError("run.ended", f"run {root} is {seen.root.status} already", hint="fork or retry it")
    raised = check_raised(project, seen, body.limits())
    permit_adopted(project, seen, yes=body.yes, attendant=None)
    resume_detached(project, root, raised, keep_waits=body.wait)
    return ActionResult(root, "running", f"run {root} goes on in the background")


@ROUTES.change("POST", "/api/runs/{run}/fork", "Run again from a step on")
def fork_run(desk: AppState, asked: RunQuery, body: ForkBody) -> ForkedRun:
    project = desk.fresh()
    found = find_run(project, asked.run)
    step = None if body.step is None else found.tree_path(body.step)
    at = at_turn(body.turn, body.say)
    fork = plan_fork(found.tree, step, body.inputs, body.prompt, at, body.chosen())
    return _fork(project, fork, body)


@ROUTES.change("POST", "/api/runs/{run}/retry", "Run again what failed")
def retry_run(desk: AppState, asked: RunQuery, body: RetryBody) -> ForkedRun:
    project = desk.fresh()
    found = find_run(project, asked.run)
    return _fork(project, plan_retry(project, found.tree, body.chosen()), body)


def _fork(project: Project, fork: Fork, body: ForkBody | RetryBody) -> ForkedRun:
    forecast = forecast_fork(project, fork)
    if body.dry_run:
        return ForkedRun(None, forecast)
    return ForkedRun(hand_over(start_fork(project, fork, yes=body.yes, seen=body.seen)).root, forecast)


@ROUTES.change("POST", "/api/runs/{run}/undo", "Take a merge back")
async def undo_run(desk: AppState, asked: RunQuery, body: UndoBody) -> Undone:
    return await undo(desk.fresh(), asked.run, body.step, dry_run=body.dry_run)


@ROUTES.change("POST", "/api/runs/{run}/approvals/{step}", "Answer a question")
async def answer_question(desk: AppState, asked: StepQuery, body: AnswerBody) -> AnswerResult:
    decision = body.choice or body.decision
    return await run_handle.answer(
        desk.fresh(), asked.run, asked.step, decision, body.comment, body.edit, seen=body.seen
    )


@ROUTES.change("POST", "/api/runs/{run}/answers/{step}", "Answer the question of an ask step or an agent")
async def reply_to_question(desk: AppState, asked: StepQuery, body: ReplyBody) -> AnswerResult:
    return await run_handle.reply(desk.fresh(), asked.run, asked.step, body.text, seen=body.seen)


@ROUTES.change("POST", "/api/runs/{run}/steps/{step}/apply", "Merge what a step proposed")
async def apply_changes(desk: AppState, asked: StepQuery, body: ApplyBody) -> ApplyResult:
    return await changes.apply(desk.fresh(), asked.run, asked.step, dry_run=body.dry_run)


# -----------------------------------------------------------------------------------------------------------
# What pages about one run are made of: its head, table, time and files, and its owner's sign of life.

ArtifactName: TypeAlias = Annotated[
    str, Meta(max_length=300, pattern=PRINTABLE, description="Its `name` in the list. A slash in it is %2F.")
]


class RunOutput(Struct, frozen=True):
    """What a run gave, and what its steps and those of the runs below it changed, by paths in the tree."""

    output: JSON
    changes: list[FileChange]


@ROUTES.look("/api/runs/{run}/output", "What it gave and changed")
def show_output(desk: AppState, asked: RunAt) -> RunOutput:
    tree, run = find_run(desk.history, asked.run, asked.at)
    output = tree.blobs.get(run.output) if run.output is not None else None
    return RunOutput(output, changes_below(tree, run))


@ROUTES.look("/api/runs/{run}/head", "How a run stands")
def show_head(desk: AppState, asked: RunAt) -> RunHeadDocument:
    found = find_run(desk.history, asked.run, asked.at)
    store = desk.history.store
    head = run_head(found.tree, found.run, reach=store.reach(found.root_id))
    kept = store.head(found.run.id)
    # Whose fork it is stands in no event, only in the row of the run.
    return head if kept is None else structs.replace(head, forked_from=kept.forked_from)


@ROUTES.look("/api/runs/{run}/table", "Its steps, without outputs")
def show_table(desk: AppState, asked: RunAt) -> RunTable:
    found = find_run(desk.history, asked.run, asked.at)
    return run_table(found.tree, found.run, found.tree.state.now)


@ROUTES.look("/api/runs/{run}/timeline", "Its steps over time")
def show_timeline(desk: AppState, asked: RunAt) -> Timeline:
    found = find_run(desk.history, asked.run, asked.at)
    envelopes = islice(desk.history.store.tree(found.root_id), found.tree.tree_seq)
    now = found.tree.state.now if asked.at is not None else wall_clock_ms()
    return timeline(found.tree, found.run, envelopes, now)


# Signs of life are no events: the answer must not be kept until the next one.
@ROUTES.get("/api/runs/{run}/pulse", "Whether anybody drives it")
def show_pulse(desk: AppState, asked: RunQuery) -> Pulse:
    return pulse_of(desk.fresh(), asked.run)


@ROUTES.get("/api/pulses", "Whether anybody drives what runs")
def list_pulses(desk: AppState) -> Pulses:
    return live_pulses(desk.fresh())


class ArtifactQuery(RunQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    artifact: ArtifactName


@ROUTES.look("/api/runs/{run}/artifacts", "Files that steps left beside the project")
def show_artifacts(desk: AppState, asked: RunAt) -> ArtifactList:
    return list_artifacts(desk.history, asked.run, asked.at)


@ROUTES.get("/api/runs/{run}/artifacts/{artifact}", "One of them, to be kept", media=BYTES, gives_file=True)
def give_artifact(desk: AppState, asked: ArtifactQuery) -> OpenedArtifact:
    return open_artifact(desk.history, asked.run, asked.artifact)
