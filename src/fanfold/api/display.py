"""Times, durations, usage and rows of runs, as people and scripts read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from fanfold.kernel.events import Failure, Usage
from fanfold.steps.ids import failure_value
from fanfold.store.protocol import RunHead

if TYPE_CHECKING:
    from fanfold.kernel.state import Node


def when(at: int | None) -> str | None:
    """Format a time as ISO 8601 in UTC with milliseconds."""
    if not at:
        return None
    second, ms = divmod(at, 1_000)
    return f"{_second(second)}.{ms:03}Z"


@lru_cache(maxsize=256)
def _second(at: int) -> str:
    """Format a second as ISO 8601. It is cached, because many events of a log share a second."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


def elapsed_ms(since: str | None, until: str | None = None) -> int | None:
    """Return the milliseconds between two times of a document, or between one and now."""
    if since is None:
        return None
    end = datetime.now(UTC) if until is None else datetime.fromisoformat(until)
    return round((end - datetime.fromisoformat(since)).total_seconds() * 1_000)


def duration(ms: int) -> str:
    """Format a duration, as short as possible.

    >>> duration(34), duration(1234), duration(75_000), duration(3_725_000)
    ('34 ms', '1.2 s', '1 min 15 s', '1 h 2 min')
    """
    if ms < 100:
        return f"{max(0, ms)} ms"
    seconds = ms / 1_000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"


# -----------------------------------------------------------------------------------------------------------
# Rows of runs in lists, made from a run's head alone: listing reads no log and loads no scheduler


class StepUsage(Struct, frozen=True):
    """What was spent; an unknown price is null."""

    input_tokens: int
    output_tokens: int
    cost_usd: float | None


class RunUsage(StepUsage, frozen=True):
    agents: int


class FailureDocument(Struct, frozen=True):
    """Why a step or run did not succeed."""

    kind: str = field(name="class")
    code: str
    message: str
    hint: str
    retryable: bool
    step: str
    attempt: int


class OwnerDocument(Struct, frozen=True):
    """The process that drives a run, or that did when it died."""

    pid: int
    alive: bool


class RunRow(Struct, frozen=True):
    """A run in a list."""

    run_id: str
    recipe: str
    version: int
    status: str
    root_run_id: str
    parent_run_id: str | None
    nesting_depth: int
    execution_path: str
    created_at: str | None
    started_at: str | None
    ended_at: str | None
    forked_from: str | None
    error: FailureDocument | None
    usage: RunUsage
    owner: OwnerDocument | UnsetType | None = UNSET
    stopped_at: str | None = None
    """When its clock stopped, if it is paused."""


def run_row(
    head: RunHead, owner: OwnerDocument | UnsetType | None = UNSET, stopped_at: int | None = None
) -> RunRow:
    """Return the row of a run from its head alone."""
    return RunRow(
        run_id=head.run_id,
        recipe=head.recipe,
        version=head.version,
        status=head.status,
        root_run_id=head.root_run_id,
        parent_run_id=head.parent_run_id,
        nesting_depth=head.nesting_depth,
        execution_path=head.execution_path,
        created_at=when(head.created_at),
        started_at=when(head.started_at),
        ended_at=when(head.ended_at),
        forked_from=head.forked_from,
        error=failure_document(head.error),
        usage=run_usage(head.usage, head.agents),
        owner=owner,
        stopped_at=when(stopped_at),
    )


def failure_document(failure: Failure | None, node: Node | None = None) -> FailureDocument | None:
    """Return the document of a failure; `node` is the step that failed."""
    value = failure_value(failure, node)
    return None if value is None else msgspec.convert(value, FailureDocument)


def step_usage(usage: Usage) -> StepUsage:
    return StepUsage(usage.input_tokens, usage.output_tokens, _dollars(usage))


def add_usage(parts: Sequence[RunUsage]) -> RunUsage:
    """Add usages. The price is unknown if one of them is unknown."""
    prices = [one.cost_usd for one in parts]
    return RunUsage(
        sum(one.input_tokens for one in parts),
        sum(one.output_tokens for one in parts),
        None if None in prices else sum(price or 0.0 for price in prices),
        sum(one.agents for one in parts),
    )


def run_usage(usage: Usage, agents: int) -> RunUsage:
    return RunUsage(usage.input_tokens, usage.output_tokens, _dollars(usage), agents)


def _dollars(usage: Usage) -> float | None:
    return None if usage.micro_usd is None else usage.micro_usd / 1_000_000
