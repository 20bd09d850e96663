"""The types of steps there are, and what follows from the list: which keys there are, which key means what.

A type that is added here is read, checked, offered by the schema for editors and explained by the reference.
"""

from __future__ import annotations

from fanfold.kernel.plan import Step
from fanfold.recipe.language.step_syntax import StepSyntax, step_shape
from fanfold.recipe.types.agent import AgentGrammar
from fanfold.recipe.types.approval import ApprovalGrammar
from fanfold.recipe.types.ask import AskGrammar
from fanfold.recipe.types.body import read_body
from fanfold.recipe.types.command import CommandGrammar
from fanfold.recipe.types.deliver import DeliverGrammar
from fanfold.recipe.types.end import EndGrammar
from fanfold.recipe.types.function import FunctionGrammar
from fanfold.recipe.types.grammar import LeafGrammar, StepGrammar
from fanfold.recipe.types.set import SetGrammar
from fanfold.recipe.types.structure import GroupGrammar, WorkflowGrammar
from fanfold.recipe.types.wait import WaitGrammar
from fanfold.text.tables.shapes import Shape


class StepTable:
    """Grammars by the name of their type, in the order the reference explains them."""

    def __init__(self, *grammars: StepGrammar) -> None:
        self.grammars: dict[str, StepGrammar] = {}
        self.syntaxes: dict[str, StepSyntax] = {}
        self.deciding: dict[str, str] = {}
        """Key to the type it makes a step."""
        self.hinting: dict[str, str] = {}
        """The same for keys that decide when no other does."""
        self.shape: Shape
        """All keys of a step."""
        for grammar in grammars:
            self._put(grammar)
        self.shape = step_shape(self.syntaxes)

    def add(self, grammar: StepGrammar) -> None:
        """Make one more type known."""
        self._put(grammar)
        self.shape = step_shape(self.syntaxes)

    def _put(self, grammar: StepGrammar) -> None:
        syntax = grammar.syntax
        self.grammars[syntax.name] = grammar
        self.syntaxes[syntax.name] = syntax
        self.deciding |= dict.fromkeys(syntax.decided_by, syntax.name)
        self.hinting |= dict.fromkeys(syntax.hinted_by, syntax.name)


STEPS = StepTable(
    AgentGrammar(),
    FunctionGrammar(),
    CommandGrammar(),
    WorkflowGrammar(),
    SetGrammar(),
    AskGrammar(),
    WaitGrammar(),
    DeliverGrammar(),
    EndGrammar(),
    ApprovalGrammar(),
    GroupGrammar(),
)


def roles_of(step: Step) -> tuple[str, ...]:
    """The roles that may come to work for a step of a plan, as it names them."""
    grammar = STEPS.grammars.get(step.type)
    return read_body(grammar.body, step).roles() if isinstance(grammar, LeafGrammar) else ()
