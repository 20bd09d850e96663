"""The world of a run that was: what its log says its steps took, and how they ended.

Rules
* Everything is as recorded: conditions, lists and gates, failures and the retries they led to, child runs.
  Only when a step starts is decided anew.
* An attempt takes the time it was under way, over all its executions. One that a crash cut off has no end in
  the log: its time is not known and not counted.
* What only a person can end takes no time, nor does the answer to a question in the middle of an attempt.
* Nothing is made up for steps that did not run: they take no time and are not listed.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from fanfold.kernel.commands import Start
from fanfold.kernel.events import (
    Created,
    Decided,
    Event,
    Failure,
    Settings,
    StepEvent,
    SubagentEvent,
)
from fanfold.kernel.lifecycle import ASKED, CANCELLED, COMPLETED, EVENT_WORDS, SKIPPED, TERMINAL
from fanfold.kernel.nodes import LEAF, Map, Node, State
from fanfold.kernel.plan import Plan

Address = tuple[str, str]
"""Run id and path."""


class RecordedAttempt(Struct):
    """One attempt as the log tells it."""

    took_ms: int = 0
    since: int | None = None
    """When the execution under way began."""
    begun: bool = False
    asked: bool = False
    """Whether it asked a person in the middle of its work."""
    status: str = ""
    """How it ended; empty when it did not."""
    error: Failure | None = None


class Recording:
    """What a log says, looked up by address. Filled from the events of a whole tree, in order."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.run_id = ""
        self.plan: Plan
        self.settings = Settings()
        self.lost = 0
        """Executions whose end nobody recorded."""
        self._decided: dict[tuple[str, str, str], list[Decided]] = {}
        self._attempts: dict[Address, dict[int, RecordedAttempt]] = {}
        self._children: dict[Address, str] = {}
        for event in events:
            self._note(event)

    def _note(self, event: Event) -> None:
        data = event.data
        if isinstance(data, Created) and data.plan is not None:
            self.run_id, self.plan, self.settings = event.run, data.plan, data.settings or Settings()
        elif isinstance(data, Decided):
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
        if word == SKIPPED:
            self._note_skip(address, event.at)
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
        if word in TERMINAL and not attempt.status:  # else the step was ended while it waited to try again
            attempt.status, attempt.error = word, data.error

    def _note_skip(self, address: Address, at: int) -> None:
        """A step that waited when the plan ended its run is skipped: what waited is over then."""
        for attempt in self._attempts.get(address, {}).values():
            if attempt.since is not None:
                attempt.took_ms += max(0, at - attempt.since)
                attempt.since, attempt.status = None, CANCELLED

    def decided(self, node: Node, what: str, time: int) -> Decided | None:
        """What an expression came to the given time it was asked for."""
        found = self._decided.get((node.run.id, node.path, what), [])
        return found[time] if time < len(found) else None

    def attempt(self, node: Node, number: int) -> RecordedAttempt | None:
        return self._attempts.get((node.run.id, node.path), {}).get(number)

    def child_of(self, node: Node) -> str:
        return self._children.get((node.run.id, node.path), "")


class Replayed:
    """The recording as a forecast host asks for it."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._asked: dict[tuple[str, str, str], int] = {}
        self.unknown = 0
        """Steps that would start and of which the log knows no end."""
        self.people = 0
        """Questions to people."""

    def decide(self, node: Node, what: str) -> Decided:
        key = (node.run.id, node.path, what)
        time = self._asked.get(key, 0)
        self._asked[key] = time + 1
        found = self._recording.decided(node, what, time)
        if found is not None:
            return found
        nothing = 0 if isinstance(node, Map) else what == "until"
        return Decided(step=node.path, what=what, value=nothing)

    def start(self, state: State, node: Node, start: Start) -> StepEvent:  # noqa: ARG002 - the host's signature
        attempt = self._recording.attempt(node, start.attempt)
        if attempt is None or (node.kind == LEAF and not attempt.status):
            self.unknown += attempt is not None
            return StepEvent(node.path, COMPLETED, start.attempt, start.execution, cached=True)
        if not attempt.begun:  # found in the cache, or not to be rendered
            return StepEvent(node.path, attempt.status, start.attempt, start.execution, error=attempt.error)
        word = "waiting" if node.step.traits.waits is not None else "started"
        child = self._recording.child_of(node)
        return StepEvent(node.path, word, start.attempt, start.execution, child_run_id=child)

    def asks(self, node: Node) -> bool:  # noqa: ARG002 - as above
        return False  # what it was asked took no time

    def outcome(self, node: Node, start: Start) -> tuple[int, StepEvent]:
        attempt = self._recording.attempt(node, start.attempt)
        assert attempt is not None, "it was started because the log has it"
        end = StepEvent(node.path, attempt.status, start.attempt, start.execution, error=attempt.error)
        if node.step.traits.waits != "person":
            self.people += attempt.asked
            return attempt.took_ms, end
        self.people += 1
        return (attempt.took_ms if attempt.status == CANCELLED else 0), end  # else the run ended it
