"""Runs that were in state when it was adopted: what they were permitted is not this user's word.

Their logs hold a permission, answers and a choice of back end that somebody else may have written. Until the
user has seen what such a run does and said yes, nobody goes on with it.

The list is state itself. It is written before the state becomes ours, as "every run", and made exact
afterwards; a crash in between leaves too much on it, never too little, until the store is next opened. Who
changes it holds a lock: a name that another process puts on it meanwhile must not get lost.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fanfold.errors import EXIT_PERMISSION, FanfoldError, WorldError
from fanfold.trust.project_files import read_beneath, write_beneath
from fanfold.trust.state import ADOPTED, OWN_FOLDER, adopt

EVERY = "*"
MAX_BYTES = 16 * 1024 * 1024


class RunAdopted(WorldError):
    """A run that is not to go on before this user has permitted it."""

    def __init__(self, root: str) -> None:
        message = f"run {root} was in this folder when its state was adopted; nobody here permitted it yet"
        hint = f"fanfold resume {root} shows what it does and asks"
        super().__init__("run.adopted", message, hint=hint, exit_status=EXIT_PERMISSION)


def adopt_with_runs(project: Path, home: Path) -> None:
    """Make state ours, and all its runs ones that have to be permitted."""
    _write(project, [EVERY])
    adopt(project, home)


def list_adopted(project: Path, list_runs: Callable[[], Iterable[str]]) -> None:
    """Say which runs there were, unless that was said before."""
    try:
        if EVERY not in _read(project):
            return
        with _locked(project):
            if EVERY in _read(project):
                _write(project, sorted(list_runs()))
    except (OSError, FanfoldError):
        pass  # what cannot be opened cannot be listed either: every run stays on the list


def add_adopted(project: Path, root: str) -> None:
    """A run came from elsewhere, by itself: it has to be permitted like those that came with state."""
    with _locked(project):
        _write(project, sorted({*_listed(project), root}))


def is_adopted(project: Path, root: str) -> bool:
    """Whether a run has to be permitted before it goes on."""
    listed = _listed(project)
    return root in listed or EVERY in listed


def require_permitted(project: Path, root: str) -> None:
    """Raise `RunAdopted` for a run that nobody here permitted."""
    if is_adopted(project, root):
        raise RunAdopted(root)


def permitted(project: Path, root: str) -> None:
    """The user has seen what a run does, and said yes."""
    with _locked(project):
        listed = _listed(project)
        if root in listed:
            _write(project, [one for one in listed if one != root])


def _listed(project: Path) -> list[str]:
    try:
        return _read(project)
    except OSError:
        return [EVERY]


def _read(project: Path) -> list[str]:
    """What the list says; every run where it is none that we wrote."""
    try:
        data = read_beneath(project, project / OWN_FOLDER / ADOPTED, MAX_BYTES)
    except FileNotFoundError:
        return []
    try:
        listed = json.loads(data)
        return [str(one) for one in listed] if isinstance(listed, list) else [EVERY]
    except (ValueError, RecursionError):
        return [EVERY]


def _write(project: Path, listed: list[str]) -> None:
    write_beneath(project, f"{OWN_FOLDER}/{ADOPTED}", json.dumps(listed).encode(), mode=0o600)


@contextmanager
def _locked(project: Path) -> Iterator[None]:
    """Alone with the list; the lock ends with its holder, however that dies."""
    folder = os.open(project / OWN_FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
