"""Export a run to a file, and import a run from a file into this project's history.

A file may come from another user, so it is not trusted. Its contents are first written to a temporary store,
folded, and checked against every invariant. Only a run that this Fanfold could have recorded itself is
imported, atomically. An imported run counts as adopted state. It can be inspected like any other run. To
resume or fork it, the user must give permission as for a new run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct, structs

from fanfold.api.addresses import find_run
from fanfold.api.display import duration, when
from fanfold.api.graph import draw_run, svg
from fanfold.api.project import Project
from fanfold.api.run_documents import artifacts_below, indented, run_error, step_document
from fanfold.api.verify import verify
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.errors import AuthorError, FanfoldError, WorldError
from fanfold.kernel.events import Envelope, Evidence, event_of
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import LEAF, Node, trace
from fanfold.language.terminal import shorten
from fanfold.steps.records import sessions_of
from fanfold.steps.run_config import from_json, is_kept_open
from fanfold.store.address import SqliteAddress
from fanfold.store.protocol import Batch, Clean, Store, as_json
from fanfold.workspace.seal import add_adopted

# -----------------------------------------------------------------------------------------------------------
# The data of an exported run: its log by commits, its sessions, and the values they refer to
#
# Rules
# * Secrets that this process knows are removed once more: a secret may have been unknown when an event was
#   recorded. A changed value gets a new hash, and so does every value that refers to it.
# * The file contains no owners and no permissions: the importing project determines them.

FORMAT = 1
_NAME = rb'"([0-9a-f]{32})"'
_ROUNDS = 20
"""Maximum nesting of values. A renamed value renames the values that refer to it."""


class RunContents(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The data of an exported run. `blobs` are JSON texts by their hash."""

    format: int
    made_by: str
    root: str
    commits: list[list[Envelope]]
    sessions: dict[str, list[Envelope]]
    blobs: dict[str, str]


def read_contents(store: Store, tree: RunTree, version: str) -> RunContents:
    """Return all stored data of a tree, without the secrets that this process knows."""
    root = tree.root.id
    commits = [
        [structs.replace(one, data=as_json(one.data)) for one in commit.envelopes]
        for commit in store.commits(root)
    ]
    sessions = {name: list(log) for name, log in _sessions(store, tree)}
    texts = [msgspec.json.encode(one.data) for commit in commits for one in commit]
    texts += [msgspec.json.encode(one.data) for log in sessions.values() for one in log]
    blobs, renamed = _without_secrets(_blobs(store, texts), store.clean)

    def cleaned(envelopes: Iterable[Envelope]) -> list[Envelope]:
        return [_cleaned(one, store.clean, renamed) for one in envelopes]

    return RunContents(
        format=FORMAT,
        made_by=version,
        root=root,
        commits=[cleaned(commit) for commit in commits],
        sessions={name: cleaned(log) for name, log in sessions.items()},
        blobs={name: content.decode() for name, content in sorted(blobs.items())},
    )


def _sessions(store: Store, tree: RunTree) -> Iterator[tuple[str, Iterator[Envelope]]]:
    for run in tree.state.runs.values():
        for node in run.nodes.values():
            if node.kind != LEAF:
                continue
            for attempt in range(1, node.attempt + 1):
                for name in sessions_of(store, node, attempt):
                    if next(store.log(name), None) is not None:
                        yield name, store.log(name)


def _blobs(store: Store, texts: Iterable[bytes]) -> dict[str, bytes]:
    """Return every value that the texts refer to, directly or through other values."""
    found: dict[str, bytes] = {}
    wanted = list(texts)
    while wanted:
        text = wanted.pop()
        for name in {match.decode() for match in re.findall(_NAME, text)}:
            if name not in found and store.has_blob(name):
                found[name] = store.blob(name)
                wanted.append(found[name])
    return found


def _without_secrets(blobs: dict[str, bytes], clean: Clean) -> tuple[dict[str, bytes], dict[bytes, bytes]]:
    """Return the values without secrets by their hash, and the map of renamed hashes."""
    renamed: dict[bytes, bytes] = {}
    for _ in range(_ROUNDS):
        fresh: dict[str, bytes] = {}
        before = len(renamed)
        for name, content in blobs.items():
            cleaned = _with_new_names(clean(content), renamed)
            new = name if cleaned == content else blake2b(cleaned, digest_size=16).hexdigest()
            if new != name:
                renamed[name.encode()] = new.encode()
            fresh[new] = cleaned
        blobs = fresh
        if len(renamed) == before:
            break
    return blobs, renamed


def _with_new_names(text: bytes, renamed: dict[bytes, bytes]) -> bytes:
    if not renamed:
        return text
    return re.sub(_NAME, lambda match: b'"' + renamed.get(match[1], match[1]) + b'"', text)


