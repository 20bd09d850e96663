"""Chats as an operation: what the lead hears and may do, and what becomes of a turn that is cut off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fanfold.agents.entries import ToolResult, UserInput
from fanfold.api.archives import verify
from fanfold.api.chats import Chat, lead_turns, open_chat, resume_chat
from fanfold.api.planning import Suitability
from fanfold.api.project import Project
from fanfold.api.run_handle import pause
from fanfold.api.run_options import Options
from fanfold.errors import FanfoldError
from fanfold.sessions.log import read_entries
from fanfold.steps.records import session_of
from fanfold.wiring import wire
from tests.e2e.world import MODELS, Provider
from tests.provider import Call, Fault, RecordedRequest, Reply
from tests.work import PATIENCE_S

Story = Callable[[Chat], Coroutine[Any, Any, None]]


def spawn(name: str) -> str:
    return f"{{tool: spawn_agent, args: {{role: explorer, task: look, name: {name}}}}}"


@pytest.fixture
def project(tmp_path: Path) -> Callable[[Mapping[str, str]], Project]:
    (tmp_path / "project").mkdir()
    return lambda environment: wire(tmp_path / "project", {"HOME": str(tmp_path), **environment})


def play(opened: Project, story: Story, options: Options) -> None:
    async def told() -> None:
        chat = await open_chat(opened, options, None, lambda *_: None)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await story(chat)
        finally:
            await chat.leave()
        assert verify(opened.store, chat.id).violations == []

    try:
        asyncio.run(told())
    finally:
        opened.close()


def heard(chat: Chat) -> list[list[str]]:
    """What the model of the lead was told in each turn: inputs and results of tools, as text."""
    turns = []
    for node in lead_turns(chat.tree):
        entries = read_entries(chat.project.store, session_of(node))
        said = [one.text for one in entries if isinstance(one, UserInput)]
        turns.append(said + [str(one.result) for one in entries if isinstance(one, ToolResult)])
    return turns


@pytest.mark.full
def test_the_lead_hears_once_how_each_subagent_ended(project: Any) -> None:
    script = f"""
steps:
  lead: {{output: off they go, tool_calls: [{spawn("b")}, {spawn("c")}]}}
  "lead#2": {{output: one came, tool_calls: [{spawn("a")}, {{tool: wait_agent, args: {{agents: [a]}}}}]}}
  a: {{output: alpha was here, delay_ms: 300}}
  b: {{output: beta was here, delay_ms: 4000}}
  c: {{output: gamma was here, delay_ms: 4000}}
default: fine
"""

    async def story(chat: Chat) -> None:
        await chat.say("Look at two things.")
        await chat.say("Look at a third, and wait for it.")
        await chat.wait_for_agents()
        await chat.say("And the others?")
        await chat.say("Anything new?")
        turns = ["\n".join(turn) for turn in heard(chat)]
        for word in ("alpha", "beta", "gamma"):
            assert sum(f"{word} was here" in turn for turn in turns) == 1, (word, turns)
        assert "alpha" in turns[1]
        assert "beta" in turns[1] + turns[2]

    play(project({}), story, Options(permission="auto", script=script))


@pytest.mark.full
def test_the_lead_gets_every_turn_of_a_subagent_with_new_input(project: Any) -> None:
    script = f"""
steps:
  lead: {{output: sent, tool_calls: [{spawn("a")}, {{tool: send_input, args: {{agent: a, text: more}}}}]}}
  a: {{output: alpha was here, delay_ms: 4000}}
  "a#2": beta was here
default: fine
"""

    async def story(chat: Chat) -> None:
        await chat.say("Look, and look again.")
        await chat.wait_for_agents()
        await chat.say("And?")
        await chat.say("Anything new?")
        turns = ["\n".join(turn) for turn in heard(chat)]
        for word in ("alpha", "beta"):
            assert [f"{word} was here" in turn for turn in turns] == [False, True, False], (word, turns)

    play(project({}), story, Options(permission="auto", script=script))


def test_the_lead_takes_no_slot_from_those_it_waits_for(project: Any) -> None:
    batch = ", ".join("{role: explorer, task: look}" for _ in range(4))
    script = f"""
