"""Guards: commands of a role's file that are shown each call of a tool before it is made, and may deny it.

Claude Code calls them hooks. A guard reads the call as JSON on standard input, with the names and arguments
that Claude Code has for it, and answers by its exit status and what it prints.

Rules
* A guard can only take away. It is heard before anything else about the call is asked or done; that it agrees
  gives no permission, and what else it prints changes nothing.
* Whatever is not plain agreement denies: another exit status than 0, an answer that says so or cannot be
  understood, no end in time, no way to start it.
* It runs in a sandbox where nothing can be written and nobody reached, and sees the project, not what the
  agent made of it.
* Its name for a tool is matched whole: `Bash|Write` are two names, `mcp__.*` begins so, nothing is all.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Protocol

import msgspec

from fanfold.agents.backend import SessionRequest
from fanfold.agents.role import CallGuard
from fanfold.agents.toolbox import ToolFailed
from fanfold.agents.toolbox.catalogue import Tools, ToolsAround
from fanfold.agents.toolbox.commands import CommandResult
from fanfold.errors import FanfoldError
from fanfold.kernel.plan import JSON
from fanfold.text.excerpts import shorten
from fanfold.text.json_value import read_json

MAX_WHY_CHARS = 400
DENY = 2
"""The exit status by which a hook of Claude Code denies a call, with the reason on standard error."""
_NAMES = {
    "read_file": "Read",
    "list_files": "Glob",
    "search_files": "Grep",
    "write_file": "Write",
    "edit_file": "Edit",
    "apply_patch": "Edit",
    "delete_file": "Write",
    "run_command": "Bash",
    "read_output": "BashOutput",
    "fetch_url": "WebFetch",
}
_ARGUMENTS = {
    "path": "file_path",
    "old": "old_string",
    "new": "new_string",
    "all": "replace_all",
}


class GuardRunner(Protocol):
    """Runs a guard for a session, in its sandbox, where it can change nothing and reach nobody."""

    async def __call__(
        self, request: SessionRequest, command: str, stdin: bytes, timeout_s: float, /
    ) -> CommandResult: ...


class GuardedTools(ToolsAround):
    """The tools of a session whose role has guards."""

    def __init__(self, tools: Tools, request: SessionRequest, run: GuardRunner) -> None:
        super().__init__(tools)
        self._request = request
        self._run = run

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        for guard in self._request.role.guards:
            if is_guarded(guard, name):
                await self._hear(guard, name, args)
        return await super().call(name, args)

    async def _hear(self, guard: CallGuard, name: str, args: Mapping[str, Any]) -> None:
        shown = msgspec.json.encode(
            {
                "session_id": self._request.session_id,
                "hook_event_name": "PreToolUse",
                "cwd": self._request.workspace,
                "permission_mode": "default",
                "tool_name": named(name),
                "tool_input": _input(name, args),
            }
        )
        try:
            ended = await self._run(self._request, guard.command, shown, guard.timeout_s)
        except FanfoldError as error:
            late = getattr(error, "ended", None) is not None
            why = (
                f"it did not end within {guard.timeout_s} s" if late else f"it could not run: {error.message}"
            )
            raise _denied(guard, name, why) from error
        except OSError as error:
            raise _denied(guard, name, f"it could not run: {error.strerror or error}") from error
        if why := why_denied(ended):
            raise _denied(guard, name, why)


def is_guarded(guard: CallGuard, tool: str) -> bool:
    """Whether a guard is to be heard about calls of a tool."""
    if not guard.matcher:
        return True
    names = {named(tool), tool, *(("MultiEdit",) if tool in ("edit_file", "apply_patch") else ())}
    if tool in ("apply_patch", "delete_file"):  # each of them does what these two do
        names |= {"Edit", "Write"}
    for one in guard.matcher.split("|"):
        pattern = one.replace(".*", "*").lower()
        if any(fnmatchcase(name.lower(), pattern) for name in names):
            return True
    return False


def named(tool: str) -> str:
    """What Claude Code calls a tool of ours; a server's is called alike."""
    return _NAMES.get(tool, tool)


def why_denied(ended: CommandResult) -> str:
    """Why a guard that came to its end did not agree; empty when it did."""
    if ended.exit_code == DENY:
        return shorten(ended.stderr.strip(), MAX_WHY_CHARS) or "it gave no reason"
    if ended.exit_code != 0:
        return f"it ended with exit status {ended.exit_code}"
    said = ended.stdout.strip().lstrip("\ufeff")
    if not said.startswith("{"):
        return ""  # words for people
    try:
        answer = read_json(said)
    except ValueError:
        return "its answer cannot be understood"
    own = {} if answer.get("hookSpecificOutput") is None else answer["hookSpecificOutput"]
    if not isinstance(own, dict):
        return "its answer cannot be understood"
    # A hook about permissions answers with a decision that has its own parts.
    asked = own["decision"] if isinstance(own.get("decision"), dict) else {"behavior": own.get("decision")}
    decisions = (*(one.get("permissionDecision") for one in (own, answer)), answer.get("decision"))
    agrees = all(one in (None, "allow", "approve") for one in (*decisions, asked.get("behavior")))
    if agrees and answer.get("continue") in (None, True):
        changed = any(one.get("updatedInput") is not None for one in (own, asked))
        return "it wants another call, and may only deny this one" if changed else ""
    reasons = (own.get("permissionDecisionReason"), asked.get("message"), answer.get("reason"))
    reason = next((one for one in (*reasons, answer.get("stopReason")) if one), "it said no")
    return shorten(str(reason), MAX_WHY_CHARS)


def _input(name: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call with Claude Code's names for them, beside our own where they differ."""
    given = {_ARGUMENTS.get(key, key): value for key, value in args.items()}
    if name in ("list_files", "search_files") and "path" in args:
        given["path"] = args["path"]
    if name == "run_command" and isinstance(args.get("argv"), list):
        import shlex

        given["command"] = shlex.join(map(str, args["argv"]))
    return given


def _denied(guard: CallGuard, name: str, why: str) -> ToolFailed:
    message = f"a guard of this role denied {name}: {why}"
    hint = f"the guard is `{shorten(guard.command, 80)}`; find another way, or say why it is needed"
    return ToolFailed("permission", "guard_denied", message, hint)
