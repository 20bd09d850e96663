"""State that came with a checkout or was copied: what it holds, taking it over, throwing it away.

Whose state is whose is decided in `trust.state`; here a person decides about one that is not theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from msgspec import Struct

from fanfold.trust import state
from fanfold.trust.adopted import adopt_with_runs, list_adopted

Standing = Literal["none", "ours", "foreign"]


class StatePart(Struct, frozen=True):
    """One thing in the state folder: `kind` is folder, file, link or special."""

    name: str
    kind: str
    bytes: int


class StateView(Struct, frozen=True):
    """What `fanfold state` shows."""

    folder: str
    standing: Standing
    why: str = ""
    """Why it is foreign."""
    parts: tuple[StatePart, ...] = ()
    removed: tuple[str, ...] = ()


def show_state(project: Path, home: Path) -> StateView:
    """What state there is and whose; nothing in it is opened."""
    parts = tuple(StatePart(*row) for row in state.list_state(project, home))
    why = state.why_foreign(project, home)
    standing: Standing = "foreign" if why else "ours" if parts else "none"
    return StateView(str(project / state.OWN_FOLDER), standing, why, parts)


def adopt_state(project: Path, home: Path, list_runs: Callable[[], Iterable[str]]) -> StateView:
    """Make state of this folder ours as it is. Its runs go on only when they were permitted again."""
    if show_state(project, home).standing == "foreign":
        adopt_with_runs(project, home)
        list_adopted(project, list_runs)
    return show_state(project, home)


def remove_state(project: Path, home: Path) -> StateView:
    """Delete state, ours or not; recipes, roles and configuration stay."""
    gone = state.remove(project, home) if state.list_state(project, home) else []
    seen = show_state(project, home)
    return StateView(seen.folder, seen.standing, seen.why, seen.parts, tuple(gone))
