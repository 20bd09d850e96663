"""The private object store: git's format, nobody's history.

Blobs, trees and commits are written here by ourselves (a file each, as git does), so that merges and
diffs can be left to git. Nothing is borrowed from the user's repository and nothing refers to it. Attributes
that would convert text are switched off: what is merged is bytes.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

from fanfold.errors import WorldError
from fanfold.trust.project_files import write_whole
from fanfold.workspace.files import git
from fanfold.workspace.files.layout import make_folder, read_kept

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


class FileState(NamedTuple):
    """What is at a path: git's mode and the hash of the content."""

    mode: int
    oid: str


class Objects:
    """Content by hash."""

    def __init__(self, folder: Path, project: Path, *, published: bool = False) -> None:
        """`published`: the store of a repository, in which git would keep them durably and for others."""
        self._folder = folder
        self._project = project
        self._published = published

    def prepare(self) -> None:
        """Make the store where it is missing, and what git takes its orders from as we wrote it."""
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
        """Keep an object; its hash."""
        header = b"%s %d\0" % (kind.encode(), len(data))
        oid = hashlib.sha1(header + data, usedforsecurity=False).hexdigest()
        if not self._file(oid).exists():
            self._write(oid, zlib.compress(header + data, LEVEL))
        return oid

    def put_file(self, handle: int) -> str:
        """Keep an open file's content, however large."""
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
        """The content of an object; its hash is checked."""
        try:
            whole = zlib.decompress(read_kept(self._file(oid)))
        except (OSError, zlib.error) as error:
            raise WorldError("workspace.damaged", f"object {oid} cannot be read: {error}") from error
        if hashlib.sha1(whole, usedforsecurity=False).hexdigest() != oid:
            raise WorldError("workspace.damaged", f"object {oid} does not hold what its name says")
        return whole.partition(b"\0")[2]

    def put_tree(self, files: Mapping[str, FileState]) -> str:
        """Keep a tree of these files; its hash."""
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
        """Every file of a tree."""
        found: dict[str, FileState] = {}
        for record in self.git(["ls-tree", "-r", "-z", oid])[1].split(b"\0")[:-1]:
            facts, _, name = record.partition(b"\t")
            mode, _, blob = facts.split()
            found[os.fsdecode(name)] = FileState(int(mode, 8), blob.decode())
        return found

    def has(self, oid: str) -> bool:
        return self._file(oid).exists()

    def drop_all_but(self, needed: AbstractSet[str]) -> None:
        """Forget every object that nobody needs; trees and commits are made again when they are."""
        for folder in (self._folder / "objects").iterdir():
            for file in folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ():
                if folder.name + file.name not in needed:
                    file.unlink()

    def git(self, arguments: list[str], ok: tuple[int, ...] = (0,)) -> tuple[int, bytes]:
        """Have git do something here."""
        environment = git.private_environment(self._project, self._folder)
        return git.run([git.program(self._project), *arguments], environment, ok=ok)

    def _file(self, oid: str) -> Path:
        return self._folder / "objects" / oid[:2] / oid[2:]

    def _write(self, oid: str, data: bytes) -> None:
        file = self._file(oid)
        file.parent.mkdir(exist_ok=True)
        if file.parent.is_symlink():
            raise WorldError(
                "workspace.damaged", f"{file.parent} is a link; objects are kept beside each other"
            )
        if self._published:
            write_whole(file, data, mode=0o444, durable=True)
        else:
            write_whole(file, data)


def hash_file(handle: int) -> str:
    """The hash git gives to an open file's content."""
    os.lseek(handle, 0, os.SEEK_SET)
    digest = hashlib.sha1(b"blob %d\0" % os.fstat(handle).st_size, usedforsecurity=False)
    while data := os.read(handle, CHUNK):
        digest.update(data)
    return digest.hexdigest()


def hash_bytes(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
