"""All routes of the API, and the OpenAPI document that is made from them and from the structs they name."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import fields
from starlette.requests import Request
from starlette.responses import Response

from fanfold.api.approvals import ErrorDocument, RefusedDocument
from fanfold.server import history_routes, run_routes
from fanfold.server.api import NoParameters, Route, Routes
from fanfold.server.requests import MAX_KEY_CHARS, UNUSABLE, AppState
from fanfold.server.run_routes import RunQuery
from fanfold.server.streams import MAX_NUMBER, Streams

REFERENCE = "#/components/schemas/{name}"
ERRORS = {
    "400": "What was sent cannot be read, or means nothing",
    "401": "No token, or none that counts",
    "403": "The token, the page or the recipe may not do this",
    "404": "There is no such thing",
    "405": "Not for this path",
    "408": "The body did not arrive",
    "409": "Things are not as they would have to be",
    "413": "Too large",
    "415": "Not JSON",
    "421": "Another host was meant",
    "422": "A recipe, or a key, cannot be used",
    "500": "A fault of the server",
    "503": "Too many streams, or the server was stopped",
}


def describe(routes: list[Route], version: str) -> dict[str, Any]:
    """The whole document."""
    types = [ErrorDocument, RefusedDocument, *(one.answer for one in routes if one.answer is not None)]
    types += [one.body for one in routes if one.body is not None]
    types += [one.asked for one in routes]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    known = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, known, components)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    for kind in {one.asked for one in routes}:
        components.pop(kind.__name__, None)  # parameters, not documents
    return {
        "openapi": "3.1.0",
        "info": {"title": "Fanfold", "version": version},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, known: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"} if route.answer is None else known[route.answer]
    good = {"description": "Done", "content": {route.media: {"schema": schema}}}
    errors = dict.fromkeys(ERRORS, known[ErrorDocument]) | {str(UNUSABLE): known[RefusedDocument]}
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": _parameters(route, components),
        "responses": {
            str(route.status): good,
            **{
                status: {"description": words, "content": {"application/json": {"schema": errors[status]}}}
                for status, words in ERRORS.items()
            },
        },
    }
    if route.body is not None:
        content = {"application/json": {"schema": known[route.body]}}
        operation["requestBody"] = {"required": True, "content": content}
        operation["parameters"].append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "schema": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": MAX_KEY_CHARS,
                    "pattern": "^[!-~]+$",
                },
            }
        )
    return operation


def _parameters(route: Route, components: dict[str, Any]) -> list[dict[str, Any]]:
    properties = components[route.asked.__name__]["properties"]
    found = []
    for field in fields(route.asked):
        in_path = "{" + field.encode_name + "}" in route.segments
        schema = {key: value for key, value in properties[field.encode_name].items() if key != "description"}
        one = {
            "name": field.encode_name,
            "in": "path" if in_path else "query",
            "required": in_path or field.required,
            "schema": _without_null(schema),
        }
        described = properties[field.encode_name].get("description")
        found.append({**one, "description": described} if described else one)
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that may be left out is left out, not null."""
    choices = schema.get("anyOf")
    if choices is None:
        return schema
    kept = [one for one in choices if one != {"type": "null"}]
    return kept[0] if len(kept) == 1 else {**schema, "anyOf": kept}


# -----------------------------------------------------------------------------------------------------------
# The table of routes

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
    """Return the table, with the route of its description."""
    table = Routes([*history_routes.ROUTES, *run_routes.ROUTES])
    table += STREAMS

    @table.get("/api/openapi.json", "This description")
    def describe_api(desk: AppState) -> dict[str, Any]:
        return describe(table, desk.version)

    return table
