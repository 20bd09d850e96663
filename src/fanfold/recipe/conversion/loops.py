"""A row of steps made a loop: what others read of them, they read of its output."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from msgspec import Struct

from fanfold.recipe.conversion.conditions import in_cel

_REFERENCE = re.compile(r"(?<![\w.])steps\.([A-Za-z0-9][\w-]*)\.output((?:\.[\w-]+|\[\d+\])*)", re.ASCII)
_HOLE = re.compile(
    r"(?<!\\)\{\{\s*steps\.([A-Za-z0-9][\w-]*)\.output((?:\.[\w-]+|\[\d+\])*)\s*\}\}", re.ASCII
)


class FoundLoop(Struct, frozen=True):
    """Steps that are done again until an expression holds."""

    inside: tuple[str, ...]
    """Their ids, in order."""
    until: str
    most: int
    goes_on: bool = False
    """Whether what comes after is done also when it never holds."""


def as_loop(
    steps: list[dict[str, Any]], loop: FoundLoop, output: dict[str, str]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The steps with those of the loop in a group, and the recipe's output as it reads them now."""
    ids = [step["id"] for step in steps]
    start, end = ids.index(loop.inside[0]), ids.index(loop.inside[-1])
    inner = steps[start : end + 1]
    name = f"{in_cel(loop.inside[0])}_loop"
    inside = {step["id"] for step in inner}
    moved: tuple[str, ...] = ("depends_on", "when")
    outer = {key: inner[0].pop(key) for key in moved if key in inner[0]}
    group: dict[str, Any] = {"id": name, **outer}
    group["repeat"] = {"until": loop.until, "max_iterations": loop.most}
    if loop.goes_on:
        group["repeat"]["on_exhausted"] = "continue"
    group["steps"] = inner
    group["output"] = {step["id"]: f"steps.{step['id']}.output" for step in inner}
    rest = [_renamed(step, inside, name) for step in steps[end + 1 :]]
    return [*steps[:start], group, *rest], _renamed(output, inside, name)


def referred(text: str) -> list[str]:
    """The steps whose output a text names."""
    return [found[1] for found in _REFERENCE.finditer(text)]


def looking_back(value: Any, later: list[str], inside: Collection[str], lose: Callable[[str], None]) -> Any:
    """A value in which nothing names a step that comes later: in a loop, what the last round gave of it.

    Anywhere else it stays as words, and is lost.
    """
    if isinstance(value, dict):
        return {key: looking_back(one, later, inside, lose) for key, one in value.items()}
    if isinstance(value, list):
        return [looking_back(one, later, inside, lose) for one in value]
    if not isinstance(value, str):
        return value

    def hole(found: re.Match[str]) -> str:
        if found[1] not in later:
            return found[0]
        if found[1] in inside:
            return f"{{{{feedback.{found[1]}{found[2]}}}}}"
        lose(found[0])
        return f"\\{found[0]}"

    return _HOLE.sub(hole, value)


def _renamed(value: Any, inside: set[str], group: str) -> Any:
    if isinstance(value, dict):
        renamed: dict[str, Any] = {
            key: list(dict.fromkeys(group if one in inside else one for one in inner))
            if key == "depends_on" and isinstance(inner, list)
            else _renamed(inner, inside, group)
            for key, inner in value.items()
        }
        return renamed
    if isinstance(value, list):
        return [_renamed(one, inside, group) for one in value]
    if isinstance(value, str):
        for one in sorted(inside, key=len, reverse=True):
            for spelled, named in ((one, group), (in_cel(one), in_cel(group))):
                value = value.replace(f"steps.{spelled}.output", f"steps.{named}.output.{spelled}")
                value = value.replace(f"steps.{spelled}.status", f"steps.{named}.status")
    return value
