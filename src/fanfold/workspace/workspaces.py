"""Workspaces of one project: snapshots for isolated steps, and the merges of their changes.

    spaces = Workspaces(project)
    spaces.recover()                                       # once, when the project is opened
    child = spaces.open_child("s1", write_set=["src/**"])  # a snapshot of the project tree as it is now
    ...                                                    # the step works in child.path
    merged = spaces.merge(child, ["src/**"], "auto")       # merges atomically, or reports why not
    spaces.close(child)                                    # deletes the step workspace

Rules
* Every method is safe for use by any thread and next to other processes. Methods that read or write the
  project tree hold the workspace lock. All methods may block: never call one from an event loop.
* `merge` returns its outcome as data. Violations and conflicts leave the project tree unchanged and raise no
  exception. Exceptions mean that the disk or git failed.
* A merge is recorded in the folder of the step workspace before it is reported. A repeated merge, also by a
  process that took the session over, returns the same result and changes nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from fanfold.errors import WorldError
from fanfold.process_identity import this_process
from fanfold.project_files import Closing, write_whole
from fanfold.workspace import changes as overlay
from fanfold.workspace import children, layout, sandbox, sandbox_policy
from fanfold.workspace import layout as trash
from fanfold.workspace import receipts as disputes
from fanfold.workspace.bases import Base, Bases
from fanfold.workspace.beneath import open_top
from fanfold.workspace.changes import Change, WriteViolation, behind_links, violations
from fanfold.workspace.children import Child, SnapshotRecord
from fanfold.workspace.guard import REFUSED, WorkspaceWatch
from fanfold.workspace.ignored import PATTERNS, Ignoring, may_change_dependency, own_environment
from fanfold.workspace.layout import Layout, find_repository, read_kept
from fanfold.workspace.merge import (
    LINK,
    FileState,
    LayeredContent,
    MergeResult,
    Objects,
    RecoveryResult,
    Revision,
    StoredContent,
    TreeContent,
    revise,
    state_at,
)
from fanfold.workspace.project_tree import Arriving, ProjectTree
from fanfold.workspace.receipts import (
    Dispute,
    Proposal,
    Proposals,
    Receipts,
    Reversal,
    draw_diff,
    keep_content,
)
from fanfold.workspace.sandbox_policy import ExtraMounts, Policy, ProcessLimits
from fanfold.workspace.scan import SnapshotLimits

if TYPE_CHECKING:
    from fanfold.workspace.delivery import Deliveries
    from fanfold.workspace.transport import TreeObjects

Mode: TypeAlias = Literal["auto", "propose", "discard"]
PREPARED = "tree"
LOCK_FILES = frozenset(
    """package-lock.json npm-shrinkwrap.json yarn.lock pnpm-lock.yaml bun.lock uv.lock poetry.lock pdm.lock
    Pipfile.lock requirements.txt Cargo.lock Gemfile.lock composer.lock go.sum mix.lock""".split()
)
"""The files that decide which dependencies a tree needs."""
SETUP_FILES = LOCK_FILES | {PATTERNS}
MERGED = "merged.json"
"""The file in the folder of a step workspace that records its merge result."""
CLOSE_S = 0.02
"""Seconds that closing a step workspace may spend on deleting files."""


class Workspaces:
    """The workspaces of one project."""

    def __init__(
        self,
        project: Path,
        limits: SnapshotLimits | None = None,
        include: Iterable[str] = (),
        store: Path | None = None,
        setup: Sequence[str] = (),
    ) -> None:
        """Open them; `include` are ignored files that belong to snapshots, because the user named them.

        `store` is the folder of an object store that several projects share. `setup` is the user's command
        that makes ignored files for snapshots, such as dependencies.
        """
        self._setup = tuple(setup)
        self._layout = Layout(project)
        if store is not None:
            self._layout.store = store
        self._layout.prepare()
        self._limits = limits or SnapshotLimits()
        self._objects = Objects(self._layout.store, self._layout.project)
        self._objects.prepare()
        self._ignoring = Ignoring(self._layout.project, self._layout.store, include)
        self._bases = Bases(self._layout, self._ignoring, self._limits)
        self._proposals = Proposals(self._layout, self._objects)
        self.receipts = Receipts(self._layout, self._objects)
        self._parent = ProjectTree(self._layout, self._objects, self._bases, self.receipts)
        self.remains = WorkspaceRemains(
            self._layout, self._bases, self._ignoring, self._objects, self._proposals, self.receipts
        )

    @property
    def project(self) -> Path:
        """The path of the project tree, with all links resolved."""
        return self._layout.project

    def open_child(
        self,
        session_id: str,
        *,
        read_only: bool = False,
        write_set: Sequence[str] | None = None,
        origin: str = "",
        epoch: int = 0,
        asked_ns: int | None = None,
        base: Base | None = None,
        prepares: bool = False,
    ) -> Child:
        """Open a workspace for one session: a snapshot of the current project tree, or of `base`.

        An older workspace of the session is deleted. Raises `workspace.taken_over` if a live process owns the
        workspace with a higher `epoch`. `origin` is the purpose of the workspace; garbage collection decides
        by this name whether it may be deleted. `asked_ns` is a time (`time.monotonic_ns`), by default now.
        Any state of the project tree since that time may be used. `prepares`: the setup command runs in it.
        """
        asked_ns = time.monotonic_ns() if asked_ns is None else asked_ns
        folder = self._layout.child(session_id)
        kept = None if write_set is None else tuple(write_set)
        with self._parent.whole():
            if folder.exists():
                children.check_turn(folder, epoch)
                self.remains.throw_away(folder)
            base = base or self._bases.current(asked_ns)
            prepared = None if prepares else self.prepared(base)
            record = SnapshotRecord(
                session=session_id, base=base.id, read_only=read_only, write_set=kept,
                owner=str(this_process()), origin=origin, epoch=epoch, prepared=str(prepared or ""),
                prepares=prepares,
            )  # fmt: skip
            try:
                return children.make(folder, record, base, self._ignoring, self._linked())
            except BaseException:
                self.remains.throw_away(folder)
                raise

    def prepared(self, base: Base) -> Path | None:
        """Return the folder with what the setup command made for a base; None if it has to run."""
        if not self._setup:
            return None
        folder = self._layout.prepared / self._setup_key(base) / PREPARED
        return folder if folder.is_dir() else None

    def _setup_key(self, base: Base) -> str:
        """Hash what decides about a new setup: its words, and lock files or else the whole base."""
        names = [path for path in base.manifest.files if path.rpartition("/")[2] in SETUP_FILES]
        has_locks = any(path.rpartition("/")[2] in LOCK_FILES for path in names)
        with base.opened() as tree:
            states = [(path, state_at(tree.at(path), path)) for path in sorted(names)]
        named = [(path, state.oid) for path, state in states if state is not None] if has_locks else base.id
        return sha256(repr((self._setup, named)).encode()).hexdigest()[:32]

    def keep_prepared(self, child: Child) -> None:
        """Keep what the setup command made in a workspace, and delete the workspace. Its programs have ended.

        Raises if the command changed files that git does not ignore.
        """
        changes = child.changes()
        if changes:
            names = ", ".join(change.path for change in changes[:5])
            message = f"the setup command changed files that git does not ignore: {names}"
            raise WorldError(
                "workspace.setup", message, hint="the command may only create files that git ignores"
            )
        target = self._layout.prepared / self._setup_key(child.base)
        with self._layout.lock():
            child.require_held()
            self._detach(child)
            made = self._layout.scratch / f"{this_process()}_{os.urandom(8).hex()}"
            made.mkdir(mode=0o700)
            overlaid = child.method.startswith("overlay")
            os.rename(child.folder / ("upper" if overlaid else "workspace"), made / PREPARED)
            for path in () if overlaid else (*child.base.manifest.files, *child.points):
                with suppress(OSError):  # a folder that the command made in the place of a link
                    (made / PREPARED / path).unlink(missing_ok=True)
            with suppress(OSError):  # another process made it meanwhile
                os.rename(made, target)
            self.remains.throw_away(child.folder)
            self.remains.prune_prepared(target)

    def open_disputed(self, session_id: str, source: Child) -> tuple[Child, Dispute]:
        """Open a workspace of the current project tree that contains the unresolved conflicts of `source`."""
        was = source.record
        child = self.open_child(session_id, write_set=was.write_set, origin=was.origin, epoch=was.epoch)
        try:
            dispute = disputes.lay_out(source, child, self._objects)
            write_whole(child.folder / disputes.NOTE, msgspec.json.encode(dispute))
        except BaseException:
            self.close(child)
            raise
        return child, dispute

    def unsettled(self, child: Child, dispute: Dispute) -> list[str]:
        """Return the conflicts that are still unresolved, and remove the helper files of the dispute."""
        disputes.clear(child, dispute)
        return disputes.unsettled(child, dispute, self._objects)

    def find_child(self, session_id: str, epoch: int = 0) -> Child | None:
        """Return the workspace an earlier process left, or None; raises as `open_child`."""
        folder = self._layout.child(session_id)
        with self._layout.lock():
            found = children.find(folder, self._bases)
            if found is None:
                return None
            record, base = found
            children.check_turn(folder, epoch)
            same_boot = record.maker is not None and record.maker.is_of_this_boot()
            if record.method.startswith("overlay") and not same_boot:
                return None  # after a reboot, the files of the overlay may never have reached the disk
            return children.attach(folder, record, base, self._ignoring, epoch, self._linked())

    def _linked(self) -> Path | None:
        """The project, if workspaces have links to its git and dependency folders; see `children.make`."""
        levels = sandbox.detect(self.project)
        return self.project if levels.landlock.available and not levels.bubblewrap.available else None

    def watch(self) -> WorkspaceWatch:
        """Start to watch the project tree for a shared step; see its `changes()`."""
        with self._parent.whole():
            name = self._bases.newest_name()
            try:
                base = self._bases.get(name) if name else None
            except FileNotFoundError:
                base = None
            return WorkspaceWatch(self._layout, self._ignoring, self._limits, base)

    def policy(
        self,
        child: Child | None,
        *,
        read_only: bool = False,
        network: bool = False,
        environment: Mapping[str, str] | None = None,
        limits: ProcessLimits | None = None,
        rooms: ExtraMounts | None = None,
        points: Mapping[str, bool] | None = None,
        write_set: Sequence[str] = (),
    ) -> Policy:
        """Return the sandbox policy of a command in a step workspace, or in the shared workspace without one.

        `points` are the protected paths that a watch of the shared workspace found; without it, the workspace
        is scanned. Dependency folders are read-only, but writable in the shared workspace if the write-set
        names them. The environment that Fanfold itself runs from is always read-only, because files written
        there would run outside the sandbox.
        """
        project, own = self.project, own_environment(self.project)
        mounted = dict(child.points if child else self.watch().points if points is None else points)
        if own:
            mounted[own] = True
        entrance = child.entrance if child else None
        repository = find_repository(project)
        outside: list[Path] = []
        if (
            repository is not None and repository.top == project
        ):  # git folders of this work tree outside of it
            folders = dict.fromkeys((repository.common, repository.folder))
            outside = [folder for folder in folders if not folder.is_relative_to(project)]
        return Policy(
            project=project,
            workspace=child.path if child else project,
            place=child.place if child else project,
            scratch=self._layout.scratch,
            namespaces=entrance.namespaces if entrance else None,
            read_only=read_only or (child is not None and child.read_only),
            network=network,
            environment=dict(environment or {}),
            points=mounted,
            writable=tuple(path for path in mounted if may_change_dependency(project, path, write_set)),
            repositories=tuple(map(str, outside)),
            path=os.environ.get("PATH", os.defpath),
            home=Path.home(),
            rooms=rooms or ExtraMounts(),
            limits=limits or ProcessLimits(),
        )

    def home_of(self, session_id: str, origin: str, earlier: str = "") -> Path:
        """Return the private home folder of a session's agent. A new one is a copy of `earlier`, if given."""
        return children.open_home(self._layout, session_id, origin, earlier)

    # -------------------------------------------------------------------- trees of other machines

    def capture(self, objects: TreeObjects) -> tuple[dict[str, FileState], bool]:
        """Store the project tree; return its files without links out, and whether git has it."""
        with self._parent.whole():
            base = self._bases.current(time.monotonic_ns())
            found: dict[str, FileState] = {}
            with base.opened() as tree:
                content = LayeredContent(tree)
                for path in base.manifest.files:
                    state = state_at(tree.at(path), path)
                    if state is None:
                        continue
                    found[path] = state
                    if not objects.has(state.oid):
                        content.keep(path, state, objects)
        for path, state in [(path, state) for path, state in found.items() if state.mode == LINK]:
            if objects.leads_out(path, state, found):
                del found[path]
        return found, self._ignoring.has_git()

    def bring(
        self, name: str, base: Mapping[str, FileState], files: Mapping[str, FileState], source: TreeObjects
    ) -> MergeResult:
        """Merge the differences between two trees into the project tree. `name` is their origin."""
        added = self.add_proposal(f"pull-{name}", base, files, source, None, name)
        if not added.proposal:
            return added
        merged = self.apply(added.proposal)
        if not merged.ok:
            self._proposals.drop(added.proposal)
        return merged

    def add_proposal(
        self,
        session: str,
        base: Mapping[str, FileState],
        files: Mapping[str, FileState],
        source: TreeObjects,
        write_set: Sequence[str] | None,
        origin: str,
    ) -> MergeResult:
        """Store the differences between two trees as a proposal; without one if there are violations."""
        from fanfold.workspace.transport import changes_between

        changes, revision = changes_between(source, base, files)
        bad = tuple(violations(changes, write_set, source.look(files)))
        if bad or not changes:
            return MergeResult(changes, violations=bad)
        for file in revision.files:
            for state in (file.before, file.after):
                if state is not None:
                    self._objects.put("blob", source.get(state.oid))
        allowed = None if write_set is None else tuple(write_set)
        proposal = self._proposals.add(session, "", allowed, changes, revision, origin)
        return MergeResult(changes, proposal=proposal.id)

    def revision_of(self, child: Child) -> Revision:
        """Store the current changes of a step workspace, except those that are never merged."""
        changes = tuple(child.changes())
        with Closing(open_top(child.path)) as tree, child.base.opened() as base:
            never = {row.path for row in violations(changes, None, tree)}
            revision = revise([change for change in changes if change.path not in never], base, tree)
            keep_content(revision, LayeredContent(base), TreeContent(tree), self._objects)
        return revision

    def take_proposal(self, proposal_id: str) -> Revision:
        """Return the revision of a proposal and drop the proposal. Its content stays."""
        revision = self._proposals.get(proposal_id).revision
        self._proposals.drop(proposal_id)
        return revision

    # ------------------------------------------------------------------------------ merging

    def strays(self, child: Child, write_set: Sequence[str]) -> tuple[WriteViolation, ...]:
        """Return the changes of a step workspace that its write-set does not allow."""
        with Closing(open_top(child.path)) as tree:
            return tuple(violations(tuple(child.changes()), () if child.read_only else write_set, tree))

    def merge(self, child: Child, write_set: Sequence[str] | None = None, mode: Mode = "auto") -> MergeResult:
        """Merge the changes of a step workspace, store them as a proposal, or discard them."""
        child.require_held()
        known = _recall(child.folder / MERGED)
        if known is not None:
            return known
        changes = tuple(child.changes())
        allowed = () if child.read_only else write_set
        linked: tuple[str, ...] = ()
        if changes:  # the current targets of links with protected names in the project
            files = child.base.manifest.files.items()
            with Closing(open_top(self._layout.project)) as project:
                linked = behind_links(project, [path for path, entry in files if entry.is_link])
        with Closing(open_top(child.path)) as tree:
            bad = tuple(violations(changes, allowed, tree, linked))
            if bad or mode == "discard" or not changes:
                return MergeResult(changes, violations=bad)
            content = TreeContent(tree)
            with child.base.opened() as base:
                revision = revise(changes, base, tree)
                if mode == "propose":
                    keep_content(revision, LayeredContent(base), content, self._objects)
            if mode == "propose":
                kept = None if write_set is None else tuple(write_set)
                with self._layout.lock():
                    child.require_held()
                    proposal = self._proposals.add(
                        child.session_id, child.base.id, kept, changes, revision, child.record.origin
                    )
                merged = MergeResult(changes, proposal=proposal.id)
                write_whole(child.folder / MERGED, msgspec.json.encode(merged))
                return merged
            arriving = Arriving(
                changes, revision, content, child.base, write_set, child.record.origin, child.session_id
            )
            return self._parent.put(arriving, child.folder / MERGED, child.require_held)

    def apply(self, proposal_id: str, *, dry_run: bool = False, drop: bool = True) -> MergeResult:
        """Merge a proposal into the current project tree; a dry run only returns the result.

        Without `drop`, the applied proposal is kept until it is rejected. Applying it again returns the same
        result and changes nothing. So a process that dies before it reports the merge loses nothing.
        """
        proposal = self._proposals.get(proposal_id)
        note = self._proposals.note(proposal_id)
        known = _recall(note)
        if known is not None:
            return known
        try:
            base: Base | None = self._bases.get(proposal.base)
        except FileNotFoundError:
            base = None
        arriving = Arriving(
            *(proposal.changes, proposal.revision, StoredContent(self._objects), base),
            *(proposal.write_set, proposal.origin, proposal.session),
        )
        merged = self._parent.put(arriving, note, dry_run=dry_run)
        if merged.ok and not dry_run and drop:
            self._proposals.drop(proposal_id)
        return merged

    def undo(self, receipts: Sequence[str], *, dry_run: bool = False) -> Reversal:
        """Revert merges, all of them or none, if their files were not changed since."""
        return self._parent.undo(receipts, dry_run=dry_run)

    def deliveries(self, project: Path, begin: Callable[[], None]) -> Deliveries:
        """Return the deliveries of merges; `begin` raises if a delivery must not start."""
        from fanfold.workspace.delivery import Deliveries

        return Deliveries(project, self._layout, self._objects, begin)

    def diff_merged(self, receipt_id: str) -> str:
        """Return the changes of a merge as a patch, without files that are no longer stored."""
        return self._parent.draw(self.receipts.get(receipt_id))

    def proposals(self) -> list[Proposal]:
        """Return all pending proposals, oldest first."""
        return self._proposals.all()

    def reject(self, proposal_id: str) -> None:
        """Drop a proposal."""
        self._proposals.get(proposal_id)
        self._proposals.drop(proposal_id)

    def diff(self, what: Child | str) -> str:
        """Return the changes of a step workspace, or of a proposal by its id, as a patch."""
        if isinstance(what, str):
            return draw_diff(self._proposals.get(what).revision, self._objects)
        return draw_child(what, tuple(what.changes()), self._objects)

    def content(self, side: str) -> bytes:
        """Return the content of one side of a conflict (`mode hash`)."""
        return self._objects.get(side.rpartition(" ")[2])

    # ------------------------------------------------------------------------------- closing

    def close(self, child: Child, *, keep: bool = False, why: str = "") -> None:
        """Delete a step workspace, or keep it with a reason. Only detach if another process owns it."""
        with self._layout.lock():
            if not self._detach(child):
                return
            if keep:
                record = msgspec.structs.replace(child.record, kept=why or "kept")
                write_whole(child.folder / "child.json", msgspec.json.encode(record))
                return
            self.remains.throw_away(child.folder)
            self.remains.prune_bases()
        layout.empty(self._layout.trash, budget_s=CLOSE_S)

    def leave(self, child: Child) -> None:
        """Detach from a step workspace; its files stay for the process that continues it."""
        with self._layout.lock():
            self._detach(child)

    def _detach(self, child: Child) -> bool:
        """Unmount a step workspace, with the lock held; return whether this process still owned it."""
        held = child.is_held()
        child.detach(held=held)
        return held

    def recover(self) -> RecoveryResult:
        """Finish or revert the unfinished work of dead processes; called when the project is opened."""
        with self._layout.lock():
            left = self._parent.recover()
            orphans, unmounted = self.remains.find_orphans()
            self.remains.clear_launches()
        return RecoveryResult(tuple(left), tuple(unmounted), tuple(orphans))


