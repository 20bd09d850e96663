"""What the kernel asks its host to do next.

Rules
* The host answers every command of a decision, in order, with exactly one event, before it reports
  anything else. The event is durable before the effect begins.
* A command never carries values, only addresses: the host looks values up, renders templates,
  evaluates expressions, and puts what came out into the answering event.

| command | answered by |
|---|---|
| `Evaluate` | `workflow_event decided` |
| `Queue` | `queued`, or `input` when the step is the next turn of another |
| `Start` | `started` (an approval: `waiting`), `completed` when cached, `failed` when unrenderable |
| `Create` | `workflow_event created` in the child run's log |
| `Skip` | `step_event skipped` |
| `Retry` | `retrying` with the recorded time of the next attempt |
| `Stop` | `step_event stopping`; the end of the attempt is reported later |
| `Conclude` | the step's terminal event, with its output folded from its children |
| `Finish` | `workflow_event finished` |
| `Pause` | `workflow_event paused` |
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from fanfold.kernel.events import Failure


class Evaluate(Struct, frozen=True, gc=False):
    """Evaluate an expression. `what`: `admission` (`when` and templated sets), `for_each`, `until`."""

    run: str
    step: str
    what: str


class Queue(Struct, frozen=True, gc=False):
    """A step that was added takes its place behind those that came before it."""

    run: str
    step: str


class Start(Struct, frozen=True, gc=False):
    """Begin one execution of one attempt. `execution` > 1: an earlier one was lost in a crash."""

    run: str
    step: str
    type: str
    attempt: int
    execution: int
    reserved_tokens: int = 0
    reserved_micro_usd: int = 0


class Create(Struct, frozen=True, gc=False):
    """Open the log of a child run whose scope now exists."""

    run: str
    workflow: str
    parent_run: str
    step: str


class Skip(Struct, frozen=True, gc=False):
    """`reason` is `condition`, `failure` or `ended`; `cause` names the failed dependency."""

    run: str
    step: str
    reason: str
    cause: str = ""


class Retry(Struct, frozen=True, gc=False):
    run: str
    step: str
    attempt: int
    retry_at: int


class Stop(Struct, frozen=True, gc=False):
    """Ask a running attempt to end. `reason`: `cancelled`, `timed_out` or `pause`."""

    run: str
    step: str
    attempt: int
    execution: int
    reason: str


class Conclude(Struct, frozen=True, gc=False):
    """A step ends without an attempt's report: a composite, or a step that never ran."""

    run: str
    step: str
    status: str
    attempt: int
    """The attempt that was under way and ends so, with its execution; 0 when there was none."""
    execution: int
    error: Failure | None = None
    reason: str = ""


class Finish(Struct, frozen=True, gc=False):
    run: str
    status: str
    error: Failure | None = None


class Pause(Struct, frozen=True, gc=False):
    run: str
    reason: str


Command: TypeAlias = Evaluate | Queue | Start | Create | Skip | Retry | Stop | Conclude | Finish | Pause
