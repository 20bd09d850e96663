"""The calls of tools that a program told of, as far as they matter to its end: bounded, whatever it tells.

Rules
* A program may tell of calls without end, and of denials. The latest are known; what is older than that is
  forgotten, and so is what came of it.
* Every question is answered in the time that the answer is long: programs tell hundreds of thousands.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

MAX_KNOWN = 10_000
MAX_NAME_CHARS = 200

Name = TypeVar("Name")
Known = TypeVar("Known")


class KnownCall(Struct):
    """One call: its tool, which one it is in the order of all, and whether it came back."""

    tool: str
    order: int
    returned: bool = False


class KnownCalls:
    """What a program did, by the ids that it has for its calls."""

    def __init__(self) -> None:
        self._calls: dict[str, KnownCall] = {}
        self._denied: dict[tuple[str, str], None] = {}
        self._done: dict[str, int] = {}
        """Tools that did their work, with the order of the last call that did."""
        self._told = 0

    def find(self, name: str) -> KnownCall | None:
        return self._calls.get(short(name))

    def begin(self, name: str, tool: str) -> KnownCall:
        """A call that was not known."""
        self._told += 1
        made = KnownCall(short(tool), self._told)
        _keep(self._calls, short(name), made)
        return made

    def come_back(self, call: KnownCall, *, failed: bool) -> None:
        call.returned = True
        if not failed:
            self._done.pop(call.tool, None)
            _keep(self._done, call.tool, call.order)

    def deny(self, name: str, tool: str) -> None:
        _keep(self._denied, (short(name), short(tool)), None)

    def still_denied(self) -> list[str]:
        """Tools that were denied and did not do their work afterwards."""
        found: dict[str, None] = {}
        for name, tool in self._denied:
            call = self._calls.get(name)
            if self._done.get(tool, -1) <= (-1 if call is None else call.order):
                found[tool] = None
        return list(found)


def short(name: str) -> str:
    """A name as it is kept."""
    return name[:MAX_NAME_CHARS]


def _keep(known: dict[Name, Known], name: Name, value: Known) -> None:
    """Put one more into what is known, and forget the oldest where that is too much."""
    known[name] = value
    if len(known) > MAX_KNOWN:
        del known[next(iter(known))]
