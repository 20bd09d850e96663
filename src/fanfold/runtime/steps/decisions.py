"""What a step's expressions come to: whether it runs, for which items, what it claims, whether its loop ends.

The embedded host asks when a step is about to be admitted, with the values of the run; a forecast asks with
what is known beforehand. Both get their answers here, so that a dry run cannot judge by other rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from fanfold.kernel.events import Failure
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import JSON, MAX_ITEMS, Repeat, Step
from fanfold.kernel.sets.globs import GlobError, check_glob
from fanfold.recipe.expressions.expression_error import ExpressionError
from fanfold.runtime.steps.step_type import render_sets
from fanfold.text.notes import json_type
from fanfold.text.template import UnresolvedPath

Names = Mapping[str, JSON]
UNDECIDABLE = (ExpressionError, UnresolvedPath, GlobError)
"""What the functions below raise; `undecided` makes a step's failure of it."""


def items_of(step: Step, names: Names) -> list[JSON]:
    """The list that a map runs over."""
    from fanfold.recipe.expressions.evaluate import evaluate

    assert step.for_each is not None
    items = evaluate(step.for_each, names)
    if not isinstance(items, list):
        raise UnresolvedPath(f"for_each needs a list, not {_in_words(items)}")
    if len(items) > step.max_items:
        more = "; the step may say more" if len(items) <= MAX_ITEMS else ""
        raise UnresolvedPath(f"for_each gave {len(items)} items, max_items is {step.max_items}{more}")
    return items


def _in_words(value: JSON) -> str:
    from fanfold.recipe.expressions.results import KINDS

    return KINDS.get(json_type(value), "null")


def condition_holds(when: str, names: Names) -> bool:
    from fanfold.recipe.expressions.evaluate import evaluate

    verdict = evaluate(when, names)
    if not isinstance(verdict, bool):
        raise UnresolvedPath(f"when needs true or false, not {_in_words(verdict)}")
    return verdict


def has_converged(repeat: Repeat, names: Names) -> bool:
    """A gate that cannot be evaluated never passes."""
    from fanfold.recipe.expressions.evaluate import evaluate

    try:
        return evaluate(repeat.until, names) is True
    except (ExpressionError, UnresolvedPath):
        return False


def sets_of(node: Node, names: Names) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The read-set and write-set of an instance whose step has templates in them."""
    read_set, write_set = render_sets(node, dict(names))
    for pattern in (*read_set, *write_set):
        check_glob(pattern)
    return read_set, write_set


def undecided(node: Node, error: ValueError) -> Failure:
    """The failure of a step whose expression or sets cannot be made out."""
    code = "recipe.bad_glob" if isinstance(error, GlobError) else "expression.failed"
    return Failure("agent", code, f"{node.path}: {error}", retryable=False, step=node.path)