def _recall(note: Path) -> MergeResult | None:
    """Return the result of an earlier merge; None if there was none."""
    try:
        return msgspec.json.decode(read_kept(note), type=MergeResult)
    except FileNotFoundError:
        return None


# -----------------------------------------------------------------------------------------------------------
# Garbage collection of kept workspaces, pending proposals and other leftover files
#
# Rules
# * Inspection changes nothing: the overlay of a kept workspace is mounted temporarily, under the workspace
#   lock.
# * The workspace of a live process is neither inspected nor deleted.
# * This module does not know which files are still needed. The caller that opened a step workspace set its
#   `origin`, and the caller of the clean-up decides by that name.

Fate: TypeAlias = Literal["needed", "ages", "orphaned"]
"""The decision about the files of an origin: keep them, delete them after some time, or delete them now."""
Judge: TypeAlias = Callable[[str], Fate]


class KeptWorkspace(msgspec.Struct, frozen=True):
    """A workspace that was kept after its step: the reason, the folder of its files, and its changes."""

    session: str
    why: str
    folder: str
    changes: tuple[Change, ...]
    patch: str


class CollectedFiles(msgspec.Struct, frozen=True):
    """The files that a clean-up deleted, or would delete."""

    workspaces: tuple[str, ...] = ()
    proposals: tuple[str, ...] = ()


