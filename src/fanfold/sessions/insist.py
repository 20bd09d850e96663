"""Finish what must be finished, even when whoever asked for it is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def insist(work: Coroutine[Any, Any, _T] | asyncio.Future[_T]) -> _T:
    """Await `work` to its end. A cancellation that arrives before is raised after it, not instead of it."""
    task = asyncio.ensure_future(work)
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            interrupted = error
        except Exception:  # noqa: BLE001 - it is raised below, from the task itself
            break
    if interrupted is not None:
        if not task.cancelled():
            task.exception()  # looked at, so that nobody warns about it
        raise interrupted
    return task.result()
