"""MCP at `/mcp` of `fanfold serve`, and subagents whose process was killed."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from fanfold.api.run_options import Options
from fanfold.wiring import make_mcp_server, wire
from tests.mcp.conftest import ERAS, connected
from tests.mcp.test_session import Answers, cli, running, use
from tests.tools.conftest import SCRIPT
from tests.work import PATIENCE_S, long_enough_ms

pytestmark = pytest.mark.full


@pytest.fixture
def serving(project):
    """`fanfold serve` as a process: its address, the token of the link it prints, and the process."""
    command = [sys.executable, "-m", "fanfold.cli.main", "serve", "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    yield f"{said['url']}mcp", said["link"].partition("token=")[2], process
    process.terminate()
    assert process.wait(PATIENCE_S) == 0
    process.stdout.close()


@pytest.mark.parametrize("era", ERAS)
def test_a_served_project_answers_clients_with_the_token(serving, era):
    url, token, _ = serving
    assert httpx2.post(url, json={}).status_code == 401

    async def session() -> None:
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S) as http,
            connected(streamable_http_client(url, http_client=http), era) as client,
        ):
            tried = await use(client, "run_workflow", name="write-one", dry_run=True)
            assert tried["needs"] == ["w writes out.txt"]
            refused = await use(client, "run_workflow", name="write-one")
            assert refused["error"]["code"] == "permission_denied"
            assert refused["error"]["hint"].endswith("or on this server's console")

    anyio.run(session)


@pytest.mark.parametrize("era", ERAS)
def test_a_stopped_server_leaves_runs_that_a_client_waits_for(serving, era):
    url, token, process = serving
    slow = {"name": "slow", "steps": [{"id": "nap", "run": ["sleep", "60"]}]}

    async def session() -> None:
        async def wait_for_it() -> None:
            with suppress(MCPError):
                await client.call_tool("run_workflow", {"spec": slow})

        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S) as http,
            connected(
                streamable_http_client(url, http_client=http),
                era,
                elicitation_callback=Answers({"decision": "allow"}),
            ) as client,
            anyio.create_task_group() as group,
        ):
            group.start_soon(wait_for_it)
            while "running" not in await anyio.to_thread.run_sync(running, "last"):
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert await anyio.to_thread.run_sync(process.wait, 20) == 0
            group.cancel_scope.cancel()

    anyio.run(session)
    assert running("last") == ["running"]
    assert cli("cancel", "last")["status"] == "cancelled"


async def _becomes(client: Any, status: str) -> None:
    """Look at the only subagent until it stands like this."""
    with anyio.fail_after(PATIENCE_S):
        while (await use(client, "list_agents"))["agents"][0]["status"] != status:  # noqa: ASYNC110  # by polling alone
            await anyio.sleep(0.02)


def test_a_subagent_whose_process_was_killed_is_detached_until_it_is_resumed(project):
    slow = f"steps: {{slow: {{output: at last, delay_ms: {long_enough_ms(4_000)}}}}}\n"
    server = make_mcp_server(project, Options(permission="auto", script=slow + SCRIPT))

    async def session() -> None:
        async with connected(server, "auto") as client:
            await use(client, "spawn_agent", role="explorer", task="take your time", name="slow")
            await _becomes(client, "running")
            opened = wire(project)
            owner = opened.store.owner("hand")
            opened.close()
            assert owner is not None
            os.kill(owner[0].pid, signal.SIGKILL)
            await _becomes(client, "detached")
            refused = await use(client, "send_input", agent="slow", text="hello?")
            assert refused["error"]["code"] == "detached"
            waited = await use(client, "wait_agent", agents=["slow"], timeout_s=0.1)
            assert waited["agents"][0]["status"] == "detached"
            assert (await use(client, "send_input", agent="slow", text="go on", resume=True))["ok"] is True
            done = await use(client, "wait_agent", agents=["slow"], timeout_s=PATIENCE_S)
            assert (done["agents"][0]["status"], done["agents"][0]["turns"]) == ("completed", 2)

    anyio.run(session)
