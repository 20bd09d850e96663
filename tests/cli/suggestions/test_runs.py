"""Every command that a message suggests is carried out, as printed, in the situation where it is suggested.

One test a class of situations. `follow` finds the commands in what was printed, runs each of them, and wants
each to be understood, to find what it names, and to be permitted.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.suggestions.following import DENIED, NOT_FOUND, USAGE, Fanfold, Follow, commands
from tests.cli.suggestions.places import suggested


@suggested(
    "api/run_documents.py: fanfold retry {}",
)
def test_after_a_failure(fanfold: Fanfold, agents: Path, follow: Follow) -> None:
    failed = fanfold("run", "my agents.yaml", "--script", "fails.yaml")
    assert follow(failed) == ["retry"]
    for look in (["inspect", "last"], ["explain", "last"]):
        assert "retry" in follow(fanfold(*look))
    report = next((agents / ".fanfold/runs").glob("*/report.md")).read_text()
    assert "retry" in follow(report)


@pytest.mark.full
@suggested("steps/executor.py: fanfold transcript")
def test_after_a_step_that_changed_nothing(fanfold: Fanfold, project: Path, follow: Follow) -> None:
    step = "{id: w, agent: worker, prompt: x, write_set: ['src/**'], require_changes: true}"
    (project / "w.yaml").write_text(f"name: w\nsteps: [{step}]\n")
    (project / "s.yaml").write_text("default: done\n")
    assert "transcript" in follow(fanfold("run", "w.yaml", "--script", "s.yaml", "--yes"))


@pytest.mark.full
@suggested(
    "cli/run.py: what it changed is kept",
)
def test_after_work_that_was_left_in_a_workspace(fanfold: Fanfold, project: Path, follow: Follow) -> None:
    (project / "w.yaml").write_text(
        "name: w\nsteps:\n  - {id: w, agent: worker, for_each: '[1]', prompt: x, write_set: ['src/**']}\n"
    )
    (project / "s.yaml").write_text('default: {output: ok, writes: {"src/a.txt": "x", "outside.txt": "y"}}\n')
    (project / "src").mkdir()
    failed = fanfold("run", "w.yaml", "--script", "s.yaml", "--yes")
    assert follow(failed) == ["diff", "retry"]


@pytest.mark.full
@suggested(
    "api/approvals.py: fanfold approve",
    "api/fork.py: =fanfold inspect {}",
    "api/history.py: fanfold explain",
    "steps/ask.py: fanfold approve",
    "engine/requests.py: shows how it ended",
)
def test_when_a_run_waits_for_people(fanfold: Fanfold, project: Path, follow: Follow) -> None:
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
    for words in (["answer", "last", "all[0]/ok", "words"], ["approve", "last"]):  # a choice is due
        refused = fanfold(*words)
        assert refused.status == USAGE
        assert "choose one of go, do not: fanfold approve" in refused.err
    assert follow(refused) == ["approve"]
    closed = fanfold("approve", "last", "all[0]/ok", "--choice", "go")
    assert (closed.status, "is completed already" in closed.err) == (USAGE, True)
    assert follow(closed, may=(0,)) == ["inspect"]


@pytest.mark.full
@suggested(
    "api/approvals.py: fanfold approve",
)
def test_a_question_names_its_subject(fanfold: Fanfold, project: Path, follow: Follow) -> None:
    (project / "r.yaml").write_text(
        "name: r\nsteps: [{id: ok, approve: Ship?, show: 'two\\nlines', choices: [go, stop]}]\n".replace(
            "'", '"'
        )
    )
    waiting = fanfold("run", "r.yaml")
    assert "  ok: Ship?\n    │ two\n    │ lines\n    choices: go, stop\n    answer it: " in waiting.err
    assert follow(waiting) == ["approve"]


@pytest.mark.full
@suggested(
    "cli/run.py: fanfold inspect {} {}",
    "cli/step_text.py: fanfold inspect {} {}",
    "api/approvals.py: fanfold approve",
)
def test_of_a_long_text_before_a_decision(fanfold: Fanfold, project: Path, follow: Follow) -> None:
    ask = json.dumps({"id": "ok", "approve": "Ship?", "show": "\n".join(f"line {n}" for n in range(13))})
    (project / "r.yaml").write_text(f"name: r\nsteps: [{ask}]\n")
    assert "line 12\n" in fanfold("run", "r.yaml").err  # no line is saved by saying that there is one more
    (project / "r.yaml").write_text(
        f"name: r\nsteps: [{ask.replace('line 12', 'line 12' + chr(92) + 'n13')}]\n"
    )
    waiting = fanfold("run", "r.yaml")
    seen = fanfold("inspect", "last")
    assert "… 2 more lines: fanfold inspect" in waiting.err
    assert follow(seen) == ["inspect", "approve"]
    assert follow(waiting, may=(0, USAGE)) == ["inspect", "approve"]


@pytest.mark.full
@suggested(
    "api/history.py: fanfold inspect {} shows its steps",
    "api/history.py: fanfold transcript",
)
def test_of_a_transcript_without_a_name(fanfold: Fanfold, project: Path, follow: Follow) -> None:
    (project / "s.yaml").write_text("default: words of {{step}}\n")
    (project / "none.yaml").write_text("name: none\nsteps: [{id: a, run: [echo, x]}]\n")
    assert fanfold("run", "none.yaml", "--yes").status == 0
    unsaid = fanfold("transcript", "last")
    assert unsaid.status == NOT_FOUND
    assert follow(unsaid) == ["inspect"]
    (project / "one.yaml").write_text(
        "name: one\nsteps: [{id: a, run: [echo, x]}, {id: b, agent: explorer, prompt: x}]\n"
    )
    assert fanfold("run", "one.yaml", "--script", "s.yaml", "--yes").status == 0
    assert "words of b" in fanfold("transcript", "last").out
    (project / "two.yaml").write_text(
        "name: two\nsteps: [{id: a, for_each: '[1, 2]', agent: explorer, prompt: x}]\n"
    )
    assert fanfold("run", "two.yaml", "--script", "s.yaml").status == 0
    several = fanfold("transcript", "last")
    assert several.status == USAGE
    assert follow(several, may=(0,)) == ["transcript"]


@pytest.mark.full
@suggested(
    "api/approvals.py: fanfold answer",
)
def test_when_a_run_asks_a_question(fanfold: Fanfold, project: Path, follow: Follow) -> None:
    (project / "r.yaml").write_text("name: r\nsteps: [{id: name, ask: What is it called?}]\n")
    waiting = fanfold("run", "r.yaml")
    assert waiting.status == 3
    assert follow(waiting) == ["answer"]


@suggested(
    "api/run_options.py: fanfold resume",
    "steps/run_config.py: fanfold resume {}",
)
def test_when_a_run_is_paused_by_a_budget_or_by_a_person(
    fanfold: Fanfold, agents: Path, follow: Follow
) -> None:
    (agents / "ok.yaml").write_text("default: {output: ok, usage: {input_tokens: 90, output_tokens: 10}}\n")
    paused = fanfold("run", "my agents.yaml", "--script", "ok.yaml", "--budget-tokens", "60")
    assert paused.status == 5
    for look in (["retry", "last"], ["undo", "last"], ["explain", "last"]):
        assert commands("\n".join(fanfold(*look)[1:]))[0][0] == "resume"
    refused = fanfold("retry", "last")
    assert follow(fanfold("explain", "last"), may=(0, 5)) == ["resume"]
    assert follow(refused, may=(0, 5)) == ["resume"]
    assert follow(paused, may=(0, 5)) == ["resume"]


@suggested("cli/run.py: on its default answers: fanfold resume {}")
@pytest.mark.parametrize(("step", "output"), [("approve: Go?", "approve"), ("ask: Go?", "approve")])
def test_when_a_default_will_answer(
    step: str, output: str, fanfold: Fanfold, project: Path, follow: Follow
) -> None:
    (project / "d.yaml").write_text(
        f"name: d\nsteps: [{{id: ok, {step}, timeout: 1ms, default: approve}}]\n"
        "output: '{{steps.ok.output}}'\n"
    )
    waits = fanfold("run", "d.yaml")
    assert waits.status == 3
    (line,) = [line for line in waits.err.splitlines() if "its default answers" in line]
    assert follow(line) == ["resume"]
    assert output in str(fanfold("inspect", "last", "--json").json()["output"])


@pytest.mark.full
@suggested(
    "cli/run.py: continues in the background",
    "cli/control.py: continues in the background",
)
def test_when_a_run_continues_in_the_background(fanfold: Fanfold, agents: Path, follow: Follow) -> None:
    started = fanfold("run", "my agents.yaml", "--script", "ok.yaml", "--detach")
    assert follow(started) == ["watch"]
    (agents / "r.yaml").write_text("name: r\nsteps: [{id: ok, approve: Go?}]\n")
    fanfold("run", "r.yaml")
    assert follow(fanfold("approve", "last")) == ["watch"]


@pytest.mark.full
@suggested(
    "cli/run.py: proposes to change",
    "api/changes.py: name one of them",
    "api/changes.py: pending proposals are not merged",
    "api/report.py: proposed, not applied",
    "api/report.py: Details",
    "cli/control.py: take them back",
    "cli/control.py: apply them",
)
def test_from_a_proposal_to_its_merge_and_back(fanfold: Fanfold, project: Path, follow: Follow) -> None:
    (project / "p.yaml").write_text(
        "name: p\nsteps:\n"
        "  - {id: w, agent: worker, for_each: '[1]', prompt: x, write_set: ['src/**'], merge: propose}\n"
    )
    (project / "s.yaml").write_text('default: {output: ok, writes: {"src/a.txt": "a\\n"}}\n')
    (project / "src").mkdir()
    proposed = fanfold("run", "p.yaml", "--script", "s.yaml", "--yes")
    report = next((project / ".fanfold/runs").glob("*/report.md")).read_text()
    assert follow(proposed) == ["diff"]
    waits = fanfold("diff", "last")
    assert follow(fanfold("apply", "last", "w")) == ["diff"]
    assert follow(fanfold("undo", "last")) == ["diff"]
    assert follow(report) == ["apply", "inspect"]
    assert follow(waits, may=(0,)) == ["apply"]  # it was applied just now, and says so
    assert (project / "src/a.txt").exists()
    assert follow(fanfold("diff", "last")) == ["undo"]
    assert not (project / "src/a.txt").exists()


@pytest.mark.full
@suggested(
    "api/changes.py: =fanfold undo {} {}",
    "api/changes.py: revert that first",
)
def test_when_a_later_merge_is_in_the_way(fanfold: Fanfold, project: Path, follow: Follow) -> None:
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


@pytest.mark.full
@suggested(
    "api/changes.py: shows what it proposes",
)
def test_when_a_conflict_stops_a_step(fanfold: Fanfold, project: Path, follow: Follow) -> None:
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


@suggested(
    "store/address.py: fanfold list",
    "store/protocol.py: fanfold runs lists",
    "api/history.py: fanfold inspect {} --steps lists them",
    "api/run_handle.py: fanfold inspect",
    "engine/requests.py: fanfold ps --all",
    "language/library.py: fanfold list",
    "cli/command.py: to check or run",
)
def test_where_a_name_is_wrong(fanfold: Fanfold, agents: Path, follow: Follow) -> None:
    assert follow(fanfold("inspect", "last")) == ["list"]
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    assert follow(fanfold("inspect", "zzzzzzzz")) == ["runs"]
    assert follow(fanfold("inspect", "last", "quite-another")) == ["inspect"]
    assert follow(fanfold("approve", "last")) == ["inspect"]
    assert follow(fanfold("wait", "nobody")) == ["ps"]
    assert follow(fanfold("send", "nobody", "hello")) == ["ps"]
    assert follow(fanfold("run", "no-such-recipe")) == ["list"]
    (agents / "my question.yaml").write_text("name: r\nsteps: [{id: ok, approve: Go?}]\n")
    assert follow(fanfold("my question.yaml")) == ["check", "run"]


@suggested(
    "api/recipes.py: fanfold check {}",
    "language/draft.py: fanfold agents",
)
def test_where_a_recipe_is_wrong(fanfold: Fanfold, agents: Path, follow: Follow) -> None:
    (agents / "my agents.yaml").write_text(
        (agents / "my agents.yaml").read_text().replace("explorer", "nobody-here")
    )
    refused = fanfold("run", "my agents.yaml", "--json")
    hint = refused.json()["error"]["hint"]
    assert follow(hint, may=(USAGE,)) == ["check"]  # it tells the same
    assert follow(fanfold("check", "my agents.yaml"), may=(0,)) == ["agents", "agents"]


@pytest.mark.full
@suggested(
    "cli/command.py: fanfold {} {} {}",
)
def test_where_a_permission_or_an_input_is_missing(fanfold: Fanfold, project: Path, follow: Follow) -> None:
    (project / "my recipe.yaml").write_text(
        "name: r\ninputs:\n  - {name: topic, required: true}\n"
        "  - {name: files, type: array, required: true}\n"
        "  - {name: depth, enum: [deep, 'not so'], required: true}\n"
        "steps:\n  - {id: a, run: [echo, '{{inputs.topic}}']}\n"
    )
    asked = fanfold("run", "my recipe.yaml", "-i", "topic=a 'b' $c")
    assert asked.status == USAGE
    assert follow(asked, may=(DENIED,)) == ["run"]
    (words,) = commands(asked.err)
    denied = fanfold(*words)
    assert follow(denied, may=(0,)) == ["run"]
    assert fanfold("inspect", "last", "--json").json()["inputs"] == {
        "topic": "a 'b' $c", "files": ["a", "b"], "depth": "deep",
    }  # fmt: skip


@suggested(
    "cli/history.py: its transcript",
    "api/transcripts.py: fanfold transcript",
    "cli/history.py: fanfold transcript",
    "api/fork.py: to run it again from a step",
)
def test_of_runs_without_failures_and_unknown_turns(fanfold: Fanfold, agents: Path, follow: Follow) -> None:
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    assert follow(fanfold("inspect", "last", "look[0]")) == ["transcript"]
    assert follow(fanfold("fork", "last", "--from", "look[0]", "--turn", "9")) == ["transcript"]
    assert follow(fanfold("logs", "last", "look[0]", "-f")) == ["transcript"]
    assert follow(fanfold("retry", "last")) == ["fork"]


@pytest.mark.full
@suggested(
    "cli/agents.py: fanfold diff",
    "engine/requests.py: fanfold apply",
    "cli/agents.py: fanfold send",
    "api/fork.py: fanfold ps --all",
)
def test_of_subagents(fanfold: Fanfold, project: Path, follow: Follow) -> None:
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


@pytest.mark.full
@suggested(
    "cli/system.py: Try it, without any model",
)
def test_at_the_beginning_and_when_nothing_is_asked(fanfold: Fanfold, project: Path, follow: Follow) -> None:
    made = fanfold("init")
    assert "run" in follow(made)
    assert len(follow(fanfold())) >= 2
