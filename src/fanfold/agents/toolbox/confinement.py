"""Confinement as the tools meet it: `workspace.beneath` resolves, this tells the agent what went wrong.

A path that tries to leave is a refusal (`permission`); one that is not there is news for the agent (`tool`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fanfold.agents.toolbox import ToolFailed
from fanfold.workspace.files import beneath
from fanfold.workspace.files.beneath import PathProblem, Spot

_CODES = {"missing": "not_found", "gone": "no_workspace"}
_HINTS = {"missing": "list_files shows what does", "is_a_folder": "list_files shows what is in it"}


def as_failed(problem: PathProblem) -> ToolFailed:
    """A problem with a path as a tool tells it."""
    if problem.problem == "refused":
        return ToolFailed("permission", "tool.path_refused", problem.message, problem.hint)
    code = _CODES.get(problem.problem, problem.problem)
    return ToolFailed("tool", f"tool.{code}", problem.message, _HINTS.get(problem.problem, ""))


def refuse(path: str, why: str) -> ToolFailed:
    """The refusal of a path that is not the agent's to use."""
    return as_failed(beneath.refuse(path, why))


def missing(path: str) -> ToolFailed:
    return as_failed(beneath.missing(path))


@contextmanager
def resolve(
    top: str, path: str, *, before_making: Callable[[str], None] | None = None, follow_last: bool = True
) -> Iterator[Spot]:
    """See `workspace.beneath.resolve`."""
    try:
        with beneath.resolve(top, path, before_making=before_making, follow_last=follow_last) as spot:
            yield spot
    except PathProblem as problem:
        raise as_failed(problem) from None


def open_regular(spot: Spot, asked: str) -> int:
    """See `workspace.beneath.open_regular`."""
    try:
        return beneath.open_regular(spot, asked)
    except PathProblem as problem:
        raise as_failed(problem) from None
