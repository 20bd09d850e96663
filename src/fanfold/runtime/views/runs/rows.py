"""Runs in lists: made of a run's head alone, so that listing them reads no log and loads no scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from fanfold.kernel.events import Failure, Usage
from fanfold.runtime.records.failures import failure_value
from fanfold.runtime.views.times import when
from fanfold.store.protocol import RunHead

if TYPE_CHECKING:
    from fanfold.kernel.nodes import Node


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
    """When its time stopped, where it is paused."""


def run_row(
    head: RunHead, owner: OwnerDocument | UnsetType | None = UNSET, stopped_at: int | None = None
) -> RunRow:
    """A run in a list, from its head alone."""
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
    """A failure; `node` is the step that has it."""
    value = failure_value(failure, node)
    return None if value is None else msgspec.convert(value, FailureDocument)


def step_usage(usage: Usage) -> StepUsage:
    return StepUsage(usage.input_tokens, usage.output_tokens, _dollars(usage))


def run_usage(usage: Usage, agents: int) -> RunUsage:
    return RunUsage(usage.input_tokens, usage.output_tokens, _dollars(usage), agents)


def _dollars(usage: Usage) -> float | None:
    return None if usage.micro_usd is None else usage.micro_usd / 1_000_000
