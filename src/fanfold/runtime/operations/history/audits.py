"""Having logs read again: one run replayed, one run or all of them checked against every invariant."""

from __future__ import annotations

from fanfold.runtime.operations.history.runs import list_heads
from fanfold.runtime.operations.history.verify import Verdict, replay, verify
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.audits import Audit, AuditedRun, BrokenInvariant


def replay_run(project: Project, run: str, *, checked: bool = False) -> AuditedRun:
    """Fold the log of a run from its first event to its last; `checked` against every invariant."""
    root = project.resolve(run).root_run_id
    return _audited(verify(project.store, root) if checked else replay(project.store, root))


def verify_run(project: Project, run: str) -> Audit:
    """Check one run."""
    audited = replay_run(project, run, checked=True)
    return Audit(audited.ok, [audited])


def verify_all(project: Project) -> Audit:
    """Check every run of the project."""
    runs = [_audited(verify(project.store, head.run_id)) for head in list_heads(project)]
    return Audit(all(run.ok for run in runs), runs)


def _audited(verdict: Verdict) -> AuditedRun:
    broken = [BrokenInvariant(one.number, one.message) for one in verdict.violations]
    return AuditedRun(verdict.run_id, verdict.ok, verdict.events, verdict.status, verdict.fingerprint, broken)
