"""SQLite as a store: what every store does, and what only a file on a disk can do to it."""

import os
import shutil
import stat
import subprocess
import sys
import threading
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import apsw
import pytest

from fanfold.errors import FanfoldError, NotFoundError
from fanfold.store import tables
from fanfold.store.address import SqliteAddress
from fanfold.store.database import AHEAD_BYTES, FRAME_BYTES
from fanfold.store.protocol import Batch, StoreFault
from fanfold.store.sqlite import SqliteStore
from fanfold.testing.store_races import Tree, head
from fanfold.testing.store_suite import StoreSuite
from tests.work import PATIENCE_S

for _waits in (
    StoreSuite.test_a_lease_is_kept_alive_until_its_store_is_closed,
    StoreSuite.test_the_lease_of_a_process_that_cannot_be_seen_is_taken_when_it_ran_out,
):
    pytest.mark.full(_waits)


class TestSuite(StoreSuite):
    @pytest.fixture
    def address(self, tmp_path: Path) -> SqliteAddress:
        return SqliteAddress(folder=tmp_path / ".fanfold", durability="normal", expiry_s=self.expiry_s)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ".fanfold"


def intact(folder: Path) -> bool:
    db = apsw.Connection(str(folder / "fanfold.db"))
    try:
        return bool(db.pragma("integrity_check") == "ok")
    finally:
        db.close()


def test_the_database_is_durable_by_default_and_less_so_by_configuration(folder: Path):
    for store, synchronous in ((SqliteStore(folder), 2), (SqliteStore(folder, durability="normal"), 1)):
        assert store._db.pragma("synchronous") == synchronous
        assert store._db.pragma("journal_mode") == "wal"
        store.close()


