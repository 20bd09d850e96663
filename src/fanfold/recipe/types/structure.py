"""Steps that exist for other steps: groups, and calls of workflows. The kernel knows these two itself."""

from __future__ import annotations

from fanfold.recipe.checks.references import TextPlace
from fanfold.recipe.checks.values import read_output
from fanfold.recipe.language.syntaxes import GROUP, WORKFLOW
from fanfold.recipe.types.grammar import StepGrammar, Written


class WorkflowGrammar(StepGrammar):
    syntax = WORKFLOW

    def check(self, step: Written) -> None:
        """Note the call; what it names is compiled when this file is read."""
        if "workflow" in step.entries.nodes:
            step.unit.calls.append(step.draft)


class GroupGrammar(StepGrammar):
    syntax = GROUP

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
