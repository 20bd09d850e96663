"""Rows of runs, from which lists are made, say what the log says, however often a run changed hands."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fanfold.api.archives import verify
from fanfold.api.ownership import own
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.kernel.state import RUN_TERMINAL
from fanfold.wiring import wire

KID = "name: kid\nsteps: [{id: up, agent: explorer, prompt: x}, {id: down, agent: explorer, prompt: x}]\n"
PARENT = """
name: parent
steps:
  - {id: kids, workflow: ./kid.yaml, for_each: "[1, 2, 3]"}
  - {id: own, agent: explorer, prompt: x}
  - {id: last, agent: explorer, prompt: x, depends_on: [kids]}
"""
SCRIPT = """
default: {output: ok, delay_ms: 90, usage: {input_tokens: 10, output_tokens: 1, cost_usd: 0.001}}
"""


@pytest.mark.parametrize("left_after", range(3, 9))
def test_rows_follow_from_the_log_whenever_an_owner_leaves(left_after: int, tmp_path: Path) -> None:
    (tmp_path / "kid.yaml").write_text(KID)
    (tmp_path / "parent.yaml").write_text(PARENT)

    async def live(first: bool, root: str) -> str:
        """Drive the run for some commits, and be gone."""
        project = wire(tmp_path)
        seen = 0

        def committed(_: object) -> None:
            nonlocal seen
            seen += 1
            if seen == left_after:
                raise InterruptedError

        if first:
            plan = project.plan_of(tmp_path / "parent.yaml")
            owned = create(project, plan, {}, Options(script=SCRIPT))
        else:
            owned = own(project, root)
        host = owned.host(on_commit=committed)
        try:
            await (host.start() if first else host.resume())
        except InterruptedError:
            pass
        owned.let_go()
        root = owned.tree.root.id
        project.close()
        return root

    async def work() -> None:
        root = await live(True, "")
        for _ in range(100):
            project = wire(tmp_path)
            assert verify(project.store, root).violations == []
            head = project.resolve(root)
            project.close()
            if head.status in RUN_TERMINAL:
                assert (head.status, head.agents, head.usage.input_tokens) == ("completed", 8, 80)
                return
            await live(False, root)
        raise AssertionError("it never ended")

    asyncio.run(work())
