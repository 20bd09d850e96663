"""Runs in the background, and what other processes may ask of them."""

import json
import os
import platform
import signal
import time
from contextlib import closing

import pytest

from fanfold.api.run_handle import leave
from fanfold.engine.requests import AnswerRequest
from fanfold.wiring import wire
from tests.work import PATIENCE_S, long_enough_ms

pytestmark = pytest.mark.full

CHAIN = """\
name: chain
steps:
  - {id: a, agent: explorer, prompt: x}
  - {id: b, agent: explorer, prompt: "{{steps.a.output}}"}
"""
GATED = """\
name: gated
steps:
  - {id: a, agent: explorer, prompt: x}
  - {id: ok, approve: "Ship {{steps.a.output}}?", show: "{{steps.a.output}}", depends_on: [a]}
  - {id: ship, agent: explorer, prompt: "{{steps.ok.output.comment}} {{steps.ok.output.edited}}"}
"""


@pytest.fixture
def recipes(project):
    (project / "chain.yaml").write_text(CHAIN)
    (project / "gated.yaml").write_text(GATED)
    (project / "quick.yaml").write_text("default: OK from {{step}}\n")
    (project / "hanging.yaml").write_text(
        "default: OK from {{step}}\nsteps: {b: {output: late, delay_ms: 3600000}}\n"
    )
    return project


@pytest.fixture
def hanging(recipes, background, until):
    """A run whose second step hangs, driven by another process."""
    process = background("run", "chain.yaml", "--script", "hanging.yaml")
    run = until(lambda run: run["steps"].get("b", {}).get("status") == "running")
    return process, run["run_id"]


@pytest.fixture
def dawdling(recipes, background, until):
    """A run whose second step takes its time, driven by another process; a pause lets it end its turn."""
    script = f"default: OK\nsteps: {{b: {{output: done, delay_ms: {long_enough_ms(5_000)}}}}}\n"
    (recipes / "slow.yaml").write_text(script)
    (recipes / "chain.yaml").write_text(
        CHAIN + '  - {id: c, agent: explorer, prompt: "{{steps.b.output}}"}\n'
    )
    process = background("run", "chain.yaml", "--script", "slow.yaml")
    run = until(lambda run: run["steps"].get("b", {}).get("status") == "running")
    return process, run["run_id"]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# In the background


def test_a_detached_run_prints_its_id_at_once_and_continues_by_itself(fanfold, shell, recipes, until):
    run = shell("run", "chain.yaml", "--script", "quick.yaml", "--detach").out.strip()
    assert until(lambda seen: seen["status"] == "completed", run)["output"] == "OK from b"
    log = recipes / ".fanfold" / "runs" / run / "detached.log"
    deadline = time.monotonic() + PATIENCE_S
    while "completed  run" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_detached_run_in_json_is_the_documented_document(shell, recipes, until):
    document = shell("run", "chain.yaml", "--script", "quick.yaml", "--detach", "--json").json()
    assert document["status"] == "pending"
    assert until(lambda seen: seen["status"] == "completed", document["run_id"])


def test_a_detached_run_lives_in_a_session_of_its_own(fanfold, shell, recipes, until):
    shell("run", "chain.yaml", "--script", "hanging.yaml", "--detach")
    run = until(lambda run: run["steps"].get("b", {}).get("status") == "running")["run_id"]
    pid = fanfold("inspect", run, "--state", "--json").json()["state"]["owner"]["pid"]
    assert os.getsid(pid) == pid != os.getsid(0)
    # So what a closing terminal sends to its own session never reaches it.
    assert fanfold("cancel", run, "--json").json()["status"] == "cancelled"


def test_resuming_in_the_background(shell, recipes, until, dawdling):
    process, run = dawdling
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=PATIENCE_S) == 3
    assert shell("resume", run, "--detach").out.strip() == run
    assert until(lambda seen: seen["status"] == "completed", run)["output"] == "OK"


# Asked from outside


def test_only_one_process_drives_a_run_and_the_refusal_names_it(fanfold, hanging):
    process, run = hanging
    for flags in ([], ["--detach"]):
        refused = fanfold("resume", run, *flags, "--json")
        assert refused.status == 1
        error = refused.json()["error"]
        assert (error["code"], error["details"]["pid"]) == ("lease.held", process.pid)
        assert f"fanfold watch {run}" in error["hint"]


def test_pausing_a_live_run_waits_until_it_has_paused(fanfold, dawdling):
    process, run = dawdling
    done = fanfold("pause", run, "--json")
    assert (done.status, done.json()["status"]) == (0, "paused")
    assert process.wait(timeout=PATIENCE_S) == 3
    assert fanfold("pause", run).status == 0
    assert fanfold("verify", run).status == 0


