"""The types of steps there are, and what follows from the list: which keys there are, which key means what.

A type that is added here is read, checked, offered by the schema for editors and explained by the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

from fanfold.kernel.plan import Step
from fanfold.recipe.language import syntaxes
from fanfold.recipe.language.step_syntax import StepSyntax, step_shape
from fanfold.recipe.types.body import read_body
from fanfold.recipe.types.grammar import LeafGrammar, StepGrammar
from fanfold.text.tables.shapes import Shape

Load: TypeAlias = Callable[[], StepGrammar]
"""The grammar of a type: most recipes have steps of one type or two, and need no other."""


class StepTable:
    """Types by name, in the order the reference explains them."""

    def __init__(self, *types: tuple[StepSyntax, Load]) -> None:
        self.grammars: dict[str, Load] = {}
        self.syntaxes: dict[str, StepSyntax] = {}
        self.deciding: dict[str, str] = {}
        """Key to the type it makes a step."""
        self.hinting: dict[str, str] = {}
        """The same for keys that decide when no other does."""
        self.shape: Shape
        """All keys of a step."""
        for syntax, load in types:
            self._put(syntax, load)
        self.shape = step_shape(self.syntaxes)

    def add(self, grammar: StepGrammar) -> None:
        """Make one more type known."""
        self._put(grammar.syntax, lambda: grammar)
        self.shape = step_shape(self.syntaxes)

    def _put(self, syntax: StepSyntax, load: Load) -> None:
        self.grammars[syntax.name] = load
        self.syntaxes[syntax.name] = syntax
        self.deciding |= dict.fromkeys(syntax.decided_by, syntax.name)
        self.hinting |= dict.fromkeys(syntax.hinted_by, syntax.name)


@cache
def _agent() -> StepGrammar:
    from fanfold.recipe.types.agent import AgentGrammar

    return AgentGrammar()


@cache
def _function() -> StepGrammar:
    from fanfold.recipe.types.function import FunctionGrammar

    return FunctionGrammar()


@cache
def _command() -> StepGrammar:
    from fanfold.recipe.types.command import CommandGrammar

    return CommandGrammar()


@cache
def _workflow() -> StepGrammar:
    from fanfold.recipe.types.structure import WorkflowGrammar

    return WorkflowGrammar()


@cache
def _set() -> StepGrammar:
    from fanfold.recipe.types.set import SetGrammar

    return SetGrammar()


@cache
def _ask() -> StepGrammar:
    from fanfold.recipe.types.ask import AskGrammar

    return AskGrammar()


@cache
def _wait() -> StepGrammar:
    from fanfold.recipe.types.wait import WaitGrammar

    return WaitGrammar()


@cache
def _deliver() -> StepGrammar:
    from fanfold.recipe.types.deliver import DeliverGrammar

    return DeliverGrammar()


@cache
def _end() -> StepGrammar:
    from fanfold.recipe.types.end import EndGrammar

    return EndGrammar()


@cache
def _approval() -> StepGrammar:
    from fanfold.recipe.types.approval import ApprovalGrammar

    return ApprovalGrammar()


@cache
def _group() -> StepGrammar:
    from fanfold.recipe.types.structure import GroupGrammar

    return GroupGrammar()


STEPS = StepTable(
    (syntaxes.AGENT, _agent),
    (syntaxes.FUNCTION, _function),
    (syntaxes.COMMAND, _command),
    (syntaxes.WORKFLOW, _workflow),
    (syntaxes.SET, _set),
    (syntaxes.ASK, _ask),
    (syntaxes.WAIT, _wait),
    (syntaxes.DELIVER, _deliver),
    (syntaxes.END, _end),
    (syntaxes.APPROVAL, _approval),
    (syntaxes.GROUP, _group),
)


def roles_of(step: Step) -> tuple[str, ...]:
    """The roles that may come to work for a step of a plan, as it names them."""
    load = STEPS.grammars.get(step.type)
    grammar = load() if load is not None else None
    return read_body(grammar.body, step).roles() if isinstance(grammar, LeafGrammar) else ()
