"""Runs recipes with scripted agents in a project of their own, through the public Python surface."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fanfold.agents.providers import PROVIDERS, Provider
from fanfold.api.client import Client
from fanfold.api.result import Result
from fanfold.api.run_options import Options
from fanfold.kernel.plan import Plan
from fanfold.language.compile import compile_recipe
from fanfold.wiring import wire
from tests.work import PATIENCE_S


class TextClient(Client):
    """Takes the text of a recipe where people name one."""

    def plan_of(self, recipe: Any, *, scripted: bool = False) -> Plan:
        file = str(self.project.folder / "test.yaml")
        compiled = compile_recipe(str(recipe).encode(), file, self.project.compile_context(scripted=scripted))
        assert compiled.plan is not None, [d.message for d in compiled.report.diagnostics]
        return compiled.plan


def client(
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    providers: Sequence[Provider] = PROVIDERS,
) -> Client:
    return TextClient(wire(folder, environment, providers=providers))


HERE = tuple(replace(row, address="http://127.0.0.1") for row in PROVIDERS)
"""The providers as if they were on this machine: what answers here is charged for by their list of prices."""


def run(folder: Path, recipe: str, script: str = "default: ok from {{step}}", **named: Any) -> Result:
    """Run a recipe text to its end."""
    options = Options(permission="auto", script=script, **named.pop("options", {}))

    async def work() -> Result:
        async with client(folder) as opened:
            handle = await opened.start(recipe, options=options, inputs=named)
            await asyncio.wait_for(handle.wait(), PATIENCE_S)  # also through approvals that time will answer
            return await handle.result()

    return asyncio.run(work())
