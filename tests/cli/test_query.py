"""`fanfold query` with filters: which outputs are asked about, and why each was found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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


@pytest.mark.full
def test_outputs_of_subagents_are_found(fanfold: Callable[..., Result], project: Path):
    (project / "s.yaml").write_text("default: the heron stands on one leg")
    assert fanfold("spawn", "explorer", "Look", "--name", "bird", "--script", "s.yaml").status == 0
    assert fanfold("wait", "bird").status == 0
    assert paths(fanfold("query", "heron", "--json")) == ["bird"]


NESTED = """\
name: nested
steps:
  - id: audit
    repeat: {until: iteration == 1, max_iterations: 1}
    steps: [{id: find, agent: explorer, prompt: Look for badgers}]
  - {id: broken, agent: explorer, prompt: Break}
"""
ANSWERS = """\
steps:
  "audit#1/find": the badger lives under the shed
  broken: {fail: {class: agent, message: the wolverine escaped}}
"""


def test_a_text_is_found_once_where_it_was_made(fanfold, project):
    (project / "nested.yaml").write_text(NESTED)
    (project / "answers.yaml").write_text(ANSWERS)
    assert fanfold("run", "nested.yaml", "--script", "answers.yaml").status == 1
    hits = fanfold("query", "badger", "--json").json()["hits"]
    assert [(hit["path"], hit["role"], hit["kind"]) for hit in hits] == [
        ("audit#1/find", "explorer", "output")
    ]


PHASED = """\
name: phased
phases:
  - id: look
    tasks:
      - {id: left, agent: explorer, prompt: Look left}
      - {id: right, agent: explorer, prompt: Look right, output_schema: {type: object}}
  - id: tell
    tasks: [{id: sub, workflow: ./inner.yaml}]
"""
INNER = "name: inner\nsteps: [{id: say, agent: explorer, prompt: Say}]\n"
FOUND = """\
steps:
  "look#1/left": the badger lives under the shed
  "look#1/right": {output: {animal: otter, place: {name: river}}}
  "tell#1/sub/say": the heron sleeps
default: nothing
"""


def test_phases_and_sub_workflows_do_not_repeat_the_outputs_of_their_steps(fanfold, project):
    (project / "phased.yaml").write_text(PHASED)
    (project / "inner.yaml").write_text(INNER)
    (project / "answers.yaml").write_text(FOUND)
    assert fanfold("run", "phased.yaml", "--script", "answers.yaml").status == 0

    def found(*words: str) -> list[str]:
        return [hit["path"] for hit in fanfold("query", *words, "--json").json()["hits"]]

    assert found("badger") == ["look#1/left"]
    assert found("river") == ["look#1/right"]
    assert sorted(found("badger otter")) == ["look#1/left", "look#1/right"]
    assert found("heron") == ["say"]


MAPPED = "name: mapped\nsteps: [{id: each, for_each: '[1, 2]', agent: explorer, prompt: 'Look {{item}}'}]\n"


def test_a_map_does_not_repeat_the_outputs_of_its_items(fanfold, project):
    (project / "mapped.yaml").write_text(MAPPED)
    (project / "answers.yaml").write_text("steps: {'each[0]': a heron stands, 'each[1]': an owl sleeps}\n")
    assert fanfold("run", "mapped.yaml", "--script", "answers.yaml").status == 0
    for words, paths in (("heron", ["each[0]"]), ("heron owl", ["each[0]", "each[1]"])):
        hits = fanfold("query", words, "--json").json()["hits"]
        assert sorted(hit["path"] for hit in hits) == paths


def test_errors_prompts_and_transcripts_are_found_by_kind(fanfold, project):
    (project / "nested.yaml").write_text(NESTED)
    (project / "answers.yaml").write_text(ANSWERS)
    fanfold("run", "nested.yaml", "--script", "answers.yaml")

    def found(*words: str) -> list[tuple[str, str]]:
        return [(hit["path"], hit["kind"]) for hit in fanfold("query", *words, "--json").json()["hits"]]

    assert found("wolverine") == found("kind:error", "wolverine") == [("broken", "error")]
    assert found("kind:error wolverine") == [("broken", "error")]
    assert found("badgers") == []
    assert found("kind:prompt", "badgers") == [("audit#1/find", "prompt")]
    assert found("kind:output", "wolverine") == []
    assert fanfold("query", "kind:nonsense", "x").status == 2
    assert fanfold("run", "nested.yaml", "--script", "answers.yaml").status == 1
    assert len(found("kind:error", "wolverine")) == 2
