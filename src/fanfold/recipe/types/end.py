"""End steps: the run is over when one of them is reached."""

from __future__ import annotations

from typing import ClassVar, Literal

from fanfold.kernel.plan import Output, Traits
from fanfold.recipe.checks.values import read_output
from fanfold.recipe.language.known_outputs import TEXT
from fanfold.recipe.language.step_syntax import StepSyntax
from fanfold.recipe.types.body import Body
from fanfold.recipe.types.grammar import LeafGrammar, Written
from fanfold.text.tables.shapes import Key

Ending = Literal["completed", "failed"]
SYNTAX = StepSyntax(
    name="end",
    decided_by=("end",),
    keys=(
        Key(
            "end",
            "word",
            "How the run ends here; what runs is cancelled, what waits is skipped.",
            words=("completed", "failed"),
            meant=(("success", "completed"), ("ok", "completed"), ("failure", "failed"), ("error", "failed")),
        ),
        Key("message", "template", "Why; of a failed run its error."),
        Key("output", "output", "Output of the run.", "the recipe's output"),
    ),
    gives=TEXT,
)


class EndBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = SYNTAX
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
