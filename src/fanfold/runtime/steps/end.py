"""End steps: what they say is the end of their run."""

from __future__ import annotations

from fanfold.kernel.events import Failure
from fanfold.kernel.plan import Step
from fanfold.recipe.types.end import EndBody
from fanfold.runtime.steps.step_type import LeafType, Preparation, Settled, StepLabel, text_of, value_of


class EndSteps(LeafType[EndBody, Settled]):
    body = EndBody
    settled = True

    def label(self, _step: Step, said: EndBody) -> StepLabel:
        return StepLabel("end", f"ends the run as {said.end}")

    def prepare(self, step: Preparation, said: EndBody) -> Settled:
        message = text_of(said.message, step.names)
        output = message if said.output is None else value_of(said.output, step.names)
        if said.end == "completed":
            return Settled(output, summary=message)
        told = message or f"{step.node.path} ended the run as failed"
        failure = Failure("agent", "run.ended", told, retryable=False, step=step.node.path)
        return Settled(output, summary=message, warning=failure)
