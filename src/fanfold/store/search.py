"""Ranked search over outputs, failures, prompts and transcripts, in an index derived from the store.

Rules
* The index is updated when a query runs, never when a step finishes. Its own content shows how far it is up
  to date. Every output row, even an empty one, becomes a document with the number of the row. Every tree has
  a document with the position up to which its log and its sessions were indexed.
* A text is found once in a run tree, at its best address, because a group, phase or sub-workflow passes on
  the output of a step inside it.
* A missing or damaged index, or one of another version or database, is rebuilt from the store. So a query
  never fails because of the index.
* One process at a time writes the index, under a lock that ends with the process. A process that does not get
  the lock soon uses the committed index. Its result may miss the newest outputs.
* Any word, phrase in quotes or prefix of a word may match (see `search_queries`). No query is invalid.
* Equal scores are ordered by age, newest first. So the same query has the same result, however the index was
  built.

`tantivy` is imported on first use: it takes longer to load than most commands take to run.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from fanfold.errors import NotFoundError
from fanfold.kernel.events import Envelope
from fanfold.project_files import Closing
from fanfold.store.database import private_folder
from fanfold.store.protocol import DELETED, OutputRow, Store
from fanfold.store.search_queries import (
    ScorePart,
    SearchWish,
    excerpt,
    query_of,
    score_part,
    spaced,
    understand,
    words_shown,
)

if TYPE_CHECKING:
    import tantivy

# -----------------------------------------------------------------------------------------------------------
# Documents of the search index: their words and the fields of filters
#
# Raise `INDEX_VERSION` with every change here: older indexes are then rebuilt.

INDEX_VERSION = 4
OUTPUT, ERROR, PROMPT, TRANSCRIPT, REACH = "output", "error", "prompt", "transcript", "reach"
KINDS = (OUTPUT, ERROR, PROMPT, TRANSCRIPT)
"""The kinds of documents: an output, the error of a step or request, a prompt, the replies and actions of an
agent. `REACH` documents cannot be found: they store how far a tree was indexed."""
_WORDS_OF = {
    "input": (PROMPT, ("text",)),
    "stage": (PROMPT, ("prompt",)),
    "response": (TRANSCRIPT, ("text", "tool_calls")),
    "message": (TRANSCRIPT, ("text",)),
    "compaction": (TRANSCRIPT, ("text",)),
    "tool_call": (TRANSCRIPT, ("args",)),
    "tool_result": (TRANSCRIPT, ("result", "error")),
    "failed_request": (ERROR, ("message",)),
}
"""The document kind and the indexed fields, by the kind of a session's entry."""
WORDS = "words"
"""The name of the tokenizer."""
_INSTANCE = r"(?:\[\d+\]|#\d+)(?=/|$)"


def readable(content: bytes) -> str:
    """Return the searchable text of a stored value: text as it is, else keys and leaves, one per line."""
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return content.decode("utf-8", "replace")
    lines: list[str] = []
    rest: list[Any] = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            rest.extend(part for pair in reversed(item.items()) for part in reversed(pair))
        elif isinstance(item, list):
            rest.extend(reversed(item))
        elif item is not None:
            lines.append(item if isinstance(item, str) else str(item))
    return "\n".join(lines)


def addresses(path: str) -> set[str]:
    """Return the names for a step in a filter: the step or an enclosing step, with or without numbers.

    >>> sorted(addresses("audit/per_package[3]/confirm"))[:3]
    ['audit', 'audit/per_package', 'audit/per_package/confirm']
    """
    names = set()
    for whole in {path, re.sub(_INSTANCE, "", path)}:
        parts = whole.split("/")
        names |= {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}
        names |= {re.sub(_INSTANCE, "", name) for name in names}
    return names


def recorded(envelope: Envelope, content: Callable[[str], bytes]) -> tuple[str, OutputRow, str] | None:
    """Return kind, row and text of an event or entry, or None; `content` returns the blob of a hash."""
    data, path, role, status = envelope.data, envelope.path, "", ""
    if not isinstance(data, dict):
        return None
    if envelope.type == "session_event":
        if "step" in data:  # in the log of the run, a copy of the session's entry
            return None
        if data.keys() >= {"blob", "bytes"}:  # the text of this entry is stored as a blob
            data = {"kind": data["kind"], "text": readable(content(data["blob"]))}
        kind, names = _WORDS_OF.get(str(data.get("kind")), ("", ()))
        parts = [data[name] for name in names if data.get(name)]
    elif isinstance(error := data.get("error"), dict) and "step" in data:
        kind, path, role = ERROR, str(data["step"]), str(data.get("role", ""))
        status = str(data.get("status", ""))
        parts = [error.get("message", ""), error.get("hint", ""), error.get("code", "")]
    else:
        return None
    text = "\n".join(readable(msgspec.json.encode(part)) for part in parts).strip()
    if not kind or not text:
        return None
    run, root = envelope.run_id, envelope.root_run_id
    of_step = {"path": path, "role": role, "status": status}
    return kind, OutputRow(run_id=run, root_run_id=root, blob="", at=envelope.at, **of_step), text


