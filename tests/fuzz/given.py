"""What functions of random recipes are given: references, templates and data, each with what it comes to.

Written from the description of `inputs` alone: a text that is a path, or nothing but one `{{path}}`, keeps
the type of what it leads to; any other text with `{{…}}` is a template; anything else is meant as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import fanfold
from tests.fuzz.model import Expression, Names, Unresolved

DATA: tuple[Any, ...] = (
    5, None, True, 2.5, "just words",
    {"literal": [1, "inputs.flag"]}, {"a": {"literal": 1}}, {"literal": "inputs.flag"},
)  # fmt: skip


@fanfold.function("fuzz-echo")
def echo(**given: Any) -> Any:
    """Gives back what it got. What it does to that afterwards is nobody else's business."""
    answer = json.loads(json.dumps(given))
    for value in given.values():
        if isinstance(value, list):
            value.append("spoilt")
        elif isinstance(value, dict):
            value["spoilt"] = True
    return answer


def draw(rng: Random, before: list[str], names: dict[str, Any]) -> Expression:
    """One input of a function."""
    kind = rng.choice(("path", "path", "braces", "text", "text", "data"))
    if kind == "data":
        written = rng.choice(DATA)
        meant = written["literal"] if isinstance(written, dict) and "literal" in written else written
        return Expression(written, lambda _: meant)
    path = _path(rng, before, names)
    if kind == "path":
        return path
    if kind == "braces":
        return Expression(f"{{{{ {path.words} }}}}", path.means, path.refers)
    other = _path(rng, before, names)
    return Expression(
        f"\\{{{{ {{{{{path.words}}}}} and {{{{{other.words}}}}}",
        lambda seen: _text("{{ ", path.means(seen), " and ", other.means(seen)),
        (*path.refers, *other.refers),
    )


def _path(rng: Random, before: list[str], names: dict[str, Any]) -> Expression:
    options = [Expression(f"inputs.{name}", _input(name)) for name in names]
    for step in before:
        options += [
            Expression(f"steps.{step}.output", _output(step), (step,)),
            Expression(f"steps.{step}.status", _status(step), (step,)),
        ]
    if "many" in names:
        options.append(Expression("inputs.many[1]", lambda seen: _at(seen["inputs"]["many"], 1)))
    return rng.choice(options)


def _input(name: str) -> Callable[[Names], Any]:
    return lambda seen: seen["inputs"][name]


def _output(step: str) -> Callable[[Names], Any]:
    return lambda seen: seen["steps"][step].seen()


def _status(step: str) -> Callable[[Names], Any]:
    return lambda seen: seen["steps"][step].status


def _at(value: list[Any], index: int) -> Any:
    if index >= len(value):
        raise Unresolved
    return value[index]


def _text(*parts: Any) -> Any:
    """Text as it is, anything else as compact JSON; where a failure is told of, only that it is."""
    told = [one for part in parts if (one := _told(part)) is not None]
    if told:
        return told[0]
    shown = [part if isinstance(part, str) else _compact(part) for part in parts]
    return "".join(shown)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _told(value: Any) -> Any:
    """What only says that something failed, wherever it stands in a value."""
    if hasattr(value, "word"):
        return value
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((one for part in inside if (one := _told(part)) is not None), None)
