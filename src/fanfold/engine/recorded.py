"""A recorded run as input for a forecast: the durations and results of its steps, from its log.

Rules
* Conditions, lists, gates, failures with their retries, and child runs are as recorded. Only the start times
  of steps are decided anew.
* An attempt takes the time during which it was running, over all its executions. An execution that a crash
  cut off has no end in the log: its time is unknown and not counted.
* A step that only a person can end takes no time. Nor does the answer to a question within an attempt.
* Nothing is invented for steps that did not run: they take no time and are not listed.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from fanfold.engine.forecast import ForecastWorld
from fanfold.kernel.commands import Start
from fanfold.kernel.events import Event, Failure, RunCreated, Settings, StepEvent, SubagentEvent, ValueDecided
from fanfold.kernel.plan import Plan
from fanfold.kernel.state import (
    ASKED,
    CANCELLED,
    COMPLETED,
    EVENT_WORDS,
    LEAF,
    SKIPPED,
    TERMINAL,
    Map,
    Node,
    State,
)
from fanfold.steps.order import CallJob, Job, Question

Address = tuple[str, str]
"""Run id and path."""


class RecordedAttempt(Struct):
    """One attempt as the log records it."""

    took_ms: int = 0
    since: int | None = None
    """When the running execution started."""
    begun: bool = False
    asked: bool = False
    """Whether the attempt asked a person before it ended."""
    status: str = ""
    """The final status of the attempt, or empty if the log has no end."""
    error: Failure | None = None


class Recording:
    """The contents of a log by address, read from the events of a whole tree in order."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.run_id = ""
        self.plan: Plan
        self.settings = Settings()
        self.lost = 0
        """The number of executions without a recorded end."""
        self._decided: dict[tuple[str, str, str], list[ValueDecided]] = {}
        self._attempts: dict[Address, dict[int, RecordedAttempt]] = {}
        self._children: dict[Address, str] = {}
        for event in events:
            data = event.data
            if isinstance(data, RunCreated) and data.plan is not None:
                self.run_id, self.plan, self.settings = event.run, data.plan, data.settings or Settings()
            elif isinstance(data, ValueDecided):
                self._decided.setdefault((event.run, data.step, data.what), []).append(data)
            elif isinstance(data, StepEvent | SubagentEvent) and not data.late:
                self._note_step(event, data)

    def _note_step(self, event: Event, data: StepEvent | SubagentEvent) -> None:
        word = EVENT_WORDS.get(data.status, data.status)
        address = (event.run, data.step)
        if isinstance(data, StepEvent) and data.child_run_id:
            self._children[address] = data.child_run_id
        if word not in TERMINAL and word not in ("started", "waiting", "interrupted", ASKED):
            return
        if word == SKIPPED:  # the step was waiting when the plan ended its run
            for attempt in self._attempts.get(address, {}).values():
                if attempt.since is not None:
                    attempt.took_ms += max(0, event.at - attempt.since)
                    attempt.since, attempt.status = None, CANCELLED
            return
        attempt = self._attempts.setdefault(address, {}).setdefault(data.attempt, RecordedAttempt())
        if attempt.since is not None:
            if word == "started":
                self.lost += 1
            else:
                attempt.took_ms += max(0, event.at - attempt.since)
        attempt.since = event.at if word in ("started", "waiting") else None
        attempt.begun = attempt.begun or attempt.since is not None
        attempt.asked = attempt.asked or word == ASKED
        if word in TERMINAL and not attempt.status:  # else the step was ended while it waited for a retry
            attempt.status, attempt.error = word, data.error

    def decided(self, node: Node, what: str, time: int) -> ValueDecided | None:
        """The result of evaluation number `time` of an expression, if it was recorded."""
        found = self._decided.get((node.run.id, node.path, what), [])
        return found[time] if time < len(found) else None

    def attempt(self, node: Node, number: int) -> RecordedAttempt | None:
        return self._attempts.get((node.run.id, node.path), {}).get(number)

    def child_of(self, node: Node) -> str:
        return self._children.get((node.run.id, node.path), "")


class RecordedResults(ForecastWorld):
    """The recorded results, as the world of a forecast."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._asked: dict[tuple[str, str, str], int] = {}
        self.unknown = 0
        """The number of steps that would start but have no end in the log."""
        self.people = 0
        """The number of questions to people."""

    def decide(self, node: Node, what: str) -> ValueDecided:
        key = (node.run.id, node.path, what)
        time = self._asked.get(key, 0)
        self._asked[key] = time + 1
        found = self._recording.decided(node, what, time)
        if found is not None:
            return found
        nothing = 0 if isinstance(node, Map) else what == "until"
        return ValueDecided(step=node.path, what=what, value=nothing)

    def prepare(self, state: State, node: Node, start: Start) -> Job | StepEvent:  # noqa: ARG002 - the host's signature
        attempt = self._recording.attempt(node, start.attempt)
        if attempt is None or (node.kind == LEAF and not attempt.status):
            self.unknown += attempt is not None
            return StepEvent(node.path, COMPLETED, start.attempt, start.execution, cached=True)
        if not attempt.begun:  # it was cached, or could not be rendered
            return StepEvent(node.path, attempt.status, start.attempt, start.execution, error=attempt.error)
        if node.step.traits.waits is not None:
            return Question("")
        child = self._recording.child_of(node)
        return CallJob({}, child) if child else Job()

    def asks(self, node: Node) -> bool:  # noqa: ARG002 - as above
        return False  # questions take no time

    def outcome(self, node: Node, start: Start) -> tuple[int, StepEvent]:
        attempt = self._recording.attempt(node, start.attempt)
        assert attempt is not None, "it was started because the log has it"
        end = StepEvent(node.path, attempt.status, start.attempt, start.execution, error=attempt.error)
        if node.step.traits.waits != "person":
            self.people += attempt.asked
            return attempt.took_ms, end
        self.people += 1
        return (attempt.took_ms if attempt.status == CANCELLED else 0), end  # cancelled: the run ended it
