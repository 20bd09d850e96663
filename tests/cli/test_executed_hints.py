"""Every command that a message suggests is carried out, as printed, in the situation where it is suggested.

One test a class of situations. `follow` finds the commands in what was printed, runs each of them, and wants
each to be understood, to find what it names, and to be permitted.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result

Fanfold = Callable[..., Result]
WORDS_AFTER = frozenset(
    "shows lists follows goes stops tells runs takes merges says ends if may applies makes and or to again"
    " fills saves is lets checks".split()
)
"""Words that go on with the sentence behind a command."""
USAGE, DENIED, NOT_FOUND, BUG = 2, 4, 6, 70

AGENTS = """\
name: agents
steps:
  - {id: look, agent: explorer, for_each: '["a b", "c"]', prompt: "Look at {{item}}"}
  - {id: tell, agent: explorer, prompt: "Tell {{steps.look.output}}"}
"""
OK = "default: 'OK from {{step}}'\n"
FAILS = "{default: ok, steps: {'look[0]': {fail: {class: agent, message: no}}}}"


def commands(said: str) -> list[list[str]]:
    """The commands in a text, each as the words of a command line."""
    found: list[list[str]] = []
    for at in re.finditer(r"(?<![\w/.'-])fanfold(?= [a-z])", said):
        line = said[at.end() :].splitlines()[0]
        line = re.split(r"[;`]|\)$|, (?=or |fanfold )", line)[0].rstrip()
        words = shlex.split(line)
        after = (number for number, word in enumerate(words) if number and word.rstrip(",.") in WORDS_AFTER)
        stop = next(after, None)
        found.append([word.rstrip(",") for word in words[:stop]])
    return found


@pytest.fixture
def follow(fanfold: Fanfold) -> Callable[..., list[str]]:
    """Carry out what a result suggests; which commands these were."""

    def run(said: Result | str, *, may: tuple[int, ...] = (0, 1, 3)) -> list[str]:
        text = said if isinstance(said, str) else f"{said.out}\n{said.err}"
        done: list[str] = []
        for words in commands(text):
            result = fanfold(*words)
            told = f"fanfold {shlex.join(words)}: {result}"
            assert result.status in may, told
            done.append(words[0])
        return done

    return run


@pytest.fixture
def agents(project: Path) -> Path:
    (project / "my agents.yaml").write_text(AGENTS)
    (project / "ok.yaml").write_text(OK)
    (project / "fails.yaml").write_text(FAILS)
    return project


def test_after_a_failure(fanfold: Fanfold, agents: Path, follow) -> None:
    failed = fanfold("run", "my agents.yaml", "--script", "fails.yaml")
    assert follow(failed) == ["retry"]
    for look in (["inspect", "last"], ["explain", "last"]):
        assert "retry" in follow(fanfold(*look))
    report = next((agents / ".fanfold/runs").glob("*/report.md")).read_text()
    assert "retry" in follow(report)


def test_after_work_that_was_left_in_a_workspace(fanfold: Fanfold, project: Path, follow) -> None:
    (project / "w.yaml").write_text(
        "name: w\nsteps:\n  - {id: w, agent: worker, for_each: '[1]', prompt: x, write_set: ['src/**']}\n"
    )
    (project / "s.yaml").write_text('default: {output: ok, writes: {"src/a.txt": "x", "outside.txt": "y"}}\n')
    (project / "src").mkdir()
    failed = fanfold("run", "w.yaml", "--script", "s.yaml", "--yes")
    assert follow(failed) == ["diff", "retry"]


def test_when_a_run_waits_for_people(fanfold: Fanfold, project: Path, follow) -> None:
    (project / "r.yaml").write_text(
        "name: r\nsteps:\n  - {id: all, for_each: '[1]', steps:\n"
        "      [{id: ok, approve: Go?, choices: [go, do not]}]}\n"
    )
    waiting = fanfold("run", "r.yaml")
    assert waiting.status == 3
    for refused in (
        fanfold("retry", "last"),
        fanfold("undo", "last", "--dry-run"),
        fanfold("transcript", "last", "all[0]/ok"),
    ):
        assert refused.status == USAGE
    assert follow(fanfold("retry", "last")) == ["inspect"]
    assert follow(fanfold("transcript", "last", "all[0]/ok")) == ["explain"]
    assert follow(fanfold("answer", "last", "all[0]/ok", "words"), may=(USAGE,)) == [
        "approve"
    ]  # a choice is due
    assert follow(waiting) == ["approve"]


def test_when_a_run_asks_a_question(fanfold: Fanfold, project: Path, follow) -> None:
    (project / "r.yaml").write_text("name: r\nsteps: [{id: name, ask: What is it called?}]\n")
    waiting = fanfold("run", "r.yaml")
    assert waiting.status == 3
    assert follow(waiting) == ["answer"]


def test_when_a_run_is_paused_by_a_budget_or_by_a_person(fanfold: Fanfold, agents: Path, follow) -> None:
    (agents / "ok.yaml").write_text("default: {output: ok, usage: {input_tokens: 90, output_tokens: 10}}\n")
    paused = fanfold("run", "my agents.yaml", "--script", "ok.yaml", "--budget-tokens", "60")
    assert paused.status == 5
    for look in (["retry", "last"], ["undo", "last"], ["explain", "last"]):
        assert commands("\n".join(fanfold(*look)[1:]))[0][0] == "resume"
    assert follow(fanfold("explain", "last"), may=(0, 5)) == ["resume"]
    assert follow(paused, may=(0, 5)) == ["resume"]


def test_when_a_run_goes_on_in_the_background(fanfold: Fanfold, agents: Path, follow) -> None:
    started = fanfold("run", "my agents.yaml", "--script", "ok.yaml", "--detach")
    assert follow(started) == ["watch"]
    (agents / "r.yaml").write_text("name: r\nsteps: [{id: ok, approve: Go?}]\n")
    fanfold("run", "r.yaml")
    assert follow(fanfold("approve", "last")) == ["watch"]


def test_from_a_proposal_to_its_merge_and_back(fanfold: Fanfold, project: Path, follow) -> None:
    (project / "p.yaml").write_text(
        "name: p\nsteps:\n"
        "  - {id: w, agent: worker, for_each: '[1]', prompt: x, write_set: ['src/**'], merge: propose}\n"
    )
    (project / "s.yaml").write_text('default: {output: ok, writes: {"src/a.txt": "a\\n"}}\n')
    (project / "src").mkdir()
    proposed = fanfold("run", "p.yaml", "--script", "s.yaml", "--yes")
    report = next((project / ".fanfold/runs").glob("*/report.md")).read_text()
    assert follow(proposed) == ["diff"]
    assert follow(fanfold("apply", "last", "w")) == ["diff"]
    assert follow(fanfold("undo", "last")) == ["diff"]
    assert follow(report) == ["diff", "apply"]
    assert (project / "src/a.txt").exists()
    assert follow(fanfold("diff", "last")) == ["undo"]
    assert not (project / "src/a.txt").exists()


def test_when_a_later_merge_is_in_the_way(fanfold: Fanfold, project: Path, follow) -> None:
    (project / "p.yaml").write_text(
        "name: p\nsteps:\n  - {id: a, agent: worker, prompt: x, write_set: [f.txt]}\n"
        "  - {id: b, agent: worker, for_each: '[1]', prompt: x, write_set: [f.txt], depends_on: [a]}\n"
    )
    (project / "s.yaml").write_text(
        "{steps: {a: {output: ok, writes: {f.txt: a}}, 'b[0]': {output: ok, writes: {f.txt: b}}}}\n"
    )
    fanfold("run", "p.yaml", "--script", "s.yaml", "--yes")
    assert follow(fanfold("apply", "last", "a"), may=(1,)) == ["undo"]  # refused: b is in the way
    assert follow(fanfold("undo", "last", "a")) == ["undo"]
    assert fanfold("undo", "last", "a").status == 0
    assert not (project / "f.txt").exists()


def test_when_a_conflict_stops_a_step(fanfold: Fanfold, project: Path, follow) -> None:
    (project / "f.txt").write_text("one\n")
    (project / "c.yaml").write_text(
        "name: c\nsteps:\n"
        "  - {id: meddle, run: [sh, -c, 'echo mine > f.txt'], workspace_mode: shared, write_set: [f.txt]}\n"
    )
    (project / "p.yaml").write_text(
        "name: p\nsteps: [{id: w, agent: worker, prompt: x, write_set: [f.txt], merge: propose}]\n"
    )
    (project / "s.yaml").write_text(
        "default: {output: ok, writes: {f.txt: 'theirs\n'}}\n".replace("\n'", "\\n'")
    )
    fanfold("run", "p.yaml", "--script", "s.yaml", "--yes")
    (project / "f.txt").write_text("mine\n")
    assert follow(fanfold("apply", "last", "w")) == ["diff"]


def test_where_a_name_is_wrong(fanfold: Fanfold, agents: Path, follow) -> None:
    assert follow(fanfold("inspect", "last")) == ["list"]
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    assert follow(fanfold("inspect", "zzzzzzzz")) == ["runs"]
    assert follow(fanfold("inspect", "last", "quite-another")) == ["inspect"]
    assert follow(fanfold("approve", "last")) == ["inspect"]
    assert follow(fanfold("ps"), may=(0,)) == []
    assert follow(fanfold("wait", "nobody")) == ["ps"]
    assert follow(fanfold("send", "nobody", "hello")) == ["ps"]
    assert follow(fanfold("run", "no-such-recipe")) == ["list"]
    (agents / "my question.yaml").write_text("name: r\nsteps: [{id: ok, approve: Go?}]\n")
    assert follow(fanfold("my question.yaml")) == ["check", "run"]


def test_where_a_recipe_is_wrong(fanfold: Fanfold, agents: Path, follow) -> None:
    (agents / "my agents.yaml").write_text(AGENTS.replace("explorer", "nobody-here"))
    refused = fanfold("run", "my agents.yaml", "--json")
    hint = refused.json()["error"]["hint"]
    assert follow(hint, may=(USAGE,)) == ["check"]  # it tells the same
    assert follow(fanfold("check", "my agents.yaml"), may=(0,)) == ["agents", "agents"]


def test_where_a_permission_or_an_input_is_missing(fanfold: Fanfold, project: Path, follow) -> None:
    (project / "my recipe.yaml").write_text(
        "name: r\ninputs:\n  - {name: topic, required: true}\n"
        "  - {name: files, type: array, required: true}\n"
        "  - {name: depth, enum: [deep, 'not so'], required: true}\n"
        "steps:\n  - {id: a, run: [echo, '{{inputs.topic}}']}\n"
    )
    asked = fanfold("run", "my recipe.yaml", "-i", "topic=a 'b' $c")
    assert asked.status == USAGE
    (words,) = commands(asked.err)
    denied = fanfold(*words)
    assert denied.status == DENIED
    assert follow(denied, may=(0,)) == ["run"]
    assert fanfold("inspect", "last", "--json").json()["inputs"] == {
        "topic": "a 'b' $c", "files": ["a", "b"], "depth": "deep",
    }  # fmt: skip


def test_where_there_is_nothing_to_retry_or_no_such_turn(fanfold: Fanfold, agents: Path, follow) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    assert follow(fanfold("inspect", "last", "look[0]")) == ["transcript"]
    assert follow(fanfold("fork", "last", "--from", "look[0]", "--turn", "9")) == ["transcript"]
    assert follow(fanfold("logs", "last", "look[0]", "-f")) == ["transcript"]
    assert follow(fanfold("retry", "last")) == ["fork"]


def test_of_subagents(fanfold: Fanfold, project: Path, follow) -> None:
    (project / "s.yaml").write_text('default: {output: done, writes: {"a.txt": "s"}}\n')
    given = ("--write-set", "*.txt", "--merge", "propose", "--script", "s.yaml", "--yes", "--wait")
    spawned = fanfold("spawn", "worker", "write it", "--name", "w", *given)
    assert follow(spawned) == ["diff"]
    assert follow(fanfold("send", "w", "more")) == ["apply"]
    assert follow(fanfold("send", "w")) == ["send"]
    fanfold("wait", "w")
    assert follow(fanfold("retry", "hand")) == ["ps"]
    assert follow(fanfold("fork", "hand", "--from", "w")) == ["ps"]
    fanfold("close", "w")


def test_at_the_beginning_and_when_nothing_is_asked(fanfold: Fanfold, project: Path, follow) -> None:
    made = fanfold("init")
    assert "run" in follow(made)
    assert len(follow(fanfold())) >= 2


def test_the_commands_of_a_text_are_found_as_they_are_meant() -> None:
    assert commands("fanfold diff r1 'a[0] b' shows it; fanfold undo r1, or fanfold runs") == [
        ["diff", "r1", "a[0] b"], ["undo", "r1"], ["runs"],
    ]  # fmt: skip
    assert commands(json.dumps({"hint": "see /usr/fanfold x"})) == []
