"""The world of a dry run: every step takes one tick and succeeds; values are those known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from fanfold.errors import AuthorError
from fanfold.kernel.commands import Start
from fanfold.kernel.events import Decided, Failure, StepEvent, Usage
from fanfold.kernel.lifecycle import COMPLETED, FAILED
from fanfold.kernel.nodes import Loop, Map, Node, State
from fanfold.kernel.plan import JSON, WorkflowAction
from fanfold.kernel.sets.globs import check_glob
from fanfold.recipe.expressions.evaluate import evaluate
from fanfold.recipe.expressions.expression_error import ExpressionError
from fanfold.recipe.inputs import bind_inputs
from fanfold.recipe.types.body import find_body
from fanfold.recipe.types.set import SetBody
from fanfold.runtime.forecast.assumptions import Assumptions
from fanfold.runtime.forecast.known import Known, is_certain, is_known, widest
from fanfold.runtime.steps.decisions import (
    UNDECIDABLE,
    Names,
    condition_holds,
    items_of,
    sets_of,
    undecided,
)
from fanfold.runtime.steps.registry import type_of
from fanfold.runtime.steps.step_type import value_of
from fanfold.text.template import UnresolvedPath

TICK = 1
T = TypeVar("T")


class Unknown(Exception):
    """An expression needs a value that nobody has before the run."""


def _certainly(expression: str, names: Names, judge: Callable[[], T]) -> T:
    """What an expression comes to whatever the missing values are; raises `Unknown`, or its own mistake.

    That a value is missing here says nothing to `has`, which would take it for an answer.
    """
    if "has(" in expression and not is_certain(expression, names):
        raise Unknown
    try:
        return judge()
    except (ExpressionError, UnresolvedPath):
        if is_certain(expression, names):
            raise
        raise Unknown from None


class Foresight:
    """Decides as the embedded host would, and assumes what it cannot know."""

    def __init__(self, inputs: Mapping[str, JSON]) -> None:
        self.assumed = Assumptions()
        self._known = Known(inputs)

    # Expressions

    def decide(self, node: Node, what: str) -> Decided:
        decided = Decided(step=node.path, what=what)
        try:
            if isinstance(node, Map):
                return replace(decided, value=self._items(node))
            if isinstance(node, Loop) and what == "until":
                return replace(decided, value=self._converges(node))
            return self._admission(node, decided)
        except UNDECIDABLE as error:
            return replace(decided, error=undecided(node, error))

    def _items(self, node: Map) -> int:
        names, expression = self._known.at(node), node.step.for_each
        assert expression is not None
        try:
            items = _certainly(expression, names, lambda: items_of(node.step, names))
        except Unknown:
            self.assumed.list(node)
            return 1
        self._known.items[node.run.id, node.path] = items
        return len(items)

    def _converges(self, loop: Loop) -> bool:
        assert loop.step.repeat is not None
        until, names = loop.step.repeat.until, self._known.gate(loop)
        try:
            return _certainly(until, names, lambda: evaluate(until, names) is True)
        except Unknown:
            self.assumed.loop(loop)
            return True
        except ExpressionError:
            return False  # a gate that cannot be evaluated never passes

    def _admission(self, node: Node, decided: Decided) -> Decided:
        names = self._known.at(node)
        if node.step.when is not None and not self._holds(node, node.step.when, names):
            return replace(decided, value=False)
        if not node.step.templated_sets:
            return replace(decided, value=True)
        read_set, write_set = self._sets(node, names)
        return replace(decided, value=True, read_set=read_set, write_set=write_set)

    def _holds(self, node: Node, when: str, names: Names) -> bool:
        try:
            return _certainly(when, names, lambda: condition_holds(when, names))
        except Unknown:
            if node.step.traits.ends is not None:
                self.assumed.end(node)
                return False
            self.assumed.condition(node)
            return True

    def _sets(self, node: Node, names: Names) -> tuple[tuple[str, ...], tuple[str, ...]]:
        try:
            return sets_of(node, names)
        except UnresolvedPath:
            sets = (node.step.read_set, node.step.write_set)
            if all(is_known(pattern, names) for patterns in sets for pattern in patterns):
                raise
        read_set, write_set = (tuple(widest(pattern, names) for pattern in patterns) for patterns in sets)
        for pattern in (*read_set, *write_set):
            check_glob(pattern)
        return read_set, write_set

    # Starts and ends

    def start(self, state: State, node: Node, start: Start) -> StepEvent:
        step, attempt, execution = node.path, start.attempt, start.execution
        action = node.step.action
        if action.traits.waits is not None:
            if action.traits.waits == "person":
                self.assumed.answer(node)
            return StepEvent(step, "waiting", attempt, execution)
        if not isinstance(action, WorkflowAction):
            if self.asks(node) and not node.agreed:
                self.assumed.answer(node)
            problem = self._work_out(node)
            if problem is not None:
                return StepEvent(step, FAILED, attempt, execution, error=problem)
            word = COMPLETED if type_of(node.step).settled else "started"
            return StepEvent(step, word, attempt, execution)
        child = f"{state.root.id}.{len(state.runs)}"
        try:
            self._known.inputs[child] = self._inputs_of_child(state, node, action)
        except UnresolvedPath as error:
            message = f"{node.path} cannot start: {error}"
            failure = Failure("agent", "template.unresolved", message, retryable=False, step=node.path)
            return StepEvent(step, FAILED, attempt, execution, error=failure)
        except AuthorError as error:
            failure = Failure("agent", error.code, error.message, error.hint, retryable=False, step=node.path)
            return StepEvent(step, FAILED, attempt, execution, error=failure)
        return StepEvent(step, "started", attempt, execution, child_run_id=child)

    def asks(self, node: Node) -> bool:
        return node.step.traits.workspace == "claims"

    def _work_out(self, node: Node) -> Failure | None:
        """Note the values of a `set` step that are known; its failure when they cannot be worked out."""
        said = find_body(SetBody, node.step)
        names = self._known.at(node)
        if said is None or not all(is_certain(text, names) for text in said.set.values()):
            return None
        try:
            values = {name: evaluate(text, names) for name, text in said.set.items()}
        except ExpressionError as error:
            return undecided(node, error)
        self._known.outputs[node.run.id, node.path] = values
        return None

    def _inputs_of_child(self, state: State, node: Node, action: WorkflowAction) -> dict[str, JSON]:
        """The inputs of a child run that are known; the others are left out, so nothing can rely on them."""
        plan, names = state.plan.workflows[action.workflow], self._known.at(node)
        given = {
            name: value_of(value, names) for name, value in node.step.inputs.items() if is_known(value, names)
        }
        unknown = set(node.step.inputs) - set(given)
        declared = tuple(one for one in plan.inputs if one.name not in unknown)
        return bind_inputs(replace(plan, inputs=declared), given)

    def outcome(self, node: Node, start: Start) -> tuple[int, StepEvent]:
        usage = None
        if node.step.traits.role is not None:  # it spends what was reserved for it
            usage = Usage(input_tokens=start.reserved_tokens, micro_usd=start.reserved_micro_usd)
        return TICK, StepEvent(node.path, COMPLETED, start.attempt, start.execution, usage=usage)
