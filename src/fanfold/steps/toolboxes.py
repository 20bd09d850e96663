"""The tools of a run's agents.

Agents can use programs in the sandbox, the outputs of their own run, the network if the role allows it, and
questions to a person.

The permissions of a session are those of its run, restricted by its step. All agents of a run share one queue
of questions, because a person reads one at a time.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec
from msgspec import structs

from fanfold.agents.backend import SessionRequest, ToolFailed, ToolsAround
from fanfold.agents.permissions import Action, PermissionDenied, Permissions
from fanfold.kernel.paths import escape
from fanfold.kernel.plan import JSON
from fanfold.sessions.processes import finish_despite_cancel
from fanfold.steps.programs import Programs, RunningProgram, skill_folders
from fanfold.steps.records import Merge, SandboxUse
from fanfold.steps.step_workspace import (
    Isolation,
    StepWorkspace,
    explain_violations,
    in_thread,
    merge_fact,
    name_paths,
)
from fanfold.store.protocol import Claim, Store
from fanfold.workspace.merge import MergeResult
from fanfold.workspace.workspaces import MERGED

if TYPE_CHECKING:
    from fanfold.agents.backend import AgentHome, NetworkReach, SandboxRequest, Tools
    from fanfold.agents.permissions import Ask, Grants, Permissions, StoredGrants
    from fanfold.agents.tools.toolbox import Runner, SessionTools
    from fanfold.sessions.processes import ExitStatus
    from fanfold.store.search import Search

RootTools: TypeAlias = "Callable[[SessionRequest, Tools], Tools]"


class Toolboxes:
    """Creates the tools of each session of one run. `ask` is None if no person can be asked."""

    def __init__(
        self,
        store: Store,
        programs: Programs,
        permission: str,
        ask: Ask | None,
        allowed: frozenset[str],
        root_tools: RootTools | None = None,
        changes: Callable[[SessionRequest], DirectChanges] | None = None,
        grants: StoredGrants | None = None,
    ) -> None:
        """Set up the tools of a run.

        `allowed` names the secret environment variables that servers of the project may get. `root_tools`
        adds the tools of a lead, and `changes` creates the object through which it changes files.
        """
        self._store = store
        self._programs = programs
        self._permission = permission
        self._ask = ask
        self._allowed = allowed
        self._root_tools = root_tools
        self._changes = changes
        self._stored_grants = grants

    def of(self, request: SessionRequest) -> Tools:
        """The tools of a session that its role, step and permissions allow."""
        # Imports are late here: most scripted agents use no tool, and runs without agents have none.
        if request.root and self._root_tools is not None:
            own = self._root_tools(request, self._of_lead(request))
        else:
            permissions = self._permissions if request.role.asks else self._permissions.unasked()
            built_in = own = self._built_in(request, permissions, self._programs.run_for)
            if request.role.mcp_servers:
                from fanfold.agents.tools.mcp import ServedTools

                lent = self.environment_for(request)
                start = self._programs.start_for
                own = ServedTools(built_in, request, permissions, start, environment=lent)
        if request.role.known_skills:
            from fanfold.agents.skills import SkilledTools  # imported late: few roles have skills

            own = SkilledTools(own, request.role.known_skills)
        if not request.role.guards:
            return own
        from fanfold.agents.tools.toolbox import GuardedTools  # imported late: few roles have guards

        return GuardedTools(own, request, self._programs.run_guard)

    def _of_lead(self, request: SessionRequest) -> Tools:
        """The tools of a lead. The user has approved nothing in advance, so each change is asked for."""
        from fanfold.agents.permissions import Permissions, Posture

        permissions = Permissions(
            cast(Posture, self._permission), self._ask, covered=frozenset(), grants=self._grants
        )
        if self._changes is None:
            return self._built_in(request, permissions, None)
        return LeadTools(request, self._changes(request), self._programs, permissions, self._built_in)

    def _built_in(
        self, request: SessionRequest, permissions: Permissions, runner: Runner | None
    ) -> SessionTools:
        from fanfold.agents.tools.fetch import FetchTools
        from fanfold.agents.tools.files import ArtifactFiles, PublishedFiles
        from fanfold.agents.tools.toolbox import SessionTools

        room = self._programs.artifacts_of(request.session_id)
        return SessionTools(
            request,
            permissions=permissions,
            runner=runner,
            fetch=FetchTools() if request.role.network else None,
            query=self._query,
            published=PublishedFiles(self._programs.project / ".fanfold", request.run_id),
            artifacts=None if room is None else ArtifactFiles(room, request.workspace),
        )

    def environment_for(self, request: SessionRequest) -> Mapping[str, str]:
        """The environment variables that the servers of a session's role may get if they name them."""
        from fanfold.agents.tools.mcp_servers import LentEnvironment

        brought = request.role.brought or bool(request.role.project_servers)
        return LentEnvironment(os.environ, self._allowed) if brought else os.environ

    @cached_property
    def _grants(self) -> Grants:
        """The lasting permissions that a person granted, for all sessions of this run."""
        from fanfold.agents.permissions import Grants

        return Grants(self._stored_grants)

    @cached_property
    def _permissions(self) -> Permissions:
        from fanfold.agents.permissions import Permissions, Posture

        return Permissions(cast(Posture, self._permission), self._ask, grants=self._grants)

    @cached_property
    def _search(self) -> Search:
        from fanfold.store.search import Search

        return Search(self._store, self._programs.project / ".fanfold")

    async def _query(self, request: SessionRequest, words: str, k: int) -> JSON:
        from fanfold.store.search import Filters

        hits = await asyncio.to_thread(self._search.query, words, Filters(run=request.run_id), k=k)
        return [{"path": hit.path, "role": hit.role, "excerpt": hit.excerpt} for hit in hits]


