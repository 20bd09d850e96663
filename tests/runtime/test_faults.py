"""What must not strand a run or leak from it: odd outputs, failing disks, secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import pytest

from fanfold.api.ownership import own
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.language.compile import compile_recipe
from fanfold.store.protocol import Batch, StoreFault
from fanfold.store.sqlite import SqliteStore
from fanfold.wiring import wire
from tests.disk import Disk
from tests.dying_store import claimed, opened
from tests.runtime.running import TextClient, run

pytestmark = pytest.mark.full

TWO = b"""
name: two
steps:
  - {id: a, agent: explorer, prompt: a}
  - {id: b, agent: explorer, prompt: "{{steps.a.output}}", depends_on: [a]}
"""
CANARY = "canary-0123456789-canary"


def handler(folder: Path, body: str) -> str:
    name = f"odd_{folder.name}"
    text = f"import fanfold\n\n@fanfold.function\ndef {name}():\n    {body}\n"
    (folder / "handlers.py").write_text(text)
    return f"name: odd\nsteps: [{{id: f, handler: {name}}}]"


@pytest.mark.parametrize("value", ['"\\ud800"', "float('nan')", "{1, 2}", "b'x'", "2**80", "{1: 2}"])
def test_values_outside_json_fail_the_step(value: str, tmp_path: Path) -> None:
    folder = tmp_path / f"p{blake2b(value.encode(), digest_size=4).hexdigest()}"
    folder.mkdir()
    result = run(folder, handler(folder, f"return {value}"))
    error = result.steps["f"].error
    assert error is not None
    assert (error.kind, error.code) == ("invalid_output", "output.not_json")


def test_an_output_that_is_too_large_says_so_and_where_to_put_it(tmp_path: Path) -> None:
    recipe = 'name: big\nsteps: [{id: f, run: [bash, -c, "yes | head -c 17000000"]}]'
    error = run(tmp_path, recipe).steps["f"].error
    assert error is not None
    assert (error.kind, error.code) == ("invalid_output", "output.too_large")
    assert "file" in error.hint


def test_a_key_of_the_environment_is_never_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    recipe = f"""
name: leaky
steps:
  - {{id: said, run: [echo, "{CANARY}"], on_failure: inline}}
  - {{id: raised, run: [bash, -c, "echo {CANARY} >&2; exit 1"], on_failure: inline}}
"""
    plain = recipe.replace(CANARY, "$(printf canary-; printf 0123456789-canary)")
    result = run(tmp_path, plain.replace('[echo, "$', '[bash, -c, "echo $'))
    assert "[redacted]" in result.steps["said"].output
    stored = [path for path in (tmp_path / ".fanfold").rglob("*") if path.is_file()]
    assert [path.name for path in stored if CANARY.encode() in path.read_bytes()] == []


class FullDisk(SqliteStore):
    """Refuses one write, as a full disk does."""

    refuse_at = 0
    writes = 0

    def write(self, batches: Sequence[Batch]) -> None:
        self.writes += 1
        if self.writes == self.refuse_at:
            raise StoreFault("store.full", "the disk is full")
        super().write(batches)


@pytest.mark.parametrize("refuse_at", [2, 3, 4])
def test_a_full_disk_ends_the_process_and_the_run_continues_later(refuse_at: int, tmp_path: Path) -> None:
    store = FullDisk(claimed(tmp_path))
    project = wire(tmp_path, store=opened(store))
    plan = compile_recipe(TWO, "r.yaml", project.compile_context()).plan
    assert plan is not None
    owned = create(project, plan, {}, Options(script="default: ok {{step}}"))
    store.refuse_at = refuse_at
    with pytest.raises(StoreFault):
        asyncio.run(owned.host().start())
    owned.let_go()
    again = own(project, owned.tree.root.id)
    asyncio.run(again.host().resume())
    assert again.tree.root.status == "completed"
    again.done()
    project.close()


WRITES = "name: writes\nsteps: [{id: w, agent: worker, prompt: write, write_set: [a.txt]}]"


def test_an_unrecorded_undo_is_reported_and_recorded_when_repeated(
    tmp_path: Path,
) -> None:
    disk = Disk("full-at-undo", recording=False)
    store = SqliteStore(claimed(tmp_path), vfs=disk.name)
    script = "steps: {w: {output: ok, writes: {a.txt: hers}}}"

    async def work() -> None:
        async with TextClient(wire(tmp_path, store=opened(store))) as client:
            done = await client.run(WRITES, options=Options(permission="auto", script=script))
            assert (tmp_path / "a.txt").read_text() == "hers"
            disk.plan(at=disk.count, fault="full", lasting=True)  # every write from now on
            with pytest.raises(StoreFault) as full:
                await client.undo(done.run_id)
            assert not (tmp_path / "a.txt").exists()
            assert full.value.hint.startswith("free some space")
            assert full.value.hint.endswith(
                "; then say it again: the files are as asked, only the log does not say so"
            )
            disk.heal()
            again = await client.undo(done.run_id)
            assert [step.path for step in again.steps] == ["w"]
            assert [change.state for change in client.inspect(done.run_id).changes] == ["undone"]

    asyncio.run(work())
