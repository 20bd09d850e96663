"""What a run would have taken with another number of slots: its recorded durations through the scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fanfold.errors import AuthorError
from fanfold.kernel.events import UNBOUNDED, event_of
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.kernel.nodes import Node
from fanfold.runtime.forecast.host import ForecastHost
from fanfold.runtime.forecast.order import Order
from fanfold.runtime.forecast.recorded import Recording, Replayed
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.recipes.forecasts import Slots, Time, WhatIf
from fanfold.runtime.views.times import duration

MAX_SLOTS = 1_024


def what_if(project: Project, run: str, max_concurrency: int) -> WhatIf:
    """The tree that `run` belongs to, replayed with `max_concurrency` slots."""
    if not 1 <= max_concurrency <= MAX_SLOTS:
        message = f"--max-concurrency must be from 1 to {MAX_SLOTS}, not {max_concurrency}"
        raise AuthorError("usage.out_of_range", message)
    root = project.resolve(run).root_run_id
    recording = Recording(event_of(envelope) for envelope in project.store.tree(root))
    if recording.plan.open:
        message = f"run {root} has no plan of its own: its steps began when somebody asked for them"
        raise AuthorError("run.open", message, hint="ask about the run of a recipe; fanfold runs lists them")
    replayed = _Replay(recording, recording.settings.max_concurrency)
    asked = _Replay(recording, max_concurrency)
    path, length = asked.critical_path()
    was = project.view(root)
    return WhatIf(
        run_id=root,
        recipe=recording.plan.name,
        version=recording.plan.version,
        max_concurrency=Slots(recording.settings.max_concurrency, max_concurrency),
        time_ms=Time(was.state.clock, replayed.host.now, asked.host.now, sum(asked.spent.values())),
        attempts=len(asked.host.begun),
        critical_path=path,
        critical_path_ms=length,
        notes=list(_notes(recording, asked, over=was.root.status in RUN_TERMINAL)),
    )


class _Replay:
    """A recording driven through the scheduler with some number of slots, and no other limit of the tree."""

    def __init__(self, recording: Recording, slots: int) -> None:
        settings = replace(
            recording.settings,
            max_concurrency=slots,
            max_agents=UNBOUNDED,
            max_steps=UNBOUNDED,
            budget_tokens=None,
            budget_micro_usd=None,
        )
        self.world = Replayed(recording)
        self.host = ForecastHost(
            recording.plan, settings, self.world, run_id=recording.run_id, largest=UNBOUNDED
        )
        self.host.drive()
        self.spent: dict[Node, int] = {}
        """What the attempts of each step took together; waits for people take nothing."""
        for begun in self.host.begun:
            asks = begun.node.step.traits.waits == "person"
            took = 0 if asks else min(begun.until, self.host.now) - begun.at
            self.spent[begun.node] = self.spent.get(begun.node, 0) + took

    def critical_path(self) -> tuple[list[str], int]:
        steps = sorted(self.spent, key=lambda node: node.order)
        took = [self.spent[step] + self.host.backed_off.get(step, 0) for step in steps]
        numbers = Order(self.host.state.root.scope, steps).critical_path(took.__getitem__)
        paths = [steps[number].run.tree_path(steps[number].path) for number in numbers]
        return paths, sum(took[number] for number in numbers)


def _notes(recording: Recording, asked: _Replay, *, over: bool) -> Iterator[str]:
    if not over:
        yield "the run is not over: this is about the steps that have ended"
    elif asked.world.unknown:
        yield f"{_count(asked.world.unknown, 'step')} did not end; what they took is not known"
    if asked.world.people:
        yield f"waits for people are left out ({_count(asked.world.people, 'question')})"
    if recording.lost:
        yield f"{_count(recording.lost, 'execution')} ended with the process; that time is not known"
    timeout = recording.settings.timeout_ms
    if timeout is not None and asked.host.now > timeout:
        yield f"this is longer than the run's time limit of {duration(timeout)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
