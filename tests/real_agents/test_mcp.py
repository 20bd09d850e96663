"""The real agents call Fanfold: set up by `fanfold mcp install`, they run a workflow through MCP.

Their model is a scripted one that asks for the call; what they hand back to it is what Fanfold reported.
"""

import json
import os
import subprocess

import pytest

from tests.real_agents.test_real_agents import note
from tests.real_agents.world import CACHE, WAIT_S, RealWorld, task

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not os.environ.get("AGENTS_TEST"), reason="needs the real agents: make agents-test"),
]
CALLS = {
    "claude": "claude -p --output-format json --model claude-sonnet-4-5"
    " --allowedTools=mcp__fanfold__run_workflow",
    # Otherwise the first question to the model does not wait for the server.
    "codex": "codex exec -c mcp_servers.fanfold.required=true --json --skip-git-repo-check"
    " --dangerously-bypass-approvals-and-sandbox -",
    "opencode": "opencode run --format json -m scripted/m1",
    "gemini": "gemini -m gemini-2.5-flash -o stream-json --approval-mode yolo",
}
WANTED = [name for name in CALLS if name in (os.environ.get("AGENTS", "").split() or CALLS)]
RECIPE = """\
name: two-looks
inputs: [{name: topic, required: true}]
steps:
  - {id: a, agent: explorer, prompt: "Look at {{inputs.topic}}."}
  - {id: sum, agent: explorer, prompt: "Sum up {{steps.a.output}}."}
"""


OWN = """\
name: own-work
steps:
  - {id: a, agent: worker, prompt: 'PROMPT', write_set: ["*.txt"]}
"""


def ask(world: RealWorld, name: str, prompt: str) -> subprocess.CompletedProcess[str]:
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "ENABLE_TOOL_SEARCH": "false"}
    quiet |= {"GEMINI_CLI_TRUST_WORKSPACE": "true"}
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


def described(world: RealWorld) -> int:
    """How many bytes Fanfold's tools take in the requests of an agent, at most."""

    def inside(value: object) -> list[object]:
        if isinstance(value, list):
            return [found for one in value for found in inside(one)]
        if not isinstance(value, dict):
            return []
        if "fanfold" in str(value.get("name", "")):
            return [value]
        return [found for one in value.values() for found in inside(one)]

    offers = [inside(one["body"].get("tools", [])) for one in world.asked()]
    return max(len(json.dumps(one, separators=(",", ":"))) for one in offers)


@pytest.mark.parametrize("name", WANTED)
def test_a_real_agent_runs_a_workflow_and_hears_the_report(world, name):
    if not (CACHE / name).exists():
        pytest.skip(f"needs {name}: make agents-test with a network")
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


@pytest.mark.parametrize("name", WANTED)
def test_after_install_alone_an_agent_starts_a_workflow_whose_agents_are_its_own_kind(world, seen, name):
    if not (CACHE / name).exists():
        pytest.skip(f"needs {name}: make agents-test with a network")
    note(seen, name, "mcp", "no")
    world.role("worker", name)  # its model; the back end follows from the installation
    role = world.project / ".fanfold" / "agents" / "worker.toml"
    role.write_text("".join(line for line in role.read_text().splitlines(True) if "backend" not in line))
    work = task({"write": "made.txt", "text": "made"}, say="It is made.")
    (world.project / ".fanfold" / "workflows").mkdir()
    (world.project / ".fanfold" / "workflows" / "own-work.yaml").write_text(OWN.replace("PROMPT", work))
    assert world.fanfold("mcp", "install", name, "--permission", "auto")["change"] == "written"
    done = ask(world, name, task({"mcp": "run_workflow", "args": {"name": "own-work"}}, say="reported"))
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    [run] = world.fanfold("runs")
    assert run["status"] == "completed", world.fanfold("inspect", "last")
    assert (world.project / "made.txt").read_text() == "made\n"
    session = world.fanfold("transcript", "last", "a")
    begun = [one["name"] for one in session["entries"] if one["kind"] == "agent"]
    assert begun[0].split()[0] == name
    note(seen, name, "tools_bytes", str(described(world)))
    assert 0 < described(world) < 12_000, "with what the client adds: instructions, an argument of its own"
    offered = [json.dumps(one["body"]) for one in world.asked()]
    workers = [text for text in offered if "It is made." in text and "reported" not in text]
    assert workers
    assert not any("save_workflow" in text for text in workers), "its tools are for a person's own session"
    note(seen, name, "mcp", "yes")


@pytest.mark.parametrize("name", WANTED)
def test_a_model_without_a_person_reads_that_no_person_could_be_asked(world, name):
    if not (CACHE / name).exists():
        pytest.skip(f"needs {name}: make agents-test with a network")
    (world.project / ".fanfold" / "workflows").mkdir()
    (world.project / ".fanfold" / "workflows" / "two-looks.yaml").write_text(RECIPE)
    (world.project / "script.yaml").write_text("default: owls found by {{step}}\n")
    world.fanfold("mcp", "install", name, "--script", "script.yaml")
    asked = {"name": "two-looks", "inputs": {"topic": "owls"}}
    ask(world, name, task({"mcp": "run_workflow", "args": asked}, say="reported"))
    read = json.dumps([one["body"] for one in world.asked()])
    assert "no person could be asked" in read
    assert "the user does not want" not in read
