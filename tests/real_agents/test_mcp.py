"""The real agents call Fanfold: set up by `fanfold mcp install`, they run a workflow through MCP.

Their model is a scripted one that asks for the call; what they hand back to it is what Fanfold reported.
"""

import json
import os
import subprocess

import pytest

from tests.real_agents.world import CACHE, WAIT_S, RealWorld, task

pytestmark = pytest.mark.skipif(
    not os.environ.get("AGENTS_TEST"), reason="make agents-test runs the real ones"
)
CALLS = {
    "claude": "claude -p --output-format json --model claude-sonnet-4-5"
    " --allowedTools=mcp__fanfold__run_workflow",
    # Otherwise the first question to the model does not wait for the server.
    "codex": "codex exec -c mcp_servers.fanfold.required=true --json --skip-git-repo-check"
    " --dangerously-bypass-approvals-and-sandbox -",
    "opencode": "opencode run --format json -m scripted/m1",
}
WANTED = [name for name in CALLS if name in (os.environ.get("AGENTS", "").split() or CALLS)]
RECIPE = """\
name: two-looks
inputs: [{name: topic, required: true}]
steps:
  - {id: a, agent: explorer, prompt: "Look at {{inputs.topic}}."}
  - {id: sum, agent: explorer, prompt: "Sum up {{steps.a.output}}."}
"""


def ask(world: RealWorld, name: str, prompt: str) -> subprocess.CompletedProcess[str]:
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "ENABLE_TOOL_SEARCH": "false"}
    environment = {**world.environment(), **quiet}
    return subprocess.run(
        CALLS[name].split(),
        cwd=world.project,
        env=environment,
        input=prompt,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )


@pytest.mark.parametrize("name", WANTED)
def test_a_real_agent_runs_a_workflow_and_hears_the_report(world, name):
    if not (CACHE / name).exists():
        pytest.skip(f"{name} could not be fetched")
    (world.project / ".fanfold" / "workflows").mkdir()
    (world.project / ".fanfold" / "workflows" / "two-looks.yaml").write_text(RECIPE)
    (world.project / "script.yaml").write_text("default: owls found by {{step}}\n")
    installed = world.fanfold("mcp", "install", name, "--permission", "auto", "--script", "script.yaml")
    assert installed["change"] == "written"
    asked = {"name": "two-looks", "inputs": {"topic": "owls"}}
    done = ask(world, name, task({"mcp": "run_workflow", "args": asked}, say="reported"))
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    assert "reported" in done.stdout
    [run] = world.fanfold("runs")
    assert (run["recipe"], run["status"]) == ("two-looks", "completed"), done.stdout[-3_000:]
    heard = [json.loads(line)["body"] for line in (world.signs / "asked.jsonl").read_text().splitlines()]
    told = [body for body in heard if run["run_id"] in json.dumps(body)]
    assert any("owls found by sum" in json.dumps(body) for body in told)
