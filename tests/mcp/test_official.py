"""The official programs for MCP meet the server: the Inspector, and the conformance suite.

Here the Inspector calls each tool once, over one transport and in one generation of the protocol, and the
suite runs on both generations. `make mcp-test` has it call every tool over both transports in both.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fanfold.api import subagents
from fanfold.api.run_options import Options
from fanfold.api.subagents import Task
from fanfold.api.tool_registry import TOOLS
from fanfold.wiring import make_mcp_server, wire
from tests.mcp.conftest import HttpServer
from tests.mcp.fixture.server import make_fixture
from tests.sampling import spread
from tests.tools.conftest import SCRIPT
from tests.work import PATIENCE_S
from tools.npm import NpmUnavailable, environment, install, node

pytestmark = pytest.mark.full

HERE = Path(__file__).parent
EVERYTHING = os.environ.get("MCP_TEST") == "all"
WAYS = [(transport, era) for transport in ("stdio", "http") for era in ("legacy", "modern")]
SPEC_VERSIONS = ("2025-11-25", "2026-07-28")
ONE = "name: one\nsteps: [{id: a, agent: explorer, prompt: Say yes}]\n"
CALLS: dict[str, dict[str, Any]] = {
    "plan_workflow": {"task": "Audit all packages, fix what is found, then test", "use_model": False},
    "list_workflows": {},
    "run_workflow": {"name": "read-two", "inputs": {"topic": "owls"}},
    "workflow_status": {},
    "query_workflow": {"query": "owls"},
    "save_workflow": {"name": "one", "recipe": ONE, "replace": True},
    "task": {"role": "explorer", "task": "look"},
    "task_batch": {"tasks": [{"role": "explorer", "task": "look"}, {"role": "explorer", "task": "see"}]},
    "spawn_agent": {"role": "explorer", "task": "look"},
    "wait_agent": {"timeout_s": 0},
    "send_input": {"agent": "kept", "text": "and now?"},
    "close_agent": {"agent": "kept"},
    "list_agents": {"all": True},
}


@pytest.fixture(scope="session")
def programs() -> Path:
    try:
        return install(HERE / "programs") / "node_modules"
    except NpmUnavailable as error:
        pytest.skip(f"needs the official programs: make mcp-test with a network ({error})")


def test_every_tool_is_called():
    assert set(CALLS) == {tool.name for tool in TOOLS}


class Inspector:
    def __init__(self, programs: Path, project: Path, transport: str, era: str, url: str) -> None:
        (project / "script.yaml").write_text(SCRIPT)
        served = [sys.executable, "-m", "fanfold.cli.main", "mcp", "--permission", "auto"]
        target = [*served, "--script", "script.yaml"] if transport == "stdio" else [url]
        program = programs / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
        more = ["--protocol-era", era] + (["--transport", "http"] if transport == "http" else [])
        more += ["--connect-timeout", "100000"]  # a busy machine starts programs slowly
        self._command = [str(node()), str(program), "--cli", *target, *more]
        self._project = project

    def use(self, method: str, *more: str) -> Any:
        environment_of = {**environment(), "MCP_CATALOG_PATH": str(self._project / "catalog.json")}
        done = subprocess.run(
            [*self._command, "--method", method, *more],
            cwd=self._project,
            env=environment_of,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def call(self, name: str) -> Any:
        pairs = [
            ("--tool-arg", f"{key}={value if isinstance(value, str) else json.dumps(value)}")
            for key, value in CALLS[name].items()
        ]
        words = [word for pair in pairs for word in pair]
        return self.use("tools/call", "--tool-name", name, *words)


@pytest.fixture
def inspect(programs, project, served):
    """The Inspector on a server of the project that allows everything, with one subagent to talk to."""
    import asyncio

    opened = wire(project)
    task = Task(role="explorer", task="be there", name="kept")
    asyncio.run(subagents.spawn(opened, task, Options(script=SCRIPT)))
    asyncio.run(subagents.wait(opened, ["kept"], 60))
    opened.close()
    found: list[HttpServer] = []

    def make(transport: str, era: str) -> Inspector:
        if transport == "http" and not found:
            found.append(served(make_mcp_server(project, Options(permission="auto", script=SCRIPT))))
        return Inspector(programs, project, transport, era, found[0].url if transport == "http" else "")

    return make


@pytest.mark.parametrize(("transport", "era"), WAYS if EVERYTHING else [WAYS[0], WAYS[-1]])
def test_the_inspector_lists_everything_and_finds_no_fault_with_the_schemas(inspect, transport, era):
    inspector = inspect(transport, era)
    tools = inspector.use("tools/list", "--strict")["tools"]
    assert [tool["name"] for tool in tools] == [tool.name for tool in TOOLS]
    if EVERYTHING:
        assert "read-two" in [one["name"] for one in inspector.use("prompts/list")["prompts"]]
        templates = inspector.use("resources/templates/list")["resourceTemplates"]
        assert [one["name"] for one in templates] == ["report", "output", "transcript"]


@pytest.mark.parametrize("number", range(len(WAYS)))
def test_the_inspector_calls_every_tool(inspect, number):
    """In each of the ways one tool, chosen by a seed, or each tool in all of them."""
    inspector = inspect(*WAYS[number])
    drawn = spread(1, len(CALLS), "inspector", number)[0]
    for index, name in enumerate(CALLS, start=1):
        if EVERYTHING or index == drawn:
            called = inspector.call(name)
            assert called["structuredContent"]["ok"] is True, called


def conform(programs: Path, url: str, version: str, *more: str) -> None:
    program = programs / "@modelcontextprotocol/conformance-next/dist/index.js"
    asked = ["server", "--url", url, "--suite", "all", "--spec-version", version]
    done = subprocess.run(
        [str(node()), str(program), *asked, *more],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    assert "passed, 0 failed" in done.stdout


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")  # the older one wants it
@pytest.mark.parametrize("version", SPEC_VERSIONS)
def test_the_conformance_suite_passes_on_a_server_that_is_reached_like_ours(programs, served, version):
    conform(programs, served(make_fixture()).url, version)


@pytest.mark.parametrize("version", SPEC_VERSIONS)
def test_the_conformance_suite_fails_on_our_server_only_where_it_wants_other_contents(
    programs, project, served, version
):
    url = served(make_mcp_server(project, Options(permission="auto", script=SCRIPT))).url
    conform(programs, url, version, "--expected-failures", str(HERE / f"expected_failures_{version}.yaml"))


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@pytest.mark.skipif(not EVERYTHING, reason="the older suite asks less than the newer one: make mcp-test")
def test_the_released_conformance_suite_passes_too(programs, served):
    program = programs / "@modelcontextprotocol/conformance/dist/index.js"
    command = [str(node()), str(program), "server", "--url", served(make_fixture()).url, "--suite", "all"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stdout[-6_000:]