def _cleaned(envelope: Envelope, clean: Clean, renamed: dict[bytes, bytes]) -> Envelope:
    data = msgspec.json.encode(envelope.data)
    return structs.replace(envelope, data=msgspec.json.decode(_with_new_names(clean(data), renamed)))


# -----------------------------------------------------------------------------------------------------------
# The file: an HTML page that opens offline, without scripts, and contains the data of the run
#
# All output of recipes, models and programs is escaped text. The data is a block that no browser executes;
# characters that could end the block are escaped.

MAX_STEPS = 2_000
MAX_SHOWN_CHARS = 20_000
_OPENING = '<script type="application/json" id="fanfold-run">'
_CLOSING = "</script>"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root{color-scheme:light dark;--ink:#1d2430;--dim:#5b6577;--line:#d5dbe5;--paper:#fff}
@media (prefers-color-scheme:dark){:root{--ink:#e7ebf2;--dim:#9aa6b8;--line:#39424f;--paper:#12161d}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
margin:0 auto;max-width:70rem;padding:2rem 1rem}h1{font-size:1.5rem;margin:0}
h2{font-size:1.1rem;margin:2rem 0 .5rem}.dim{color:var(--dim)}.graph{overflow-x:auto}
pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid var(--line);border-radius:6px;
padding:.75rem;margin:.5rem 0;font-size:13px}table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:.3rem .75rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}
"""


def make_page(tree: RunTree, contents: RunContents) -> str:
    """Return a run as one HTML file."""
    data = msgspec.json.encode(contents).decode().replace("<", "\\u003c")
    return f"{_PageWriter(tree).page()}\n{_OPENING}{data}{_CLOSING}\n</body></html>\n"


def find_data(page: bytes) -> bytes:
    """Return the data of a page made by `make_page`. The rest of the page is ignored."""
    start = page.rfind(_OPENING.encode())
    end = page.find(_CLOSING.encode(), start)
    if start < 0 or end < 0:
        raise AuthorError(
            "archive.not_one",
            "this file holds no run",
            hint="fanfold export last makes one of the latest run",
        )
    return page[start + len(_OPENING) : end]


class _PageWriter:
    """Writes the visible part of the page. Secrets are removed before escaping."""

    def __init__(self, tree: RunTree) -> None:
        self._tree = tree
        self._clean = tree.store.clean

    def page(self) -> str:
        root = self._tree.root
        title = f"{root.plan.name}@{root.plan.version}"
        picture = self._cleaned(svg(root.plan, draw_run(self._tree)))
        parts = [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="referrer" content="no-referrer">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{self._text(title)} · {escape(root.id)}</title><style>{_STYLE}</style></head><body>",
            *self._head(title),
            f'<div class="graph">{picture}</div>',
            *self._answer(),
            *self._steps(),
            *self._artifacts(),
        ]
        return "\n".join(parts)

    def _cleaned(self, value: JSON) -> JSON:
        return msgspec.json.decode(self._clean(msgspec.json.encode(value)))

    def _text(self, value: JSON) -> str:
        """Return any value as escaped text."""
        return escape(shorten(indented(self._cleaned(value)), MAX_SHOWN_CHARS))

    def _head(self, title: str) -> Iterator[str]:
        tree, root = self._tree, self._tree.root
        usage, agents = tree.spent(root)
        price = "price unknown" if usage.micro_usd is None else f"${usage.micro_usd / 1_000_000:.4f}"
        facts = [
            run_status(tree.state, root),
            f"run {root.id}",
            when(tree.memory.created_at) or "",
            f"{agents} agents",
            f"{usage.tokens:,} tokens",
            price,
        ]
        yield f"<h1>{self._text(title)}</h1><p>{self._text(root.plan.description)}</p>"
        yield f'<p class="dim">{escape(" · ".join(fact for fact in facts if fact))}</p>'
        error = run_error(tree, root)
        if error is not None:
            yield f"<pre>{self._text(error.message)}</pre>"

    def _answer(self) -> Iterator[str]:
        tree = self._tree
        inputs = tree.values.inputs(tree.root)
        if inputs:
            yield f"<h2>Asked</h2><pre>{self._text(inputs)}</pre>"
        if tree.root.output is not None:
            yield f"<h2>Answer</h2><pre>{self._text(tree.blobs.get(tree.root.output))}</pre>"

    def _steps(self) -> Iterator[str]:
        runs = self._tree.state.runs.values()
        nodes = [node for run in runs for node in run.nodes.values() if node.kind == LEAF]
        heads = "".join(f"<th>{word}</th>" for word in ("step", "who", "status", "took", "tokens"))
        yield f"<h2>Steps</h2><table><tr>{heads}</tr>"
        for node in nodes[:MAX_STEPS]:
            yield self._step(node)
        yield "</table>"
        if len(nodes) > MAX_STEPS:
            yield f'<p class="dim">and {len(nodes) - MAX_STEPS} more</p>'

    def _artifacts(self) -> Iterator[str]:
        """Yield the table of published files. The page contains their digests, not their contents."""
        found = list(artifacts_below(self._tree, self._tree.root))
        if not found:
            return
        heads = "".join(f"<th>{word}</th>" for word in ("file", "step", "bytes", "sha256"))
        yield f"<h2>Artifacts</h2><table><tr>{heads}</tr>"
        for one in found[:MAX_STEPS]:
            cells = f"<td>{self._text(one.path)}</td><td>{self._text(one.step)}</td>"
            yield f'<tr>{cells}<td class="n">{one.size:,}</td><td><code>{one.sha256[:16]}</code></td></tr>'
        yield "</table>"
        if len(found) > MAX_STEPS:
            yield f'<p class="dim">and {len(found) - MAX_STEPS} more</p>'

    def _step(self, node: Node) -> str:
        said = step_document(self._tree, node)
        took = duration(node.ended_at - node.started_at) if node.ended_at and node.started_at else ""
        tokens = "" if said.usage is None else f"{said.usage.input_tokens + said.usage.output_tokens:,}"
        about = (
            ("Task", self._tree.memory.tasks.get((node.run.id, node.path), "")),
            ("Output", said.output),
            ("Error", said.error.message if said.error is not None else None),
        )
        held = [(word, value) for word, value in about if value not in (None, "")]
        told = "".join(f"<b>{word}</b><pre>{self._text(value)}</pre>" for word, value in held)
        path = self._text(node.run.tree_path(node.path))
        name = f"<details><summary>{path}</summary>{told}</details>" if told else path
        cells = [name, self._text(node.step.traits.role or node.step.type), escape(said.status)]
        plain = "".join(f"<td>{cell}</td>" for cell in cells)
        return f'<tr>{plain}<td class="n">{took}</td><td class="n">{tokens}</td></tr>'


MAX_BYTES = 256 * 1024 * 1024
MAX_EPOCH = 1_000
LATEST = "last"
"""The name of the latest run in commands."""
_RUN_ID = r"[0-9a-z]{4,32}"
_SESSION_ID = r"s[0-9a-f]{12}(-r[0-9])?"


class ExportResult(Struct, frozen=True):
    run_id: str
    file: str
    bytes: int


class ImportResult(Struct, frozen=True):
    """A run that is in this project's history now."""

    run_id: str
    recipe: str
    status: str
    events: int


