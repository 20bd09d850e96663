"""Runs whose process died: found, and taken up by processes of their own."""

from __future__ import annotations

from fanfold.kernel.lifecycle import PENDING, RUNNING
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.background import Background, go_on_detached
from fanfold.trust.adopted import is_adopted


def abandoned(project: Project) -> list[str]:
    """Runs that are to go on and that nobody drives. Those that wait for people, or were paused, rest; and
    what came with adopted state goes on only when somebody has permitted it.
    """
    heads = [head for status in (PENDING, RUNNING) for head in project.store.heads(status=status, limit=-1)]
    roots = [head.run_id for head in heads if not project.has_owner(head.run_id)]
    return [root for root in roots if not is_adopted(project.folder, root)]


def take_up_abandoned(project: Project) -> list[Background]:
    """Let each of them go on in the background."""
    return [go_on_detached(project, root) for root in abandoned(project)]