# -----------------------------------------------------------------------------------------------------------
# Agents that are programs: they run in the sandbox, with a private home and restricted network access
#
# Rules
# * The program is the user's own, never one that the project put on PATH, because it gets the user's
#   credentials.
# * An agent without network access is useless. With full access, an injected prompt could send data anywhere.
#   So by default the sandbox has no network, only a forwarder to a socket in the agent's home. Behind that
#   socket, outside the sandbox, a proxy connects to the provider only.
# * Files with which a project makes agents run programs are covered (`ExtraMounts.covered`), because the user
#   did not choose them.
# * Landlock has no separate network. There the connector takes the place of the forwarder: it connects for
#   the agent, to the proxy only. If this cannot be enforced either, no agent is started.

FORWARDER = ".fanfold/forwarder.py"
MAX_FIRST_LINE_BYTES = 4_096
_LIBS = ("lib", "lib64")


class ConfinedAgents:
    """Starts agents for the sessions of one run."""

    def __init__(
        self, programs: Programs, environment_for: Callable[[SessionRequest], Mapping[str, str]]
    ) -> None:
        self._programs = programs
        self.environment_for = environment_for

    async def home_of(self, request: SessionRequest, earlier: str = "") -> AgentHome:
        """The private home of a session. With bubblewrap it is mounted at the path of the user's home."""
        from fanfold.agents.backend import AgentHome

        outside = await self._programs.home_of(request.session_id, request.run_id, earlier)
        if await self._programs.level() == "bubblewrap":
            return AgentHome(outside, Path.home(), str(self._programs.project))
        return AgentHome(outside, outside, request.workspace, own_network=False)

    async def reach_here(self, network: NetworkReach) -> NetworkReach:
        """The network access of an agent here. Without a sandbox, which the user has to accept, it is all."""
        return await self._programs.reach_here() if network == "provider" else network

    async def start(
        self, request: SessionRequest, argv: Sequence[str], confines: SandboxRequest
    ) -> RunningProgram:
        from fanfold.workspace.git import find_program
        from fanfold.workspace.sandbox_policy import ExtraMounts

        program = argv[0] if os.sep in argv[0] else find_program(argv[0], self._programs.project)
        if program is None:
            raise FileNotFoundError(argv[0])
        home, also = confines.home, [*installation(program), *skill_folders(request)]
        words = [program, *argv[1:]]
        connects = confines.network == "provider" and not home.own_network
        if confines.network == "provider":
            words = [*self._forwarded(home, confines.ports, also), *words]
        return await self._programs.start_agent(
            request,
            words,
            confines.variables,
            confines.named,
            ExtraMounts(home=home.outside, also=tuple(also), covered=confines.covered, connects=connects),
            network=confines.network == "all",
        )

    def _forwarded(self, home: AgentHome, ports: tuple[int, ...], also: list[Path]) -> list[str]:
        """The command that connects the agent to the proxy. Its required paths are added to `also`."""
        import shutil

        from fanfold.agents.backend import GATE, SOCKET, proxy_port
        from fanfold.workspace.children import write_beneath
        from fanfold.workspace.programs import connector, forwarder

        if home.own_network:
            write_beneath(home.outside, FORWARDER, Path(forwarder.__file__).read_bytes())
            source, way = home.inside / FORWARDER, home.inside / SOCKET
        else:  # it makes decisions, so it is out of the agent's reach
            source, way = Path(os.path.realpath(connector.__file__)), home.outside.parent / GATE
            also += [source, way]
        python = Path(os.path.realpath(sys.executable))
        if shutil.which(python.name, path="/usr/bin:/bin") != str(python):
            also += [python, *(Path(os.path.realpath(sys.base_prefix)) / part for part in _LIBS)]
        own = ",".join(map(str, ports)) or "-"
        return [str(python), "-I", "-S", str(source), str(way), str(proxy_port(ports)), own]