def test_cancelling_a_live_run_waits_until_it_is_cancelled(fanfold, hanging):
    process, run = hanging
    done = fanfold("cancel", run, "--json")
    assert (done.status, done.json()["status"]) == (0, "cancelled")
    assert process.wait(timeout=PATIENCE_S) == 7
    document = fanfold("resume", run, "--json")
    assert document.status == 7
    assert document.json()["steps"]["a"]["status"] == "completed"
    assert document.json()["steps"]["b"]["status"] == "cancelled"
    assert fanfold("verify", run).status == 0
    assert fanfold("cancel", run).status == 0


@pytest.mark.parametrize("asked", ["pause", "cancel"])
def test_a_run_whose_process_died_is_paused_or_cancelled_here(fanfold, recipes, hanging, monkeypatch, asked):
    process, run = hanging
    process.kill()
    process.communicate()
    monkeypatch.setenv("FANFOLD_SCRIPT_CALLS", str(recipes / "calls"))
    word = {"pause": "paused", "cancel": "cancelled"}[asked]
    assert fanfold(asked, run, "--json").json()["status"] == word
    assert not (recipes / "calls").exists(), "no agent was asked anything on the way"
    assert fanfold("verify", run).status == 0


def test_a_finished_run_can_be_neither_paused_nor_cancelled(fanfold, recipes):
    assert fanfold("run", "chain.yaml", "--script", "quick.yaml").status == 0
    for asked in ("pause", "cancel"):
        refused = fanfold(asked, "last", "--json")
        assert (refused.status, refused.json()["error"]["code"]) == (2, "run.ended")


def test_cancelling_a_child_run_leaves_the_rest(fanfold, recipes, background, until):
    (recipes / "parent.yaml").write_text(
        "name: parent\nsteps:\n"
        "  - {id: kid, workflow: ./chain.yaml}\n  - {id: c, agent: explorer, prompt: x}\n"
    )
    script = "default: OK from {{step}}\nsteps: {kid/b: {output: late, delay_ms: 3600000}}\n"
    (recipes / "hanging.yaml").write_text(script)
    process = background("run", "parent.yaml", "--script", "hanging.yaml")
    run = until(lambda run: any("b" in kid["steps"] for kid in run["runs"]))
    assert fanfold("cancel", run["children"][0], "--json").json()["status"] == "cancelled"
    assert process.wait(timeout=PATIENCE_S) == 1
    document = fanfold("resume", run["run_id"], "--json").json()
    assert (document["status"], document["steps"]["c"]["status"]) == ("partial", "completed")


def test_cancelling_a_child_run_that_waits_does_not_do_the_rest_of_the_run_in_its_place(
    fanfold, recipes, until
):
    (recipes / "parent.yaml").write_text(
        "name: parent\nsteps:\n"
        "  - {id: kid, workflow: ./gated.yaml, on_failure: inline}\n"
        "  - {id: b, agent: explorer, prompt: x, depends_on: kid}\n"
    )
    assert fanfold("run", "parent.yaml", "--script", "hanging.yaml").status == 3
    (child,) = fanfold("inspect", "last", "--json").json()["children"]
    assert fanfold("cancel", child, "--json").json()["status"] == "cancelled"
    run = until(lambda run: run["steps"]["b"]["status"] == "running")
    assert fanfold("cancel", run["run_id"]).status == 0


# Approvals


def test_approving_a_run_without_an_owner_continues_it_in_the_background(fanfold, recipes, until):
    assert fanfold("run", "gated.yaml", "--script", "quick.yaml").status == 3
    (recipes / "better.txt").write_text("a better text")
    answer = fanfold("approve", "last", "ok", "--comment", "nice", "--edit", "better.txt", "--json").json()
    assert (answer["step"], answer["decision"], answer["detached"]) == ("ok", "approve", True)
    run = until(lambda run: run["status"] == "completed")
    output = run["steps"]["ok"]["output"]
    assert (output["decision"], output["comment"], output["edited"]) == ("approve", "nice", "a better text")


def test_rejecting_fails_the_step_with_the_reason(fanfold, recipes, until):
    assert fanfold("run", "gated.yaml", "--script", "quick.yaml").status == 3
    assert fanfold("reject", "last", "ok", "--comment", "not yet").status == 0
    run = until(lambda run: run["status"] == "partial")
    assert run["steps"]["ok"]["error"]["code"] == "approval.rejected"
    assert run["steps"]["ok"]["error"]["message"] == "not yet"
    assert run["steps"]["ship"]["status"] == "skipped"