def export_run(project: Project, run: str, version: str) -> str:
    """Return a whole run, with the runs below it, as one HTML file."""
    tree = find_run(project, project.resolve(run).root_run_id).tree
    return make_page(tree, read_contents(project.store, tree, version))


def import_run(project: Project, page: bytes) -> ImportResult:
    """Import the run of a file into this project; raises if the run is refused."""
    contents = _read(page)
    with TemporaryDirectory(prefix="fanfold-import-") as scratch:
        store = SqliteAddress(folder=Path(scratch), durability="normal").open()
        try:
            batches, status, recipe = _prepare(store, contents)
        finally:
            store.close()
    _check_new(project.store, contents)
    # Listed as adopted before it is written: a crash in between leaves an extra entry, never a missing one.
    add_adopted(project.folder, contents.root)
    _write(project.store, contents, batches)
    count = sum(len(commit) for commit in contents.commits)
    return ImportResult(contents.root, recipe, status, count)


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
    """Refuse names that are not valid ids of this run: they become names of rows and folders."""
    events = [one for commit in contents.commits for one in commit]
    if not events or not all(contents.commits):
        raise _bad("it holds no events")
    for one in events:
        if one.log != one.run_id or one.root_run_id != contents.root or not re.fullmatch(_RUN_ID, one.run_id):
            raise _bad("an event belongs to another run")
        if is_kept_open(one.run_id) or one.run_id == LATEST:
            raise _bad(f"the name {one.run_id} is reserved for runs of this project")
    for name, log in contents.sessions.items():
        known = all(one.log == name and one.root_run_id == contents.root and not one.tree_seq for one in log)
        if not re.fullmatch(_SESSION_ID, name) or not known:
            raise _bad("a session belongs to another run")
    if not 0 < max(one.epoch for one in events) <= MAX_EPOCH:
        raise _bad("it had more owners than a run can have")
    for name, text in contents.blobs.items():
        if blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest() != name:
            raise _bad(f"the value {name[:32]} is not what its name says")


def _prepare(store: Store, contents: RunContents) -> tuple[list[Batch], str, str]:
    """Return the batches to write, after they were written to a temporary store and verified."""
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
    """Replays the commits of a file and derives the data that is stored besides the log."""

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
    """Write everything in one transaction, under a lease that is newer than every owner in the log."""
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
