"""Looking at runs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fanfold.kernel.events import Envelope
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.archives.transfer import Imported, export_run, import_run
from fanfold.runtime.operations.history.explain import explain_run, explain_step
from fanfold.runtime.operations.history.logs import read_step_log
from fanfold.runtime.operations.history.pages import EventPage, RunPage, page_of_events, page_of_runs
from fanfold.runtime.operations.history.runs import inspect_found
from fanfold.runtime.operations.history.transcripts import transcript
from fanfold.runtime.operations.history.verify import AuditedRun, replay_run
from fanfold.runtime.operations.history.whatif import what_if
from fanfold.runtime.operations.overview.compare import Comparison, compare_runs
from fanfold.runtime.operations.overview.steps import show_step
from fanfold.runtime.operations.runs.files.changes import diff
from fanfold.runtime.views.graph.drawing import Drawing
from fanfold.runtime.views.graph.run_boxes import draw_run, parse_opened
from fanfold.runtime.views.recipes.forecasts import WhatIf
from fanfold.runtime.views.runs.changes import RunChanges
from fanfold.runtime.views.runs.costs import RunCost, run_cost
from fanfold.runtime.views.runs.documents import InspectDocument
from fanfold.runtime.views.runs.report import report_markdown
from fanfold.runtime.views.sessions.transcripts import Transcript
from fanfold.runtime.views.steps.explanations import ExplainedRun, ExplainedStep
from fanfold.runtime.views.steps.pages import StepPage
from fanfold.server.desk import Desk
from fanfold.server.endpoints.parameters import (
    Count,
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
from fanfold.server.routes import NoParameters, Routes

ROUTES = Routes()
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


@ROUTES.look("/api/runs", "Root runs, newest first")
def list_runs(desk: Desk, asked: RunsAsked) -> RunPage:
    return page_of_runs(
        desk.history,
        status=asked.status,
        recipe=asked.recipe,
        words=asked.q,
        limit=asked.limit,
        cursor=asked.cursor,
    )


@ROUTES.look("/api/runs/{run}", "One run with its steps, outputs and child runs")
def inspect_run(desk: Desk, asked: InspectAsked) -> InspectDocument:
    found = find_run(desk.history, asked.run, asked.at)
    return inspect_found(desk.history, found, with_state=asked.state)


@ROUTES.look("/api/runs/{run}/graph", "The picture of a run")
def draw_graph(desk: Desk, asked: GraphAsked) -> Drawing:
    found = find_run(desk.history, asked.run, asked.at)
    return draw_run(found.tree, found.run, parse_opened(asked.open))


@ROUTES.look("/api/runs/{run}/events", "What was recorded, in pieces")
def list_events(desk: Desk, asked: EventsAsked) -> EventPage:
    return page_of_events(desk.history, asked.run, after=asked.after, before=asked.before, limit=asked.limit)


@ROUTES.look("/api/runs/{run}/steps/{step}", "One step with everything known of it")
def inspect_step(desk: Desk, asked: StepAt) -> StepPage:
    return show_step(desk.history, asked.run, asked.step, asked.at)


@ROUTES.look("/api/runs/{run}/steps/{step}/log", "What was recorded about a step")
def log_of_step(desk: Desk, asked: StepAsked) -> StepLog:
    found = read_step_log(desk.history, asked.run, asked.step)
    return StepLog(found[:MAX_LOGGED], max(0, len(found) - MAX_LOGGED))


@ROUTES.look("/api/runs/{run}/steps/{step}/transcript", "What an agent was told, said and did")
def read_transcript(desk: Desk, asked: TranscriptAsked) -> Transcript:
    return transcript(desk.history, asked.run, asked.step, asked.attempt, asked.at)


@ROUTES.look("/api/runs/{run}/explain", "Why a run is where it is")
def explain(desk: Desk, asked: RunAsked) -> ExplainedRun:
    return explain_run(desk.history, asked.run)


@ROUTES.look("/api/runs/{run}/steps/{step}/explain", "Why a step is where it is")
def explain_one(desk: Desk, asked: StepAsked) -> ExplainedStep:
    return explain_step(desk.history, asked.run, asked.step)


@ROUTES.look("/api/runs/{run}/diff", "What steps changed in files")
def show_changes(desk: Desk, asked: ChangesAsked) -> RunChanges:
    return diff(desk.history, asked.run, asked.step)


@ROUTES.look("/api/runs/{run}/cost", "Who spent what")
def cost_of_run(desk: Desk, asked: RunAt) -> RunCost:
    found = find_run(desk.history, asked.run, asked.at)
    return run_cost(found.tree, found.run)


@ROUTES.look("/api/runs/{run}/report", "The executive report", media="text/markdown")
def report_of_run(desk: Desk, asked: RunAsked) -> str:
    found = find_run(desk.history, asked.run)
    return report_markdown(found.tree, found.run)


@ROUTES.look("/api/runs/{run}/export", "The run as one file", media="text/html", attached="run.html")
def export(desk: Desk, asked: RunAsked) -> str:
    return export_run(desk.history, asked.run, desk.version)


@ROUTES.change("POST", "/api/import", "Take in a run from a file", status=201, body_bytes=MAX_PAGE_BYTES)
def take_in(desk: Desk, body: ImportBody) -> Imported:
    return import_run(desk.fresh(), body.page.encode())


@ROUTES.look("/api/runs/{run}/verify", "The log checked against every invariant")
def verify_run(desk: Desk, asked: RunAsked) -> AuditedRun:
    return replay_run(desk.history, asked.run, checked=True)


@ROUTES.look("/api/whatif/{run}", "A run with another number of slots")
def foresee_slots(desk: Desk, asked: SlotsAsked) -> WhatIf:
    return what_if(desk.history, asked.run, asked.max_concurrency)


@ROUTES.look("/api/compare/{a}/{b}", "Two runs side by side")
def compare(desk: Desk, asked: PairAsked) -> Comparison:
    return compare_runs(desk.history, asked.a, asked.b)
