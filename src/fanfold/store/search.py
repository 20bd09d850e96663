"""Ranked search over the outputs of steps, in an index derived from the store.

Rules
* The index is caught up when somebody asks, never when a step ends. It knows how far it is from what is
  committed in it: every output row, even an empty one, becomes a document with the row's number.
* Anything wrong with the index (missing, damaged, of another version, of another database) has one
  remedy: build it again from the store. No question fails because of it.
* One process at a time writes the index, holding a lock that dies with the process. Whoever cannot get
  the lock soon answers from what is committed: an answer that may miss the newest outputs beats none.
* Words are words. They are cut exactly as the indexed text was, any of them may match, and nothing in
  them is an operator, so there is no such thing as a wrong query.

`tantivy` is imported on first use: it takes longer to load than most commands take to run.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from fanfold.errors import NotFoundError
from fanfold.store.excerpts import excerpt
from fanfold.store.folder import private_folder
from fanfold.store.protocol import DELETED, OutputRow, Store

if TYPE_CHECKING:
    import tantivy

INDEX_VERSION = 1
"""Raise it whenever what is indexed, or how, changes: older indexes are then built again."""
MAX_WORDS = 32
MAX_CHARACTERS = 1_000_000
"""Of one output; what is behind is not searched."""
LOCK_PATIENCE_S = 2.0
REPAIR_PATIENCE_S = 60.0
"""Without an index there is no answer, so waiting for whoever builds it is worth more."""
ROWS_PER_READ = 1_000
HEAP_BYTES = 48_000_000

_TOKENS = "words"
_INSTANCE = re.compile(r"(?:\[\d+\]|#\d+)(?=/|$)")


class Hit(Struct, frozen=True):
    """One output that matches, with the words around the match."""

    run_id: str
    path: str
    role: str
    score: float
    excerpt: str


class Search:
    """Search in one project. `folder` is its `.fanfold` folder; the index lives in `index/` below it."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder / "index"
        self._lock_file = folder / "index.lock"
        self._guard = threading.RLock()
        self._index: tantivy.Index | None = None
        self._done = 0
        """Number of the last output row in the index, as this process knows it."""

    def query(
        self,
        words: str,
        *,
        run: str | None = None,
        step: str | None = None,
        role: str | None = None,
        status: str | None = None,
        k: int = 5,
    ) -> list[Hit]:
        """The `k` best outputs in which any of the words occurs.

        `run` also finds the outputs of runs below it; `step` also the instances and the inner steps of
        the step it names.
        """
        with self._guard:
            tokens = list(dict.fromkeys(_analyzer().analyze(words[:10_000])))[:MAX_WORDS]
            if not tokens or k < 1:
                return []
            filters = {"run": run, "step": step, "role": role, "status": status}
            self._catch_up()
            try:
                return self._search(tokens, filters, k)
            except BaseException as error:
                if not _is_damage(error):
                    raise
            self._repair()
            return self._search(tokens, filters, k)

    # ------------------------------------------------------------------------------------ asking

    def _search(self, tokens: list[str], filters: dict[str, str | None], k: int) -> list[Hit]:
        from tantivy import Occur, Query

        index = self._opened()
        schema = index.schema
        clauses = [(Occur.Should, Query.term_query(schema, "text", token, "freq")) for token in tokens]
        for field, value in filters.items():
            if value is not None:
                # A filter decides whether an output is an answer, not how good it is.
                only = Query.const_score_query(Query.term_query(schema, field, value, "basic"), 0.0)
                clauses.append((Occur.Must, only))
        searcher = index.searcher()
        query = Query.boolean_query(clauses, minimum_number_should_match=1)
        found = searcher.search(query, min(k, 1_000), count=False)
        hits = []
        for score, address in found.hits:
            document = searcher.doc(address).to_dict()
            run_id, path, role, _, blob = msgspec.json.decode(document["row"][0])
            hits.append(Hit(run_id, path, role, float(score), excerpt(self._text(blob), tokens)))
        return hits

    def _text(self, blob: str) -> str:
        try:
            return readable(self._store.blob(blob))[:MAX_CHARACTERS]
        except NotFoundError:
            return ""  # the run was deleted a moment ago

    # ------------------------------------------------------------------------------- catching up

    def _catch_up(self) -> None:
        """Index what is new; whatever goes wrong is left to the search that follows."""
        try:
            self._opened()
            if not self._store.output_rows(self._done, 1) and self._is_of_this_store():
                return
            with self._writing() as writable:
                if not writable:
                    return
                self._open()  # another process may have caught up, or built it again, meanwhile
                if self._is_of_this_store():
                    self._index_rows()
                    return
            self._repair()
        except BaseException as error:
            if not _is_damage(error):
                raise
            self._repair()

    def _is_of_this_store(self) -> bool:
        """Whether the last row of the index is, or once was, a row of the store."""
        if self._done == 0:
            return True
        rows = self._store.output_rows(self._done - 1, 1)
        if not rows:
            return False
        number, row = rows[0]
        return number > self._done or self._has(number, row)

    def _has(self, number: int, row: OutputRow) -> bool:
        from tantivy import Query

        index = self._opened()
        searcher = index.searcher()
        found = searcher.search(Query.term_query(index.schema, "number", number), 1, count=False)
        return any(searcher.doc(address).get_first("row") == _line(row) for _, address in found.hits)

    def _index_rows(self) -> None:
        import tantivy

        index = self._opened()
        writer = index.writer(HEAP_BYTES, 1)
        while rows := self._store.output_rows(self._done, ROWS_PER_READ):
            for number, row in rows:
                document = tantivy.Document()
                document.add_unsigned("number", number)
                document.add_text("row", _line(row))
                if row.status == DELETED:
                    writer.delete_documents_by_term("run", row.root_run_id)
                else:
                    _describe(document, row, self._text(row.blob))
                writer.add_document(document)
            self._done = rows[-1][0]
        writer.commit()
        writer.wait_merging_threads()
        index.reload()

    # --------------------------------------------------------------------------- opening, repair

    def _opened(self) -> tantivy.Index:
        return self._index or self._open()

    def _open(self) -> tantivy.Index:
        """Open what is there; anything unusable raises."""
        import tantivy

        _check_files(self._folder)
        version = (self._folder / "version").read_text()
        if version != _version():
            raise ValueError(f"the index is of version {version!r}")
        index = tantivy.Index.open(str(self._folder))
        index.config_reader("manual")
        index.register_tokenizer(_TOKENS, _analyzer())
        index.reload()
        searcher = index.searcher()
        newest = searcher.search(tantivy.Query.all_query(), 1, order_by_field="number", count=False).hits
        self._done = newest[0][0] if newest else 0
        self._index = index
        return index

    def _repair(self) -> None:
        """Build the index again, unless another process just did."""
        self._index = None
        with self._writing(REPAIR_PATIENCE_S) as writable:
            if not writable:
                raise TimeoutError(f"another process holds {self._lock_file}")
            try:
                self._open()
                if self._is_of_this_store():
                    self._index_rows()
                    return
            except BaseException as error:
                if not _is_damage(error):
                    raise
            self._build()
            self._index_rows()

    def _build(self) -> None:
        import tantivy

        self._index = None
        if os.path.lexists(self._folder):
            # Renamed first: a crash in the middle of deleting must not leave half an index in its place.
            doomed = self._folder.with_name(f"index.old.{os.getpid()}")
            self._folder.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
        private_folder(self._folder)
        tantivy.Index(_schema(), path=str(self._folder))
        (self._folder / "version").write_text(_version())
        self._open()

    @contextmanager
    def _writing(self, patience_s: float = 0) -> Iterator[bool]:
        """Hold the lock for writing the index; False when another process keeps it too long."""
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield _lock(descriptor, time.monotonic() + (patience_s or LOCK_PATIENCE_S))
        finally:
            os.close(descriptor)


