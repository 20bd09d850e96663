"""Set steps evaluate expressions once, when they start. Also here: end steps and wait steps."""

from __future__ import annotations

from datetime import UTC, datetime

from fanfold.kernel.events import Failure
from fanfold.kernel.plan import Step
from fanfold.language.expressions import evaluate
from fanfold.language.keys import MAX_DURATION_MS
from fanfold.language.leaf_steps import EndBody, SetBody, WaitBody
from fanfold.language.tables import duration_ms
from fanfold.language.template import UnresolvedPath
from fanfold.steps.step_type import LeafType, Preparation, SettledJob, StepLabel, Timer, text_of, value_of


class SetSteps(LeafType[SetBody, SettledJob]):
    """The step type that evaluates expressions."""

    body = SetBody
    settled = True

    def label(self, _step: Step, said: SetBody) -> StepLabel:
        return StepLabel("set", ", ".join(said.set))

    def prepare(self, step: Preparation, said: SetBody) -> SettledJob:
        return SettledJob({name: evaluate(text, step.names) for name, text in said.set.items()})


# -----------------------------------------------------------------------------------------------------------
# End steps: they end their run


class EndSteps(LeafType[EndBody, SettledJob]):
    """The step type that ends its run."""

    body = EndBody
    settled = True

    def label(self, _step: Step, said: EndBody) -> StepLabel:
        return StepLabel("end", f"ends the run as {said.end}")

    def prepare(self, step: Preparation, said: EndBody) -> SettledJob:
        message = text_of(said.message, step.names)
        output = message if said.output is None else value_of(said.output, step.names)
        if said.end == "completed":
            return SettledJob(output, summary=message)
        told = message or f"{step.node.path} ended the run as failed"
        failure = Failure("agent", "run.ended", told, retryable=False, step=step.node.path)
        return SettledJob(output, summary=message, warning=failure)


# -----------------------------------------------------------------------------------------------------------
# Wait steps: a durable timer

_HOURS = MAX_DURATION_MS // 3_600_000


class WaitSteps(LeafType[WaitBody, Timer]):
    """The step type that waits for a time."""

    body = WaitBody
    waiting = "waits"

    def label(self, _step: Step, said: WaitBody) -> StepLabel:
        return StepLabel("wait", f"until {said.until}" if said.until else _shown(said.delay_ms))

    def prepare(self, step: Preparation, said: WaitBody) -> Timer:
        if not said.until:
            return Timer(step.now + said.delay_ms)
        # `string()` converts times and durations, so that all values are parsed as text.
        told = evaluate(f"string({said.until})", step.names)
        due_at = _moment(str(told), step.now)
        if due_at is None:
            raise UnresolvedPath(f"{told!r} is neither a time nor a duration")
        if due_at - step.now > MAX_DURATION_MS:
            raise UnresolvedPath(f"{told} is more than {_HOURS:,} hours away")
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


def _shown(delay_ms: int) -> str:
    for size, unit in ((3_600_000, "h"), (60_000, "m"), (1_000, "s")):
        if delay_ms and delay_ms % size == 0:
            return f"{delay_ms // size}{unit}"
    return f"{delay_ms}ms"
