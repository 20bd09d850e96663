"""A row of steps made a loop: what others read of them, they read of its output."""

from __future__ import annotations

from typing import Any

from fanfold.recipe.conversion.conditions import in_cel


def as_loop(
    steps: list[dict[str, Any]], first: str, last: str, until: str, most: int
) -> list[dict[str, Any]]:
    """The steps from one to another as a loop; what others read of them, they read of its output."""
    ids = [step["id"] for step in steps]
    start, end = ids.index(first), ids.index(last)
    inner = steps[start : end + 1]
    name = f"{in_cel(first)}_loop"
    inside = {step["id"] for step in inner}
    moved: tuple[str, ...] = ("depends_on", "when")
    outer = {key: inner[0].pop(key) for key in moved if key in inner[0]}
    group: dict[str, Any] = {"id": name, **outer}
    group["repeat"] = {"until": until, "max_iterations": most}
    group["steps"] = inner
    group["output"] = {step["id"]: f"steps.{step['id']}.output" for step in inner}
    rest = [_renamed(step, inside, name) for step in steps[end + 1 :]]
    return [*steps[:start], group, *rest]


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
