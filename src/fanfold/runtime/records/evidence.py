"""What happened to the workspace of a step: one struct for each `what` of a `workspace_event`.

Facts are for people, for views and for `fanfold verify`; the kernel folds over them without effect. `step`,
`attempt` and `execution` say whose fact it is, and are filled in when it is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec import Struct

from fanfold.workspace.artifacts import Artifact


class ChangedPath(Struct, frozen=True):
    """`kind`: added, modified or deleted."""

    path: str
    kind: str


class ViolatedPath(Struct, frozen=True):
    """A change that was not the step's to make, and why."""

    path: str
    why: str


class ConflictPath(Struct, frozen=True):
    """A path that two sides changed in ways that do not go together, and what each side has."""

    path: str
    why: str
    base: str | None = None
    ours: str | None = None
    theirs: str | None = None


class _Fact(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="what"):
    step: str = ""
    attempt: int = 0
    execution: int = 0


class _Listing(_Fact, frozen=True):
    """The first of many rows, and how many there are."""

    MOST: ClassVar[int] = 20

    count: int


class Snapshot(_Fact, frozen=True, tag="snapshot"):
    """A step works in a snapshot of its own."""

    method: str
    session_id: str


class Reopened(_Fact, frozen=True, tag="reopened"):
    """A step goes on in the snapshot that it had before."""

    method: str
    session_id: str


class Sandboxed(_Fact, frozen=True, tag="sandbox"):
    """Programs ran at this level of the sandbox, and saw and changed at most this; see `sandbox.start`."""

    level: str
    at: str
    writes: bool
    network: bool
    variables: tuple[str, ...]
    bound: tuple[str, ...]
    programs: tuple[str, ...]
    system: tuple[str, ...]
    private: tuple[str, ...]
    covered: tuple[str, ...] = ()


class Unwatched(_Fact, frozen=True, tag="unwatched"):
    """What a step changes in the project cannot be told; `why` is the code of what keeps us from it."""

    why: str


class Violation(_Listing, frozen=True, tag="violation"):
    """A step changed what it may not."""

    paths: tuple[ViolatedPath, ...]


class ViolationWarning(_Listing, frozen=True, tag="violation_warning"):
    """Something changed that nobody may have, while several could."""

    paths: tuple[ViolatedPath, ...]


class Conflict(_Listing, frozen=True, tag="conflict"):
    """What a step changed does not go together with what others changed meanwhile."""

    paths: tuple[ConflictPath, ...]


class LeftOut(_Listing, frozen=True, tag="left_out"):
    """New files of a step that stayed behind, because the project ignores them."""

    paths: tuple[str, ...]


class Merge(_Fact, frozen=True, tag="merge"):
    """What a step changed was merged, proposed, or discarded."""

    mode: str
    proposal: str
    changes: tuple[ChangedPath, ...]
    receipt: str = ""
    """Of what was put into the project: by it the merge is shown and undone."""


class Published(_Fact, frozen=True, tag="artifacts"):
    """A step published files beside the project."""

    files: tuple[Artifact, ...]


class Apply(_Fact, frozen=True, tag="apply"):
    """A person applied what a step had proposed."""

    proposal: str
    changes: tuple[ChangedPath, ...]
    by: str
    receipt: str = ""


class Undo(_Fact, frozen=True, tag="undo"):
    """A person took back what was merged of a step; `changes` are what that did to the project."""

    receipt: str
    changes: tuple[ChangedPath, ...]
    by: str


class Digest(_Fact, frozen=True, tag="digest"):
    """A session of its own summed up a part of what a fold was given."""

    session_id: str
    part: int
    why: str = ""
    """Why an extract stands in for its answer; empty: it does not."""


class Resolve(_Fact, frozen=True, tag="resolve"):
    """An agent settled the conflicts of a step, or tried to."""

    session_id: str
    round: int
    role: str
    paths: tuple[str, ...]
    settled: bool
    why: str = ""


WorkspaceFact: TypeAlias = (
    Snapshot
    | Reopened
    | Sandboxed
    | Unwatched
    | Violation
    | ViolationWarning
    | Conflict
    | LeftOut
    | Merge
    | Published
    | Apply
    | Undo
    | Resolve
    | Digest
)


def workspace_fact(data: Any) -> WorkspaceFact:
    """The fact in the data of a `workspace_event`, just made or as it is read from a log."""
    fact: WorkspaceFact = msgspec.convert(data, WorkspaceFact) if isinstance(data, dict) else data
    return fact


def violation(rows: Sequence[object], *, alone: bool = True) -> Violation | ViolationWarning:
    """Rows with `path` and `why`; a warning unless it was the step `alone` that can have done it."""
    kind = Violation if alone else ViolationWarning
    return kind(count=len(rows), paths=_first(rows, ViolatedPath))


def conflict(rows: Sequence[object]) -> Conflict:
    """Rows with `path`, `why` and what each side has."""
    return Conflict(count=len(rows), paths=_first(rows, ConflictPath))


def left_out(paths: Sequence[str]) -> LeftOut:
    return LeftOut(count=len(paths), paths=tuple(paths[: _Listing.MOST]))


def _first(rows: Sequence[object], kind: type[Any]) -> tuple[Any, ...]:
    return tuple(msgspec.convert(row, kind, from_attributes=True) for row in rows[: _Listing.MOST])
