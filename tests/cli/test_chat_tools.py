"""What the lead of a chat gets from its tools: exactly what its provider receives in the next request."""

from __future__ import annotations

import json
import lzma
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fanfold.workspace.seal import adopt, claim
from tests.cli.test_chat import Open, leave, talk
from tests.cli.test_formats import CAPPED, DATABASES, KEPT
from tests.e2e.world import MODELS, Provider
from tests.provider import Call, Fault, RecordedRequest, Reply, answer_with
from tests.work import PATIENCE_S, long_enough_ms

__all__ = ["talk"]
pytestmark = pytest.mark.full

HELLO = """\
name: hello
description: Greets a guest
inputs: {who: {required: true}}
limits: {max_agents: 200}
steps: [{id: greet, agent: explorer, prompt: "Greet {{inputs.who}}"}]
"""
DRAFT = "name: look\nphases: [{id: look, tasks: [{id: scan, agent: explorer, prompt: Look}]}]\n"
Lead = Callable[..., list[Any]]


def answer(asked: RecordedRequest) -> Reply | Fault:
    """The lead makes the calls that the message lists, in order; agents answer their prompts."""
    if asked.prompt.startswith("The request, as a JSON string"):
        return answer_with({"suitable": True, "reason": "Several parts"}, asked)
    if asked.prompt.startswith("CALL "):
        calls = json.loads(asked.prompt.removeprefix("CALL ").partition("\n")[0])
        done = len(asked.results)
        return Reply(calls=(Call(*calls[done]),)) if done < len(calls) else Reply(text="All done.")
    if asked.prompt == "Fail":
        return Fault("rejected")
    if "draft" in asked.prompt[:400].lower() and "recipe" in asked.prompt:
        return answer_with({"fit": True, "reason": "many parts", "recipe": DRAFT}, asked)
    return Reply(text=f"A heron answers: {asked.prompt[:30]}")


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider(answer) as provider:
        yield provider


@pytest.fixture
def lead(shell: Any, project: Path, provider: Provider) -> Lead:
    """Let the lead call tools in one chat; return the results that the provider received."""
    folder = project / ".fanfold" / "workflows"
    folder.mkdir(parents=True)
    (folder / "hello.yaml").write_text(HELLO)

    def ask(*calls: tuple[str, dict[str, Any]], **environment: str) -> list[Any]:
        given = {**provider.environment, "FANFOLD_MODEL": MODELS["chat"], **environment}
        said = shell("chat", f"CALL {json.dumps(calls)}", "--permission", "auto", **given)
        assert said.status == 0, said.err
        last = [asked for asked in provider.asked if len(asked.results) == len(calls)][-1]
        return [json.loads(text) for text in last.results.values()]

    return ask


def test_limits_of_the_user_are_caps_in_a_forecast_and_in_a_run(lead: Lead) -> None:
    caps = {"AGENT_WORKFLOW_MAX_AGENTS": "1", "FANFOLD_WORKFLOW_MAX_CONCURRENT": "1"}
    step = "{id: a, agent: explorer, for_each: [x, y], prompt: Go}"
    spec = f"name: two\nlimits: {{max_agents: 9}}\nsteps: [{step}]\n"
    tried, ran = lead(
        ("run_workflow", {"name": "hello", "inputs": {"who": "Ada"}, "dry_run": True}),
        ("run_workflow", {"spec": spec}),
        **caps,
    )
    warnings = tried["forecast"]["warnings"]
    assert "max_agents is 1, your cap (AGENT_WORKFLOW_MAX_AGENTS), not 200 as hello says" in warnings
    assert (ran["run"]["status"], ran["run"]["usage"]["agents"]) == ("paused", 1)


