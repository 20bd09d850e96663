"""Trees travel as git packs: small, checked, and fetched once. Merges of trees are merges of workspaces."""

from __future__ import annotations

import asyncio
import fcntl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanfold.cluster.workspaces import TreeIsolation, TreeMerges
from fanfold.engine.run_trees import RunTrees, open_objects, store_snapshot
from fanfold.errors import WorldError
from fanfold.kernel.plan import Step
from fanfold.language.leaf_steps import AgentBody
from fanfold.steps.order import Job, Order, Outcome
from fanfold.steps.records import Merge, RunTreeStored, StoredPack
from fanfold.steps.step_workspace import Isolation
from fanfold.store.protocol import Batch, Blobs, Store
from fanfold.store.sqlite import SqliteStore
from fanfold.workspace import git
from fanfold.workspace.merge import FileState, hash_bytes
from fanfold.workspace.transport import TreeFolder, TreeObjects, merge_trees
from fanfold.workspace.workspaces import Workspaces

pytestmark = pytest.mark.full
FILE = 0o100644


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    for number in range(300):
        file = made / f"src/part{number % 10}/f{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"line of {number}\n" * 100)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "store")
    yield made
    made.close()


def machine(folder: Path) -> TreeObjects:
    """The object store of another machine."""
    folder.mkdir(exist_ok=True)
    return open_objects(folder)


def snapshot(store: Store, project: Path, objects: TreeObjects, last: RunTreeStored | None) -> RunTreeStored:
    """Store a snapshot that builds on the last one."""
    blobs = Blobs(store)
    spaces = Workspaces(project)
    if last is None:
        made, _ = store_snapshot(store, blobs, "r1", spaces, objects, [])
    else:
        files, _ = spaces.capture(objects)
        tree = objects.put_files(files, last.tree)
        parts = tuple(map(blobs.put_encoded, [objects.pack(tree, last.tree)]))
        made = RunTreeStored(tree=tree, packs=(*last.packs, StoredPack(tree, parts)))
    store.write([Batch(root="r1", epoch=None, blobs=blobs.take_fresh())])
    return made


def test_three_changed_files_travel_in_64_kb_and_arrive_unchanged(
    project: Path, store: SqliteStore, tmp_path: Path
):
    here, there = machine(tmp_path / "here"), machine(tmp_path / "there")
    first = snapshot(store, project, here, None)
    for number in range(3):
        with open(project / f"src/part{number}/f{number}.txt", "a") as file:
            file.write("one line more\n")
    second = snapshot(store, project, here, first)
    sent = sum(len(store.blob(part)) for part in second.packs[-1].parts)
    assert 0 < sent <= 64 * 1024
    trees = RunTrees(store, "r1", there)
    trees.note(second)
    trees.fetch(second.tree)
    assert there.files(second.tree) == here.files(second.tree)
    folder = tmp_path / "checkout"
    folder.mkdir()
    with TreeFolder(folder, there, in_git=False).at(second.tree):
        assert (folder / "src/part1/f1.txt").read_bytes() == (project / "src/part1/f1.txt").read_bytes()
        assert sum(1 for file in folder.glob("src/**/*.txt")) == 300


@pytest.mark.parametrize("place", ["inner/.fanfold", "inner/.FANFOLD/below"])
def test_files_of_fanfold_in_a_lower_folder_do_not_travel(
    project: Path, store: SqliteStore, tmp_path: Path, place: str
):
    (project / place).mkdir(parents=True)
    (project / place / "secret").write_text("a key")
    (project / "inner/beside.txt").write_text("here")
    made = snapshot(store, project, machine(tmp_path / "here"), None)
    trees = RunTrees(store, "r1", machine(tmp_path / "there"))
    trees.note(made)
    trees.fetch(made.tree)
    files = trees.objects.files(made.tree)
    assert [path for path in files if path.startswith("inner")] == ["inner/beside.txt"]
    assert len(files) == 301


