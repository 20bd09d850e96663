"""Finding what agents wrote, in one run or in all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, structs

from fanfold.errors import AuthorError, FanfoldError
from fanfold.kernel.lifecycle import TERMINAL
from fanfold.runtime.operations.project import Project
from fanfold.store.search.index import NO_FILTERS, Filters, Hit, Search

MIN_PREFIX = 4
"""Shorter words are not taken for the beginning of a run's id."""


class FoundOutputs(Struct, frozen=True):
    """Best match first."""

    hits: list[Hit]


def query(
    project: Project,
    words: Sequence[str],
    filters: Filters = NO_FILTERS,
    *,
    run: str | None = None,
    most: int = 5,
    explained: bool = False,
) -> FoundOutputs:
    """Outputs with any of the words, of all runs or of one and the runs below it."""
    if filters.status and filters.status not in TERMINAL:
        hint = f"one of {', '.join(sorted(TERMINAL))}"
        raise AuthorError("usage.bad_value", f"no step ends as {filters.status[:80]!r}", hint=hint)
    if not project.has_runs:
        return FoundOutputs([])
    text = " ".join(words).encode("utf-8", "replace").decode()  # a shell may hand over what is no text
    if run is not None:
        filters = structs.replace(filters, run=project.resolve(run).run_id)
    with _index_folder(project) as folder:
        search = Search(project.store, folder)
        return FoundOutputs(search.query(text, filters, k=most, explained=explained))


@contextmanager
def _index_folder(project: Project) -> Iterator[Path]:
    """Where the index is kept; where nothing may be written, one that is made for this question alone."""
    if os.access(project.memory, os.W_OK | os.X_OK):
        yield project.memory
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="fanfold-query-") as temporary:
        yield Path(temporary)


def named_run(project: Project, words: Sequence[str]) -> str | None:
    """The run that the first of some words names, if more words follow it: by `last`, its id, or at least
    four characters that begin exactly one.
    """
    if not project.has_runs or len(words) < 2 or (len(words[0]) < MIN_PREFIX):
        return None
    try:
        return project.store.resolve(words[0])
    except FanfoldError:
        return None
