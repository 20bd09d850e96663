"""Deliver steps: commit, branch, push and pull request, on the host and with the user's own git and gh.

A delivery is first composed and stored. Then a person is asked, who sees all of it. Only after the approval
does another execution of the step carry it out. A problem during delivery does not fail the step: the run
pauses with the reason, and a resume continues the delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.events import Failure
from fanfold.kernel.plan import EVERYTHING, Step
from fanfold.language.consent import Effect
from fanfold.language.leaf_steps import DeliverBody, PullRequestWish
from fanfold.steps.ids import root_of, session_id, typed_path
from fanfold.steps.step_type import (
    Execution,
    Filling,
    Job,
    LeafType,
    NeededAgreement,
    Outcome,
    Preparation,
    Services,
    StepLabel,
    StepReply,
    failure,
)
from fanfold.store.protocol import LeaseLost, StoreFault

if TYPE_CHECKING:
    from fanfold.kernel.state import Run
    from fanfold.steps.run_config import RunConfig
    from fanfold.workspace.delivery import Deliveries
    from fanfold.workspace.receipts import Receipt

T = TypeVar("T")
_CLASSES = {"deliver.conflict": "conflict", "deliver.interrupted": "transport"}


class DeliverJob(Job, frozen=True):
    """The job of a deliver step."""

    branch: str
    message: str
    push: bool
    pull_request: PullRequestWish | None
    receipts: tuple[str, ...]
    """The receipts of merges of this run and the runs below it."""


class DeliverSteps(LeafType[DeliverBody, DeliverJob]):
    """The step type of deliveries."""

    body = DeliverBody
    waiting = "asks to deliver"

    def label(self, _step: Step, said: DeliverBody) -> StepLabel:
        what = "pull request" if said.pull_request is not None else "push" if said.push else "commit"
        return StepLabel("deliver", f"{what}, branch {said.branch}")

    def effects(self, step: Step, said: DeliverBody, filling: Filling) -> Iterator[Effect]:
        branch, message, wish = _filled(filling, said)
        rows = [f"branch {branch}", f"message {message}"]
        if wish is not None:
            rows += [f"pull request {wish.title}", wish.body] if wish.body else [f"pull request {wish.title}"]
        does = "commits and pushes" if said.push else "commits"
        yield Effect(step.id, "deliver", does, "\n".join(rows), network=said.push, permitted=True)

    def prepare(self, step: Preparation, said: DeliverBody) -> DeliverJob:
        branch, message, wish = _filled(step, said)
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
            raise  # not a problem of this delivery: the host must stop
        except (WorldError, OSError) as raised:
            error = raised
            if isinstance(error, OSError):  # for example a full disk or a read-only folder
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


def _filled(step: Filling, said: DeliverBody) -> tuple[str, str, PullRequestWish | None]:
    wish = said.pull_request
    if wish is not None:
        wish = PullRequestWish(step.text(wish.title), step.text(wish.body), step.text(wish.base), wish.draft)
    return step.text(said.branch), step.text(said.message), wish


async def _deliver(services: Services, execution: Execution[DeliverJob]) -> Outcome:
    from fanfold.workspace.delivery import Wish
    from fanfold.workspace.remotes import PullRequestText

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


def _taken_over(frozen: RunConfig, run: Run) -> Iterator[str]:
    """The receipts of merges in the forked run, of steps of this run and the runs below it."""
    for path, receipts in frozen.reused_merges.items():
        if not run.path or path.startswith(f"{run.path}/"):
            yield from receipts


def _known(services: Services, ids: tuple[str, ...]) -> list[Receipt]:
    """The receipts of merges, oldest first, without reverted merges."""
    spaces = services.isolation.spaces
    found = [spaces.receipt(one) for one in ids if not spaces.is_taken_back(one)]
    return sorted(found, key=lambda receipt: (receipt.merged_ns, receipt.id))


async def _in_thread(work: Callable[[], T]) -> T:
    """Run work in a thread. It always finishes, even if the step is cancelled meanwhile."""
    import asyncio

    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
