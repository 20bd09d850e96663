"""The workspaces of a worker without a checkout: each step works on the tree of its run.

A folder in the worker's own home has the tree, and moves with it. Every step gets its own snapshot, also one
that shares the project tree elsewhere. At its end the worker returns the tree of the snapshot as a pack. The
driver merges it into the tree of the run, and records the new tree.

Rules
* A step starts from the tree of its run as the log has it then. So it has the merges of all steps that it
  depends on.
* The folder is private to Fanfold. Workers of one user on one machine share it, and the packs.
* After each mutating call of an agent its files are stored with the result of the call. So a session whose
  machine died continues elsewhere with its files. Other steps start again from the tree of the run.
* The result of a finished step stays beside its snapshot. An execution that finds it returns the same.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from time import monotonic_ns

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fanfold.agents.entries import SavedTree, ToolResult
from fanfold.engine.run_trees import RunTrees
from fanfold.errors import WorldError
from fanfold.kernel.events import Failure
from fanfold.project_files import write_whole
from fanfold.sessions.processes import finish_despite_cancel
from fanfold.steps.order import Job, Order, Outcome
from fanfold.steps.records import ArtifactsPublished, ChangedPath, LeftOut, Merge, StoredPack, WorkspaceFact
from fanfold.steps.step_workspace import Isolation, SaveFiles, StepWorkspace, in_thread
from fanfold.store.protocol import Blobs
from fanfold.workspace.artifacts import Artifact, open_published
from fanfold.workspace.bases import Base
from fanfold.workspace.children import Child
from fanfold.workspace.layout import OWN_FOLDER, read_kept
from fanfold.workspace.merge import MergeResult
from fanfold.workspace.transport import TreeFolder, apply_revision, merge_trees, parts_of, write_files
from fanfold.workspace.workspaces import LOCK_FILES, Workspaces

BASE_FILE, SAVED_FILE, RETURNED_FILE = "tree", "saved", "returned.json"
"""In a snapshot's folder: the tree it started from, the tree last stored, the result of its step."""
PREPARED = "prepared"
PREPARE_S = 1_800.0
MAX_SHOWN = 500


class ReturnedTree(Struct, frozen=True):
    """The files of a finished step, and the tree that it started from."""

    tree: str
    base: str


