"""Logs that cannot be folded because somebody changed them: told as that, and never as a bug of ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from fanfold.errors import BugError
from fanfold.store.protocol import Store, StoreFault

T = TypeVar("T")
P = ParamSpec("P")


def tells_damage(
    load: Callable[Concatenate[type[T], Store, str, P], T],
) -> Callable[Concatenate[type[T], Store, str, P], T]:
    """For what reads a whole tree: whatever went wrong there, the store is asked whether it is as written."""

    @wraps(load)
    def judged(cls: type[T], store: Store, root: str, /, *more: P.args, **named: P.kwargs) -> T:
        try:
            return load(cls, store, root, *more, **named)
        except (BugError, msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
            found = store.check(root)
            if not found:
                raise  # nobody changed it: the mistake is ours
            raise StoreFault(
                "store.corrupt",
                f"the log of run {root} is not as it was written: {found[0].message}",
                hint=f"fanfold verify {root} says what was changed",
            ) from error

    return judged
