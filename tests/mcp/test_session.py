"""A client does a whole session: try, run, hear progress, look, search, answer, cancel; and what fails."""

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult

from fanfold.api.run_options import Options
from fanfold.api.tool_registry import TOOLS
from fanfold.wiring import make_mcp_server
from tests.mcp.conftest import ERAS, connected, stdio
from tests.tools.conftest import SLOW
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full


class Answers:
    """What the person in front of a client says, and what they were asked."""

    def __init__(self, *contents: dict[str, Any] | None) -> None:
        self._contents = list(contents)
        self.asked: list[str] = []

    async def __call__(self, _context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        content = self._contents.pop(0)
        return ElicitResult(action="decline" if content is None else "accept", content=content)


def cli(*arguments: str) -> Any:
    command = [sys.executable, "-m", "fanfold.cli.main", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S)
    return json.loads(done.stdout)


async def use(client: Any, tool: str, /, **args: Any) -> Any:
    result = await client.call_tool(tool, args)
    assert json.loads(result.content[0].text) == result.structured_content
    assert result.is_error == (not result.structured_content["ok"])
    return result.structured_content


@pytest.mark.proof("MCP client")
@pytest.mark.parametrize("era", ERAS)
def test_a_whole_session_over_stdio(project, era):
    answers = Answers(
        {"decision": "allow"}, {"decision": "allow"}, {"decision": "approve", "comment": "fine"}
    )
    progress: list[tuple[float, str]] = []

    async def hear(done: float, _total: float | None, message: str | None) -> None:
        progress.append((done, message or ""))

    async def session() -> None:
        async with connected(stdio(project), era, elicitation_callback=answers) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == [tool.name for tool in TOOLS]
            tried = await use(client, "run_workflow", name="write-one", dry_run=True)
            assert tried["forecast"]["waves"] == [["w"]]

            asked = {"name": "read-two", "inputs": {"topic": "owls"}}
            ran = (await client.call_tool("run_workflow", asked, progress_callback=hear)).structured_content
            assert (ran["run"]["status"], ran["run"]["output"]) == ("completed", "OK from sum")
            run = ran["run"]["run_id"]
            assert (await use(client, "workflow_status", run=run))["run"]["status"] == "completed"
            assert (await use(client, "query_workflow", query="sum"))["hits"][0]["run_id"] == run

            approved = await use(client, "run_workflow", name="ask-first")
            assert (approved["run"]["status"], approved["run"]["output"]) == ("completed", "OK from after")

            report = (await client.read_resource(f"fanfold://runs/{run}/report")).contents[0].text
            assert report.startswith("# read-two: completed")
            listed = [one.uri for one in (await client.list_resources()).resources]
            assert f"fanfold://runs/{run}/report" in listed
            told = (await client.read_resource(f"fanfold://runs/{run}/transcripts/sum")).contents[0].text
            assert "OK from a" in told

            prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
            assert [one.name for one in prompts["read-two"].arguments] == ["topic"]
            said = await client.get_prompt("read-two", {"topic": "owls"})
            assert '"inputs":{"topic":"owls"}' in said.messages[0].content.text

    anyio.run(session)
    assert "run read-two@1" in answers.asked[0]
    assert "run ask-first@1" in answers.asked[1]
    assert "Ship OK from look?" in answers.asked[2]
    assert any("sum completed" in line for _, line in progress), progress
    assert [done for done, _ in progress] == sorted({done for done, _ in progress})
    assert cli("inspect", "last")["steps"]["ok"]["output"]["comment"] == "fine"


@pytest.mark.parametrize("era", ERAS)
def test_a_person_who_says_no_is_obeyed_and_one_who_cannot_be_asked_is_not_skipped(project, http, era):
    async def session() -> None:
        url = http("ask")
        async with connected(url, era, elicitation_callback=Answers({"decision": "deny"})) as client:
            refused = await use(client, "run_workflow", name="write-one")
            assert refused["error"]["code"] == "permission_denied"
        async with connected(url, era) as client:
            refused = await use(client, "run_workflow", name="write-one")
            assert refused["error"]["code"] == "permission_denied"
            assert "--permission auto" in refused["error"]["hint"]
            assert (await use(client, "workflow_status"))["runs"] == []

    anyio.run(session)


def test_the_question_before_a_run_names_a_cap_of_the_user_once(project, http, monkeypatch):
    monkeypatch.setenv("FANFOLD_WORKFLOW_MAX_AGENTS", "10")
    large = "name: large\nlimits: {max_agents: 200}\nsteps: [{id: look, agent: explorer, prompt: Look}]\n"
    person = Answers({"decision": "deny"})

    async def session() -> None:
        async with connected(http("ask"), ERAS[0], elicitation_callback=person) as client:
            await use(client, "run_workflow", spec=large)

    anyio.run(session)
    assert person.asked[0].count("max_agents is 10, your cap") == 1


@pytest.mark.parametrize("era", ERAS)
def test_a_request_that_a_client_cancels_is_cancelled(project, http, era):
    async def session() -> None:
        async with connected(http(script=SLOW), era) as client:
            begun = asyncio.Event()

            async def hear(_done: float, _total: float | None, message: str | None) -> None:
                if "started" in (message or ""):
                    begun.set()

            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:

                    async def call() -> None:
                        asked = {"name": "read-two", "inputs": {"topic": "owls"}}
                        await client.call_tool("run_workflow", asked, progress_callback=hear)

                    group.start_soon(call)
                    await begun.wait()
                    scope.cancel()
            status = await use(client, "workflow_status", run="last", timeout_s=PATIENCE_S)
            assert status["run"]["status"] == "cancelled"

    anyio.run(session)


@pytest.mark.parametrize(
    ("tool", "args", "run"),
    [
        ("run_workflow", {"name": "read-two", "inputs": {"topic": "owls"}}, "last"),
        ("task", {"role": "explorer", "task": "look", "name": "looker"}, "hand"),
    ],
)
def test_a_client_that_goes_away_leaves_what_it_started_alone(project, tool, args, run):
    server = stdio(project, "--permission", "auto")
    (project / "script.yaml").write_text(SLOW)
    command = [server.command, *server.args]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    for message in (
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": args}},
    ):
        process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
    while "running" not in running(run):
        assert process.poll() is None
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 0
    process.stdout.close()
    assert "running" in running(run)
    assert cli("inspect", run)["owner"]["alive"] is True
    assert cli("cancel", run)["status"] == "cancelled"


def running(run: str) -> list[str]:
    """How the steps of a run stand; nothing where it has not begun."""
    return [step["status"] for step in cli("inspect", run).get("steps", {}).values()]


def test_a_run_over_mcp_is_approved_in_a_terminal_while_the_client_still_asks(project):
    opened = asyncio.Event()

    async def never(_context: Any, _params: Any) -> ElicitResult:
        opened.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def session() -> None:
        async with connected(
            stdio(project, "--permission", "auto"), "legacy", elicitation_callback=never
        ) as client:
            call = asyncio.create_task(client.call_tool("run_workflow", {"name": "ask-first"}))
            await opened.wait()
            assert (await asyncio.to_thread(cli, "approve", "last", "ok"))["decision"] == "approve"
            done = (await call).structured_content
            assert done["run"]["status"] == "completed"

    asyncio.run(session())


def test_a_run_from_a_terminal_is_seen_over_mcp(project, http):
    (project / "script.yaml").write_text("default: found\n")
    ran = cli("run", "read-two", "-i", "topic=owls", "--script", "script.yaml")

    async def session() -> None:
        async with connected(http(), "legacy") as client:
            status = await use(client, "workflow_status", run=ran["run_id"])
            assert status["run"]["output"] == "found"

    anyio.run(session)


@pytest.mark.parametrize("era", ERAS)
def test_a_run_from_a_terminal_is_approved_by_the_person_in_front_of_a_client(project, http, era):
    (project / "script.yaml").write_text("default: found\n")
    ran = cli("run", "ask-first", "--script", "script.yaml")
    assert ran["status"] == "waiting"
    answers = Answers({"decision": "approve", "comment": "from afar"})

    async def session() -> None:
        async with connected(http(), era, elicitation_callback=answers) as client:
            assert (await use(client, "workflow_status", run=ran["run_id"]))["run"]["status"] == "waiting"
            assert answers.asked == [], "who only looks asks nobody"
            status = await use(client, "workflow_status", run=ran["run_id"], timeout_s=PATIENCE_S)
            assert (status["run"]["status"], status["run"]["output"]) == ("completed", "found")

    anyio.run(session)
    assert cli("inspect", ran["run_id"])["steps"]["ok"]["output"]["comment"] == "from afar"


@pytest.mark.parametrize("era", ERAS)
def test_a_run_from_a_terminal_is_cancelled_over_mcp_by_its_id_alone_and_if_the_person_agrees(
    project, http, era
):
    (project / "script.yaml").write_text(SLOW)
    run = cli("run", "read-two", "-i", "topic=owls", "--script", "script.yaml", "--detach")["run_id"]
    answers = Answers({"decision": "deny"}, {"decision": "allow"})

    async def session() -> None:
        async with connected(http("ask"), era, elicitation_callback=answers) as client:
            for other in ("last", run[:6], "hand"):
                refused = await use(client, "close_agent", agent=other)
                assert refused["error"]["code"] == "not_found"
            assert (
                f"cancel the run {run}"
                in (await use(client, "close_agent", agent=run, dry_run=True))["would"]
            )
            assert (await use(client, "close_agent", agent=run))["error"]["code"] == "permission_denied"
            closed = await use(client, "close_agent", agent=run)
            assert closed["run"]["status"] == "cancelled"

    anyio.run(session)
    assert len(answers.asked) == 2
    assert cli("inspect", run)["status"] == "cancelled"


def test_an_answer_that_is_sent_twice_starts_one_run(project, http):
    """In the newer protocol the client brings the answer in a call of its own, and may repeat it."""

    async def session() -> None:
        async with connected(http("ask"), "2026-07-28", elicitation_callback=Answers()) as client:
            args = {"name": "read-two", "inputs": {"topic": "owls"}}
            first = await client.session.call_tool("run_workflow", args, allow_input_required=True)
            answer = {"consent": ElicitResult(action="accept", content={"decision": "allow"})}
            runs = set()
            for _ in range(2):
                done = await client.session.call_tool(
                    "run_workflow",
                    args,
                    input_responses=answer,
                    request_state=first.request_state,
                    allow_input_required=True,
                )
                runs.add(done.structured_content["run"]["run_id"])
            assert len(runs) == 1
            assert len((await use(client, "workflow_status"))["runs"]) == 1
            # An answer to another question, or without the state that was handed out, asks again.
            for state in (None, first.request_state[:-4] + "AAAA"):
                try:
                    again = await client.session.call_tool(
                        "run_workflow",
                        args,
                        input_responses=answer,
                        request_state=state,
                        allow_input_required=True,
                    )
                except MCPError:
                    continue
                assert again.result_type == "input_required"

    anyio.run(session)


def test_workflows_switched_off_withhold_the_tools_that_start_them_and_leaves_reports_readable(
    project, http, monkeypatch
):
    ran = cli("run", "read-two", "-i", "topic=owls", "--script", str(_script(project)))
    monkeypatch.setenv("FANFOLD_WORKFLOWS", "off")

    async def session() -> None:
        async with connected(http(), "legacy") as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert "workflow_status" in names
            assert not names & {"plan_workflow", "run_workflow"}
            assert not (await client.list_prompts()).prompts  # each says to call run_workflow
            refused = await client.call_tool(
                "run_workflow", {"name": "read-two", "inputs": {"topic": "owls"}}
            )
            assert refused.structured_content["error"]["code"] == "permission_denied"
            report = await client.read_resource(f"fanfold://runs/{ran['run_id']}/report")
            assert "OK from sum" in report.contents[0].text

    anyio.run(session)


def _script(project):
    file = project / "script.yaml"
    file.write_text("default: OK from {{step}}\n")
    return file


@pytest.mark.parametrize("header", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
def test_other_hosts_and_origins_are_refused(project, http, header):
    import httpx2

    url = http()
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    accept = {"Accept": "application/json, text/event-stream"}
    refused = httpx2.post(url, json=body, headers={**accept, **header})
    assert refused.status_code in (403, 421)


def test_nothing_but_the_protocol_is_on_stdout(project):
    server = stdio(project, "--permission", "auto")
    (project / ".fanfold" / "workflows" / "broken.yaml").write_text("name: [\n")
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    lines = [
        "this is not JSON",
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json.dumps({"jsonrpc": "2.0", "id": 2, "method": "prompts/list"}),
        json.dumps({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "nothing"}}),
    ]
    process = subprocess.Popen(
        [server.command, *server.args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n".join(lines) + "\n")
    process.stdin.flush()
    heard = [json.loads(process.stdout.readline())]
    while heard[-1].get("id") != 3:
        heard.append(json.loads(process.stdout.readline()))
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 0
    assert process.stdout.read() == ""
    process.stdout.close()
    assert all(one["jsonrpc"] == "2.0" for one in heard)
    assert [one["name"] for one in heard[-2]["result"]["prompts"] if one["name"] == "broken"] == []


def request(number: Any, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "ping", **more}


@pytest.mark.parametrize(
    ("line", "answered", "code"),
    [
        ("this is not JSON", [None], -32700),
        (json.dumps(request(5, params={"half": "\ud83d"})), [5], -32700),
        (json.dumps([request(6), request("seven"), {"jsonrpc": "2.0", "method": "x"}]), [6, "seven"], -32600),
        (json.dumps(request(8, jsonrpc="1.0")), [8], -32600),
        (json.dumps(request(True, params=[])), [None], -32600),
        ('{"jsonrpc":"2.0","id":9,"params":' + "[" * 100_000, [None], -32700),
        ("  ", [], 0),
    ],
)
def test_an_invalid_message_gets_an_error_and_the_next_one_works(project, line, answered, code):
    server = stdio(project)
    process = subprocess.Popen(
        [server.command, *server.args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n{json.dumps(request(99))}\n")
    process.stdin.flush()
    heard = [json.loads(process.stdout.readline()) for _ in [*answered, "the ping"]]
    process.communicate(timeout=PATIENCE_S)
    assert {(one["id"], one["error"]["code"]) for one in heard[:-1]} == {(one, code) for one in answered}
    assert (heard[-1]["id"], heard[-1]["result"]) == (99, {})


@pytest.mark.parametrize("then", ["", '{"jsonrpc": "2.0", "id": 2, "meth'])
def test_a_client_that_is_gone_before_it_is_answered_is_no_error(project, then):
    server = stdio(project)
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    process = subprocess.Popen(
        [server.command, *server.args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    process.stdin.write(json.dumps(asked) + "\n" + then)
    process.stdin.close()
    assert process.stderr.read() == ""
    assert process.wait(PATIENCE_S) == 0
    process.stderr.close()


def test_a_server_of_a_project_that_cannot_be_used_says_so_before_a_client_waits(project):
    (project / ".fanfold" / "config.toml").write_text("[workflows]\nmax_agents = 0\n")
    done = subprocess.run(
        [sys.executable, "-m", "fanfold.cli.main", "mcp"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
        text=True,
        env=dict(os.environ),
    )
    (project / ".fanfold" / "config.toml").unlink()
    assert done.returncode == 2
    assert "config.out_of_range" in done.stderr


def test_fifty_children_six_at_a_time_in_order(project):
    slow = "".join(f"  explorer-{number}: {{output: ok, delay_ms: 12000}}\n" for number in range(1, 7))
    server = make_mcp_server(project, Options(permission="auto", script=f"default: ok\nsteps:\n{slow}"))

    async def session() -> None:
        async with connected(server, "auto") as client:
            ids = [
                (await use(client, "spawn_agent", role="explorer", task=f"look {number}"))["agent"]["id"]
                for number in range(50)
            ]
            done = await use(client, "wait_agent", agents=ids, timeout_s=PATIENCE_S)
            assert [one["status"] for one in done["agents"]] == ["completed"] * 50

    anyio.run(session)
    begun: list[str] = []
    live: list[int] = [0]
    command = [sys.executable, "-m", "fanfold.cli.main", "logs", "hand", "--json"]
    log = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S).stdout
    for line in log.splitlines():
        data = json.loads(line)["data"]
        if data.get("subagent_id") and data["status"] == "started":
            begun.append(data["subagent_id"])
            live.append(live[-1] + 1)
        elif data.get("subagent_id") and data["status"] == "finished":
            live.append(live[-1] - 1)
    assert begun == [f"explorer-{number}" for number in range(1, 51)]
    assert (max(live), live[-1]) == (6, 0)
