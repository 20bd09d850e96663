"""What a step costs on the disk, counted: every write that SQLite makes while a chain of steps is driven.

A page in the write-ahead log is two writes (a header and the page), and one more where it is written back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanfold import function
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.kernel.events import Failure
from fanfold.language.compile import compile_recipe
from fanfold.language.inputs import bind_inputs
from fanfold.store.sqlite import SqliteStore
from fanfold.wiring import wire
from tests.disk import Disk
from tests.dying_store import claimed, opened

STEPS = 500
WORDS = ("lorem ipsum dolor sit amet " * 40)[:1_000]
MAX_WRITES = {"agent": 13.0, "function": 10.5}
MAX_KB = {"agent": 30.0, "function": 22.5}
KINDS = {
    "agent": 'agent: explorer, prompt: "Look into {{inputs.topic}}"',
    "function": "handler: tell_a_lot",
}


@function
async def tell_a_lot(step: int) -> str:
    return f"{step} {WORDS}"


@pytest.fixture
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    disk = Disk(f"disk of {request.node.name}")
    yield disk
    disk.unregister()


def chain(kind: str) -> bytes:
    """Steps in a row, each with a kilobyte to say that nobody said before."""
    steps = [
        f"  - {{id: s{number}, {KINDS[kind]}"
        + (f", depends_on: [s{number - 1}]" if number else "")
        + (f", inputs: {{step: {number}}}" if kind == "function" else "")
        + "}"
        for number in range(STEPS)
    ]
    return "\n".join(["name: chain", "inputs: [{name: topic, default: it}]", "steps:", *steps]).encode()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["agent", "function"])
def test_a_step_dirties_few_pages_and_its_text_is_written_once(kind: str, disk: Disk, tmp_path: Path):
    store = SqliteStore(claimed(tmp_path), vfs=disk.name)
    project = wire(tmp_path, store=opened(store))
    plan = compile_recipe(chain(kind), "chain.yaml", project.compile_context()).plan
    assert plan is not None
    script = f'default: "{{{{step}}}} {WORDS}"'

    async def drive() -> tuple[str, Failure | None]:
        owned = create(project, plan, bind_inputs(plan, {}), Options(script=script, max_agents=STEPS))
        disk.operations.clear()
        await owned.host().start()
        owned.let_go()
        return owned.tree.root.status, owned.tree.root.error

    assert asyncio.run(drive()) == ("completed", None)
    written = [len(one.data) for one in disk.operations if one.kind == "write"]
    syncs = sum(one.kind == "sync" and one.file.endswith("-wal") for one in disk.operations)
    project.close()
    assert len(written) / STEPS <= MAX_WRITES[kind]
    assert sum(written) / STEPS / 1_000 <= MAX_KB[kind]
    assert syncs / STEPS <= 1.1, "one commit a step"
