"""Commands that rarer messages suggest, carried out as printed where they are suggested."""

from __future__ import annotations

from pathlib import Path

import pytest

import fanfold as library
from tests.cli.suggestions.following import NOT_FOUND, USAGE, Fanfold, Follow
from tests.cli.suggestions.places import suggested


@pytest.mark.full
@suggested(
    "cli/control.py: lists what waits",
    "api/changes.py: shows what its steps changed",
)
def test_of_commands_without_an_argument(fanfold: Fanfold, agents: Path, follow: Follow) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    assert follow(fanfold("apply", "last")) == ["diff"]
    assert follow(fanfold("undo", "last"), may=(0,)) == ["diff"]
    assert follow(fanfold("spawn"), may=(0,)) == ["spawn"]
    assert follow(fanfold("transcript", "last"), may=(0,)) == ["transcript"]


@suggested(
    "api/recipes.py: fanfold init makes",
    "api/recipes.py: fanfold check checks",
)
def test_in_a_folder_without_recipes(fanfold: Fanfold, project: Path, follow: Follow) -> None:
    assert follow(fanfold("check"), may=(0,)) == ["init"]
    (project / "deep").mkdir()
    assert follow(fanfold("check", "deep"), may=(0,)) == ["check"]


def test_of_the_help_page(fanfold: Fanfold, project: Path, follow: Follow) -> None:
    assert follow(fanfold("--help").out.partition("First steps:")[2], may=(0,)) == ["init", "recipe", "run"]


@suggested(
    "api/result.py: fanfold explain",
)
def test_of_questions_of_a_python_program(fanfold: Fanfold, agents: Path, follow: Follow) -> None:
    options = library.Options(script="default: {fail: {class: agent, message: no}}")
    result = library.run_sync("my agents.yaml", options=options)
    with pytest.raises(library.FanfoldError) as failed:
        result.expect()
    assert follow(failed.value.hint) == ["explain"]


@suggested(
    "cli/agents.py: fanfold agents lists",
)
def test_of_an_unknown_subagent(fanfold: Fanfold, project: Path, follow: Follow) -> None:
    missing = fanfold("send", "nobody", "hello")
    assert missing.status == NOT_FOUND
    assert follow(missing, may=(0,)) == ["agents", "spawn"]


@suggested(
    "api/archives.py: fanfold export",
)
def test_of_a_file_that_is_no_archive(fanfold: Fanfold, agents: Path, follow: Follow) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    (agents / "page.html").write_text("<html></html>")
    refused = fanfold("import", "page.html")
    assert refused.status in (USAGE, NOT_FOUND, 1)
    assert follow(refused, may=(0,)) == ["export"]
