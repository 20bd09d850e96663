"""Failing disks and power cuts below a real SQLite: what was acknowledged is there, what failed is not.

Each test walks through every single disk operation of a small piece of work. `FANFOLD_LONG=1` makes the
work longer and the draws more.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from fanfold.store.protocol import Batch, StoreFault
from fanfold.store.sqlite import SqliteStore
from fanfold.testing.store_races import Tree
from tests.disk import Disk, Fault, Platters

LONG = bool(os.environ.get("FANFOLD_LONG"))
STEPS = 40 if LONG else 5
CODES = {"io": {"store.io"}, "full": {"store.full", "store.io"}, "short": {"store.full", "store.io"}}


@pytest.fixture(autouse=True)
def frequent_checkpoints(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fanfold.store.sqlite.CHECKPOINT_PAGES", 12)


@pytest.fixture(scope="module", autouse=True)
def sound() -> Iterator[None]:
    """A disk that never fails and never waits: what is looked at afterwards need not survive anything."""
    disk = Disk("sound", recording=False)
    yield
    disk.unregister()


@pytest.fixture
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    disk = Disk(f"disk of {request.node.name}")
    yield disk
    disk.unregister()


def steps(tree: Tree) -> Iterator[Batch]:
    """The work: small steps, and one that is larger than a page."""
    for number in range(STEPS):
        yield tree.step("long " * 2_000 if number == 2 else "")


def events_in(folder: Path) -> list[object]:
    """What an ordinary process finds there; the database must be sound."""
    store = SqliteStore(folder, vfs="sound")
    assert store._db.pragma("integrity_check") == "ok"
    found: list[object] = list(store.tree("r1"))
    for batch_of_two in store.tree("r1"):
        if blob := batch_of_two.data.get("output"):
            store.blob(blob)
    store.close()
    return found


def found_after_a_crash(folder: Path, place: Path) -> list[object]:
    """What would be found had the process died now: the files as they are, without the shared memory."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name in ("fanfold.db", "fanfold.db-wal"):
        if (folder / name).exists():
            shutil.copy(folder / name, place)
    return events_in(place)


def operations_of_the_work(folder: Path, disk: Disk) -> tuple[int, int]:
    """How many operations opening takes, and opening with all of the work."""
    store = SqliteStore(folder, vfs=disk.name)
    opened = disk.count
    for batch in steps(Tree("r1")):
        store.write([batch])
    done = disk.count
    store.close()
    return opened, done


def work(folder: Path, disk: Disk, place: Path) -> None:
    """Do the work, trying each step again when the disk failed; check after each failure and at the end."""
    tree, acknowledged, codes = Tree("r1"), 0, set()
    try:
        store = SqliteStore(folder, vfs=disk.name)
    except StoreFault as fault:
        codes.add(fault.code)
        disk.heal()
        store = SqliteStore(folder, vfs=disk.name)
    for batch in steps(tree):
        try:
            store.write([batch])
        except StoreFault as fault:
            codes.add(fault.code)
            lasting = disk.lasting
            disk.heal()
            assert list(store.tree("r1")) == tree.envelopes[:acknowledged], disk.struck
            if not lasting:  # a disk that takes nothing cannot be told to forget either
                found = found_after_a_crash(folder, place)
                assert found == tree.envelopes[:acknowledged], disk.struck
            store.write([batch])
        acknowledged = len(tree.envelopes)
    disk.heal()
    assert codes <= CODES[disk.fault], disk.struck
    assert list(store.tree("r1")) == tree.envelopes, disk.struck
    assert found_after_a_crash(folder, place) == tree.envelopes, disk.struck
    store.close()
    assert events_in(folder) == tree.envelopes, disk.struck


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "lasting"), [("io", False), ("short", False), ("full", False), ("full", True)]
)
def test_a_failing_operation_fails_one_write_and_loses_nothing(
    fault: Fault, lasting: bool, memory_path: Path, disk: Disk
):
    _, total = operations_of_the_work(memory_path / "counted", disk)
    hit = set()
    for number in range(1, total + 1):
        folder = memory_path / "tried"
        shutil.rmtree(folder, ignore_errors=True)
        disk.plan(at=disk.count + number, fault=fault, lasting=lasting)
        disk.struck.clear()
        work(folder, disk, memory_path / "crashed")
        hit.update(disk.struck)
    assert {"write fanfold.db-wal", "write fanfold.db"} <= hit, "the work must reach the log and a checkpoint"


