"""The toolboxes of a run: what its agents can use. Programs in the sandbox, the outputs of their own run,
the network where the role allows it, and a person who can be asked.

A session's posture is that of its run, narrowed by its step. One queue of questions serves all agents of a
run: a person reads one at a time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from fanfold.agents.backend import SessionRequest
from fanfold.kernel.plan import JSON
from fanfold.runtime.steps.programs.sandboxed import Programs
from fanfold.store.protocol import Store

if TYPE_CHECKING:
    from fanfold.agents.toolbox.catalogue import SessionTools, Tools
    from fanfold.agents.toolbox.commands import Runner
    from fanfold.runtime.places.direct_changes import DirectChanges
    from fanfold.store.search.index import Search

    RootTools: TypeAlias = Callable[[SessionRequest, Tools], Tools]
    from fanfold.agents.permissions import Ask, Permissions


class Toolboxes:
    """Makes the toolbox of each session of one run. `ask` is None where nobody can be asked."""

    def __init__(
        self,
        store: Store,
        memory: Path,
        programs: Programs,
        permission: str,
        ask: Ask | None,
        allowed: frozenset[str],
        root_tools: RootTools | None = None,
        changes: Callable[[SessionRequest], DirectChanges] | None = None,
    ) -> None:
        """`allowed` names the secrets of the user's environment that what a project brings may have.
        `root_tools` adds what a session may use that a person talks to; `changes` is how it changes files.
        """
        self._store = store
        self._memory = memory
        self._programs = programs
        self._permission = permission
        self._ask = ask
        self._allowed = allowed
        self._root_tools = root_tools
        self._changes = changes

    def of(self, request: SessionRequest) -> Tools:
        """The tools of a session, as far as its role, step and posture allow."""
        if request.root and self._root_tools is not None:
            own = self._root_tools(request, self._of_lead(request))
        else:
            own = self._own(request)
        if not request.role.guards:
            return own
        from fanfold.agents.toolbox.guards import GuardedTools  # few roles have any

        return GuardedTools(own, request, self._programs.run_guard)

    def _of_lead(self, request: SessionRequest) -> Tools:
        """Nobody agreed beforehand to what a lead does: each change is asked for by itself."""
        from fanfold.agents.permissions import Permissions, Posture
        from fanfold.runtime.steps.programs.lead_tools import LeadTools

        permissions = Permissions(cast(Posture, self._permission), self._ask, covered=frozenset())
        if self._changes is None:
            return self._built_in(request, permissions, None)
        return LeadTools(request, self._changes(request), self._programs, permissions, self._built_in)

    def _built_in(
        self, request: SessionRequest, permissions: Permissions, runner: Runner | None
    ) -> SessionTools:
        from fanfold.agents.toolbox.artifacts import ArtifactFiles
        from fanfold.agents.toolbox.catalogue import SessionTools
        from fanfold.agents.toolbox.fetch import FetchTools
        from fanfold.agents.toolbox.published import PublishedFiles

        room = self._programs.artifacts_of(request.session_id)
        return SessionTools(
            request,
            permissions=permissions,
            runner=runner,
            fetch=FetchTools() if request.role.network else None,
            query=self._query,
            published=PublishedFiles(self._memory, request.run_id),
            artifacts=None if room is None else ArtifactFiles(room, request.workspace),
        )

    def _own(self, request: SessionRequest) -> Tools:
        # Most scripted agents use no tool, and a run of functions alone has none.
        permissions = self._permissions if request.role.asks else self._permissions.unasked()
        own = self._built_in(request, permissions, self._programs.run_for)
        if not request.role.mcp_servers:
            return own
        from fanfold.agents.toolbox.mcp.tools import ServedTools

        environment = self.environment_for(request)
        return ServedTools(own, request, permissions, self._programs.start_for, environment=environment)

    def environment_for(self, request: SessionRequest) -> Mapping[str, str]:
        """Of our environment, what servers of a session's role may be given where they name it."""
        from fanfold.agents.toolbox.mcp.servers import LentEnvironment

        brought = request.role.brought or bool(request.role.project_servers)
        return LentEnvironment(os.environ, self._allowed) if brought else os.environ

    @cached_property
    def _permissions(self) -> Permissions:
        from fanfold.agents.permissions import Permissions, Posture

        return Permissions(cast(Posture, self._permission), self._ask)

    @cached_property
    def _search(self) -> Search:
        from fanfold.store.search.index import Search

        return Search(self._store, self._memory)

    async def _query(self, request: SessionRequest, words: str, k: int) -> JSON:
        from fanfold.store.search.index import Filters

        hits = await asyncio.to_thread(self._search.query, words, Filters(run=request.run_id), k=k)
        return [{"path": hit.path, "role": hit.role, "excerpt": hit.excerpt} for hit in hits]
