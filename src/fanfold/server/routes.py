"""All routes of the API: what each takes, and the operation that answers it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, structs
from starlette.requests import Request
from starlette.responses import Response

from fanfold.agents.script import Script
from fanfold.api import archives, authoring, explain, history, overview, run_handle
from fanfold.api.approvals import AnswerResult
from fanfold.api.changes import apply, diff, list_artifacts, open_artifact, undo
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
from fanfold.api.history import find_run
from fanfold.api.ownership import resume_detached, run_in_background
from fanfold.api.permission import permit_adopted
from fanfold.api.project import Project
from fanfold.api.run_documents import RunHeadDocument, changes_below, run_head
from fanfold.api.run_handle import reply
from fanfold.api.run_options import PRINTABLE, RaisedLimits, RunOptions, Word, check_raised
from fanfold.api.schedules import list_schedules
from fanfold.api.spellings import FormValues, SpelledAction, Spellings, spell
from fanfold.api.start import forecast_run, start, start_consent
from fanfold.api.step_documents import RunTable, Timeline, run_table, timeline
from fanfold.api.suites import list_comparisons
from fanfold.api.system import Examination
from fanfold.api.workers import list_workers
from fanfold.engine.dry_run import DryRun
from fanfold.engine.run_tree import wall_clock_ms
from fanfold.errors import AuthorError
from fanfold.kernel.events import Envelope
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import RUN_TERMINAL
from fanfold.language.inputs import bind_known
from fanfold.server.api import Method, Route, Routes, describe
from fanfold.server.console_files import BYTES
from fanfold.server.requests import AppState
from fanfold.server.streams import MAX_NUMBER, Streams
from fanfold.steps.records import FileChange
from fanfold.store.protocol import RunHead
from fanfold.store.search import Filters

ROUTES = Routes()
_Row: TypeAlias = tuple[str, str, Callable[..., Any], str, str]

# -----------------------------------------------------------------------------------------------------------
# Types of parameters: parts of the path and of the query, with their bounds.

RunName: TypeAlias = Annotated[
    str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$", description="An id, a unique prefix of one, or `last`.")
]
RecipeName: TypeAlias = Annotated[
    str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,63}(@v?[1-9][0-9]{0,8})?$", description="`name` or `name@2`.")
]
StepPath: TypeAlias = Annotated[
    str, Meta(max_length=2_000, pattern=PRINTABLE, description="A slash in it is %2F.")
]
Number: TypeAlias = Annotated[int, Meta(ge=1, le=2**53)]
At: TypeAlias = Annotated[int, Meta(ge=1, le=2**53, description="Show the run after this event.")]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=500)]
Words: TypeAlias = Annotated[str, Meta(max_length=1_000, pattern=r"^[^\x00-\x1f\x7f]*$")]
Status: TypeAlias = Literal[
    "pending", "running", "waiting", "paused", "completed", "partial", "failed", "cancelled", "timed_out"
]


# -----------------------------------------------------------------------------------------------------------
# Recipes: list, show, check, forecast, save.

Text = Annotated[str, Meta(max_length=512 * 1024)]


class RecipeText(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The text of a recipe in an editor."""

    text: Text
    name: RecipeName = "recipe"


