"""All routes of the API."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from fanfold.server import history_routes, run_routes
from fanfold.server.api import NoParameters, Route, Routes
from fanfold.server.openapi import describe
from fanfold.server.requests import AppState
from fanfold.server.run_routes import RunQuery
from fanfold.server.streams import MAX_NUMBER, Streams

STREAMS = Routes()
EVENTS = "text/event-stream"
After: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_NUMBER, description="As Last-Event-ID, which wins.")]


class StreamQuery(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: After = 0


class RunStreamQuery(RunQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: After = 0


@STREAMS.get("/api/runs/{run}/stream", "What a run records, live", media=EVENTS, goes_on=True)
def follow_run(streams: Streams, asked: RunStreamQuery, request: Request) -> Response:
    return streams.of_run(asked.run, asked.after, request)


@STREAMS.get("/api/stream", "Which runs move, live", media=EVENTS, goes_on=True)
def follow_project(streams: Streams, asked: StreamQuery, request: Request) -> Response:
    return streams.of_project(asked.after, request)


def routes() -> list[Route]:
    """The table, with the description of itself."""
    modules = dict.fromkeys((history_routes, run_routes, run_routes, history_routes, run_routes))
    table = Routes(route for module in modules for route in module.ROUTES)
    table += STREAMS

    @table.get("/api/openapi.json", "This description")
    def describe_api(desk: AppState) -> dict[str, Any]:
        return describe(table, desk.version)

    return table
