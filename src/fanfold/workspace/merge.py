"""Three-way merges of a base, the current project tree, and a revision.

Rules
* If the project tree still has the files that the revision started from, the revision's files are the result.
  No tree is built, and only changed files cost time. Git would return the same: it searches for renames only
  among changed paths, and directory renames are disabled.
* Otherwise git merges all paths that either side changed: `merge-tree` on synthetic commits in the private
  store. A clean result is applied. Otherwise every conflict is reported as data and nothing is applied.
* The same change on both sides is not a conflict.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from fanfold.errors import BugError, WorldError
from fanfold.project_files import Closing, write_whole
from fanfold.workspace import git
from fanfold.workspace.beneath import OpenLayers, PathProblem, git_mode, open_folder, spot_beneath
from fanfold.workspace.changes import Change, WriteViolation
from fanfold.workspace.layout import make_folder, read_kept

# -----------------------------------------------------------------------------------------------------------
# The private object store, in git's format
#
# Fanfold writes blobs, trees and commits here itself (one file each, like git), so that git can compute
# merges and diffs. The store and the user's repository do not refer to each other. Attributes that convert
# text are disabled: merges work on bytes.

CHUNK = 1024 * 1024
LEVEL = 1
_ATTRIBUTES = "* !text !eol !crlf !ident !filter !working-tree-encoding !merge !diff !conflict-marker-size\n"
_CONFIG = """\
[core]
\trepositoryformatversion = 0
\tbare = true
\tautocrlf = false
\tprecomposeunicode = false
[merge]
\tdirectoryRenames = false
\trenameLimit = 5000
\tconflictStyle = merge
[gc]
\tauto = 0
"""
_OWN_FILES = {
    "info/attributes": _ATTRIBUTES.encode(),
    "config": _CONFIG.encode(),
    "HEAD": b"ref: refs/heads/none\n",
}


LINK = 0o120000
"""Git's mode of a link."""


class FileState(NamedTuple):
    """The state of a path: git's mode and the hash of the content."""

    mode: int
    oid: str


