"""Export, import, replay and verify runs.

Rules
* A file may come from another user, so it is not trusted. Its contents are first written to a temporary
  store, folded, and checked against every invariant. Only a run that this Fanfold could have recorded itself
  is imported, atomically.
* An imported run counts as adopted state. It can be inspected like any other run. To resume or fork it, the
  user must give permission as for a new run.
* `replay` folds a log and `verify` checks it; neither executes anything. Folding refuses events that do not
  follow from a decision. `verify` also checks every invariant, the state hash of each commit, the rows of
  runs and outputs, and the store itself (hash chains, seals, content hashes).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import msgspec
from msgspec import Struct, structs

from fanfold.api.display import counted, duration, folders_without_run, when
from fanfold.api.graph import draw_run, svg
from fanfold.api.history import find_run
from fanfold.api.project import Project
from fanfold.api.report import price
from fanfold.api.run_documents import PublishedFile, artifacts_below, indented, run_error, step_document
from fanfold.engine.run_tree import RunTree, run_status
from fanfold.errors import AuthorError, BugError, FanfoldError, WorldError
from fanfold.kernel.digest import RunDigest, digest
from fanfold.kernel.events import Envelope, Event, Evidence, RunCreated, SubagentEvent, event_of
from fanfold.kernel.invariants import Auditor, InvariantViolation
from fanfold.kernel.plan import JSON
from fanfold.kernel.state import LEAF, RUN_TERMINAL, Node, State, fingerprint, trace
from fanfold.kernel.transitions import create_state, evolve
from fanfold.language.terminal import shorten
from fanfold.sessions.log import blobs_of
from fanfold.steps.ids import session_id
from fanfold.steps.records import sessions_of
from fanfold.steps.run_config import from_json, is_kept_open
from fanfold.store import protocol
from fanfold.store.address import SqliteAddress
from fanfold.workspace.seal import add_adopted

# -----------------------------------------------------------------------------------------------------------
# The data of an exported run: its log by commits, its sessions, and the values they refer to
#
# Rules
# * Secrets that this process knows are removed once more: a secret may have been unknown when an event was
#   recorded. A changed value gets a new hash, and so does every value that refers to it.
# * The file contains no owners and no permissions: the importing project determines them.

T = TypeVar("T")
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


def read_contents(store: protocol.Store, tree: RunTree, version: str) -> RunContents:
    """Return all stored data of a tree, without the secrets that this process knows."""
    root = tree.root.id
    commits = [
        [structs.replace(one, data=protocol.as_json(one.data)) for one in commit.envelopes]
        for commit in store.commits(root)
    ]
    sessions: dict[str, list[Envelope]] = {}
    for node in tree.nodes():
        for attempt in range(1, node.attempt + 1) if node.kind == LEAF else ():
            logs = {name: list(store.log(name)) for name in sessions_of(store, node, attempt)}
            sessions |= {name: log for name, log in logs.items() if log}
    texts = [msgspec.json.encode(one.data) for log in (*commits, *sessions.values()) for one in log]
    blobs, renamed = _without_secrets(_blobs(store, texts), store.clean)

    def cleaned(log: list[Envelope]) -> list[Envelope]:
        texts = (_with_new_names(store.clean(msgspec.json.encode(one.data)), renamed) for one in log)
        pairs = zip(log, texts, strict=True)
        return [structs.replace(one, data=msgspec.json.decode(text)) for one, text in pairs]

    without_secrets = {name: cleaned(log) for name, log in sessions.items()}
    links: dict[str, str] = {}  # of the chains of sessions: as events name them, and without secrets
    for name, log in sessions.items():
        links |= zip(_links(log), _links(without_secrets[name]), strict=True)

    def relinked(event: Envelope) -> Envelope:
        link = event.data.get("chain") if isinstance(event.data, dict) else None
        return structs.replace(event, data={**event.data, "chain": links[link]}) if link in links else event

    return RunContents(
        format=FORMAT,
        made_by=version,
        root=root,
        commits=[[relinked(one) for one in cleaned(commit)] for commit in commits],
        sessions=without_secrets,
        blobs={name: content.decode() for name, content in sorted(blobs.items())},
    )


def _links(log: Iterable[Envelope], before: str = "") -> Iterator[str]:
    """Yield the link of a session's own chain after each of its entries."""
    link = bytes.fromhex(before)
    for one in log:
        data = one.data if isinstance(one.data, bytes) else msgspec.json.encode(one.data)
        link = protocol.session_link(link, one.log, one.seq, one.at, one.epoch, data)
        yield link.hex()


