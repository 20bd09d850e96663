"""The JSON documents of forecasts and what-if reports. Scripts rely on their shape."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType


class ForeseenConflict(Struct, frozen=True):
    """Two unordered steps that may not run at the same time; `on` is a path that both claim."""

    a: str
    b: str
    on: str


class Agents(Struct, frozen=True):
    """The number of sessions of the whole run tree, including retries and iterations.

    A run pauses at its `max_agents`.
    """

    min: int
    expected: int
    """The number if every attempt succeeds, conditions are true and unknown lists have five items."""
    max: int

    def told(self) -> str:
        """The numbers as text, the expected number first: `about 19 agents, at most 64`."""
        if self.min == self.max:
            return f"{self.max:,} agent{'' if self.max == 1 else 's'}"
        return f"about {self.expected:,} agent{'' if self.expected == 1 else 's'}, at most {self.max:,}"


class Cost(Struct, frozen=True):
    """The cost of a run."""

    usd_max: float | None
    """The upper bound in dollars, or None if it is unknown."""


class ForeseenPrompt(Struct, frozen=True):
    """The prompt of an agent; `{{…}}` marks values that are known only during the run."""

    path: str
    role: str
    system: str
    """Role, limits of the session and the project's instructions. Programs get them with the prompt."""
    prompt: str


class DryRun(Struct, frozen=True):
    """The forecast of a run."""

    waves: list[list[str]]
    conflicts: list[ForeseenConflict]
    conflicts_total: int
    critical_path: list[str]
    agents: Agents
    cost: Cost
    would_run: bool
    warnings: list[str]
    prompts: list[ForeseenPrompt] | UnsetType = UNSET
    """Set only if prompts were requested."""


class Slots(Struct, frozen=True):
    """The maximum number of concurrent steps, in the recorded run and in the hypothetical run."""

    recorded: int
    asked: int


class Time(Struct, frozen=True):
    """Durations in milliseconds, without waits for people and without pauses."""

    recorded: int
    """The duration of the recorded run."""
    replayed: int
    """The replayed duration with the recorded slots. Its difference to `recorded` shows the accuracy."""
    asked: int
    """The replayed duration with the slots of the hypothetical run."""
    work: int
    """The sum of all durations."""


class WhatIf(Struct, frozen=True):
    """The effect that another number of slots would have had on a recorded run."""

    run_id: str
    recipe: str
    version: int
    max_concurrency: Slots
    time_ms: Time
    attempts: int
    """The number of replayed attempts, including questions to people."""
    critical_path: list[str]
    """The longest chain of dependent steps. More slots cannot make the run shorter than this chain."""
    critical_path_ms: int
    notes: list[str]
    """Notes about the parts of the run that are not included."""
