"""Fanfold from Python: open a project, start recipes, follow them, get typed results.

async with fanfold.open(".") as ff:
    run = await ff.start("audit.yaml", packages=["a", "b"])
    async for event in run.events():
        ...
    result = await run.result()
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from fanfold.kernel.plan import JSON, Plan
from fanfold.runtime.operations.history.runs import list_runs
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.handle import RunHandle
from fanfold.runtime.operations.runs.options import Options
from fanfold.runtime.operations.runs.ownership import Owned, own
from fanfold.runtime.operations.runs.start import start
from fanfold.runtime.views.result import Result
from fanfold.runtime.views.runs import RunRow


class Client:
    """An open project. Use it as an async context manager; leaving it pauses what still runs."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._runs: list[RunHandle] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(run.leave() for run in self._runs), return_exceptions=True)
        self.project.close()

    async def start(
        self,
        recipe: Any,
        /,
        *,
        inputs: Mapping[str, JSON] | None = None,
        options: Options | None = None,
        **named: JSON,
    ) -> RunHandle:
        """Start a recipe: a name, a file, or a `Recipe`. Inputs by name, or as a mapping."""
        return self._drive(self._record(recipe, {**(inputs or {}), **named}, options))

    async def run(
        self,
        recipe: Any,
        /,
        *,
        inputs: Mapping[str, JSON] | None = None,
        options: Options | None = None,
        **named: JSON,
    ) -> Result:
        """Run a recipe until it ends, pauses, or waits for people only."""
        owned = self._record(recipe, {**(inputs or {}), **named}, options)
        return await self._drive(owned, leave_when_waiting=True).result()

    def _record(self, recipe: Any, inputs: Mapping[str, JSON], options: Options | None) -> Owned:
        options = options or Options()
        plan = self.plan_of(recipe, scripted=options.script is not None)
        return start(self.project, plan, inputs, options)

    def plan_of(self, recipe: Any, *, scripted: bool = False) -> Plan:
        """The plan of a recipe by name, by file or built in code; raises `Refused`."""
        return self.project.plan_of(recipe, scripted=scripted)

    async def resume(self, run: str) -> RunHandle:
        """Take a paused or abandoned run over and go on."""
        owned = own(self.project, self.project.resolve(run).root_run_id)
        return self._drive(owned, resumed=True)

    def _drive(self, owned: Owned, *, resumed: bool = False, leave_when_waiting: bool = False) -> RunHandle:
        handle = RunHandle(owned, resumed=resumed, leave_when_waiting=leave_when_waiting)
        self._runs.append(handle)
        return handle

    def runs(self, limit: int = 100) -> list[RunRow]:
        """Root runs, newest first."""
        return list_runs(self.project, limit=limit)