def _blobs(store: protocol.Store, texts: Iterable[bytes]) -> dict[str, bytes]:
    """Return every value that the texts refer to, directly or through other values.

    Values that are no text are left out: the files of a run with its own tree, as git packs them.
    """
    found: dict[str, bytes] = {}
    wanted = list(texts)
    while wanted:
        text = wanted.pop()
        for name in {match.decode() for match in re.findall(_NAME, text)}:
            if name not in found and store.has_blob(name) and is_text(content := store.blob(name)):
                found[name] = content
                wanted.append(content)
    return found


def is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _without_secrets(
    blobs: dict[str, bytes], clean: protocol.Clean
) -> tuple[dict[str, bytes], dict[bytes, bytes]]:
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
_STYLE = Path(__file__).parent / "templates" / "export.css"


def find_data(page: bytes) -> bytes:
    """Return the data of an exported page. The rest of the page is ignored."""
    start = page.rfind(_OPENING.encode())
    end = page.find(_CLOSING.encode(), start)
    if start < 0 or end < 0:
        hint = "fanfold export last makes one of the latest run"
        raise AuthorError("archive.not_one", "this file contains no run", hint=hint)
    return page[start + len(_OPENING) : end]


class _PageWriter:
    """Writes the visible part of the page. Secrets are removed before escaping."""

    def __init__(self, tree: RunTree) -> None:
        self._tree = tree

    def page(self) -> str:
        tree, root = self._tree, self._tree.root
        title = self._text(f"{root.plan.name}@{root.plan.version}")
        usage, agents = tree.spent(root)
        facts = [
            run_status(tree.state, root),
            f"run {root.id}",
            when(tree.memory.created_at) or "",
            counted(agents, "agent"),
            counted(usage.tokens, "token"),
            price(usage.micro_usd),
        ]
        parts = [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="referrer" content="no-referrer">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{title} · {escape(root.id)}</title><style>{_STYLE.read_text()}</style></head><body>",
            f"<h1>{title}</h1><p>{self._text(root.plan.description)}</p>",
            f'<p class="dim">{escape(" · ".join(fact for fact in facts if fact))}</p>',
        ]
        if (error := run_error(tree, root)) is not None:
            parts.append(f"<pre>{self._text(error.message)}</pre>")
        parts.append(f'<div class="graph">{self._cleaned(svg(root.plan, draw_run(tree)))}</div>')
        if inputs := tree.values.inputs(root):
            parts.append(f"<h2>Asked</h2><pre>{self._text(inputs)}</pre>")
        if root.output is not None:
            parts.append(f"<h2>Answer</h2><pre>{self._text(tree.blobs.get(root.output))}</pre>")
        leaves = [node for node in tree.nodes() if node.kind == LEAF]
        parts += _table("Steps", ("step", "who", "status", "took", "tokens"), leaves, self._step)
        # The page has the digests of published files, not their contents.
        if files := list(artifacts_below(tree, root)):
            parts += _table("Artifacts", ("file", "step", "bytes", "sha256"), files, self._file)
        return "\n".join(parts)

    def _cleaned(self, value: JSON) -> JSON:
        return msgspec.json.decode(self._tree.store.clean(msgspec.json.encode(value)))

    def _text(self, value: JSON) -> str:
        """Return any value as escaped text."""
        return escape(shorten(indented(self._cleaned(value)), MAX_SHOWN_CHARS))

    def _file(self, file: PublishedFile) -> str:
        cells = f"<td>{self._text(file.path)}</td><td>{self._text(file.step)}</td>"
        return f'<tr>{cells}<td class="n">{file.size:,}</td><td><code>{file.sha256[:16]}</code></td></tr>'

    def _step(self, node: Node) -> str:
        document = step_document(self._tree, node)
        took = duration(node.ended_at - node.started_at) if node.ended_at and node.started_at else ""
        usage = document.usage
        tokens = "" if usage is None else f"{usage.input_tokens + usage.output_tokens:,}"
        error = document.error.message if document.error is not None else None
        task = self._tree.memory.tasks.get((node.run.id, node.path), "")
        about = [("Task", task), ("Output", document.output), ("Error", error)]
        known = ((word, self._text(value)) for word, value in about if value not in (None, ""))
        details = "".join(f"<b>{word}</b><pre>{text}</pre>" for word, text in known)
        path = self._text(node.run.tree_path(node.path))
        name = f"<details><summary>{path}</summary>{details}</details>" if details else path
        cells = [name, self._text(node.step.traits.role or node.step.type), escape(document.status)]
        plain = "".join(f"<td>{cell}</td>" for cell in cells)
        return f'<tr>{plain}<td class="n">{took}</td><td class="n">{tokens}</td></tr>'


