"""What reading logs again showed, as every surface shows it."""

from __future__ import annotations

from msgspec import Struct


class BrokenInvariant(Struct, frozen=True):
    invariant: int
    message: str


class AuditedRun(Struct, frozen=True):
    """One run tree. `fingerprint` names the state that its log leads to."""

    run_id: str
    ok: bool
    events: int
    status: str
    fingerprint: str
    violations: list[BrokenInvariant]


class Audit(Struct, frozen=True):
    """Run by run; `violations` is what was found in rows that belong to no run."""

    ok: bool
    runs: list[AuditedRun]
    violations: list[BrokenInvariant]
