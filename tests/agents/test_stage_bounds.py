"""Stages in another role: no more of the machine than the step around them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fanfold.agents.backend import Progress, Record, SessionRequest, SessionResult
from fanfold.agents.pipelines import Pipelines
from fanfold.agents.redaction import Redactor
from fanfold.agents.role import Role, SandboxMode, Stage
from fanfold.agents.tools.toolbox import SessionTools
from fanfold.kernel.events import Usage
from tests.models.sessions import Recorder, request


class Below:
    """A back end that keeps what it was asked."""

    name = "below"

    def __init__(self) -> None:
        self.asked: list[SessionRequest] = []

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        self.asked.append(request)
        return SessionResult(output="ok", usage=Usage(), trace={})

    async def aclose(self) -> None: ...


def below(role: Role, **given: Any) -> SessionRequest:
    """What is asked for an agent stage in a role, by a step with so much."""
    inner, recorder = Below(), Recorder()
    pipelines = Pipelines(inner, find={role.name: role}.get, toolbox=SessionTools, redactor=Redactor([]))
    what = request(pipeline=(Stage(agent=role.name, prompt="Look"),), **given)
    asyncio.run(pipelines.run(what, recorder.record, recorder.show))
    (made,) = inner.asked
    return made


@pytest.mark.parametrize(
    ("step", "role", "both"),
    [
        (("read_file",), None, ("read_file",)),
        (None, ("read_file",), ("read_file",)),
        (None, None, None),
        (("read_file", "write_file"), ("Read", "Grep"), ("Read",)),
        (("read_file",), ("write_file",), ()),
        (("mcp__wiki",), ("mcp__wiki__find", "mcp__mail__send"), ("mcp__wiki__find",)),
        (("mcp__wiki__find",), ("mcp__wiki", "read_file"), ("mcp__wiki__find",)),
        (("mcp__wiki__*",), ("mcp__wiki",), ("mcp__wiki", "mcp__wiki__*")),
        (("mcp__wiki",), ("mcp__wiki__old",), ()),  # a server of its own
    ],
)
def test_an_agent_stage_has_the_tools_that_its_step_and_its_role_both_allow(step, role, both):
    servers: dict[str, dict[str, object]] = {
        name: {"command": name} for name in ("wiki", "mail", "wiki__old")
    }
    made = below(Role(name="r", description="d", tools=role, mcp_servers=servers), tools=step)
    assert made.role.tools == both
    wiki = {} if both is not None and not any("wiki" in name for name in both) else {"wiki"}
    assert set(made.role.mcp_servers) == (set(servers) if both is None else set(wiki))


@pytest.mark.parametrize(
    ("step", "role", "both"), [(3, None, 3), (None, 4, 4), (3, 9, 3), (9, 3, 3), (None, None, None)]
)
def test_an_agent_stage_has_the_fewer_turns_of_its_step_and_its_role(step, role, both):
    assert below(Role(name="r", description="d", max_turns=role), max_turns=step).role.max_turns == both


@pytest.mark.parametrize("step", [True, False])
@pytest.mark.parametrize("role", [True, False])
def test_an_agent_stage_has_network_if_both_have_it_and_writes_if_both_may(step, role):
    mode: SandboxMode = "read-only" if role else "workspace-write"
    made = below(
        Role(name="r", description="d", network=role, sandbox_mode=mode), network=step, read_only=step
    )
    assert made.role.network == (step and role)
    assert made.role.read_only == (step or role)