def _table(title: str, columns: Sequence[str], rows: Sequence[T], row: Callable[[T], str]) -> Iterator[str]:
    heads = "".join(f"<th>{word}</th>" for word in columns)
    yield f"<h2>{title}</h2><table><tr>{heads}</tr>"
    yield from map(row, rows[:MAX_STEPS])
    yield "</table>"
    if len(rows) > MAX_STEPS:
        yield f'<p class="dim">and {len(rows) - MAX_STEPS} more</p>'


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
    contents = msgspec.json.encode(read_contents(project.store, tree, version))
    data = contents.decode().replace("<", "\\u003c")
    return f"{_PageWriter(tree).page()}\n{_OPENING}{data}{_CLOSING}\n</body></html>\n"


def import_run(project: Project, page: bytes) -> ImportResult:
    """Import the run of a file into this project; raises if the run is refused."""
    contents = _read(page)
    with TemporaryDirectory(prefix="fanfold-import-") as scratch:
        store = SqliteAddress(folder=Path(scratch), durability="normal").open()
        try:
            batches, status, recipe = _prepare(store, contents)
        finally:
            store.close()
    events = [one for commit in contents.commits for one in commit]
    for name in dict.fromkeys(one.run_id for one in events):
        if project.store.head(name) is not None:
            message = f"run {name} is in this project already"
            raise AuthorError("archive.known", message, hint=f"fanfold inspect {name}")
    for content in (text.encode() for text in contents.blobs.values()):
        if project.store.clean(content) is not content:
            raise _bad("it holds a secret of yours, which is not stored")
    # Listed as adopted before it is written: a crash in between leaves an extra entry, never a missing one.
    add_adopted(project.folder, contents.root)
    _write(project.store, contents, batches)
    return ImportResult(contents.root, recipe, status, len(events))


def _read(page: bytes) -> RunContents:
    if len(page) > MAX_BYTES:
        raise AuthorError("archive.too_large", f"a file with a run has at most {MAX_BYTES:,} bytes")
    try:
        contents = msgspec.json.decode(find_data(page), type=RunContents)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise _bad(f"its data cannot be read: {error}") from None
    if contents.format != FORMAT:
        message = f"this file has format {contents.format}, and this Fanfold reads {FORMAT}"
        raise AuthorError(
            "archive.format", message, hint="import it with the version of Fanfold that exported it"
        )
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


def _prepare(store: protocol.Store, contents: RunContents) -> tuple[list[protocol.Batch], str, str]:
    """Return the batches to write, after they were written to a temporary store and verified."""
    root, tree = contents.root, None
    try:
        values = [(name, text.encode()) for name, text in contents.blobs.items()]
        store.write([protocol.Batch(root=root, epoch=0, blobs=values)])
        batches: list[protocol.Batch] = []
        for commit in contents.commits:
            tree, batch = _fold(store, root, tree, commit)
            batches.append(batch)
        batches += [
            protocol.Batch(root=root, epoch=0, envelopes=log) for log in contents.sessions.values() if log
        ]
        _write(store, contents, batches)
    except FanfoldError as error:
        raise _bad(error.message) from None
    except Exception as error:  # noqa: BLE001 - a file of another user may contain anything
        raise _bad(f"{type(error).__name__}: {error}") from None
    verdict = verify(store, root)
    if not verdict.ok:
        raise _bad(verdict.violations[0].message)
    assert tree is not None
    batches[0] = structs.replace(batches[0], blobs=values)
    return batches, run_status(tree.state, tree.root), tree.root.plan.name