steps:
  lead: {{output: all are back, tool_calls: [{{tool: task_batch, args: {{tasks: [{batch}]}}}}]}}
default: seen
"""

    async def story(chat: Chat) -> None:
        turn = await chat.say("Send four.")
        assert (turn.status, turn.output) == ("completed", "all are back")
        assert [child.status for child in chat.agents()] == ["completed"] * 4

    play(project({"FANFOLD_MAX_THREADS": "1"}), story, Options(permission="auto", script=script))


def test_permissions_change_from_the_next_turn_in_the_same_conversation(project: Any) -> None:
    call = "{tool: task, args: {role: explorer, task: look, name: NAME}}"
    script = f"""
steps:
  lead: {{output: refused, tool_calls: [{call.replace("NAME", "a")}]}}
  lead-2: {{output: done, tool_calls: [{call.replace("NAME", "b")}]}}
default: seen
"""

    async def story(chat: Chat) -> None:
        await chat.say("Look.")
        assert chat.agents() == []
        chat.options = structs.replace(chat.options, permission="auto")
        turn = await chat.say("Look now.")
        assert (turn.step, [child.id for child in chat.agents()]) == ("lead-2", ["b"])
        assert [one.prompt for one in chat.turns()] == ["Look.", "Look now."]

    play(project({}), story, Options(permission="read_only", script=script))


@pytest.mark.full
def test_a_request_for_a_workflow_gives_the_tools_for_it_and_they_stay(project: Any) -> None:
    asked: list[tuple[str, ...]] = []

    def answer(one: RecordedRequest) -> Reply:
        if "The request, as a JSON string" not in one.prompt:
            asked.append(one.tools)
            return Reply(text="yes")
        many = "every package" in one.prompt
        return Reply(calls=(Call("final_output", {"suitable": many, "reason": "it has many parts"}),))

    async def story(chat: Chat) -> None:
        for text in ("What is here?", "Audit every package, then fix and verify it.", "Go on."):
            await chat.say(text, await chat.judge(text))
        first, second, third = asked
        assert "task" in first
        assert "run_workflow" not in first
        assert {"plan_workflow", "run_workflow"} <= set(second)
        assert set(second) == set(third)
        assert "it has many parts" in heard(chat)[1][0]

    with Provider(answer) as provider:
        opened = project({**provider.environment, "FANFOLD_MODEL": MODELS["chat"]})
        play(opened, story, Options(permission="auto"))


@pytest.mark.full
def test_a_turn_that_its_provider_refused_says_why_and_the_next_one_works(project: Any) -> None:
    refuse = [True]

    def answer(one: RecordedRequest) -> Reply | Fault:
        return Fault("quota") if refuse else Reply(text=f"answer to {one.messages[-1].text}")

    async def story(chat: Chat) -> None:
        turn = await chat.say("Hello?")
        assert turn.status == "failed"
        assert turn.error is not None
        assert turn.error.kind == "quota"
        refuse.clear()
        turn = await chat.say("And now?")
        assert (turn.status, turn.output) == ("completed", "answer to And now?")

    with Provider(answer) as provider:
        opened = project({**provider.environment, "FANFOLD_MODEL": MODELS["chat"]})
        play(opened, story, Options(permission="auto"))


def test_a_paused_chat_continues_with_the_next_message(project: Any) -> None:
    opened = project({})

    async def story(chat: Chat) -> None:
        await chat.say("Hello.")
        await pause(opened, chat.id)
        turn = await chat.say("Still there?")
        assert (turn.step, turn.status) == ("lead#2", "completed")

    play(opened, story, Options(script="default: hi"))


def test_a_chat_that_another_process_has_is_not_taken_from_it(project: Any) -> None:
    opened = project({})

    async def story(chat: Chat) -> None:
        await chat.say("Hello.")
        with pytest.raises(FanfoldError) as refused:
            await resume_chat(project({}), chat.id, None, lambda *_: None)
        assert refused.value.code == "lease.held"

    play(opened, story, Options(script="default: hi"))


def test_the_lead_keeps_what_it_delegated_as_a_recipe(project: Any) -> None:
    opened = project({})
    told = "Explain this: the switch is in lib/a.py, line 3"
    script = f"""
