"""`fanfold chat`: at a real pseudo-terminal, in one line, killed and gone on with."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fanfold.cli.chat import WORDS
from tests.e2e.world import MODELS, Provider
from tests.provider import Call, Fault, RecordedRequest, Reply, answer_with
from tests.work import PATIENCE_S, long_enough_ms
from tools import chat_recording
from tools.screen import Screen

pytestmark = pytest.mark.full

SCRIPT = """\
steps:
  lead:
    output: It is in a.py, as scout says.
    tool_calls:
      - {tool: task, args: {role: explorer, task: Find the switch., name: scout}}
      - {tool: task, args: {role: explorer, task: "Explain this: the switch is in a.py, line 3", name: why}}
  scout: the switch is in a.py, line 3
  why: It is read at start-up only.
  "lead#2": You are welcome.
  slow: {output: late, delay_ms: 3600000}
default: "you said it"
"""
Open = Callable[..., Screen]


@pytest.fixture
def talk(project: Path) -> Iterator[Open]:
    """Open a chat at a terminal; whatever is left of it is ended with the test."""
    (project / "script.yaml").write_text(SCRIPT)
    opened: list[Screen] = []

    def start(*arguments: str, **environment: str) -> Screen:
        screen = Screen(100, 40, project, "chat", *arguments, PROMPT_TOOLKIT_NO_CPR="1", **environment)
        opened.append(screen)
        return screen

    yield start
    for screen in opened:
        screen.close()


def leave(screen: Screen) -> None:
    """End the input where it is awaited: in between, Ctrl-D is nobody's."""
    screen.until_prompt()
    screen.type("\x04")
    assert screen.end() == 0


def test_a_person_talks_delegates_looks_and_saves_at_a_terminal(
    talk: Open, fanfold: Any, project: Path
) -> None:
    screen = talk("--script", "script.yaml", "--permission", "auto")
    screen.until("leaves\n>")
    screen.type("Where is the switch?\r")
    screen.until("It is in a.py, as scout says.", "scout completed", "/save NAME keeps")
    screen.type("/agents\r")
    screen.until("the switch is in a.py, line 3")
    screen.type("/save find-switch\r")
    screen.until("saved as", "fanfold run find-switch runs it")
    screen.type("/cost\r")
    screen.until("tokens in")
    screen.type("/status\r")
    screen.until("lead")
    screen.type("/wrong\r")
    screen.until("/wrong is not a command of the chat")
    screen.type("Thank you.\r")
    screen.until("You are welcome.")
    leave(screen)
    assert "fanfold chat --resume chat-" in "\n".join(screen.rows)
    saved = (project / ".fanfold/workflows/find-switch.yaml").read_text()
    assert "Explain this: {{steps.scout.output}}" in saved
    assert fanfold("verify", "last").status == 0


def test_several_lines_are_one_thing_to_say_and_history_brings_it_back(talk: Open, fanfold: Any) -> None:
    screen = talk("--script", "script.yaml", "--permission", "auto")
    screen.until("leaves\n>")
    screen.type("one\x1b\rtwo\\\rthree\r")
    screen.until("It is in a.py")
    chat = fanfold("runs", "--json").json()[0]["run_id"]
    assert "> one\n> two\n> three" in fanfold("transcript", chat, "lead").out
    screen.type("\x1b[A")
    screen.until("> one")
    screen.type("\r")
    screen.until("You are welcome.")
    leave(screen)


def test_ctrl_c_stops_the_turn_and_keeps_the_session(talk: Open, fanfold: Any, project: Path) -> None:
    (project / "script.yaml").write_text(
        'steps: {lead: {output: late, delay_ms: 3600000}, "lead#2": Here I am.}\n'
    )
    screen = talk("--script", "script.yaml")
    screen.until("leaves\n>")
    screen.type("Think long.\r")
    deadline = time.monotonic() + PATIENCE_S
    while "lead" not in fanfold("inspect", "last", "--steps").out:
        assert time.monotonic() < deadline
    screen.type("\x03")
    screen.until("stopping the turn", "cancelled")
    screen.type("Still there?\r")
    screen.until("Here I am.")
    screen.type("/quit\r")
    assert screen.end() == 0
    found = fanfold("inspect", "last", "--json").json()["steps"]
    assert (found["lead"]["status"], found["lead#2"]["status"]) == ("cancelled", "completed")