def test_a_second_answer_gets_an_error_with_the_first_one(fanfold, recipes, background):
    assert fanfold("run", "gated.yaml", "--script", "quick.yaml").status == 3
    racing = {word: background(word, "last", "ok", "--json") for word in ("approve", "reject")}
    said = {word: json.loads(process.communicate(timeout=PATIENCE_S)[0]) for word, process in racing.items()}
    output = fanfold("inspect", "last", "--json").json()["steps"]["ok"]["output"]
    winner = output["decision"]
    loser = "reject" if winner == "approve" else "approve"
    assert (said[winner]["decision"], racing[winner].returncode) == (winner, 0)
    assert (said[loser]["error"]["code"], racing[loser].returncode) == ("approval.closed", 2)


def test_an_answer_is_only_confirmed_when_it_is_the_one_that_was_recorded(fanfold, recipes):
    assert fanfold("run", "gated.yaml", "--script", "quick.yaml").status == 3
    with closing(wire(recipes)) as project:  # somebody was quicker, and no process acted on it yet
        leave(project, project.resolve("last"), AnswerRequest("ok", "approve", "somebody else"))
    late = fanfold("reject", "last", "ok", "--json")
    assert (late.status, late.json()["error"]["code"]) == (2, "approval.closed")
    assert "approve by" in late.json()["error"]["message"]


def test_an_answer_that_no_process_could_act_on_says_where_the_reason_is(fanfold, recipes, monkeypatch):
    assert fanfold("run", "gated.yaml", "--script", "quick.yaml").status == 3
    monkeypatch.setenv("FANFOLD_MAX_THREADS", "nonsense")
    monkeypatch.setattr("fanfold.wiring.wire", lambda folder, **options: wire(folder, {}, **options))
    failed = fanfold("approve", "last", "ok", "--json")
    assert (failed.status, failed.json()["error"]["code"]) == (1, "run.not_taken_over")
    assert "detached.log" in failed.json()["error"]["hint"]


def test_a_list_shows_the_spending_of_a_live_run_and_its_child_runs(fanfold, recipes, background, until):
    used = "delay_ms: 300, usage: {input_tokens: 100, output_tokens: 10, cost_usd: 0.01}"
    script = f"default: {{output: ok, {used}}}\nsteps: {{b: {{output: late, delay_ms: 3600000}}}}\n"
    (recipes / "hanging.yaml").write_text(script)
    (recipes / "kid.yaml").write_text("name: kid\nsteps: [{id: up, agent: explorer, prompt: x}]\n")
    steps = "  - {id: k, workflow: ./kid.yaml}\n  - {id: b, agent: explorer, prompt: x, depends_on: [k]}\n"
    (recipes / "parent.yaml").write_text(f"name: parent\nsteps:\n{steps}")
    background("run", "parent.yaml", "--script", "hanging.yaml")
    run = until(lambda run: run["steps"].get("b", {}).get("status") == "running")
    (row,) = fanfold("runs", "--json").json()
    assert (row["usage"]["agents"], row["usage"]["input_tokens"], row["usage"]["cost_usd"]) == (2, 100, 0.01)
    assert row["usage"] == run["usage"]
    assert fanfold("verify", "last").status == 0
    assert fanfold("cancel", "last").status == 0
    assert fanfold("verify", "last").status == 0


