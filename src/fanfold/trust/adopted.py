"""Runs that were in state when it was adopted: what they were permitted is not this user's word.

Their logs hold a permission, answers and a choice of back end that somebody else may have written. Until the
user has seen what such a run does and said yes, nobody goes on with it.

The list is state itself. It is written before the state becomes ours, as "every run", and made exact
afterwards; a crash in between leaves too much on it, never too little.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from fanfold.errors import EXIT_PERMISSION, WorldError
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


def note_adopted(project: Path, roots: Iterable[str]) -> None:
    """Say which runs there were."""
    _write(project, sorted(roots))


def add_adopted(project: Path, root: str) -> None:
    """A run came from elsewhere, by itself: it has to be permitted like those that came with state."""
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
    listed = _listed(project)
    if root in listed:
        _write(project, [one for one in listed if one != root])


def _listed(project: Path) -> list[str]:
    try:
        data = read_beneath(project, project / OWN_FOLDER / ADOPTED, MAX_BYTES)
    except FileNotFoundError:
        return []
    except OSError:
        return [EVERY]
    try:
        listed = json.loads(data)
        return [str(one) for one in listed] if isinstance(listed, list) else [EVERY]
    except (ValueError, RecursionError):
        return [EVERY]


def _write(project: Path, listed: list[str]) -> None:
    write_beneath(project, f"{OWN_FOLDER}/{ADOPTED}", json.dumps(listed).encode(), mode=0o600)
