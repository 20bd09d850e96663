"""What a person answers over MCP: once, to one call; what does not fit is asked again; who leaves, leaves."""

import asyncio
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult, ErrorData

from tests.mcp.conftest import ERAS, connected
from tests.mcp.test_session import Answers, use
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

NUMBERS = """\
name: numbers
steps:
  - {id: many, ask: "How many?", output_schema: {type: integer}}
  - {id: after, agent: explorer, prompt: "Make {{steps.many.output}}."}
"""


@pytest.mark.parametrize("era", ERAS)
def test_an_invalid_answer_gets_the_reason_and_a_new_question(project, http, era):
    (project / ".fanfold/workflows/numbers.yaml").write_text(NUMBERS)
    answers = Answers({"answer": "two"}, {"answer": "2"})

    async def session() -> None:
        async with connected(http(), era, elicitation_callback=answers) as client:
            done = await use(client, "run_workflow", name="numbers")
            assert (done["run"]["status"], done["run"]["output"]) == ("completed", "OK from after")

    anyio.run(session)
    assert len(answers.asked) == 2
    assert '"two" is not of type "integer"' in answers.asked[1]


@pytest.mark.parametrize("era", ERAS)
def test_a_question_that_is_never_answered_as_it_must_be_is_left_to_wait(project, http, era):
    (project / ".fanfold/workflows/numbers.yaml").write_text(NUMBERS)
    answers = Answers(*[{"answer": "many"}] * 9)

    async def session() -> None:
        async with connected(http(), era, elicitation_callback=answers) as client:
            left = (await use(client, "run_workflow", name="numbers"))["run"]
            assert (left["status"], [one["path"] for one in left["questions"]]) == ("waiting", ["many"])

    anyio.run(session)
    assert len(answers.asked) == 3


def test_a_client_that_fails_to_show_a_form_is_one_that_shows_none(project, http):
    async def fails(_context: Any, _params: Any) -> ErrorData:
        return ErrorData(code=-32603, message="no window")

    async def session() -> None:
        async with connected(http("ask"), "legacy", elicitation_callback=fails) as client:
            refused = await use(client, "run_workflow", name="write-one")
            assert refused["error"]["code"] == "permission_denied"
            assert "--permission auto" in refused["error"]["hint"]
        async with connected(http(), "legacy", elicitation_callback=fails) as client:
            left = (await use(client, "run_workflow", name="ask-first"))["run"]
            assert (left["status"], left["questions"][0]["path"]) == ("waiting", "ok")

    anyio.run(session)


def test_a_call_that_is_cancelled_while_a_person_is_asked_cancels_its_run(project, http):
    async def session() -> None:
        shown = asyncio.Event()

        async def never(_context: Any, _params: Any) -> ElicitResult:
            shown.set()
            await asyncio.Event().wait()
            raise AssertionError

        async with connected(http(), "legacy", elicitation_callback=never) as client:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(client.call_tool, "run_workflow", {"name": "ask-first"})
                    await shown.wait()
                    scope.cancel()
            status = await use(client, "workflow_status", run="last", timeout_s=PATIENCE_S)
            assert status["run"]["status"] == "cancelled"

    anyio.run(session)


def test_one_answer_starts_one_subagent_and_is_no_answer_to_another_call(project, http):
    async def session() -> None:
        async with connected(http("ask"), "2026-07-28", elicitation_callback=Answers()) as client:
            args = {"role": "explorer", "task": "look"}
            first = await client.session.call_tool("spawn_agent", args, allow_input_required=True)
            answer = {"consent": ElicitResult(action="accept", content={"decision": "allow"})}

            async def bring_back(given: dict[str, str]) -> Any:
                return await client.session.call_tool(
                    "spawn_agent",
                    given,
                    input_responses=answer,
                    request_state=first.request_state,
                    allow_input_required=True,
                )

            twice = await asyncio.gather(bring_back(args), bring_back(args))
            results = [*twice, await bring_back(args)]
            assert {one.structured_content["agent"]["id"] for one in results} == {"explorer-1"}
            with pytest.raises(MCPError):
                await bring_back({**args, "name": "other"})
            agents = (await use(client, "list_agents", all=True))["agents"]
            assert [one["id"] for one in agents] == ["explorer-1"]

    anyio.run(session)
