"""Commands: the requests of the kernel to its host.

Rules
* The host answers every command of a decision, in order, with exactly one event, before it reports
  anything else. The event is durable before the effect starts.
* A command carries addresses, never values. The host looks up values, renders templates and
  evaluates expressions. It puts the result into the answering event.

| command | answered by |
|---|---|
| `Evaluate` | `workflow_event decided` |
| `Queue` | `queued`, or `input` when the step is the next turn of another |
| `Start` | `started` (an approval: `waiting`), `completed` when cached, `failed` when unrenderable |
| `Create` | `workflow_event created` in the child run's log |
| `Skip` | `step_event skipped` |
| `Retry` | `retrying` with the recorded time of the next attempt |
| `Stop` | `step_event stopping`; the host reports the end of the attempt later |
| `Conclude` | the step's terminal event, with its output folded from its children |
| `Finish` | `workflow_event finished` |
| `Pause` | `workflow_event paused` |
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from fanfold.kernel.events import Failure


class Evaluate(Struct, frozen=True, gc=False):
    """Evaluate an expression. `what` is `admission` (`when` and templated sets), `for_each` or `until`."""

    run: str
    step: str
    what: str


class Queue(Struct, frozen=True, gc=False):
    """Queue a step that was added to an open run, behind the steps added before it."""

    run: str
    step: str


class Start(Struct, frozen=True, gc=False):
    """Start one execution of one attempt. `execution` > 1: an earlier execution ended without a result."""

    run: str
    step: str
    type: str
    attempt: int
    execution: int
    reserved_tokens: int = 0
    reserved_micro_usd: int = 0


class Create(Struct, frozen=True, gc=False):
    """Create the log of a child run. Its scope exists already."""

    run: str
    workflow: str
    parent_run: str
    step: str


class Skip(Struct, frozen=True, gc=False):
    """Skip a step. `reason` is `condition`, `failure` or `ended`; `cause` names the failed dependency."""

    run: str
    step: str
    reason: str
    cause: str = ""


class Retry(Struct, frozen=True, gc=False):
    """Record when the next attempt of a step starts."""

    run: str
    step: str
    attempt: int
    retry_at: int


class Stop(Struct, frozen=True, gc=False):
    """Stop a running attempt. `reason` is `cancelled`, `timed_out` or `pause`."""

    run: str
    step: str
    attempt: int
    execution: int
    reason: str


class Conclude(Struct, frozen=True, gc=False):
    """End a step without a report of an attempt: a composite, or a step without a process."""

    run: str
    step: str
    status: str
    attempt: int
    """The unfinished attempt that ends with the step; 0 if there is none. `execution` likewise."""
    execution: int
    error: Failure | None = None
    reason: str = ""


class Finish(Struct, frozen=True, gc=False):
    """Finish a run with this status."""

    run: str
    status: str
    error: Failure | None = None


class Pause(Struct, frozen=True, gc=False):
    """Pause a run."""

    run: str
    reason: str


Command: TypeAlias = Evaluate | Queue | Start | Create | Skip | Retry | Stop | Conclude | Finish | Pause