def readable(content: bytes) -> str:
    """The words of a stored value: text as it is, anything else as its keys and leaves, one on a line."""
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
    """What a step may be called in a question: itself or a step around it, with or without numbers.

    >>> sorted(addresses("audit/per_package[3]/confirm"))[:3]
    ['audit', 'audit/per_package', 'audit/per_package/confirm']
    """
    names = set()
    for whole in {path, _INSTANCE.sub("", path)}:
        parts = whole.split("/")
        names |= {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}
        names |= {_INSTANCE.sub("", name) for name in names}
    return names


def _describe(document: tantivy.Document, row: OutputRow, text: str) -> None:
    document.add_text("text", text)
    for run in {row.run_id, row.root_run_id}:
        document.add_text("run", run)
    for name in addresses(row.path):
        document.add_text("step", name)
    document.add_text("role", row.role)
    document.add_text("status", row.status)


def _line(row: OutputRow) -> str:
    return msgspec.json.encode((row.run_id, row.path, row.role, row.status, row.blob)).decode()


def _schema() -> tantivy.Schema:
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", tokenizer_name=_TOKENS, index_option="freq")
    for name in ("run", "step", "role", "status"):
        builder.add_text_field(name, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("row", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_unsigned_field("number", indexed=True, fast=True)
    return builder.build()


def _analyzer() -> tantivy.TextAnalyzer:
    from tantivy import Filter, TextAnalyzerBuilder, Tokenizer

    words = TextAnalyzerBuilder(Tokenizer.simple()).filter(Filter.remove_long(64))
    return words.filter(Filter.lowercase()).filter(Filter.ascii_fold()).build()


def _version() -> str:
    from importlib.metadata import version

    return f"{INDEX_VERSION} {version('tantivy')}"


def _check_files(folder: Path) -> None:
    """The index is read by a native library, which would wait for a pipe and follow a link."""
    with os.scandir(folder) as listing:
        odd = [entry.name for entry in listing if not entry.is_file(follow_symlinks=False)]
    if odd:
        raise ValueError(f"the index holds what is no file: {odd[0]!r}")


def _is_damage(error: BaseException) -> bool:
    """Whether the index, and not the store or the user, is to blame.

    The library reports what it did not expect on disk as ValueError, or panics, which arrives as a
    BaseException of a type it does not export.
    """
    return isinstance(error, OSError | ValueError) or type(error).__name__ == "PanicException"


def _lock(descriptor: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
