"""End steps: the run is over when one of them is reached."""

from __future__ import annotations

from typing import ClassVar, Literal

from fanfold.kernel.plan import Output, Traits
from fanfold.recipe.checks.values import read_output
from fanfold.recipe.language.step_syntax import StepSyntax
from fanfold.recipe.language.syntaxes import END
from fanfold.recipe.types.body import Body
from fanfold.recipe.types.grammar import LeafGrammar, Written

Ending = Literal["completed", "failed"]


class EndBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = END
    end: Ending = "completed"
    message: str = ""
    output: Output | None = None

    def traits(self) -> Traits:
        return Traits(slot=False, workspace="none", ends=self.end)


class EndGrammar(LeafGrammar[EndBody]):
    body = EndBody

    def read(self, step: Written) -> EndBody:
        output = step.entries.nodes.get("output")
        return EndBody(
            end="failed" if step.entries.text("end") == "failed" else "completed",
            message=step.template("message") or "",
            output=None if output is None else read_output(output, step.unit.references, step.place),
        )