class TreeIsolation(Isolation):
    """The workspaces of one run in a worker."""

    def __init__(self, folder: Path, trees: RunTrees, blobs: Blobs, store: Path, prepare: str = "") -> None:
        super().__init__(folder)
        self._command = prepare
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

    @contextmanager
    def checked_out(self, tree: str = "") -> Iterator[str]:
        """Hold the folder at a tree, by default the latest one of the run, with its dependencies."""
        tree = tree or self._trees.tip
        self._trees.fetch(tree)
        with self._folder.at(tree):
            if self._command:
                self._prepare(tree)
            yield tree

    def _prepare(self, tree: str) -> None:
        """Run the operator's command, unless it ran here for the same lock files."""
        files = self._trees.objects.files(tree)
        locks = sorted((path, *state) for path, state in files.items() if path.split("/")[-1] in LOCK_FILES)
        key = sha256(repr((self._command, locks)).encode()).hexdigest().encode()
        note = self.project / OWN_FOLDER / PREPARED
        with suppress(FileNotFoundError):
            if read_kept(note) == key:
                return
        command = ["/bin/sh", "-c", self._command]
        try:
            done = subprocess.run(
                command, cwd=self.project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=PREPARE_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise WorldError("worker.prepare", f"--prepare did not end within {PREPARE_S:g} s") from None
        if done.returncode:
            shown = done.stdout.decode("utf-8", "replace")[-MAX_SHOWN:].strip()
            raise WorldError("worker.prepare", f"--prepare failed with status {done.returncode}: {shown}")
        write_whole(note, key)

    def _snapshot(
        self, order: Order[Job], epoch: int, requested_ns: int, base: Base | None = None
    ) -> StepWorkspace:
        saved = self._last_saved(order)
        with self.checked_out(saved.base if saved is not None else "") as tree:
            place = super()._snapshot(order, epoch, max(requested_ns, monotonic_ns()), base)
            child = place.child
            if not place.is_new or child is None:
                return place
            write_whole(child.folder / BASE_FILE, tree.encode())
            if saved is not None:
                objects = self._trees.objects
                fact = Merge(mode="auto", proposal="saved", changes=(), tree=saved.tree, base=saved.base)
                self._trees.note(replace(fact, packs=(StoredPack(saved.tree, saved.parts),)))
                self._trees.fetch(saved.tree)
                write_files(child.path, objects.files(saved.base), objects.files(saved.tree), objects)
                write_whole(child.folder / SAVED_FILE, saved.tree.encode())
            # Every mutating call that has a result also has its files.
            place.is_new = order.execution == 1 or order.step.traits.role is None
        return place

    # The files of sessions, for another machine that continues them

    def saver(self, order: Order[Job], place: StepWorkspace) -> SaveFiles | None:
        child = place.child
        if child is None or not order.write_set:
            return None

        async def save() -> SavedTree | None:
            returned = await finish_despite_cancel(asyncio.to_thread(self._save, child))
            if returned is None:
                return None
            tree, pack = returned
            return SavedTree(tree.tree, tree.base, tuple(map(self._blobs.put_encoded, parts_of(pack))))

        return save

    def _save(self, child: Child) -> tuple[ReturnedTree, bytes] | None:
        """The current files of a session as a pack; None if they are those of the last time."""
        objects = self._trees.objects
        base = read_kept(child.folder / BASE_FILE).decode()
        tree = objects.put_files(apply_revision(objects.files(base), self.spaces.revision_of(child)), base)
        note = child.folder / SAVED_FILE
        with suppress(FileNotFoundError):
            if read_kept(note).decode() == tree:
                return None
        pack = objects.pack(tree, base)
        write_whole(note, tree.encode())
        return ReturnedTree(tree, base), pack

    def _last_saved(self, order: Order[Job]) -> SavedTree | None:
        """The files with which an interrupted session continues, as its log names them."""
        if order.execution == 1 or order.step.traits.role is None:
            return None
        entries = reversed(self._trees.entries(order.session))
        return next((entry.files for entry in entries if isinstance(entry, ToolResult) and entry.files), None)

    def _find(self, order: Order[Job], stored_in: str, epoch: int) -> StepWorkspace | None:
        """The workspace of an earlier execution on this machine, unless the session continued elsewhere."""
        place = super()._find(order, stored_in, epoch)
        if place is None or place.child is None or place.stored is not None:
            return place
        saved = self._last_saved(order)
        try:
            known = read_kept(place.child.folder / SAVED_FILE).decode()
        except FileNotFoundError:
            known = ""
        if known == (saved.tree if saved is not None else ""):
            return place
        self.let_go(place)
        return None

    # The end of a step

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
            self._returned[order.session] = self._fact(order, returned, pack)
        return merged

    def _fact(self, order: Order[Job], returned: ReturnedTree, pack: bytes) -> Merge:
        tree, base = returned.tree, returned.base
        packs = (StoredPack(tree, tuple(map(self._blobs.put_encoded, parts_of(pack)))),)
        return Merge(mode=order.step.merge, proposal="", changes=(), tree=tree, base=base, packs=packs)

    async def perform_in_folder(self, order: Order[Job], work: Awaitable[Outcome]) -> Outcome:
        """Run a function in the folder itself and return the changed files. A writer has it alone."""
        holding = self.checked_out()

        def release(_tree: str) -> None:
            holding.__exit__(None, None, None)

        tree = await in_thread(holding.__enter__, release)
        held = bool(order.write_set)
        if not held:
            holding.__exit__(None, None, None)
        try:
            outcome = await work
            if not held or outcome.error is not None:
                return outcome

            def capture() -> tuple[ReturnedTree, bytes]:
                objects = self._trees.objects
                after = objects.put_files(self.spaces.capture(objects)[0], tree)
                return ReturnedTree(after, tree), objects.pack(after, tree)

            returned, pack = await finish_despite_cancel(asyncio.to_thread(capture))
            objects = self._trees.objects
            if objects.files(returned.tree) == objects.files(tree):
                return outcome
            return replace(outcome, evidence=(*outcome.evidence, self._fact(order, returned, pack)))
        finally:
            if held:
                self._folder.forget()
                holding.__exit__(None, None, None)

    def _keep(self, child: Child, merged: MergeResult) -> ReturnedTree:
        """The tree of a finished step. It is stored beside its snapshot."""
        note = child.folder / RETURNED_FILE
        with suppress(FileNotFoundError):
            return msgspec.json.decode(read_kept(note), type=ReturnedTree)
        base = read_kept(child.folder / BASE_FILE).decode()
        revision = self.spaces.take_proposal(merged.proposal)
        files = apply_revision(self._trees.objects.files(base), revision)
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


def with_artifacts(outcome: Outcome, runs: Path, run: str, blobs: Blobs) -> Outcome:
    """The outcome of a step with the content of the artifacts that it published."""
    if not outcome.has_published:
        return outcome

    def stored(one: Artifact) -> Artifact:
        with open_published(runs, run, one.path) as file:
            return replace(one, parts=tuple(map(blobs.put_encoded, parts_of(file.read()))))

    facts = tuple(
        replace(fact, files=tuple(map(stored, fact.files))) if isinstance(fact, ArtifactsPublished) else fact
        for fact in outcome.evidence
    )
    return replace(outcome, evidence=facts)
