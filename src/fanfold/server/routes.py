"""All routes of the API: what each takes, and the operation that answers it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, field, structs
from starlette.requests import Request
from starlette.responses import Response

from fanfold.api import run_handle
from fanfold.api.addresses import find_run
from fanfold.api.approvals import AnswerResult
from fanfold.api.archives import AuditedRun, ImportResult, export_run, import_run, replay_run
from fanfold.api.authoring import CaptureResult, capture
from fanfold.api.changes import apply, diff, list_artifacts, open_artifact, undo
from fanfold.api.explain import explain_run, explain_step, what_if
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
from fanfold.api.graph import Drawing, draw_run, parse_opened
from fanfold.api.history import (
    FoundOutputs,
    RunCost,
    inspect,
    page_of_events,
    page_of_runs,
    query,
    read_step_log,
    report_of,
    run_cost,
    transcript,
)
from fanfold.api.overview import (
    AgentsDocument,
    all_questions,
    compare_runs,
    find_named,
    list_shelf,
    live_pulses,
    pulse_of,
    recorded_recipe,
    save_text,
    session_transcript,
    show_agents,
    show_home,
    show_page,
    show_step,
    try_text,
)
from fanfold.api.ownership import hand_over, resume_detached
from fanfold.api.permission import permit_adopted
from fanfold.api.project import Project
from fanfold.api.run_documents import RunHeadDocument, changes_below, run_head
from fanfold.api.run_handle import reply
from fanfold.api.run_options import PRINTABLE, RaisedLimits, RunOptions, Word, check_raised
from fanfold.api.schedules import list_schedules
from fanfold.api.spellings import RunWords, SpelledAction, Spellings, StartWords, spell, spell_start
from fanfold.api.start import foresee_run, start, start_consent
from fanfold.api.step_documents import RunTable, Timeline, run_table, timeline
from fanfold.api.suites import list_comparisons
from fanfold.api.system import Examination
from fanfold.api.tools import shared_fields
from fanfold.engine.forecast_documents import DryRun
from fanfold.engine.run_tree import wall_clock_ms
from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.events import Envelope
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import RUN_TERMINAL
from fanfold.language.inputs import bind_inputs, bind_known
from fanfold.server.api import Method, NoParameters, Route, Routes, describe
from fanfold.server.console_files import BYTES
from fanfold.server.requests import AppState
from fanfold.server.streams import MAX_NUMBER, Streams
from fanfold.steps.records import FileChange
from fanfold.store.protocol import RunHead
from fanfold.store.search import Filters

ROUTES = Routes()
_Row: TypeAlias = tuple[str, str, Callable[..., Any], type[Struct], str]

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


@ROUTES.change("POST", "/api/runs/{run}/approvals/{step}", "Answer a question")
async def answer_question(desk: AppState, asked: StepQuery, body: AnswerBody) -> AnswerResult:
    decision = body.choice or body.decision
    return await run_handle.answer(
        desk.fresh(), asked.run, asked.step, decision, body.comment, body.edit, seen=body.seen
    )


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


class ArtifactQuery(RunQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: ArtifactName = field(name="artifact")


MAX_PAGE_BYTES = 64 * 1024 * 1024
"""Of a run that is taken in over HTTP; `fanfold import` takes larger ones."""
MAX_LOGGED = 5_000


class RunsQuery(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    status: Status | None = None
    recipe: RecipeName | None = None
    since: Annotated[str, Meta(max_length=40, description="12h, 7d, or a date.")] = ""
    words: Words = field(default="", name="q")
    limit: Count = 50
    cursor: RunName | None = None


class InspectQuery(RunAt, frozen=True, forbid_unknown_fields=True, kw_only=True):
    with_state: Annotated[bool, Meta(description="Also what the scheduler knows.")] = field(
        default=False, name="state"
    )


class StepLog(Struct, frozen=True):
    """What its run and its sessions recorded about a step. `left_off` later events are not here."""

    items: list[Envelope]
    left_off: int


class ImportBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file that an export gave, as text."""

    page: Annotated[str, Meta(max_length=MAX_PAGE_BYTES)]