def test_a_run_that_lost_its_process_is_detached_and_resumed_by_the_lead(
    lead: Lead, project: Path, shell: Any, provider: Provider
) -> None:
    (project / "slow.yaml").write_text("name: slow\nsteps: [{id: a, agent: explorer, prompt: Wait here}]\n")
    script = f"default: {{output: late, delay_ms: {long_enough_ms(3_000)}}}\n"
    (project / "script.yaml").write_text(script)
    command = [
        sys.executable,
        "-m",
        "fanfold.cli.main",
        "run",
        "slow.yaml",
        "--script",
        "script.yaml",
        "--yes",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + PATIENCE_S
        while "running" not in (listed := shell("inspect", "last", "--json").out):
            assert time.monotonic() < deadline, listed
        os.kill(process.pid, signal.SIGKILL)
    run = json.loads(shell("runs", "--json").out)[0]["run_id"]
    status, resumed = lead(("workflow_status", {"run": run}), ("run_workflow", {"resume": run}))
    assert status["run"]["status"] == "detached"
    assert f'run_workflow(resume: "{run}")' in status["run"]["report"]
    assert (resumed["run"]["status"], resumed["run"]["output"]) == ("completed", "late")


def test_the_lead_reads_what_exists_and_keeps_what_it_wrote(lead: Lead, provider: Provider) -> None:
    spec = "name: own\nsteps: [{id: a, agent: explorer, prompt: Look around}]\n"
    listed, missing, agents, ran = lead(
        ("list_workflows", {}),
        ("run_workflow", {"name": "helo"}),
        ("list_agents", {}),
        ("run_workflow", {"spec": spec}),
    )
    (hello,) = [one for one in listed["workflows"] if one["name"] == "hello"]
    assert hello["inputs"] == [{"name": "who", "required": True}]
    assert missing["error"]["hint"] == 'did you mean "hello"?'
    assert {"name": "explorer", "reads_only": True} in [
        {key: one[key] for key in ("name", "reads_only")} for one in agents["roles"]
    ]
    (first, *_) = [asked for asked in provider.asked if asked.prompt.startswith("CALL")]
    (spawn,) = [one["function"] for one in first.body["tools"] if one["function"]["name"] == "spawn_agent"]
    assert "explorer: Finds things out" in spawn["description"]
    assert ran["run"]["report"].startswith("# own: completed")
    (kept,) = lead(("save_workflow", {"run": ran["run"]["run_id"], "name": "kept"}))
    assert kept["recipe"].startswith("name: kept\nsteps: [{id: a, agent: explorer, prompt: Look around}]")


def test_with_the_master_switch_off_the_lead_delegates_and_starts_no_workflow(
    lead: Lead, provider: Provider
) -> None:
    done, denied = lead(
        ("task", {"role": "explorer", "task": "Look"}),
        ("run_workflow", {"name": "hello", "inputs": {"who": "Ada"}}),
        FANFOLD_WORKFLOWS="off",
    )
    assert done["result"]["output"].startswith("A heron answers")
    assert "run_workflow" in json.dumps(denied["error"])
    offered = {tool for asked in provider.asked if asked.prompt.startswith("CALL") for tool in asked.tools}
    assert {"task", "spawn_agent", "query_workflow"} <= offered
    assert not {"plan_workflow", "run_workflow"} & offered


def test_errors_and_prompts_are_found_once_and_typos_come_back_with_their_fix(lead: Lead) -> None:
    failing = "name: bad\nsteps: [{id: a, agent: explorer, prompt: Fail}]\n"
    typo = "name: t\nsteps: [{id: a, agent: explorer, for_each: [x], inputs: {of: itm}}]\n"
    words = "steps: [{id: a, agent: explorer, prompt: Look, for_each: [x], maxConcurrency: 2}]\nname: words\n"
    _, failed, prompts, wrong, spelled = lead(
        ("run_workflow", {"spec": failing}),
        ("query_workflow", {"query": "kind:error parameter"}),
        ("query_workflow", {"query": "kind:prompt Fail"}),
        ("run_workflow", {"spec": typo}),
        ("run_workflow", {"spec": words}),
    )
    assert [(hit["path"], hit["kind"]) for hit in failed["hits"]] == [("a", "error")]
    assert sorted((hit["path"], hit["kind"]) for hit in prompts["hits"]) == [
        ("a", "prompt"),
        ("lead", "prompt"),
    ]
    (diagnostic,) = wrong["error"]["details"]["diagnostics"]
    assert (diagnostic["code"], diagnostic["fix"]["text"]) == ("recipe.bad_value", "item")
    assert spelled["run"]["status"] == "completed"


@pytest.mark.parametrize("kept", DATABASES, ids=lambda file: file.name.removesuffix(".db.xz"))
def test_runs_of_an_older_format_are_reported_searched_and_resumed(
    lead: Lead, project: Path, kept: Path
) -> None:
    home = Path(os.environ["HOME"]) / ".fanfold"
    claim(project, home)
    (project / ".fanfold" / "fanfold.db").write_bytes(lzma.decompress(kept.read_bytes()))
    adopt(project, home)
    status, hits, resumed = lead(
        ("workflow_status", {"run": KEPT}),
        ("query_workflow", {"query": "kind:any a", "run": KEPT}),
        ("run_workflow", {"resume": CAPPED}),
    )
    assert status["run"]["status"] == "completed"
    assert hits["ok"]
    assert resumed["run"]["status"] == "paused"


def test_a_chat_continues_in_a_project_that_its_owner_moved(
    lead: Lead, project: Path, shell: Any, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead(("list_workflows", {}))
    chat = next(run["run_id"] for run in shell("runs", "--json").json() if run["run_id"].startswith("chat"))
    moved = project.rename(project.parent / "moved")
    monkeypatch.chdir(moved)
    given = {**provider.environment, "FANFOLD_MODEL": MODELS["chat"]}
    said = shell("chat", "--resume", chat, "Hello again", "--permission", "auto", **given)
    assert (said.status, said.err.count("notice[state.moved]")) == (0, 1), said.err


def test_a_workflow_in_a_chat_is_visible_costed_and_undone(
    talk: Open, fanfold: Any, project: Path, provider: Provider
) -> None:
    def write(asked: RecordedRequest) -> Reply | Fault:
        if asked.prompt == "Write it.":
            call = Call("write_file", {"path": "a.txt", "content": "x"})
            return Reply(text="Written.") if asked.results else Reply(calls=(call,))
        return answer(asked)

    provider.script = write
    steps = "[{id: all, agent: explorer, for_each: [a, b], prompt: Look}, "
    steps += "{id: write, agent: worker, write_set: ['{{inputs.file}}'], prompt: Write it.}]"
    spec = f"name: pair\ninputs: {{file: {{default: a.txt}}}}\nlimits: {{max_agents: 64}}\nsteps: {steps}\n"
    calls = [["plan_workflow", {"task": "Audit every package"}], ["run_workflow", {"spec": spec}]]
    screen = talk(**provider.environment, FANFOLD_MODEL=MODELS["chat"])
    screen.resize(150, 60)
    screen.until("leaves\n>")
    screen.type(f"CALL {json.dumps(calls)}\r")
    screen.until("about 3 agents, at most", "a.txt", "[y/N]")
    screen.type("y\r")
    screen.until("All done.")
    (run,) = [one for one in fanfold("runs", "--json").json() if one["recipe"] == "pair"]
    assert re.search(rf"run {run['run_id']}", "\n".join(screen.rows)), screen.rows
    screen.type("/cost\r")
    screen.until("tokens in")
    shown = "\n".join(screen.rows)
    spent = sum(10 for _ in provider.given)
    assert re.search(rf"\b{spent}\b", shown), (spent, shown)
    assert (project / "a.txt").exists()
    screen.type(f"/undo {run['run_id']}\r")
    screen.until("removed a.txt")
    assert not (project / "a.txt").exists()
    screen.until_prompt()
    screen.type("/save kept\r")
    screen.until("saved as", "fanfold run kept runs it")
    leave(screen)
    kept = (project / ".fanfold" / "workflows" / "kept.yaml").read_text()
    assert kept == spec.replace("name: pair", "name: kept")
