"""The simulator repeats itself exactly, meets everything it claims to meet, and reports what it finds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fanfold.kernel.events import Event, RunStarted
from fanfold.kernel.plan import GroupAction, Input, Plan, Ref, Step, WorkflowAction
from fanfold.kernel.state import Node, Run
from fanfold.language.leaf_steps import AgentBody
from fanfold.testing.checks import InvariantError, check_acknowledged
from fanfold.testing.simulate import create_run, live, main, run_schedule, simulate
from fanfold.testing.simulated_store import SimulatedStore, StaleEpochError
from fanfold.testing.world import SimulatedWorld
from tests.testing.planted import plant

DIGESTS = """
from fanfold.testing.simulate import run_schedule
print([run_schedule(seed).digest for seed in range(1, 81)])
"""


@pytest.mark.full
def test_the_same_seed_gives_the_same_log_byte_for_byte_whatever_the_hash_seed():
    def digests(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", DIGESTS]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    first = digests("1")
    assert first == digests("2")
    assert len(set(first.split())) == 80


@pytest.mark.full
def test_schedules_spread_over_processes_come_to_the_same_sums():
    one, two = simulate(1, 120, jobs=1), simulate(1, 120, jobs=2)
    assert (one.events, one.crashes, one.reached) == (two.events, two.crashes, two.reached)


@pytest.mark.full
def test_a_clean_simulation_says_what_it_covered(capsys: pytest.CaptureFixture[str]):
    assert main(["--seed", "1", "--count", "60", "--jobs", "1", "--verbose"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("60 schedules, ")
    assert "ready + started" in out


def test_a_violation_prints_the_invariant_the_log_and_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str],
):
    with plant("one_slot_too_many"):
        assert main(["--seed", "1", "--count", "100", "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    seed = out.split(":")[0].removeprefix("seed ")
    assert "invariant 8:" in out
    assert '"tree_seq":' in out
    assert f"python -m fanfold.testing.simulate --seed {seed} --count 1" in out


# The checks that need a host are able to fail


def started() -> Event:
    return Event("r0", 1, RunStarted())


def run_of_nothing() -> Run:
    return Run("r0", Plan(name="p", steps=()), None, None)


def test_a_crash_keeps_what_was_acknowledged_and_cuts_the_rest():
    store, run = SimulatedStore(), run_of_nothing()
    epoch = store.take_lease()
    store.append(started(), run, "r0", epoch)
    store.commit()
    store.append(started(), run, "r0", epoch)
    store.append(started(), run, "r0", epoch)
    assert store.crash(keep=1) == 1
    assert len(store.lines) == 2
    assert store.append(started(), run, "r0", epoch).seq == 3


def test_losing_an_acknowledged_line_is_noticed():
    store = SimulatedStore()
    store.append(started(), run_of_nothing(), "r0", store.take_lease())
    store.commit()
    check_acknowledged(store)
    store.lines.pop()
    with pytest.raises(InvariantError, match="invariant 2"):
        check_acknowledged(store)


def test_an_owner_whose_lease_was_taken_cannot_append():
    store = SimulatedStore()
    stale = store.take_lease()
    store.take_lease()
    with pytest.raises(StaleEpochError):
        store.append(started(), run_of_nothing(), "r0", stale)
    assert store.lines == []


def drive(plan: Plan) -> str:
    """Run a plan on a calm day; the status it ends with."""
    world = SimulatedWorld(1)
    world.plan = plan
    world.faults.calm = True
    owner = create_run(world)
    live(owner)
    return owner.state.root.status


def reading(id: str, path: str, *deps: str) -> Step:
    return Step(id=id, action=AgentBody().action(), inputs={"x": Ref(path)}, depends_on=deps)


TOPIC = (Input(name="topic"),)


def test_a_step_may_see_what_it_depends_on():
    inner = Step(id="g", action=GroupAction((reading("in", "steps.a.output"),)), depends_on=("a",))
    steps = (reading("a", "inputs.topic"), inner, reading("b", "steps.a.output", "a"))
    assert drive(Plan(name="p", inputs=TOPIC, steps=steps)) == "completed"


def test_a_step_that_sees_another_without_an_edge_is_noticed():
    plan = Plan(name="p", inputs=TOPIC, steps=(reading("a", "inputs.topic"), reading("b", "steps.a.output")))
    with pytest.raises(InvariantError, match="without an edge"):
        drive(plan)


def test_a_child_run_that_reaches_for_a_step_of_its_parent_is_noticed():
    call = Step(id="kid", action=WorkflowAction("child"), depends_on=("a",))
    child = Plan(name="child", steps=(reading("b", "steps.a.output"),))
    plan = Plan(
        name="p", inputs=TOPIC, steps=(reading("a", "inputs.topic"), call), workflows={"child": child}
    )
    with pytest.raises(InvariantError, match="not visible"):
        drive(plan)


def test_a_value_from_beyond_the_inputs_of_a_child_run_is_noticed(monkeypatch: pytest.MonkeyPatch):
    """An agent in the child got at an output of the parent by some other way."""
    call = Step(id="kid", action=WorkflowAction("child"), depends_on=("a",))
    child = Plan(
        name="child", inputs=TOPIC, steps=(reading("b", "inputs.topic"), reading("c", "steps.b.output", "b"))
    )
    world = SimulatedWorld(1)
    world.plan = Plan(
        name="p", inputs=TOPIC, steps=(reading("a", "inputs.topic"), call), workflows={"child": child}
    )
    world.faults.calm = True
    owner = create_run(world)
    result = world.values.result

    def leak(node: Node, attempt: int, seen: list[str]) -> str:
        key = result(node, attempt, seen)
        world.values.origins[key] |= {"a"}
        return key

    monkeypatch.setattr(world.values, "result", leak)
    with pytest.raises(InvariantError, match="beyond its inputs"):
        live(owner)


def test_an_outcome_holds_the_end_of_its_log():
    assert len(run_schedule(1, tail=3).tail) == 3
