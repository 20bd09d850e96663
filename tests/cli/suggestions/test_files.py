"""What is suggested about files that steps changed, and about steps that have to run again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.suggestions.following import BUDGET, USAGE, Fanfold, Follow
from tests.cli.suggestions.places import filled, suggested

WRITER = (
    "name: w\nsteps:\n  - {{id: w, agent: worker, {each}prompt: x, write_set: ['src/**'], merge: {merge}}}\n"
)


def written(project: Path, files: int = 1, *, merge: str = "auto", each: str = "") -> None:
    """A recipe whose agent writes files."""
    (project / "src").mkdir(exist_ok=True)
    (project / "w.yaml").write_text(WRITER.format(merge=merge, each=each))
    writes = {f"src/{number}.txt": "x\n" for number in range(files)}
    (project / "s.yaml").write_text(json.dumps({"default": {"output": "ok", "writes": writes}}))


@pytest.mark.full
@suggested("cli/step_text.py: more files: fanfold diff", "cli/fork.py: fanfold diff")
def test_of_many_files(fanfold: Fanfold, follow: Follow, project: Path) -> None:
    written(project, 12)
    many = fanfold("run", "w.yaml", "--script", "s.yaml", "--yes")
    assert follow(many) == ["diff"]
    forecast = fanfold("fork", "last", "--from", "w", "--dry-run")
    assert follow(forecast) == ["diff"]


@pytest.mark.full
@suggested("cli/run.py:   and {} more: fanfold diff")
def test_of_many_proposals(fanfold: Fanfold, follow: Follow, project: Path) -> None:
    written(project, merge="propose", each="for_each: '[1, 2, 3, 4, 5, 6]', ")
    many = fanfold("run", "w.yaml", "--script", "s.yaml", "--yes")
    assert follow(many) == ["diff"] * 6


@pytest.mark.full
@suggested("cli/run.py: wrote only {} that git ignores")
def test_of_files_that_git_ignores(fanfold: Fanfold, follow: Follow, project: Path) -> None:
    (project / ".gitignore").write_text("*.log\n")
    (project / "w.yaml").write_text(
        "name: w\nsteps:\n  - {id: w, run: [touch, a.log], write_set: ['**/*']}\n"
    )
    assert follow(fanfold("run", "w.yaml", "--yes")) == ["diff"]


@suggested("cli/run.py: more: fanfold inspect", "cli/history.py: more lines: fanfold inspect")
def test_of_many_failures_and_of_a_long_output(fanfold: Fanfold, follow: Follow, project: Path) -> None:
    (project / "f.yaml").write_text(
        "name: f\nsteps: [{id: f, agent: explorer, for_each: '[1,2,3,4,5,6,7]', prompt: x}]\n"
    )
    (project / "no.yaml").write_text("default: {fail: {class: agent, message: no}}\n")
    assert follow(fanfold("run", "f.yaml", "--script", "no.yaml")) == ["inspect", "retry"]
    (project / "l.yaml").write_text("name: l\nsteps: [{id: l, agent: explorer, prompt: x}]\n")
    (project / "long.yaml").write_text(json.dumps({"default": "line\n" * 40}))
    fanfold("run", "l.yaml", "--script", "long.yaml")
    assert follow(fanfold("inspect", "last")) == ["inspect"]


@pytest.mark.full
@suggested("api/changes.py: step by step, unchanged files can be reverted: fanfold undo {} {}")
def test_of_a_run_with_a_changed_part(fanfold: Fanfold, follow: Follow, project: Path) -> None:
    two = [f"{{id: {name}, agent: worker, prompt: x, write_set: [{name}.txt]}}" for name in ("a", "b")]
    (project / "two.yaml").write_text(f"name: two\nsteps: [{', '.join(two)}]\n")
    answers = {name: {"output": "ok", "writes": {f"{name}.txt": "x\n"}} for name in ("a", "b")}
    (project / "s.yaml").write_text(json.dumps({"steps": answers}))
    assert fanfold("run", "two.yaml", "--script", "s.yaml", "--yes").status == 0
    (project / "a.txt").write_text("mine\n")
    assert follow(fanfold("undo", "last"), may=(0,)) == ["undo", "diff"]
    assert not (project / "b.txt").exists()


@pytest.mark.full
@suggested("api/changes.py: fanfold fork", "api/changes.py: shows what was merged; correct it")
def test_of_changes_that_are_gone_or_were_changed_since(
    fanfold: Fanfold, follow: Follow, project: Path
) -> None:
    written(project)
    fanfold("run", "w.yaml", "--script", "s.yaml", "--yes")
    (project / "src/0.txt").write_text("mine\n")
    assert follow(fanfold("undo", "last")) == ["diff"]
    run = fanfold("runs", "--json").json()[0]["run_id"]
    assert follow(filled("api/changes.py: fanfold fork", run, "w"), may=(0, 1)) == ["fork"]


@suggested(
    "steps/step_workspace.py: fanfold fork",
    "steps/agent.py: fanfold fork",
    "steps/function.py: fanfold fork",
    "api/fork.py: fanfold inspect {} --steps",
    "engine/requests.py: --steps lists them",
)
def test_of_steps_that_have_to_run_again(fanfold: Fanfold, follow: Follow, agents: Path) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    run = fanfold("runs", "--json").json()[0]["run_id"]
    for place in ("steps/step_workspace.py", "steps/agent.py", "steps/function.py"):
        assert follow(filled(f"{place}: fanfold fork", run, "'look[0]'")) == ["fork"]
    assert follow(fanfold("fork", run, "--from", "nothing-like-it")) == ["inspect"]
    assert follow(filled("engine/requests.py: --steps lists them", run)) == ["inspect"]


@pytest.mark.full
@suggested("steps/step_workspace.py: fanfold apply", "steps/deliver.py: fanfold approve")
def test_of_runs_that_wait_for_an_answer(fanfold: Fanfold, follow: Follow, project: Path) -> None:
    written(project, merge="propose")
    fanfold("run", "w.yaml", "--script", "s.yaml", "--yes")
    run = fanfold("runs", "--json").json()[0]["run_id"]
    assert follow(filled("steps/step_workspace.py: fanfold apply", run, "w")) == ["apply"]
    (project / "r.yaml").write_text("name: r\nsteps: [{id: ok, approve: Go?}]\n")
    fanfold("run", "r.yaml")
    run = fanfold("runs", "--json").json()[0]["run_id"]
    assert follow(filled("steps/deliver.py: fanfold approve", run, "ok")) == ["approve"]


@pytest.mark.full
@suggested(
    "api/run_handle.py: name one",
    "cli/control.py: add it to the command",
    "steps/ask.py: add it to the command",
)
def test_of_questions(fanfold: Fanfold, follow: Follow, project: Path) -> None:
    (project / "r.yaml").write_text(
        "name: r\nsteps: [{id: a, approve: Go?}, {id: b, approve: Go?}, {id: c, ask: What?}]\n"
    )
    fanfold("run", "r.yaml")
    which = fanfold("approve", "last")
    assert which.status == USAGE
    for asked in (fanfold("answer", "last", "c"), fanfold("approve", "last", "c")):
        hint = next(line for line in asked.err.splitlines() if "add it to the command" in line)
        assert follow(f"{hint} 'the answer'", may=(0, 2)) == ["answer"]
    assert follow(which) == ["approve"]
    assert fanfold("inspect", "last", "--json").json()["steps"]["c"]["output"] == "the answer"


@suggested("api/archives.py: fanfold inspect", "cli/control.py: look at it: fanfold inspect")
def test_of_archives(
    fanfold: Fanfold, follow: Follow, agents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    page = str(tmp_path / "run.html")
    assert fanfold("export", "last", "-o", page).status == 0
    assert follow(fanfold("import", page)) == ["inspect"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert follow(fanfold("import", page)) == ["inspect"]


@suggested("store/database.py: fanfold state adopt", "store/tables.py: fanfold state adopt")
def test_of_a_project_that_was_moved_while_it_was_in_use(
    fanfold: Fanfold, follow: Follow, agents: Path
) -> None:
    del agents
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    told = filled("store/database.py: fanfold state adopt")
    assert follow(told, may=(0,)) == ["state", "runs"]
    assert follow(filled("store/tables.py: fanfold state adopt"), may=(0,)) == ["state"]


@suggested(
    "workspace/seal.py: fanfold state", "cli/system.py: fanfold state", "workspace/seal.py: fanfold resume"
)
def test_of_state_that_was_copied(
    fanfold: Fanfold, follow: Follow, agents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = fanfold("run", "my agents.yaml", "--script", "ok.yaml", "--max-agents", "1")
    assert paused.status == BUDGET
    run = fanfold("runs", "--json").json()[0]["run_id"]
    copied = tmp_path / "copied"
    shutil.copytree(agents, copied, symlinks=True)
    monkeypatch.chdir(copied)
    refused = fanfold("runs")
    shown = fanfold("state", "show")
    # Without a terminal, nothing is taken over or thrown away before somebody says yes.
    assert follow(refused, may=(0, 4)) == ["state", "state", "state"]
    assert follow(shown, may=(4,)) == ["state", "state"]
    assert fanfold("state", "adopt", "--yes").status == 0
    held = fanfold("cancel", run)
    assert held.status in (0, 4), held
    assert follow(filled("workspace/seal.py: fanfold resume", run), may=(0, 1, 4, 5, 7)) == ["resume"]
    assert fanfold("state", "remove", "--yes").status == 0
    assert not (copied / ".fanfold/runs").exists()