def test_the_private_parts_are_private(folder: Path):
    store = SqliteStore(folder)
    store.write([Tree("r1").step()])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.glob("fanfold.db*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    store.close()


@pytest.mark.full
def test_git_sees_recipes_roles_and_configuration_only(folder: Path):
    store = SqliteStore(folder)
    for name in ("workflows/a/b.yaml", "agents/critic.md", "config.toml", "runs/r1/report.md", "index/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    subprocess.run(["git", "init", "-q"], cwd=folder.parent, check=True)
    seen = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"],
        cwd=folder.parent,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    store.close()
    assert sorted(seen) == [
        ".fanfold/agents/critic.md",
        ".fanfold/config.toml",
        ".fanfold/workflows/a/b.yaml",
    ]


def test_a_gitignore_that_people_wrote_is_left_alone(folder: Path):
    folder.mkdir()
    (folder / ".gitignore").write_text("mine\n")
    SqliteStore(folder).close()
    assert (folder / ".gitignore").read_text() == "mine\n"


def test_every_thread_reads_beside_the_writer(folder: Path):
    store = SqliteStore(folder, durability="normal")
    tree, problems = Tree("r1"), []

    def read():
        try:
            for _ in range(30):
                numbers = [event.tree_seq for event in store.tree("r1")]
                assert numbers == list(range(1, len(numbers) + 1))
        except Exception as error:  # noqa: BLE001 - reported by the main thread
            problems.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        store.write([tree.step()])
    for thread in threads:
        thread.join()
    store.close()
    assert problems == []


def test_the_write_ahead_log_stays_small(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fanfold.store.sqlite.CHECKPOINT_PAGES", 50)
    store = SqliteStore(folder, durability="normal")
    tree = Tree("r1")
    for _ in range(200):
        store.write([tree.step()])
    assert (folder / "fanfold.db-wal").stat().st_size < 100 * 4_200
    store.close()


def test_room_in_the_write_ahead_log_is_made_ahead_and_looks_like_its_end_after_a_crash(folder: Path):
    store, tree, log = SqliteStore(folder), Tree("r1"), folder / "fanfold.db-wal"
    sizes = []
    for _ in range(100):
        store.write([tree.step()])
        sizes.append(log.stat().st_size)
    committed = [event.tree_seq for event in store.tree("r1")]
    left = folder.with_name("left") / ".fanfold"
    shutil.copytree(folder, left)  # as a kill would leave it
    store.close()
    grew = sum(before != after for before, after in pairwise(sizes))
    assert grew < 60, "most commits find room"
    assert intact(left)
    with closing(SqliteStore(left)) as again:
        assert [event.tree_seq for event in again.tree("r1")] == committed
        again.write([tree.step()])
        assert again.reach("r1") > committed[-1]


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_a_file_in_place_of_the_write_ahead_log_is_not_extended(folder: Path, kind: str):
    store, tree, log = SqliteStore(folder), Tree("r1"), folder / "fanfold.db-wal"
    while store._log.pages < 60 or store._log.pages * FRAME_BYTES + AHEAD_BYTES <= log.stat().st_size:
        store.write([tree.step()])  # until the next one makes room
    log.unlink()
    log.write_text("not ours") if kind == "file" else os.mkfifo(log)
    with pytest.raises(StoreFault) as gone:
        store.write([tree.step()])
    assert gone.value.code == "store.gone"
    assert kind == "pipe" or log.read_text() == "not ours"
    store.close()


def test_few_writes_leave_a_small_log(folder: Path):
    store, tree = SqliteStore(folder), Tree("r1")
    for _ in range(4):
        store.write([tree.step()])
    assert (folder / "fanfold.db-wal").stat().st_size < 60 * 4_200
    store.close()


def test_an_event_takes_the_same_space_early_and_late(folder: Path):
    store = SqliteStore(folder, durability="normal")
    tree = Tree("r1")
    sizes = []
    for _ in range(2):
        store.write([Batch(root="r1", epoch=0, envelopes=[tree.event() for _ in range(5_000)])])
        sizes.append(store._db.execute("SELECT sum(pgsize) FROM dbstat WHERE name = 'events'").get)
    store.close()
    assert sizes[1] == pytest.approx(2 * sizes[0], rel=0.1)
    assert sizes[0] < 5_000 * 160


# ---------------------------------------------------------------------------------------------- versions


def test_a_database_from_before_the_first_version_is_refused_untouched(folder: Path):
    folder.mkdir()
    db = apsw.Connection(str(folder / "fanfold.db"))
    db.execute("CREATE TABLE logs (log TEXT); INSERT INTO logs VALUES ('r1')")
    db.execute(f"PRAGMA application_id = {tables.BEFORE}; PRAGMA user_version = 2")
    db.close()
    before = (folder / "fanfold.db").read_bytes()
    with pytest.raises(StoreFault) as refused:
        SqliteStore(folder)
    assert refused.value.code == "store.older"
    assert "move it away" in refused.value.hint
    assert (folder / "fanfold.db").read_bytes() == before


@pytest.mark.parametrize("number", [0, -1])
def test_an_older_database_is_refused_untouched(folder: Path, number: int):
    SqliteStore(folder).close()
    db = apsw.Connection(str(folder / "fanfold.db"))
    db.pragma("user_version", number)
    db.close()
    before = (folder / "fanfold.db").read_bytes()
    with pytest.raises(StoreFault) as refused:
        SqliteStore(folder)
    assert refused.value.code == "store.older"
    assert (folder / "fanfold.db").read_bytes() == before


def test_tables_that_cannot_be_made_leave_an_empty_database(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "TABLES", "CREATE TABLE extra (x); INSERT INTO nowhere VALUES (1)")
    with pytest.raises(StoreFault):
        SqliteStore(folder)
    monkeypatch.undo()
    store = SqliteStore(folder)
    assert not store._db.table_exists("main", "extra")
    store.write([Tree("r1").step()])
    store.close()
    assert intact(folder)


@pytest.mark.full
@pytest.mark.parametrize("name", ["fanfold.db", "fanfold.db-wal", "fanfold.db-journal"])
def test_a_pipe_in_the_place_of_a_file_is_never_opened(folder: Path, name: str):
    """Whoever opened it would wait for ever: it is done in a process that can be ended."""
    SqliteStore(folder).close()
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    program = (
        "import sys; from pathlib import Path; from fanfold.store.address import SqliteAddress\n"
        "from fanfold.store.protocol import StoreFault\n"
        "address = SqliteAddress(folder=Path(sys.argv[1]))\n"
        "print(address.examine().problems)\n"
        "for use in (address.open, address.open_to_read):\n"
        "    try: use()\n"
        "    except StoreFault as fault: print(fault.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout.splitlines() == [
        f"('{folder / name} is not a file',)",
        "store.foreign",
        "store.foreign",
    ]


def test_a_newer_database_is_refused_untouched(folder: Path):
    SqliteStore(folder).close()
    db = apsw.Connection(str(folder / "fanfold.db"))
    db.pragma("user_version", 99)
    db.close()
    before = (folder / "fanfold.db").read_bytes()
    with pytest.raises(StoreFault) as refused:
        SqliteStore(folder)
    assert refused.value.code == "store.newer"
    assert "pip install" in refused.value.hint
    assert (folder / "fanfold.db").read_bytes() == before


def test_a_database_of_another_program_is_refused(folder: Path):
    folder.mkdir()
    db = apsw.Connection(str(folder / "fanfold.db"))
    db.execute("CREATE TABLE theirs (x)")
    db.close()
    with pytest.raises(StoreFault) as refused:
        SqliteStore(folder)
    assert refused.value.code == "store.foreign"


# ---------------------------------------------------------------------------------------------- looking


def test_looking_leaves_every_file_as_it_was(folder: Path):
    address = SqliteAddress(folder=folder)
    with pytest.raises(NotFoundError):
        address.open_to_read()
    assert not folder.exists()
    store = SqliteStore(folder, durability="normal")
    store.write([Tree("r1").step()])
    store.close()
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    looking = address.open_to_read()
    assert len(list(looking.tree("r1"))) == 2
    looking.follow("new").close()
    looking.close()
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    health = address.examine()
    assert health is not None
    assert (health.problems, health.place) == ((), str(folder / "fanfold.db"))


# ----------------------------------------------------------------------------------------------- faults


def test_a_file_that_is_no_database_is_named(folder: Path):
    folder.mkdir()
    (folder / "fanfold.db").write_bytes(b"these are my notes, not a database " * 100)
    with pytest.raises(StoreFault) as refused:
        SqliteStore(folder)
    assert refused.value.code == "store.corrupt"
    assert "fanfold.db" in refused.value.message


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreFault) as refused:
        SqliteStore(tmp_path / "file" / ".fanfold")
    assert refused.value.code == "store.cannot_open"


@pytest.mark.parametrize("part", ["fanfold.db", "fanfold.db-wal"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_database_that_is_removed_or_replaced_is_noticed_at_the_next_commit(
    folder: Path, part: str, replaced: bool
):
    store, tree = SqliteStore(folder), Tree("r1")
    lease = store.acquire("r1")
    tree.epoch = lease.epoch
    store.write([tree.step()])
    (folder / part).rename(folder / "elsewhere")
    if replaced:
        (folder / part).write_bytes((folder / "elsewhere").read_bytes())
    for change in (
        lambda: store.write([tree.step()]),
        lambda: store.release(lease),
        lambda: store.acquire("r2"),
    ):
        with pytest.raises(StoreFault) as gone:
            change()
        assert (gone.value.code, gone.value.exit_status) == ("store.gone", 1)
    store.close()


def test_the_notice_about_a_moved_folder_states_that_nothing_is_lost(folder: Path):
    store, tree = SqliteStore(folder), Tree("r1")
    store.write([tree.step()])
    moved = folder.with_name("moved")
    folder.rename(moved)
    with pytest.raises(StoreFault) as gone:
        store.write([tree.step()])
    assert (gone.value.code, gone.value.details["now"]) == ("store.gone", str(moved / "fanfold.db"))
    store.close()
    with closing(SqliteStore(moved)) as again:
        assert again.reach("r1") == tree.step().envelopes[0].tree_seq - 1


def test_a_project_on_a_network_file_system_is_refused_before_anything_is_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    device = folder.parent.stat().st_dev
    mounts = folder.parent / "mountinfo"
    line = f"36 35 {os.major(device)}:{os.minor(device)} / /home rw,relatime shared:1 - fuse.sshfs host:/ rw"
    mounts.write_text(f"22 27 0:21 / /proc rw - proc proc rw\n{line}\n")
    monkeypatch.setattr("fanfold.store.database.MOUNTS", mounts)
    with pytest.raises(StoreFault) as refused:
        SqliteStore(folder)
    assert (refused.value.code, refused.value.details["file_system"]) == ("store.network", "fuse.sshfs")
    assert refused.value.hint
    assert not folder.exists()
    mounts.write_text(line.replace("fuse.sshfs", "ext4"))
    SqliteStore(folder).close()


def test_damage_is_reported_as_damage(folder: Path):
    store = SqliteStore(folder, durability="normal")
    tree = Tree("r1")
    for _ in range(200):
        store.write([tree.step("words " * 300 + str(tree.place))])
    store.close()
    with (folder / "fanfold.db").open("r+b") as file:
        for page in range(8, os.path.getsize(folder / "fanfold.db") // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 100)
    store = SqliteStore(folder)
    with pytest.raises(StoreFault) as damaged:
        list(store.tree("r1"))
    assert damaged.value.code == "store.corrupt"
    store.close()


def test_a_database_that_may_not_be_written_says_so(folder: Path):
    store = SqliteStore(folder)
    store._db.pragma("query_only", True)
    with pytest.raises(StoreFault) as refused:
        store.write([Tree("r1").step()])
    assert refused.value.code == "store.read_only"
    store._db.pragma("query_only", False)
    store.write([Tree("r1").step()])
    store.close()


def test_a_lock_that_is_never_released_is_reported_with_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fanfold.store.database.PATIENCE_S", 0.05)
    store = SqliteStore(folder)
    hog = apsw.Connection(str(folder / "fanfold.db"))
    hog.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreFault) as busy:
        store.write([Tree("r1").step()])
    assert busy.value.code == "store.busy"
    assert busy.value.hint
    hog.execute("ROLLBACK")
    hog.close()
    store.write([Tree("r1").step()])
    store.close()


def test_a_child_without_its_parents_head_is_a_bug(folder: Path):
    store = SqliteStore(folder)
    with pytest.raises(FanfoldError) as bug:
        store.write([Batch(root="r1", epoch=0, heads=[head("c1", "r1", "r1")])])
    assert bug.value.code == "store.constraint"
    store.write([Batch(root="r1", epoch=0, heads=[head("c1", "r1", "r1"), head("r1")])])
    store.close()


# These two wait for a lease or a signal by their nature.
pytest.mark.full(StoreSuite.test_a_wake_up_follows_its_commit)
pytest.mark.full(StoreSuite.test_an_owner_on_another_machine_is_alive_until_its_lease_ran_out)


def test_pipes_of_dead_listeners_are_removed_by_the_next_listener_and_the_next_sender(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / ".fanfold")) as store:
        pipes = tmp_path / ".fanfold" / "wake" / "updates"
        pipes.mkdir(parents=True)
        os.mkfifo(pipes / "r1.dead")
        os.mkfifo(pipes / "r2.dead")
        (pipes / "r1.file").write_text("no pipe")
        store.publish("r1", "text")
        assert sorted(one.name for one in pipes.iterdir()) == ["r1.file", "r2.dead"]
        with store.updates("r1", print):
            assert [one.name.partition(".")[0] for one in sorted(pipes.iterdir())] == ["r1", "r1"]
        assert (pipes / "r1.file").read_text() == "no pipe"
