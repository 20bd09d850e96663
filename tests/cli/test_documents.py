"""What commands print with --json: every document is a struct, and has a JSON Schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.api import approvals, system
from fanfold.api import recipes as recipe_views
from fanfold.api import run_documents as run_views
from fanfold.api import step_documents as step_views
from fanfold.api.agents import ModelsDocument, RoleDocument, RoleList
from fanfold.api.approvals import ErrorDocument
from fanfold.api.archives import Audit, AuditedRun
from fanfold.api.display import ListedRun, RunRow
from fanfold.api.history import FoundOutputs
from fanfold.api.recipes import CheckReport, EditorSetUp, RecipeDocument
from fanfold.api.run_documents import ApplyResult, InspectDocument, RunChanges, RunDocument
from fanfold.api.step_documents import ExplainedRun, ExplainedStep
from fanfold.api.system import Examination, GcResult, InitResult, SmokeReport
from fanfold.engine.dry_run import DryRun, WhatIf
from fanfold.kernel.events import Envelope
from fanfold.language.library import ListedRecipe

pytestmark = pytest.mark.full

RECIPE = """
name: team
inputs: [{name: topic, default: solid-state batteries}]
steps:
  - {id: look, agent: explorer, for_each: '["a", "b"]', prompt: "Look at {{item}}"}
  - {id: note, agent: worker, depends_on: [look], prompt: Write, write_set: [n.txt], merge: propose}
  - {id: child, workflow: inner, depends_on: [note]}
  - {id: odd, agent: explorer, prompt: Fail}
  - {id: ok, approve: "Good?", depends_on: [child]}
"""
INNER = "name: inner\nsteps: [{id: in, agent: explorer, prompt: x}]\n"
SCRIPT = """
default: {output: "found in {{step}}", usage: {input_tokens: 3, output_tokens: 4}}
steps:
  note: {output: ok, writes: {n.txt: new}}
  odd: {fail: {class: agent, message: no}}
"""


def structs() -> list[type[msgspec.Struct]]:
    """Every struct that the views define."""
    modules = (approvals, system, run_views, step_views, recipe_views)
    names = {module.__name__ for module in modules}
    found = [value for module in modules for value in vars(module).values()]
    kinds = (one for one in found if isinstance(one, type) and issubclass(one, msgspec.Struct))
    documents = dict.fromkeys(one for one in kinds if one.__module__ in names)
    return [
        one for one in documents if one is not recipe_views.CheckedRecipe
    ]  # holds a plan, is never printed


@pytest.mark.parametrize(
    "document", [*structs(), Envelope, FoundOutputs, ListedRecipe], ids=lambda one: one.__name__
)
def test_every_document_has_a_json_schema(document: type[msgspec.Struct]) -> None:
    schema = msgspec.json.schema(document)
    assert schema["$ref"] == f"#/$defs/{document.__name__}"


@pytest.fixture
def ran(fanfold: Any, project: Path) -> Any:
    """A run that waits: with a map, a child run, a failure, a proposal and an open approval."""
    (project / ".fanfold" / "workflows").mkdir(parents=True)
    (project / ".fanfold" / "workflows" / "inner.yaml").write_text(INNER)
    (project / "team.yaml").write_text(RECIPE)
    (project / "script.yaml").write_text(SCRIPT)
    done = fanfold("run", "team.yaml", "--script", "script.yaml", "--yes", "--json")
    assert done.status == 3, done.err
    return done


def again(said: Any, document: Any) -> Any:
    """What was said, read as a document and encoded once more: nothing is lost, nothing is added."""
    return msgspec.json.decode(msgspec.json.encode(msgspec.convert(said, document)))


COMMANDS: list[tuple[list[str], Any]] = [
    (["run", "team.yaml", "--dry-run"], DryRun),
    (["inspect", "last"], InspectDocument),
    (["inspect", "last", "--state"], InspectDocument),
    (["runs"], list[ListedRun]),
    (["runs", "--all"], list[RunRow]),
    (["explain", "last"], ExplainedRun),
    (["explain", "last", "odd"], ExplainedStep),
    (["explain", "last", "ok"], ExplainedStep),
    (["whatif", "last", "--max-concurrency", "2"], WhatIf),
    (["query", "found"], FoundOutputs),
    (["diff", "last"], RunChanges),
    (["apply", "last", "note", "--dry-run"], ApplyResult),
    (["apply", "last", "note"], ApplyResult),
    (["replay", "last"], AuditedRun),
    (["verify", "--all"], Audit),
    (["pause", "last"], RunRow),
    (["cancel", "last"], RunRow),
    (["resume", "last"], RunDocument),
    (["gc", "--older-than", "0d", "--dry-run"], GcResult),
    (["check", "team.yaml"], CheckReport),
    (["list"], list[ListedRecipe]),
    (["show", "team.yaml", "--mermaid"], RecipeDocument),
    (["agents"], RoleList),
    (["agents", "worker"], RoleDocument),
    (["models"], ModelsDocument),
    (["doctor"], Examination),
    (["smoke", "--dry-run"], SmokeReport),
    (["init"], InitResult),
    (["schema", "--install"], EditorSetUp),
    (["inspect", "nobody"], ErrorDocument),
    (["run", "nowhere.yaml"], ErrorDocument),
]


@pytest.mark.parametrize(("command", "document"), COMMANDS, ids=[" ".join(row[0]) for row in COMMANDS])
def test_a_command_prints_its_document_and_nothing_else(
    fanfold: Any, ran: Any, command: list[str], document: Any
) -> None:
    del ran  # it is there to be looked at
    said = fanfold(*command, "--json").json()
    assert again(said, document) == said


def test_a_run_prints_its_document(ran: Any) -> None:
    said = ran.json()
    assert again(said, RunDocument) == said
    assert said["steps"]["ok"]["approval"] == {"question": "Good?", "show": "", "choices": []}
    assert "approval" not in said["steps"]["odd"]


def test_a_recipe_is_shown_with_its_roles(fanfold: Any, ran: Any) -> None:
    del ran
    steps = fanfold("show", "team.yaml", "--json").json()["steps"]
    assert {step["id"]: step["role"] for step in steps} == {
        "look": "explorer",
        "note": "worker",
        "child": None,
        "odd": "explorer",
        "ok": None,
    }


def test_a_log_is_one_envelope_a_line(fanfold: Any, ran: Any) -> None:
    del ran
    lines = fanfold("logs", "last", "--tree", "--json").out.splitlines()
    envelopes = [msgspec.json.decode(line, type=Envelope) for line in lines]
    assert [one.tree_seq for one in envelopes] == list(range(1, len(lines) + 1))
