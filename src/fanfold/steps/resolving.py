"""`on_conflict: resolve`: an agent resolves merge conflicts of a step in a separate workspace.

The workspace starts from the current project tree and contains all changes of the step without conflicts. The
conflicts are in files (see `workspace.receipts`). The result of the agent is compared with the step's
write-set and merged by the same rules as any change.

Rules
* The agent is a normal session with its own log. Its id is derived from the step's session, so that it
  continues after a crash. Its tree path is `<step>/resolve`, which scripts use. The first round is attempt 1,
  the second is attempt 2.
* There is a second round only if the project tree changed again meanwhile. If the agent fails or leaves
  markers, the conflict is not resolved: the step fails with class `conflict`, as without an agent.
* The spending of the agent counts as spending of the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from fanfold.agents.backend import SessionFailed, SessionRequest
from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.events import Failure, Usage
from fanfold.language.terminal import shorten
from fanfold.steps.ids import is_held, is_out_of_budget, settling_ids
from fanfold.steps.order import Job, Order
from fanfold.steps.records import Resolve, conflict
from fanfold.steps.run_config import RESOLVER, RunConfig
from fanfold.steps.step_type import Execution, Services, add_usage
from fanfold.steps.step_workspace import StepWorkspace, refusal

if TYPE_CHECKING:
    from fanfold.workspace.merge import MergeConflict, MergeResult
    from fanfold.workspace.receipts import Dispute

MAX_TASK_CHARS = 20_000


def takes(frozen: RunConfig, order: Order[Job], merged: MergeResult) -> bool:
    """Whether an agent is to resolve these conflicts."""
    from fanfold.workspace.receipts import can_be_settled

    wanted = order.step.on_conflict == "resolve" and RESOLVER in frozen.roles
    return wanted and bool(merged.conflicts) and can_be_settled(merged.conflicts)


class Settling:
    """The rounds in which the conflicts of one execution are resolved."""

    def __init__(self, services: Services, execution: Execution[Job], task: str) -> None:
        self._isolation = services.isolation
        self._services = services
        self._execution = execution
        self._task = shorten(task, MAX_TASK_CHARS)
        self.spent: Usage | None = None
        """The usage of the agents so far."""

    async def run(self, merged: MergeResult | None) -> Failure | None:
        """Resolve the conflicts and merge the result. Returns the failure of the step, if any.

        `merged` is None if an earlier execution has already started to resolve them.
        """
        order = self._execution.order
        place = source = self._execution.place
        for number, name in enumerate(settling_ids(order.session), 1):
            try:
                where, dispute = await self._isolation.open_dispute(name, source, order.execution)
            except WorldError as error:  # the conflict is unresolved
                failure = self._isolation.record_merge(order, place, merged) if merged is not None else None
                failure = failure or refusal(order, "conflict", [])
                return replace(failure, message=f"{failure.message}; {error.message}")
            place.rounds.append(where)
            if dispute.conflicts:
                place.evidence.append(conflict(dispute.conflicts))
                failure = await self._settle(name, number, where, dispute)
                if failure is not None:
                    return failure
                source = where
            merged = await self._isolation.merge(order, source)
            if not merged.conflicts:
                break
        assert merged is not None, "there is at least one round"
        return self._isolation.record_merge(order, place, merged)

    async def _settle(self, name: str, number: int, where: StepWorkspace, dispute: Dispute) -> Failure | None:
        """Run one round. Returns the failure if the agent did not resolve the conflicts."""
        order, frozen = self._execution.order, self._services.frozen
        request = SessionRequest(
            session_id=name,
            run_id=order.run,
            step=f"{order.tree_path}/resolve",
            attempt=number,
            execution=order.execution,
            role=frozen.resolver_role(order.step),
            prompt=prompt_for(self._task, dispute, order.write_set),
            workspace=where.path,
            write_set=order.write_set,
            account=self._execution.account,
        )
        failure: Failure | None = None
        try:
            result = await self._services.supervisor.run_step(
                request,
                backend=frozen.backend_of(request.role),
                on_progress=self._execution.progress,
                journal=self._services.journal,
                durable=True,  # the changes of the agent are merged next
            )
            self.spent = add_usage(self.spent, result.usage)
        except SessionFailed as error:
            failure = error.failure
            self.spent = add_usage(self.spent, error.usage)
        except AuthorError as error:  # no model is configured
            failure = Failure("agent", error.code, error.message, error.hint, step=request.step)
        why = ""
        if failure is not None:
            # A paused agent, or one without budget or provider, continues with the run.
            is_agent = order.step.traits.role is not None
            paused = failure.code == "session.paused" or is_out_of_budget(failure)
            if paused or (is_agent and is_held(failure)):
                return failure
            why = failure.message
        elif left := await self._isolation.unsettled(where, dispute):
            why = f"markers are left in {', '.join(left[:5])}"
        paths = [row.path for row in dispute.conflicts]
        fact = Resolve(
            session_id=name,
            round=number,
            role=request.role.name,
            paths=tuple(paths),
            settled=not why,
            why=why,
        )
        self._execution.place.evidence.append(fact)
        return refusal(order, "conflict", paths, f"the agent did not settle it: {why}") if why else None


def prompt_for(task: str, dispute: Dispute, write_set: tuple[str, ...]) -> str:
    """The prompt for the agent: the step's task, the files with conflicts, and the meaning of markers."""
    from fanfold.workspace.receipts import BASE, OURS, THEIRS

    lines = [
        "A change could not be merged, because the same files were changed meanwhile. Settle it.",
        "",
        "The change was made for this task:",
        task,
        "",
        "This workspace is the project as it is now, with all of the change that goes together with it.",
        "These files are left:",
        *(f"- {conflict.path}: {_describe(conflict, dispute)}" for conflict in dispute.conflicts),
        "",
    ]
    if dispute.marked:
        lines += [
            "Between markers stand three versions:",
            f'- after "<<<<<<< {OURS}": what the project has now;',
            f'- after "||||||| {BASE}": what both sides began with;',
            f'- after "=======", up to ">>>>>>> {THEIRS}": what the change wants.',
            "",
        ]
    lines += [
        "Edit each file so that it keeps what both sides meant. No marker may be left. Change nothing else.",
        f"You may write: {', '.join(write_set)}",
    ]
    return "\n".join(lines)


def _describe(conflict: MergeConflict, dispute: Dispute) -> str:
    if conflict.path in dispute.marked:
        return "changed on both sides; it holds both versions between markers"
    beside = dispute.beside.get(conflict.path)
    where = f"; the change's version is in {beside}, which is removed afterwards" if beside else ""
    if conflict.ours is None and conflict.theirs is None:
        return "moved to different places by the two sides"
    if conflict.theirs is None:
        return "the change deletes or moves it, and the project changed it; the project's version is in place"
    if conflict.ours is None:
        return f"the project deleted or moved it, and the change wants it{where}"
    return f"changed on both sides, and not as text; the project's version is in place{where}"
