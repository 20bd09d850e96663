"""Looking at runs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, structs

from fanfold.kernel.events import Envelope
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.archives.transfer import Imported, export_run, import_run
from fanfold.runtime.operations.history.audits import replay_run
from fanfold.runtime.operations.history.explain import explain_run, explain_step
from fanfold.runtime.operations.history.logs import read_step_log
from fanfold.runtime.operations.history.pages import page_of_events, page_of_runs
from fanfold.runtime.operations.history.runs import inspect_found
from fanfold.runtime.operations.history.transcripts import transcript
from fanfold.runtime.operations.history.whatif import what_if
from fanfold.runtime.operations.overview.compare import compare_runs
from fanfold.runtime.operations.overview.steps import show_step
from fanfold.runtime.operations.runs.files.changes import diff
from fanfold.runtime.views.audits import AuditedRun
from fanfold.runtime.views.graph.drawing import Drawing
from fanfold.runtime.views.graph.run_boxes import draw_run, parse_opened
from fanfold.runtime.views.pages import EventPage, RunPage
from fanfold.runtime.views.recipes.forecasts import WhatIf
from fanfold.runtime.views.runs.changes import RunChanges
from fanfold.runtime.views.runs.comparison import Comparison
from fanfold.runtime.views.runs.costs import RunCost, run_cost
from fanfold.runtime.views.runs.documents import InspectDocument
from fanfold.runtime.views.runs.report import report_markdown
from fanfold.runtime.views.sessions.transcripts import Transcript
from fanfold.runtime.views.steps.explanations import ExplainedRun, ExplainedStep
from fanfold.runtime.views.steps.pages import StepPage
from fanfold.server.desk import Desk
from fanfold.server.endpoints.parameters import (
    Count,
    NoParameters,
    Number,
    RecipeName,
    RunAsked,
    RunAt,
    RunName,
    Status,
    StepAsked,
    StepAt,
    StepPath,
    Words,
)
from fanfold.server.routes import Route, change, look, text

MAX_PAGE_BYTES = 64 * 1024 * 1024
"""Of a run that is taken in over HTTP; `fanfold import` takes larger ones."""
MAX_LOGGED = 5_000


class RunsAsked(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    status: Status | None = None
    recipe: RecipeName | None = None
    q: Words = ""
    limit: Count = 50
    cursor: RunName | None = None


class InspectAsked(RunAt, frozen=True, forbid_unknown_fields=True, kw_only=True):
    state: Annotated[bool, Meta(description="Also what the scheduler knows.")] = False


class StepLog(Struct, frozen=True):
    """What its run and its sessions recorded about a step. `left_off` later events are not here."""

    items: list[Envelope]
    left_off: int


class ImportBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file that an export gave, as text."""

    page: Annotated[str, Meta(max_length=MAX_PAGE_BYTES)]


