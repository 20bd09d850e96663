"""Wait steps: a timer that the log keeps."""

from __future__ import annotations

from datetime import UTC, datetime

from fanfold.kernel.plan import Step
from fanfold.recipe.expressions.evaluate import evaluate
from fanfold.recipe.language.keys import MAX_DURATION_MS
from fanfold.recipe.types.wait import WaitBody
from fanfold.runtime.steps.step_type import LeafType, Preparation, StepLabel, Timer
from fanfold.text.tables.durations import duration_ms
from fanfold.text.template import UnresolvedPath

_HOURS = MAX_DURATION_MS // 3_600_000


class WaitSteps(LeafType[WaitBody, Timer]):
    body = WaitBody
    waiting = "waits"

    def label(self, _step: Step, said: WaitBody) -> StepLabel:
        return StepLabel("wait", f"until {said.until}" if said.until else _shown(said.delay_ms))

    def prepare(self, step: Preparation, said: WaitBody) -> Timer:
        if not said.until:
            return Timer(step.now + said.delay_ms)
        # As text a time, a duration and a text that says either look the same to us.
        told = evaluate(f"string({said.until})", step.names)
        due_at = _moment(str(told), step.now)
        if due_at is None:
            raise UnresolvedPath(f"{told!r} is neither a time nor a duration")
        if due_at - step.now > MAX_DURATION_MS:
            raise UnresolvedPath(f"{told} is more than {_HOURS:,} hours away")
        return Timer(max(1, due_at))  # the log takes 0 for no time at all


def _moment(text: str, now: int) -> int | None:
    """The instant, in milliseconds since the epoch, that a text names; a bare number is seconds from now."""
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


def _shown(delay_ms: int) -> str:
    for size, unit in ((3_600_000, "h"), (60_000, "m"), (1_000, "s")):
        if delay_ms and delay_ms % size == 0:
            return f"{delay_ms // size}{unit}"
    return f"{delay_ms}ms"