class RecipeEdit(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new text. `seen` is the digest of the text that it replaces, None for a new recipe."""

    text: Text
    seen: Annotated[str, Meta(max_length=64)] | None


class CaptureBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The subagents of an open run that become a recipe, saved if it has a `name`. `request`: the task."""

    subagents: Annotated[list[Word], Meta(max_length=500)] = []
    name: RecipeName | None = None
    replace: bool = False
    request: Annotated[str, Meta(max_length=100_000)] = ""


@ROUTES.change("POST", "/api/runs/{run}/capture", "Capture delegated work as a recipe")
def capture_run(state: AppState, run: RunName, body: CaptureBody) -> authoring.CaptureResult:
    return authoring.capture(
        state.fresh(),
        run,
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
    """Inputs and options of a dry run."""

    inputs: dict[str, JSON] = {}
    options: RunOptions = RunOptions()
    scripted: bool = False


class StartBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run to start. With `script`, scripted agents replace models. `yes` permits the effects of the run.

    `seen` is the digest from the dry run: the start is refused if the effects are different now.
    """

    recipe: RecipeName
    inputs: dict[str, JSON] = {}
    options: RunOptions = RunOptions()
    script: dict[str, JSON] | None = None
    yes: bool = False
    seen: Seen | None = None


class ResumeBody(RaisedLimits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits to raise. `yes` permits the effects of an adopted run; `wait` keeps waits for providers."""

    wait: bool = False
    yes: bool = False


class AgentsBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The agents of the new run, if they are different from those of the other run."""

    model: Word | None = None
    agent_backend: Word | None = None
    script: dict[str, JSON] | None = None

    def chosen(self) -> ChosenAgents:
        script = _script(self.script)
        file = "" if script is None else "script"
        return ChosenAgents(model=self.model, backend=self.agent_backend, script=script, script_file=file)


class ForkBody(AgentsBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The changes of a fork: its first step, inputs, prompts of top-level steps, and agents.

    `turn` and `say` continue the conversation of an agent after a turn, with another message.
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
    """The changes of a retry."""

    dry_run: bool = False
    yes: bool = False
    seen: Seen | None = None


class UndoBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The merges to revert: those of one step, or all of the run."""

    step: StepPath | None = None
    dry_run: bool = False


class AnswerBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The answer of a person to the question whose digest is `seen`.

    To pick one of its choices, set `choice`, and `decision` to `approve`.
    """

    decision: Literal["approve", "reject"]
    choice: Annotated[str, Meta(max_length=1_000)] | None = None
    comment: Comment | None = None
    edit: JSON = None
    seen: Seen


class ReplyBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The answer to an `ask` step: text, one of its choices, or JSON if the step has a schema."""

    text: Answer
    seen: Seen | None = None


class ApplyBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    dry_run: bool = False


class ForeseenRun(DryRun, frozen=True, kw_only=True):
    """A dry run, and the effects that need permission; `seen` is the digest of these effects."""

    needs: list[str]
    totals: list[str]
    seen: str


class StartedRun(Struct, frozen=True):
    """A run that a process of its own drives."""

    run_id: str


class ForkedRun(Struct, frozen=True):
    """The new run, or None for a dry run; and the forecast of reused and repeated steps."""

    run_id: str | None
    forecast: ForkForecast


class ActionResult(Struct, frozen=True):
    """The result of an action, as a status and a sentence."""

    run_id: str
    status: str
    said: str
    ok: bool = True


@ROUTES.change("POST", "/api/recipes/{name}/dry-run", "What a run would do")
def foresee(state: AppState, name: RecipeName, body: DryRunBody) -> ForeseenRun:
    project = state.fresh()
    checked = overview.find_named(project, name, scripted=body.scripted)
    plan = checked.runnable()
    inputs, missing = bind_known(plan, body.inputs)
    options = body.options.checked(project.config, script="" if body.scripted else None)
    found = forecast_run(project, checked, inputs, options, missing)[0]
    consent = start_consent(project, plan, inputs, options)
    request = consent.request
    return ForeseenRun(
        **structs.asdict(found), needs=consent.needs, totals=list(request.totals), seen=request.digest
    )


@ROUTES.change("POST", "/api/runs", "Start a recipe", status=201)
def start_run(state: AppState, body: StartBody, traceparent: str) -> StartedRun:
    project = state.fresh()
    script = _script(body.script)
    plan = overview.find_named(project, body.recipe, scripted=script is not None).runnable()
    options = body.options.checked(
        project.config, script=script, script_file="" if script is None else "script"
    )
    options = structs.replace(options, traceparent=traceparent)
    return StartedRun(
        run_in_background(start(project, plan, body.inputs, options, yes=body.yes, seen=body.seen)).root
    )


def _script(given: dict[str, JSON] | None) -> str | None:
    """Return the text of a script; raise now if it contains an error, not when its step starts."""
    return None if given is None else Script.load(msgspec.json.encode(given), "script").source


@ROUTES.change("POST", "/api/runs/{run}/pause", "Pause a whole run")
async def pause_run(state: AppState, run: RunName) -> ActionResult:
    return _action_result(await run_handle.pause(state.fresh(), run))


@ROUTES.change("POST", "/api/runs/{run}/cancel", "Cancel a run")
async def cancel_run(state: AppState, run: RunName) -> ActionResult:
    return _action_result(await run_handle.cancel(state.fresh(), run))


def _action_result(head: RunHead) -> ActionResult:
    return ActionResult(head.run_id, head.status, f"run {head.run_id} is {head.status}")


@ROUTES.change("POST", "/api/runs/{run}/resume", "Continue a run")
def resume_run(state: AppState, run: RunName, body: ResumeBody) -> ActionResult:
    project = state.fresh()
    root = project.resolve(run).root_run_id
    seen = project.view(root)
    if seen.root.status in RUN_TERMINAL:
        raise AuthorError("run.ended", f"run {root} is already {seen.root.status}", hint="fork or retry it")
    raised = check_raised(project, seen, body.limits())
    permit_adopted(project, seen, yes=body.yes, prompter=None)
    resume_detached(project, root, raised, keep_waits=body.wait)
    return ActionResult(root, "running", f"run {root} continues in the background")


@ROUTES.change("POST", "/api/runs/{run}/fork", "Run again from one step")
def fork_run(state: AppState, run: RunName, body: ForkBody) -> ForkedRun:
    project = state.fresh()
    found = find_run(project, run)
    step = None if body.step is None else found.tree_path(body.step)
    at = at_turn(body.turn, body.say)
    return _fork(project, plan_fork(found.tree, step, body.inputs, body.prompt, at, body.chosen()), body)


@ROUTES.change("POST", "/api/runs/{run}/retry", "Run the failed steps again")
def retry_run(state: AppState, run: RunName, body: RetryBody) -> ForkedRun:
    project = state.fresh()
    found = find_run(project, run)
    return _fork(project, plan_retry(project, found.tree, body.chosen()), body)


def _fork(project: Project, fork: Fork, body: ForkBody | RetryBody) -> ForkedRun:
    forecast = forecast_fork(project, fork)
    if body.dry_run:
        return ForkedRun(None, forecast)
    return ForkedRun(
        run_in_background(start_fork(project, fork, yes=body.yes, seen=body.seen)).root, forecast
    )


@ROUTES.change("POST", "/api/runs/{run}/approvals/{step}", "Answer a question")
async def answer_question(state: AppState, run: RunName, step: StepPath, body: AnswerBody) -> AnswerResult:
    decision = body.choice or body.decision
    return await run_handle.answer(
        state.fresh(), run, step, decision, body.comment, body.edit, seen=body.seen
    )


# -----------------------------------------------------------------------------------------------------------
# Parts of the page of a run: its head, table, timeline and files, and the heartbeat of its owner.

ArtifactName: TypeAlias = Annotated[
    str, Meta(max_length=300, pattern=PRINTABLE, description="Its `name` in the list. A slash in it is %2F.")
]


class RunOutput(Struct, frozen=True):
    """The output of a run, and the file changes of its steps and child runs, with paths in the tree."""

    output: JSON
    changes: list[FileChange]


@ROUTES.look("/api/runs/{run}/output", "The output of a run and its changes")
def show_output(state: AppState, run: RunName, at: At | None = None) -> RunOutput:
    tree, found = find_run(state.history, run, at)
    output = tree.blobs.get(found.output) if found.output is not None else None
    return RunOutput(output, changes_below(tree, found))


@ROUTES.look("/api/runs/{run}/head", "The status of a run")
def show_head(state: AppState, run: RunName, at: At | None = None) -> RunHeadDocument:
    found = find_run(state.history, run, at)
    store = state.history.store
    head = run_head(found.tree, found.run, reach=store.reach(found.root_id))
    kept = store.head(found.run.id)
    # No event names the run that this is a fork of, only the row of the run.
    return head if kept is None else structs.replace(head, forked_from=kept.forked_from)


@ROUTES.look("/api/runs/{run}/table", "The steps of a run, without outputs")
def show_table(state: AppState, run: RunName, at: At | None = None) -> RunTable:
    found = find_run(state.history, run, at)
    return run_table(found.tree, found.run, found.tree.state.now)


@ROUTES.look("/api/runs/{run}/timeline", "The steps of a run over time")
def show_timeline(state: AppState, run: RunName, at: At | None = None) -> Timeline:
    found = find_run(state.history, run, at)
    envelopes = islice(state.history.store.tree(found.root_id), found.tree.tree_seq)
    now = found.tree.state.now if at is not None else wall_clock_ms()
    return timeline(found.tree, found.run, envelopes, now)


OpenedSteps: TypeAlias = Annotated[
    str,
    Meta(
        max_length=20_000,
        pattern=r"^[^\x00-\x1f\x7f]*$",
        description="path,path,-path: steps to open, and to close with a minus.",
    ),
]
MAX_PAGE_BYTES = 64 * 1024 * 1024
"""The largest run that can be imported over HTTP; `fanfold import` accepts larger ones."""
MAX_LOGGED = 5_000


class StepLog(Struct, frozen=True):
    """The events of a run and its sessions about one step. `left_off` counts omitted later events."""

    items: list[Envelope]
    left_off: int


class ImportBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The text of an exported file."""

    page: Annotated[str, Meta(max_length=MAX_PAGE_BYTES)]


@ROUTES.look("/api/runs/{run}/graph", "The graph of a run")
def draw_graph(state: AppState, run: RunName, at: At | None = None, open: OpenedSteps = "") -> Drawing:
    found = find_run(state.history, run, at)
    return draw_run(found.tree, found.run, parse_opened(open))


@ROUTES.look("/api/runs/{run}/steps/{step}/log", "The events of a step")
def log_of_step(state: AppState, run: RunName, step: StepPath) -> StepLog:
    found = history.read_step_log(state.history, run, step)
    return StepLog(found[:MAX_LOGGED], max(0, len(found) - MAX_LOGGED))


@ROUTES.look("/api/runs/{run}/cost", "The cost of a run, by step and model")
def cost_of_run(state: AppState, run: RunName, at: At | None = None) -> history.RunCost:
    found = find_run(state.history, run, at)
    return history.run_cost(found.tree, found.run)


@ROUTES.look("/api/runs/{run}/export", "Export a run as one file", media="text/html", attached="run.html")
def export(state: AppState, run: RunName) -> str:
    return archives.export_run(state.history, run, state.version)


@ROUTES.change("POST", "/api/import", "Import a run from a file", status=201, body_bytes=MAX_PAGE_BYTES)
def take_in(state: AppState, body: ImportBody) -> archives.ImportResult:
    return archives.import_run(state.fresh(), body.page.encode())


@ROUTES.look("/api/runs/{run}/verify", "Check the log against every invariant")
def verify_run(state: AppState, run: RunName) -> archives.AuditedRun:
    return archives.replay_run(state.history, run, checked=True)


# -----------------------------------------------------------------------------------------------------------
# Documents across runs: home, questions, search, agents, this installation.


class CopyBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An action and the values of its form."""

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


@ROUTES.look("/api/search", "Search outputs, best match first")
def search(  # noqa: PLR0913, PLR0917 - one argument for each filter
    state: AppState,
    q: Annotated[str, Meta(max_length=1_000, pattern=PRINTABLE)],
    run: RunName | None = None,
    k: Annotated[int, Meta(ge=1, le=100)] = 20,
    recipe: RecipeName | None = None,
    phase: Word | None = None,
    step: StepPath | None = None,
    role: Word | None = None,
    status: Literal["completed", "failed", "skipped", "cancelled", "timed_out"] | None = None,
    kind: Literal["output", "error", "prompt", "transcript", "any"] | None = None,
    since: Annotated[int, Meta(ge=0, le=2**53, description="Milliseconds since 1970.")] | None = None,
) -> history.FoundOutputs:
    only = Filters(recipe=recipe, phase=phase, step=step, role=role, status=status, kind=kind, since=since)
    return history.query(state.history, q.split(), only, run=run, most=k)


@ROUTES.look("/api/agents", "Roles, and running agents")
def list_agents(state: AppState) -> overview.AgentsDocument:
    return overview.show_agents(state.fresh(), state.history)


@ROUTES.get("/api/system", "The installation, the project and their problems")
def examine(state: AppState) -> Examination:
    return state.examine()


@ROUTES.change("POST", "/api/copy", "An action as CLI, HTTP, Python and MCP call", role="viewer")
def copy_as(body: CopyBody) -> Spellings:
    given = {name: one for name, one in structs.asdict(body).items() if one is not None}
    usual = structs.asdict(RunOptions())
    given["options"] = {name: one for name, one in structs.asdict(body.options).items() if one != usual[name]}
    return spell(given.pop("action"), FormValues(**given))


# -----------------------------------------------------------------------------------------------------------
# Streams

EVENTS = "text/event-stream"
After: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_NUMBER, description="Like Last-Event-ID, which wins.")]


