"""All routes of the API."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from fanfold.server.desk import Desk
from fanfold.server.endpoints import artifacts, history, overview, recipes, run_pages, runs
from fanfold.server.endpoints.parameters import NoParameters, RunAsked
from fanfold.server.openapi import describe
from fanfold.server.routes import Route, get, stream
from fanfold.server.streams import MAX_NUMBER, Streams

After: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_NUMBER, description="As Last-Event-ID, which wins.")]


class StreamAsked(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: After = 0


class RunStreamAsked(RunAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: After = 0


def follow_run(streams: Streams, asked: RunStreamAsked, request: Request) -> Response:
    return streams.of_run(asked.run, asked.after, request)


def follow_project(streams: Streams, asked: StreamAsked, request: Request) -> Response:
    return streams.of_project(asked.after, request)


STREAMS = [
    stream("/api/runs/{run}/stream", "What a run records, live", RunStreamAsked, follow_run),
    stream("/api/stream", "Which runs move, live", StreamAsked, follow_project),
]


def routes() -> list[Route]:
    """The table, with the description of itself."""
    table = [
        *overview.ROUTES,
        *recipes.ROUTES,
        *runs.ROUTES,
        *history.ROUTES,
        *run_pages.ROUTES,
        *artifacts.ROUTES,
        *STREAMS,
    ]

    def describe_api(desk: Desk, asked: NoParameters) -> dict[str, Any]:
        del asked
        return describe(table, desk.version)

    table.append(get("/api/openapi.json", "This description", NoParameters, dict[str, Any], describe_api))
    return table
