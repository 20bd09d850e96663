"""What an agent can do besides speaking: tools, each called by its name.

Rules
* A toolbox belongs to one session: it knows that session's folder, posture and write-set, and nothing of
  the run around it. Whoever runs the session makes the toolbox; an agent only names tools.
* A tool that cannot do what was asked raises `ToolFailed`. Class `tool` is news for the agent, which may try
  something else; `permission` and `violation` are refusals: nothing was touched.
* `mutates` says whether doing a call twice could differ from doing it once. Such calls are recorded before
  they run and never repeated without the agent knowing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fanfold.agents.backend import SessionFailed
from fanfold.kernel.events import Failure
from fanfold.kernel.plan import JSON


class ToolFailed(SessionFailed):
    """A tool did not do what was asked. Ends the session unless its back end tells the agent instead."""

    def __init__(self, kind: str, code: str, message: str, hint: str = "") -> None:
        super().__init__(Failure(kind, code, message, hint, retryable=kind == "tool"))

    @property
    def refused(self) -> bool:
        """True when the call was not allowed, as opposed to not possible."""
        return self.failure.kind in ("permission", "violation")


class Toolbox(Protocol):
    """The tools of one session."""

    def mutates(self, name: str) -> bool:
        """Whether the tool changes anything; true for tools nobody knows."""
        ...

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        """Use a tool; its result as a JSON value. Raises `ToolFailed`."""
        ...