@pytest.mark.full
def test_a_power_cut_at_any_operation_keeps_everything_acknowledged(memory_path: Path, disk: Disk):
    store = SqliteStore(memory_path / "real", vfs=disk.name)
    tree = Tree("r1")
    acknowledged: list[tuple[int, int]] = [(0, 0)]
    for batch in steps(tree):
        store.write([batch])
        acknowledged.append((len(disk.operations), len(tree.envelopes)))
    store.close()
    platters = Platters()
    checked = 0
    for number, operation in enumerate(disk.operations, start=1):
        platters.apply(operation)
        promised = max(events for done, events in acknowledged if done <= number)
        for draw in range(4 if LONG else 2):
            folder = memory_path / "cut"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            platters.restore(folder, Random(f"{number} {draw}") if draw else None)
            found = events_in(folder)
            assert found == tree.envelopes[: len(found)], f"operation {number}, draw {draw}"
            assert len(found) >= promised, f"operation {number}, draw {draw}"
            assert len(found) % 2 == 0, "half of a transaction"
            checked += 1
    assert checked > 50


def test_a_disk_that_lies_about_syncs_would_be_noticed(memory_path: Path, disk: Disk):
    """The test above can fail: without its syncs, the same work loses what was acknowledged."""
    store = SqliteStore(memory_path / "real", vfs=disk.name)
    store.write([Tree("r1").step()])
    platters = Platters()
    for operation in disk.operations:
        if operation.kind != "sync":
            platters.apply(operation)
    store.close()
    (memory_path / "cut").mkdir()
    platters.restore(memory_path / "cut")
    assert events_in(memory_path / "cut") == []


def test_a_write_succeeds_again_when_there_is_space_again(tmp_path: Path, disk: Disk):
    store = SqliteStore(tmp_path, vfs=disk.name)
    tree = Tree("r1")
    store.write([tree.step()])
    batch = tree.step()
    disk.plan(at=disk.count + 1, fault="full", lasting=True)
    for _ in range(3):
        with pytest.raises(StoreFault) as full:
            store.write([batch])
        assert full.value.code == "store.full"
        assert "space" in full.value.hint
    disk.heal()
    store.write([batch])
    store.close()
    assert events_in(tmp_path) == tree.envelopes


def test_a_read_that_fails_is_reported_and_the_next_one_works(tmp_path: Path, disk: Disk):
    store = SqliteStore(tmp_path, vfs=disk.name)
    tree = Tree("r1")
    store.write([tree.step()])
    store.close()
    store = SqliteStore(tmp_path, vfs=disk.name)
    reader = store._connections.reader()
    reader.execute("SELECT 1 FROM sqlite_schema").fetchall()
    disk.plan(at=disk.count + 1, fault="io")
    with pytest.raises(StoreFault) as failed:
        list(store.tree("r1"))
    assert failed.value.code == "store.io"
    assert list(store.tree("r1")) == tree.envelopes
    store.close()


def test_a_real_file_size_limit_is_a_full_disk_or_a_failing_one(tmp_path: Path):
    """One check with the system's own error instead of an injected one."""
    import resource
    import signal

    store = SqliteStore(tmp_path, durability="normal")
    tree = Tree("r1")
    store.write([tree.step()])
    batch = tree.step("x" * 300_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, before[1]))
        with pytest.raises(StoreFault) as fault:
            store.write([batch])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert fault.value.code in ("store.io", "store.full")
    store.write([batch])
    store.close()
    assert events_in(tmp_path) == tree.envelopes