def _fold(
    store: protocol.Store, root: str, tree: RunTree | None, commit: list[Envelope]
) -> tuple[RunTree, protocol.Batch]:
    """Replay one commit of a file, and derive the data that is stored besides the log."""
    events, outputs = [], []
    for envelope in commit:
        event = event_of(envelope)
        if tree is None:
            tree = RunTree.reading(store, envelope)
        else:
            tree.catch_up([envelope])
        if not isinstance(event.data, Evidence):
            events.append((event.run, event.data))
        outputs += tree.outputs_of(event)
    assert tree is not None
    facts = tree.memory.frozen
    source = None if facts is None else from_json(tree.blobs.get(facts)).forked_from
    heads = [
        structs.replace(one, forked_from=source if one.parent_run_id is None else None)
        for one in tree.changed_heads(commit)
    ]
    state = trace(tree.state, events)
    return tree, protocol.Batch(
        root=root, epoch=0, envelopes=commit, heads=heads, outputs=outputs, state=state
    )


def _write(store: protocol.Store, contents: RunContents, batches: list[protocol.Batch]) -> None:
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
    return WorldError("archive.refused", f"the run in this file is refused: {why}")


# -----------------------------------------------------------------------------------------------------------
# Read a log again: `replay` and `verify`

MAX_VIOLATIONS = 100
PRESENT, SAME_STATE, FOLLOWS, GIVEN, IN_TURN = 2, 3, 10, 14, 17
"""The invariants that are checked here and not by the auditor.

Acknowledged data is present; folding gives the same state again; every event follows from earlier ones; a
child run got the declared inputs; steps started in the order that the kernel decides.
"""


class AuditedRun(Struct, frozen=True):
    """What reading the log of one run tree again showed. `fingerprint` names the state that it leads to.

    `unkeyed` counts its first events that are not bound to the user's secret: who knows the format could have
    written them.
    """

    run_id: str
    ok: bool
    events: int
    status: str
    fingerprint: str
    violations: list[InvariantViolation]
    unkeyed: int = 0


class Audit(Struct, frozen=True):
    """Results by run; `violations` are problems in rows that belong to no run."""

    ok: bool
    runs: list[AuditedRun]
    violations: list[InvariantViolation]


def replay_run(project: Project, run: str, *, checked: bool = False) -> AuditedRun:
    """Fold the log of a run from its first to its last event. `checked`: verify every invariant."""
    return (verify if checked else replay)(project.store, project.resolve(run).root_run_id)


def digest_run(project: Project, run: str) -> RunDigest:
    """Return what happened to each step of a run, without times, ids and executions."""
    root = project.resolve(run).root_run_id
    return digest(event_of(envelope) for envelope in project.store.tree(root))


def verify_run(project: Project, run: str) -> Audit:
    """Verify one run."""
    audited = replay_run(project, run, checked=True)
    return Audit(audited.ok, [audited], [])


def verify_all(project: Project) -> Audit:
    """Verify everything that the project has stored, and that every run folder has a stored run."""
    audit = verify_store(project.store) if project.has_runs else Audit(True, [], [])
    lost = [
        InvariantViolation(PRESENT, f"run {folder.name} has a folder, but is not in the database")
        for folder in folders_without_run(project)[:MAX_VIOLATIONS]
    ]
    return structs.replace(audit, ok=audit.ok and not lost, violations=[*audit.violations, *lost])


def verify(store: protocol.Store, root: str) -> AuditedRun:
    """Verify everything that belongs to one run tree."""
    with store.snapshot():
        return _verify(store, root, store.check(root), store.output_rows(limit=-1, root=root))


def verify_store(store: protocol.Store) -> Audit:
    """Verify everything that is stored."""
    with store.snapshot():
        roots = store.roots()
        outputs: dict[str, list[tuple[int, protocol.OutputRow]]] = {root: [] for root in roots}
        for number, row in store.output_rows(limit=-1):
            outputs.setdefault(row.root_run_id, []).append((number, row))
        damages: dict[str, list[protocol.Damage]] = {root: [] for root in roots}
        for damage in store.check():
            damages.setdefault(damage.root, []).append(damage)
        runs = [_verify(store, root, damages.pop(root), outputs[root]) for root in roots]
    rest = [damage.message for found in damages.values() for damage in found]
    broken = [InvariantViolation(PRESENT, text) for text in rest[:MAX_VIOLATIONS]]
    return Audit(not broken and all(run.ok for run in runs), runs, broken)


