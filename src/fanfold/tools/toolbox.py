"""The tools that drive Fanfold, beside those that a session has anyway: for one that a person talks to.

What it starts may do what the session itself may, and its questions go to the same person. Subagents are
children of the open run that the session belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.agents.backend import SessionRequest
from fanfold.agents.permissions import Action, Ask
from fanfold.agents.toolbox import ToolFailed
from fanfold.agents.toolbox.catalogue import Tools, ToolsAround
from fanfold.agents.toolbox.schemas import ToolSpec
from fanfold.kernel.plan import JSON
from fanfold.runtime.operations.project import Project
from fanfold.runtime.operations.runs.starting.options import Options
from fanfold.runtime.records.frozen import Frozen
from fanfold.tools.caller import Caller, Filled, Form
from fanfold.tools.permission import NO, YES
from fanfold.tools.registry import BY_NAME, call_tool, offered


class DrivingTools(ToolsAround):
    """A session's own tools and those of the table; of two with one name, that of the table."""

    def __init__(
        self, project: Project, frozen: Frozen, ask: Ask | None, request: SessionRequest, own: Tools
    ) -> None:
        self._project = project
        self._request = request
        self._ask = ask
        super().__init__(own)
        wanted = request.role.tools
        self._driving = {
            tool.name: tool for tool in offered(project) if wanted is None or tool.name in wanted
        }
        self._options = Options(
            permission=frozen.permission,
            unsafe_no_sandbox=frozen.unsafe,
            backend=None if frozen.script is not None else frozen.backend,
            model=frozen.model,
            script=frozen.script,
            script_file=frozen.script_file,
        )

    def offered(self) -> Sequence[ToolSpec]:
        own = [spec for spec in super().offered() if spec.name not in self._driving]
        driving = self._driving.values()
        return [
            *own,
            *(ToolSpec(one.name, one.description, one.input_schema, one.mutates) for one in driving),
        ]

    def mutates(self, name: str) -> bool:
        return BY_NAME[name].mutates if name in BY_NAME else super().mutates(name)

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        """A tool of the table never raises: what went wrong is in what it gives."""
        if name not in self._driving:
            if name in BY_NAME:
                message = f"{name} is not for this session"
                hint = "the user can ask for a workflow, or set FANFOLD_WORKFLOWS=on where it is off"
                raise ToolFailed("permission", "permission_denied", message, hint)
            return await super().call(name, args)
        person = None if self._ask is None else _AskedPerson(self._ask, self._request)
        caller = Caller(
            project=self._project,
            options=self._options,
            person=person,
            open_run=self._request.run_id,
        )
        return await call_tool(caller, name, args)


class _AskedPerson:
    """A person who answers yes or no to one thing at a time."""

    def __init__(self, ask: Ask, request: SessionRequest) -> None:
        self._ask = ask
        self._request = request

    async def fill_in(self, form: Form) -> Filled | None:
        if "decision" not in form.properties or form.properties["decision"].get("enum") != [YES, NO]:
            return None  # a question with words of its own is answered where the run is followed
        action = Action("spawn", form.message, self._request.session_id, self._request.step)
        return Filled({"decision": YES if await self._ask(action) else NO})
