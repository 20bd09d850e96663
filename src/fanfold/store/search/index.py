"""Ranked search over the outputs of steps, in an index derived from the store.

Rules
* The index is caught up when somebody asks, never when a step ends. It knows how far it is from what is
  committed in it: every output row, even an empty one, becomes a document with the row's number.
* Anything wrong with the index (missing, damaged, of another version, of another database) has one
  remedy: build it again from the store. No question fails because of it.
* One process at a time writes the index, holding a lock that dies with the process. Whoever cannot get
  the lock soon answers from what is committed: an answer that may miss the newest outputs beats none.
* Any word may match, a phrase in quotes, the beginning of a word (see `questions`); no question is wrong.
* Equal scores are ordered by age, the newest first, so that the same question has the same answer however
  the index came to be.

`tantivy` is imported on first use: it takes longer to load than most commands take to run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from fanfold.errors import NotFoundError
from fanfold.store.database.folder import private_folder
from fanfold.store.protocol import DELETED, OutputRow, Store
from fanfold.store.search.documents import (
    INDEX_VERSION,
    WORDS,
    describe,
    document_schema,
    readable,
    row_line,
    word_cutter,
)
from fanfold.store.search.excerpts import excerpt
from fanfold.store.search.questions import (
    ScorePart,
    SearchWish,
    query_of,
    score_part,
    understand,
    words_shown,
)

if TYPE_CHECKING:
    import tantivy

MAX_CHARACTERS = 1_000_000
"""Of one output; what is behind is not searched."""
LOCK_PATIENCE_S = 2.0
REPAIR_PATIENCE_S = 60.0
"""Without an index there is no answer, so waiting for whoever builds it is worth more."""
ROWS_PER_READ = 1_000
MAX_HITS = 1_000
WIDER = 64
"""Hits that are looked at where the last of those asked for has equals."""
ROUNDED = 1e-6
LATEST = 2**62
HEAP_BYTES = 48_000_000


class Hit(Struct, frozen=True):
    """One output that matches, with the words around the match."""

    run_id: str
    path: str
    role: str
    score: float
    excerpt: str
    parts: list[ScorePart] | UnsetType = UNSET
    """What makes up the score, where that was asked for."""


class Filters(Struct, frozen=True, kw_only=True):
    """Which outputs are asked about; None: all."""

    run: str | None = None
    """Also the runs below it."""
    recipe: str | None = None
    phase: str | None = None
    step: str | None = None
    """Also its instances, and the steps inside it."""
    role: str | None = None
    status: str | None = None
    since: int | None = None
    """Milliseconds since the epoch."""

    def terms(self) -> list[tuple[str, str]]:
        """The fields that must have a value."""
        given = (
            ("run", self.run),
            ("recipe", self.recipe),
            ("step", self.phase),
            ("step", self.step),
            ("role", self.role),
            ("status", self.status),
        )
        return [(field, value) for field, value in given if value is not None]


NO_FILTERS = Filters()


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
        self._known_recipes: dict[str, str] = {}

    def query(
        self, words: str, filters: Filters = NO_FILTERS, *, k: int = 5, explained: bool = False
    ) -> list[Hit]:
        """The `k` best outputs in which any of the words, phrases or beginnings occurs."""
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

    # ------------------------------------------------------------------------------------ asking

    def _search(self, wishes: list[SearchWish], filters: Filters, k: int, explained: bool) -> list[Hit]:
        from tantivy import FieldType, Occur, Query

        index = self._opened()
        schema, searcher = index.schema, index.searcher()
        asked = [(wish, query_of(wish, searcher, schema)) for wish in wishes]
        clauses = [(Occur.Should, query) for _, query in asked]
        only = [Query.term_query(schema, field, value, "basic") for field, value in filters.terms()]
        if filters.since is not None:
            since = max(0, filters.since)
            only.append(Query.range_query(schema, "at", FieldType.Unsigned, since, LATEST))
        # A filter decides whether an output is an answer, not how good it is.
        clauses += [(Occur.Must, Query.const_score_query(one, 0.0)) for one in only]
        query = Query.boolean_query(clauses, minimum_number_should_match=1)
        shown = words_shown(wishes, searcher)
        hits = []
        for score, address, document in _best(searcher, query, min(k, MAX_HITS)):
            run_id, path, role, _, blob = msgspec.json.decode(document["row"][0])
            hit = Hit(run_id, path, role, score, excerpt(self._text(blob), shown))
            if explained:
                parts = (score_part(wish, one, searcher, address) for wish, one in asked)
                hit = structs.replace(hit, parts=[part for part in parts if part is not None])
            hits.append(hit)
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
        return any(searcher.doc(address).get_first("row") == row_line(row) for _, address in found.hits)

    def _recipes(self, row: OutputRow) -> set[str]:
        """What the run of an output, and the run around it, are runs of."""
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
        index.register_tokenizer(WORDS, word_cutter())
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
        if os.path.lexists(self._folder) and not os.path.isdir(self._folder):
            self._folder.unlink()  # `rmtree` would open it, and wait for a pipe
        elif os.path.lexists(self._folder):
            # Renamed first: a crash in the middle of deleting must not leave half an index in its place.
            doomed = self._folder.with_name(f"index.old.{os.getpid()}")
            self._folder.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
        private_folder(self._folder)
        tantivy.Index(document_schema(), path=str(self._folder))
        (self._folder / "version").write_text(_version())
        self._open()

    @contextmanager
    def _writing(self, patience_s: float = 0) -> Iterator[bool]:
        """Hold the lock for writing the index; False when another process keeps it too long."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(self._lock_file, flags, 0o600)
        try:
            yield _lock(descriptor, time.monotonic() + (patience_s or LOCK_PATIENCE_S))
        finally:
            os.close(descriptor)


def _best(
    searcher: tantivy.Searcher, query: tantivy.Query, k: int
) -> list[tuple[float, tantivy.DocAddress, dict[str, list[Any]]]]:
    """The `k` best documents; of equal ones the newest, which the index itself does not promise."""
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
    """The same where there are more equals than were looked at: the newest are asked for their score."""
    equal = found[k - 1][0]
    better = [hit for hit in found if hit[0] > equal]
    newest = searcher.search(query, MAX_HITS, order_by_field="number", count=False).hits
    equals = (
        (equal, address)
        for _, address in newest
        if isclose(_score(searcher, query, address), equal, rel_tol=ROUNDED)
    )
    chosen = list(islice(equals, k - len(better)))
    return [*better, *chosen] if len(better) + len(chosen) == k else found


def _score(searcher: tantivy.Searcher, query: tantivy.Query, address: tantivy.DocAddress) -> float:
    """As it is told: with fewer digits than a search gives it."""
    return float(msgspec.json.decode(query.explain(searcher, address).to_json())["value"])


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
