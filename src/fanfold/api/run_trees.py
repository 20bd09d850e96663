"""Runs with a tree of their own: the snapshot at their start, and `fanfold pull`.

Rules
* `pull` merges what the run changed since the last pull into the user's folder: all of it, or nothing.
* Conflicts are data, as for proposals. After a conflict nothing has changed, and the user can pull again.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import msgspec

from fanfold.api.addresses import find_run
from fanfold.api.ownership import frozen_at_first
from fanfold.api.project import Project
from fanfold.api.run_documents import PulledChanges
from fanfold.engine.run_trees import RunTrees, open_objects, store_snapshot, trees_folder
from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.state import Node
from fanfold.project_files import write_whole
from fanfold.steps.ids import root_of, session_id
from fanfold.steps.records import ChangedPath, RunTreeStored
from fanfold.store.address import PostgresAddress
from fanfold.store.journal import Journal
from fanfold.store.protocol import Store
from fanfold.workspace.artifacts import Artifact, is_whole, open_published, write_published
from fanfold.workspace.layout import make_folder, read_kept
from fanfold.workspace.merge import MergeConflict

MAX_NAMED = 5
EARLIER_RUNS = 5
"""The latest runs among which a snapshot looks for one to build on."""


def cache_folder(project: Project) -> Path:
    """The folder of this user with the trees of a project in a shared database."""
    address = project.address
    name = address.project if isinstance(address, PostgresAddress) else str(project.folder)
    return trees_folder(project.config.home, name)


def run_folder(cache: Path, root: str, purpose: str) -> Path:
    """A folder for the tree of a run. The driver and the workers of a machine have one each."""
    folder = cache / "runs"
    for name in ("", root, purpose):
        folder = folder / name
        make_folder(folder)
    return folder


def take_snapshot(project: Project, journal: Journal, source: str) -> tuple[RunTreeStored, str]:
    """Store the project's folder as it is now for a new run; see `store_snapshot`.

    `source` is the run that is forked, if any: the snapshot builds on no other run then.
    """
    heads = [] if source else project.heads(limit=EARLIER_RUNS)
    earlier = [source] if source else [head.run_id for head in heads]
    objects = open_objects(cache_folder(project))
    snapshot, needed = store_snapshot(
        project.store, journal.blobs, journal.root, project.isolation.spaces, objects, earlier
    )
    return snapshot, needed or source


def trees_of(project: Project, root: str) -> RunTrees:
    """The trees of a run; raises `AuthorError` if the run works in the user's folder."""
    trees = RunTrees(project.store, root, open_objects(cache_folder(project)))
    trees.read()
    if not trees.start:
        raise AuthorError(
            "run.no_tree",
            f"run {root} works in the project's folder itself",
            hint="only runs of a cluster with a PostgreSQL store have their own tree",
        )
    return trees


def has_tree(project: Project, root: str) -> bool:
    """Whether a run has its own tree."""
    return bool(frozen_at_first(project, root).tree)


def pull(project: Project, run: str) -> PulledChanges:
    """Merge the changes of a run into the project's folder; raises `workspace.conflict` if it cannot."""
    root = find_run(project, run).tree.root.id
    trees = trees_of(project, root)
    spaces = project.isolation.spaces
    folder = project.memory / "workspace" / "pulled"
    make_folder(folder)
    note = folder / root
    try:
        base = read_kept(note).decode()
        trees.fetch(base)
    except (FileNotFoundError, WorldError):
        base = trees.start
        trees.fetch(base)
    trees.fetch(trees.tip)
    files = trees.objects.files
    merged = spaces.bring(root, files(base), files(trees.tip), trees.objects)
    if merged.violations:
        named = ", ".join(row.path for row in merged.violations[:5])
        raise WorldError("workspace.violation", f"run {root} changed protected files: {named}")
    if merged.conflicts:
        raise _conflicting(root, merged.conflicts)
    write_whole(note, trees.tip.encode())
    kinds = {change.path: change.kind for change in merged.changes}
    changes = [ChangedPath(path, kinds.get(path, "modified")) for path in merged.applied]
    return PulledChanges(run_id=root, tree=trees.tip, changes=changes)


def patch_of(project: Project, node: Node) -> str | None:
    """The changes of a step in the tree of its run, as a patch; None without changes."""
    trees = trees_of(project, root_of(node))
    merges = trees.merges.get((node.run.id, node.path), [])
    for _, tree in merges:
        trees.fetch(tree)
    return "".join(trees.objects.draw_trees(base, tree) for base, tree in merges) or None


def fetch_proposal(project: Project, node: Node) -> None:
    """Have the proposal of a step on this machine, which another machine made."""
    root = root_of(node)
    trees = trees_of(project, root)
    base, tree = trees.merges[node.run.id, node.path][-1]
    trees.fetch(tree)
    files, session = trees.objects.files, session_id(node.run.id, node.path, node.attempt)
    spaces = project.isolation.spaces
    if all(one.session != session for one in spaces.proposals()):
        spaces.add_proposal(session, files(base), files(tree), trees.objects, node.write_set, root)


def fetch_artifacts(store: Store, runs: Path, run: str, artifacts: Iterable[Artifact]) -> None:
    """Have the artifacts of a run on this machine that other machines published."""
    for one in artifacts:
        if not one.parts:
            continue
        try:
            with open_published(runs, run, one.path) as file:
                if is_whole(file, one.size, one.sha256):
                    continue
        except OSError:
            pass
        data = b"".join(map(store.blob, one.parts))
        if len(data) != one.size or sha256(data).hexdigest() != one.sha256:
            message = f"artifacts/{one.path} of run {run} is not what the step published"
            raise WorldError("artifact.changed", message)
        write_published(runs, run, one.path, data)


def _conflicting(root: str, conflicts: tuple[MergeConflict, ...]) -> WorldError:
    named = ", ".join(one.path for one in conflicts[:MAX_NAMED])
    more = f" and {len(conflicts) - MAX_NAMED} more" if len(conflicts) > MAX_NAMED else ""
    return WorldError(
        "workspace.conflict",
        f"the changes of run {root} conflict with the folder: {named}{more}; nothing was changed",
        hint=f"commit or move your own changes away, then: fanfold pull {root}",
        details={"conflicts": [msgspec.to_builtins(one) for one in conflicts]},
    )
