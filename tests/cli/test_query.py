"""`fanfold query` with filters: which outputs are asked about, and why each was found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Result

RECIPE = """
name: %s
phases:
  - {id: audit, kind: understand, tasks: [{id: scan, agent: explorer, prompt: x}]}
  - {id: report, tasks: [{id: write, agent: summarizer, prompt: x}]}
"""
SCRIPT = """
steps:
  "audit#1/scan": the owl sleeps in the barn
  "audit/fold": owls, all of them
  "report#1/write": an owl, red with anger
  "report/fold": nothing
"""


def paths(done: Result) -> list[str]:
    assert done.status == 0, done.err
    return [hit["path"] for hit in done.json()["hits"]]


def test_filters_narrow_what_is_searched(fanfold: Callable[..., Result], project: Path):
    (project / "s.yaml").write_text(SCRIPT)
    runs = []
    for name in ("first", "second"):
        (project / f"{name}.yaml").write_text(RECIPE % name)
        runs.append(fanfold("run", f"{name}.yaml", "--script", "s.yaml", "--json").json()["run_id"])

    def found(*words: str) -> list[str]:
        return paths(fanfold("query", *words, "-k", "50", "--json"))

    for words in (["--run", runs[0]], ["--recipe", "first"], ["--recipe", "first", "--run", runs[0]]):
        assert found("anger", "--role", "summarizer", *words) == ["report#1/write"]
    assert found("owl*", "--phase", "audit", "--role", "explorer", "--run", "last") == ["audit#1/scan"]
    assert found("owl", "--recipe", "none") == []
    assert found("owl", "--since", "1h", "--role", "explorer", "--run", "last") == ["audit#1/scan"]
    assert found("owl", "--since", "2999-01-01") == []
    assert found('"owl sleeps"', "--role", "explorer", "--run", "last") == ["audit#1/scan"]
    shown = fanfold("query", "owl", "barn", "--run", "last", "--explain").out
    assert "score" in shown
    assert "rarity" in shown
    assert found("owl", "--status", "failed") == []
    for wrong in (["--since", "soon"], ["--status", "done"]):
        assert fanfold("query", "owl", *wrong).status == 2


def test_what_subagents_said_is_found(fanfold: Callable[..., Result], project: Path):
    (project / "s.yaml").write_text("default: the heron stands on one leg")
    assert fanfold("spawn", "explorer", "Look", "--name", "bird", "--script", "s.yaml").status == 0
    assert fanfold("wait", "bird").status == 0
    assert paths(fanfold("query", "heron", "--json")) == ["bird"]
