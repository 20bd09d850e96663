"""Fanfold from Python: open a project, start recipes, follow them, get typed results.

async with fanfold.open(".") as ff:
    run = await ff.start("audit.yaml", packages=["a", "b"])
    async for event in run.events():
        ...
    result = await run.result()
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Literal, Self, TypeAlias, TypedDict, TypeVar, Unpack, overload

from fanfold.errors import AuthorError
from fanfold.kernel.events import Raised
from fanfold.kernel.plan import JSON, Plan
from fanfold.recipe.builder import Recipe
from fanfold.runtime.operations.addresses import find_run
from fanfold.runtime.operations.agents import delegation, subagents
from fanfold.runtime.operations.arguments import all_checked
from fanfold.runtime.operations.looks import Looks
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs import control
from fanfold.runtime.operations.runs.again.fork import AtTurn, ChosenAgents, at_turn, plan_fork, start_fork
from fanfold.runtime.operations.runs.again.retry import Retried, plan_retry
from fanfold.runtime.operations.runs.files.changes import apply
from fanfold.runtime.operations.runs.files.undo import undo
from fanfold.runtime.operations.runs.handle import API, RunHandle
from fanfold.runtime.operations.runs.ownership import Owned, take_over
from fanfold.runtime.operations.runs.starting.creation import start
from fanfold.runtime.operations.runs.starting.limits import check_raised
from fanfold.runtime.operations.runs.starting.options import Options
from fanfold.runtime.operations.specs.draft import Wanted, draft_spec
from fanfold.runtime.operations.specs.intent import workflow_suitable
from fanfold.runtime.views.approvals import Answered
from fanfold.runtime.views.recipes.specs import DraftedSpec, Suitability
from fanfold.runtime.views.runs.changes import Applied, Undone
from fanfold.runtime.views.runs.result import Result, TypedResult
from fanfold.runtime.views.runs.rows import RunRow, run_row
from fanfold.runtime.views.runs.typed_output import check_type
from fanfold.runtime.views.sessions.subagents import Subagent
from fanfold.sessions.insist import insist

T = TypeVar("T")
AnyRecipe: TypeAlias = str | os.PathLike[str] | Recipe
"""A recipe by name, by file, or built in code."""


class TaskOptions(TypedDict, total=False):
    """What may be said about a subagent besides its role and its task; see `Task`."""

    name: str
    timeout_ms: int
    write_set: tuple[str, ...]
    merge: delegation.Merge | None
    on_conflict: Literal["fail", "resolve"]
    shared: bool
    output_schema: JSON
    parent: str


class AgentsOptions(TypedDict, total=False):
    """Who does the work of a new run that is made of another one."""

    model: str | None
    backend: str | None
    script: str | None


@all_checked
class Client(Looks):
    """An open project. Use it as an async context manager; leaving it pauses what still runs."""

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        self._runs: set[RunHandle] = set()
        """Those that it drives, or whose failure nobody may have heard of."""
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<project {self.project.folder}>"

    async def __aenter__(self) -> Self:
        self.project.check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave the project: what still runs is paused first, whoever is cancelled meanwhile. An agent may
        end its turn and a function has ten seconds for it, so this can take a while.
        """
        if self._process != os.getpid():
            return  # a fork has none of it
        runs = [run for run in self._runs if not run.is_stranded]
        for run in runs:
            run.check_loop()
        try:
            works = [run.let_go() for run in runs]
            await insist(asyncio.gather(*works, return_exceptions=True))
        finally:
            self.project.close()
            for run in runs:
                run.tell_unheard()

    async def start(
        self,
        recipe: AnyRecipe,
        /,
        *,
        inputs: Mapping[str, JSON] | None = None,
        options: Options | None = None,
        **named: JSON,
    ) -> RunHandle:
        """Start a recipe: a name, a file, or a `Recipe`. Inputs by name, or as a mapping."""
        return self._drive(self._record(recipe, inputs or {}, named, options))

    @overload
    async def run(
        self,
        recipe: AnyRecipe,
        /,
        *,
        output: None = None,
        inputs: Mapping[str, JSON] | None = None,
        options: Options | None = None,
        **named: JSON,
    ) -> Result: ...
    @overload
    async def run(
        self,
        recipe: AnyRecipe,
        /,
        *,
        output: type[T],
        inputs: Mapping[str, JSON] | None = None,
        options: Options | None = None,
        **named: JSON,
    ) -> TypedResult[T]: ...
    async def run(
        self,
        recipe: AnyRecipe,
        /,
        *,
        output: type[T] | None = None,
        inputs: Mapping[str, JSON] | None = None,
        options: Options | None = None,
        **named: JSON,
    ) -> Result | TypedResult[T]:
        """Run a recipe until it ends, pauses, or waits for people only; with `output`, a type, its output is
        a value of that type.
        """
        if output is not None:
            check_type(output)
        owned = self._record(recipe, inputs or {}, named, options)
        run = self._drive(owned, leave_when_waiting=True)
        async for _ in run.follow():
            pass  # until nobody drives it: whoever has its result may answer it or go on with it at once
        return run.result_now() if output is None else run.result_now(output)

    def _record(
        self,
        recipe: AnyRecipe,
        inputs: Mapping[str, JSON],
        named: Mapping[str, JSON],
        options: Options | None,
    ) -> Owned:
        options = options or Options()
        for name in named:
            if name in inputs:
                message = f'input "{name}" is given twice: by its name and in `inputs`'
                raise AuthorError("usage.conflict", message, hint="leave one of them out")
        plan = self.plan_of(recipe, scripted=options.script is not None)
        return start(self.project, plan, {**inputs, **named}, options)

    def plan_of(self, recipe: AnyRecipe, *, scripted: bool = False) -> Plan:
        """The plan of a recipe by name, by file or built in code; raises `Refused`."""
        return self.project.plan_of(recipe, scripted=scripted)

    async def resume(
        self,
        run: str,
        *,
        max_agents: int | None = None,
        max_steps: int | None = None,
        budget_tokens: int | None = None,
        budget_micro_usd: int | None = None,
    ) -> RunHandle:
        """Take a paused or abandoned run over and go on, with higher limits where any are given."""
        root = self.project.resolve(run).root_run_id
        wanted = Raised(max_agents, max_steps, budget_tokens, budget_micro_usd)
        raised = None
        if wanted != Raised():
            raised = check_raised(self.project, self.project.view(root), wanted)
        return self._drive(take_over(self.project, root), resumed=True, raised=raised)

    def _drive(
        self,
        owned: Owned,
        *,
        resumed: bool = False,
        raised: Raised | None = None,
        leave_when_waiting: bool = False,
    ) -> RunHandle:
        handle = RunHandle(owned, resumed=resumed, raised=raised, leave_when_waiting=leave_when_waiting)
        self._runs.add(handle)
        handle.when_at_rest(self._runs.discard)  # any number of runs may come and go in one project
        return handle

    async def fork(
        self,
        run: str,
        step: str | None = None,
        *,
        inputs: Mapping[str, JSON] | None = None,
        prompts: Mapping[str, str] | None = None,
        turn: int | None = None,
        say: str | None = None,
        yes: bool = False,
        **agents: Unpack[AgentsOptions],
    ) -> RunHandle:
        """A new run out of another one that keeps every result the change does not reach.

        With `turn` the agent of the step goes on with its conversation as it was after that turn, and is told
        what to `say` next. `yes` allows what the recipe declares, where the run was to ask for it. The agents
        are those of the run it comes from, unless a `model`, a `backend` or the text of a `script` is named.
        """
        found = find_run(self.project, run)
        path = None if step is None else found.tree_path(step)
        at = at_turn(turn, say)
        chosen = ChosenAgents(**agents)
        fork = plan_fork(found.tree, path, inputs or {}, prompts or {}, at, chosen)
        return self._drive(start_fork(self.project, fork, yes=yes))

    async def retry(
        self,
        run: str,
        *,
        recipe: Recipe | None = None,
        yes: bool = False,
        **agents: Unpack[AgentsOptions],
    ) -> RunHandle:
        """A new run that does again what did not succeed in another one, and keeps what completed.

        The recipe is read again from its file; one that was built in code is given again, or taken as it was.
        Its agents are chosen as for a fork. `yes` allows what the recipe declares beyond what was allowed.
        """
        tree = find_run(self.project, run).tree
        wanted = Retried(agents=ChosenAgents(**agents), recipe=recipe)
        return self._drive(start_fork(self.project, plan_retry(self.project, tree, wanted), yes=yes))

    async def apply(self, run: str, step: str, *, dry_run: bool = False) -> Applied:
        """Merge what a step proposed into the project as it is now."""
        return await apply(self.project, run, step, dry_run=dry_run)

    async def undo(self, run: str, step: str | None = None, *, dry_run: bool = False) -> Undone:
        """Take back what a run that is over, or a step of it, merged, unless its files were changed since."""
        return await undo(self.project, run, step, dry_run=dry_run)

    # Asking something of a run, whichever process drives it

    async def approve(
        self,
        run: str,
        step: str | None = None,
        *,
        choice: str | None = None,
        comment: str | None = None,
        edited: JSON = None,
    ) -> Answered:
        """Answer an approval (without `step`, the only one that waits) with yes or one of its choices, and
        wait until the answer is recorded. A run that no process drives goes on in the background.
        """
        return await control.answer(self.project, run, step, choice or "approve", comment, edited, by=API)

    async def reject(self, run: str, step: str | None = None, *, comment: str | None = None) -> Answered:
        """Answer an approval with no."""
        return await control.answer(self.project, run, step, "reject", comment, by=API)

    async def answer(self, run: str, step: str, answer: JSON) -> Answered:
        """Answer the question of an `ask` step: in words, or with data that fits its schema."""
        return await control.reply(self.project, run, step, control.as_answer(answer), by=API)

    async def pause(self, run: str) -> RunRow:
        """Pause a run and wait until it has paused; `resume` goes on with it."""
        return run_row(await control.pause(self.project, run))

    async def cancel(self, run: str) -> RunRow:
        """Cancel a run or child run and wait until nothing of it runs any more."""
        return run_row(await control.cancel(self.project, run))

    # Subagents

    async def spawn_agent(
        self,
        role: str,
        task: str,
        *,
        options: Options | None = None,
        key: str = "",
        **more: Unpack[TaskOptions],
    ) -> Subagent:
        """Delegate a task to a subagent in the background. With the same `key` it is not started again."""
        wanted = delegation.Task(role=role, task=task, **more)
        return await subagents.spawn(self.project, wanted, options or Options(), key=key)

    async def fork_agent(self, name: str, turn: int, say: str | None = None) -> Subagent:
        """A new subagent that goes on with what another one said up to a turn."""
        return await subagents.fork_subagent(self.project, name, AtTurn(turn, say))

    async def wait_agent(self, *names: str, timeout_s: float = subagents.WAIT_S) -> dict[str, list[Subagent]]:
        """How subagents (all that run, when none is named) stand when they are over or the time is."""
        return await subagents.wait(self.project, names, timeout_s)

    async def send_input(self, name: str, text: str | None = None, *, resume: bool = False) -> Subagent:
        """Say something to a subagent: its next turn. `resume` goes on with one that lost its process."""
        return await subagents.send_input(self.project, name, text, resume=resume)

    async def close_agent(self, name: str) -> Subagent:
        """Cancel a subagent that is queued or running; close any other for good."""
        return await subagents.close(self.project, name)

    def list_agents(self) -> list[Subagent]:
        """All subagents of the project, oldest first."""
        return subagents.list_subagents(self.project)

    # Planning

    async def plan(
        self, task: str, *, refine: str | None = None, use_model: bool = True, options: Options | None = None
    ) -> DraftedSpec:
        """Draft a recipe for a task, or change the one that `refine` names; nothing of it runs."""
        found = None if refine is None else self.project.find_recipe(refine)
        return await draft_spec(
            self.project, Wanted(task=task, refine=found, use_model=use_model), options or Options()
        )

    async def workflow_suitable(self, text: str) -> Suitability:
        """Whether a request is work for a workflow of several agents, with the reason."""
        return await workflow_suitable(self.project, text)
