"""The tools of a session: which tools it is offered, and how they are called.

Rules
* A session is offered the tools that its role and step list, or all if they list none. Tools without their
  requirement (a runner, the network, a run to query) are left out. A read-only session gets no mutating
  tools. Artifacts are outside the project. So a read-only role can write artifacts if it lists that tool by
  name, unless the user's own permission is read-only.
* A tool that is not offered cannot be called. A model that names such a tool gets an error. Tools that
  control Fanfold itself are denied to every session that is not a root, whatever its prompt contains.
* Mutations need the session's permission before they happen. Reads do not.
* An unexpected error inside a tool is a result for the agent, and is logged. Errors of Fanfold (a
  cancellation, a lost lease, a bug) are passed on unchanged.
* Tools are opened before the session starts and closed when it ends, whatever its outcome, because some of
  them are programs that run as long as the session.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from posixpath import normpath
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import structs

from fanfold.agents.backend import Progress, SessionRequest, ToolFailed, Tools, ToolsAround, use, wrong_call
from fanfold.agents.entries import ToolCall, ToolError, ToolResult, calling
from fanfold.agents.instructions import MAX_BYTES, above, point_to
from fanfold.agents.permissions import Action, PermissionDenied, Permissions, Posture
from fanfold.agents.role import CallGuard
from fanfold.agents.tool_names import (
    ALIASES,
    BY_NAME,
    LEAVES_ARTIFACTS,
    OFFERED_WITH,
    ROOT_TOOLS,
    SPECS,
    ToolSpec,
    why_not,
)
from fanfold.agents.tools.fetch import FetchTools
from fanfold.agents.tools.files import TOOLS as FILE_TOOLS
from fanfold.agents.tools.files import ArtifactFiles, FileTools, PublishedFiles
from fanfold.errors import FanfoldError
from fanfold.kernel.plan import JSON
from fanfold.language.json_text import aside, read_json
from fanfold.language.terminal import shorten, shorten_middle

READ_BYTES = 32 * 1024
"""How much of a file a model gets by default. The model pays for every byte, and in each turn again."""


Call: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[JSON]]
Query: TypeAlias = Callable[[SessionRequest, str, int], Awaitable[JSON]]
"""Searches the outputs of a session's own run: request, query text, number of hits."""


async def run_call(
    tools: Tools,
    call: ToolCall,
    record: Callable[[ToolCall], Awaitable[object]],
    progress: Progress,
    clean: Callable[[str], str] = str,
) -> ToolResult:
    """Run a call and return its result or error; a mutating call is recorded before it runs.

    `clean` removes secrets from the live update.
    """
    result = ToolResult(id=call.id, tool=call.tool)
    problem = await aside(wrong_call, tools, call.tool, call.args)
    if problem:
        return structs.replace(result, error=ToolError("invalid_args", problem))
    if tools.mutates(call.tool):
        await record(call)
    progress(calling(call.tool, call.args, clean))
    try:
        return structs.replace(result, result=await use(tools, call.tool, call.args))
    except ToolFailed as failed:
        error = ToolError(failed.code, failed.message, failed.hint, failed.failure.kind)
        return structs.replace(result, error=error)


