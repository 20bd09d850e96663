"""Waking an owner: from another process, without blocking, and harmlessly when nobody listens."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from fanfold.store.protocol import StoreFault
from fanfold.store.wakeup import SLOTS, Wakeups

BOTH = pytest.mark.parametrize(
    "abstract",
    [
        pytest.param(True, marks=pytest.mark.skipif(sys.platform != "linux", reason="a feature of Linux")),
        False,
    ],
)


@pytest.fixture(autouse=True)
def short_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.getbasetemp()))


@BOTH
def test_another_process_wakes_the_owner(tmp_path: Path, abstract: bool):
    listener = Wakeups(tmp_path, abstract=abstract).listen("r1")
    code = (
        "import sys, tempfile; from pathlib import Path; from fanfold.store.wakeup import Wakeups;"
        "tempfile.tempdir = sys.argv[3];"
        "print(Wakeups(Path(sys.argv[1]), abstract=sys.argv[2] == 'True').wake('r1'))"
    )

    async def be_woken() -> str:
        import tempfile

        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            code,
            str(tmp_path),
            str(abstract),
            str(tempfile.tempdir),
            stdout=subprocess.PIPE,
        )
        await asyncio.wait_for(listener.wait(), 30)
        output, _ = await process.communicate()
        return output.decode().strip()

    assert asyncio.run(be_woken()) == "True"
    assert not listener.drain()
    listener.close()


@BOTH
def test_rings_are_for_one_root_of_one_project(tmp_path: Path, abstract: bool):
    bells = Wakeups(tmp_path, abstract=abstract)
    listener = bells.listen("r1")
    assert not bells.wake("r2")
    assert not Wakeups(tmp_path / "other", abstract=abstract).wake("r1")
    assert not listener.drain()
    assert Wakeups(tmp_path / "x" / "..", abstract=abstract).wake("r1"), "one folder, however it is spelled"
    assert listener.drain()
    listener.close()
    assert not bells.wake("r1")


@BOTH
def test_an_owner_that_does_not_look_blocks_nobody(tmp_path: Path, abstract: bool):
    bells = Wakeups(tmp_path, abstract=abstract)
    listener = bells.listen("r1")
    assert all(bells.wake("r1") for _ in range(5_000))
    assert listener.drain()
    assert not listener.drain()
    listener.close()


@BOTH
def test_a_new_owner_is_woken_although_the_old_one_still_listens(tmp_path: Path, abstract: bool):
    bells = Wakeups(tmp_path, abstract=abstract)
    listeners = [bells.listen("r1") for _ in range(SLOTS)]
    with pytest.raises(StoreFault):
        bells.listen("r1")
    bells.wake("r1")
    assert [listener.drain() for listener in listeners] == [True] * SLOTS
    for listener in listeners:
        listener.close()


def test_a_socket_file_left_by_a_killed_owner_is_taken_over(tmp_path: Path):
    bells = Wakeups(tmp_path, abstract=False)
    dead = bells.listen("r1")
    dead._bell.close()  # as a kill would: the file stays
    assert not bells.wake("r1")
    listener = bells.listen("r1")
    assert bells.wake("r1")
    assert listener.drain()
    listener.close()


def test_a_cancelled_wait_can_be_waited_for_again(tmp_path: Path):
    bells = Wakeups(tmp_path)
    listener = bells.listen("r1")

    async def wait_twice() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(listener.wait(), 0.01)
        bells.wake("r1")
        await asyncio.wait_for(listener.wait(), 30)

    asyncio.run(wait_twice())
    listener.close()
