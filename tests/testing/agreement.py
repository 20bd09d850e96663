"""Does a dry run foretell what the embedded host does? Asked of many random plans.

    python -m tests.testing.agreement --seed 1 --count 5000 [--jobs N]

One plan per seed. Its expressions are put into CEL, so that all of them are known before the run. Then it is
dry-run, and it is driven for real: the run tree of the embedded host answers every command (expressions,
templates, sets, child runs, folded outputs), and every attempt takes one tick. The waves, and the order
within them, must be the same, and the agents that were started must lie within the bounds. A disagreement
prints both and the command that repeats it; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from multiprocessing import Pool
from pathlib import Path
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from fanfold.engine.dry_run import AgentBounds, Bounds, dry_run
from fanfold.engine.forecast import ForecastHost, Foresight, lifted, limits_that_hold, without_deadlines
from fanfold.engine.run_tree import RunTree
from fanfold.errors import FanfoldError
from fanfold.kernel.events import (
    Data,
    Event,
    RunCreated,
    RunResumed,
    RunStarted,
    Settings,
    StepEvent,
    SubagentEvent,
    Usage,
)
from fanfold.kernel.plan import GroupAction, LeafAction, Plan, Repeat, Step, WorkflowAction
from fanfold.kernel.state import ASKED, LEAF, PAUSED, RUN_TERMINAL, RUNNING, WAITING, Node, Run
from fanfold.language.leaf_steps import ApprovalBody
from fanfold.steps.function import FunctionBody
from fanfold.steps.step_type import type_of
from fanfold.store.protocol import Blobs
from fanfold.store.sqlite import SqliteStore
from fanfold.testing.world import DELIVER, random_plan, random_settings

INPUTS = {"topic": "t"}
FAILS = "1 / 0 == 1"
"""An expression that errors."""
CHUNK = 50


class Disagreement(Struct, frozen=True):
    """Where the dry run of a seed's plan and its run part."""

    seed: int
    message: str
    foretold: list[list[str]]
    happened: list[list[str]]


def compare(seed: int) -> Disagreement | None:
    """One random plan, foretold and run."""
    rng = Random(seed)
    plan = random_plan(rng)
    settings = replace(random_settings(rng, plan), timeout_ms=None)
    plan = without_deadlines(in_cel(plan, rng))
    run = TickedRun(plan, settings)
    try:
        foretold, _ = dry_run(plan, INPUTS, settings)
        run.drive()
    except FanfoldError as error:
        return Disagreement(seed, f"{error.code}: {error.message}", [], run.waves)
    message = ""
    for number, (mine, theirs) in enumerate(zip(foretold.waves, run.waves, strict=False), 1):
        if mine != theirs:
            message = f"wave {number}: foretold {mine}, started {theirs}"
            break
    if not message and len(foretold.waves) != len(run.waves):
        message = f"foretold {len(foretold.waves)} waves, there were {len(run.waves)}"
    agents, low, high = run.tree.state.agents, foretold.agents.min, foretold.agents.max
    if agents > high >= settings.max_agents:  # the dry run counts up to the pause that was lifted here
        low, _, high = _bounds_beyond_pauses(plan, settings)
    if not message and not low <= agents <= high:
        message = f"foretold {low} to {high} agents, {agents} were started"
    return Disagreement(seed, message, foretold.waves, run.waves) if message else None


def _bounds_beyond_pauses(plan: Plan, settings: Settings) -> Bounds:
    """The bounds of the same forecast, without the cap at which it pauses.

    A run without the cap is no substitute: it starts steps earlier, and a failure stops others.
    """
    world = Foresight(INPUTS)
    host = ForecastHost(plan, settings, world)
    host.drive()
    return AgentBounds(host.state.plan, world.assumed).of(host.state.root.scope)