def test_a_person_is_asked_before_anything_is_delegated_and_may_change_that(talk: Open) -> None:
    screen = talk("--script", "script.yaml")
    screen.until("permission ask", "leaves\n>")
    screen.type("Where is the switch?\r")
    screen.until("asks for permission to have a task done", "Find the switch.", "allow it? [y/N]")
    screen.type("n\r")
    screen.until("Explain this", "allow it? [y/N]")
    screen.type("y\r")
    screen.until("why completed")
    screen.until("It is in a.py")
    screen.type("/permission auto\r")
    screen.until("permission: auto")
    screen.type("/permission all\r")
    screen.until("all is not a permission")
    leave(screen)


def test_work_for_a_workflow_is_recognised_and_reported(talk: Open, fanfold: Any) -> None:
    screen = talk("--script", "script.yaml", "--permission", "auto")
    screen.until("leaves\n>")
    screen.type("Audit every package for missing tests, fix what you find and verify it.\r")
    screen.until("looks like work for a workflow", "It is in a.py")
    leave(screen)
    told = fanfold("transcript", "last", "lead").out
    assert "This looks like work for a workflow" in told
    assert "plan_workflow" in told


def test_a_recipe_is_run_from_a_chat_and_the_lead_hears_how_it_ended(
    talk: Open, fanfold: Any, project: Path
) -> None:
    (project / "greet.yaml").write_text(
        "name: greet\ninputs: [{name: who, required: true}]\n"
        "steps: [{id: hello, agent: explorer, prompt: 'Greet {{inputs.who}}.'}]\n"
    )
    screen = talk("--script", "script.yaml", "--permission", "auto")
    screen.until("leaves\n>")
    screen.type("/run greet.yaml who=Ada\r")
    screen.until("you said it")
    screen.type("What did it say?\r")
    screen.until("It is in a.py")
    leave(screen)
    chat = next(run["run_id"] for run in fanfold("runs", "--json").json() if run["run_id"].startswith("chat"))
    assert (
        '"recipe":"greet","status":"completed","output":"you said it"'
        in fanfold("transcript", chat, "lead").out
    )


def test_plan_query_and_undo_do_in_a_chat_what_their_commands_do(
    talk: Open, fanfold: Any, project: Path
) -> None:
    recipe = "name: look\nphases: [{id: look, tasks: [{id: scan, agent: explorer, prompt: Look}]}]\n"
    steps = {
        "lead": {
            "output": "It is written.",
            "tool_calls": [
                {
                    "tool": "task",
                    "args": {"role": "worker", "task": "Write.", "name": "hand", "write_set": ["a.txt"]},
                }
            ],
        },
        "hand": {"output": "a heron stands in a.txt", "writes": {"a.txt": "heron\n"}},
        "draft": {"output": {"fit": True, "reason": "many parts", "recipe": recipe}},
    }
    (project / "script.yaml").write_text(yaml.safe_dump({"steps": steps}))
    screen = talk("--script", "script.yaml", "--permission", "auto")
    screen.until("leaves\n>")
    screen.type("Write it.\r")
    screen.until("It is written.")
    assert (project / "a.txt").exists()
    screen.type("/query heron\r")
    screen.until("hand  worker", "a heron stands")
    screen.type("/undo hand\r")
    screen.until("took back hand", "removed a.txt")
    assert not (project / "a.txt").exists()
    screen.type("/plan Audit every package\r")
    screen.until("the planner works", "many parts", "Nothing was saved")
    screen.type("/plan --save look Audit every package\r")
    screen.until("Run it: fanfold run look")
    screen.until_prompt()
    screen.resize(100, 40)
    screen.type("/plan --no-model --save look --replace Audit every package\r")
    screen.until("From a template", "Run it: fanfold run look")
    for wrong in ("/plan", "/plan --save look", "/plan --sav x y", "/query", "/undo nobody"):
        screen.until_prompt()
        screen.resize(100, 40)
        screen.type(f"{wrong}\r")
        screen.until("error[")
    leave(screen)
    assert fanfold("check", "look").status == 0
    assert fanfold("verify", "--all").status == 0