class CountingStore:
    """A store that counts the blobs that are read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reads: list[str] = []

    def blob(self, hash: str) -> bytes:
        self.reads.append(hash)
        return self._store.blob(hash)


def test_a_second_worker_with_the_same_home_and_a_second_step_fetch_nothing(
    project: Path, store: SqliteStore, tmp_path: Path
):
    made = snapshot(store, project, machine(tmp_path / "here"), None)
    counting = CountingStore(store)
    for _ in range(2):  # two workers of one user on one machine
        trees = RunTrees(counting, "r1", machine(tmp_path / "there"))  # type: ignore[arg-type] # only blobs
        trees.note(made)
        trees.fetch(made.tree)
        trees.fetch(made.tree)
    assert sorted(counting.reads) == sorted(made.packs[0].parts)


def test_a_folder_moves_between_trees_by_the_files_that_differ(
    project: Path, store: SqliteStore, tmp_path: Path
):
    objects = machine(tmp_path / "here")
    first = snapshot(store, project, objects, None)
    (project / "src/part1/f1.txt").unlink()
    (project / "new").mkdir()
    (project / "new/file.txt").write_text("new\n")
    second = snapshot(store, project, objects, first)
    folder = tmp_path / "checkout"
    folder.mkdir()
    moving = TreeFolder(folder, objects, in_git=False)
    with moving.at(first.tree):
        kept = (folder / "src/part2/f2.txt").stat()
    with moving.at(second.tree):
        assert not (folder / "src/part1/f1.txt").exists()
        assert (folder / "new/file.txt").read_text() == "new\n"
        assert (folder / "src/part2/f2.txt").stat().st_ino == kept.st_ino
    with moving.at(first.tree):
        assert not (folder / "new").exists()
        assert (folder / "src/part1/f1.txt").exists()


@pytest.mark.parametrize("ours", ["changed", "deleted", "same", "other"])
def test_a_merge_of_trees_gives_the_result_and_the_conflicts_of_a_workspace(
    project: Path, store: SqliteStore, tmp_path: Path, ours: str
):
    objects = machine(tmp_path / "here")
    base = snapshot(store, project, objects, None)
    spaces = Workspaces(project)
    child = spaces.open_child("s1", write_set=["src/**"])
    (child.path / "src/part1/f1.txt").write_text("by the step\n")
    file = project / "src/part1/f1.txt"
    if ours == "deleted":
        file.unlink()
    elif ours == "other":
        (project / "src/part2/f2.txt").write_text("by the user\n")
    else:
        file.write_text("by the user\n" if ours == "changed" else "by the step\n")
    now = snapshot(store, project, objects, base)
    content = objects.put("blob", b"by the step\n")
    theirs = objects.put_files(
        {**objects.files(base.tree), "src/part1/f1.txt": FileState(FILE, content)}, base.tree
    )
    expected = spaces.merge(child, ["src/**"])
    merged, tree = merge_trees(objects, base.tree, now.tree, theirs, ["src/**"])
    assert merged.conflicts == expected.conflicts
    assert [one.path for one in merged.changes] == [one.path for one in expected.changes]
    assert merged.applied == expected.applied
    if not expected.conflicts:
        result, _ = spaces.capture(objects)
        assert objects.files(tree) == result
    spaces.close(child)


def hostile(objects: TreeObjects, name: bytes, mode: bytes, content: bytes) -> str:
    """A commit of a tree that git and Fanfold would never make."""
    blob = objects.put("blob", content)
    tree = objects.put("tree", b"%s %s\0" % (mode, name) + bytes.fromhex(blob))
    return objects.put_commit(tree)


@pytest.mark.parametrize(
    ("name", "mode", "content"),
    [
        (b".git", b"100644", b"gitdir: /etc"),
        (b".GIT", b"100644", b"gitdir: /etc"),
        (b".fanfold", b"100644", b"x"),
        (b"..", b"100644", b"x"),
        (b"../../etc/cron.d/x", b"100644", b"x"),
        (b"/etc/passwd", b"100644", b"x"),
        (b"out", b"120000", b"/etc/passwd"),
        (b"out", b"120000", b"../../secret"),
        (b"module", b"160000", b"x"),
    ],
)
def test_a_hostile_pack_is_refused_and_no_file_of_it_is_written(
    tmp_path: Path, name: bytes, mode: bytes, content: bytes
):
    sender, receiver = machine(tmp_path / "sender"), machine(tmp_path / "receiver")
    commit = hostile(sender, name, mode, content)
    listed = sender.git(["rev-list", "--objects", commit])[1] if mode != b"160000" else commit.encode()
    names = b"\n".join(line.split()[0] for line in listed.splitlines())
    pack = sender.git(["pack-objects", "-q", "--stdout"], stdin=names + b"\n")[1]
    with pytest.raises(WorldError, match="the pack was refused"):
        receiver.unpack(commit, pack)
    assert not receiver.is_complete(commit)


def test_git_gets_all_of_a_large_pack_however_slowly_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(git, "LOOK_AFTER_S", 0.001)
    monkeypatch.setattr(git, "GIVE_UP_AFTER_S", 30.0)
    content = b"x" * 20_000_000
    assert machine(tmp_path).git(["hash-object", "--stdin"], stdin=content)[1].decode().strip() == hash_bytes(
        content
    )


@pytest.mark.parametrize("pack", [b"", b"PACK", b"PACK\0\0\0\2\0\0\0\1" + b"x" * 40])
def test_a_damaged_pack_is_refused(tmp_path: Path, pack: bytes):
    with pytest.raises(WorldError, match="the pack was refused"):
        machine(tmp_path / "receiver").unpack("0" * 40, pack)


def order(write_set: tuple[str, ...]) -> Order[Job]:
    step = Step(id="b", action=AgentBody(prompt="go").action(), posture="writer")
    return Order(
        root="r1", run="r1", path="b", attempt=1, execution=1, step=step, job=Job(), home="s",
        write_set=write_set,
    )  # fmt: skip


@pytest.mark.parametrize(("path", "code"), [("docs/x", "workspace.violation"), (".git/config", "workspace.")])
def test_a_driver_refuses_what_a_step_may_not_change_whatever_its_worker_says(
    project: Path, store: SqliteStore, tmp_path: Path, path: str, code: str
):
    driver, worker = machine(tmp_path / "driver"), machine(tmp_path / "worker")
    base = snapshot(store, project, worker, None)
    files = {**worker.files(base.tree), path: FileState(FILE, worker.put("blob", b"x"))}
    tree = worker.put_files(files, base.tree)
    blobs = Blobs(store)
    part = blobs.put_encoded(worker.pack(tree, base.tree))
    store.write([Batch(root="r1", epoch=None, blobs=blobs.take_fresh())])
    trees = RunTrees(store, "r1", driver)
    trees.note(base)
    fact = Merge(
        mode="auto", proposal="", changes=(), tree=tree, base=base.tree, packs=(StoredPack(tree, (part,)),)
    )
    merges = TreeMerges(trees, Isolation(tmp_path), blobs)
    outcome = asyncio.run(merges.merge(order(("src/**",)), Outcome("done", evidence=(fact,))))
    assert outcome.error is not None
    assert outcome.error.code.startswith(code)
    assert trees.tip == base.tree


def test_a_step_that_is_cancelled_while_it_waits_for_the_folder_leaves_it_to_the_next_one(
    project: Path, store: SqliteStore, tmp_path: Path
):
    there, folder = machine(tmp_path / "there"), tmp_path / "folder"
    trees = RunTrees(store, "r1", there)
    trees.note(snapshot(store, project, there, None))
    folder.mkdir()
    isolation = TreeIsolation(folder, trees, Blobs(store), tmp_path / "there/store.git")

    async def work() -> Outcome:
        return Outcome("done")

    async def cancel_while_waiting() -> BaseException:
        with isolation.checked_out():
            waiting = work()
            task = asyncio.create_task(isolation.perform_in_folder(order(("src/**",)), waiting))
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        waiting.close()
        return cancelled.value

    kept = asyncio.run(cancel_while_waiting())  # an error keeps the frames alive in which it was raised
    with open(folder / ".fanfold/tree.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert kept.__traceback__ is not None


def test_the_index_of_a_tree_makes_git_ignore_the_same_files(tmp_path: Path):
    project = tmp_path / "project"
    project.mkdir()
    (project / ".gitignore").write_text("*.log\n")
    (project / "tracked.log").write_text("x\n")
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    subprocess.run(["git", "add", "-f", "."], cwd=project, check=True)
    objects = machine(tmp_path / "here")
    files, in_git = Workspaces(project).capture(objects)
    assert (sorted(files), in_git) == ([".gitignore", "tracked.log"], True)
    tree = objects.put_files(files)
    folder = tmp_path / "checkout"
    folder.mkdir()
    with TreeFolder(folder, objects, in_git=in_git).at(tree):
        (folder / "other.log").write_text("ignored\n")
        assert Workspaces(folder, store=tmp_path / "here/store.git").capture(objects)[0] == files