class Objects:
    """Stores objects by hash, in git's format."""

    def __init__(self, folder: Path, project: Path, *, published: bool = False) -> None:
        """Open an object store; with `published`, the store of a user's repository, written durably."""
        self._folder = folder
        self._project = project
        self._published = published

    def prepare(self) -> None:
        """Create the store if it is missing, and restore the files that configure git."""
        for name in ("objects", "refs", "info"):
            make_folder(self._folder / name)
        for name, text in _OWN_FILES.items():
            file = self._folder / name
            try:
                right = read_kept(file) == text
            except OSError:
                right = False
            if not right:
                write_whole(file, text)

    def put(self, kind: str, data: bytes) -> str:
        """Store an object and return its hash."""
        header = b"%s %d\0" % (kind.encode(), len(data))
        oid = hashlib.sha1(header + data, usedforsecurity=False).hexdigest()
        if not self._file(oid).exists():
            self._write(oid, zlib.compress(header + data, LEVEL))
        return oid

    def put_file(self, handle: int) -> str:
        """Store the content of an open file of any size and return its hash."""
        oid = hash_file(handle)
        if self._file(oid).exists():
            return oid
        packing = zlib.compressobj(LEVEL)
        parts = [packing.compress(b"blob %d\0" % os.fstat(handle).st_size)]
        os.lseek(handle, 0, os.SEEK_SET)
        while data := os.read(handle, CHUNK):
            parts.append(packing.compress(data))
        parts.append(packing.flush())
        self._write(oid, b"".join(parts))
        return oid

    def get(self, oid: str) -> bytes:
        """Return the content of an object; its hash is verified."""
        try:
            whole = zlib.decompress(read_kept(self._file(oid)))
        except (OSError, zlib.error) as error:
            raise WorldError("workspace.damaged", f"object {oid} cannot be read: {error}") from error
        if hashlib.sha1(whole, usedforsecurity=False).hexdigest() != oid:
            raise WorldError("workspace.damaged", f"object {oid} does not match its name (its hash)")
        return whole.partition(b"\0")[2]

    def put_tree(self, files: Mapping[str, FileState]) -> str:
        """Store a tree of these files and return its hash."""
        names: dict[str, FileState] = {}
        below: dict[str, dict[str, FileState]] = {}
        for path, state in files.items():
            first, slash, rest = path.partition("/")
            if slash:
                below.setdefault(first, {})[rest] = state
            else:
                names[first] = state
        entries: list[tuple[bytes, bytes]] = []
        for name, state in names.items():
            raw = os.fsencode(name)
            entries.append((raw, b"%o %s\0" % (state.mode, raw) + bytes.fromhex(state.oid)))
        for name, inner in below.items():
            raw = os.fsencode(name)
            # Git sorts a folder as if its name ended in a slash.
            entries.append((raw + b"/", b"40000 %s\0" % raw + bytes.fromhex(self.put_tree(inner))))
        return self.put("tree", b"".join(line for _, line in sorted(entries)))

    def put_commit(self, tree: str, parents: tuple[str, ...] = ()) -> str:
        lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
        lines += [f"{role} fanfold <fanfold@localhost> 0 +0000" for role in ("author", "committer")]
        return self.put("commit", ("\n".join(lines) + "\n\n\n").encode())

    def list_tree(self, oid: str) -> dict[str, FileState]:
        """Return all files of a tree."""
        return read_listing(self.git(["ls-tree", "-r", "-z", oid])[1])

    def has(self, oid: str) -> bool:
        return self._file(oid).exists()

    def drop_all_but(self, needed: AbstractSet[str]) -> None:
        """Delete all objects except `needed`; trees and commits are created again when they are required."""
        for folder in (self._folder / "objects").iterdir():
            for file in folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ():
                if folder.name + file.name not in needed:
                    file.unlink()

    def draw_trees(self, before: str, after: str) -> str:
        """Return the differences between two trees or commits as a patch for `git apply`."""
        options = "-r -p --binary --full-index -M --no-color --no-ext-diff --no-textconv".split()
        return self.git(["diff-tree", *options, before, after])[1].decode("utf-8", "replace")

    def git(
        self, arguments: list[str], ok: tuple[int, ...] = (0,), stdin: bytes = b"", **more: str
    ) -> tuple[int, bytes]:
        """Run git on this store with `more` variables; return its exit status and output."""
        environment = git.private_environment(self._project, self._folder) | more
        return git.run([git.program(self._project), *arguments], environment, ok=ok, stdin=stdin)

    def _file(self, oid: str) -> Path:
        return self._folder / "objects" / oid[:2] / oid[2:]

    def _write(self, oid: str, data: bytes) -> None:
        file = self._file(oid)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        if file.parent.is_symlink():
            message = f"{file.parent} is a link; objects are kept beside each other"
            raise WorldError("workspace.damaged", message)
        if self._published:
            write_whole(file, data, mode=0o444, durable=True)
        else:
            write_whole(file, data)


def read_listing(output: bytes) -> dict[str, FileState]:
    """Parse the output of `ls-tree -z`."""
    found: dict[str, FileState] = {}
    for record in output.split(b"\0")[:-1]:
        facts, _, name = record.partition(b"\t")
        mode, _, blob = facts.split()
        found[os.fsdecode(name)] = FileState(int(mode, 8), blob.decode())
    return found


def hash_file(handle: int) -> str:
    """Return git's blob hash of an open file."""
    os.lseek(handle, 0, os.SEEK_SET)
    digest = hashlib.sha1(b"blob %d\0" % os.fstat(handle).st_size, usedforsecurity=False)
    while data := os.read(handle, CHUNK):
        digest.update(data)
    return digest.hexdigest()