@ROUTES.get("/api/runs/{run}/stream", "The events of a run, live", media=EVENTS, is_stream=True)
def follow_run(streams: Streams, request: Request, run: RunName, after: After = 0) -> Response:
    return streams.of_run(run, after, request)


@ROUTES.get("/api/stream", "Changes of runs of the project, live", media=EVENTS, is_stream=True)
def follow_project(streams: Streams, request: Request, after: After = 0) -> Response:
    return streams.of_project(after, request)


# -----------------------------------------------------------------------------------------------------------
# Routes that are operations of `fanfold.api`: operation id, path, function, parameters, body and summary.
# A parameter `q=words` is the argument `words` of the function.

PARAMETERS: dict[str, Any] = {
    "run": RunName, "a": RunName, "b": RunName, "session": RunName, "cursor": RunName,
    "name": RecipeName, "recipe": RecipeName, "step": StepPath, "artifact": ArtifactName,
    "at": At, "attempt": Annotated[int, Meta(ge=1, le=1_000)],
    "after": Annotated[int, Meta(ge=0, le=2**53)], "before": Number, "limit": Count,
    "max_concurrency": Annotated[int, Meta(ge=1, le=1_024)],
    "status": Status, "q": Words,
    "since": Annotated[str, Meta(max_length=40, description="12h, 7d, or a date.")],
    "state": Annotated[bool, Meta(description="Include the state of the scheduler.")],
}  # fmt: skip
"""Name in the path or the query → type; optional if the function has a default."""


