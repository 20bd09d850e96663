"""What waits for people, over all runs of the project."""

from __future__ import annotations

from fanfold.kernel.lifecycle import RUNNING, WAITING
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.pending_questions import PendingQuestion, PendingQuestions, pending_questions

MAX_RUNS = 200
"""Looked at of each status: a question is open in runs that wait, and may be in those that run."""


def all_questions(project: Project) -> PendingQuestions:
    """Every question that somebody may answer now, the oldest first."""
    return PendingQuestions(sorted(_questions(project), key=lambda one: one.since or ""))


def _questions(project: Project) -> list[PendingQuestion]:
    if not project.has_runs:
        return []
    heads = [head for word in (WAITING, RUNNING) for head in project.store.heads(status=word, limit=MAX_RUNS)]
    return [one for head in heads for one in pending_questions(project.view(head.run_id))]
