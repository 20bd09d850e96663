"""All routes of the API."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from fanfold.server.desk import Desk
from fanfold.server.endpoints import history, overview, recipes, run_pages, runs
from fanfold.server.endpoints.parameters import NoParameters, RunAsked
from fanfold.server.openapi import describe
from fanfold.server.routes import Route, get, text

RUN_STREAM = "/api/runs/{run}/stream"
PROJECT_STREAM = "/api/stream"


class StreamAsked(RunAsked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, le=2**53, description="As Last-Event-ID, which wins.")] = 0


class ProjectStreamAsked(NoParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, le=2**53, description="As Last-Event-ID, which wins.")] = 0


def follow_run(desk: Desk, asked: StreamAsked) -> str:
    """Described here; `streams` answers, since what it gives has no end."""
    raise NotImplementedError


def follow_project(desk: Desk, asked: ProjectStreamAsked) -> str:
    """As `follow_run`."""
    raise NotImplementedError


STREAMS = [
    text(RUN_STREAM, "What a run records, live", StreamAsked, "text/event-stream", follow_run),
    text(PROJECT_STREAM, "Which runs move, live", ProjectStreamAsked, "text/event-stream", follow_project),
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
