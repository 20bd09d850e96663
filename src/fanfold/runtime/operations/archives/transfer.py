"""Writing a run into a file, and taking one from a file into this project's history.

A file is somebody else's word. What it holds is first put into a store of its own, folded, and held against
every invariant; only what this Fanfold could have recorded itself comes in, all of it or nothing. A run that
came in is one of adopted state: it is looked at like any other, and what is to go on from it, as a fork or as
itself, is asked for as if it began now.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct, structs

from fanfold.errors import AuthorError, FanfoldError, WorldError
from fanfold.kernel.events import Envelope, Evidence, event_of
from fanfold.kernel.fingerprint import trace
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.archives.contents import FORMAT, RunContents, read_contents
from fanfold.runtime.operations.archives.page import find_data, make_page
from fanfold.runtime.operations.history.verify import verify
from fanfold.runtime.operations.project import Project
from fanfold.runtime.records.frozen import from_json
from fanfold.store.address import SqliteAddress
from fanfold.store.protocol import Batch, Store
from fanfold.trust.adopted import add_adopted

MAX_BYTES = 256 * 1024 * 1024
MAX_EPOCH = 1_000
_RUN_ID = re.compile(r"[0-9a-z]{4,32}")
_SESSION_ID = re.compile(r"s[0-9a-f]{12}(-r[0-9])?")


class Exported(Struct, frozen=True):
    run_id: str
    file: str
    bytes: int


class Imported(Struct, frozen=True):
    """A run that is in this project's history now."""

    run_id: str
    recipe: str
    status: str
    events: int


def export_run(project: Project, run: str, version: str) -> str:
    """A whole run, with those below it, as one HTML file."""
    tree = find_run(project, project.resolve(run).root_run_id).tree
    return make_page(tree, read_contents(project.store, tree, version))


def import_run(project: Project, page: bytes) -> Imported:
    """Take the run that a file holds into this project; raises what speaks against it."""
    contents = _read(page)
    with TemporaryDirectory(prefix="fanfold-import-") as scratch:
        store = SqliteAddress(folder=Path(scratch), durability="normal").open()
        try:
            batches, status, recipe = _prepare(store, contents)
        finally:
            store.close()
    _check_new(project.store, contents)
    # On the list before it is there: dying in between leaves a name on it too many, never one too few.
    add_adopted(project.folder, contents.root)
    _write(project.store, contents, batches)
    count = sum(len(commit) for commit in contents.commits)
    return Imported(contents.root, recipe, status, count)


def _read(page: bytes) -> RunContents:
    if len(page) > MAX_BYTES:
        raise AuthorError("archive.too_large", f"a file that holds a run has at most {MAX_BYTES:,} bytes")
    try:
        contents = msgspec.json.decode(find_data(page), type=RunContents)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise _bad(f"its data cannot be read: {error}") from None
    if contents.format != FORMAT:
        message = f"this file has format {contents.format}, and this Fanfold reads {FORMAT}"
        raise AuthorError("archive.format", message, hint="import it with the Fanfold that made it")
    _check_names(contents)
    return contents


def _check_names(contents: RunContents) -> None:
    """Names become names of rows and of folders: they are what ours are, and mean what they say."""
    events = [one for commit in contents.commits for one in commit]
    if not events or not all(contents.commits):
        raise _bad("it holds no events")
    for one in events:
        if one.log != one.run_id or one.root_run_id != contents.root or not _RUN_ID.fullmatch(one.run_id):
            raise _bad("an event belongs to another run")
    for name, log in contents.sessions.items():
        known = all(one.log == name and one.root_run_id == contents.root and not one.tree_seq for one in log)
        if not _SESSION_ID.fullmatch(name) or not known:
            raise _bad("a session belongs to another run")
    if not 0 < max(one.epoch for one in events) <= MAX_EPOCH:
        raise _bad("it had more owners than a run can have")
    for name, text in contents.blobs.items():
        if blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest() != name:
            raise _bad(f"the value {name[:32]} is not what its name says")


def _prepare(store: Store, contents: RunContents) -> tuple[list[Batch], str, str]:
    """What is to be written, after it was written elsewhere and held against every invariant."""
    try:
        values = [(name, text.encode()) for name, text in contents.blobs.items()]
        store.write([Batch(root=contents.root, epoch=0, blobs=values)])
        folding = _Folding(store, contents)
        batches = list(folding.batches())
        _write(store, contents, batches)
    except FanfoldError as error:
        raise _bad(error.message) from None
    except Exception as error:  # noqa: BLE001 - what somebody else wrote may hold anything
        raise _bad(f"{type(error).__name__}: {error}") from None
    verdict = verify(store, contents.root)
    if not verdict.ok:
        raise _bad(verdict.violations[0].message)
    tree = folding.tree
    assert tree is not None
    batches[0] = structs.replace(batches[0], blobs=values)
    return batches, run_status(tree.state, tree.root), tree.root.plan.name


class _Folding:
    """Reads the commits of a file as their owner made them, and works out what stands beside the log."""

    def __init__(self, store: Store, contents: RunContents) -> None:
        self._store = store
        self._contents = contents
        self.tree: RunTree | None = None

    def batches(self) -> Iterator[Batch]:
        for commit in self._contents.commits:
            yield self._batch(commit)
        for log in self._contents.sessions.values():
            if log:
                yield Batch(root=self._contents.root, epoch=0, envelopes=log)

    def _batch(self, commit: list[Envelope]) -> Batch:
        events, outputs = [], []
        for envelope in commit:
            event = event_of(envelope)
            if self.tree is None:
                self.tree = RunTree.reading(self._store, envelope)
            else:
                self.tree.catch_up([envelope])
            if not isinstance(event.data, Evidence):
                events.append((event.run, event.data))
            outputs += self.tree.outputs_of(event)
        assert self.tree is not None
        heads = self.tree.changed_heads(commit)
        facts = self.tree.memory.frozen
        source = None if facts is None else from_json(self.tree.blobs.get(facts)).forked_from
        return Batch(
            root=self._contents.root,
            epoch=0,
            envelopes=commit,
            heads=[
                structs.replace(one, forked_from=source if one.parent_run_id is None else None)
                for one in heads
            ],
            outputs=outputs,
            state=trace(self.tree.state, events),
        )


def _check_new(store: Store, contents: RunContents) -> None:
    for name in dict.fromkeys(one.run_id for commit in contents.commits for one in commit):
        if store.head(name) is not None:
            message = f"run {name} is in this project already"
            raise AuthorError("archive.known", message, hint=f"fanfold inspect {name}")
    for text in contents.blobs.values():
        content = text.encode()
        if store.clean(content) is not content:
            raise _bad("it holds a secret of yours, which is not stored")


def _write(store: Store, contents: RunContents, batches: list[Batch]) -> None:
    """All of it in one transaction, under a lease that is younger than any owner the log knows."""
    last = max(one.epoch for commit in contents.commits for one in commit)
    lease = store.acquire(contents.root)
    while lease.epoch < last:
        store.release(lease)
        lease = store.acquire(contents.root)
    try:
        store.write([structs.replace(batch, epoch=lease.epoch) for batch in batches])
    finally:
        store.release(lease)


def _bad(why: str) -> WorldError:
    return WorldError("archive.refused", f"the run in this file is not taken: {why}")
