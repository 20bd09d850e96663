"""All routes of the API."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from fanfold.server.desk import Desk
from fanfold.server.endpoints import history, overview, recipes, run_pages, runs
from fanfold.server.endpoints.parameters import NoParameters, RunAsked
from fanfold.server.openapi import describe
from fanfold.server.routes import Route, get
from fanfold.server.streams import Streams, stream


class StreamAsked(RunAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, le=2**53, description="As Last-Event-ID, which wins.")] = 0


class ProjectStreamAsked(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, le=2**53, description="As Last-Event-ID, which wins.")] = 0


STREAMS = [
    stream("/api/runs/{run}/stream", "What a run records, live", StreamAsked, Streams.follow_run),
    stream("/api/stream", "Which runs move, live", ProjectStreamAsked, Streams.follow_project),
]


def routes() -> list[Route]:
    """The table, with the description of itself."""
    table = [
        *overview.ROUTES,
        *recipes.ROUTES,
        *runs.ROUTES,
        *history.ROUTES,
        *run_pages.ROUTES,
        *STREAMS,
    ]

    def describe_api(desk: Desk, asked: NoParameters) -> dict[str, Any]:
        del asked
        return describe(table, desk.version)

    table.append(get("/api/openapi.json", "This description", NoParameters, dict[str, Any], describe_api))
    return table
