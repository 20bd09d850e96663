"""The tree of a run: the files that its steps work on, as git packs in the store of the project.

A run of a cluster starts from a snapshot of the user's folder. Its tree changes with each merge. So workers
need no checkout, and the user's folder changes only when the user pulls.

Rules
* The log names every tree and its packs. The event of a merge and its pack are one transaction.
* A pack contains what its base lacks. The first event about trees names all packs of the snapshot, also those
  of earlier runs that it builds on, so that none is deleted before this run.
* An object store on this machine has the trees that were needed here. Nothing is fetched twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from fanfold.agents.entries import Entry
from fanfold.errors import WorldError
from fanfold.kernel.events import Evidence, event_of
from fanfold.sessions.log import read_entries
from fanfold.steps.records import Merge, RunTreeStored, StoredPack, WorkspaceFact, workspace_fact
from fanfold.store.protocol import Batch, Blobs, Store
from fanfold.workspace.layout import make_folder
from fanfold.workspace.transport import MAX_PACK_BYTES, PART_BYTES, TreeObjects, parts_of
from fanfold.workspace.workspaces import Workspaces

MAX_CHAIN = 32
"""Packs of earlier runs that a snapshot may build on. Then a snapshot is stored whole again."""
MAX_BATCH = 16
"""Parts that one transaction writes."""


def trees_folder(home: Path, project: str) -> Path:
    """The folder of this user with trees of one project in a shared database."""
    folder = home / "trees" / sha256(project.encode()).hexdigest()[:16]
    folder.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_folder(folder.parent)
    make_folder(folder)
    return folder


def open_objects(folder: Path) -> TreeObjects:
    """The object store in a folder of trees."""
    make_folder(folder / "store.git")
    objects = TreeObjects(folder / "store.git", folder)
    objects.prepare()
    return objects


class RunTrees:
    """The trees of one run, as its log names them."""

    def __init__(self, store: Store, root: str, objects: TreeObjects) -> None:
        self.objects = objects
        self.start = ""
        """The snapshot with which the run started; empty until the log was read."""
        self.tip = ""
        """The tree of the run after all merges that were read."""
        self.in_git = False
        self._store = store
        self._root = root
        self._seen = 0
        self._made: dict[str, tuple[str, StoredPack]] = {}
        """Each tree with the tree that its pack builds on."""
        self._next: dict[str, str] = {}
        self.merges: dict[tuple[str, str], list[tuple[str, str]]] = {}
        """By run and step: the trees before and after each merge or proposal."""

    def read(self) -> None:
        """Read the events that are new."""
        for envelope in self._store.tree(self._root, self._seen):
            self._seen = envelope.tree_seq
            if envelope.type == "workspace_event":
                data = event_of(envelope).data
                if isinstance(data, Evidence):
                    self.note(workspace_fact(data.data), envelope.run_id)

    def note(self, fact: WorkspaceFact, run: str = "") -> None:
        """Add what an event of a run names."""
        if isinstance(fact, RunTreeStored):
            base = ""
            for pack in fact.packs:
                self._made[pack.tree] = base, pack
                base = pack.tree
            self.start = self.tip = fact.tree
            self.in_git = fact.in_git
        elif isinstance(fact, Merge) and fact.tree:
            self.merges.setdefault((run, fact.step), []).append((fact.base, fact.tree))
            for pack in fact.packs:
                self._made[pack.tree] = fact.base, pack
            if not fact.proposal and fact.tree != fact.base:
                self._next[fact.base] = fact.tree
        while self.tip in self._next:
            self.tip = self._next[self.tip]

    def fetch(self, tree: str) -> None:
        """Have a tree with all its content in the object store of this machine. Blocks."""
        missing: list[StoredPack] = []
        while tree and not self.objects.is_complete(tree):
            if tree not in self._made:
                raise WorldError("workspace.no_tree", f"run {self._root} has no tree {tree}")
            tree, pack = self._made[tree]
            missing.append(pack)
        for pack in reversed(missing):
            if len(pack.parts) * PART_BYTES > MAX_PACK_BYTES:
                raise WorldError("workspace.bad_pack", f"the pack of {pack.tree} is too large")
            self.objects.unpack(pack.tree, b"".join(map(self._store.blob, pack.parts)))

    def entries(self, session: str) -> list[Entry]:
        """The log of a session of the run."""
        return read_entries(self._store, session)


def store_snapshot(
    store: Store, blobs: Blobs, root: str, spaces: Workspaces, objects: TreeObjects, earlier: Sequence[str]
) -> tuple[RunTreeStored, str]:
    """Add a snapshot of the project's folder to the next commit of a new run.

    It lacks files that other machines refuse, such as those of Fanfold in a lower folder. It builds on the
    snapshot of the first of the `earlier` runs that has one. Return also the id of that run, which must still
    exist when the event is written.
    """
    there, in_git = spaces.capture(objects)
    files = {path: state for path, state in there.items() if not objects.problem(path, state, there)}
    for run in earlier:
        last = next(_snapshots(store, run), None)
        if last is not None:
            break
    else:
        last, run = None, ""
    base = ""
    if last is not None and len(last.packs) < MAX_CHAIN:
        known = RunTrees(store, run, objects)
        known.note(last)
        known.fetch(last.tree)
        base = last.tree
        if objects.files(base) == files:
            return RunTreeStored(tree=base, packs=last.packs, in_git=in_git), run
    tree = objects.put_files(files, base)
    parts = parts_of(objects.pack(tree, base))
    names = [blobs.put_encoded(part) for part in parts]
    if len(parts) > MAX_BATCH:
        fresh = blobs.take_fresh()
        for at in range(0, len(fresh), MAX_BATCH):
            store.write([Batch(root=root, epoch=None, blobs=fresh[at : at + MAX_BATCH])])
    before = last.packs if last is not None and base else ()
    packs = (*before, StoredPack(tree, tuple(names)))
    return RunTreeStored(tree=tree, packs=packs, in_git=in_git), run if base else ""


def _snapshots(store: Store, root: str) -> Iterator[RunTreeStored]:
    """The snapshot that the log of a run begins with, if it has one."""
    for envelope in store.tree(root):
        if envelope.type == "workspace_event":
            data = event_of(envelope).data
            fact = workspace_fact(data.data) if isinstance(data, Evidence) else None
            if isinstance(fact, RunTreeStored):
                yield fact
        if envelope.tree_seq >= 2:
            return  # it is the second event
