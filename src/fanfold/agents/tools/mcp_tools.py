"""The tools of a session together with those of the MCP servers that its role names.

Rules
* Servers belong to one session: `open` starts them, `aclose` ends them, and no other session uses them. A
  session whose role names no servers has no cost for them.
* A server without a usable tool for the session is not started, or closed again.
* A server's tool is mutating unless the server declares it read-only. Each mutating call needs permission
  (see `permissions`), like a command.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fanfold.agents.backend import SessionRequest
from fanfold.agents.confined import ToolFailed
from fanfold.agents.permissions import Action, PermissionDenied, Permissions
from fanfold.agents.tool_names import ToolSpec
from fanfold.agents.tools.mcp import Connection, StartServer
from fanfold.agents.tools.mcp_servers import Offer, choose_offers, told, wanted_servers
from fanfold.kernel.plan import JSON
from fanfold.language.terminal import shorten_middle

if TYPE_CHECKING:
    from fanfold.agents.tools.toolbox import Tools

MAX_ERROR_CHARS = 2_000


class ServedTools:
    """The tools of `base`, and those of the servers in the request.

    `start` starts a server that is a program. `environment` has the variables that a role names.
    """

    def __init__(
        self,
        base: Tools,
        request: SessionRequest,
        permissions: Permissions,
        start: StartServer,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._base = base
        self._request = request
        self._permissions = permissions.narrowed("read_only" if request.role.read_only else "auto")
        self._start = start
        self._environment = os.environ if environment is None else environment
        self._connections: dict[str, Connection] = {}
        self._offers: dict[str, Offer] = {}

    async def open(self) -> None:
        """Start the servers that the session can use; raise `SessionFailed` if one is unusable."""
        await self._base.open()
        for server in wanted_servers(self._request.role, self._environment):
            self._connections[server.name] = Connection(server, self._request, self._start)
        if not self._connections:
            return
        try:
            await self._reach_all()
            served = {name: (one.server, one.tools) for name, one in self._connections.items()}
            read_only = self._permissions.posture == "read_only"
            offers = choose_offers(served, self._request.role.tools, read_only)
        except BaseException:
            await self._close_servers()
            raise
        self._offers = {offer.spec.name: offer for offer in offers}
        of_use = {offer.server for offer in offers}
        await self._close_servers(keeping=of_use)

    async def aclose(self) -> None:
        """End every server; nothing of them is left when this returns."""
        try:
            await self._close_servers()
        finally:
            await self._base.aclose()

    def offered(self) -> Sequence[ToolSpec]:
        return (*self._base.offered(), *(offer.spec for offer in self._offers.values()))

    def mutates(self, name: str) -> bool:
        offer = self._offers.get(name)
        return self._base.mutates(name) if offer is None else offer.spec.mutates

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        offer = self._offers.get(name)
        if offer is None:
            return await self._base.call(name, args)
        if offer.spec.mutates:
            try:
                await self._permissions.check(self._action(offer, args))
            except PermissionDenied as denied:
                raise ToolFailed("permission", denied.code, denied.message, denied.hint) from None
        result = await self._connections[offer.server].call(offer.tool, args)
        try:
            value = told(result)
        except (ValueError, RecursionError):
            why = f"{offer.tool} gave a value that cannot be written as JSON"
            raise ToolFailed("tool", "tool.mcp_invalid", why) from None
        if result.is_error:
            said = shorten_middle(str(value.get("text") or value["structured"]), MAX_ERROR_CHARS)
            raise ToolFailed("tool", "tool.mcp_failed", said or f"{offer.tool} failed without a word")
        return value

    async def _reach_all(self) -> None:
        """Connect to all servers in parallel; the first failure fails the session."""
        tasks = [asyncio.create_task(one.open()) for one in self._connections.values()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _close_servers(self, keeping: frozenset[str] | set[str] = frozenset()) -> None:
        leaving = [one for name, one in self._connections.items() if name not in keeping]
        self._connections = {name: one for name, one in self._connections.items() if name in keeping}
        await asyncio.gather(*(one.aclose() for one in leaving))

    def _action(self, offer: Offer, args: Mapping[str, Any]) -> Action:
        what = f"mcp {offer.server}/{offer.tool} {msgspec.json.encode(args).decode()}"
        return Action("tool", what, self._request.session_id, self._request.step)
