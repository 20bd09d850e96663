"""Looking at runs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.history.pages import page_of_events, page_of_runs
from fanfold.runtime.operations.history.runs import inspect_found
from fanfold.runtime.views.graph.drawing import Drawing
from fanfold.runtime.views.graph.run_boxes import draw_run, parse_opened
from fanfold.runtime.views.pages import EventPage, RunPage
from fanfold.runtime.views.runs import InspectDocument
from fanfold.server.desk import Desk
from fanfold.server.endpoints.parameters import (
    Count,
    Name,
    NoParameters,
    Number,
    RunAsked,
    RunAt,
    Status,
    Words,
)
from fanfold.server.routes import Route, look


class RunsAsked(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    status: Status | None = None
    recipe: Name | None = None
    q: Words = ""
    limit: Count = 50
    cursor: Name | None = None


class EventsAsked(RunAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    before: Number | None = None
    limit: Count = 200


class GraphAsked(RunAt, frozen=True, forbid_unknown_fields=True, kw_only=True):
    open: Annotated[str, Meta(max_length=20_000, description="path,path,-path: opened, and closed.")] = ""


def list_runs(desk: Desk, asked: RunsAsked) -> RunPage:
    return page_of_runs(
        desk.history,
        status=asked.status,
        recipe=asked.recipe,
        words=asked.q,
        limit=asked.limit,
        cursor=asked.cursor,
    )


def inspect_run(desk: Desk, asked: RunAt) -> InspectDocument:
    return inspect_found(desk.history, find_run(desk.history, asked.run, asked.at))


def draw_graph(desk: Desk, asked: GraphAsked) -> Drawing:
    found = find_run(desk.history, asked.run, asked.at)
    return draw_run(found.tree, found.run, parse_opened(asked.open))


def list_events(desk: Desk, asked: EventsAsked) -> EventPage:
    return page_of_events(desk.history, asked.run, after=asked.after, before=asked.before, limit=asked.limit)


ROUTES: list[Route] = [
    look("/api/runs", "Root runs, newest first", RunsAsked, RunPage, list_runs),
    look("/api/runs/{run}", "One run with its steps and child runs", RunAt, InspectDocument, inspect_run),
    look("/api/runs/{run}/graph", "The picture of a run", GraphAsked, Drawing, draw_graph),
    look("/api/runs/{run}/events", "What was recorded, in pieces", EventsAsked, EventPage, list_events),
]
