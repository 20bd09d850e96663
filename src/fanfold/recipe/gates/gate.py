"""A gate: the last step of a phase, and the expression that tells from its output whether the phase passed.

Rules
* A gate that cannot be evaluated fails, never passes: its step keeps `on_failure: skip`, so that the loop's
  `until` finds no verdict, which counts as false.
* A gate only reads: what a phase changes is changed by its tasks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from msgspec import Struct

from fanfold.kernel.plan import USUAL_RETRY, Step
from fanfold.recipe.checks.unit import Defaults, Unit
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.drafts.roles import NamedRole, find_role
from fanfold.recipe.types.body import Body
from fanfold.text.tables.entries import Entries
from fanfold.text.tables.shapes import Key
from fanfold.text.trees.tree import Scalar

VERIFY = "verify"
"""The id of a gate's step."""

K = TypeVar("K")


class Judged(Struct, frozen=True):
    """The phase that a gate, or a reviewer, judges."""

    id: str
    goal: str
    steps: tuple[str, ...]
    """Its steps so far."""
    defaults: Defaults

    def question(self, instruction: str) -> str:
        """A prompt with the goal, which is text, never a template. What is judged is put behind it, bounded,
        when the step starts."""
        goal = self.goal.replace("{{", "\\{{")
        return f"{instruction}\n\nGoal: {goal}" if goal else instruction

    def results(self) -> str:
        """The outputs of the steps, for a person."""
        parts = [self.question("")] if self.goal else []
        parts += [f"Result of {step}:\n{{{{steps.{step}.output}}}}" for step in self.steps]
        return "\n\n".join(parts)

    def step(self, step_id: str, body: Body, **more: Any) -> Step:
        """A step of the phase's own that comes after all others and only reads."""
        return Step(
            id=step_id,
            action=body.action(),
            depends_on=self.steps,
            posture="read_only",
            timeout_ms=self.defaults.timeout_ms,
            retry=self.defaults.retry or USUAL_RETRY,
            **more,
        )


class Gate(ABC, Generic[K]):
    """One kind of gate. `K` is what it keeps of what `verify` says about it."""

    name: str
    keys: tuple[Key, ...] = ()
    """The keys of `verify` that it has."""
    until: str
    """True when the phase passed; sees the gate's step as `steps.verify`."""

    @abstractmethod
    def check(self, verify: Entries, draft: Draft, unit: Unit) -> K:
        """Check what `verify` says, and keep it."""

    @abstractmethod
    def step(self, kept: K, phase: Judged) -> Step:
        """The step that judges a phase."""


def read_role(entries: Entries, unit: Unit) -> NamedRole:
    """The role of whoever judges: the one named, else a critic."""
    node = entries.nodes.get("agent")
    if isinstance(node, Scalar):
        return find_role(node.text, node, unit.around, unit.notes)
    return find_role("critic", None, unit.around, unit.notes)