class SessionTools:
    """The built-in tools of one session."""

    def __init__(
        self,
        request: SessionRequest,
        *,
        permissions: Permissions | None = None,
        runner: Runner | None = None,
        fetch: FetchTools | None = None,
        query: Query | None = None,
        published: PublishedFiles | None = None,
        artifacts: ArtifactFiles | None = None,
    ) -> None:
        self._request = request
        posture: Posture = "read_only" if request.role.read_only else "auto"
        given = permissions or Permissions("auto")
        self._permissions = given.narrowed(posture)
        self._reads = self._permissions.posture == "read_only"
        may_leave = self._reads and given.posture != "read_only" and self._is_listed(LEAVES_ARTIFACTS.name)
        self._leaves = artifacts if may_leave else None
        """Where a read-only session can write files."""
        files = FileTools.of(request)
        self._calls: dict[str, Call] = {name: partial(files.call, name) for name in FILE_TOOLS}
        self._calls["read_file"] = lambda args: files.call("read_file", {"limit": READ_BYTES, **args})
        self._elsewhere: list[tuple[Collection[str], PublishedFiles | ArtifactFiles]] = []
        """Files outside the workspace, with the tools that can reach them."""
        if published is not None:
            self._elsewhere.append((("read_file", "list_files"), published))
        if artifacts is not None:
            self._elsewhere.append((FILE_TOOLS, artifacts))
        if runner is not None:
            commands = CommandTools(request, runner, self._permissions)
            self._calls |= {"run_command": commands.run_command, "read_output": commands.read_output}
        if fetch is not None:
            self._calls["fetch_url"] = fetch.fetch_url
        if query is not None:
            self._calls["query_workflow"] = lambda args: query(request, args["query"], args.get("k", 5))
        leaves = {spec.name: spec for spec in (LEAVES_ARTIFACTS,) if self._leaves is not None}
        self._offered = tuple(leaves.get(spec.name, spec) for spec in SPECS if self._is_offered(spec))
        self._names = frozenset(spec.name for spec in self._offered)

    async def open(self) -> None:
        """Do nothing: files need no preparation, and the runner is created for the whole run."""

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""

    def offered(self) -> Sequence[ToolSpec]:
        return self._offered

    def mutates(self, name: str) -> bool:
        spec = BY_NAME.get(name)
        return spec is None or spec.mutates

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        try:
            if name in ROOT_TOOLS:
                message = f"{name} is only for the session of the user; a subagent cannot delegate"
                raise ToolFailed("permission", "permission_denied", message, "do the work in this session")
            leaves = self._leaves is not None and name == LEAVES_ARTIFACTS.name and self._leaves.has(args)
            if name not in self._names and not leaves:
                hint = f"there are {', '.join(spec.name for spec in self._offered)}"
                if name in self._calls and self.mutates(name) and self._reads:
                    await self._permissions.check(self._action(name, args))
                raise ToolFailed("tool", "tool.unknown", f'there is no tool "{name}" here', hint)
            if self.mutates(name) and name != "run_command" and not leaves:  # run_command asks by itself
                await self._permissions.check(self._action(name, args))
            for tools, other in self._elsewhere:
                if name in tools and other.has(args):
                    return await other.call(name, args)
            return await self._calls[name](args)
        except PermissionDenied as denied:
            raise ToolFailed("permission", denied.code, denied.message, denied.hint) from None
        except OSError as error:  # for example: the disk is full, or the user has no access
            raise ToolFailed("tool", "tool.io", f"{name}: {error.strerror or error}") from error

    def _is_offered(self, spec: ToolSpec) -> bool:
        spec = BY_NAME[OFFERED_WITH.get(spec.name, spec.name)]
        by_name = self._leaves is not None and self._request.role.tools is not None
        leaves = by_name and spec.name == LEAVES_ARTIFACTS.name
        if spec.name not in self._calls or (spec.mutates and self._reads and not leaves):
            return False
        return self._is_listed(spec.name)

    def _is_listed(self, tool: str) -> bool:
        """Return whether the role and the step list a tool; without a list, every tool is listed."""
        listed = self._request.role.tools
        return listed is None or tool in {ALIASES.get(name, name) for name in listed}

    def _action(self, name: str, args: Mapping[str, Any]) -> Action:
        argv = args.get("argv")
        where = " ".join(map(str, argv)) if isinstance(argv, list) else args.get("path", "a patch")
        return Action("write", f"{name} {where}", self._request.session_id, self._request.step)


