"""Pipelines: sessions whose role has stages, on top of a back end that runs one loop.

Rules
* For the inner back end, a stage is a separate session. For all other code there is one session, with the
  same workspace and the same log. Entries of a stage are recorded with its number and returned to the stage
  without it. So a stage that was interrupted by a crash continues after its own entries.
* The output of a stage is recorded when it ends. A finished stage never runs again.
* A tool stage follows the rule of all tools: a mutating call is recorded before it runs. If the process died
  during the call, its outcome is unknown. There is no model to inspect the workspace, so the session fails.
* An agent stage has its role's instructions and model, limited to the permissions of both its role and the
  session: the tools and servers that both lists allow, the lower number of turns, the network only if both
  have it, and read-only if one of them is.
* The last stage's output is the session's output. The step's requirements for its output apply to that stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import structs

from fanfold.agents.backend import (
    Backend,
    Progress,
    Record,
    SessionFailed,
    SessionRequest,
    SessionResult,
    Tools,
)
from fanfold.agents.entries import (
    E,
    Entry,
    StageBegin,
    StageEnd,
    StageNews,
    ToolCall,
    ToolResult,
    redacted,
    since_last_input,
)
from fanfold.agents.redaction import Redactor
from fanfold.agents.role import DEFAULT_MODEL, Role, Stage, for_stage, inside
from fanfold.agents.role_tools import fill
from fanfold.agents.tools.toolbox import run_call
from fanfold.kernel.events import NOTHING_SPENT, Failure, Usage
from fanfold.kernel.plan import JSON
from fanfold.language.json_text import as_text
from fanfold.language.template import UnresolvedPath


class Pipelines:
    """A session strategy: runs the stages of a role's pipeline, each on the inner back end.

    `find` returns the roles that stages name. `model` is the user's model for the whole run, if set.
    """

    def __init__(
        self,
        inner: Backend,
        *,
        find: Callable[[str], Role | None],
        toolbox: Callable[[SessionRequest], Tools],
        redactor: Redactor,
        model: str | None = None,
    ) -> None:
        self.name = inner.name
        self.inner = inner
        self.find = find
        self.toolbox = toolbox
        self.redactor = redactor
        self.model = model

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        return await _PipelineSession(self, request, record, progress).run()

    async def aclose(self) -> None:
        await self.inner.aclose()


class _PipelineSession:
    """One session in stages."""

    def __init__(
        self, backend: Pipelines, request: SessionRequest, record: Record, progress: Progress
    ) -> None:
        self.backend = backend
        self.request = request
        self._record = record
        self.progress = progress
        self._stages = request.role.pipeline
        self._turn = since_last_input(request.entries)
        self._values: dict[str, Any] = {"prompt": request.prompt, "previous": None, "stages": {}}
        self._usage = NOTHING_SPENT
        self._traces: list[dict[str, Any]] = []

    async def run(self) -> SessionResult:
        output: JSON = None
        for number, stage in enumerate(self._stages, 1):
            try:
                output = await self._stage(number, stage)
            except SessionFailed as failed:
                # Add the stage to the failure, and count the usage of the stages before it.
                failed.usage = self._usage if failed.usage is None else self._usage + failed.usage
                where = f"stage {number}" + (f" ({stage.name})" if stage.name else "")
                failed.failure = structs.replace(failed.failure, message=f"{where}: {failed.failure.message}")
                raise
            self._values["previous"] = output
            if stage.name:
                self._values["stages"][stage.name] = output
        trace = {"backend": self.backend.name, "stages": self._traces, "continued": bool(self._turn)}
        return SessionResult(output=output, usage=self._usage, trace=trace)

    async def _stage(self, number: int, stage: Stage) -> JSON:
        recorded = [structs.replace(entry, stage=0) for entry in self._turn if entry.stage == number]
        for entry in recorded:
            if isinstance(entry, StageEnd):
                self._usage += entry.usage or Usage()
                return entry.output
        self.progress(StageNews(number, len(self._stages), stage.name))
        if stage.kind == "tool":
            return await _ToolStage(self, number, stage).run(recorded)
        request = self._asked(number, stage)
        if not recorded:  # for readers of the log, which has the task but not the prompt of each stage
            prompt = self.backend.redactor.text(request.prompt)
            await self.note(number, StageBegin(name=stage.name, prompt=prompt))
        entries = [entry for entry in recorded if not isinstance(entry, StageBegin)]
        request = structs.replace(request, entries=entries)

        async def record(entry: Entry, *, may_wait: bool = False) -> None:  # noqa: ARG001 - the end may be far
            await self.note(number, entry)

        result = await self.backend.inner.run(request, record, self.progress)
        self._usage += result.usage
        self._traces.append(result.trace)
        await self.note(number, StageEnd(output=result.output, usage=result.usage))
        return result.output

    def _asked(self, number: int, stage: Stage) -> SessionRequest:
        """Return the request to the inner back end for a model or agent stage."""
        whole = self.request
        last = number == len(self._stages)
        request = structs.replace(
            whole, prompt=as_text(self.filled(stage.prompt)), output_schema=stage.output_schema, outputs=()
        )
        if last and (whole.output_schema is not None or whole.outputs):
            request = structs.replace(request, output_schema=whole.output_schema, outputs=whole.outputs)
        if stage.kind == "agent":
            other = self.backend.find(str(stage.agent))
            if other is None:
                message = f'there is no role "{stage.agent}" for a stage'
                raise SessionFailed(Failure("agent", "role.not_found", message, retryable=False))
            model = self.backend.model or other.model
            return structs.replace(request, role=inside(other, request.role, model=model))
        role = for_stage(
            whole.role,
            model=whole.role.model if stage.model == DEFAULT_MODEL else stage.model,
            instructions=stage.instructions,
            max_turns=stage.max_turns,
            tools=stage.tools,
        )
        return structs.replace(request, role=role)

    def filled(self, value: JSON) -> JSON:
        """Return a value of a stage with the earlier outputs filled into its texts."""
        try:
            return fill(value, self._values)
        except UnresolvedPath as error:
            failure = Failure("agent", "pipeline.unresolved", str(error), retryable=False)
            raise SessionFailed(failure) from None

    async def note(self, number: int, entry: Entry) -> None:
        """Record an entry of a stage."""
        await self._record(structs.replace(entry, stage=number))


class _ToolStage:
    """One tool call, recorded like a model's call."""

    def __init__(self, session: _PipelineSession, number: int, stage: Stage) -> None:
        self._session = session
        self._number = number
        self._tool = str(stage.tool)
        self._args = stage.args
        self._name = f"stage_{number}"

    async def run(self, entries: Sequence[Entry]) -> JSON:
        for entry in entries:
            if isinstance(entry, ToolResult):
                return self._outcome(entry)
        tools = self._session.backend.toolbox(self._session.request)
        try:
            await tools.open()
            if entries and tools.mutates(self._tool):
                result = ToolResult(id=self._name, tool=self._tool, outcome="unknown")
            else:
                call = ToolCall(id=self._name, tool=self._tool, args=self._session.filled(self._args))
                result = await run_call(tools, call, self._note, self._session.progress)
            return self._outcome(await self._note(result))
        finally:
            await tools.aclose()

    async def _note(self, entry: E) -> E:
        entry = redacted(entry, partial(self._session.backend.redactor.json, shapes=False))
        await self._session.note(self._number, entry)
        return entry

    def _outcome(self, entry: ToolResult) -> JSON:
        """Return the result or raise the failure of a call; the same for a new and a stored one."""
        if entry.outcome == "unknown":
            message = f"the process died while {self._tool} ran; it is unknown whether it finished"
            hint = "inspect the workspace, then retry the run: the step starts again"
            raise SessionFailed(Failure("tool", "tool.outcome_unknown", message, hint, retryable=False))
        error = entry.error
        if error is not None:
            failure = Failure(error.kind or "tool", error.code, error.message, error.hint, retryable=False)
            raise SessionFailed(failure)
        return entry.result
