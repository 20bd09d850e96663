"""What needs a person, what runs, and what was spent, over all runs of a project."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from msgspec import Struct

from fanfold.errors import FanfoldError
from fanfold.kernel.events import NOTHING_SPENT
from fanfold.kernel.lifecycle import PAUSED, PENDING, RUNNING, WAITING
from fanfold.runtime.hosting.clock import wall_clock_ms
from fanfold.runtime.operations.history.listing import listed, owner_of
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.background import abandoned
from fanfold.runtime.views.approvals import PendingQuestion, PendingQuestions, pending_questions
from fanfold.runtime.views.errors import REASON_CHARS, gist
from fanfold.runtime.views.runs.costs import Spend
from fanfold.runtime.views.runs.documents import run_error
from fanfold.runtime.views.runs.rows import OwnerDocument, RunRow
from fanfold.runtime.views.times import when
from fanfold.store.protocol import RunHead

NeedKind: TypeAlias = Literal["approval", "question", "delivery", "stuck", "paused", "failed"]


MAX_RUNNING = 50
MAX_FAILED = 20
MAX_PAUSED = 20
COUNTED = 1_000
PIECE = 200
STARTING_MS = 15_000
"""A run that goes on in a process of its own has nobody until that process is there."""
MAX_RUNS = 200
"""Looked at of each status: a question is open in runs that wait, and may be in those that run or rest."""
MAX_PULSES = 500


class Need(Struct, frozen=True):
    """Something that waits for a person."""

    kind: NeedKind
    run_id: str
    recipe: str
    step: str | None
    message: str
    since: str | None


class SpendDocument(Struct, frozen=True):
    today: Spend
    week: Spend


class Home(Struct, frozen=True):
    needs: list[Need]
    running: list[RunRow]
    spend: SpendDocument
    recipes: int
    runs: int
    """How many there are, up to a thousand."""


_KINDS: dict[str, NeedKind] = {"ask": "question", "deliver": "delivery"}
"""Types of steps that wait for a person in a way of their own; any other asks for an approval."""


def show_home(project: Project) -> Home:
    """The whole of it, as it is now."""
    here = datetime.now().astimezone()
    midnight = here.replace(hour=0, minute=0, second=0, microsecond=0)
    week = list(_since(project, midnight - timedelta(days=6)))
    today = [head for head in week if head.created_at >= midnight.timestamp() * 1_000]
    return Home(
        needs=[*_questions(project), *_stuck(project), *_paused(project), *_failed(week)],
        running=[listed(project, head) for head in project.heads(RUNNING, limit=MAX_RUNNING)],
        spend=SpendDocument(_spend(today), _spend(week)),
        recipes=len(project.library.names()),
        runs=len(project.heads(limit=COUNTED)),
    )


def _since(project: Project, moment: datetime) -> Iterator[RunHead]:
    """Root runs that began since then, the newest first."""
    earliest, before = moment.timestamp() * 1_000, None
    while project.has_runs:
        heads = project.store.heads(before=before, limit=PIECE)
        for head in heads:
            if head.created_at < earliest:
                return
            yield head
        if len(heads) < PIECE:
            return
        before = heads[-1].run_id


def _questions(project: Project) -> Iterator[Need]:
    """But for those of a run that is paused: the pause is what is to be decided first."""
    try:
        questions = _questions_in(project, WAITING, RUNNING)
    except FanfoldError:
        return  # a log that cannot be read is doctor's business
    for one in questions:
        kind = _KINDS.get(one.type, "approval")
        yield Need(kind, one.run_id, one.recipe, one.step, one.message, one.since)


def _stuck(project: Project) -> Iterator[Need]:
    for root in abandoned(project):
        head = project.resolve(root)
        if _is_stuck(head, owner_of(project, root)):
            yield Need("stuck", root, head.recipe, None, "no process drives it", when(head.started_at))


def _is_stuck(head: RunHead, owner: OwnerDocument | None) -> bool:
    """Of a run that is to go on. Where nobody ever drove it, its process may still be on the way."""
    return not owner.alive if owner is not None else head.created_at <= wall_clock_ms() - STARTING_MS


def _paused(project: Project) -> Iterator[Need]:
    """Runs that rest until somebody goes on with them, whoever or whatever paused them."""
    for head in project.heads(PAUSED, limit=MAX_PAUSED):
        try:
            tree = project.view(head.run_id)
        except FanfoldError:
            continue  # a log that cannot be read is doctor's business
        held = run_error(tree, tree.root)
        message = "the run is paused" if held is None else held.message
        yield Need("paused", head.run_id, head.recipe, None, message, when(tree.state.now))


def _failed(heads: Iterable[RunHead]) -> list[Need]:
    """Runs of the week that failed, and that nobody has run again since."""
    heads = list(heads)
    taken_up = {head.forked_from for head in heads}
    failed = [
        head
        for head in heads
        if head.status in ("failed", "partial", "timed_out") and head.run_id not in taken_up
    ]
    return [
        Need(
            "failed",
            head.run_id,
            head.recipe,
            head.error.step or None if head.error is not None else None,
            gist(head.error, REASON_CHARS) if head.error is not None else f"the run is {head.status}",
            when(head.ended_at),
        )
        for head in failed[:MAX_FAILED]
    ]


def _spend(heads: Iterable[RunHead]) -> Spend:
    heads = list(heads)
    priced = [head for head in heads if head.usage.micro_usd is not None]
    total = sum((head.usage for head in heads), NOTHING_SPENT)
    dollars = sum(head.usage.micro_usd or 0 for head in priced) / 1_000_000
    agents = sum(head.agents for head in heads)
    unpriced = len(heads) - len(priced)
    return Spend(len(heads), agents, total.input_tokens, total.output_tokens, dollars, unpriced)


def all_questions(project: Project) -> PendingQuestions:
    """Every question that somebody may answer now, the oldest first; an answer lets runs go on that rest."""
    return PendingQuestions(_questions_in(project, WAITING, RUNNING, PAUSED))


def _questions_in(project: Project, *statuses: str) -> list[PendingQuestion]:
    heads = project.heads(*statuses, limit=MAX_RUNS)
    found = [one for head in heads for one in pending_questions(project.view(head.run_id))]
    return sorted(found, key=lambda one: one.since or "")


class Pulse(Struct, frozen=True):
    """Who drives the tree of a run, and how long ago it gave a sign of life; null when nobody ever did, or
    let go of it. `is_stuck` when somebody would have to, and does not.

    Signs of life are no events, so nothing that is kept until the next event may hold one.
    """

    run_id: str
    owner: OwnerDocument | None
    heartbeat_age_ms: int | None
    is_stuck: bool


class Pulses(Struct, frozen=True):
    items: list[Pulse]


def pulse_of(project: Project, run: str) -> Pulse:
    """That of the tree a run belongs to, by the id of its root."""
    return _pulse(project, project.resolve(project.resolve(run).root_run_id))


def live_pulses(project: Project) -> Pulses:
    """Those of every root run that is to run, runs, or waits for somebody; the newest of each first."""
    heads = project.heads(RUNNING, WAITING, PENDING, limit=MAX_PULSES)
    return Pulses([_pulse(project, head) for head in heads])


def _pulse(project: Project, head: RunHead) -> Pulse:
    owner = owner_of(project, head.run_id)
    is_stuck = head.status in (PENDING, RUNNING) and _is_stuck(head, owner)
    return Pulse(head.run_id, owner, project.store.heartbeat_age_ms(head.run_id), is_stuck)