# -----------------------------------------------------------------------------------------------------------
# Guards: commands of a role's file that inspect each tool call before it runs and can deny it.
#
# Claude Code calls them hooks. A guard reads the call as JSON on standard input, with the names and arguments
# of Claude Code. It responds by its exit status and its output.
#
# Rules
# * A guard can only deny. It runs before every other check of the call. Its approval grants no permission,
#   and the rest of its output has no effect.
# * Everything except clear approval denies the call: another exit status than 0, a negative or unreadable
#   response, a timeout, a failed start.
# * It runs in a sandbox without write or network access. It sees the project, not the agent's changes.
# * Its name for a tool is matched as a whole: `Bash|Write` are two names, `mcp__.*` is a prefix, empty
#   matches all.

MAX_WHY_CHARS = 400
DENY = 2
"""The exit status by which a hook of Claude Code denies a call, with the reason on stderr."""
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
_ARGUMENTS = {"path": "file_path", "old": "old_string", "new": "new_string", "all": "replace_all"}


class GuardRunner(Protocol):
    """Runs a guard for a session, in a sandbox without write or network access."""

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
        guards = [guard for guard in self._request.role.guards if is_guarded(guard, name)]
        # The arguments of a call with Claude Code's names, plus our own where they differ.
        given = {_ARGUMENTS.get(key, key): value for key, value in args.items()}
        if name in ("list_files", "search_files") and "path" in args:
            given["path"] = args["path"]
        if name == "run_command" and isinstance(args.get("argv"), list):
            given["command"] = shlex.join(map(str, args["argv"]))
        shown = {
            "session_id": self._request.session_id,
            "hook_event_name": "PreToolUse",
            "cwd": self._request.workspace,
            "permission_mode": "default",
            "tool_name": named(name),
            "tool_input": given,
        }
        for guard in guards:
            try:
                stdin = msgspec.json.encode(shown)
                ended = await self._run(self._request, guard.command, stdin, guard.timeout_s)
            except FanfoldError as error:
                late = getattr(error, "ended", None) is not None
                failed = f"it could not run: {error.message}"
                why = f"it did not end within {guard.timeout_s} s" if late else failed
                raise _denied(guard, name, why) from error
            except OSError as error:
                raise _denied(guard, name, f"it could not run: {error.strerror or error}") from error
            if why := why_denied(ended):
                raise _denied(guard, name, why)
        return await super().call(name, args)


def is_guarded(guard: CallGuard, tool: str) -> bool:
    """Return whether a guard applies to calls of a tool."""
    if not guard.matcher:
        return True
    names = {named(tool), tool, *(("MultiEdit",) if tool in ("edit_file", "apply_patch") else ())}
    if tool in ("apply_patch", "delete_file"):  # these two have the same effects as both tools
        names |= {"Edit", "Write"}
    for part in guard.matcher.split("|"):
        pattern = part.replace(".*", "*").lower()
        if any(fnmatchcase(name.lower(), pattern) for name in names):
            return True
    return False


def named(tool: str) -> str:
    """Return Claude Code's name for one of our tools; names of MCP tools are the same."""
    return _NAMES.get(tool, tool)


def why_denied(ended: CommandResult) -> str:
    """Return why a finished guard denied the call; empty if it allowed it."""
    if ended.exit_code == DENY:
        return shorten(ended.stderr.strip(), MAX_WHY_CHARS) or "it gave no reason"
    if ended.exit_code != 0:
        return f"it ended with exit status {ended.exit_code}"
    output = ended.stdout.strip().lstrip("\ufeff")
    if not output.startswith("{"):
        return ""  # text for people
    try:
        answer = read_json(output)
    except ValueError:
        return "its answer is not valid"
    own = {} if answer.get("hookSpecificOutput") is None else answer["hookSpecificOutput"]
    if not isinstance(own, dict):
        return "its answer is not valid"
    # A hook for permission requests responds with a decision that is an object.
    asked = own["decision"] if isinstance(own.get("decision"), dict) else {"behavior": own.get("decision")}
    decisions = (*(source.get("permissionDecision") for source in (own, answer)), answer.get("decision"))
    agrees = all(decision in (None, "allow", "approve") for decision in (*decisions, asked.get("behavior")))
    if agrees and answer.get("continue") in (None, True):
        changed = any(source.get("updatedInput") is not None for source in (own, asked))
        return "it wants another call, and may only deny this one" if changed else ""
    reasons = (own.get("permissionDecisionReason"), asked.get("message"), answer.get("reason"))
    reason = next((text for text in (*reasons, answer.get("stopReason")) if text), "it denied the call")
    return shorten(str(reason), MAX_WHY_CHARS)


