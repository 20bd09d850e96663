"""Deliver steps: commit, branch, push and pull request, on the host and with the user's own git and gh.

A delivery is worked out first and remembered; then a person is asked, who sees all of it; and only then, in
another execution of the step, is it carried out. What keeps it from being carried out is no failure of the
step: the run pauses and says so, and resuming goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.events import Failure
from fanfold.kernel.plan import EVERYTHING, Step
from fanfold.recipe.types.deliver import DeliverBody, PullRequestWish
from fanfold.runtime.records.ids import root_of, session_id, typed_path
from fanfold.runtime.steps.step_type import (
    Execution,
    Job,
    LeafType,
    NeededAgreement,
    Outcome,
    Preparation,
    Services,
    StepLabel,
    StepReply,
    failure,
    text_of,
)
from fanfold.store.protocol import LeaseLost, StoreFault

if TYPE_CHECKING:
    from fanfold.kernel.nodes import Run
    from fanfold.runtime.records.frozen import Frozen
    from fanfold.workspace.delivery.deliveries import Deliveries
    from fanfold.workspace.merges.receipts import Receipt

T = TypeVar("T")
_CLASSES = {"deliver.conflict": "conflict", "deliver.interrupted": "transport"}


class DeliverJob(Job, frozen=True):
    branch: str
    message: str
    push: bool
    pull_request: PullRequestWish | None
    receipts: tuple[str, ...]
    """Of the merges of this run and those below it."""


class DeliverSteps(LeafType[DeliverBody, DeliverJob]):
    body = DeliverBody
    waiting = "asks to deliver"

    def label(self, _step: Step, said: DeliverBody) -> StepLabel:
        what = "pull request" if said.pull_request is not None else "push" if said.push else "commit"
        return StepLabel("deliver", f"{what}, branch {said.branch}")

    def prepare(self, step: Preparation, said: DeliverBody) -> DeliverJob:
        wish = said.pull_request
        if wish is not None:
            title, body, base = (text_of(one, step.names) for one in (wish.title, wish.body, wish.base))
            wish = PullRequestWish(title, body, base, wish.draft)
        branch, message = (text_of(one, step.names) for one in (said.branch, said.message))
        return DeliverJob(branch, message, said.push, wish, step.values.receipts(step.node.run))

    async def perform(self, services: Services, execution: Execution[DeliverJob]) -> Outcome:
        start, node = execution.start, execution.node
        if services.frozen.permission == "read_only":
            message = "this run may only read, and a delivery changes a repository"
            denied = failure(node, start, "permission", "deliver.denied", message, retryable=False)
            return Outcome(error=denied)
        try:
            return await _deliver(services, execution)
        except (StoreFault, LeaseLost):
            raise  # nothing that is in the way of this delivery: its host must stop
        except (WorldError, OSError) as raised:
            error = raised
            if isinstance(error, OSError):  # a full disk, a folder that may not be written
                error = WorldError(
                    "deliver.failed", f"{error.strerror or error}: {error.filename or 'delivery'}"
                )
            told = failure(
                node,
                start,
                _CLASSES.get(error.code, "tool"),
                error.code,
                error.message,
                error.hint,
                retryable=False,
            )
            return Outcome(error=told, holds=True)

    def answer(self, step: Preparation, _said: DeliverBody, reply: StepReply) -> Outcome:
        node = step.node
        if reply.text is not None or reply.decision not in ("approve", "reject"):
            message = f"{node.path} asks whether it may deliver"
            hint = f"fanfold approve {root_of(node)} {typed_path(node)}, or reject"
            raise AuthorError("approval.bad_choice", message, hint=hint)
        if reply.decision == "approve":
            return Outcome()
        message = reply.comment or f"{reply.by} did not agree to the delivery"
        return Outcome(
            error=Failure("permission", "deliver.rejected", message, "", False, node.path, node.attempt)
        )

    def task(self, job: DeliverJob) -> str:
        return f"Deliver to branch {job.branch}"


async def _deliver(services: Services, execution: Execution[DeliverJob]) -> Outcome:
    from fanfold.workspace.delivery.deliveries import Wish
    from fanfold.workspace.delivery.pull_requests import PullRequestText

    node, job = execution.node, execution.job
    spaces, begin = services.isolation.spaces, services.journal.confirm
    deliveries: Deliveries = await _in_thread(lambda: spaces.deliveries(Path(execution.place.path), begin))
    name = session_id(node.run.id, node.path, 1)
    made = await _in_thread(lambda: deliveries.find(name))
    if made is None and node.agreed:
        raise WorldError(
            "deliver.changed", "what was agreed to is not there any more", hint="run the step anew"
        )
    if made is None:
        receipts = _known(services, (*job.receipts, *_taken_over(services.frozen, node.run)))
        wish = Wish(
            job.branch,
            job.message,
            node.write_set or EVERYTHING,
            job.push,
            None
            if job.pull_request is None
            else PullRequestText(
                job.pull_request.title, job.pull_request.body, job.pull_request.base, job.pull_request.draft
            ),
        )
        made = await _in_thread(lambda: deliveries.compose(name, wish, receipts))
    planned = made
    if not node.agreed and not services.granted.deliver_unasked:
        question, show = await _in_thread(lambda: deliveries.question(planned))
        return Outcome(asks=NeededAgreement(question, show))
    receipts = _known(services, planned.receipts)
    await _in_thread(lambda: deliveries.make_branch(planned, receipts))
    if planned.wish.push:
        await _in_thread(lambda: deliveries.push(planned))
    url = None
    if planned.wish.pull_request is not None:
        url = await _in_thread(lambda: deliveries.request(planned))
    branch, commit = planned.wish.branch, planned.commit
    output = {"branch": branch, "commit": commit, "pushed": planned.wish.push, "url": url}
    return Outcome(output, summary=f"{branch} at {commit[:12]}{f', {url}' if url else ''}")


def _taken_over(frozen: Frozen, run: Run) -> Iterator[str]:
    """What steps of a run and of those below it had merged in the run that this one is a fork of."""
    for path, receipts in frozen.reused_merges.items():
        if not run.path or path.startswith(f"{run.path}/"):
            yield from receipts


def _known(services: Services, ids: tuple[str, ...]) -> list[Receipt]:
    """The merges, oldest first; those that were taken back are none any more."""
    spaces = services.isolation.spaces
    found = [spaces.receipt(one) for one in ids if not spaces.is_taken_back(one)]
    return sorted(found, key=lambda receipt: (receipt.merged_ns, receipt.id))


async def _in_thread(work: Callable[[], T]) -> T:
    """An effect that has begun is seen to its end, also by a step that is cancelled meanwhile."""
    import asyncio

    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
