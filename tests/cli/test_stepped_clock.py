"""The wall clock is really set while a run is under way: nothing stops, nothing ends for it.

Back an hour and forward a day, at the moments when a run waits for time: before another attempt, for a
time-out, in a `wait` step, for the limit of the run; and while it is dead. The owner's lease stays its own.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.stepped_clock import SteppedClock, build
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

STEPS_S = {"back": -3_600, "forward": 86_400}
WAITS = """\
name: waits
limits: {timeout: 10m}
steps:
  - id: again
    agent: explorer
    prompt: a
    retry: {attempts: 2, backoff: 2s, on: [transport]}
  - {id: late, agent: explorer, prompt: b, timeout: 2s, depends_on: [again], on_failure: inline}
  - {id: nap, wait: 2s, depends_on: [late]}
  - {id: last, agent: explorer, prompt: "{{steps.late.output}}", depends_on: [nap]}
"""
SCRIPT = """\
default: ok
steps:
  again: [{fail: {class: transport, message: gone}}, fine]
  late: {output: never, delay_ms: 600000}
"""
HANGS = """\
name: hangs
limits: {timeout: 4s}
steps: [{id: hang, agent: explorer, prompt: a}]
"""
NEVER = "default: {output: never, delay_ms: 600000}\n"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = build(tmp_path_factory.mktemp("clock"))
    if isinstance(made, str):
        pytest.skip(f"{made}: apt-get install gcc")
    return made


@pytest.fixture
def clock(library: Path, tmp_path: Path) -> SteppedClock:
    return SteppedClock(library, tmp_path / "offset")


def write(project: Path, recipe: str, script: str) -> None:
    (project / "r.yaml").write_text(recipe)
    (project / "s.yaml").write_text(script)


def moments(fanfold: Callable[..., Any]) -> list[int]:
    """When each event of the run happened, as its log says."""
    return [json.loads(line)["at"] for line in fanfold("logs", "last", "--json").out.splitlines()]


ENDS = {"again": "completed", "late": "timed_out", "nap": "completed", "last": "completed"}


@pytest.mark.parametrize("step_s", STEPS_S.values(), ids=STEPS_S)
def test_a_wait_of_a_run_is_as_long_as_it_is_whatever_the_wall_clock_does(
    fanfold, background, until, project, clock, step_s
):
    write(project, WAITS, SCRIPT)
    running = background("run", "r.yaml", "--script", "s.yaml", "--yes", "--json", **clock.environment)
    for number, (step, status) in enumerate(
        (("again", "waiting"), ("late", "running"), ("nap", "waiting")), 1
    ):
        until(partial(stands, step, status), timeout_s=PATIENCE_S)
        clock.ahead(number * step_s)
    out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, out + err
    steps = fanfold("inspect", "last", "--json").json()["steps"]
    assert {name: step["status"] for name, step in steps.items()} == ENDS
    told = moments(fanfold)
    assert told == sorted(told)
    assert told[-1] - told[0] < 3_000_000, "the log counts what passed"
    assert fanfold("verify", "last").status == 0


def stands(step: str, status: str, seen: Any) -> bool:
    """Whether a step stands like that, or has gone on from there already."""
    found = seen["steps"].get(step, {}).get("status")
    return found in (status, "completed", "timed_out")


@pytest.mark.parametrize("step_s", STEPS_S.values(), ids=STEPS_S)
def test_the_limit_of_a_run_counts_what_passed(fanfold, background, until, project, clock, step_s):
    write(project, HANGS, NEVER)
    began = time.monotonic()
    running = background("run", "r.yaml", "--script", "s.yaml", "--yes", **clock.environment)
    until(partial(stands, "hang", "running"), timeout_s=PATIENCE_S)
    clock.ahead(step_s)
    running.communicate(timeout=PATIENCE_S)
    assert fanfold("inspect", "last", "--json").json()["status"] == "timed_out"
    assert time.monotonic() - began > 4, "it had all of its time"


@pytest.mark.parametrize("step_s", STEPS_S.values(), ids=STEPS_S)
def test_an_owner_whose_clock_was_set_keeps_its_run(fanfold, background, until, project, clock, step_s):
    write(project, HANGS.replace("4s", "10m"), NEVER)
    owner = background("run", "r.yaml", "--script", "s.yaml", "--yes", **clock.environment)
    until(partial(stands, "hang", "running"), timeout_s=PATIENCE_S)
    clock.ahead(step_s)
    before = beat(project)
    deadline = time.monotonic() + PATIENCE_S
    while beat(project) == before:
        assert time.monotonic() < deadline, "its heart stopped"
        time.sleep(0.05)
    refused = fanfold("resume", "last")
    assert "is being driven by process" in refused.err
    assert fanfold("cancel", "last").status == 0
    owner.communicate(timeout=PATIENCE_S)
    assert fanfold("inspect", "last", "--json").json()["status"] == "cancelled"


def beat(project: Path) -> int:
    """The last heartbeat of the one lease there is."""
    import apsw

    db = apsw.Connection(str(project / ".fanfold" / "fanfold.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(db.execute("SELECT heartbeat_at FROM leases").get)
    finally:
        db.close()


@pytest.mark.parametrize("step_s", STEPS_S.values(), ids=STEPS_S)
@pytest.mark.parametrize("when", ["late", "nap"])
def test_a_clock_that_was_set_while_a_run_was_dead_neither_ends_nor_stops_it(
    fanfold, background, until, project, clock, when, step_s
):
    write(project, WAITS.replace("timeout: 2s", "timeout: 5s").replace("wait: 2s", "wait: 5s"), SCRIPT)
    running = background("run", "r.yaml", "--script", "s.yaml", "--yes", **clock.environment)
    status = {"late": "running", "nap": "waiting"}[when]
    until(partial(stands, when, status), timeout_s=PATIENCE_S)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    clock.ahead(step_s)
    resumed = background("resume", "last", **clock.environment)
    _, err = resumed.communicate(timeout=PATIENCE_S)
    assert resumed.returncode == 0, err
    steps = fanfold("inspect", "last", "--json").json()["steps"]
    assert {name: step["status"] for name, step in steps.items()} == ENDS
    told = moments(fanfold)
    assert told == sorted(told)
    assert fanfold("verify", "last").status == 0


TWICE = """\
name: twice
steps:
  - {id: first, agent: worker, prompt: a, write_set: [notes.txt]}
  - {id: ok, approve: go on?, depends_on: [first]}
  - {id: second, agent: worker, prompt: b, write_set: [notes.txt], depends_on: [ok]}
"""
WRITERS = """\
steps:
  first: {output: a, writes: {notes.txt: "first\\n"}}
  second: {output: b, writes: {notes.txt: "second\\n"}}
"""


def test_undo_follows_the_order_of_merges_when_the_clock_was_set_back(fanfold, shell, until, project, clock):
    write(project, TWICE, WRITERS)
    (project / "notes.txt").write_text("mine\n")
    assert fanfold("run", "r.yaml", "--script", "s.yaml", "--yes").status == 3
    clock.ahead(STEPS_S["back"])
    assert shell("approve", "last", "ok", **clock.environment).status == 0
    until(lambda run: run["status"] == "completed")
    assert (project / "notes.txt").read_text() == "second\n"
    undone = fanfold("undo", "last")
    assert undone.out == "took back second, first: 1 file\n  restored notes.txt\n", undone.err
    assert (project / "notes.txt").read_text() == "mine\n"
