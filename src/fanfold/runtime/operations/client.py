"""Fanfold from Python: open a project, start recipes, follow them, get typed results.

async with fanfold.open(".") as ff:
    run = await ff.start("audit.yaml", packages=["a", "b"])
    async for event in run.events():
        ...
    result = await run.result()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Self

from msgspec import structs, to_builtins

from fanfold.errors import AuthorError
from fanfold.kernel.events import Envelope
from fanfold.kernel.lifecycle import RUN_TERMINAL
from fanfold.kernel.plan import JSON, Plan
from fanfold.runtime.hosting.host import Host, now_ms
from fanfold.runtime.hosting.requests import Verdict, answer_approval, check_choice, find_approval
from fanfold.runtime.hosting.run_tree import RunTree, run_status
from fanfold.runtime.operations.project import Options, Project
from fanfold.runtime.operations.runs.permission import denied, needs_permission
from fanfold.runtime.views.documents import head_document
from fanfold.runtime.views.result import Result, StepResult, to_result

__all__ = ["Client", "Result", "RunHandle", "StepResult"]

FindPlan = Callable[[Any], Plan]


class RunHandle:
    """One run this process drives."""

    def __init__(self, client: Client, tree: RunTree, host: Host, work: asyncio.Task[None]) -> None:
        self.id = tree.root.id
        self._client = client
        self._tree = tree
        self._host = host
        self._work = work

    @property
    def status(self) -> str:
        return run_status(self._tree.state, self._tree.root)

    async def events(self) -> AsyncIterator[Envelope]:
        """Every event of the tree in order, from the first, then live until the run stops."""
        queue: asyncio.Queue[Envelope | None] = asyncio.Queue()
        seen = 0

        def watch(written: list[Envelope], _tree: RunTree) -> None:
            for envelope in written:  # as it will be read from the log: plain JSON data
                queue.put_nowait(structs.replace(envelope, data=to_builtins(envelope.data)))

        self._host.watchers.append(watch)
        self._work.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            for envelope in list(self._client.project.store.tree(self.id)):
                seen = envelope.tree_seq
                yield envelope
            while (live := await queue.get()) is not None:
                if live.tree_seq > seen:
                    seen = live.tree_seq
                    yield live
        finally:
            self._host.watchers.remove(watch)

    async def result(self) -> Result:
        """Wait until the run ended, paused, or waits for people only."""
        await self._work
        return to_result(self._tree)

    async def approve(
        self, step: str, *, choice: str | None = None, comment: str | None = None, edited: JSON = None
    ) -> None:
        self._answer(step, Verdict(choice or "approve", "api", comment, edited))

    async def reject(self, step: str, *, comment: str | None = None) -> None:
        self._answer(step, Verdict("reject", "api", comment))

    def _check_driven(self) -> None:
        if self._work.done():
            raise AuthorError(
                "run.not_driven",
                f"run {self.id} is {self.status} and nobody drives it here",
                hint=f'take it over first: await client.resume("{self.id}")',
            )

    def _answer(self, step: str, verdict: Verdict) -> None:
        self._check_driven()
        node = find_approval(self._tree.state, step)
        check_choice(node, verdict.decision)
        answer_approval(self._tree, step, verdict, now_ms())
        self._host.look_for_requests()

    async def cancel(self) -> None:
        if self.status in RUN_TERMINAL:
            return
        self._check_driven()
        self._host.cancel()
        await self._work

    async def pause(self) -> None:
        self._host.pause()
        await self._work

    async def leave(self) -> None:
        """Let go of the run: what still runs is paused and can be resumed by anybody."""
        if self.status not in RUN_TERMINAL and not self._work.done():
            self._host.pause()
        await self._work


class Client:
    """An open project. Use it as an async context manager; leaving it pauses what still runs."""

    def __init__(self, project: Project, find_plan: FindPlan) -> None:
        self.project = project
        self._find_plan = find_plan
        self._runs: list[RunHandle] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(run.leave() for run in self._runs), return_exceptions=True)
        self.project.close()

    async def start(
        self,
        recipe: Any,
        /,
        *,
        inputs: Mapping[str, JSON] | None = None,
        options: Options | None = None,
        **named: JSON,
    ) -> RunHandle:
        """Start a recipe: a name, a file, or a `Recipe`. Inputs by name, or as a mapping."""
        tree = self._create(recipe, {**(inputs or {}), **named}, options or Options())
        return self._drive(tree, resumed=False)

    async def run(
        self,
        recipe: Any,
        /,
        *,
        inputs: Mapping[str, JSON] | None = None,
        options: Options | None = None,
        **named: JSON,
    ) -> Result:
        """Run a recipe until it ends, pauses, or waits for people only."""
        tree = self._create(recipe, {**(inputs or {}), **named}, options or Options())
        return await self._drive(tree, resumed=False, leave_when_waiting=True).result()

    def _create(self, recipe: Any, inputs: Mapping[str, JSON], options: Options) -> RunTree:
        plan = self._find_plan(recipe)
        lines = needs_permission(plan, self.project.find_role)
        if lines and options.permission != "auto":
            raise denied(plan, lines)
        return self.project.create(plan, inputs, options)

    async def resume(self, run: str) -> RunHandle:
        """Take a paused or abandoned run over and go on."""
        tree = self.project.own(self.project.resolve(run).root_run_id)
        return self._drive(tree, resumed=True)

    def _drive(self, tree: RunTree, *, resumed: bool, leave_when_waiting: bool = False) -> RunHandle:
        host = self.project.host(tree, leave_when_waiting=leave_when_waiting)

        async def work() -> None:
            try:
                await (host.resume() if resumed else host.start())
            except BaseException:
                self.project.let_go(tree)
                raise
            self.project.done(tree)

        handle = RunHandle(self, tree, host, asyncio.create_task(work()))
        self._runs.append(handle)
        return handle

    def runs(self, limit: int = 100) -> list[dict[str, Any]]:
        """Heads of root runs, newest first."""
        return [head_document(head) for head in self.project.store.heads(limit=limit)]
