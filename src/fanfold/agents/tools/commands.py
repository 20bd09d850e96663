"""`run_command` runs a program for an agent; `read_output` reads more of its output.

Rules
* The runner is passed in. It knows the sandbox, the session and how to end a program. Without a runner there
  is no such tool.
* Every command needs permission first (see `permissions`). The question shows exactly the command that will
  run.
* There is no shell: the arguments are passed as they are.
* A role whose file allows some commands runs no others, whatever the user answers.
* Long output is shown without its middle and kept for `read_output` while the session runs. Only the last few
  outputs are kept, and none after a crash. Output that was shown completely is not kept.
* A command that runs into its timeout has a result, because the agent can use its output so far.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fanfold.agents.backend import SessionRequest
from fanfold.agents.confined import ToolFailed
from fanfold.agents.permissions import Action, Permissions
from fanfold.agents.tool_names import why_not
from fanfold.errors import FanfoldError
from fanfold.kernel.plan import JSON
from fanfold.language.terminal import shorten_middle

TIMEOUT_S = 120
MAX_OUTPUT_CHARS = 16_000
TAIL = 2 / 3
"""The part of the shown output from its end, because the end mostly contains the outcome."""
MAX_KEPT = 8
KEPT_CHARS = 1_000_000
"""Limit per stream, because hundreds of sessions can run in one process."""
READ_CHARS = 16_000
MAX_DENIED_CHARS = 200


class CommandResult(Protocol):
    """The result of a command."""

    @property
    def exit_code(self) -> int: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...


class Runner(Protocol):
    """Runs a program for a session, in its workspace and sandbox, and ends it at the timeout.

    Then it raises a `FanfoldError` whose `ended` is a `CommandResult` with the output so far.
    """

    async def __call__(
        self, request: SessionRequest, argv: Sequence[str], timeout_s: float, /
    ) -> CommandResult: ...


class CommandTools:
    """The command tools of one session."""

    def __init__(self, request: SessionRequest, runner: Runner, permissions: Permissions) -> None:
        self._request = request
        self._runner = runner
        self._permissions = permissions
        self._kept: dict[str, Mapping[str, str]] = {}

    async def run_command(self, args: Mapping[str, Any]) -> JSON:
        argv: list[str] = args["argv"]
        request = self._request
        if why := why_not(request.role.allowed_commands, argv):
            message = f"{shlex.join(argv)[:MAX_DENIED_CHARS]} is not allowed: {why}"
            raise ToolFailed(
                "permission", "command_not_allowed", message, "find another way, or say why it is needed"
            )
        await self._permissions.check(Action("command", shlex.join(argv), request.session_id, request.step))
        timeout_s = float(args.get("timeout_s", TIMEOUT_S))
        try:
            ran = await self._runner(request, argv, timeout_s)
        except FileNotFoundError:
            message = f'there is no program "{argv[0]}"'
            raise ToolFailed("tool", "tool.no_program", message, "argv is a list, not a shell line") from None
        except FanfoldError as error:
            ended: CommandResult | None = getattr(error, "ended", None)
            if ended is None:  # the sandbox could not start
                raise ToolFailed("tool", error.code, error.message, error.hint) from error
            # Without the text of the error, which may name the program of the sandbox.
            message = f'"{argv[0]}" did not end within {timeout_s:g} s'
            return {"exit_code": None, "timed_out": True, "message": message, **self._said(ended)}
        except OSError as error:
            message = f'"{argv[0]}" cannot be run: {error.strerror or error}'
            raise ToolFailed("tool", "tool.io", message) from None
        return {"exit_code": ran.exit_code, **self._said(ran)}

    async def read_output(self, args: Mapping[str, Any]) -> JSON:
        kept = self._kept.get(args["output"])
        if kept is None:
            message = f'there is no output "{args["output"]}" any more'
            hint = f"only the last {MAX_KEPT} long outputs are kept, and none when a session was interrupted"
            raise ToolFailed("tool", "tool.no_output", message, hint)
        text = kept[args.get("stream", "stdout")]
        offset, limit = args.get("offset", 0), args.get("limit", READ_CHARS)
        piece: dict[str, JSON] = {"text": text[offset : offset + limit]}
        if offset + limit < len(text):
            piece["next_offset"] = offset + limit
        return piece

    def _said(self, ran: CommandResult) -> dict[str, JSON]:
        """Return a program's output within limits; `output` and `next_offset` refer to the rest."""
        texts = {"stdout": ran.stdout, "stderr": ran.stderr}
        said: dict[str, JSON] = {
            name: shorten_middle(text, MAX_OUTPUT_CHARS, TAIL) for name, text in texts.items()
        }
        long = {name: text for name, text in texts.items() if len(text) > MAX_OUTPUT_CHARS}
        if long:
            # A counter would restart after a crash and refer to another command.
            said["output"] = f"out_{secrets.token_hex(4)}"
            said["next_offset"] = {name: MAX_OUTPUT_CHARS - int(MAX_OUTPUT_CHARS * TAIL) for name in long}
            self._kept[said["output"]] = {
                name: shorten_middle(text, KEPT_CHARS, tail=1 / 2) for name, text in texts.items()
            }
            if len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        return said
