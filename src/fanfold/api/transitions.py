"""Turn events into short lines for people: what started, what ended, and how.

Rules
* One line per transition of a step and of the root run. Events that only the kernel needs (times, decisions,
  requested stops) are omitted.
* The end of a loop's round is one line, written when it is known whether the round passed.
* Nothing here needs the whole tree. Names come from the events, and otherwise from a callback that knows the
  steps. So the same lines work for the owner, a follower and a stored log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from fanfold.api.display import duration
from fanfold.api.run_documents import wait_text
from fanfold.engine.run_tree import RunTree
from fanfold.kernel.events import (
    CancelRequested,
    CloseRequested,
    Envelope,
    Event,
    Failure,
    RequestRefused,
    ResumeRequested,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStarted,
    StepAdded,
    StepEvent,
    SubagentEvent,
    ValueDecided,
    WaitClosed,
    WaitOpened,
    WorkflowEvent,
    event_of,
)
from fanfold.kernel.plan import Step
from fanfold.kernel.state import ASKED, DEFERRED, HELD
from fanfold.language.terminal import one_line
from fanfold.steps.table import type_of

NameItem: TypeAlias = Callable[[str, str], str]
"""Run id and path to the name of the item there, if it is an item of a map."""
FindStep: TypeAlias = Callable[[str, str], Step | None]
"""Run id and path to the step there, if known."""
MAX_NOTE_CHARS = 160

_PAUSED_FOR = {"budget": "a limit is reached"}
"""Reasons whose text differs from the log: the budget is one of several limits."""


class Transition(Struct, frozen=True):
    """One line. `path` is a tree path, empty for the run itself; `text` completes the sentence."""

    at: int
    path: str
    word: str
    text: str
    item: str = ""
    """The name of the item of a map."""
    bare: bool = False
    """Whether it is a group: its steps have their own lines."""
    reused: bool = False


class Transitions:
    """Reads events in order, and remembers start times to compute durations."""

    def __init__(self, find_step: FindStep, name_item: NameItem = lambda _run, _path: "") -> None:
        self._find_step = find_step
        self._name_item = name_item
        self._started: dict[tuple[str, str], int] = {}
        self._rounds: dict[tuple[str, str], int] = {}
        self._ended_badly: set[tuple[str, str]] = set()
        self._to_be_judged: dict[tuple[str, str], Transition] = {}
        """Completed rounds for which it is not known yet whether they passed."""

    def read(self, envelope: Envelope) -> Transition | None:
        """Return the transition of an event, or None."""
        event = (
            event_of(envelope) if isinstance(envelope.data, dict) else Event("", envelope.at, envelope.data)
        )
        data = event.data
        if isinstance(data, WorkflowEvent):
            return self._of_run(envelope, data)
        if isinstance(data, (StepEvent, SubagentEvent)) and not data.late:
            word = "completed" if data.status == "finished" else data.status
            text = self._of_step(envelope, data, word)
            if text is None:
                return None
            item = self._name_item(envelope.run_id, data.step)
            step = self._find_step(envelope.run_id, data.step)
            group = step is not None and step.type == "group"
            reused = isinstance(data, StepEvent) and data.cached
            told = Transition(envelope.at, _path(envelope, data.step), word, text, item, group, reused)
            if word == "completed" and self._is_round(envelope.run_id, data.step):
                self._to_be_judged[envelope.run_id, data.step] = told
                return None
            return told
        return None

    def _is_round(self, run: str, path: str) -> bool:
        """Whether a path is a round of a loop, and not a turn of a subagent."""
        loop, _, number = path.rpartition("#")
        step = self._find_step(run, loop) if number.isdecimal() else None
        return step is not None and step.repeat is not None

    def _of_run(self, envelope: Envelope, data: WorkflowEvent) -> Transition | None:
        key = (envelope.run_id, "")
        if isinstance(data, ValueDecided) and data.what == "for_each" and data.items is not None:
            self._started[envelope.run_id, data.step] = envelope.at
            items = f"{data.value} item{'' if data.value == 1 else 's'}"
            return Transition(envelope.at, _path(envelope, data.step), "started", f"started ({items})")
        if isinstance(data, ValueDecided) and data.what == "until":
            key = (envelope.run_id, data.step)
            self._rounds[key] = self._rounds.get(key, 0) + 1
            turn = (envelope.run_id, f"{data.step}#{self._rounds[key]}")
            ended = self._to_be_judged.pop(turn, None)
            if data.value is False and turn not in self._ended_badly:
                text = "did not pass" + (ended.text.removeprefix("completed") if ended is not None else "")
                return Transition(envelope.at, _path(envelope, turn[1]), "failed", text)
            return ended
        if envelope.parent_run_id is not None:
            return None  # the step that called the child run reports it
        if isinstance(data, WaitOpened | WaitClosed):
            return _of_wait(envelope.at, data)
        if isinstance(data, StepAdded | CloseRequested | ResumeRequested | RequestRefused):
            return _of_request(envelope, data)
        if isinstance(data, RunStarted | RunResumed):
            self._started.setdefault(key, envelope.at)
            return Transition(envelope.at, "", data.kind, data.kind)
        if isinstance(data, RunPaused):
            return Transition(
                envelope.at, "", "paused", f"paused ({_PAUSED_FOR.get(data.reason, data.reason)})"
            )
        if isinstance(data, CancelRequested):
            return Transition(envelope.at, "", "cancelled", "was asked to cancel")
        if isinstance(data, RunFinished):
            return Transition(envelope.at, "", data.status, _ended(data.status, self._took(key, envelope.at)))
        return None

    def _of_step(self, envelope: Envelope, data: StepEvent | SubagentEvent, word: str) -> str | None:
        key = (envelope.run_id, data.step)
        if word == "started":
            self._started[key] = envelope.at
            return f"started{self._who(envelope, data)}"
        took = self._took(key, envelope.at)
        if word == "completed":
            reused = isinstance(data, StepEvent) and data.cached
            if reused:
                return "completed (reused)"
            step = self._find_step(envelope.run_id, data.step)
            if step is not None and step.traits.ends is not None:
                told = one_line(data.summary, MAX_NOTE_CHARS)
                return f"ends the run as {step.traits.ends}{': ' if told else ''}{told}"
            return _ended("completed", took) + _why(data.error, "warning: ")
        if word in ("failed", "timed_out", "cancelled", "interrupted"):
            self._ended_badly.add(key)
            step = self._find_step(envelope.run_id, data.step)
            inside = step is not None and step.type == "group"  # the failed step inside was reported before
            return _ended(word.replace("_", " "), took) + ("" if inside else _why(data.error))
        if word == "agreed":
            return f"was agreed to by {one_line(data.summary, MAX_NOTE_CHARS)}"
        if word in ("waiting", ASKED):
            self._started[key] = envelope.at
            asked = one_line(data.summary.partition(chr(10) * 2)[0], MAX_NOTE_CHARS)
            step = self._find_step(envelope.run_id, data.step)
            waits = "waits for approval" if step is None else type_of(step).waiting
            return f"{waits}: {asked}" if asked else waits
        if word == "retrying":
            wait_s = max(0, data.retry_at - envelope.at) / 1_000
            return f"tries again in {wait_s:.1f} s (attempt {data.attempt})"
        if word in (DEFERRED, HELD):
            what = f"files of {data.summary}" if word == HELD else data.reason
            return f"waits for {one_line(what, MAX_NOTE_CHARS)}"
        if word == "closed":
            return word
        if word == "skipped":
            from fanfold.kernel.explain import SKIPPED_FOR

            return f"skipped ({SKIPPED_FOR.get(data.reason, data.reason)})"
        return None

    def _took(self, key: tuple[str, str], at: int) -> str:
        started = self._started.pop(key, None)
        return "" if started is None else duration(at - started)

    def _who(self, envelope: Envelope, data: StepEvent | SubagentEvent) -> str:
        names: list[str] = []
        if isinstance(data, SubagentEvent):
            names.append(one_line(data.role))
        else:
            step = self._find_step(envelope.run_id, data.step)
            if step is not None and step.type != "group":
                names.append(step.type)
        if data.attempt > 1:
            names.append(f"attempt {data.attempt}")
        if data.execution > 1:
            names.append("again")
        return f" ({', '.join(names)})" if names else ""


def _of_request(
    envelope: Envelope, data: StepAdded | CloseRequested | ResumeRequested | RequestRefused
) -> Transition:
    if isinstance(data, StepAdded):
        told = f"added: {one_line(data.step.description, MAX_NOTE_CHARS)}".removesuffix(": ")
        return Transition(envelope.at, _path(envelope, data.step.id), "added", told)
    if isinstance(data, CloseRequested | ResumeRequested):
        told = "was asked to end" if isinstance(data, CloseRequested) else "was asked to go on"
        return Transition(envelope.at, _path(envelope, data.step), data.kind, told)
    return Transition(envelope.at, "", data.kind, f"refused a request{_why(data.error)}")


def _of_wait(at: int, data: WaitOpened | WaitClosed) -> Transition:
    if isinstance(data, WaitClosed):
        return Transition(at, "", "resumed", f"continues: {data.subject} can be used again")
    told = wait_text(data.subject, data.reason, data.until, data.count, data.error)
    return Transition(at, "", "waiting", f"waits: {told}")


def _ended(word: str, took: str) -> str:
    return f"{word} {took}".rstrip()


def _why(error: Failure | None, kind: str = "") -> str:
    if error is None:
        return ""
    from fanfold.api.approvals import gist

    return f": {kind}{gist(error)}"


def step_at(tree: RunTree, run: str, path: str) -> Step | None:
    """Return the step of an instance, if the tree has it."""
    found = tree.state.runs.get(run)
    node = found.nodes.get(path) if found is not None else None
    return None if node is None else node.step


def _path(envelope: Envelope, step: str) -> str:
    return f"{envelope.path}/{step}" if envelope.path else step
