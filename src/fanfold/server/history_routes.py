"""Looking at runs."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from fanfold.api.addresses import find_run
from fanfold.api.approvals import PendingQuestions
from fanfold.api.archives import AuditedRun, ImportResult, export_run, import_run, replay_run
from fanfold.api.changes import diff
from fanfold.api.explain import explain_run, explain_step, what_if
from fanfold.api.graph import Drawing, draw_run, parse_opened
from fanfold.api.history import (
    EventPage,
    FoundOutputs,
    RunCost,
    RunPage,
    inspect_found,
    page_of_events,
    page_of_runs,
    query,
    read_step_log,
    run_cost,
    transcript,
)
from fanfold.api.overview import (
    AgentsDocument,
    Comparison,
    Home,
    RecordedRecipe,
    all_questions,
    compare_runs,
    recorded_recipe,
    session_transcript,
    show_agents,
    show_home,
    show_step,
)
from fanfold.api.report import executive_report
from fanfold.api.run_documents import InspectDocument, RunChanges
from fanfold.api.run_options import PRINTABLE, RunOptions, Word
from fanfold.api.spellings import RunWords, SpelledAction, Spellings, StartWords, spell, spell_start
from fanfold.api.step_documents import ExplainedRun, ExplainedStep, StepPage
from fanfold.api.system import Examination
from fanfold.api.transcripts import Transcript
from fanfold.engine.forecast_documents import WhatIf
from fanfold.kernel.events import Envelope
from fanfold.kernel.plan import JSON
from fanfold.server.api import NoParameters, Routes
from fanfold.server.requests import AppState
from fanfold.server.run_routes import (
    Answer,
    Comment,
    Count,
    Number,
    RecipeName,
    RunAt,
    RunName,
    RunQuery,
    Seen,
    Status,
    StepAt,
    StepPath,
    StepQuery,
    Words,
)
from fanfold.store.search import Filters

ROUTES = Routes()
MAX_PAGE_BYTES = 64 * 1024 * 1024
"""Of a run that is taken in over HTTP; `fanfold import` takes larger ones."""
MAX_LOGGED = 5_000


class RunsQuery(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    status: Status | None = None
    recipe: RecipeName | None = None
    since: Annotated[str, Meta(max_length=40, description="12h, 7d, or a date.")] = ""
    q: Words = ""
    limit: Count = 50
    cursor: RunName | None = None


class InspectQuery(RunAt, frozen=True, forbid_unknown_fields=True, kw_only=True):
    state: Annotated[bool, Meta(description="Also what the scheduler knows.")] = False


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


@ROUTES.look("/api/runs", "Root runs, newest first")
def list_runs(desk: AppState, asked: RunsQuery) -> RunPage:
    return page_of_runs(
        desk.history,
        status=asked.status,
        recipe=asked.recipe,
        since=asked.since,
        words=asked.q,
        limit=asked.limit,
        cursor=asked.cursor,
    )


@ROUTES.look("/api/runs/{run}", "One run with its steps, outputs and child runs")
def inspect_run(desk: AppState, asked: InspectQuery) -> InspectDocument:
    found = find_run(desk.history, asked.run, asked.at)
    return inspect_found(desk.history, found, with_state=asked.state)


@ROUTES.look("/api/runs/{run}/recipe", "The recipe and inputs that a run recorded")
def show_recorded_recipe(desk: AppState, asked: RunQuery) -> RecordedRecipe:
    return recorded_recipe(desk.history, asked.run)


@ROUTES.look("/api/runs/{run}/graph", "The picture of a run")
def draw_graph(desk: AppState, asked: GraphQuery) -> Drawing:
    found = find_run(desk.history, asked.run, asked.at)
    return draw_run(found.tree, found.run, parse_opened(asked.open))


@ROUTES.look("/api/runs/{run}/events", "What was recorded, in pieces")
def list_events(desk: AppState, asked: EventsQuery) -> EventPage:
    return page_of_events(desk.history, asked.run, after=asked.after, before=asked.before, limit=asked.limit)


@ROUTES.look("/api/runs/{run}/steps/{step}", "One step with everything known of it")
def inspect_step(desk: AppState, asked: StepAt) -> StepPage:
    return show_step(desk.history, asked.run, asked.step, asked.at)


@ROUTES.look("/api/runs/{run}/steps/{step}/log", "What was recorded about a step")
def log_of_step(desk: AppState, asked: StepQuery) -> StepLog:
    found = read_step_log(desk.history, asked.run, asked.step)
    return StepLog(found[:MAX_LOGGED], max(0, len(found) - MAX_LOGGED))


@ROUTES.look("/api/runs/{run}/steps/{step}/transcript", "What an agent was told, said and did")
def read_transcript(desk: AppState, asked: TranscriptQuery) -> Transcript:
    return transcript(desk.history, asked.run, asked.step, asked.attempt, asked.at)


@ROUTES.look("/api/runs/{run}/explain", "Why a run is where it is")
def explain(desk: AppState, asked: RunQuery) -> ExplainedRun:
    return explain_run(desk.history, asked.run)


@ROUTES.look("/api/runs/{run}/steps/{step}/explain", "Why a step is where it is")
def explain_one(desk: AppState, asked: StepQuery) -> ExplainedStep:
    return explain_step(desk.history, asked.run, asked.step)


@ROUTES.look("/api/runs/{run}/diff", "What steps changed in files")
def show_changes(desk: AppState, asked: ChangesQuery) -> RunChanges:
    return diff(desk.history, asked.run, asked.step)


@ROUTES.look("/api/runs/{run}/cost", "Who spent what")
def cost_of_run(desk: AppState, asked: RunAt) -> RunCost:
    found = find_run(desk.history, asked.run, asked.at)
    return run_cost(found.tree, found.run)


@ROUTES.look("/api/runs/{run}/report", "The executive report", media="text/markdown")
def report_of_run(desk: AppState, asked: RunQuery) -> str:
    found = find_run(desk.history, asked.run)
    return executive_report(found.tree, found.run, owned=desk.history.has_owner(found.root_id))


@ROUTES.look("/api/runs/{run}/export", "The run as one file", media="text/html", attached="run.html")
def export(desk: AppState, asked: RunQuery) -> str:
    return export_run(desk.history, asked.run, desk.version)


@ROUTES.change("POST", "/api/import", "Take in a run from a file", status=201, body_bytes=MAX_PAGE_BYTES)
def take_in(desk: AppState, body: ImportBody) -> ImportResult:
    return import_run(desk.fresh(), body.page.encode())


@ROUTES.look("/api/runs/{run}/verify", "The log checked against every invariant")
def verify_run(desk: AppState, asked: RunQuery) -> AuditedRun:
    return replay_run(desk.history, asked.run, checked=True)


@ROUTES.look("/api/whatif/{run}", "A run with another number of slots")
def foresee_slots(desk: AppState, asked: SlotsQuery) -> WhatIf:
    return what_if(desk.history, asked.run, asked.max_concurrency)


@ROUTES.look("/api/compare/{a}/{b}", "Two runs side by side")
def compare(desk: AppState, asked: PairQuery) -> Comparison:
    return compare_runs(desk.history, asked.a, asked.b)


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


@ROUTES.look("/api/home", "What needs you, what runs, what was spent")
def home(desk: AppState) -> Home:
    return show_home(desk.history)


@ROUTES.look("/api/approvals", "Questions that wait for an answer")
def list_questions(desk: AppState) -> PendingQuestions:
    return all_questions(desk.history)


@ROUTES.look("/api/search", "Outputs with some words, best match first")
def search(desk: AppState, asked: SearchQuery) -> FoundOutputs:
    given = structs.asdict(asked)
    words, run, most = (given.pop(name) for name in ("q", "run", "k"))
    return query(desk.history, words.split(), Filters(**given), run=run, most=most)


@ROUTES.look("/api/agents", "Roles, and agents at work")
def list_agents(desk: AppState) -> AgentsDocument:
    return show_agents(desk.fresh(), desk.history)


@ROUTES.look("/api/agents/{session}", "The conversation of a session")
def read_session(desk: AppState, asked: SessionQuery) -> Transcript:
    return session_transcript(desk.history, asked.session)


@ROUTES.get("/api/system", "What this installation is made of")
def examine(desk: AppState) -> Examination:
    return desk.examine()


@ROUTES.change("POST", "/api/copy", "How to do something from elsewhere", role="viewer")
def copy_as(body: CopyBody) -> Spellings:
    if body.action == "run":
        usual = structs.asdict(RunOptions())
        options = {name: one for name, one in structs.asdict(body.options).items() if one != usual[name]}
        return spell_start(
            StartWords(
                recipe=body.recipe or "RECIPE",
                inputs=body.inputs,
                options=options,
                script=body.script,
                yes=body.yes,
            )
        )
    return spell(
        body.action,
        RunWords(
            run=body.run or "RUN",
            step=body.step,
            choice=body.choice,
            comment=body.comment,
            text=body.text,
            seen=body.seen,
            yes=body.yes,
        ),
    )