class EventsAsked(RunAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    before: Number | None = None
    limit: Count = 200


class GraphAsked(RunAt, frozen=True, forbid_unknown_fields=True, kw_only=True):
    open: Annotated[
        str,
        Meta(
            max_length=20_000,
            pattern=r"^[^\x00-\x1f\x7f]*$",
            description="path,path,-path: opened, and closed.",
        ),
    ] = ""


class TranscriptAsked(StepAt, frozen=True, forbid_unknown_fields=True, kw_only=True):
    attempt: Annotated[int, Meta(ge=1, le=1_000)] | None = None


class ChangesAsked(RunAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    step: StepPath | None = None


class SlotsAsked(RunAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_concurrency: Annotated[int, Meta(ge=1, le=1_024)]


class PairAsked(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    a: RunName
    b: RunName


def list_runs(desk: Desk, asked: RunsAsked) -> RunPage:
    return page_of_runs(
        desk.history,
        status=asked.status,
        recipe=asked.recipe,
        words=asked.q,
        limit=asked.limit,
        cursor=asked.cursor,
    )


def inspect_run(desk: Desk, asked: InspectAsked) -> InspectDocument:
    found = find_run(desk.history, asked.run, asked.at)
    return inspect_found(desk.history, found, with_state=asked.state)


def draw_graph(desk: Desk, asked: GraphAsked) -> Drawing:
    found = find_run(desk.history, asked.run, asked.at)
    return draw_run(found.tree, found.run, parse_opened(asked.open))


def list_events(desk: Desk, asked: EventsAsked) -> EventPage:
    return page_of_events(desk.history, asked.run, after=asked.after, before=asked.before, limit=asked.limit)


def inspect_step(desk: Desk, asked: StepAt) -> StepPage:
    return show_step(desk.history, asked.run, asked.step, asked.at)


def log_of_step(desk: Desk, asked: StepAsked) -> StepLog:
    found = read_step_log(desk.history, asked.run, asked.step)
    return StepLog(found[:MAX_LOGGED], max(0, len(found) - MAX_LOGGED))


def read_transcript(desk: Desk, asked: TranscriptAsked) -> Transcript:
    return transcript(desk.history, asked.run, asked.step, asked.attempt, asked.at)


def explain(desk: Desk, asked: RunAsked) -> ExplainedRun:
    return explain_run(desk.history, asked.run)


def explain_one(desk: Desk, asked: StepAsked) -> ExplainedStep:
    return explain_step(desk.history, asked.run, asked.step)


def show_changes(desk: Desk, asked: ChangesAsked) -> RunChanges:
    return diff(desk.history, asked.run, asked.step)


def cost_of_run(desk: Desk, asked: RunAt) -> RunCost:
    found = find_run(desk.history, asked.run, asked.at)
    return run_cost(found.tree, found.run)


def report_of_run(desk: Desk, asked: RunAsked) -> str:
    found = find_run(desk.history, asked.run)
    return report_markdown(found.tree, found.run)


def export(desk: Desk, asked: RunAsked) -> str:
    return export_run(desk.history, asked.run, desk.version)


def take_in(desk: Desk, asked: NoParameters, body: ImportBody) -> Imported:
    del asked
    return import_run(desk.fresh(), body.page.encode())


def verify_run(desk: Desk, asked: RunAsked) -> AuditedRun:
    return replay_run(desk.history, asked.run, checked=True)


def foresee_slots(desk: Desk, asked: SlotsAsked) -> WhatIf:
    return what_if(desk.history, asked.run, asked.max_concurrency)


def compare(desk: Desk, asked: PairAsked) -> Comparison:
    return compare_runs(desk.history, asked.a, asked.b)


_RUN = "/api/runs/{run}"
ROUTES: list[Route] = [
    look("/api/runs", "Root runs, newest first", RunsAsked, RunPage, list_runs),
    look(_RUN, "One run with its steps, outputs and child runs", InspectAsked, InspectDocument, inspect_run),
    look(f"{_RUN}/graph", "The picture of a run", GraphAsked, Drawing, draw_graph),
    look(f"{_RUN}/events", "What was recorded, in pieces", EventsAsked, EventPage, list_events),
    look(f"{_RUN}/steps/{{step}}", "One step with everything known of it", StepAt, StepPage, inspect_step),
    look(
        f"{_RUN}/steps/{{step}}/transcript",
        "What an agent was told, said and did",
        TranscriptAsked,
        Transcript,
        read_transcript,
    ),
    look(
        f"{_RUN}/steps/{{step}}/explain", "Why a step is where it is", StepAsked, ExplainedStep, explain_one
    ),
    look(f"{_RUN}/steps/{{step}}/log", "What was recorded about a step", StepAsked, StepLog, log_of_step),
    look(f"{_RUN}/explain", "Why a run is where it is", RunAsked, ExplainedRun, explain),
    look(f"{_RUN}/diff", "What steps changed in files", ChangesAsked, RunChanges, show_changes),
    look(f"{_RUN}/cost", "Who spent what", RunAt, RunCost, cost_of_run),
    text(f"{_RUN}/report", "The executive report", RunAsked, "text/markdown", report_of_run),
    structs.replace(
        text(f"{_RUN}/export", "The run as one file", RunAsked, "text/html", export), attached="run.html"
    ),
    structs.replace(
        change(
            "POST",
            "/api/import",
            "Take in a run from a file",
            (NoParameters, ImportBody, Imported),
            take_in,
            status=201,
        ),
        body_bytes=MAX_PAGE_BYTES,
    ),
    look(f"{_RUN}/verify", "The log checked against every invariant", RunAsked, AuditedRun, verify_run),
    look("/api/whatif/{run}", "A run with another number of slots", SlotsAsked, WhatIf, foresee_slots),
    look("/api/compare/{a}/{b}", "Two runs side by side", PairAsked, Comparison, compare),
]