def test_a_live_run_takes_an_answer_while_other_steps_run(fanfold, recipes, background, until):
    recipe = GATED + "  - {id: b, agent: explorer, prompt: x}\n"
    (recipes / "gated.yaml").write_text(recipe)
    process = background("run", "gated.yaml", "--script", "hanging.yaml")
    until(lambda run: run["steps"].get("ok", {}).get("status") == "waiting")
    answer = fanfold("approve", "last", "ok", "--json").json()
    assert answer["detached"] is False
    until(lambda run: run["steps"]["ship"]["status"] == "completed")
    assert process.poll() is None
    assert fanfold("cancel", "last").status == 0


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["last", "nothing"], 6, "step.not_found"),
        (["last", "a"], 2, "approval.not_one"),
        (["last", "later"], 2, "approval.not_open"),
        (["last", "each[1]/inner#2/yes"], 2, "approval.not_open"),
        (["last", "ok/inner"], 6, "step.not_found"),
        (["last", "pick", "--choice", "c"], 2, "approval.bad_choice"),
        (["last", "pick"], 2, "approval.bad_choice"),
        (["last", "ok", "--choice", "no"], 2, "approval.bad_choice"),
        (["last", "ok", "--edit", "missing.txt"], 2, "usage.bad_file"),
        (["zzzz", "ok"], 6, "run.not_found"),
    ],
)
def test_answers_that_do_not_fit_are_refused_with_the_reason(fanfold, recipes, arguments, status, code):
    (recipes / "gated.yaml").write_text(
        GATED
        + '  - {id: pick, approve: "Which?", choices: [x, y], depends_on: [a]}\n'
        + '  - {id: later, approve: "Then?", depends_on: [ok]}\n'
        + "  - {id: each, for_each: '[1, 2]', depends_on: [ok], steps: [{id: yes, approve: q}]}\n"
    )
    assert fanfold("run", "gated.yaml", "--script", "quick.yaml").status == 3
    for command in ("approve", "reject")[: 2 if "--choice" in arguments else 1]:
        refused = fanfold(command, *arguments, "--json")
        assert (refused.status, refused.json()["error"]["code"]) == (status, code)


def test_a_mistyped_step_is_answered_with_the_one_that_was_probably_meant(fanfold, recipes):
    (recipes / "parent.yaml").write_text("name: parent\nsteps: [{id: kids, workflow: ./gated.yaml}]\n")
    assert fanfold("run", "parent.yaml", "--script", "quick.yaml").status == 3
    for command in (
        ["approve", "last", "kid/ok"],
        ["reject", "last", "kid/ok"],
        ["answer", "last", "kid/ok", "x"],
    ):
        refused = fanfold(*command, "--json")
        assert (refused.status, refused.json()["error"]["hint"]) == (6, 'did you mean "kids/ok"?')


def test_an_approval_in_a_child_run_is_answered_by_its_tree_path_or_in_the_child(fanfold, recipes, until):
    (recipes / "parent.yaml").write_text(
        "name: parent\nsteps:\n  - {id: kids, workflow: ./gated.yaml, for_each: '[1, 2]'}\n"
    )
    assert fanfold("run", "parent.yaml", "--script", "quick.yaml").status == 3
    run = fanfold("inspect", "last", "--json").json()
    assert fanfold("approve", run["run_id"], "kids[0]/ok").status == 0
    until(lambda run: run["runs"][0]["status"] == "completed", run["run_id"])
    assert fanfold("approve", run["children"][1], "ok").status == 0
    until(lambda run: run["status"] == "completed", run["run_id"])
    assert fanfold("verify", run["run_id"]).status == 0


# Following


def test_watching_shows_what_happens_elsewhere_and_ends_with_the_run(recipes, background, shell, until):
    script = {"default": {"output": "OK from {{step}}", "delay_ms": long_enough_ms(4_000)}}
    (recipes / "hanging.yaml").write_text(json.dumps(script))
    process = background("run", "chain.yaml", "--script", "hanging.yaml")
    run = until(lambda run: run["steps"].get("a", {}).get("status") == "running")["run_id"]
    watched = shell("watch", run)
    assert (watched.status, watched.out) == (0, "OK from b\n")
    assert "a started (explorer)" in watched.err
    assert "b completed" in watched.err
    assert process.wait(timeout=PATIENCE_S) == 0


def test_watching_ends_when_the_run_has_no_owner(recipes, shell, fanfold):
    assert fanfold("run", "gated.yaml", "--script", "quick.yaml").status == 3
    watched = shell("watch", "last")
    assert watched.status == 3
    assert "fanfold approve" in watched.err


def test_a_followed_log_gives_each_event_once(recipes, background, shell, until, fanfold):
    script = {"default": {"output": "OK from {{step}}", "delay_ms": long_enough_ms(4_000)}}
    (recipes / "hanging.yaml").write_text(json.dumps(script))
    background("run", "chain.yaml", "--script", "hanging.yaml")
    run = until(lambda run: run["steps"].get("a", {}).get("status") == "running")["run_id"]
    followed = shell("logs", run, "-f", "--json").out
    assert followed == fanfold("logs", run, "--json").out
    events = followed.splitlines()
    assert len(set(events)) == len(events) >= 7


# What an approver must see


