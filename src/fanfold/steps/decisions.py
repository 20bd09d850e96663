"""Evaluates the expressions of a step: whether it runs, its items, its path sets, whether its loop ends.

The embedded host calls these functions with the values of the run before a step is admitted. A forecast
calls them with the values that are known before the run. So a dry run follows the same rules as a run.
"""

from __future__ import annotations

from collections.abc import Mapping

from fanfold.kernel.events import Failure
from fanfold.kernel.paths import GlobError, check_glob
from fanfold.kernel.plan import JSON, MAX_ITEMS, Repeat, Step
from fanfold.kernel.state import Node
from fanfold.language.tables import json_type
from fanfold.language.template import ExpressionError, UnresolvedPath
from fanfold.steps.step_type import render_sets

Names = Mapping[str, JSON]
UNDECIDABLE = (ExpressionError, UnresolvedPath, GlobError)
"""The errors that the functions below raise; `undecided` turns them into the failure of a step."""


def items_of(step: Step, names: Names) -> list[JSON]:
    """The items of a map."""
    from fanfold.language.expressions import evaluate

    assert step.for_each is not None
    items = evaluate(step.for_each, names)
    if not isinstance(items, list):
        raise UnresolvedPath(f"for_each needs a list, not {_in_words(items)}")
    if len(items) > step.max_items:
        more = "; the step may say more" if len(items) <= MAX_ITEMS else ""
        raise UnresolvedPath(f"for_each gave {len(items)} items, max_items is {step.max_items}{more}")
    return items


def _in_words(value: JSON) -> str:
    from fanfold.language.expressions import KINDS

    return KINDS.get(json_type(value), "null")


def condition_holds(when: str, names: Names) -> bool:
    """Whether the condition of a step is true."""
    from fanfold.language.expressions import evaluate

    verdict = evaluate(when, names)
    if not isinstance(verdict, bool):
        raise UnresolvedPath(f"when needs true or false, not {_in_words(verdict)}")
    return verdict


def has_converged(repeat: Repeat, names: Names) -> bool:
    """Whether the gate of a loop passes. A gate that cannot be evaluated never passes."""
    from fanfold.language.expressions import evaluate

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
    """The failure of a step whose expression or path sets cannot be evaluated."""
    code = "recipe.bad_glob" if isinstance(error, GlobError) else "expression.failed"
    return Failure("agent", code, f"{node.path}: {error}", retryable=False, step=node.path)
