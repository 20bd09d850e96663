"""What Python may ask of a run that another process drives, or nobody."""

import asyncio

import pytest

import fanfold as package
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

BUSY = """\
name: busy
steps:
  - {id: slow, agent: explorer, prompt: x}
  - {id: ok, approve: Ship it?}
  - {id: when, ask: When?}
  - {id: ship, agent: explorer, prompt: "{{steps.ok.output.comment}} {{steps.when.output}}"}
"""
SCRIPT = "default: OK from {{step}}\nsteps: {slow: {output: late, delay_ms: 3600000}}\n"


@pytest.fixture
def busy(project, background, until):
    """A run that asks two things while a step of it goes on, driven by another process."""
    (project / "busy.yaml").write_text(BUSY)
    (project / "script.yaml").write_text(SCRIPT)
    process = background("run", "busy.yaml", "--script", "script.yaml")

    def asks(run):
        return {step: one["status"] for step, one in run["steps"].items()} == {
            "slow": "running",
            "ok": "waiting",
            "when": "waiting",
            "ship": "pending",
        }

    return process, until(asks)["run_id"]


def test_questions_of_another_process_s_run_are_answered(project, busy, until):
    process, run = busy
    with package.open_sync(project) as ff:
        done = ff.approve(run, comment="gladly")
        assert (done.run_id, done.step, done.decision, done.detached) == (run, "ok", "approve", False)
        assert ff.answer(run, "when", "now").detached is False
        until(lambda seen: seen["steps"]["ship"]["status"] == "completed", run)
        assert ff.transcript(run, "ship").entries[0].text == "gladly now"
        assert process.poll() is None
        assert ff.pause(run).status == "paused"
        assert process.wait(timeout=PATIENCE_S) == 3
        with pytest.raises(package.AuthorError) as refused:
            ff.approve(run)
        assert refused.value.code == "approval.none"


def test_a_run_of_another_process_is_rejected_and_cancelled(project, busy, until):
    process, run = busy

    async def work():
        async with package.open(project) as ff:
            assert (await ff.reject(run, "ok", comment="not today")).decision == "reject"
            until(lambda seen: seen["steps"]["ok"]["status"] == "failed", run)
            error = ff.inspect(run).steps["ok"].error
            assert error is not None
            assert error.message == "not today"
            return (await ff.cancel(run)).status

    assert asyncio.run(work()) == "cancelled"
    assert process.wait(timeout=PATIENCE_S) == 7


def test_a_run_without_an_owner_continues_in_the_background(project, until):
    (project / "r.yaml").write_text(
        "name: r\nsteps:\n  - {id: ok, approve: Go?}\n"
        "  - {id: a, agent: explorer, prompt: '{{steps.ok.output}}'}\n"
    )
    with package.open_sync(project) as ff:
        waiting = ff.run("r.yaml", options=package.Options(script="default: OK from {{step}}"))
        assert waiting.status == "waiting"
        assert ff.approve(waiting.run_id, "ok").detached is True
    assert until(lambda seen: seen["status"] == "completed", waiting.run_id)["output"] == "OK from a"


def test_a_run_that_this_process_drives_is_asked_in_the_same_words(project):
    (project / "busy.yaml").write_text(BUSY)
    with package.open_sync(project) as ff:
        run = ff.start("busy.yaml", options=package.Options(script=SCRIPT))
        for event in run.events():
            if event.data.get("status") == "waiting" and event.data.get("step") == "when":
                break
        ff.approve(run.id)
        run.answer("when", "now")
        assert ff.pause(run.id).status == run.status == "paused"
