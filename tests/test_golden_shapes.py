"""The shapes that scripts, programs and models rely on do not change by accident.

`tests/golden/` has the `--help` texts, the routes of the HTTP API, the schemas of the tools for models and
the documents of `--json`. A change that is meant is recorded with

    python -m tests.test_golden_shapes

and its diff is reviewed like code. Names and docstrings of structs are not part of a shape.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from fanfold.api.agents import ModelsDocument, RoleDocument, RoleList
from fanfold.api.approvals import ErrorDocument
from fanfold.api.archives import Audit, AuditedRun, ImportResult
from fanfold.api.authoring import CaptureResult
from fanfold.api.chats import ChatAnswer
from fanfold.api.display import ListedRun, RunRow
from fanfold.api.fork import ForkForecast
from fanfold.api.history import Costs, FoundOutputs
from fanfold.api.mcp_setup import ClientSetUp
from fanfold.api.recipes import CheckReport, DraftedSpec, EditorSetUp, RecipeDocument
from fanfold.api.run_documents import (
    ApplyResult,
    InspectDocument,
    InspectStepDocument,
    RunChanges,
    RunDocument,
    Undone,
)
from fanfold.api.step_documents import ExplainedRun, ExplainedStep
from fanfold.api.subagents import Subagent
from fanfold.api.system import Examination, GcResult, InitResult, SmokeReport
from fanfold.api.tool_registry import TOOLS
from fanfold.api.transcripts import Transcript, TranscriptEntry
from fanfold.engine.dry_run import DryRun, WhatIf
from fanfold.kernel.events import Envelope
from fanfold.language.library import ListedRecipe
from fanfold.server.api import describe
from fanfold.server.routes import routes
from tools.cli_reference import help_texts, load_commands, spellings

FOLDER = Path(__file__).parent / "golden"
WIDTH = 100
DOCUMENTS: dict[str, Any] = {
    "run, resume, retry, fork": RunDocument,
    "run --dry-run": DryRun,
    "fork --dry-run": ForkForecast,
    "runs": list[ListedRun],
    "runs --all": list[RunRow],
    "pause, cancel, approve, reject, answer": RunRow,
    "inspect": InspectDocument,
    "inspect STEP": InspectStepDocument,
    "logs": Envelope,
    "explain": ExplainedRun,
    "explain STEP": ExplainedStep,
    "whatif": WhatIf,
    "query": FoundOutputs,
    "transcript": Transcript,
    "transcript --follow": TranscriptEntry,
    "costs": Costs,
    "diff": RunChanges,
    "apply": ApplyResult,
    "undo": Undone,
    "replay, verify RUN": AuditedRun,
    "verify --all": Audit,
    "import": ImportResult,
    "capture": CaptureResult,
    "plan": DraftedSpec,
    "gc": GcResult,
    "check": CheckReport,
    "list": list[ListedRecipe],
    "show": RecipeDocument,
    "agents": RoleList,
    "agents NAME": RoleDocument,
    "models": ModelsDocument,
    "spawn, wait, send, close": Subagent,
    "chat": ChatAnswer,
    "mcp install": ClientSetUp,
    "doctor": Examination,
    "smoke": SmokeReport,
    "init": InitResult,
    "schema --install": EditorSetUp,
    "an error": ErrorDocument,
}
"""Command → the document that it prints with `--json`."""
SCHEMA_KEYS = ("type", "enum", "const", "pattern", "minimum", "maximum", "minLength", "maxLength", "maxItems")


def shape_of(schema: dict[str, Any], known: dict[str, Any], inside: tuple[str, ...] = ()) -> Any:
    """Return a JSON Schema as an example would look: names of fields, and types; optional fields with `?`.

    A struct inside itself is shown as `"…"`.
    """
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return "…" if name in inside else shape_of(known[name], known, (*inside, name))
    if choices := schema.get("anyOf"):
        shapes = [shape_of(one, known, inside) for one in choices]
        return " | ".join(shapes) if all(isinstance(one, str) for one in shapes) else {"any of": shapes}
    if properties := schema.get("properties"):
        required = schema.get("required", ())
        return {
            name if name in required else f"{name}?": shape_of(one, known, inside)
            for name, one in properties.items()
        }
    if schema.get("type") == "array":
        items = schema.get("items")
        return [shape_of(items, known, inside)] if isinstance(items, dict) else ["any"]
    if isinstance(values := schema.get("additionalProperties"), dict):
        return {"*": shape_of(values, known, inside)}
    limits = [f"{key} {schema[key]}" for key in SCHEMA_KEYS[1:] if key in schema]
    return " ".join([str(schema.get("type", "")), *limits]).strip() or "any"


def _shape_of_type(kind: Any) -> Any:
    (schema,), known = msgspec.json.schema_components([kind])
    return shape_of(schema, known)


def help_pages() -> str:
    """Return what `--help` prints, for every group and command."""
    pages = [f"$ fanfold {noun} --help\n{text}" for noun, text in help_texts().items()]
    commands = load_commands()
    for listed, name in spellings().items():
        context = click.Context(commands[name], info_name=f"fanfold {listed}", terminal_width=WIDTH)
        pages.append(f"$ fanfold {listed} --help\n{commands[name].get_help(context)}\n")
    return "\n".join(pages)


def http_routes() -> dict[str, Any]:
    """Return each route with its parameters, its body and its response."""
    described = describe(routes(), "0")
    known = described["components"]["schemas"]
    found = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            good = next(status for status in operation["responses"] if status.startswith("2"))
            ((media, content),) = operation["responses"][good]["content"].items()
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            found[f"{method.upper()} {path}"] = {
                "operation": operation["operationId"],
                "parameters": {
                    one["name"] if one["required"] else f"{one['name']}?": shape_of(one["schema"], known)
                    for one in operation["parameters"]
                },
                "body": None if body is None else shape_of(body["schema"], known),
                f"{good} {media}": shape_of(content["schema"], known),
                "errors": [status for status in operation["responses"] if status != good],
            }
    return dict(sorted(found.items()))


def model_tools() -> dict[str, Any]:
    """Return each tool for models: its description, its whole input schema and the shape of its result."""
    return {
        tool.name: {
            "description": tool.description,
            "mutates": tool.mutates,
            "input": tool.input_schema,
            "result": shape_of(tool.output_schema, tool.output_schema.get("$defs", {})),
        }
        for tool in TOOLS
    }


def json_documents() -> dict[str, Any]:
    """Return the shape of what each command prints with `--json`."""
    return {command: _shape_of_type(kind) for command, kind in DOCUMENTS.items()}


def _as_text(document: Any) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


GOLDEN: dict[str, Callable[[], str]] = {
    "help.txt": help_pages,
    "http.json": lambda: _as_text(http_routes()),
    "model_tools.json": lambda: _as_text(model_tools()),
    "json_documents.json": lambda: _as_text(json_documents()),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_shape_that_others_rely_on_is_the_recorded_one(name: str) -> None:
    assert GOLDEN[name]() == (FOLDER / name).read_text("utf-8"), (
        "if the change is meant: python -m tests.test_golden_shapes"
    )


class _Inner(msgspec.Struct):
    name: str


class _Before(msgspec.Struct):
    inner: _Inner | None
    many: list[_Inner] = []


class _After(msgspec.Struct):
    inner: _Inner | None
    many: list[str] = []


def test_a_changed_field_is_a_changed_shape() -> None:
    assert _shape_of_type(_Before) == {
        "inner": {"any of": [{"name": "string"}, "null"]},
        "many?": [{"name": "string"}],
    }
    assert _shape_of_type(_Before) != _shape_of_type(_After)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, make in GOLDEN.items():
        (FOLDER / file).write_text(make(), "utf-8")