def replay(store: protocol.Store, root: str) -> AuditedRun:
    """Fold the stored log once. Only an event that does not follow from the log is a violation."""
    count = 0
    state: State | None = None
    event: Event | None = None
    try:
        for envelope in store.tree(root):
            count += 1
            event = event_of(envelope)
            state = create_state(event) if state is None else evolve(state, event)
    except Exception as error:  # noqa: BLE001  # an edited log may hold anything
        return AuditedRun(root, False, count, "", "", [_unreadable(count, error, event)])
    if state is None:
        return AuditedRun(root, False, count, "", "", [InvariantViolation(1, "the log is empty")])
    return AuditedRun(root, True, count, run_status(state, state.root), fingerprint(state), [])


class _Audit:
    """Reads a tree commit by commit, as its owner wrote them."""

    def __init__(self, store: protocol.Store) -> None:
        self.store = store
        self.auditor = Auditor()
        self.tree: RunTree | None = None
        self.heads: dict[str, protocol.RunHead] = {}
        """The rows of runs that follow from the log."""
        self.since: dict[str, protocol.RunHead] = {}
        """Those rows at the time when their runs entered their current status."""
        self.outputs: list[protocol.OutputRow] = []
        self.blobs: dict[str, str] = {}
        """Hashes that the log refers to, with a description."""
        self.links: dict[str, list[str]] = {}
        """The links of each session's own chain, after each of its entries."""
        self.named: dict[str, tuple[str, bool]] = {}
        """The link that the last event of each session names, and whether the session ended with it."""
        self.count = 0
        self.event: Event | None = None
        """The event that is being read."""

    def read(self, commit: protocol.Commit) -> Iterator[InvariantViolation]:
        events = []
        for envelope in commit.envelopes:
            self.count += 1
            event = self.event = event_of(envelope)
            if not isinstance(event.data, Evidence):
                events.append((event.run, event.data))
            if self.tree is None:
                self.tree = RunTree.reading(self.store, envelope)
            else:
                self.tree.take(envelope, event)
            yield from self.auditor.observe(envelope, event, self.tree.state)
            for name in ("output", "inputs", "items", "frozen"):
                blob = getattr(event.data, name, None)
                if isinstance(blob, str):
                    about = f"the {name} of {getattr(event.data, 'step', '') or event.run}"
                    self.blobs.setdefault(blob, about)
            yield from _undeclared_inputs(self.tree, event)
            self.outputs += self.tree.outputs_of(event)
            self._note_link(event)
        for entry in commit.entries:
            links = self.links.setdefault(entry.log, [])
            links += _links([entry], links[-1] if links else "")
            for name in blobs_of(self.store, entry.data):
                self.blobs.setdefault(name, f"a part of the session of {entry.path or entry.log}")
        if self.tree is None:
            return
        for head in self.tree.changed_heads(commit.envelopes):
            before = self.heads.get(head.run_id)
            if before is None or before.status != head.status:
                self.since[head.run_id] = head
            self.heads[head.run_id] = head
        if commit.envelopes and commit.state != trace(self.tree.state, events):
            text = f"folding to event {self.count} gives another state than was recorded"
            yield InvariantViolation(SAME_STATE, text)

    def _note_link(self, event: Event) -> None:
        data = event.data
        if isinstance(data, SubagentEvent) and data.chain:
            name = data.session_id or session_id(event.run, data.step, max(1, data.attempt))
            self.named[name] = data.chain, data.status != "interrupted"

    def compare(self, root: str, outputs: Iterable[protocol.OutputRow]) -> Iterator[InvariantViolation]:
        """Compare the rows that follow from the log with the stored rows."""
        assert self.tree is not None
        memory = self.tree.memory
        if memory.frozen is not None:
            forked_from = from_json(self.tree.blobs.get(memory.frozen)).forked_from
            self.heads[root] = structs.replace(self.heads[root], forked_from=forked_from)
        for session, (link, is_last) in self.named.items():
            links = self.links.get(session, [])
            if link not in links or (is_last and link != links[-1]):
                text = f"session {session} is not as it was when its step ended: its chain differs"
                yield InvariantViolation(PRESENT, text)
        found = {head.run_id: head for head in self.store.tree_heads(root)}
        for run in dict.fromkeys((*self.heads, *found)):
            due, says = self.heads.get(run), found.get(run)
            if due is None or says is None:
                gone = "gone" if says is None else "there, but the log knows no such run"
                yield InvariantViolation(PRESENT, f"the row of run {run} is {gone}")
                continue
            if _is_behind(says, self.since[run], due):
                says = structs.replace(says, usage=due.usage, agents=due.agents)
            for name in due.__struct_fields__:
                old, new = repr(getattr(says, name))[:100], repr(getattr(due, name))[:100]
                if getattr(says, name) != getattr(due, name):
                    text = f"the row of run {run} says {name} {old}, its log says {new}"
                    yield InvariantViolation(PRESENT, text)
        for name in self.store.absent_blobs(list(self.blobs)):
            yield InvariantViolation(PRESENT, f"{self.blobs[name]} ({name}) is gone")
        expected, stored = Counter(self.outputs), Counter(outputs)
        for row in (expected - stored) + (stored - expected):
            yield InvariantViolation(PRESENT, f"the row of the output of {row.path} is not what the log says")


