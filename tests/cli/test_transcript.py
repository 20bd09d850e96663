"""`fanfold transcript`: what an agent was told, said and did, of every kind of session."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fanfold as package
from tests.e2e.world import Provider
from tests.provider import Call, RecordedRequest, Reply
from tests.work import PATIENCE_S, long_enough_ms

pytestmark = pytest.mark.full

RECIPE = """\
name: look
inputs: [{name: topic, default: owls}]
steps:
  - id: look
    agent: explorer
    prompt: "Find out about {{inputs.topic}}."
    retry: {attempts: 2, backoff: 10ms}
  - {id: kid, workflow: child, depends_on: [look]}
  - {id: note, run: [echo, hi], depends_on: [look]}
  - {id: each, for_each: "['a', 'b']", agent: explorer, prompt: "{{item}}"}
"""
CHILD = "name: child\nsteps: [{id: inner, agent: explorer, prompt: Inside}]\n"
SCRIPT = """\
default: "said by {{step}}"
steps:
  look:
    - {fail: {class: transport, message: reset}}
    - output: "three facts\\e[2J"
      tool_calls: [{tool: read_file, args: {path: README.md}}, {tool: read_file, args: {path: nope}}]
      usage: {input_tokens: 1200, output_tokens: 34}
"""


@pytest.fixture
def ran(fanfold: Callable[..., Any], project: Path) -> str:
    (project / ".fanfold/workflows").mkdir(parents=True)
    (project / ".fanfold/workflows/child.yaml").write_text(CHILD)
    (project / "look.yaml").write_text(RECIPE)
    (project / "script.yaml").write_text(SCRIPT)
    (project / "README.md").write_text("first line\nsecond line\n")
    done = fanfold("run", "look.yaml", "--script", "script.yaml", "--yes", "--json")
    assert done.status == 0, done.out
    return str(done.json()["run_id"])


def test_a_transcript_has_the_system_prompt_the_turns_the_calls_and_what_was_paid(fanfold, ran):
    told = fanfold("transcript", ran, "look", "--json").json()
    assert (told["step"], told["role"], told["backend"], told["status"]) == (
        "look", "explorer", "scripted", "completed",
    )  # fmt: skip
    assert (told["attempt"], told["attempts"], told["turns"]) == (2, 2, 2)
    assert "You find things out" in told["system"]
    assert told["usage"]["input_tokens"] == 1200
    kinds = [entry["kind"] for entry in told["entries"]]
    assert kinds == ["input", "response", "tool_result", "tool_result", "response"]
    task, asked, read, failed, said = told["entries"]
    assert task["text"] == "Find out about owls."
    assert [call["tool"] for call in asked["tool_calls"]] == ["read_file", "read_file"]
    assert read["result"]["text"] == "first line\nsecond line\n"
    assert "nope" in failed["error"]["message"]
    assert (said["turn"], said["usage"]["output_tokens"]) == (2, 34)


def test_texts_of_agents_can_neither_imitate_headings_nor_control_a_terminal(fanfold, ran):
    text = fanfold("transcript", ran, "look").out
    assert "# look: completed\n" in text
    assert "> Find out about owls.\n" in text
    assert "    second line\n" in text
    assert "> three facts␛[2J\n" in text
    assert "2 turns, 1,200 in, 34 out" in text


def test_other_attempts_and_sessions_by_id_are_shown(fanfold, ran):
    first = fanfold("transcript", ran, "look", "--attempt", "1", "--json").json()
    assert (first["status"], [entry["kind"] for entry in first["entries"]]) == ("failed", ["input"])
    again = fanfold("transcript", ran, first["session_id"][:9], "--json").json()
    assert again == first
    missing = fanfold("transcript", ran, "look", "--attempt", "3", "--json")
    assert (missing.status, missing.json()["error"]["code"]) == (6, "step.no_attempt")


def test_agents_of_child_runs_and_of_maps_have_transcripts(fanfold, ran):
    child = fanfold("inspect", ran, "--json").json()["children"][0]
    inside = fanfold("transcript", ran, "kid/inner", "--json").json()
    assert (inside["run_id"], inside["step"]) == (child, "kid/inner")
    assert fanfold("transcript", child, "inner", "--json").json() == inside
    assert fanfold("transcript", ran, "each[1]", "--json").json()["entries"][0]["text"] == "b"


@pytest.mark.parametrize(
    ("name", "status", "code", "hint"),
    [
        ("note", 2, "step.no_session", "explain"),
        ("each", 2, "step.several_sessions", "each[0], each[1]"),
        ("kid", 2, "step.several_sessions", "kid/inner"),
        ("lok", 6, "step.not_found", "look"),
        ("s0000000", 6, "step.not_found", ""),
    ],
)
def test_a_step_without_a_transcript_names_steps_that_have_one(fanfold, ran, name, status, code, hint):
    refused = fanfold("transcript", ran, name, "--json")
    assert (refused.status, refused.json()["error"]["code"]) == (status, code)
    assert hint in refused.json()["error"]["hint"]


def test_transcripts_are_files_too_and_are_made_again_when_missing(fanfold, ran, project):
    files = project / ".fanfold/runs" / ran / "transcripts"
    text = (files / "look.md").read_text()
    assert "# look: failed" in text
    assert "# look: completed" in text
    assert (files / "each[1].md").is_file()
    assert [path.name for path in files.parent.parent.glob("*/transcripts/inner.md")] == ["inner.md"]
    shutil.rmtree(files)
    assert fanfold("resume", ran).status == 0
    assert (files / "look.md").read_text() == text


def test_a_step_whose_result_was_kept_says_where_it_came_from(fanfold, ran):
    fork = fanfold("fork", ran, "--from", "note", "--yes", "--json").json()["run_id"]
    kept = fanfold("transcript", fork, "look", "--json").json()
    assert (kept["reused_from"], kept["entries"]) == (ran, [])
    assert f"taken from run {ran}" in fanfold("transcript", fork, "look").out


def test_a_running_agent_is_followed_until_its_step_finishes(fanfold, project, background, until):
    (project / "r.yaml").write_text("name: r\nsteps: [{id: a, agent: explorer, prompt: Go}]\n")
    script = f"steps: {{a: {{output: done, delay_ms: {long_enough_ms(5_000)}}}}}\n"
    (project / "s.yaml").write_text(script)
    background("run", "r.yaml", "--script", "s.yaml", "--yes")
    until(lambda run: run["steps"].get("a", {}).get("status") == "running")
    now = fanfold("transcript", "last", "a", "--json").json()
    assert (now["status"], [entry["kind"] for entry in now["entries"]]) == ("running", ["input"])
    lines = fanfold("transcript", "last", "a", "--follow", "--json").out.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["input", "response"]
    assert fanfold("inspect", "last", "--json").json()["steps"]["a"]["status"] == "completed"


def test_a_subagent_is_shown_with_all_its_turns(fanfold, project):
    (project / "s.yaml").write_text("default: I am {{step}}\n")
    fanfold("spawn", "explorer", "look around", "--name", "scout", "--script", "s.yaml", "--wait")
    fanfold("send", "scout", "and now?")
    fanfold("wait", "scout")
    told = fanfold("transcript", "hand", "scout", "--json").json()
    said = [(entry["step"], entry["text"]) for entry in told["entries"]]
    assert said == [
        ("scout", "look around"),
        ("scout", "I am scout"),
        ("scout#2", "and now?"),
        ("scout#2", "I am scout#2"),
    ]
    fanfold("close", "scout")


def test_a_transcript_names_model_and_cost_of_each_answer_and_no_secret(tmp_path: Path) -> None:

    from fanfold.api.run_options import Options
    from tests.runtime.running import HERE, client

    def script(asked: RecordedRequest) -> Reply:
        if len(asked.body["messages"]) > 1:
            return Reply(text="It holds a secret.", input_tokens=100, output_tokens=20)
        return Reply(calls=(Call("read_file", {"path": "notes.txt"}),), input_tokens=50, output_tokens=10)

    (tmp_path / "AGENTS.md").write_text("Speak like a sailor.\n")

    async def work(environment: dict[str, str]) -> package.Transcript:
        home = {"HOME": str(tmp_path / "home"), "FANFOLD_HOME": str(tmp_path / "home")}
        async with client(tmp_path, {**home, **environment}, providers=HERE) as opened:
            recipe = "name: r\nsteps: [{id: a, agent: explorer, prompt: Go}]\n"
            options = Options(permission="auto", model="anthropic:claude-sonnet-4-6")
            run = await opened.start(recipe, options=options)
            await asyncio.wait_for(run.result(), PATIENCE_S)
            assert opened.transcript(run.id, "a") == run.transcript("a")
            return run.transcript("a")

    with Provider(script) as provider:
        key = provider.environment["ANTHROPIC_API_KEY"]
        (tmp_path / "notes.txt").write_text(f"the key is {key}\n")
        told = asyncio.run(work(provider.environment))
    assert "Speak like a sailor." in told.system
    assert [entry.kind for entry in told.entries] == ["input", "response", "tool_result", "response"]
    assert {entry.model for entry in told.entries if entry.kind == "response"} == {
        "anthropic:claude-sonnet-4-6"
    }
    assert told.usage.input_tokens == 150
    assert told.usage.cost_usd
    assert key not in str(told)


def test_instructions_for_a_file_are_sent_once(fanfold, project):
    (project / "w.yaml").write_text(
        "name: w\nsteps: [{id: w, agent: worker, prompt: x, write_set: [a.txt]}]\n"
    )
    (project / "s.yaml").write_text('default: {output: ok, writes: {a.txt: "one\\nlong\\nfile\\n"}}\n')
    assert fanfold("run", "w.yaml", "--script", "s.yaml", "--yes").status == 0
    for words in ([], ["--follow"]):
        told = fanfold("transcript", "last", "w", *words).out
        assert told.count("    long\n") == 1
        assert (
            told.index("asks for write_file") < told.index("    long\n") < told.index("## write_file begins")
        )
