"""Wait steps: a durable timer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar

from fanfold.kernel.plan import Step, Traits
from fanfold.language import keys
from fanfold.language.expressions import evaluate
from fanfold.language.keys import MAX_DURATION_MS, StepSyntax
from fanfold.language.leaf_steps import Body, WrittenStep
from fanfold.language.tables import duration_ms
from fanfold.language.template import UnresolvedPath
from fanfold.language.tree import Scalar
from fanfold.steps.order import Timer
from fanfold.steps.step_type import LeafType, Preparation, StepLabel

_HOURS = MAX_DURATION_MS // 3_600_000


class WaitBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = keys.WAIT
    delay_ms: int = 0
    until: str = ""
    """An expression instead of a duration."""

    def traits(self) -> Traits:
        return Traits(slot=False, workspace="none", waits="timer")


class WaitSteps(LeafType[WaitBody, Timer]):
    """The step type that waits for a time."""

    body = WaitBody
    waiting = "waits"

    def from_recipe(self, step: WrittenStep) -> WaitBody:
        node = step.entries.nodes.get("wait")
        if not isinstance(node, Scalar):
            return WaitBody()
        if step.entries.has("timeout"):
            message = '"timeout" is not allowed on a wait step'
            hint = "the step takes exactly the time that it waits"
            step.notes.error("recipe.conflicting_keys", message, step.entries.keys["timeout"], hint)
        delay_ms = duration_ms(node.value)
        if delay_ms is None:
            return WaitBody(until=step.unit.references.expression(node, step.place, "moment"))
        if not 0 <= delay_ms <= MAX_DURATION_MS:
            message = f'"wait" is {node.text}; it must be from 0s to {MAX_DURATION_MS // 3_600_000}h'
            step.notes.error("recipe.limit", message, node)
        return WaitBody(delay_ms)

    def label(self, _step: Step, settings: WaitBody) -> StepLabel:
        if settings.until:
            return StepLabel("wait", f"until {settings.until}")
        for unit, length_ms in (("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
            if settings.delay_ms and settings.delay_ms % length_ms == 0:
                return StepLabel("wait", f"{settings.delay_ms // length_ms}{unit}")
        return StepLabel("wait", f"{settings.delay_ms}ms")

    def prepare(self, step: Preparation, settings: WaitBody) -> Timer:
        if not settings.until:
            return Timer(step.now + settings.delay_ms)
        # `string()` converts times and durations, so that all values are parsed as text.
        moment = evaluate(f"string({settings.until})", step.names)
        due_at = _moment(str(moment), step.now)
        if due_at is None:
            raise UnresolvedPath(f"{moment!r} is neither a time nor a duration")
        if due_at - step.now > MAX_DURATION_MS:
            raise UnresolvedPath(f"{moment} is more than {_HOURS:,} hours away")
        return Timer(max(1, due_at))  # in the log, 0 means no time


def _moment(text: str, now: int) -> int | None:
    """The time in a text, in milliseconds since the epoch. A plain number is seconds from now."""
    delay_ms = duration_ms(text)
    if delay_ms is None:
        try:
            delay_ms = duration_ms(float(text.removesuffix("s")))
        except ValueError:
            delay_ms = None
    if delay_ms is not None:
        return now + max(0, delay_ms)
    try:
        named = datetime.fromisoformat(text)
    except ValueError:
        return None
    zoned = named if named.tzinfo is not None else named.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1_000)