def _verify(
    store: protocol.Store,
    root: str,
    damages: list[protocol.Damage],
    outputs: list[tuple[int, protocol.OutputRow]],
) -> AuditedRun:
    violations = [InvariantViolation(PRESENT, damage.message) for damage in damages]
    audit = _Audit(store)
    status = state_hash = ""
    try:
        for commit in store.commits(root):
            violations += audit.read(commit)
            if len(violations) >= MAX_VIOLATIONS:
                break
        if audit.tree is None:
            if store.head(root) is not None:  # otherwise the tree has only sessions
                violations.append(InvariantViolation(1, "the log is empty"))
        else:
            state = audit.tree.state
            status, state_hash = run_status(state, state.root), fingerprint(state)
            if state.root.status in RUN_TERMINAL and not violations:
                violations += audit.auditor.close(state)
            # Rows of a deleted run with this id stay, so that readers of the outputs learn about the
            # deletion.
            violations += audit.compare(root, [row for _, row in outputs if row.status != protocol.DELETED])
    except Exception as error:  # noqa: BLE001  # an edited log may hold anything
        violations.append(_unreadable(audit.count, error, audit.event))
    unkeyed = store.unkeyed(root)
    return AuditedRun(root, not violations, audit.count, status, state_hash, violations, unkeyed)


def _unreadable(count: int, error: Exception, event: Event | None = None) -> InvariantViolation:
    if isinstance(error, BugError):
        started = event is not None and getattr(event.data, "status", "") == "started"
        number = IN_TURN if started else FOLLOWS
        return InvariantViolation(number, f"event {count} does not follow from the log: {error.message}")
    reason = error.message if isinstance(error, FanfoldError) else f"{type(error).__name__}: {error}"
    return InvariantViolation(PRESENT, f"what is stored after event {count} cannot be read: {reason}")


def _is_behind(found: protocol.RunHead, since: protocol.RunHead, now: protocol.RunHead) -> bool:
    """Whether the row of an unfinished run reports less spending than its log, within the allowed range.

    The spending must be at least that at the start of the current status. How often a row is updated in
    between depends on the code that drove the run.
    """
    if found.status != now.status or now.status in RUN_TERMINAL:
        return False
    steps = [(one.agents, one.usage.input_tokens, one.usage.output_tokens) for one in (since, found, now)]
    grows = all(first <= then <= last for first, then, last in zip(*steps, strict=True))
    then, last = found.usage.micro_usd, now.usage.micro_usd
    if then is None or last is None:  # an unknown price stays unknown
        return grows and last is None
    return grows and (since.usage.micro_usd or 0) <= then <= last


def _undeclared_inputs(tree: RunTree, event: Event) -> Iterator[InvariantViolation]:
    """Yield a violation for each input that the recipe does not declare."""
    if not isinstance(event.data, RunCreated) or event.data.inputs is None:
        return
    run = tree.state.runs[event.run]
    declared = {one.name for one in run.plan.inputs}
    for name in sorted(set(tree.values.inputs(run)) - declared):
        yield InvariantViolation(GIVEN, f"run {run.id} was given {name}, which its recipe does not declare")