def _denied(guard: CallGuard, name: str, why: str) -> ToolFailed:
    message = f"a guard of this role denied {name}: {why}"
    hint = f"the guard is `{shorten(guard.command, 80)}`; find another way, or explain why it is needed"
    return ToolFailed("permission", "guard_denied", message, hint)


# -----------------------------------------------------------------------------------------------------------
# Instructions of a folder, added to the first file that an agent reads there.
#
# An agent whose read or write set is in that folder gets them at its start. This is for agents that find the
# folder while they work. The instructions are those from the start of the run. They are added once per
# folder, up to a size limit.

KEY = "project_instructions"
READ = "read_file"


class InstructedTools(ToolsAround):
    """The tools of a session in a project with instructions in folders; `known` are those it already has."""

    def __init__(self, tools: Tools, below: Mapping[str, str], known: str) -> None:
        super().__init__(tools)
        self._left = {folder: text for folder, text in below.items() if text not in known}
        self._bytes_left = MAX_BYTES

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        found = await super().call(name, args)
        if name != READ or not isinstance(found, dict):
            return found
        texts: list[str] = []
        for folder in above(normpath(str(args.get("path", "")))):
            if (text := self._left.pop(folder, None)) is not None:
                size = len(text.encode())
                texts.append(text if size <= self._bytes_left else point_to(folder))
                self._bytes_left -= size if size <= self._bytes_left else 0
        return {**found, KEY: "\n\n".join(texts)} if texts else found


# -----------------------------------------------------------------------------------------------------------
# `run_command` runs a program for an agent; `read_output` reads more of its output.
#
# Rules
# * The runner is passed in. It knows the sandbox, the session and how to end a program. Without a runner
#   there is no such tool.
# * Every command needs permission first (see `permissions`). The question shows exactly the command that will
#   run.
# * There is no shell: the arguments are passed as they are.
# * A role whose file allows some commands runs no others, whatever the user answers.
# * Long output is shown without its middle and kept for `read_output` while the session runs. Only the last
#   few outputs are kept, and none after a crash. Output that was shown completely is not kept.
# * A command that runs into its timeout has a result, because the agent can use its output so far.

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
                "permission", "command_not_allowed", message, "find another way, or explain why it is needed"
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
            return {"exit_code": None, "timed_out": True, "message": message, **self._output(ended)}
        except OSError as error:
            message = f'"{argv[0]}" cannot be run: {error.strerror or error}'
            raise ToolFailed("tool", "tool.io", message) from None
        return {"exit_code": ran.exit_code, **self._output(ran)}

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

    def _output(self, ran: CommandResult) -> dict[str, JSON]:
        """Return a program's output within limits; `output` and `next_offset` refer to the rest."""
        texts = {"stdout": ran.stdout, "stderr": ran.stderr}
        result: dict[str, JSON] = {
            name: shorten_middle(text, MAX_OUTPUT_CHARS, TAIL) for name, text in texts.items()
        }
        long = {name: text for name, text in texts.items() if len(text) > MAX_OUTPUT_CHARS}
        if long:
            # A counter would restart after a crash and refer to another command.
            result["output"] = f"out_{secrets.token_hex(4)}"
            result["next_offset"] = {name: MAX_OUTPUT_CHARS - int(MAX_OUTPUT_CHARS * TAIL) for name in long}
            self._kept[result["output"]] = {
                name: shorten_middle(text, KEPT_CHARS, tail=1 / 2) for name, text in texts.items()
            }
            if len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        return result
