"""`fanfold smoke`: what it proves, and that it leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fanfold.api import smoke
from fanfold.api import smoke as real_smoke
from fanfold.cli.main import main
from fanfold.kernel.events import Envelope
from fanfold.language.compile import compile_recipe
from fanfold.steps.records import FileChange
from fanfold.wiring import wire


@pytest.mark.full
def test_every_promise_is_shown_from_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["smoke", "--json", "--project", str(tmp_path)])
    document = json.loads(capsys.readouterr().out)
    assert (status, document["ok"]) == (0, True)
    names = ["validation", "parallel_readers", "serialized_writers", "dependency_summaries", "lifecycle"]
    assert [check["name"] for check in document["checks"]] == names
    assert list(tmp_path.iterdir()) == []


def test_a_real_dry_run_needs_no_provider_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "smoke",
        "--real",
        "--scenario",
        "dependency",
        "--dry-run",
        "--json",
        "--project",
        str(tmp_path),
    ]
    assert main(arguments) == 0
    assert [check["name"] for check in json.loads(capsys.readouterr().out)["checks"]] == ["dependency"]
    assert list(tmp_path.iterdir()) == []


def test_a_promise_that_does_not_hold_is_reported_as_failed() -> None:
    """The checks can fail: an empty log proves nothing."""
    empty = smoke.SmokeRun("failed", [], {})
    assert [check(empty).ok for _, check in smoke.PLAN] == [False] * len(smoke.PLAN)
    for offers_tools in (True, False):
        left = smoke.SmokeRun("completed", [], {}, offers_tools=offers_tools)
        assert all(shows(left)[1] for shows in real_smoke.SCENARIOS.values())


def test_a_model_without_tools_wrote_nothing_itself_and_smoke_says_so() -> None:
    lives = [("first", "started"), ("first", "finished"), ("second", "started"), ("second", "finished")]
    events = [
        Envelope("r", i, i, 0, "subagent_event", {**row, "workspace": "isolated"}, "r", "r", None, 0, "", 1)
        for i, row in enumerate({"step": step, "status": status} for step, status in lives)
    ]
    outputs = {"first": "one", "second": "said"}

    def left(changes: list[FileChange], files: dict[str, str], tools: bool) -> smoke.SmokeRun:
        return smoke.SmokeRun("completed", events, {}, outputs, changes, files, tools)

    change = FileChange(real_smoke.ANSWER, "added", "keep", "auto", None, "merged")
    files = {real_smoke.ANSWER: "said\n"}
    evidence, missing = real_smoke.writer_controlled(left([change], files, False))
    told = ["no agent wrote anything: the model is offered no tools"]
    assert (missing, evidence["tools"]) == (told, "this model is offered none")
    assert real_smoke.writer_controlled(left([change], files, True))[1]
    assert real_smoke.writer_controlled(left([], files, False))[1]
    assert real_smoke.writer_controlled(left([change], {}, False))[1]


@pytest.mark.parametrize(
    "recipe", [smoke.recipe_text(name) for name in (*dict(smoke.PLAN), *smoke.SCENARIOS)]
)
def test_the_recipes_of_smoke_are_sound(recipe: str, tmp_path: Path) -> None:
    compiled = compile_recipe(recipe.encode(), "smoke.yaml", wire(tmp_path).compile_context())
    assert [d.code for d in compiled.report.diagnostics if d.severity == "error"] == []
