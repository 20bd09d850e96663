"""The OpenAPI document: made from the table of routes and the structs it names, and from nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import fields

from fanfold.api.approvals import ErrorDocument, RefusedDocument
from fanfold.server.api import Route
from fanfold.server.requests import MAX_KEY_CHARS, UNUSABLE

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
