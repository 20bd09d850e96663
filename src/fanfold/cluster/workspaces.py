"""The workspaces of a worker without a checkout: each step works on the tree of its run.

A folder in the worker's own home has the tree, and moves with it. Every step gets its own snapshot, also one
that shares the project tree elsewhere. At its end the worker returns the tree of the snapshot as a pack. The
driver merges it into the tree of the run, and records the new tree.

Rules
* A step starts from the tree of its run as the log has it then. So it has the merges of all steps that it
  depends on.
* The folder is private to Fanfold. Workers of one user on one machine share it, and the packs.
* The result of a finished step stays beside its snapshot. An execution that finds it returns the same.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from pathlib import Path
from time import monotonic_ns

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.engine.run_trees import RunTrees
from fanfold.errors import WorldError
from fanfold.kernel.events import Failure
from fanfold.project_files import write_whole
from fanfold.sessions.processes import finish_despite_cancel
from fanfold.steps.order import Job, Order, Outcome
from fanfold.steps.records import ArtifactsPublished, ChangedPath, LeftOut, Merge, StoredPack, WorkspaceFact
from fanfold.steps.step_workspace import Isolation, StepWorkspace
from fanfold.store.protocol import Blobs
from fanfold.workspace.children import Child
from fanfold.workspace.layout import read_kept
from fanfold.workspace.merge import MergeResult
from fanfold.workspace.transport import TreeFolder, merge_trees, parts_of
from fanfold.workspace.workspaces import Workspaces

BASE_FILE, RETURNED_FILE = "tree", "returned.json"
"""The tree that a snapshot started from, and the result of its step, in the folder of the snapshot."""


class ReturnedTree(Struct, frozen=True):
    """The files of a finished step, and the tree that it started from."""

    tree: str
    base: str


class TreeIsolation(Isolation):
    """The workspaces of one run in a worker."""

    def __init__(self, folder: Path, trees: RunTrees, blobs: Blobs, store: Path) -> None:
        super().__init__(folder)
        self._trees = trees
        self._blobs = blobs
        self._store = store
        self._folder = TreeFolder(folder, trees.objects, in_git=trees.in_git)
        self._returned: dict[str, Merge] = {}
        """For each session that has finished its work: the tree that it returns."""

    @cached_property
    def spaces(self) -> Workspaces:
        spaces = Workspaces(self.project, store=self._store)
        spaces.recover()
        return spaces

    def is_apart(self, order: Order[Job]) -> bool:
        return order.step.traits.workspace != "project"

    def check_out(self) -> None:
        """Have the latest tree of the run in the folder, for a function that reads it."""
        with self._folder.at(self._latest()):
            pass

    def _latest(self) -> str:
        tree = self._trees.tip
        self._trees.fetch(tree)
        return tree

    def _snapshot(self, order: Order[Job], epoch: int, requested_ns: int) -> StepWorkspace:
        tree = self._latest()
        with self._folder.at(tree):
            place = super()._snapshot(order, epoch, max(requested_ns, monotonic_ns()))
            if place.is_new and place.child is not None:
                write_whole(place.child.folder / BASE_FILE, tree.encode())
        return place

    async def merge(self, order: Order[Job], place: StepWorkspace) -> MergeResult:
        """Return the changes of an execution to the driver. The result has violations that prevent it."""
        child = place.child
        if child is None or order.step.merge == "discard":
            return await super().merge(order, place)

        def work() -> tuple[MergeResult, ReturnedTree | None, bytes]:
            merged = self.spaces.merge(child, order.write_set, "propose")
            place.found = child.found()
            returned = self._keep(child, merged) if merged.proposal else None
            objects = self._trees.objects
            return merged, returned, objects.pack(returned.tree, returned.base) if returned else b""

        merged, returned, pack = await finish_despite_cancel(asyncio.to_thread(work))
        if returned is not None:
            parts = tuple(map(self._blobs.put_encoded, parts_of(pack)))
            self._returned[order.session] = Merge(
                mode=order.step.merge, proposal="", changes=(), tree=returned.tree, base=returned.base,
                packs=(StoredPack(returned.tree, parts),),
            )  # fmt: skip
        return merged

    def _keep(self, child: Child, merged: MergeResult) -> ReturnedTree:
        """The tree of a finished step. It is stored beside its snapshot."""
        note = child.folder / RETURNED_FILE
        try:
            return msgspec.json.decode(read_kept(note), type=ReturnedTree)
        except FileNotFoundError:
            pass
        base = read_kept(child.folder / BASE_FILE).decode()
        files = dict(self._trees.objects.files(base))
        revision = self.spaces.take_proposal(merged.proposal)
        for file in revision.files:
            if file.after is None:
                files.pop(file.path, None)
            else:
                files[file.path] = file.after
        returned = ReturnedTree(self._trees.objects.put_files(files, base), base)
        write_whole(note, msgspec.json.encode(returned), durable=True)
        return returned

    def record_merge(self, order: Order[Job], place: StepWorkspace, merged: MergeResult) -> Failure | None:
        failure = super().record_merge(order, place, merged)
        returned = self._returned.pop(order.session, None)
        if failure is None and returned is not None:
            for at, fact in enumerate(place.evidence):
                if isinstance(fact, Merge):
                    proposal = fact.proposal if order.step.merge == "propose" else ""
                    place.evidence[at] = replace(returned, proposal=proposal, changes=fact.changes)
        return failure


# -----------------------------------------------------------------------------------------------------------
# The merges of a driver


class TreeMerges:
    """Merges the trees that workers return into the tree of one run."""

    def __init__(self, trees: RunTrees, isolation: Isolation, blobs: Blobs) -> None:
        self._trees = trees
        self._isolation = isolation
        self._blobs = blobs
        self._turn = asyncio.Lock()
        """One merge at a time. No other task runs between its end and the record of its event."""

    async def merge(self, order: Order[Job], outcome: Outcome) -> Outcome:
        """The outcome of a step after the merge of its tree, or with the conflicts that prevent it."""
        returned = next((fact for fact in outcome.evidence if isinstance(fact, Merge) and fact.tree), None)
        if returned is None:
            return outcome
        rest = tuple(fact for fact in outcome.evidence if fact is not returned)
        async with self._turn:
            place = StepWorkspace("", None)
            try:
                merged, fact, pack = await finish_despite_cancel(
                    asyncio.to_thread(self._merge, order, returned)
                )
            except WorldError as error:
                failure = order.failure("violation", error.code, error.message, retryable=False)
                return Outcome(error=failure, usage=outcome.usage, evidence=_without_files(rest))
            failed = self._isolation.record_merge(order, place, merged)
            if failed is not None:
                evidence = (*_without_files(rest), *place.evidence)
                return Outcome(error=failed, usage=outcome.usage, evidence=evidence)
            if pack:
                parts = tuple(map(self._blobs.put_encoded, parts_of(pack)))
                fact = replace(fact, packs=(StoredPack(fact.tree, parts),))
            self._trees.note(fact)
            return replace(outcome, evidence=(*rest, fact))

    def _merge(self, order: Order[Job], returned: Merge) -> tuple[MergeResult, Merge, bytes]:
        """Merge a tree; return the result, its event and the pack that the event names."""
        trees, objects = self._trees, self._trees.objects
        tip = trees.tip
        for pack in returned.packs:
            if pack.tree != returned.tree:
                raise WorldError("workspace.bad_pack", "a worker returned a pack of another tree")
        trees.note(replace(returned, proposal="returned"))
        for tree in (tip, returned.base, returned.tree):
            trees.fetch(tree)
        merged, tree = merge_trees(objects, returned.base, tip, returned.tree, order.write_set)
        changes = tuple(ChangedPath(change.path, change.kind) for change in merged.changes)
        if order.step.merge == "propose":
            return replace(merged, applied=()), replace(returned, changes=changes), b""
        fact = replace(returned, tree=tree, base=tip, packs=(), changes=changes)
        return merged, fact, objects.pack(tree, tip) if tree != tip else b""


def _without_files(evidence: tuple[WorkspaceFact, ...]) -> tuple[WorkspaceFact, ...]:
    """The events of a step whose files are not merged: it has published nothing."""
    return tuple(fact for fact in evidence if not isinstance(fact, ArtifactsPublished | LeftOut))
