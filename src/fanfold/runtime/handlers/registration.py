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
    if callable(target):
        return _register(target, name or target.__name__)
    chosen = target or name
    return lambda handler: _register(handler, chosen or handler.__name__)


def registered() -> dict[str, Handler]:
    """Every handler registered so far, by name."""
    return dict(_registered)


def is_module_name(name: str) -> bool:
    """True for the `package.module:callable` form."""
    return MODULE_NAME.match(name) is not None


def _register(handler: F, name: str) -> F:
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


def _origin(handler: Handler) -> str:
    return f"{handler.__module__}:{getattr(handler, '__qualname__', handler)}"
