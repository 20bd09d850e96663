"""Commands that rarer messages suggest, carried out as printed where they are suggested."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import fanfold as library
from tests.cli.conftest import Result
from tests.cli.test_executed_hints import NOT_FOUND, USAGE, agents, commands, follow

__all__ = ["agents", "follow"]
Fanfold = Callable[..., Result]
Follow = Callable[..., list[str]]


def test_of_words_that_lack_something(fanfold: Fanfold, agents: Path, follow: Follow) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    assert follow(fanfold("apply", "last")) == ["diff"]
    assert follow(fanfold("undo", "last"), may=(0,)) == ["diff"]
    assert follow(fanfold("spawn"), may=(0,)) == ["spawn"]
    assert follow(fanfold("transcript", "last"), may=(0,)) == ["transcript"]


def test_in_a_folder_without_recipes(fanfold: Fanfold, project: Path, follow: Follow) -> None:
    assert follow(fanfold("check"), may=(0,)) == ["init"]
    (project / "deep").mkdir()
    assert follow(fanfold("check", "deep"), may=(0,)) == ["check"]


def test_of_the_help_page(fanfold: Fanfold, project: Path, follow: Follow) -> None:
    assert follow(fanfold("--help").out.partition("First steps:")[2], may=(0,)) == ["init", "list", "run"]


def test_of_completion(fanfold: Fanfold, project: Path) -> None:
    (setup,) = [line for line in [" ".join(fanfold("completion", "--help").out.split())] if "Set up" in line]
    told = [words[1] for words in commands(setup.partition("Set up with: ")[2].replace(">", ";"))]
    assert told == ["bash", "zsh", "fish"]
    for shell in told:
        assert fanfold("completion", shell).out


def test_of_state_that_came_with_a_checkout(
    fanfold: Fanfold, agents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    copied = tmp_path / "copied"
    shutil.copytree(agents, copied, symlinks=True)
    monkeypatch.chdir(copied)
    refused = fanfold("runs")
    assert refused.status not in (0, 70)
    shown = [words for words in commands(refused.err) if words[:2] == ["state", "show"]]
    assert shown
    assert fanfold(*shown[0]).status == 0
    assert [words[:2] for words in commands(refused.err)][1:] == [["state", "adopt"], ["state", "remove"]]
    asked = fanfold("state", "adopt")
    assert (asked.status, "add --yes" in asked.err) == (4, True)
    assert fanfold("state", "adopt", "--yes").status == 0
    assert fanfold("runs").status == 0


def test_of_what_a_program_of_ours_asks_in_python(fanfold: Fanfold, agents: Path, follow: Follow) -> None:
    options = library.Options(script="default: {fail: {class: agent, message: no}}")
    result = library.run_sync("my agents.yaml", options=options)
    with pytest.raises(library.FanfoldError) as failed:
        result.expect()
    assert follow(failed.value.hint) == ["explain"]


def test_of_a_subagent_that_nobody_has(fanfold: Fanfold, project: Path, follow: Follow) -> None:
    missing = fanfold("send", "nobody", "hello")
    assert missing.status == NOT_FOUND
    assert follow(missing, may=(0,)) == ["agents", "spawn"]


def test_of_an_archive_that_is_none(fanfold: Fanfold, agents: Path, follow: Follow) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    (agents / "page.html").write_text("<html></html>")
    refused = fanfold("import", "page.html")
    assert refused.status in (USAGE, NOT_FOUND, 1)
    assert follow(refused, may=(0,)) == ["export"]
