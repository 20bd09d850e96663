"""Steps that exist for other steps: groups, and calls of workflows. The kernel knows these two itself."""

from __future__ import annotations

from fanfold.recipe.checks.references import TextPlace
from fanfold.recipe.checks.values import read_output
from fanfold.recipe.language.step_syntax import StepSyntax
from fanfold.recipe.types.grammar import StepGrammar, Written
from fanfold.text.tables.shapes import Key

_INSIDE: dict[str, str] = dict.fromkeys(
    ("read_set", "write_set", "workspace_mode"), "put it on the steps inside"
)


class WorkflowGrammar(StepGrammar):
    syntax = StepSyntax(
        name="workflow",
        decided_by=("workflow",),
        keys=(Key("workflow", "text", "`name@version`, or `./file.yaml` relative to this file."),),
        takes=frozenset({"posture", "output_schema", "outputs", "inputs"}),
        instead=_INSIDE,
    )

    def check(self, step: Written) -> None:
        """Note the call; what it names is compiled when this file is read."""
        if "workflow" in step.entries.nodes:
            step.unit.calls.append(step.draft)


class GroupGrammar(StepGrammar):
    syntax = StepSyntax(
        name="group",
        decided_by=("steps",),
        keys=(
            Key("steps", "objects", "Inner steps; they may refer to outer ones.", of="step"),
            Key("output", "output", "Output of the group.", "its last declared step's output"),
        ),
        takes=frozenset({"posture", "output_schema", "outputs"}),
        instead=_INSIDE,
    )

    def check(self, step: Written) -> None:
        """Check the group's output; its steps are checked by themselves."""
        from fanfold.recipe.checks.known_values import Viewpoint, known_of_output

        draft = step.draft
        if "output" in draft.entries.nodes and draft.inner is not None:
            inside = TextPlace(draft, draft.inner, draft.inner.names)
            output = read_output(draft.entries.nodes["output"], step.unit.references, inside)
            viewpoint = Viewpoint(step.unit.inputs, draft, draft.inner)
            draft.facts.output = output
            draft.facts.gives = lambda: known_of_output(output, viewpoint)
