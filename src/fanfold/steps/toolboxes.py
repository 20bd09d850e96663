"""The tools of a run's agents.

Agents can use programs in the sandbox, the outputs of their own run, the network if the role allows it, and
questions to a person.

The permissions of a session are those of its run, restricted by its step. All agents of a run share one queue
of questions, because a person reads one at a time.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from fanfold.agents.backend import SessionRequest
from fanfold.kernel.plan import JSON
from fanfold.steps.programs import Programs, RunningProgram, skill_folders
from fanfold.store.protocol import Store

if TYPE_CHECKING:
    from fanfold.agents.backend import AgentHome, NetworkReach, SandboxRequest
    from fanfold.agents.permissions import Ask, Grants, Permissions, StoredGrants
    from fanfold.agents.tools.toolbox import Runner, SessionTools, Tools
    from fanfold.steps.lead_tools import DirectChanges
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
        from fanfold.steps.lead_tools import LeadTools

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
