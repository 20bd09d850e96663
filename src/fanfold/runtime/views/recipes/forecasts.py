"""What is foretold of a run, and what might have been, in the shapes scripts rely on."""

from __future__ import annotations

from msgspec import Struct


class ForeseenConflict(Struct, frozen=True):
    """Two steps that no edge orders but that may not run at once; `on` is a path both claim."""

    a: str
    b: str
    on: str


class Agents(Struct, frozen=True):
    """Bounds of the sessions in the whole run tree, retries and iterations included."""

    min: int
    max: int


class Cost(Struct, frozen=True):
    usd_max: float | None
    """None: no bound is known."""


class DryRun(Struct, frozen=True):
    """The facts, in the shape scripts rely on."""

    waves: list[list[str]]
    conflicts: list[ForeseenConflict]
    conflicts_total: int
    critical_path: list[str]
    agents: Agents
    cost: Cost
    would_run: bool
    warnings: list[str]


class Slots(Struct, frozen=True):
    """How many steps could run at once: in the run that was, and in the one that is asked about."""

    recorded: int
    asked: int


class Time(Struct, frozen=True):
    """In milliseconds, without waits for people and without pauses."""

    recorded: int
    """What the run took."""
    replayed: int
    """What its recorded durations come to with the slots it had: how far the answer can be relied on."""
    asked: int
    """The same with the slots that are asked about."""
    work: int
    """All durations together."""


class WhatIf(Struct, frozen=True):
    """What another number of slots would have meant for a run that was."""

    run_id: str
    recipe: str
    version: int
    max_concurrency: Slots
    time_ms: Time
    attempts: int
    """How many were replayed; questions to people count."""
    critical_path: list[str]
    """The longest chain of steps that wait for one another: no number of slots makes the run shorter."""
    critical_path_ms: int
    notes: list[str]
    """What was left out."""