def test_ctrl_c_ends_a_plan_and_what_it_pays_for_and_keeps_the_session(
    talk: Open, fanfold: Any, project: Path
) -> None:
    script = {"steps": {"draft": {"output": {}, "delay_ms": 60_000}, "lead": "Still here."}}
    (project / "script.yaml").write_text(yaml.safe_dump(script))
    screen = talk("--script", "script.yaml")
    screen.until("leaves\n>")
    screen.type("/plan Audit every package\r")
    screen.until("the planner works")
    screen.type("\x03")
    screen.until("stopping the plan", "stopped")
    drafts = [run for run in fanfold("runs", "--json").json() if run["recipe"] == "plan-workflow"]
    assert [run["status"] for run in drafts] == ["cancelled"]
    screen.type("Are you there?\r")
    screen.until("Still here.")
    leave(screen)


@pytest.mark.parametrize("where", ["lead", "scout"])
def test_a_killed_chat_continues_after_its_last_recorded_entry(
    where: str, talk: Open, fanfold: Any, project: Path
) -> None:
    script = yaml.safe_load(SCRIPT)
    said = script["steps"][where]
    said = said if isinstance(said, dict) else {"output": said}
    script["steps"][where] = {**said, "delay_ms": long_enough_ms(3_000)}
    (project / "script.yaml").write_text(yaml.safe_dump(script))
    calls = project / "calls"
    screen = talk("--script", "script.yaml", "--permission", "auto", FANFOLD_SCRIPT_CALLS=str(calls))
    screen.until("leaves\n>")
    screen.type("Where is the switch?\r")
    deadline = time.monotonic() + PATIENCE_S
    while not calls.exists() or where not in calls.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(screen.process.pid, signal.SIGKILL)
    screen.process.wait()
    again = talk("--resume", FANFOLD_SCRIPT_CALLS=str(calls))
    again.until(
        "you said: Where is the switch?", "it was cut off; continuing", "It is in a.py, as scout says."
    )
    again.type("Thank you.\r")
    again.until("You are welcome.")
    leave(again)
    assert fanfold("verify", "last").status == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_chat_that_gets_sigterm_stays_resumable(
    number: int, fanfold: Any, background: Any, until: Any, project: Path
) -> None:
    script = f"default: {{output: at last, delay_ms: {long_enough_ms(2_500)}}}\n"
    (project / "slow.yaml").write_text(script)
    process = background("chat", "Where is the switch?", "--script", "slow.yaml")
    until(lambda run: any(step["status"] == "running" for step in run["steps"].values()))
    process.send_signal(number)
    process.send_signal(number)  # whoever closes a terminal and the shell in it both say so
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    run = fanfold("inspect", "last", "--json").json()
    assert (run["status"], run["owner"]) == ("paused", None)
    assert f"continue it: fanfold chat --resume {run['run_id']}" in err.decode()
    assert fanfold("verify", "last").status == 0
    assert fanfold("chat", "--resume", run["run_id"], "And now?").out == "at last\n"


def test_one_thing_is_asked_without_a_terminal(shell: Any, project: Path) -> None:
    (project / "script.yaml").write_text(SCRIPT)
    asked = shell("chat", "Where is the switch?", "--script", "script.yaml", "--permission", "auto", "--json")
    assert asked.status == 0, asked.err
    answer = json.loads(asked.out)
    assert (answer["status"], answer["output"]) == ("completed", "It is in a.py, as scout says.")
    assert [child["id"] for child in answer["agents"]] == ["scout", "why"]
    more = shell("chat", "--resume", answer["run_id"], "Thanks.", "--json")
    assert json.loads(more.out)["output"] == "You are welcome."
    assert shell("chat", "--resume", "nobody", "x", "--json").json()["error"]["code"] == "chat.not_found"
    assert shell("gc", "--older-than", "0m", "--json").json()["runs"] == [answer["run_id"]]
    assert shell("chat", "--resume", "--json", "x").json()["error"]["code"] == "chat.not_found"


def test_without_a_terminal_nothing_is_delegated_unless_it_is_allowed(shell: Any, project: Path) -> None:
    (project / "script.yaml").write_text(SCRIPT)
    asked = shell("chat", "Where is the switch?", "--script", "script.yaml", "--json")
    assert (asked.status, asked.json()["agents"]) == (0, [])


def test_an_empty_message_is_refused(shell: Any, project: Path) -> None:
    for said in ([], [""], ["  "]):
        refused = shell("chat", *said, "--json")
        assert (refused.status, refused.json()["error"]["code"]) == (2, "usage.missing")