class EventsQuery(RunQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    before: Number | None = None
    limit: Count = 200


class GraphQuery(RunAt, frozen=True, forbid_unknown_fields=True, kw_only=True):
    open: Annotated[
        str,
        Meta(
            max_length=20_000,
            pattern=r"^[^\x00-\x1f\x7f]*$",
            description="path,path,-path: opened, and closed.",
        ),
    ] = ""


class TranscriptQuery(StepAt, frozen=True, forbid_unknown_fields=True, kw_only=True):
    attempt: Annotated[int, Meta(ge=1, le=1_000)] | None = None


class ChangesQuery(RunQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    step: StepPath | None = None


class SlotsQuery(RunQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_concurrency: Annotated[int, Meta(ge=1, le=1_024)]


class PairQuery(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    a: RunName
    b: RunName


@ROUTES.look("/api/runs/{run}/graph", "The picture of a run")
def draw_graph(desk: AppState, asked: GraphQuery) -> Drawing:
    found = find_run(desk.history, asked.run, asked.at)
    return draw_run(found.tree, found.run, parse_opened(asked.open))


@ROUTES.look("/api/runs/{run}/steps/{step}/log", "What was recorded about a step")
def log_of_step(desk: AppState, asked: StepQuery) -> StepLog:
    found = read_step_log(desk.history, asked.run, asked.step)
    return StepLog(found[:MAX_LOGGED], max(0, len(found) - MAX_LOGGED))


@ROUTES.look("/api/runs/{run}/cost", "Who spent what")
def cost_of_run(desk: AppState, asked: RunAt) -> RunCost:
    found = find_run(desk.history, asked.run, asked.at)
    return run_cost(found.tree, found.run)


@ROUTES.look("/api/runs/{run}/export", "The run as one file", media="text/html", attached="run.html")
def export(desk: AppState, asked: RunQuery) -> str:
    return export_run(desk.history, asked.run, desk.version)


@ROUTES.change("POST", "/api/import", "Take in a run from a file", status=201, body_bytes=MAX_PAGE_BYTES)
def take_in(desk: AppState, body: ImportBody) -> ImportResult:
    return import_run(desk.fresh(), body.page.encode())


@ROUTES.look("/api/runs/{run}/verify", "The log checked against every invariant")
def verify_run(desk: AppState, asked: RunQuery) -> AuditedRun:
    return replay_run(desk.history, asked.run, checked=True)


# -----------------------------------------------------------------------------------------------------------
# Documents across runs: home, questions, search, agents, this installation.


class SearchQuery(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    q: Annotated[str, Meta(max_length=1_000, pattern=PRINTABLE)]
    run: RunName | None = None
    k: Annotated[int, Meta(ge=1, le=100)] = 20
    recipe: RecipeName | None = None
    phase: Word | None = None
    step: StepPath | None = None
    role: Word | None = None
    status: Literal["completed", "failed", "skipped", "cancelled", "timed_out"] | None = None
    kind: Literal["output", "error", "prompt", "transcript", "any"] | None = None
    since: Annotated[int, Meta(ge=0, le=2**53, description="Milliseconds since 1970.")] | None = None


class SessionQuery(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    session: RunName


class CopyBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An action, with what a form holds for it."""

    action: SpelledAction
    run: RunName | None = None
    step: StepPath | None = None
    recipe: RecipeName | None = None
    inputs: dict[str, JSON] = {}
    options: RunOptions = RunOptions()
    script: dict[str, JSON] | None = None
    choice: Comment | None = None
    comment: Comment | None = None
    text: Answer | None = None
    seen: Seen | None = None
    yes: bool = False


@ROUTES.look("/api/search", "Outputs with some words, best match first")
def search(desk: AppState, asked: SearchQuery) -> FoundOutputs:
    given = structs.asdict(asked)
    words, run, most = (given.pop(name) for name in ("q", "run", "k"))
    return query(desk.history, words.split(), Filters(**given), run=run, most=most)


@ROUTES.look("/api/agents", "Roles, and agents at work")
def list_agents(desk: AppState) -> AgentsDocument:
    return show_agents(desk.fresh(), desk.history)


@ROUTES.get("/api/system", "What this installation is made of")
def examine(desk: AppState) -> Examination:
    return desk.examine()


@ROUTES.change("POST", "/api/copy", "How to do something from elsewhere", role="viewer")
def copy_as(body: CopyBody) -> Spellings:
    if body.action == "run":
        usual = structs.asdict(RunOptions())
        options = {name: one for name, one in structs.asdict(body.options).items() if one != usual[name]}
        recipe = body.recipe or "RECIPE"
        return spell_start(
            StartWords(**shared_fields(body, StartWords) | {"recipe": recipe, "options": options})
        )
    values: dict[str, Any] = shared_fields(body, RunWords) | {"run": body.run or "RUN"}
    return spell(body.action, RunWords(**values))


# -----------------------------------------------------------------------------------------------------------
# Streams

EVENTS = "text/event-stream"
After: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_NUMBER, description="As Last-Event-ID, which wins.")]


class StreamQuery(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: After = 0


class RunStreamQuery(RunQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: After = 0


@ROUTES.get("/api/runs/{run}/stream", "What a run records, live", media=EVENTS, goes_on=True)
def follow_run(streams: Streams, asked: RunStreamQuery, request: Request) -> Response:
    return streams.of_run(asked.run, asked.after, request)


@ROUTES.get("/api/stream", "Which runs move, live", media=EVENTS, goes_on=True)
def follow_project(streams: Streams, asked: StreamQuery, request: Request) -> Response:
    return streams.of_project(asked.after, request)


# -----------------------------------------------------------------------------------------------------------
# Routes that are operations of `fanfold.api`: operation id, path, function, parameters, body and summary

_LOOKS: tuple[_Row, ...] = (
    ("list_runs", "/api/runs", page_of_runs, RunsQuery, "Root runs, newest first"),
    ("inspect_run", "/api/runs/{run}", inspect, InspectQuery,
     "One run with its steps, outputs and child runs"),
    ("show_recorded_recipe", "/api/runs/{run}/recipe", recorded_recipe, RunQuery,
     "The recipe and inputs that a run recorded"),
    ("list_events", "/api/runs/{run}/events", page_of_events, EventsQuery, "What was recorded, in pieces"),
    ("inspect_step", "/api/runs/{run}/steps/{step}", show_step, StepAt,
     "One step with everything known of it"),
    ("read_transcript", "/api/runs/{run}/steps/{step}/transcript", transcript, TranscriptQuery,
     "What an agent was told, said and did"),
    ("explain", "/api/runs/{run}/explain", explain_run, RunQuery, "Why a run is where it is"),
    ("explain_one", "/api/runs/{run}/steps/{step}/explain", explain_step, StepQuery,
     "Why a step is where it is"),
    ("show_changes", "/api/runs/{run}/diff", diff, ChangesQuery, "What steps changed in files"),
    ("show_artifacts", "/api/runs/{run}/artifacts", list_artifacts, RunAt,
     "Files that steps left beside the project"),
    ("foresee_slots", "/api/whatif/{run}", what_if, SlotsQuery, "A run with another number of slots"),
    ("compare", "/api/compare/{a}/{b}", compare_runs, PairQuery, "Two runs side by side"),
    ("home", "/api/home", show_home, NoParameters, "What needs you, what runs, what was spent"),
    ("list_questions", "/api/approvals", all_questions, NoParameters, "Questions that wait for an answer"),
    ("read_session", "/api/agents/{session}", session_transcript, SessionQuery,
     "The conversation of a session"),
)  # fmt: skip
_READS: tuple[_Row, ...] = (
    ("list_recipes", "/api/recipes", list_shelf, NoParameters,
     "Recipes of the project, the user, and built in"),
    ("show_recipe", "/api/recipes/{name}", show_page, RecipeQuery, "One recipe with its text and picture"),
    ("show_schedules", "/api/schedules", list_schedules, NoParameters,
     "Schedules and webhooks of the project"),
    ("list_comparisons", "/api/comparisons", list_comparisons, NoParameters,
     "Live comparisons of models, newest first"),
    # Heartbeats are no events: a response about them must not be cached until the next event.
    ("show_pulse", "/api/runs/{run}/pulse", pulse_of, RunQuery, "Whether anybody drives it"),
    ("list_pulses", "/api/pulses", live_pulses, NoParameters, "Whether anybody drives what runs"),
)  # fmt: skip
_CHANGES: tuple[tuple[str, Method, str, Callable[..., Any], type[Struct], type[Struct], str], ...] = (
    ("check_recipe", "POST", "/api/check", try_text, NoParameters, RecipeText, "What is wrong with a text"),
    ("save_recipe", "PUT", "/api/recipes/{name}", save_text, RecipeQuery, RecipeEdit, "Keep a text"),
    ("undo_run", "POST", "/api/runs/{run}/undo", undo, RunQuery, UndoBody, "Take a merge back"),
    ("reply_to_question", "POST", "/api/runs/{run}/answers/{step}", reply, StepQuery, ReplyBody,
     "Answer the question of an ask step or an agent"),
    ("apply_changes", "POST", "/api/runs/{run}/steps/{step}/apply", apply, StepQuery, ApplyBody,
     "Merge what a step proposed"),
)  # fmt: skip

for _name, _path, _call, _asked, _summary in _LOOKS:
    ROUTES.operation(_name, "GET", _path, _summary, _call, _asked, of_runs=True)
for _name, _path, _call, _asked, _summary in _READS:
    ROUTES.operation(_name, "GET", _path, _summary, _call, _asked)
for _name, _method, _path, _call, _asked, _body, _summary in _CHANGES:
    ROUTES.operation(_name, _method, _path, _summary, _call, _asked, _body, role="operator")
ROUTES.operation(
    "report_of_run", "GET", "/api/runs/{run}/report", "The executive report", report_of, RunQuery,
    of_runs=True, media="text/markdown",
)  # fmt: skip
ROUTES.operation(
    "give_artifact", "GET", "/api/runs/{run}/artifacts/{artifact}", "One of them, to be kept",
    open_artifact, ArtifactQuery, media=BYTES, gives_file=True,
)  # fmt: skip


def routes() -> list[Route]:
    """Return the table, with the route of its description."""
    table = Routes(ROUTES)

    @table.get("/api/openapi.json", "This description")
    def describe_api(desk: AppState) -> dict[str, Any]:
        return describe(table, desk.version)

    return table