class TickedRun:
    """A run in the hands of the embedded host's own run tree; every attempt takes one tick and succeeds."""

    def __init__(self, plan: Plan, settings: Settings) -> None:
        store = _store()
        created = RunCreated(plan=plan, settings=settings, inputs=Blobs(store).put(INPUTS))
        self.tree = RunTree(store, Event("real", 0, created), None)
        self.tree.blobs.put(INPUTS)  # found again under the same name
        self._ticks: dict[int, list[str]] = {}

    @property
    def waves(self) -> list[list[str]]:
        """What started in each tick, in the order of the log."""
        return list(self._ticks.values())

    def drive(self) -> None:
        tick = 0
        under_way = self._tell(self.tree.root, tick, RunStarted())
        while self.tree.root.status not in RUN_TERMINAL:
            tick += 1
            ended, under_way = under_way, []
            for node in ended:
                under_way += self._tell(node.run, tick, self._end(node))

    def _tell(self, run: Run, tick: int, data: Data) -> list[Node]:
        """Report, and have a person agree at once to whatever asks then; the attempts that are new."""
        self._report(run, tick, data)
        begun = self._started(tick)
        for node in begun:
            if node.step.type == "deliver" and not node.agreed:
                for word, status in ((ASKED, RUNNING), ("agreed", WAITING)):
                    if node.status == status:  # else its run was wound up
                        self._report(node.run, tick, StepEvent(node.path, word, node.attempt, node.execution))
                begun += [other for other in self._started(tick) if other is not node]
        return begun

    def _report(self, run: Run, tick: int, data: Data) -> None:
        """Tell the run; where a limit holds it then, a person lifts that at once."""
        tree = self.tree
        tree.report(run.id, tick, data)
        while tree.root.status == PAUSED:
            raised = lifted(limits_that_hold(tree.state))
            tree.report(tree.root.id, tick, RunResumed(tree.state.epoch + 1, raised))

    def _end(self, node: Node) -> StepEvent:
        usage = None
        if node.step.traits.role is not None:
            tokens, micro_usd = node.reservation
            usage = Usage(input_tokens=tokens, micro_usd=micro_usd)
        said = {"decision": "approve"} if node.step.traits.waits else f"done by {node.path}"
        output = self.tree.blobs.put(said)
        return StepEvent(node.path, "completed", node.attempt, node.execution, output, usage=usage)

    def _started(self, tick: int) -> list[Node]:
        """The attempts that the log announced since it was last looked at."""
        written, self.tree.pending = self.tree.pending, []
        nodes: list[Node] = []
        for envelope in written:
            data = envelope.data
            if not isinstance(data, StepEvent | SubagentEvent):
                continue
            node = self.tree.state.runs[envelope.run_id].nodes[data.step]
            at_once = data.status == "completed" and type_of(node.step).settled
            if node.kind == LEAF and (at_once or data.status in ("started", "waiting")):
                nodes.append(node)
        first = [node.run.tree_path(node.path) for node in nodes if node.execution <= 1]
        if first:
            self._ticks.setdefault(tick, []).extend(first)
        return [node for node in nodes if node.status != "completed"]


@cache
def _store() -> SqliteStore:
    """Nothing is ever committed to it; a run tree wants one to look values up."""
    return SqliteStore(Path(tempfile.mkdtemp(prefix="fanfold-agreement-")), durability="normal")


# Expressions


def in_cel(plan: Plan, rng: Random) -> Plan:
    """The same plan with expressions that a real host understands; coins are tossed here, once."""
    steps = tuple(_in_cel(step, rng) for step in plan.steps)
    workflows = {name: in_cel(other, rng) for name, other in plan.workflows.items()}
    return replace(plan, steps=steps, workflows=workflows)


_STAND_INS = {"timer": ApprovalBody("go?").action(), "note": FunctionBody("count").action()}
"""For step types that only the simulated host knows: real ones, which keep their traits."""


def _in_cel(step: Step, rng: Random) -> Step:
    action, inputs = step.action, step.inputs
    if isinstance(action, LeafAction) and action.type in _STAND_INS:
        action = replace(_STAND_INS[action.type], traits=action.traits)
    elif step.type == "command" and rng.random() < 0.4:
        action = DELIVER  # of which random plans have few
    elif isinstance(action, GroupAction):
        action = replace(action, steps=tuple(_in_cel(inner, rng) for inner in action.steps))
    elif isinstance(action, WorkflowAction):
        inputs = {name: value for name, value in inputs.items() if name in INPUTS}  # no others are declared
    return replace(
        step,
        action=action,
        inputs=inputs,
        when=None if step.when is None else _condition(step.when, rng),
        for_each=None if step.for_each is None else _list(step.for_each),
        repeat=None if step.repeat is None else _gate(step.repeat, rng),
        fold=None if step.fold is None else _in_cel(step.fold, rng),
    )


def _condition(word: str, rng: Random) -> str:
    return {"coin": rng.choice(("true", "false")), "error": FAILS}.get(word, word)


def _list(word: str) -> str:
    if word == "error":
        return f"[{FAILS}]"
    count = int(word.removeprefix("items:"))
    return "[" + ", ".join(f'"p{index % 3}"' for index in range(count)) + "]"


def _gate(repeat: Repeat, rng: Random) -> Repeat:
    word = repeat.until
    words = {"coin": rng.choice(("true", "false")), "error": FAILS, "never": "false"}
    return replace(repeat, until=words.get(word, f"iteration >= {word.removeprefix('from:')}"))


# Many of them


def find_disagreements(seeds: Sequence[int]) -> list[Disagreement]:
    return [found for found in map(compare, seeds) if found is not None]


def _chunks(seed: int, count: int) -> Iterator[range]:
    for start in range(seed, seed + count, CHUNK):
        yield range(start, min(start + CHUNK, seed + count))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.testing.agreement", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=1_000, help="plans to compare, one per seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    chunks = _chunks(options.seed, options.count)
    with Pool(options.jobs) if options.jobs > 1 else nullcontext() as pool:
        for found in (
            map(find_disagreements, chunks) if pool is None else pool.imap(find_disagreements, chunks)
        ):
            for one in found:
                say(f"seed {one.seed}: {one.message}")
                say(f"  foretold {one.foretold}\n  happened {one.happened}")
                say(f"to repeat:\n  python -m tests.testing.agreement --seed {one.seed} --count 1")
            if found:
                return 1
    say(f"dry run and run agree on {options.count} plans ({time.monotonic() - began:.1f} s)")
    return 0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