def test_a_chat_that_no_model_could_answer_is_not_begun(shell: Any, project: Path) -> None:
    refused = shell("chat", "Hello", "--json", PATH="/usr/bin:/bin")
    assert refused.json()["error"]["code"] == "provider.none"
    assert shell("runs", "--json").json() == []


def test_words_of_a_model_are_shown_as_they_come_and_drive_no_terminal(talk: Open) -> None:
    evil = "Look: \x1b]0;owned\x07\x1b[2J\x1b[31m and \u202egnp.exe\r\nThat is all."

    def answer(asked: RecordedRequest) -> Reply:
        if asked.prompt.startswith("The request, as a JSON string"):
            return answer_with({"suitable": True, "reason": "\x1b[2Jno"}, asked)
        return Reply(text=evil)

    with Provider(answer) as provider:
        screen = talk(**provider.environment, FANFOLD_MODEL=MODELS["chat"])
        screen.until("leaves\n>")
        screen.type("Show me.\r")
        screen.until("Look: ␛]0;owned␇␛[2J␛[31m and <U+202E>gnp.exe", "That is all.", "␛[2Jno")
        assert b"\x1b]0;owned" not in screen.received
        assert "\u202e".encode() not in screen.received
        leave(screen)


def test_the_chat_in_the_documentation_is_what_happens() -> None:
    assert chat_recording.page_with(chat_recording.record()) == chat_recording.PAGE.read_text()


def test_a_chat_without_a_model_leaves_nothing_behind(shell: Any, project: Path) -> None:
    before = shell("runs", "--json").out
    refused = shell("chat", "Hello?")
    assert refused.status != 0
    assert shell("runs", "--json").out == before


def test_the_commands_of_a_chat_fit_a_terminal_of_80_columns(talk: Open, project: Path) -> None:
    (project / "script.yaml").write_text("default: ok\n")
    screen = talk("--script", "script.yaml")
    screen.until("leaves\n>")
    screen.resize(80, 40)
    screen.type("/help\r")
    screen.until("another line.")
    rows = screen.rows
    (first,) = [number for number, row in enumerate(rows) if row.startswith("  /run ")]
    (last,) = [number for number, row in enumerate(rows) if row.endswith("another line.")]
    assert last - first + 1 == len(WORDS) + 2, "a line is broken"
    leave(screen)


TEAM = """\
name: team
steps: [{id: sub, workflow: ./inner.yaml}, {id: broken, agent: explorer, prompt: Break., on_failure: inline}]
"""
INNER = "name: inner\nsteps: [{id: write, agent: worker, write_set: [a.txt], prompt: Write it.}]\n"


def test_a_lead_gets_the_report_of_a_workflow_and_knows_that_it_may_write(shell: Any, project: Path) -> None:
    (project / "team.yaml").write_text(TEAM)
    (project / "inner.yaml").write_text(INNER)

    def answer(asked: RecordedRequest) -> Reply | Fault:
        if asked.prompt.startswith("The request, as a JSON string"):
            return answer_with({"suitable": True, "reason": "Two parts"}, asked)
        if asked.prompt.startswith("Run the team"):
            call = Call("run_workflow", {"name": "team.yaml"})
            return Reply(text="Done.") if asked.results else Reply(calls=(call,))
        if asked.prompt == "Write it.":
            call = Call("write_file", {"path": "a.txt", "content": "x"})
            return Reply(text="Written.") if asked.results else Reply(calls=(call,))
        return Fault("rejected")

    with Provider(answer) as provider:
        environment = {**provider.environment, "FANFOLD_MODEL": MODELS["chat"]}
        said = shell("chat", "Run the team.", "--permission", "auto", **environment)
    assert said.status == 0, said.err
    (last,) = [asked for asked in provider.asked if asked.prompt.startswith("Run the team") and asked.results]
    (result,) = [json.loads(text)["run"] for text in last.results.values()]
    assert "- sub/write (worker): completed" in result["report"]
    assert "- added a.txt (sub/write, merged)" in result["report"]
    assert "**broken** failed" in result["report"]
    assert result["changes"] == ["added a.txt"]
    system = last.body["messages"][0]["content"]
    assert "- Write access: every file of the working folder" in system
    (hit,) = shell("query", "kind:error parameter", "--json").json()["hits"]
    assert (hit["run_id"], hit["path"], hit["role"]) == (result["run_id"], "broken", "explorer")