def installation(program: str) -> list[Path]:
    """The folders that a program needs besides its own file, as far as they are known.

    For Node this is `node_modules`. For a Python tool it is its virtual environment.

    >>> installation("/opt/a/node_modules/.bin/a")
    [PosixPath('/opt/a/node_modules')]
    """
    real = Path(os.path.realpath(program))
    tops = [
        folder for path in (Path(program), real) for folder in path.parents if folder.name == "node_modules"
    ]
    return list(dict.fromkeys(tops))[-1:] or _environment(real)


def _environment(program: Path) -> list[Path]:
    """The virtual environment of a Python script, from its first line, and the base Python."""
    try:
        with program.open("rb") as opened:
            first = opened.read(MAX_FIRST_LINE_BYTES).partition(b"\n")[0]
    except OSError:
        return []
    words = first.removeprefix(b"#!").split() if first.startswith(b"#!") else []
    python = Path(os.fsdecode(words[0])) if words else Path()
    environment = python.parent.parent
    if not (python.is_absolute() and (environment / "pyvenv.cfg").is_file()):
        return []
    if Path.home().is_relative_to(environment):  # it would expose the user's own files
        return []
    real = Path(os.path.realpath(python))
    base = [] if real.is_relative_to("/usr") else [real.parent, *(real.parent.parent / lib for lib in _LIBS)]
    return [environment, *(folder for folder in base if folder.is_dir())]


# -----------------------------------------------------------------------------------------------------------
# The tools of the lead of a chat, which works in the project tree while its user watches.
#
# The lead shares the project tree with its user and with the subagents that it waits for, so it has no
# snapshot for a whole turn. Each call that changes files works in its own snapshot, which is merged at
# once. Under `ask` the user approves each such call. For a file change the user sees the exact diff to be
# merged. For a command the user sees the command line before it runs.
#
# Rules
# * Each call is merged atomically. A conflict or a violation is reported, and the project tree is unchanged.
# * Files are locked only during the merge. A change to files that a writer of another run works on is refused
#   and does not wait: the lead can do something else meanwhile.
# * A merge is recorded for the log before it is reported. If the process dies in between, the merge result is
#   found beside the snapshot when the turn continues.

Note: TypeAlias = Callable[[str, Merge | SandboxUse], None]
"""Records an event for the log of a run."""
MakeTools: TypeAlias = "Callable[[SessionRequest, Permissions, Runner | None], SessionTools]"
_COMMAND = "run_command"


