"""Deliver steps: commit, branch, push and pull request, on the host and with the user's own git and gh.

A delivery is first composed and stored. Then a person is asked, who sees all of it. Only after the approval
does another execution of the step carry it out. A problem during delivery does not fail the step: the run
pauses with the reason, and a resume continues the delivery.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct, structs

from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.events import Failure
from fanfold.kernel.plan import EVERYTHING, Step, Traits, check_branch_name
from fanfold.language import keys
from fanfold.language.checks import read_patterns
from fanfold.language.consent import Effect
from fanfold.language.keys import DELIVER, PULL_REQUEST, StepSyntax
from fanfold.language.leaf_steps import Body, WrittenStep
from fanfold.language.tables import Entries, read_entries
from fanfold.language.tree import Scalar
from fanfold.steps.ids import root_of, session_id, typed_path
from fanfold.steps.order import Job, NeededAgreement, Outcome
from fanfold.steps.step_type import Execution, Filling, LeafType, Preparation, Services, StepLabel, StepReply
from fanfold.store.protocol import LeaseLost, StoreFault

if TYPE_CHECKING:
    from fanfold.workspace.delivery import Deliveries
    from fanfold.workspace.receipts import Receipt

_CLASSES = {"deliver.conflict": "conflict", "deliver.interrupted": "transport"}


class PullRequestWish(Struct, frozen=True, omit_defaults=True, gc=False):
    title: str
    body: str = ""
    base: str = ""
    draft: bool = False


class DeliverBody(Body, frozen=True, omit_defaults=True, gc=False):
    syntax: ClassVar[StepSyntax] = keys.SYNTAXES_DELIVER
    branch: str
    message: str
    push: bool = False
    pull_request: PullRequestWish | None = None

    def traits(self) -> Traits:
        return Traits(slot=False, workspace="claims")


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
    job = DeliverJob
    waiting = "asks to deliver"

    def from_recipe(self, step: WrittenStep) -> DeliverBody:
        node, notes, draft = step.entries.nodes.get("deliver"), step.notes, step.draft
        entries = read_entries(node, DELIVER, notes) if node is not None else None
        if entries is None:
            return DeliverBody("", "")
        if draft.narrowed:
            message = "a deliver step changes a repository, but the enclosing step is read-only"
            notes.error("recipe.conflicting_keys", message, step.entries.keys["deliver"])
        patterns, templated = read_patterns(
            entries.scalars("paths"), draft, step.unit.references, writes=False
        )
        draft.facts.write_set = patterns
        draft.facts.templated_sets |= templated
        wanted, branch = entries.nodes.get("pull_request"), entries.nodes.get("branch")
        if wanted is not None and entries.has("push") and not entries.flag("push"):
            message = "a pull request needs its branch on the server, but `push: false` does not push it"
            notes.error("recipe.conflicting_keys", message, entries.keys["push"], 'leave "push" out')
        if isinstance(branch, Scalar) and "{{" not in branch.text and (why := check_branch_name(branch.text)):
            notes.error("recipe.bad_value", why, branch)
        inner = read_entries(wanted, PULL_REQUEST, notes) if wanted is not None else None
        wish = None
        if inner is not None:
            title, body, base = (_text(step, inner, key) for key in ("title", "body", "base"))
            wish = PullRequestWish(title, body, base, inner.flag("draft"))
        return DeliverBody(
            branch=_text(step, entries, "branch"),
            message=_text(step, entries, "message"),
            push=entries.flag("push"),
            pull_request=wish,
        )

    def label(self, _step: Step, settings: DeliverBody) -> StepLabel:
        what = "pull request" if settings.pull_request is not None else "push" if settings.push else "commit"
        return StepLabel("deliver", f"{what}, branch {settings.branch}")

    def effects(self, step: Step, settings: DeliverBody, filling: Filling) -> Iterator[Effect]:
        branch, message, wish = _filled(filling, settings)
        rows = [f"branch {branch}", f"message {message}"]
        if wish is not None:
            rows += [f"{'draft ' if wish.draft else ''}pull request {wish.title}"]
            rows += [f"into {wish.base}"] if wish.base else []
            rows += [wish.body] if wish.body else []
        if step.write_set:
            rows.append(f"delivers {', '.join(map(filling.pattern, step.write_set))}")
        does = "commits and pushes" if settings.push else "commits"
        yield Effect(step.id, "deliver", does, "\n".join(rows), network=settings.push, permitted=True)

    def prepare(self, step: Preparation, settings: DeliverBody) -> DeliverJob:
        branch, message, wish = _filled(step, settings)
        return DeliverJob(branch, message, settings.push, wish, step.values.receipts(step.node.run))

    async def perform(self, services: Services, execution: Execution[DeliverJob]) -> Outcome:
        order = execution.order
        if services.frozen.permission == "read_only":
            message = "this run may only read, and a delivery changes a repository"
            denied = order.failure("permission", "deliver.denied", message, retryable=False)
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
            kind = _CLASSES.get(error.code, "tool")
            failure = order.failure(kind, error.code, error.message, error.hint, retryable=False)
            return Outcome(error=failure, holds=True)

    def answer(self, step: Preparation, _settings: DeliverBody, reply: StepReply) -> Outcome:
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


def _filled(step: Filling, settings: DeliverBody) -> tuple[str, str, PullRequestWish | None]:
    wish = settings.pull_request
    if wish is not None:
        wish = PullRequestWish(step.text(wish.title), step.text(wish.body), step.text(wish.base), wish.draft)
    return step.text(settings.branch), step.text(settings.message), wish


async def _deliver(services: Services, execution: Execution[DeliverJob]) -> Outcome:
    from fanfold.steps.step_workspace import in_thread
    from fanfold.workspace.delivery import Wish
    from fanfold.workspace.git import PullRequestText

    order, job = execution.order, execution.job
    spaces, begin = services.isolation.spaces, services.journal.confirm
    deliveries: Deliveries = await in_thread(lambda: spaces.deliveries(Path(execution.place.path), begin))
    name = session_id(order.run, order.path, 1)
    made = await in_thread(lambda: deliveries.find(name))
    if made is None and order.agreed:
        raise WorldError(
            "deliver.changed", "the approved delivery no longer exists", hint="run the step anew"
        )
    if made is None:
        forked = [  # merges of steps of this run and the runs below it, in the forked run
            receipt
            for path, receipts in services.frozen.reused_merges.items()
            if not order.run_path or path.startswith(f"{order.run_path}/")
            for receipt in receipts
        ]
        receipts = _known(services, (*job.receipts, *forked))
        wish = Wish(
            job.branch,
            job.message,
            order.write_set or EVERYTHING,
            job.push,
            None if job.pull_request is None else PullRequestText(*structs.astuple(job.pull_request)),
        )
        made = await in_thread(lambda: deliveries.compose(name, wish, receipts))
    planned = made
    if not order.agreed and not services.granted.deliver_unasked:
        question, show = await in_thread(lambda: deliveries.question(planned))
        return Outcome(asks=NeededAgreement(question, show))
    receipts = _known(services, planned.receipts)
    await in_thread(lambda: deliveries.make_branch(planned, receipts))
    if planned.wish.push:
        await in_thread(lambda: deliveries.push(planned))
    url = None
    if planned.wish.pull_request is not None:
        url = await in_thread(lambda: deliveries.request(planned))
    branch, commit = planned.wish.branch, planned.commit
    output = {"branch": branch, "commit": commit, "pushed": planned.wish.push, "url": url}
    return Outcome(output, summary=f"{branch} at {commit[:12]}{f', {url}' if url else ''}")


def _known(services: Services, ids: tuple[str, ...]) -> list[Receipt]:
    """The receipts of merges, oldest first, without reverted merges."""
    receipts = services.isolation.spaces.receipts
    found = [receipts.get(name) for name in ids if not receipts.is_undone(name)]
    return sorted(found, key=lambda receipt: (receipt.merged_ns, receipt.id))


def _text(step: WrittenStep, entries: Entries, key: str) -> str:
    node = entries.nodes.get(key)
    return step.unit.references.template(node, step.place) if isinstance(node, Scalar) else ""