steps:
  lead:
    output: kept
    tool_calls:
      - {{tool: task, args: {{role: explorer, task: Find the switch., name: scout}}}}
      - {{tool: task, args: {{role: explorer, task: "{told}", name: why}}}}
      - {{tool: plan_workflow, args: {{task: nothing, dry_run: true}}}}
  "lead#2":
    output: kept
    tool_calls: [{{tool: save_workflow, args: {{name: find-switch, agents: [scout, why]}}}}]
  scout: the switch is in lib/a.py, line 3
  why: it is read once
"""

    async def story(chat: Chat) -> None:
        await chat.say("Find it.")
        text = "Audit every package, then fix and verify all of them."
        suited = await chat.judge(text)
        assert suited is not None
        await chat.say(text, suited)
        saved = (opened.folder / ".fanfold/workflows/find-switch.yaml").read_text()
        assert "Explain this: {{steps.scout.output}}" in saved
        assert "not available in this session" in heard_errors(chat)[0]

    play(opened, story, Options(permission="auto", script=script))


@pytest.mark.full
def test_a_lead_without_workflows_names_the_variable_that_switched_them_off(project: Any) -> None:
    script = """
steps:
  lead: {output: no, tool_calls: [{tool: run_workflow, args: {name: any}}]}
"""

    async def story(chat: Chat) -> None:
        await chat.say("Run it.")
        assert "set AGENT_WORKFLOWS=on" in heard_errors(chat)[0]

    play(project({"AGENT_WORKFLOWS": "off"}), story, Options(permission="auto", script=script))


def heard_errors(chat: Chat) -> list[str]:
    entries = [
        entry
        for node in lead_turns(chat.tree)
        for entry in read_entries(chat.project.store, session_of(node))
        if isinstance(entry, ToolResult)
    ]
    return [f"{one.error.message} ({one.error.hint})" for one in entries if one.error is not None]


@pytest.mark.full
def test_a_workflow_that_the_lead_runs_is_shown_at_once_and_counted_with_the_chat(
    project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # the run has a process of its own
    monkeypatch.delenv("FANFOLD_HOME", raising=False)
    text = "name: deep\nsteps: [{id: w, agent: worker, write_set: [a.txt], prompt: Write it.}]\n"
    script = f"""
steps:
  lead:
    output: done
    tool_calls:
      - {{tool: plan_workflow, args: {{task: "Audit every package, then fix it", use_model: false}}}}
      - {{tool: run_workflow, args: {{spec: {json.dumps(text)}}}}}
  w: {{output: wrote it, writes: {{a.txt: x}}, usage: {{input_tokens: 100, output_tokens: 7}}}}
default: fine
"""
    lines: list[str] = []
    opened = project({})
    opened.narrate = lines.append

    async def story(chat: Chat) -> None:
        suited = Suitability(True, "phases", "patterns")
        await chat.say("Audit every package, then fix it, then verify it.", suited)
        (run,) = chat.runs()
        assert lines[0].startswith(f"run {run} of deep started")
        assert any(line.startswith(f"run {run}, 1 of 1 steps done: w completed") for line in lines), lines
        used = chat.usage()
        assert (used.input_tokens, used.output_tokens, used.agents) == (100, 7, 2)
        report = "\n".join(heard(chat)[0])
        assert "## Answer" in report
        assert "a.txt (w, merged)" in report

    play(opened, story, Options(permission="auto", script=script))


@pytest.mark.full
def test_a_plan_that_failed_is_counted_with_the_chat(project: Any) -> None:
    script = """
steps:
  lead: {output: done, tool_calls: [{tool: plan_workflow, args: {task: "Audit every package, then fix it"}}]}
  draft: {fail: {class: agent, message: no draft}, usage: {input_tokens: 100, output_tokens: 7}}
default: fine
"""

    async def story(chat: Chat) -> None:
        await chat.say("Audit every package, then fix it.", Suitability(True, "phases", "patterns"))
        assert len(chat.runs()) == 1, heard(chat)
        assert chat.usage().input_tokens >= 100

    play(project({}), story, Options(permission="auto", script=script))
