"""The tools of the lead of a chat, which works in the project tree while its user watches.

Each call that changes files works in its own snapshot, which is merged at once (see `DirectChanges`). Under
`ask` the user approves each such call. For a file change the user sees the exact diff to be merged. For a
command the user sees the command line before it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import structs

from fanfold.agents.backend import SessionRequest, ToolFailed
from fanfold.agents.permissions import Action, PermissionDenied, Permissions
from fanfold.agents.tool_names import ToolSpec
from fanfold.agents.tools.toolbox import Runner, SessionTools
from fanfold.kernel.plan import JSON
from fanfold.steps.programs import Programs
from fanfold.steps.step_workspace import DirectChanges

if TYPE_CHECKING:
    from fanfold.sessions.processes import ExitStatus

MakeTools: TypeAlias = Callable[[SessionRequest, Permissions, Runner | None], SessionTools]
_COMMAND = "run_command"


class LeadTools:
    """The built-in tools of one session of a lead.

    `make` creates tools for a request, permissions and a runner.
    """

    def __init__(
        self,
        request: SessionRequest,
        changes: DirectChanges,
        programs: Programs,
        permissions: Permissions,
        make: MakeTools,
    ) -> None:
        self._request = request
        self._changes = changes
        self._programs = programs
        self._permissions = permissions
        self._make = make
        self._own = make(request, permissions, self._run)
        self._edits = {spec.name for spec in self._own.offered() if spec.mutates} - {_COMMAND}
        self._changed: list[str] = []
        """The paths that the last command changed."""

    async def open(self) -> None:
        await self._own.open()
        await self._changes.recover()

    async def aclose(self) -> None:
        await self._own.aclose()

    def offered(self) -> Sequence[ToolSpec]:
        return self._own.offered()

    def mutates(self, name: str) -> bool:
        return self._own.mutates(name)

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        if name in self._edits:
            return await self._edit(name, args)
        self._changed = []
        result = await self._own.call(name, args)
        return {**result, "changed": self._changed} if self._changed and isinstance(result, dict) else result

    async def _edit(self, name: str, args: Mapping[str, Any]) -> JSON:
        place = await self._changes.open()
        try:
            there = structs.replace(self._request, workspace=place.path)
            result = await self._make(there, Permissions("auto"), None).call(name, args)
            await self._ask(name, args, await self._changes.draw(place))
            await self._changes.bring_home(place)
        finally:
            await self._changes.close(place)
        return result

    async def _ask(self, name: str, args: Mapping[str, Any], difference: str) -> None:
        request = self._request
        what = f"{name} {args.get('path', 'a patch')}\n{difference}"
        try:
            await self._permissions.check(Action("write", what, request.session_id, request.step))
        except PermissionDenied as denied:
            raise ToolFailed("permission", denied.code, denied.message, denied.hint) from None

    async def _run(self, request: SessionRequest, argv: Sequence[str], timeout_s: float) -> ExitStatus:
        place = await self._changes.open()
        try:
            ended = await self._programs.run(
                argv,
                place,
                session_id=request.session_id,
                network=request.role.network,
                timeout_s=timeout_s,
            )
            self._changed = await self._changes.bring_home(place)
        finally:
            await self._changes.close(place)
        return ended
