"""What programs hand to the methods of a project: held against what the methods declare.

A type checker says the same before the program runs, but not everybody uses one. Without this a handle in
the place of a run's id, or a dictionary in the place of `Options`, would fail somewhere below, in words that
are about something else: a database takes what it cannot compare for damage.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fanfold.errors import AuthorError
from fanfold.text.excerpts import shorten

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "True or False", NoneType: "None"}


def checked(method: F) -> F:
    """The same method, which refuses arguments of other types than it declares with `usage.bad_value`."""

    def check(args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        parameters, hints = _declared(method)
        given = parameters.bind(*args, **named)  # a TypeError that names the method, as Python tells it
        for name, value in given.arguments.items():
            kind = parameters.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                for one in value:
                    _require(name, one, hints.get(name, Any))
            elif kind is not inspect.Parameter.VAR_KEYWORD:
                _require(name, value, hints.get(name, Any))

    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def wait(*args: Any, **named: Any) -> Any:
            check(args, named)
            return await method(*args, **named)

        return wait  # type: ignore[return-value]  # it takes and gives the same

    @wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        check(args, named)
        return method(*args, **named)

    return call  # type: ignore[return-value]  # it takes and gives the same


def all_checked(kind: type[T]) -> type[T]:
    """The same class, all public methods of which are `checked`."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, checked(method))
    return kind


@cache
def _declared(method: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    return inspect.signature(method), get_type_hints(method)


def _require(name: str, value: object, declared: Any) -> None:
    kinds = _alternatives(declared)
    if all(_is(value, kind) is False for kind in kinds):
        wanted = " or ".join(_word(kind) for kind in kinds)
        message = f"{name} cannot be {shorten(repr(value), 80)}: it is {wanted}"
        known = getattr(value, "id", None) or getattr(value, "run_id", None)
        hint = f'say which by its id: "{known}"' if str in kinds and isinstance(known, str) else ""
        raise AuthorError("usage.bad_value", message, hint=hint, details={"option": name})


def _alternatives(declared: Any) -> tuple[Any, ...]:
    return get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)


def _is(value: object, kind: Any) -> bool | None:
    """Whether a value is of a kind; None where only its user can tell."""
    origin = get_origin(kind)
    if origin is Literal:
        return value in get_args(kind)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            return False
        key, item = get_args(kind)
        return all(_is(name, key) is not False and _is(one, item) is not False for name, one in value.items())
    known = origin or kind
    if known is Any or not isinstance(known, type) or known is type:
        return None
    if known in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if known is float else known)


def _word(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if origin is Mapping:
        text = "" if get_args(kind)[1] is Any else " to texts"
        return f"a mapping from names{text}"
    known = origin or kind
    return _WORDS.get(known, "a path" if known.__name__ == "PathLike" else f"fanfold.{known.__name__}")