def describe(
    document: tantivy.Document, row: OutputRow, text: str, recipes: set[str], kind: str = OUTPUT
) -> None:
    document.add_text("kind", kind)
    document.add_text("text", spaced(text))
    document.add_unsigned("at", max(0, row.at))
    for recipe in recipes:
        document.add_text("recipe", recipe)
    for run in {row.run_id, row.root_run_id}:
        document.add_text("run", run)
    for name in addresses(row.path):
        document.add_text("step", name)
    document.add_text("role", row.role)
    document.add_text("status", row.status)


def row_line(row: OutputRow) -> str:
    fields = (row.run_id, row.path, row.role, row.status, row.blob, row.root_run_id)
    return msgspec.json.encode(fields).decode()


def document_schema() -> tantivy.Schema:
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", tokenizer_name=WORDS, index_option="position")
    for name in ("run", "recipe", "step", "role", "status", "kind", "reach"):
        builder.add_text_field(name, stored=name == "kind", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("row", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_bytes_field("body", stored=True)
    builder.add_unsigned_field("number", indexed=True, fast=True)
    builder.add_unsigned_field("at", indexed=True, fast=True)
    return builder.build()


def word_cutter() -> tantivy.TextAnalyzer:
    from tantivy import Filter, TextAnalyzerBuilder, Tokenizer

    words = TextAnalyzerBuilder(Tokenizer.simple()).filter(Filter.remove_long(64))
    return words.filter(Filter.lowercase()).filter(Filter.ascii_fold()).build()


MAX_CHARACTERS = 1_000_000
"""The maximum length of one output; the rest is not searched."""
LOCK_PATIENCE_S = 2.0
REPAIR_PATIENCE_S = 60.0
"""Without an index there is no result, so a query waits longer for the process that builds it."""
ROWS_PER_READ = 1_000
MAX_HITS = 1_000
WIDER = 64
"""The number of hits to read if the last requested hit has equal scores after it."""
SPARE = 8
"""The factor between requested hits and read hits, because the same text may have many addresses. It is
applied again while too few of the hits differ."""
MAX_RECORDED = 100_000
"""The maximum length of one prompt, response or result; the rest is not searched."""
ROUNDED = 1e-6
LATEST = 2**62
HEAP_BYTES = 48_000_000


RankedHit: TypeAlias = "tuple[float, tantivy.DocAddress, dict[str, list[Any]]]"
"""The score, the address and the stored fields of a document."""


class Hit(Struct, frozen=True):
    """One matching text, with the words around the match."""

    run_id: str
    path: str
    role: str
    score: float
    excerpt: str
    kind: str = OUTPUT
    """`output`, `error`, `prompt` or `transcript`."""
    parts: list[ScorePart] | UnsetType = UNSET
    """The parts of the score, if requested."""


class Filters(Struct, frozen=True, kw_only=True):
    """The texts to search; None means all."""

    run: str | None = None
    """Includes the runs below it."""
    recipe: str | None = None
    phase: str | None = None
    step: str | None = None
    """Includes its instances, and the steps inside it."""
    role: str | None = None
    status: str | None = None
    since: int | None = None
    """Milliseconds since the epoch."""
    kind: str | None = None
    """`output`, `error`, `prompt`, `transcript` or `any`; by default outputs and errors."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of texts to search."""
        return KINDS if self.kind == "any" else (OUTPUT, ERROR) if self.kind is None else (self.kind,)

    def terms(self) -> list[tuple[str, str]]:
        """Return the fields that must have a value, with the value."""
        fields = ("run", "recipe", "step", "step", "role", "status")
        values = (self.run, self.recipe, self.phase, self.step, self.role, self.status)
        return [(field, value) for field, value in zip(fields, values, strict=True) if value is not None]


NO_FILTERS = Filters()


class Search:
    """Search in one project. `folder` is its `.fanfold` folder; the index is in `index/` below it."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder / "index"
        self._lock_file = folder / "index.lock"
        self._guard = threading.RLock()
        self._index: tantivy.Index | None = None
        self._done = 0
        """The number of the last output row in the index, as known to this process."""
        self._known_recipes: dict[str, str] = {}
        self._reaches: dict[str, int] = {}
        """The position of the last indexed row of each tree."""

    def query(
        self, words: str, filters: Filters = NO_FILTERS, *, k: int = 5, explained: bool = False
    ) -> list[Hit]:
        """Return the `k` best texts that contain any of the words, phrases or prefixes."""
        with self._guard:
            wishes = understand(words, word_cutter().analyze)
            if not wishes or k < 1:
                return []
            self._catch_up()
            try:
                return self._search(wishes, filters, k, explained)
            except BaseException as error:
                if not _is_damage(error):
                    raise
            self._repair()
            return self._search(wishes, filters, k, explained)

    # ------------------------------------------------------------------------------------ queries

    def _search(self, wishes: list[SearchWish], filters: Filters, k: int, explained: bool) -> list[Hit]:
        from tantivy import FieldType, Occur, Query

        index = self._opened()
        schema, searcher = index.schema, index.searcher()
        asked = [(wish, query_of(wish, searcher, schema)) for wish in wishes]
        clauses = [(Occur.Should, query) for _, query in asked]
        kinds = [(Occur.Should, Query.term_query(schema, "kind", kind, "basic")) for kind in filters.kinds]
        only = [Query.boolean_query(kinds)]
        only += [Query.term_query(schema, field, value, "basic") for field, value in filters.terms()]
        if filters.since is not None:
            since = max(0, filters.since)
            only.append(Query.range_query(schema, "at", FieldType.Unsigned, since, LATEST))
        # A filter selects outputs, and does not change their score.
        clauses += [(Occur.Must, Query.const_score_query(one, 0.0)) for one in only]
        query = Query.boolean_query(clauses, minimum_number_should_match=1)
        shown = words_shown(wishes, searcher)
        count = k * SPARE
        while True:
            hits = _best(searcher, query, count)
            found, addresses = self._distinct(hits, shown, k)
            if len(found) == k or len(hits) < count:
                break
            count *= SPARE  # most of them repeat one text
        if not explained:
            return list(found.values())
        return [
            structs.replace(hit, parts=[part for part in parts if part is not None])
            for key, hit in found.items()
            for parts in [[score_part(wish, one, searcher, addresses[key]) for wish, one in asked]]
        ]

    def _distinct(
        self, hits: Sequence[RankedHit], shown: Sequence[str], k: int
    ) -> tuple[dict[tuple[str, str], Hit], dict[tuple[str, str], tantivy.DocAddress]]:
        """Return the best `k` hits with distinct texts in each run tree, and the address of each."""
        found: dict[tuple[str, str], Hit] = {}
        addresses: dict[tuple[str, str], tantivy.DocAddress] = {}
        texts: dict[tuple[str, str], str] = {}
        for score, address, document in hits:
            run_id, path, role, _, blob, root = msgspec.json.decode(document["row"][0])
            body = document.get("body")
            text = bytes(body[0]).decode() if body else self._text(blob)
            hit = Hit(run_id, path, role, score, excerpt(text, shown), document["kind"][0])
            known = found.get(key := (root, hit.excerpt))
            if known is None:
                inside = [one for one in found if one[0] == root]
                if any(_hands_on(hit, text, found[row], texts[row]) for row in inside):
                    continue
                for one in [row for row in inside if _hands_on(found[row], texts[row], hit, text)]:
                    del found[one]
                if len(found) == k:
                    break
            # The best address of a text is the step that created it, not one that passed it on.
            if known is None or (
                hit.kind == known.kind
                and (bool(hit.role), len(hit.path)) > (bool(known.role), len(known.path))
            ):
                found[key] = hit if known is None else structs.replace(hit, score=known.score)
                addresses[key], texts[key] = address, text
        return found, addresses

    def _text(self, blob: str) -> str:
        try:
            return readable(self._store.blob(blob))[:MAX_CHARACTERS]
        except NotFoundError:
            return ""  # the run was just deleted

    # ------------------------------------------------------------------------------- indexing

    def _catch_up(self) -> None:
        """Index new rows and rebuild a damaged index."""
        try:
            self._opened()
            if not self._store.output_rows(self._done, 1) and self._is_of_this_store() and not self._grown():
                return
            with self._writing() as writable:
                if not writable:
                    return
                self._open()  # another process may have updated or rebuilt it meanwhile
                if self._is_of_this_store():
                    self._index_rows()
                    return
            self._repair()
        except BaseException as error:
            if not _is_damage(error):
                raise
            self._repair()

    def _is_of_this_store(self) -> bool:
        """Return whether the last row of the index is, or once was, a row of the store."""
        if self._done == 0:
            return True
        rows = self._store.output_rows(self._done - 1, 1)
        if not rows:
            return False
        number, row = rows[0]
        if number > self._done:
            return True
        from tantivy import Query

        index = self._opened()
        searcher = index.searcher()
        found = searcher.search(Query.term_query(index.schema, "number", number), 1, count=False)
        return any(searcher.doc(address).get_first("row") == row_line(row) for _, address in found.hits)

    def _recipes(self, row: OutputRow) -> set[str]:
        """Return the recipes of an output's run and of its root run."""
        found = set()
        for run in {row.run_id, row.root_run_id}:
            if run not in self._known_recipes:
                head = self._store.head(run)
                self._known_recipes[run] = "" if head is None else head.recipe
            found.add(self._known_recipes[run])
        return found - {""}

    def _index_rows(self) -> None:
        import tantivy

        index = self._opened()
        writer = index.writer(HEAP_BYTES, 1)
        while rows := self._store.output_rows(self._done, ROWS_PER_READ):
            for number, row in rows:
                document = tantivy.Document()
                document.add_unsigned("number", number)
                document.add_text("row", row_line(row))
                if row.status == DELETED:
                    writer.delete_documents_by_term("run", row.root_run_id)
                else:
                    describe(document, row, self._text(row.blob), self._recipes(row))
                writer.add_document(document)
            self._done = rows[-1][0]
        for root, reach in self._grown().items():
            self._index_log(writer, root, reach)
        writer.commit()
        writer.wait_merging_threads()
        index.reload()

    def _grown(self) -> dict[str, int]:
        """Return the trees with rows that are not indexed yet, with the position of the last indexed row."""
        return {
            root: self._reaches.get(root, 0)
            for root, end in self._store.ends().items()
            if end > self._reaches.get(root, 0)
        }

    def _index_log(self, writer: tantivy.IndexWriter, root: str, reach: int) -> None:
        """Index the failures, prompts and transcripts of a tree that were recorded since the last update."""
        import tantivy

        for place, envelope in self._store.rows_after(root, reach):
            reach = place
            try:
                found = recorded(envelope, self._store.blob)
            except NotFoundError:
                continue  # the run was just deleted
            if found is not None:
                kind, row, text = found
                document = tantivy.Document()
                document.add_text("row", row_line(row))
                document.add_bytes("body", text[:MAX_RECORDED].encode())
                describe(document, row, text[:MAX_RECORDED], self._recipes(row), kind)
                writer.add_document(document)
        document = tantivy.Document()
        for field, value in (("kind", REACH), ("reach", root), ("run", root)):
            document.add_text(field, value)
        document.add_text("row", f"[{msgspec.json.encode(root).decode()},{reach}]")
        writer.delete_documents_by_term("reach", root)
        writer.add_document(document)
        self._reaches[root] = reach

    # --------------------------------------------------------------------------- opening, repair

    def _opened(self) -> tantivy.Index:
        return self._index or self._open()

    def _open(self) -> tantivy.Index:
        """Open the existing index; raises if it is unusable."""
        import tantivy

        with os.scandir(self._folder) as listing:  # the library would block on a pipe and follow a link
            odd = [entry.name for entry in listing if not entry.is_file(follow_symlinks=False)]
        if odd:
            raise ValueError(f"the index contains {odd[0]!r}, which is not a regular file")
        version = (self._folder / "version").read_text()
        if version != _version():
            raise ValueError(f"the index has another version: {version!r}")
        index = tantivy.Index.open(str(self._folder))
        index.config_reader("manual")
        index.register_tokenizer(WORDS, word_cutter())
        index.reload()
        searcher = index.searcher()
        newest = searcher.search(tantivy.Query.all_query(), 1, order_by_field="number", count=False).hits
        self._done = (newest[0][0] or 0) if newest else 0
        reached = tantivy.Query.term_query(index.schema, "kind", REACH, "basic")
        count = max(1, searcher.num_docs)
        addresses = [address for _, address in searcher.search(reached, count, count=False).hits]
        rows = [str(searcher.doc(one).get_first("row")) for one in addresses]
        self._reaches = dict(map(msgspec.json.decode, rows))
        self._index = index
        return index

    def _repair(self) -> None:
        """Rebuild the index, unless another process just did."""
        self._index = None
        with self._writing(REPAIR_PATIENCE_S) as writable:
            if not writable:
                raise TimeoutError(f"another process has locked {self._lock_file}")
            try:
                self._open()
                if self._is_of_this_store():
                    self._index_rows()
                    return
            except BaseException as error:
                if not _is_damage(error):
                    raise
            import tantivy

            self._index = None
            if os.path.lexists(self._folder) and not os.path.isdir(self._folder):
                self._folder.unlink()  # `rmtree` would open it, and block on a pipe
            elif os.path.lexists(self._folder):
                # Renamed first: a crash while deleting must not leave a partial index in its place.
                doomed = self._folder.with_name(f"index.old.{os.getpid()}")
                self._folder.rename(doomed)
                shutil.rmtree(doomed, ignore_errors=True)
            private_folder(self._folder)
            tantivy.Index(document_schema(), path=str(self._folder))
            (self._folder / "version").write_text(_version())
            self._open()
            self._index_rows()

    @contextmanager
    def _writing(self, patience_s: float = 0) -> Iterator[bool]:
        """Hold the lock for writing the index; yields False if another process keeps it too long."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self._lock_file, flags, 0o600)
        deadline = time.monotonic() + (patience_s or LOCK_PATIENCE_S)
        with Closing(descriptor) as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    is_locked = True
                    break
                except BlockingIOError:
                    is_locked = False
                    if time.monotonic() >= deadline:
                        break
                    time.sleep(0.01)
            yield is_locked


def _hands_on(hit: Hit, text: str, inner: Hit, inner_text: str) -> bool:
    """Return whether `hit` repeats `inner`, as a phase does with a step's output."""
    is_map = hit.run_id == inner.run_id and inner.path.startswith(f"{hit.path}[")
    if (hit.role and not is_map) or not inner.role or hit.kind != inner.kind:
        return False
    if hit.kind == ERROR:
        return hit.path == inner.path and text in inner_text
    return hit.kind == OUTPUT and inner_text in text


def _best(searcher: tantivy.Searcher, query: tantivy.Query, k: int) -> list[RankedHit]:
    """Return the `k` best documents, newest first among equal scores, as the index does not guarantee."""
    found = searcher.search(query, k + 1, count=False).hits
    for wider in (WIDER, MAX_HITS):
        if len(found) <= k or found[-1][0] != found[k - 1][0] or len(found) >= wider:
            break
        found = searcher.search(query, wider, count=False).hits
    if len(found) > k and found[-1][0] == found[k - 1][0]:
        found = _newest_of_equals(searcher, query, found, k)
    numbers = searcher.fast_field_values("number", [address for _, address in found])
    ranked = sorted(zip(found, numbers, strict=True), key=lambda one: (-one[0][0], -(one[1] or 0)))
    return [(float(hit[0]), hit[1], searcher.doc(hit[1]).to_dict()) for hit, _ in ranked[:k]]


def _newest_of_equals(
    searcher: tantivy.Searcher, query: tantivy.Query, found: list[tuple[Any, tantivy.DocAddress]], k: int
) -> list[tuple[Any, tantivy.DocAddress]]:
    """Return the `k` best hits if more documents have equal scores than were read, newest first."""
    equal = found[k - 1][0]
    better = [hit for hit in found if hit[0] > equal]
    newest = searcher.search(query, MAX_HITS, order_by_field="number", count=False).hits

    def has_equal_score(address: tantivy.DocAddress) -> bool:
        explained = msgspec.json.decode(query.explain(searcher, address).to_json())
        return isclose(float(explained["value"]), equal, rel_tol=ROUNDED)  # it reports fewer digits

    equals = ((equal, address) for _, address in newest if has_equal_score(address))
    chosen = list(islice(equals, k - len(better)))
    return [*better, *chosen] if len(better) + len(chosen) == k else found


def _version() -> str:
    from importlib.metadata import version

    return f"{INDEX_VERSION} {version('tantivy')}"


def _is_damage(error: BaseException) -> bool:
    """Return whether the index, not the store or the user, caused the error.

    The library reports unexpected files as ValueError, or panics. A panic is a BaseException of a type that
    the library does not export.
    """
    return isinstance(error, OSError | ValueError) or type(error).__name__ == "PanicException"
