"""Subagents: spawn, wait, send, close, ps, across processes."""

import json
import os
import signal
import time

import pytest

from tests.work import PATIENCE_S

pytestmark = pytest.mark.full


@pytest.fixture
def agents(fanfold, project):
    """Scripts, and a host that is gone when the test is over."""
    (project / "quick.yaml").write_text("default: I am {{step}}\n")
    (project / "slow.yaml").write_text("default: {output: at last, delay_ms: 3600000}\n")
    (project / "bad.yaml").write_text("default: {fail: {class: agent, message: it broke}}\n")
    yield fanfold
    for child in fanfold("ps", "--json").json():
        fanfold("close", child["id"])


def spawn(fanfold, script, *more):
    result = fanfold("spawn", "explorer", "look around", "--script", f"{script}.yaml", "--json", *more)
    assert result.status in (0, 1), result.out
    return result.json()


def test_a_subagent_is_spawned_at_once_and_waited_for(agents):
    child = spawn(agents, "quick")
    assert (child["id"], child["role"], child["task"]) == ("explorer-1", "explorer", "look around")
    waited = agents("wait", "explorer-1", "--json")
    assert waited.status == 0
    assert (waited.json()[0]["status"], waited.json()[0]["summary"]) == ("completed", "I am explorer-1")
    assert agents("ps", "--json").json() == []
    assert "I am explorer-1" in agents("ps", "--all").out


def test_spawning_and_waiting_in_one_command_prints_the_output(agents):
    assert agents("spawn", "explorer", "x", "--script", "quick.yaml", "--wait").out == "I am explorer-1\n"
    failed = agents("spawn", "explorer", "x", "--script", "bad.yaml", "--wait")
    assert failed.status == 1
    assert "it broke" in failed.out


def test_waiting_never_ends_a_child(agents):
    spawn(agents, "slow")
    looked = agents("wait", "explorer-1", "--timeout", "0", "--json")
    assert (looked.status, looked.json()[0]["status"] in ("queued", "running")) == (3, True)
    assert agents("wait", "--timeout", "0.2", "--json").status == 3
    assert agents("ps", "--json").json()[0]["id"] == "explorer-1"


def test_closing_cancels_running_children_and_closes_finished_ones(agents):
    spawn(agents, "slow")
    assert agents("close", "explorer-1", "--json").json()["status"] == "cancelled"
    assert agents("close", "explorer-1", "--json").json()["status"] == "closed"
    refused = agents("send", "explorer-1", "more", "--json")
    assert (refused.status, refused.json()["error"]["code"]) == (1, "subagent.closed")


def test_input_restarts_a_finished_subagent(agents):
    spawn(agents, "quick")
    assert agents("wait", "explorer-1").status == 0
    assert agents("send", "explorer-1", "and now?").status == 0
    again = agents("wait", "explorer-1", "--json").json()[0]
    assert (again["status"], again["turns"]) == ("completed", 2)


def test_a_subagent_whose_host_was_killed_is_detached_and_is_not_spoken_to(agents, project):
    spawn(agents, "slow")
    deadline = time.monotonic() + PATIENCE_S
    while agents("ps", "--json").json()[0]["status"] != "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    from fanfold.wiring import wire

    opened = wire(project)
    found = opened.store.owner("hand")
    opened.close()
    assert found is not None
    os.kill(found[0].pid, signal.SIGKILL)
    while agents("ps", "--json").json()[0]["status"] != "detached":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    refused = agents("send", "explorer-1", "hello?", "--json")
    assert refused.json()["error"]["code"] == "subagent.detached"
    assert agents("close", "explorer-1", "--json").json()["status"] == "closed"


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["spawn", "explorr", "x"], 6, "role.not_found"),
        (["spawn", "worker", "x"], 4, "permission_denied"),
        (["spawn", "explorer", "x", "--script", "missing.yaml"], 2, "usage.bad_script"),
        (["wait", "explorer-9"], 6, "subagent.not_found"),
        (["send", "explorer-9", "x"], 6, "subagent.not_found"),
        (["close", "nobody"], 6, "subagent.not_found"),
    ],
)
def test_an_impossible_question_is_refused(agents, arguments, status, code):
    spawn(agents, "quick")
    refused = agents(*arguments, "--json")
    assert (refused.status, refused.json()["error"]["code"]) == (status, code)


def test_a_subagent_is_looked_at_like_any_step(agents):
    spawn(agents, "quick", "--name", "scout")
    agents("wait", "scout")
    agents("send", "scout", "and now?")
    agents("wait", "scout")
    kinds = [json.loads(line)["type"] for line in agents("logs", "hand", "scout", "--json").out.splitlines()]
    assert (kinds.count("session_event"), kinds.count("workflow_event")) == (4, 2)
    assert "scout#2 response" in agents("logs", "hand", "scout").out
    one = agents("inspect", "hand", "scout", "--json").json()
    assert (one["path"], one["role"], one["output"]) == ("scout#2", "explorer", "I am scout#2")
    assert "fanfold transcript hand 'scout#2'" in agents("inspect", "hand", "scout").out
    assert "it could start when it was requested" in agents("explain", "hand", "scout#2").out
    assert [hit["path"] for hit in agents("query", "hand", "scout", "--json").json()["hits"]]


def test_gc_deletes_subagents_when_all_finished_and_nothing_waits(agents, project):
    spawn(agents, "quick", "--name", "done")
    agents("wait")
    spawn(agents, "slow", "--name", "busy")
    assert agents("gc", "--older-than", "0m", "--json").json()["runs"] == []
    agents("close", "busy")
    deadline = time.monotonic() + PATIENCE_S
    while (gone := agents("gc", "--older-than", "0m", "--json").json()["runs"]) == []:
        assert time.monotonic() < deadline  # its host is about to leave
        time.sleep(0.05)
    assert gone == ["hand"]
    assert agents("ps", "--all", "--json").json() == []
    assert not (project / ".fanfold/runs/hand").exists()
    assert spawn(agents, "quick")["id"] == "explorer-1"
    assert agents("wait", "--json").status == 0
    assert agents("verify", "--all").status == 0, "the next one has its name again, and nothing else of it"


def test_a_project_without_runs_has_no_subagents(fanfold, project):
    assert fanfold("ps", "--json").json() == []
    assert fanfold("wait", "--json").json() == []
    assert not (project / ".fanfold").exists()


def test_with_workflows_off_subagents_are_still_spawned_and_sent_input(agents, monkeypatch):
    monkeypatch.setenv("FANFOLD_WORKFLOWS", "off")
    assert spawn(agents, "quick", "--wait")["id"] == "explorer-1"
    assert agents("send", "explorer-1", "And now?").status == 0
    assert agents("wait").status == 0
    assert [child["turns"] for child in agents("ps", "--all", "--json").json()] == [2]


def test_after_everybody_was_cancelled_hints_name_the_run_that_came_next(agents, project):
    spawn(agents, "quick", "--wait")
    assert agents("cancel", "hand").status == 0
    agents("watch", "hand")
    script = "default: {output: done, writes: {a.txt: new}}\n"
    (project / "writes.yaml").write_text(script)
    done = agents(
        "spawn", "worker", "x", "--script", "writes.yaml", "--name", "pp", "--write-set", "*.txt",
        "--merge", "propose", "--wait", "--yes",
    )  # fmt: skip
    assert "fanfold diff hand-2 pp" in done.out + done.err
    assert agents("diff", "hand-2", "pp").status == 0
