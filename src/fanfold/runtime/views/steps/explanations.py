"""Why runs and steps are where they are, as every surface shows it."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from fanfold.kernel.explain import Explanation
from fanfold.runtime.views.approvals import ApprovalDocument
from fanfold.runtime.views.recipes.documents import SuggestedSet


class UsedSets(Struct, frozen=True):
    """What a step read and changed; why there may be more of either is said where there may."""

    reads: list[str]
    writes: list[str]
    unseen_reads: str = ""
    unseen_writes: str = ""


class Explained(Struct, frozen=True):
    """`path` is a tree path; `reason` is a word, `message` the sentence for people."""

    path: str
    status: str
    reason: str
    blocked_by: list[str]
    message: str


class HistoryEntry(Struct, frozen=True):
    """Something that happened to a step, in one line."""

    at: str | None
    text: str


class ExplainedStep(Explained, frozen=True):
    ran_then: str
    """Why it started when it did; empty where it did not start."""
    history: list[HistoryEntry]
    approval: ApprovalDocument | UnsetType = UNSET
    used: UsedSets | UnsetType = UNSET
    """What it really read and changed, as far as that was seen."""
    suggested: list[SuggestedSet] | UnsetType = UNSET
    """Sets that its step could declare, by this run."""


class ExplainedRun(Explained, frozen=True):
    steps: list[Explained]
    """Those that did not simply complete."""


def explained(found: Explanation) -> Explained:
    """What the kernel says about a step."""
    return Explained(found.path, found.status, found.reason, list(found.blocked_by), found.message)
