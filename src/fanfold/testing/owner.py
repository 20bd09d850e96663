"""One owner of a run tree: it records events, answers commands, and lets executions begin.

Rules, the same as for every host
* Log before act: an execution begins after the event that announces it was committed.
* The agenda is answered in order, one event a command, before anything else is reported.
* An owner may die at any event boundary: `Crash` is raised after an event was appended and before
  anybody acknowledged it, or between the commit and the first effect.
"""

from __future__ import annotations

from fanfold.kernel.commands import Command, Finish, Start, Stop
from fanfold.kernel.decide import decide
from fanfold.kernel.events import Data, Event, Resumed, Woke
from fanfold.kernel.lifecycle import ASKED, WAITING
from fanfold.kernel.nodes import State
from fanfold.kernel.state import evolve
from fanfold.testing.answers import answer
from fanfold.testing.checks import InvariantError, check_explained
from fanfold.testing.world import SimulatedExecution, SimulatedWorld, transition

FOREVER_MS = 600_000
"""How long a hanging attempt takes: longer than any timeout of a plan."""


class Crash(BaseException):
    """The owner dies here. A signal, not an error."""


class Owner:
    def __init__(self, world: SimulatedWorld, state: State, epoch: int) -> None:
        self.world = world
        self.state = state
        self.epoch = epoch
        self.running: list[SimulatedExecution] = []
        self.effects: list[tuple[Command, Data]] = []
        """Announced in the log, not yet begun."""

    def record(self, run: str, data: Data, command: Command | None = None) -> None:
        """Append one event, fold it, check everything, and perhaps die."""
        world, state = self.world, self.state
        event = Event(run, world.now, data)
        envelope = world.store.append(event, state.runs[run], state.root.id, self.epoch)
        world.answered.append(command)
        rows, backoffs = transition(event, state), state.backoffs
        evolve(state, event)
        world.reached.update(rows)
        if isinstance(data, Woke) and state.backoffs < backoffs:
            world.reached["waiting + woke"] += 1
        world.observe(envelope, event, state)
        world.count(state)
        if world.faults.hits("crash"):
            if state.agenda:
                resuming = isinstance(data, Resumed)
                world.reached["crash in resume" if resuming else "crash in agenda"] += 1
            raise Crash
        if world.faults.hits("slow disk"):
            world.now += world.rng.randint(1, 60)

    def work_off_agenda(self) -> None:
        """Answer every command; sometimes commit half-way, as a busy group commit would."""
        state, world = self.state, self.world
        while commands := decide(state):
            command = commands[0]
            world.watch.check(command, state)
            data = answer(world, state, command)
            if isinstance(command, Finish):
                self._check_quiet(command.run)
            # The effect is noted first: an owner that dies in `record` never comes to carry it out.
            if isinstance(command, Start | Stop):
                self.effects.append((command, data))
            self.record(command.run, data, command)
            if world.faults.hits("early commit"):
                self.commit()
        self.commit()
        if world.rng.random() < 0.1:
            check_explained(state)
        if world.watch.cancelled or state.plan.open:
            self._check_stopped()

    def _check_stopped(self) -> None:
        """A cancellation reaches every execution below it (invariant 9)."""
        for execution in self.running:
            node = self.state.runs[execution.run].nodes[execution.step]
            watch = self.world.watch
            ends = watch.is_cancelled(node.run) or watch.is_closing(node) or watch.lost_its_parent(node)
            if execution.type != "approval" and ends and not execution.stop:
                raise InvariantError(9, f"the cancellation did not reach {execution.step}")

    def _check_quiet(self, run: str) -> None:
        """A run ends after the executions in it, as the host knows them (invariant 9)."""
        for execution in self.running:
            if execution.run == run and execution.type != "approval":
                raise InvariantError(9, f"run {run} finishes while {execution.step} is executing")

    def commit(self) -> None:
        """Acknowledge what was recorded, then let the effects begin."""
        world = self.world
        world.store.commit()
        if self.effects and world.faults.hits("crash"):
            world.reached["crash before effect"] += 1
            raise Crash
        effects, self.effects = self.effects, []
        for command, data in effects:
            if isinstance(command, Stop):
                self._ask_to_stop(command)
            elif isinstance(command, Start) and getattr(data, "status", "") in ("started", "waiting"):
                self._launch(command)

    def _launch(self, command: Start) -> None:
        if command.type in ("group", "workflow"):
            return
        world = self.world
        node = self.state.runs[command.run].nodes[command.step]
        if node.step.traits.waits is not None:
            if node.step.traits.waits == "person":
                self.ask(command.run, command.step)
            return
        due = world.now + world.rng.choice((0, 1, 5, 10, 30, 90))
        if world.faults.hits("hang"):
            due = world.now + FOREVER_MS
        seen = world.values.see(node)
        self.running.append(
            SimulatedExecution(
                command.run, command.step, command.type, command.attempt, command.execution, due, seen
            )
        )

    def ask(self, run: str, step: str) -> None:
        """Put an approval before a person."""
        world = self.world
        due = None if world.faults.hits("nobody answers") else world.now + world.rng.choice((5, 50, 500))
        self.running.append(SimulatedExecution(run, step, "approval", 1, 1, due, []))

    def _ask_to_stop(self, command: Stop) -> None:
        world = self.world
        for execution in self.running:
            if (execution.run, execution.step, execution.attempt, execution.execution) == (
                command.run, command.step, command.attempt, command.execution,
            ):  # fmt: skip
                execution.stop = command.reason
                grace = 500 if world.faults.hits("deaf to stop") else world.rng.choice((0, 1, 5))
                execution.due = min(execution.due or world.now + grace, world.now + grace)
                return
        raise InvariantError(9, f"{command.step} is asked to stop, but nothing of it is executing")

    def recall_people(self) -> None:
        """After a crash the approvals that are open are still before people."""
        for run in self.state.runs.values():
            for node in run.nodes.values():
                asks = node.step.traits.waits == "person" or node.reason == ASKED
                if node.status == WAITING and asks:
                    self.ask(run.id, node.path)
