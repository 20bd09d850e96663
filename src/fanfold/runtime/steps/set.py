"""Set steps: expressions are evaluated once, when the step would start; that is all."""

from __future__ import annotations

from fanfold.kernel.plan import Step
from fanfold.recipe.expressions.evaluate import evaluate
from fanfold.recipe.types.set import SetBody
from fanfold.runtime.steps.step_type import LeafType, Preparation, Settled, StepLabel


class SetSteps(LeafType[SetBody, Settled]):
    body = SetBody
    settled = True

    def label(self, _step: Step, said: SetBody) -> StepLabel:
        return StepLabel("set", ", ".join(said.set))

    def prepare(self, step: Preparation, said: SetBody) -> Settled:
        return Settled({name: evaluate(text, step.names) for name, text in said.set.items()})