class DirectChanges:
    """The changes of one session to the project tree."""

    def __init__(self, request: SessionRequest, isolation: Isolation, store: Store, note: Note) -> None:
        self._request = request
        self._isolation = isolation
        self._store = store
        self._note = note
        self._sandboxes: set[SandboxUse] = set()
        self._prefix = f"{request.session_id}-c"

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[StepWorkspace]:
        """A snapshot of the current project tree for one call. It is removed afterwards."""
        spaces, name = self._isolation.spaces, f"{self._prefix}{secrets.token_hex(4)}"
        child = await in_thread(lambda: spaces.open_child(name, origin=self._request.run_id), spaces.close)
        place = StepWorkspace(str(child.path), child)
        try:
            yield place
        finally:
            for fact in place.evidence:
                if isinstance(fact, SandboxUse) and fact not in self._sandboxes:
                    self._sandboxes.add(fact)
                    self._record(fact)
            await in_thread(lambda: spaces.close(child))

    async def draw(self, place: StepWorkspace) -> str:
        """The changes in a snapshot, as a patch."""
        assert place.child is not None, "a call works in a snapshot"
        return await asyncio.to_thread(self._isolation.spaces.diff, place.child)

    async def merge(self, place: StepWorkspace) -> list[str]:
        """Merge the changes of a snapshot and return their paths. Raises `ToolFailed` if not possible."""
        child, run = place.child, self._request.run_id
        assert child is not None, "a call works in a snapshot"
        paths = await asyncio.to_thread(lambda: [change.path for change in child.changes()])
        other = self._store.blocker(Claim(run, run, self._request.step, tuple(map(escape, paths))))
        if other is not None:
            message = f"{name_paths(paths)}: {other.step} of run {other.run_id} works on it"
            raise ToolFailed("tool", "busy", message, "try again when it is over, or do something else")
        done: list[MergeResult] = []
        try:
            await finish_despite_cancel(
                asyncio.to_thread(lambda: done.append(self._isolation.spaces.merge(child)))
            )
        finally:  # also after a cancellation: the changes are merged
            if done:
                self._record_merge(done[0])
        if done[0].violations:
            rows, hint = explain_violations(done[0].violations)
            message = f"these paths must not be changed: {name_paths(rows)}"
            raise ToolFailed("violation", "workspace.violation", message, hint)
        if done[0].conflicts:
            named = name_paths([row.path for row in done[0].conflicts])
            message = f"other processes changed these meanwhile: {named}; this call changed nothing"
            raise ToolFailed("tool", "workspace.conflict", message, "read it again, then change it")
        return paths

    async def recover(self) -> None:
        """Record the merges of calls of this session whose process died before it recorded them."""

        def work() -> None:
            remains = self._isolation.spaces.remains
            for session in remains.sessions():
                if session.startswith(self._prefix):
                    stored = remains.read(session, MERGED)
                    if stored is not None:
                        self._record_merge(msgspec.json.decode(stored, type=MergeResult))
                    remains.discard(session, over=True)

        if self._isolation.is_used:
            await in_thread(work)

    def _record_merge(self, merged: MergeResult) -> None:
        if merged.receipt:
            self._record(merge_fact(merged, "auto"))

    def _record(self, fact: Merge | SandboxUse) -> None:
        request = self._request
        whose = {"step": request.step, "attempt": request.attempt, "execution": request.execution}
        self._note(request.run_id, structs.replace(fact, **whose))


class LeadTools(ToolsAround):
    """The built-in tools of one session of a lead; `make` creates those for a request and permissions."""

    def __init__(
        self,
        request: SessionRequest,
        changes: DirectChanges,
        programs: Programs,
        permissions: Permissions,
        make: MakeTools,
    ) -> None:
        super().__init__(make(request, permissions, self._run))
        self._request = request
        self._changes = changes
        self._programs = programs
        self._permissions = permissions
        self._make = make
        self._edits = {spec.name for spec in self.offered() if spec.mutates} - {_COMMAND}
        self._changed: list[str] = []
        """The paths that the last command changed."""

    async def open(self) -> None:
        await super().open()
        await self._changes.recover()

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        if name not in self._edits:
            self._changed = []
            result = await super().call(name, args)
            changed = self._changed
            return {**result, "changed": changed} if changed and isinstance(result, dict) else result
        request = self._request
        async with self._changes.snapshot() as place:
            there = structs.replace(request, workspace=place.path)
            result = await self._make(there, Permissions("auto"), None).call(name, args)
            shown = f"{name} {args.get('path', 'a patch')}\n{await self._changes.draw(place)}"
            try:
                await self._permissions.check(Action("write", shown, request.session_id, request.step))
            except PermissionDenied as denied:
                raise ToolFailed("permission", denied.code, denied.message, denied.hint) from None
            await self._changes.merge(place)
        return result

    async def _run(self, request: SessionRequest, argv: Sequence[str], timeout_s: float) -> ExitStatus:
        async with self._changes.snapshot() as place:
            ended = await self._programs.run(
                argv, place, session_id=request.session_id, network=request.role.network, timeout_s=timeout_s
            )
            self._changed = await self._changes.merge(place)
        return ended
