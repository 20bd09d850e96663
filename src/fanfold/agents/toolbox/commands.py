"""`run_command`: a program run for an agent, by whoever was given the means to.

Rules
* The runner is passed in: it knows the sandbox, the session and how to end what it started. Without one there
  is no such tool.
* Every command is asked for first (see `permissions`), in the very words that will be run.
* No shell: a list of arguments means what it says.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fanfold.agents.backend import SessionRequest
from fanfold.agents.permissions import Action, Permissions
from fanfold.agents.toolbox import ToolFailed
from fanfold.errors import FanfoldError
from fanfold.kernel.plan import JSON

TIMEOUT_S = 120
MAX_OUTPUT_CHARS = 16_000


class Ran(Protocol):
    """How a command ended."""

    @property
    def exit_code(self) -> int: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...


class Runner(Protocol):
    """Runs a program for a session, in its workspace and sandbox, and ends it when the time is over."""

    async def __call__(self, request: SessionRequest, argv: Sequence[str], timeout_s: float, /) -> Ran: ...


class CommandTools:
    """The command tool of one session."""

    def __init__(self, request: SessionRequest, runner: Runner, permissions: Permissions) -> None:
        self._request = request
        self._runner = runner
        self._permissions = permissions

    async def run_command(self, args: Mapping[str, Any]) -> JSON:
        argv: list[str] = args["argv"]
        request = self._request
        await self._permissions.check(Action("command", shlex.join(argv), request.session_id, request.step))
        try:
            ran = await self._runner(request, argv, float(args.get("timeout_s", TIMEOUT_S)))
        except FileNotFoundError:
            message = f'there is no program "{argv[0]}"'
            raise ToolFailed("tool", "tool.no_program", message, "argv is a list, not a shell line") from None
        except FanfoldError as error:  # it ran out of time, or the sandbox would not start
            raise ToolFailed("tool", error.code, error.message, error.hint) from error
        except OSError as error:
            message = f'"{argv[0]}" cannot be run: {error.strerror or error}'
            raise ToolFailed("tool", "tool.io", message) from None
        return {"exit_code": ran.exit_code, "stdout": _cut(ran.stdout), "stderr": _cut(ran.stderr)}


def _cut(text: str) -> str:
    if len(text) <= MAX_OUTPUT_CHARS:
        return text
    head, tail = MAX_OUTPUT_CHARS // 3, MAX_OUTPUT_CHARS - MAX_OUTPUT_CHARS // 3
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[… {left_out:,} characters left out …]\n{text[-tail:]}"
