"""Functions: Python callables that `function` steps name.

A handler is registered by name with `@fanfold.function`, or named `package.module:callable`. This module
is the register used while a run is going on. What a recipe may name is found without importing anything
by `search`: checking a recipe must never execute the project it belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar, overload

from fanfold.errors import AuthorError
from fanfold.text.excerpts import shorten

Handler = Callable[..., Any]
F = TypeVar("F", bound=Handler)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
MODULE_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\Z")

_registered: dict[str, Handler] = {}


@overload
def function(target: F, /) -> F: ...
@overload
def function(target: str | None = None, /, *, name: str | None = None) -> Callable[[F], F]: ...
def function(target: F | str | None = None, /, *, name: str | None = None) -> F | Callable[[F], F]:
    """Register a callable as a handler, under its own name or another.

    >>> @function
    ... def prepare(path: str) -> dict[str, str]:
    ...     return {"path": path}
    >>> @function("count-words")
    ... def count(text: str) -> int:
    ...     return len(text.split())
    """
    if target is not None and not isinstance(target, str):
        return _register(target, name)
    return lambda handler: _register(handler, target or name)


def registered() -> dict[str, Handler]:
    """Every handler registered so far, by name."""
    return dict(_registered)


def is_module_name(name: str) -> bool:
    """True for the `package.module:callable` form."""
    return MODULE_NAME.match(name) is not None


def _register(handler: F, chosen: str | None) -> F:
    name = _name_of(handler, chosen)
    if not NAME.match(name):
        raise AuthorError(
            "function.bad_name",
            f'"{name}" cannot be the name of a function',
            hint='use letters, digits, "-", "_" and "."',
        )
    earlier = _registered.get(name)
    # Reloading a module registers the same function again; that is not a clash.
    if earlier is not None and _origin(earlier) != _origin(handler):
        raise AuthorError(
            "function.duplicate",
            f'two functions are registered as "{name}": {_origin(earlier)} and {_origin(handler)}',
            hint=f'give one of them another name: @fanfold.function("{name}-2")',
        )
    _registered[name] = handler
    return handler


def _name_of(handler: object, chosen: str | None) -> str:
    """The name that was chosen, or the handler's own; what has none, or cannot be called, is refused."""
    shown = shorten(repr(handler), 80)
    if not callable(handler):
        message = f"{shown} cannot be called: only a function can be registered"
        raise AuthorError("function.not_callable", message)
    name = chosen or getattr(handler, "__name__", "")
    if not name:
        hint = 'give it one: fanfold.function("name")(…)'
        raise AuthorError("function.bad_name", f"{shown} has no name of its own", hint=hint)
    return str(name)


def _origin(handler: Handler) -> str:
    return f"{handler.__module__}:{getattr(handler, '__qualname__', handler)}"