def _kinds(names: str) -> dict[str, Any]:
    return {name: PARAMETERS[name.partition("=")[0]] for name in names.split()}


_LOOKS: tuple[_Row, ...] = (
    ("list_runs", "/api/runs", history.page_of_runs,
     "status recipe since q=words limit cursor", "Root runs, newest first"),
    ("inspect_run", "/api/runs/{run}", history.inspect, "run at state=with_state",
     "One run with its steps, outputs and child runs"),
    ("show_recorded_recipe", "/api/runs/{run}/recipe", overview.recorded_recipe, "run",
     "The recipe and inputs that a run recorded"),
    ("list_events", "/api/runs/{run}/events", history.page_of_events, "run after before limit",
     "Events of a run, in pages"),
    ("inspect_step", "/api/runs/{run}/steps/{step}", overview.show_step, "run step at",
     "One step with its attempts, output and usage"),
    ("read_transcript", "/api/runs/{run}/steps/{step}/transcript", history.transcript,
     "run step at attempt",
     "The prompts, replies and tool calls of an agent"),
    ("show_changes", "/api/runs/{run}/diff", diff, "run step", "File changes of steps, as a patch"),
    ("show_artifacts", "/api/runs/{run}/artifacts", list_artifacts, "run at",
     "Files that steps published as artifacts"),
    ("foresee_slots", "/api/whatif/{run}", explain.what_if, "run max_concurrency",
     "Forecast a run with more or fewer slots"),
    ("compare", "/api/compare/{a}/{b}", overview.compare_runs, "a b", "Compare two runs"),
    ("home", "/api/home", overview.show_home, "", "Open questions, running work and spending"),
    ("list_questions", "/api/approvals", overview.all_questions, "", "Open questions of all runs"),
    ("read_session", "/api/agents/{session}", overview.session_transcript, "session",
     "The conversation of a session"),
)  # fmt: skip
_READS: tuple[_Row, ...] = (
    ("list_recipes", "/api/recipes", overview.list_shelf, "",
     "Recipes of the project, the user, and built in"),
    ("show_recipe", "/api/recipes/{name}", overview.show_page, "name", "One recipe with its text and graph"),
    ("show_schedules", "/api/schedules", list_schedules, "",
     "Schedules and webhooks of the project"),
    ("list_comparisons", "/api/comparisons", list_comparisons, "",
     "Live comparisons of models, newest first"),
    # Heartbeats are no events: a response about them must not be cached until the next event.
    ("explain", "/api/runs/{run}/explain", explain.explain_run, "run", "Explain the status of a run"),
    ("explain_one", "/api/runs/{run}/steps/{step}/explain", explain.explain_step, "run step",
     "Explain the status of a step"),
    ("show_pulse", "/api/runs/{run}/pulse", overview.pulse_of, "run", "The owner of a run and its heartbeat"),
    ("list_workers", "/api/workers", list_workers, "", "The workers of the cluster"),
    ("list_pulses", "/api/pulses", overview.live_pulses, "", "The owners of running runs, with heartbeats"),
)  # fmt: skip
_CHANGES: tuple[tuple[str, Method, str, Callable[..., Any], str, type[Struct], str], ...] = (
    ("check_recipe", "POST", "/api/check", overview.try_text, "", RecipeText, "Check the text of a recipe"),
    ("save_recipe", "PUT", "/api/recipes/{name}", overview.save_text, "name", RecipeEdit, "Save a recipe"),
    ("undo_run", "POST", "/api/runs/{run}/undo", undo, "run", UndoBody, "Revert merges"),
    ("reply_to_question", "POST", "/api/runs/{run}/answers/{step}", reply, "run step", ReplyBody,
     "Answer the question of an ask step or an agent"),
    ("apply_changes", "POST", "/api/runs/{run}/steps/{step}/apply", apply, "run step", ApplyBody,
     "Merge the proposed changes of a step"),
)  # fmt: skip

for _name, _path, _call, _names, _summary in _LOOKS:
    ROUTES.operation(_name, "GET", _path, _summary, _call, _kinds(_names), of_runs=True)
for _name, _path, _call, _names, _summary in _READS:
    ROUTES.operation(_name, "GET", _path, _summary, _call, _kinds(_names))
for _name, _method, _path, _call, _names, _body, _summary in _CHANGES:
    ROUTES.operation(_name, _method, _path, _summary, _call, _kinds(_names), _body, role="operator")
ROUTES.operation(
    "report_of_run", "GET", "/api/runs/{run}/report", "The executive report", history.report_of,
    _kinds("run"), of_runs=True, media="text/markdown",
)  # fmt: skip
ROUTES.operation(
    "give_artifact", "GET", "/api/runs/{run}/artifacts/{artifact}", "Download an artifact",
    open_artifact, _kinds("run artifact=name"), media=BYTES, gives_file=True,
)  # fmt: skip


def routes() -> list[Route]:
    """Return all routes, including the route of the OpenAPI document."""
    table = Routes(ROUTES)

    @table.get("/api/openapi.json", "This OpenAPI document")
    def describe_api(state: AppState) -> dict[str, Any]:
        return describe(table, state.version)

    return table