def test_every_surface_shows_the_question_and_its_context(fanfold, recipes):
    (recipes / "choosing.yaml").write_text(
        "name: choosing\nsteps:\n  - {id: a, agent: explorer, prompt: x}\n"
        '  - {id: ok, approve: "Ship {{steps.a.output}}?", show: "line 1\\n{{steps.a.output}}", '
        "choices: [now, never], depends_on: [a]}\n"
    )
    progress = fanfold("run", "choosing.yaml", "--script", "quick.yaml").err
    assert "ok waits for approval: Ship OK from a?\n" in progress
    asked = {"question": "Ship OK from a?", "show": "line 1\nOK from a", "choices": ["now", "never"]}
    document = fanfold("inspect", "last", "--json").json()
    assert document["steps"]["ok"]["approval"] == asked
    assert "approval" not in document["steps"]["a"]
    assert fanfold("explain", "last", "ok", "--json").json()["approval"] == asked
    for command in (["inspect", "last"], ["explain", "last", "ok"]):
        shown = fanfold(*command).out
        assert "Ship OK from a?" in shown
        assert "│ OK from a" in shown
    assert "choices: now, never" in fanfold("inspect", "last").out
    assert "waits for approval: Ship OK from a?" in fanfold("logs", "last").out
    recorded = [json.loads(line)["data"] for line in fanfold("logs", "last", "--json").out.splitlines()]
    waiting = next(data for data in recorded if data.get("status") == "waiting")
    assert waiting["summary"] == "Ship OK from a?\n\nline 1\nOK from a"
    assert fanfold("approve", "last", "ok", "--choice", "now").status == 0
    assert "approval" not in fanfold("inspect", "last", "--json").json()["steps"]["ok"]


def test_a_question_is_never_taken_for_the_summary_of_its_answer(fanfold, recipes, until):
    (recipes / "after.yaml").write_text(
        "name: after\nsteps:\n  - {id: ok, approve: Really?}\n"
        "  - {id: b, agent: explorer, prompt: go on, depends_on: [ok]}\n"
    )
    assert fanfold("run", "after.yaml", "--script", "quick.yaml").status == 3
    assert fanfold("approve", "last", "ok").status == 0
    run = until(lambda run: run["status"] == "completed")["run_id"]
    tasks = [
        json.loads(line)["data"].get("task", "") for line in fanfold("logs", run, "--json").out.splitlines()
    ]
    assert not any("Really?" in task for task in tasks)
    assert any("A person answered approve" in task for task in tasks)


def test_a_child_run_that_only_asks_is_waiting(fanfold, recipes, background, until):
    (recipes / "parent.yaml").write_text(
        "name: parent\nsteps:\n  - {id: kid, workflow: ./gated.yaml}\n"
        "  - {id: b, agent: explorer, prompt: x}\n"
    )
    background("run", "parent.yaml", "--script", "hanging.yaml")
    seen = until(lambda run: run["runs"] and run["runs"][0]["status"] == "waiting")
    assert seen["status"] == "running"
    heads = {head["run_id"]: head["status"] for head in fanfold("runs", "--all", "--json").json()}
    assert heads == {seen["run_id"]: "running", seen["children"][0]: "waiting"}
    assert fanfold("cancel", "last").status == 0


# Who drives it


def test_runs_and_inspect_say_which_process_drives_a_run(fanfold, hanging):
    process, run = hanging
    owner = {"pid": process.pid, "alive": True, "machine": platform.node()}
    assert fanfold("runs", "--json").json()[0]["owner"] == owner
    assert fanfold("inspect", run, "--json").json()["owner"] == owner
    process.kill()
    process.wait()
    assert fanfold("runs", "--json").json()[0]["owner"] == {**owner, "alive": False}


def test_the_state_of_the_scheduler_is_written_as_json(fanfold, recipes):
    assert fanfold("run", "gated.yaml", "--script", "quick.yaml").status == 3
    shown = fanfold("inspect", "last", "--state").out
    assert '  slots: {"used":0,"of":4}\n' in shown
    assert "  owner: null\n" in shown


def test_the_only_approval_that_waits_needs_no_name(fanfold, project):
    (project / "ask.yaml").write_text(
        'name: ask\nsteps:\n  - {id: one, approve: "First?"}\n  - {id: two, approve: "Second?"}\n'
    )
    assert fanfold("run", "ask.yaml").status == 3
    which = fanfold("approve", "last", "--json").json()["error"]
    assert (which["code"], which["details"]["waiting"]) == ("approval.which", ["one", "two"])
    assert fanfold(*which["hint"].partition("fanfold ")[2].split()).status == 0
    answered = fanfold("reject", "last", "--json").json()
    assert (answered["step"], answered["decision"]) == ("two", "reject")
    assert fanfold("watch", "last").status == 1
    assert fanfold("approve", "last", "--json").json()["error"]["code"] == "approval.none"
