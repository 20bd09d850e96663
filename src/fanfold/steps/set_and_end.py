"""Steps that end when they start: set steps evaluate expressions, end steps finish the run."""

from __future__ import annotations

from typing import ClassVar, Literal

from fanfold.kernel.events import Failure
from fanfold.kernel.plan import Output, Step, Traits
from fanfold.language import keys
from fanfold.language.expressions import evaluate
from fanfold.language.keys import ObjectOf, StepSyntax
from fanfold.language.leaf_steps import Body, WrittenStep
from fanfold.language.references import read_output
from fanfold.language.tables import IDENTIFIER, quoted
from fanfold.language.tree import Scalar
from fanfold.steps.order import SettledJob
from fanfold.steps.step_type import LeafType, Preparation, StepLabel, text_of, value_of


class SetBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = keys.SET
    set: dict[str, str]

    def traits(self) -> Traits:
        return Traits(slot=False, workspace="none")


class SetSteps(LeafType[SetBody, SettledJob]):
    """The step type that evaluates expressions."""

    body = SetBody
    settled = True

    def from_recipe(self, step: WrittenStep) -> SetBody:
        from fanfold.language.known_values import Viewpoint, known_of_expression

        notes, pairs = step.notes, step.entries.pairs("set")
        if "set" in step.entries.nodes and not pairs:
            notes.error("recipe.bad_value", '"set" must not be empty', step.entries.nodes["set"])
        values: dict[str, str] = {}
        for word, value in pairs:
            if not IDENTIFIER.fullmatch(word.text):
                hint = "use letters, digits, _ and -, beginning with a letter or _"
                message = f"{quoted(word.text)} cannot be the name of a value"
                notes.error("recipe.bad_value", message, word, hint)
            if isinstance(value, Scalar):
                values[word.text] = step.unit.references.expression(value, step.place, "any")
        viewpoint = Viewpoint(step.unit.inputs, step.draft, step.draft.scope)
        step.draft.facts.gives = lambda: ObjectOf(
            {name: known_of_expression(text, viewpoint.look) for name, text in values.items()}
        )
        return SetBody(values)

    def label(self, _step: Step, settings: SetBody) -> StepLabel:
        return StepLabel("set", ", ".join(settings.set))

    def prepare(self, step: Preparation, settings: SetBody) -> SettledJob:
        return SettledJob({name: evaluate(text, step.names) for name, text in settings.set.items()})


# -----------------------------------------------------------------------------------------------------------
# End steps: the run finishes when one of them is reached.

Ending = Literal["completed", "failed"]


class EndBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = keys.END
    end: Ending = "completed"
    message: str = ""
    output: Output | None = None

    def traits(self) -> Traits:
        return Traits(slot=False, workspace="none", ends=self.end)


class EndSteps(LeafType[EndBody, SettledJob]):
    """The step type that ends its run."""

    body = EndBody
    settled = True

    def from_recipe(self, step: WrittenStep) -> EndBody:
        output = step.entries.nodes.get("output")
        return EndBody(
            end="failed" if step.entries.text("end") == "failed" else "completed",
            message=step.template("message") or "",
            output=None if output is None else read_output(output, step.unit.references, step.place),
        )

    def label(self, _step: Step, settings: EndBody) -> StepLabel:
        return StepLabel("end", f"ends the run as {settings.end}")

    def prepare(self, step: Preparation, settings: EndBody) -> SettledJob:
        message = text_of(settings.message, step.names)
        output = message if settings.output is None else value_of(settings.output, step.names)
        if settings.end == "completed":
            return SettledJob(output, summary=message)
        text = message or f"{step.node.path} ended the run as failed"
        failure = Failure("agent", "run.ended", text, retryable=False, step=step.node.path)
        return SettledJob(output, summary=message, warning=failure)
