"""What `verify` holds a log against, beside what the store itself finds."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from fanfold.runtime.operations.history.verify import verify, verify_store
from fanfold.runtime.operations.runs.starting.options import Options
from fanfold.store.protocol import Batch, Store
from fanfold.wiring import wire
from tests.runtime.running import client, run

RECIPE = """\
name: two
steps:
  - {id: a, agent: explorer, prompt: a}
  - {id: b, agent: explorer, prompt: "{{steps.a.output}}", depends_on: [a]}
"""


@pytest.fixture
def store(tmp_path: Path):
    project = wire(tmp_path)
    yield project.store
    project.close()


def messages(store: Store, root: str) -> list[tuple[int, str]]:
    return [(one.number, one.message) for one in verify(store, root).violations]


def test_a_state_other_than_the_recorded_one_is_found(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    """As when another version of the kernel folds the log to something else."""
    monkeypatch.setattr("fanfold.runtime.hosting.run_tree.trace", lambda *_: b"of then!")
    root = run(tmp_path, RECIPE).run_id
    found = messages(store, root)
    assert {number for number, _ in found} == {3}
    assert "another state than was recorded" in found[0][1]


@pytest.mark.parametrize(
    "change", [{"status": "failed"}, {"agents": 7}, {"output": "other"}, {"ended_at": 1}]
)
def test_a_row_that_does_not_follow_from_the_log_is_found(
    tmp_path: Path, store: Store, change: dict[str, object]
):
    """Also one that was written by the rules: whoever seals it again cannot make it true."""
    root = run(tmp_path, RECIPE).run_id
    assert messages(store, root) == []
    head = store.head(root)
    assert head is not None
    store.write([Batch(root=root, epoch=1, heads=[replace(head, **change)])])
    (found,) = messages(store, root)
    name = next(iter(change))
    assert found[0] == 2
    assert f"says {name} {change[name]!r}, its log says" in found[1]


def test_an_output_that_the_log_does_not_know_is_found(tmp_path: Path, store: Store):
    root = run(tmp_path, RECIPE).run_id
    ((_, row), *_) = store.output_rows(root=root)
    store.write([Batch(root=root, epoch=1, outputs=[row])])
    assert messages(store, root) == [(2, "the row of the output of a is not what the log says")]
    assert not verify_store(store).ok


def test_a_run_can_be_verified_while_it_runs(tmp_path: Path):
    """Its log grows between two readings; what is checked is one moment of it."""
    steps = "".join(f"  - {{id: s{n}, agent: explorer, prompt: x}}\n" for n in range(300))

    async def work() -> list[tuple[int, str]]:
        async with client(tmp_path) as opened:
            options = Options(permission="auto", script="default: ok", max_agents=400)
            recipe = f"name: many\nlimits: {{max_agents: 400}}\nsteps:\n{steps}"
            handle = await opened.start(recipe, options=options)
            result = asyncio.create_task(handle.result())
            found: list[tuple[int, str]] = []
            looking = wire(tmp_path, to_read=True)
            while not result.done():
                await asyncio.to_thread(lambda: found.extend(messages(looking.store, handle.id)))
            await asyncio.to_thread(looking.close)
            assert (await result).status == "completed"
            return found

    assert asyncio.run(work()) == []


BACKS_OFF = """\
name: backs_off
limits: {{timeout: {run_timeout}}}
steps:
  - {{id: g, timeout: {group_timeout}, steps: [{{id: a, agent: explorer, prompt: a,
      retry: {{attempts: 3, backoff: 60s, on: [transport]}}}}]}}
"""
FAILS = "steps: {g/a: {fail: {class: transport, message: gone}}}"


@pytest.mark.parametrize(
    ("how", "status"), [("cancel", "cancelled"), ("run_timeout", "timed_out"), ("group_timeout", "failed")]
)
def test_a_run_that_ends_while_a_step_waits_for_its_next_attempt_is_sound(
    tmp_path: Path, store: Store, how: str, status: str
):
    limits = {"run_timeout": "1h", "group_timeout": "1h"} | ({} if how == "cancel" else {how: "300ms"})

    async def work() -> str:
        async with client(tmp_path) as opened:
            options = Options(permission="auto", script=FAILS)
            handle = await opened.start(BACKS_OFF.format(**limits), options=options, inputs={})
            async for event in handle.events():
                if event.data.get("status") == "retrying" and how == "cancel":
                    await handle.cancel()
            result = await asyncio.wait_for(handle.result(), 30)
            assert result.status == status
            return result.run_id

    assert messages(store, asyncio.run(work())) == []