class WorkspaceRemains:
    """The leftover workspaces of one project, and their clean-up."""

    def __init__(
        self,
        layout: Layout,
        bases: Bases,
        ignoring: Ignoring,
        objects: Objects,
        proposals: Proposals,
        receipts: Receipts,
    ) -> None:
        self._layout = layout
        self._bases = bases
        self._ignoring = ignoring
        self._objects = objects
        self._proposals = proposals
        self._receipts = receipts

    def read(self, session_id: str, name: str) -> bytes | None:
        """Read a file in the folder of a session, even an unusable one; None if it is missing."""
        try:
            return read_kept(self._layout.child(session_id) / name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def peek(self, session_id: str) -> KeptWorkspace | None:
        """Return the content of a workspace that no process uses; None if there is none."""
        folder = self._layout.child(session_id)
        with self._layout.lock():
            found = children.find(folder, self._bases)
            if found is None:
                return None
            record, base = found
            if overlay.mounts_below(folder):
                return None  # a process uses it
            still = msgspec.structs.replace(record, read_only=True)
            child = children.lay_again(folder, still, base, self._ignoring)
            try:
                changes = tuple(child.changes())
                patch = draw_child(child, changes, self._objects)
            finally:
                child.detach()
                for left in folder.glob("work.*"):
                    trash.throw_away(left, self._layout.trash)
        # An unmounted overlay is empty; its written files are in the upper layer.
        files = "upper" if record.method.startswith("overlay") else "workspace"
        return KeptWorkspace(session_id, record.kept, str(folder / files), changes, patch)

    # ------------------------------------------------------------------------------- cleaning up

    def sessions(self) -> list[str]:
        """Return the sessions that have a folder."""
        return [folder.name for folder in self.folders()]

    def folders(self) -> list[Path]:
        return [folder for folder in self._layout.children.iterdir() if folder.is_dir()]

    def find_orphans(self) -> tuple[list[str], list[str]]:
        """Return the sessions without a live process, and those of them that were just unmounted."""
        orphans: list[str] = []
        unmounted: list[str] = []
        for folder in self.folders():
            try:
                record = children.read_record(folder)
            except WorldError:
                if not (folder / "child.json").exists():
                    self.throw_away(folder)  # its process died while it created the folder
                continue
            if record.has_live_owner:
                continue
            orphans.append(record.session)
            if overlay.mounts_below(folder):
                overlay.lift(folder / "workspace")
                unmounted.append(record.session)
        return orphans, unmounted

    def collect(
        self,
        keep_for_s: float | None = None,
        judge: Judge = lambda _: "ages",
        relied_on: Callable[[], Container[str]] = frozenset,
        *,
        dry_run: bool = False,
    ) -> CollectedFiles:
        """Delete unneeded files, or with `dry_run` only list them.

        These are old bases, trash, content without a proposal, and files of orphaned origins. With
        `keep_for_s`, also workspaces that were kept or abandoned longer ago. `relied_on` returns receipts
        that other runs still need.
        """
        with self._layout.lock():
            old = [folder for folder in self.folders() if self._may_go(folder, keep_for_s, judge)]
            dropped = [one.id for one in self._proposals.all() if judge(one.origin) == "orphaned"]
            found = CollectedFiles(tuple(sorted(folder.name for folder in old)), tuple(dropped))
            if dry_run:
                return found
            for folder in old:
                self.throw_away(folder)
            for proposal in dropped:
                self._proposals.drop(proposal)
            orphaned = [one.id for one in self._receipts.all() if judge(one.origin) == "orphaned"]
            needed = relied_on() if orphaned else ()
            for receipt in orphaned:
                if receipt not in needed:
                    self._receipts.drop(receipt)
            self.prune_bases(unused_for_s=keep_for_s)
            for name in os.listdir(self._layout.bases):
                if name.startswith("."):
                    trash.throw_away(self._layout.bases / name, self._layout.trash)
            if not self.folders():
                if keep_for_s is None:
                    self.prune_prepared()
                revised = [file for one in self._proposals.all() for file in one.revision.files]
                revised += [file for one in self._receipts.all() for file in one.files]
                sides = [side for file in revised for side in (file.before, file.after) if side is not None]
                self._objects.drop_all_but({side.oid for side in sides})
            self.clear_launches()
            self._clear_old(keep_for_s, judge)
        trash.empty(self._layout.trash)
        return found

    def clear_launches(self) -> None:
        """Remove the temporary files of launches of dead processes."""
        for scratch in sandbox.abandoned(self._layout.scratch):
            trash.throw_away(scratch, self._layout.trash)
        sandbox_policy.sweep_groups()

    def _clear_old(self, keep_for_s: float | None, judge: Judge) -> None:
        """Delete homes of agents and files moved by guards, if old or their run is deleted."""
        before = 0.0 if keep_for_s is None else time.time() - keep_for_s
        for folder, origin, begun_at in children.all_homes(self._layout):
            fate = judge(origin)
            if fate == "orphaned" or (fate == "ages" and begun_at < before):
                trash.throw_away(folder, self._layout.trash)
        refused = self._layout.private / REFUSED
        for name in os.listdir(refused) if refused.is_dir() else ():
            if os.lstat(refused / name).st_ctime < before:
                trash.throw_away(refused / name, self._layout.trash)

    def discard(self, session_id: str, *, over: bool = False) -> None:
        """Delete the folder of a session, unless it is kept or a live process uses it.

        With `over`, no process will continue it. Then a kept folder, and one that this process left, is
        deleted too.
        """
        folder = self._layout.child(session_id)
        with self._layout.lock():
            try:
                record = children.read_record(folder)
            except WorldError:
                return
            ours = over and record.maker == this_process()
            if (over or not record.kept) and (ours or not record.has_live_owner):
                self.throw_away(folder)

    def throw_away(self, folder: Path) -> None:
        overlay.lift(folder / "workspace")
        trash.throw_away(folder, self._layout.trash)

    def prune_prepared(self, newest: Path | None = None) -> None:
        """Delete what setup commands made, except the newest and what a step workspace uses."""
        used = {str(newest)}
        for folder in self.folders():
            with suppress(WorldError):
                used.add(str(Path(children.read_record(folder).prepared).parent))
        for made in self._layout.prepared.iterdir():
            if str(made) not in used:
                trash.throw_away(made, self._layout.trash)

    def prune_bases(self, unused_for_s: float | None = None) -> None:
        """Delete bases that no step workspace and no proposal uses.

        The newest base stays, because it makes the next snapshot fast. With `unused_for_s`, it is deleted too
        if it was created, or found unchanged, longer ago.
        """
        newest = self._bases.newest_name()
        used = set[str]()
        if newest is not None:
            try:
                age_s = time.time() - (self._layout.bases / newest / "manifest").stat().st_mtime
            except OSError:
                age_s = 0.0
            if unused_for_s is None or age_s <= unused_for_s:
                used.add(newest)
        used.update(proposal.base for proposal in self._proposals.all())
        for folder in self.folders():
            with suppress(WorldError):
                used.add(children.read_record(folder).base)
        used |= self._bases.roots(used)
        for name in self._bases.names():
            if name not in used:
                trash.throw_away(self._layout.bases / name, self._layout.trash)

    def _may_go(self, folder: Path, keep_for_s: float | None, judge: Judge) -> bool:
        try:
            record = children.read_record(folder)
            age_s = time.time() - (folder / "child.json").stat().st_mtime
        except (WorldError, OSError):
            return keep_for_s is not None
        fate = judge(record.origin)
        if fate == "needed" or (record.has_live_owner and not record.kept):
            return False
        return fate == "orphaned" or (keep_for_s is not None and age_s > keep_for_s)


def draw_child(child: Child, changes: tuple[Change, ...], objects: Objects) -> str:
    """Return the changes of an open step workspace as a patch; stores their content."""
    with Closing(open_top(child.path)) as tree:
        with child.base.opened() as base:
            revision = revise([change for change in changes if change.what != "special"], base, tree)
            keep_content(revision, LayeredContent(base), TreeContent(tree), objects)
        return draw_diff(revision, objects)
