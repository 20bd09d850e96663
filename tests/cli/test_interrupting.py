"""What signals do to a run in the foreground, and what a killed process leaves behind."""

import os
import pty
import signal
import subprocess
import sys

import pytest

from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

SLOW = """\
name: slow
steps:
  - {id: first, agent: explorer, prompt: x}
  - {id: second, agent: explorer, prompt: "{{steps.first.output}}"}
  - {id: third, agent: explorer, prompt: "{{steps.second.output}}"}
"""
SCRIPT = """\
default: OK from {{step}}
steps:
  second: {output: at last, delay_ms: 3600000}
"""
QUICK = SCRIPT.replace("3600000", "1500")


@pytest.fixture
def slow(project, background, until, monkeypatch):
    """A run that hangs in its second step, in a process of its own."""
    monkeypatch.setenv("FANFOLD_SCRIPT_CALLS", str(project / "calls"))
    (project / "slow.yaml").write_text(SLOW)
    (project / "script.yaml").write_text(SCRIPT)

    def start(script=SCRIPT):
        (project / "script.yaml").write_text(script)
        process = background("run", "slow.yaml", "--script", "script.yaml")
        calls = project / "calls"  # a step runs from the commit on, its agent is asked a moment later
        until(lambda run: calls.exists() and "second 1 1" in calls.read_text())
        return process

    return start


def read_until(process, words):
    while words not in (line := process.stderr.readline()):
        assert line, f"ended before it said {words!r}"


def finish(process, number):
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_pauses_durably_and_prints_how_to_resume(fanfold, slow, number):
    status, out, err = finish(slow(QUICK), number)  # the step may end its turn
    run = fanfold("inspect", "last", "--json").json()
    assert (status, out, run["status"]) == (3, "", "paused")
    assert f"fanfold resume {run['run_id']}" in err
    assert run["steps"]["first"]["status"] == "completed"
    assert fanfold("verify", "last").status == 0


@pytest.fixture
def in_a_terminal(project):
    """A run with a terminal that is its own, and the other end of that."""
    (project / "slow.yaml").write_text(SLOW)
    (project / "script.yaml").write_text(QUICK)
    here, there = pty.openpty()
    started = []

    def start(ready=lambda: None):
        def prepare():
            os.login_tty(there)
            ready()

        command = [sys.executable, "-m", "fanfold.cli.main", "run", "slow.yaml", "--script", "script.yaml"]
        environment = {**os.environ, "TERM": "xterm-256color"}
        started.append(subprocess.Popen(command, preexec_fn=prepare, env=environment))  # noqa: PLW1509 - one thread
        os.close(there)
        screen = b""
        while b"second" not in screen:
            screen += os.read(here, 65_536)
        return started[0], here

    yield start
    started[0].kill()
    started[0].wait()


def test_a_closed_terminal_pauses_durably_after_any_number_of_signals(fanfold, in_a_terminal, until):
    process, terminal = in_a_terminal()
    until(lambda run: run["steps"]["second"]["status"] == "running")
    os.close(terminal)
    process.send_signal(signal.SIGHUP)  # as the shell that ran in it does
    assert process.wait(timeout=PATIENCE_S) == 3
    run = fanfold("inspect", "last", "--json").json()
    assert (run["status"], run["steps"]["first"]["status"]) == ("paused", "completed")
    assert fanfold("verify", "last").status == 0
    assert fanfold("resume", "last").out == "OK from third\n"


def test_a_run_under_nohup_outlives_its_terminal(fanfold, in_a_terminal, until):
    process, terminal = in_a_terminal(lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    until(lambda run: run["steps"]["second"]["status"] == "running")
    os.close(terminal)
    process.wait(timeout=PATIENCE_S)
    assert fanfold("inspect", "last", "--json").json()["status"] == "completed"


def test_the_second_signal_stops_at_once_and_loses_nothing(fanfold, project, background):
    # A command is given time to end when a run pauses; the second signal does not wait for that.
    (project / "recipe.yaml").write_text(
        "name: r\nsteps: [{id: a, run: [echo, x]}, {id: b, run: [sleep, '60']}]\n"
    )
    process = background("run", "recipe.yaml", "--yes", "--max-concurrency", "1")
    read_until(process, b" b started")  # not a run whose id ends in b
    process.send_signal(signal.SIGINT)
    read_until(process, b"pausing")
    status, out, err = finish(process, signal.SIGINT)
    assert (status, out) == (130, "")
    assert "fanfold resume" in err
    assert fanfold("inspect", "last", "--json").json()["steps"]["a"]["status"] == "completed"
    assert fanfold("cancel", "last", "--json").json()["status"] == "cancelled"
    assert fanfold("verify", "last").status == 0


def test_a_paused_run_continues_without_repeating_completed_steps(fanfold, project, slow):
    finish(slow(QUICK), signal.SIGINT)
    assert (project / "calls").read_text().splitlines() == ["first 1 1", "second 1 1"]
    done = fanfold("resume", "last")
    assert (done.status, done.out) == (0, "OK from third\n")
    calls = (project / "calls").read_text().splitlines()
    assert calls == ["first 1 1", "second 1 1", "third 1 1"], "a pause lets a session end its turn"


def test_a_killed_run_is_taken_over_at_once_and_completed_steps_do_not_run_again(fanfold, project, slow):
    process = slow(QUICK)
    process.kill()
    process.communicate()
    heads = fanfold("runs", "--json").json()
    assert heads[0]["status"] == "running"
    assert "no process" in fanfold("runs").out
    assert "no process is running it" in fanfold("inspect", "last").out
    assert any(check["level"] == "warning" for check in fanfold("doctor", "--json").json()["checks"])
    done = fanfold("resume", "last", "--json")
    assert (done.status, done.json()["output"]) == (0, "OK from third")
    assert done.json()["steps"]["second"]["attempts"] == 1
    calls = (project / "calls").read_text().splitlines()
    assert calls == ["first 1 1", "second 1 1", "second 1 2", "third 1 1"]
    assert fanfold("verify", "last").status == 0


def test_a_reader_that_leaves_does_not_stop_the_run(fanfold, project, slow):
    (project / "script.yaml").write_text(QUICK)
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "fanfold.cli.main", "run", "slow.yaml", "--script", "script.yaml"],
        stdout=write,
        stderr=write,
    )
    os.close(write)
    os.read(read, 10)
    os.close(read)
    process.wait(timeout=PATIENCE_S)
    assert fanfold("inspect", "last", "--json").json()["status"] == "completed"


def test_the_exit_status_survives_a_reader_that_left(project):
    (project / "recipe.yaml").write_text("name: r\nsteps: [{id: a, run: [bash, -c, 'echo hi; exit 1']}]\n")
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "fanfold.cli.main", "run", "recipe.yaml", "--yes", "--json"]
    process = subprocess.Popen(command, stdout=write, stderr=subprocess.DEVNULL)
    os.close(write)
    assert process.wait(timeout=PATIENCE_S) == 1
