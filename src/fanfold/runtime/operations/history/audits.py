"""Having logs read again: one run replayed, one run or all of them checked against every invariant."""

from __future__ import annotations

from collections.abc import Iterable

from fanfold.kernel.invariants import InvariantViolation
from fanfold.runtime.operations.history.verify import Verdict, replay, verify, verify_store
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.audits import Audit, AuditedRun, BrokenInvariant


def replay_run(project: Project, run: str, *, checked: bool = False) -> AuditedRun:
    """Fold the log of a run from its first event to its last; `checked` against every invariant."""
    root = project.resolve(run).root_run_id
    return _audited(verify(project.store, root) if checked else replay(project.store, root))


def verify_run(project: Project, run: str) -> Audit:
    """Check one run."""
    audited = replay_run(project, run, checked=True)
    return Audit(audited.ok, [audited], [])


def verify_all(project: Project) -> Audit:
    """Check everything that the project has stored."""
    if not project.has_runs:
        return Audit(True, [], [])
    found = verify_store(project.store)
    return Audit(found.ok, [_audited(verdict) for verdict in found.runs], _broken(found.violations))


def _audited(verdict: Verdict) -> AuditedRun:
    broken = _broken(verdict.violations)
    return AuditedRun(verdict.run_id, verdict.ok, verdict.events, verdict.status, verdict.fingerprint, broken)


def _broken(violations: Iterable[InvariantViolation]) -> list[BrokenInvariant]:
    return [BrokenInvariant(one.number, one.message) for one in violations]