def hash_bytes(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


# -----------------------------------------------------------------------------------------------------------
# Revisions: the changes of a step workspace against its base, path by path
#
# A state is git's mode and hash. So a revision can be compared, merged, stored as a proposal and applied
# later without its step workspace. Content comes from the step workspace if it exists, else from the private
# store.

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PathRevision(msgspec.Struct, frozen=True):
    """The states of one path before and after; None if there is no file."""

    path: str
    before: FileState | None
    after: FileState | None


class Revision(msgspec.Struct, frozen=True):
    """All changes of a step workspace."""

    files: tuple[PathRevision, ...]
    folders_made: tuple[str, ...] = ()
    """Empty folders in the result: new ones, and folders that lost their last file."""
    folders_gone: tuple[str, ...] = ()


class Content(Protocol):
    """A source of file content."""

    def stage(self, path: str, state: FileState, folder: int, name: str, /) -> None:
        """Write the content as a new file or link into an open folder; raises if it does not match."""

    def keep(self, path: str, state: FileState, objects: Objects, /, most: int | None = None) -> None:
        """Store the content, unless it has more bytes than `most`."""


def state_at(top: int, path: str) -> FileState | None:
    """Return the state of a path beneath an open tree; None for no file, a folder, or a special file."""
    try:
        with spot_beneath(top, path) as spot:
            status = spot.status()
            if status is None:
                return None
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(spot.name, dir_fd=spot.folder)
                return FileState(0o120000, hash_bytes(os.fsencode(target)))
            if not stat.S_ISREG(status.st_mode):
                return None
            with Closing(os.open(spot.name, _READ, dir_fd=spot.folder)) as handle:
                return FileState(git_mode(os.fstat(handle).st_mode), hash_file(handle))
    except (FileNotFoundError, PathProblem):
        return None


def revise(changes: Iterable[Change], base: OpenLayers, child: int) -> Revision:
    """Return these changes as a revision, from their base and the open tree of the step workspace."""
    files: list[PathRevision] = []
    made: set[str] = set()
    gone: set[str] = set()
    for change in changes:
        if change.kind == "deleted":
            kept = _nearest(child, change.path, gone)
            if kept:
                with Closing(open_folder(child, kept)) as handle, os.scandir(handle) as entries:
                    if next(entries, None) is None:
                        made.add(kept)
        if change.what == "folder":
            (made if change.kind == "added" else gone).add(change.path)
            continue
        before = state_at(base.at(change.path), change.path) if change.kind != "added" else None
        after = state_at(child, change.path) if change.kind != "deleted" else None
        if change.kind != "deleted" and after is None:
            raise _moving(change.path)
        files.append(PathRevision(change.path, before, after))
    return Revision(tuple(files), tuple(sorted(made)), tuple(sorted(gone)))


def _nearest(tree: int, path: str, gone: set[str]) -> str:
    """Return the nearest existing folder around a path in an open tree; add missing folders to `gone`."""
    folder = path.rpartition("/")[0]
    while folder and folder not in gone:
        with suppress(FileNotFoundError, PathProblem):
            os.close(open_folder(tree, folder))
            return folder
        gone.add(folder)
        folder = folder.rpartition("/")[0]
    return ""


class TreeContent:
    """File content in an open tree: of a step workspace, or of the project."""

    def __init__(self, tree: int) -> None:
        self._tree = tree

    def _at(self, _path: str) -> int:
        return self._tree

    def stage(self, path: str, state: FileState, folder: int, name: str) -> None:
        with spot_beneath(self._at(path), path) as spot:
            if state.mode == 0o120000:
                target = os.readlink(spot.name, dir_fd=spot.folder)
                if hash_bytes(os.fsencode(target)) != state.oid:
                    raise _moving(path)
                os.symlink(target, name, dir_fd=folder)
                return
            flags = os.O_RDWR | _MAKE & ~os.O_WRONLY
            with (
                Closing(os.open(spot.name, _READ, dir_fd=spot.folder)) as handle,
                Closing(os.open(name, flags, 0o600, dir_fd=folder)) as made,
            ):
                while data := os.read(handle, CHUNK):
                    _write(made, data)
                if hash_file(made) != state.oid:
                    raise _moving(path)

    def keep(self, path: str, state: FileState, objects: Objects, most: int | None = None) -> None:
        with spot_beneath(self._at(path), path) as spot:
            if state.mode == 0o120000:
                kept = objects.put("blob", os.fsencode(os.readlink(spot.name, dir_fd=spot.folder)))
            else:
                with Closing(os.open(spot.name, _READ, dir_fd=spot.folder)) as handle:
                    if most is not None and os.fstat(handle).st_size > most:
                        return
                    kept = objects.put_file(handle)
        if kept != state.oid:
            raise _moving(path)


class LayeredContent(TreeContent):
    """File content in a base."""

    def __init__(self, base: OpenLayers) -> None:
        self._base = base

    def _at(self, path: str) -> int:
        return self._base.at(path)


class StoredContent:
    """File content in the private store."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def stage(self, _path: str, state: FileState, folder: int, name: str) -> None:
        data = self._objects.get(state.oid)
        if state.mode == 0o120000:
            os.symlink(os.fsdecode(data), name, dir_fd=folder)
            return
        with Closing(os.open(name, _MAKE, 0o600, dir_fd=folder)) as made:
            _write(made, data)

    def keep(self, _path: str, state: FileState, objects: Objects, most: int | None = None) -> None:
        if most is None:
            objects.get(state.oid)  # it is already stored; reading verifies its hash


def _write(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _moving(path: str) -> WorldError:
    hint = "something of the step is still running"
    return WorldError("workspace.changing", f'"{path}" changes while it is merged', hint=hint)


class MergeConflict(msgspec.Struct, frozen=True, order=True):
    """A path with incompatible changes on both sides. A side is `mode hash`, or None for no file."""

    path: str
    why: str
    base: str | None = None
    ours: str | None = None
    theirs: str | None = None


class MergeOutcome(msgspec.Struct, frozen=True):
    """Operations on the project tree: for each path, the required current state and the new state."""

    steps: tuple[PathRevision, ...] = ()
    conflicts: tuple[MergeConflict, ...] = ()
    stored: frozenset[str] = frozenset()
    """Paths whose content git merged; it is in the store."""


def merge_simply(revision: Revision, parent: int) -> MergeOutcome | None:
    """Return the outcome if the project tree did not change the revision's paths; None if git must merge."""
    steps: list[PathRevision] = []
    going = {file.path for file in revision.files if file.after is None}
    for file in revision.files:
        now = state_at(parent, file.path)
        if now == file.after and (now is not None or not _occupied(parent, file.path)):
            continue  # both sides made the same change
        if now != file.before:
            return None
        if file.after is not None and not _reachable(parent, file.path, going):
            return None
        if now is None and file.after is not None and _occupied(parent, file.path):
            return None
        steps.append(file)
    return MergeOutcome(tuple(steps))


def is_in_place(revision: Revision, parent: int) -> bool:
    """Return whether these paths alone decide the merge; else the whole project tree is scanned.

    A file that is gone from the project tree, or deleted by the step and changed in the project tree, may
    have moved to any path. A file may be blocked by another path.
    """
    for file in revision.files:
        now = state_at(parent, file.path)
        if now is None:
            if file.before is not None or _occupied(parent, file.path):
                return False
            if not _reachable(parent, file.path, set()):
                return False
        elif file.after is None and now != file.before:
            return False
    return True


def has_room(parent: int, path: str, going: set[str]) -> bool:
    """Return whether a new file fits at a path, once the paths in `going` are removed."""
    return _reachable(parent, path, going) and _leaves(parent, path, going)


def _leaves(parent: int, path: str, going: set[str]) -> bool:
    """Return whether the path becomes free: nothing is there, or only files that are in `going`."""
    try:
        with spot_beneath(parent, path) as spot:
            status = spot.status()
            if status is None:
                return True
            if not stat.S_ISDIR(status.st_mode):
                return path in going
            below = os.open(spot.name, _FOLDER, dir_fd=spot.folder)
    except (FileNotFoundError, PathProblem):  # `_reachable` has found a file in the way in `going`
        return True
    with Closing(below) as folder:
        names = os.listdir(folder)
    return all(_leaves(parent, f"{path}/{name}", going) for name in names)


def _reachable(parent: int, path: str, going: set[str]) -> bool:
    """Return whether every folder of the path exists or can be created."""
    at = path.find("/")
    while at > 0:
        folder = path[:at]
        try:
            with spot_beneath(parent, folder) as spot:
                status = spot.status()
        except FileNotFoundError:
            return True
        except PathProblem:
            return False
        if status is None:
            return True
        if not stat.S_ISDIR(status.st_mode):
            return folder in going
        at = path.find("/", at + 1)
    return True


def _occupied(parent: int, path: str) -> bool:
    """Return whether a non-empty folder or another non-file occupies a path."""
    try:
        with spot_beneath(parent, path) as spot:
            status = spot.status()
            if status is None or not stat.S_ISDIR(status.st_mode):
                return status is not None
            with Closing(os.open(spot.name, _FOLDER, dir_fd=spot.folder)) as below:
                return bool(os.listdir(below))
    except FileNotFoundError:
        return False
    except PathProblem:
        return True


def gather(
    revision: Revision,
    content: Content,
    ours: Mapping[str, tuple[FileState | None, FileState | None]],
    objects: Objects,
    in_base: Content,
    in_parent: Content,
) -> tuple[dict[str, FileState], dict[str, FileState], dict[str, FileState]]:
    """Return base, project tree and revision as three trees of all paths that either side changed.

    The content of these paths is stored. `ours` are the changes of the project tree since the base, as
    (before, now).
    """
    base: dict[str, FileState] = {}
    mine: dict[str, FileState] = {}
    theirs: dict[str, FileState] = {}
    for path, (before, now) in ours.items():
        if before is not None:
            in_base.keep(path, before, objects)
            base[path] = theirs[path] = before
        if now is not None:
            in_parent.keep(path, now, objects)
            mine[path] = now
    for file in revision.files:
        if file.before is not None and file.path not in base:
            in_base.keep(file.path, file.before, objects)
            base[file.path] = mine[file.path] = file.before
        theirs.pop(file.path, None)
        if file.after is not None:
            content.keep(file.path, file.after, objects)
            theirs[file.path] = file.after
    return base, mine, theirs


def merge_fully(
    base: Mapping[str, FileState],
    ours: Mapping[str, FileState],
    theirs: Mapping[str, FileState],
    objects: Objects,
) -> MergeOutcome:
    """Return the outcome of git's merge."""
    conflicts, tree, _ = merge_trees(base, ours, theirs, objects)
    if conflicts:
        return MergeOutcome(conflicts=conflicts)
    result = objects.list_tree(tree)
    steps = [
        PathRevision(path, ours.get(path), result.get(path))
        for path in sorted(ours.keys() | result.keys())
        if ours.get(path) != result.get(path)
    ]
    return MergeOutcome(tuple(steps), stored=frozenset(step.path for step in steps))


def merge_trees(
    base: Mapping[str, FileState],
    ours: Mapping[str, FileState],
    theirs: Mapping[str, FileState],
    objects: Objects,
    *options: str,
) -> tuple[tuple[MergeConflict, ...], str, tuple[str, str, str]]:
    """Return the conflicts of git's merge, the resulting tree, and the commits of ours, base and theirs."""
    root = objects.put_commit(objects.put_tree(base))
    mine, other = (objects.put_commit(objects.put_tree(side), (root,)) for side in (ours, theirs))
    arguments = [*options, "merge-tree", "--write-tree", "-z", "--messages", mine, other]
    code, output = objects.git(arguments, ok=(0, 1))
    tree, _, rest = output.partition(b"\0")
    return read_conflicts(rest) if code == 1 else (), tree.decode(), (mine, root, other)


def read_conflicts(output: bytes) -> tuple[MergeConflict, ...]:
    """Parse the output of `merge-tree -z`: entries by stage, an empty field, messages."""
    entries, _, messages = output.partition(b"\0\0")
    sides: dict[str, dict[int, str]] = {}
    for record in filter(None, entries.split(b"\0")):
        facts, _, name = record.partition(b"\t")
        mode, oid, stage = facts.decode().split()
        sides.setdefault(os.fsdecode(name), {})[int(stage)] = f"{mode} {oid}"
    why: dict[str, str] = {}
    fields = messages.split(b"\0")
    at = 0
    while at < len(fields) and fields[at].isdigit():
        count = int(fields[at])
        paths = fields[at + 1 : at + 1 + count]
        kind = fields[at + 1 + count].decode("utf-8", "replace")
        if kind.startswith("CONFLICT"):
            for path in paths:
                why.setdefault(os.fsdecode(path), kind)
        at += 3 + count
    found = [
        MergeConflict(path, why.get(path, "CONFLICT"), by.get(1), by.get(2), by.get(3))
        for path, by in sides.items()
    ]
    found += [MergeConflict(path, kind) for path, kind in why.items() if path not in sides]
    if not found:
        raise BugError("workspace.merge", f"git reported a conflict but named no file: {output[:200]!r}")
    return tuple(sorted(found, key=lambda conflict: conflict.path))


def content_of(outcome: MergeOutcome, content: Content, objects: Objects) -> Mapping[str, Content]:
    """Return the source of the content for each path."""
    stored = StoredContent(objects)
    return {step.path: stored if step.path in outcome.stored else content for step in outcome.steps}


class MergeResult(msgspec.Struct, frozen=True):
    """The result of a merge. Without violations and conflicts, mode `auto` has applied the changes."""

    changes: tuple[Change, ...] = ()
    conflicts: tuple[MergeConflict, ...] = ()
    violations: tuple[WriteViolation, ...] = ()
    proposal: str = ""
    applied: tuple[str, ...] = ()
    """The paths of the project tree that were written or removed."""
    receipt: str = ""
    """The id of the receipt, by which the merge can be shown and reverted."""

    @property
    def ok(self) -> bool:
        return not self.conflicts and not self.violations


class RecoveryResult(msgspec.Struct, frozen=True):
    """The unfinished work of earlier processes that `recover` found."""

    left: tuple[str, ...] = ()
    """Paths of an interrupted merge that were changed since; they stay as they are."""
    unmounted: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    """Sessions that have a workspace but no process."""
