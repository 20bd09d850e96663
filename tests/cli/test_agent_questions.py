"""Agents that ask people, and people who send messages to running agents."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Result
from tests.e2e.world import Provider
from tests.provider import Call, RecordedRequest, Reply
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full
Fanfold = Callable[..., Result]
QUESTION = Call("ask_user", {"question": "Which port?", "context": "80 or 8080"}, id="call-1")
RECIPE = "name: asks\nsteps: [{id: work, agent: worker, may_ask: true, write_set: ['*.txt'], prompt: Go}]\n"


class Model:
    """A model that writes a file, asks, and reports the answer; `hold` keeps a response back."""

    def __init__(self) -> None:
        self.hold = threading.Event()
        self.hold.set()
        self.reached = threading.Event()

    def __call__(self, asked: RecordedRequest) -> Reply:
        told = json.dumps(asked.body)
        turns = sum(bool(message.calls) for message in asked.messages)
        if "hold on" in told and turns == 1:
            self.reached.set()
            assert self.hold.wait(PATIENCE_S)
        if turns == 0:
            return Reply(calls=(Call("write_file", {"path": "a.txt", "content": "a"}, id="call-0"),))
        if "ask_user" in str(asked.tools) and turns == 1:
            return Reply(calls=(QUESTION,))
        if "hold on" in told and turns == 1:
            return Reply(calls=(Call("read_file", {"path": "a.txt"}, id="call-2"),))
        heard = next((text for text in ("8080 please", "use tabs") if text in told), "nothing")
        return Reply(text=f"heard {heard}")


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def provider(model: Model, monkeypatch: pytest.MonkeyPatch, project: Path) -> Iterator[Provider]:
    with Provider(model) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("FANFOLD_MODEL", "openai-chat:gpt-5")
        yield running
        model.hold.set()


def ask(fanfold: Fanfold, project: Path, recipe: str = RECIPE) -> Any:
    (project / "asks.yaml").write_text(recipe)
    ran = fanfold("run", "asks.yaml", "--yes", "--json")
    return ran.status, ran.json()


def test_a_step_waits_for_the_answer_and_continues_where_it_was(
    fanfold: Fanfold, project: Path, provider: Provider, until: Callable[..., Any]
) -> None:
    status, waiting = ask(fanfold, project)
    assert (status, waiting["steps"]["work"]["status"]) == (3, "waiting")
    assert not (project / "a.txt").exists(), "nothing was merged yet"
    seen = fanfold("inspect", "last").out
    assert "worker asks: Which port?" in seen
    assert "fanfold answer" in seen
    for refused in (("approve", "last", "work"), ("answer", "last", "work", " ")):
        assert fanfold(*refused).status == 2
    assert fanfold("answer", "last", "work", "8080 please").status == 0
    done = until(lambda seen: seen["status"] == "completed")
    assert done["output"] == "heard 8080 please"
    assert (project / "a.txt").read_text() == "a"
    assert len(provider.asked) == 3, "no response was asked for twice"
    assert provider.paid_twice() == []
    transcript = fanfold("transcript", "last", "work").out
    assert "8080 please" in transcript
    assert fanfold("verify", "last").status == 0


def test_a_step_after_an_agent_that_asked_gets_its_result(
    fanfold: Fanfold, project: Path, provider: Provider, until: Callable[..., Any]
) -> None:
    after = "{id: after, agent: explorer, depends_on: [work], prompt: Report it}"
    ask(fanfold, project, RECIPE.replace("Go}]", f"Go}}, {after}]"))
    assert fanfold("answer", "last", "work", "8080 please").status == 0
    done = until(lambda seen: seen["status"] == "completed")
    assert "heard 8080 please" in str(provider.asked[-1].body)
    [line] = [line for line in done["report"].splitlines() if line.startswith("- work (worker)")]
    assert line.endswith("heard 8080 please")


def test_the_question_is_answered_over_python(fanfold: Fanfold, project: Path, provider: Provider) -> None:
    import asyncio

    import fanfold as library

    (project / "asks.yaml").write_text(RECIPE)

    async def work() -> Any:
        async with library.open(project) as client:
            run = await client.start("asks.yaml", options=library.Options(permission="auto"))
            async for _ in run.events():
                if run.status == "waiting":
                    await run.answer("work", "8080 please")
            return await run.result()

    assert asyncio.run(work()).output == "heard 8080 please"


def test_only_an_agent_that_may_ask_has_the_tool(fanfold: Fanfold, project: Path, provider: Provider) -> None:
    status, done = ask(fanfold, project, RECIPE.replace("may_ask: true, ", ""))
    assert (status, done["output"]) == (0, "heard nothing")
    assert all("ask_user" not in str(asked.tools) for asked in provider.asked)


def test_a_role_may_ask_and_a_program_may_not(fanfold: Fanfold, project: Path, provider: Provider) -> None:
    roles = project / ".fanfold/agents"
    roles.mkdir(parents=True)
    text = 'name = "asker"\ndescription = "Asks"\ndeveloper_instructions = "Ask."\n'
    (roles / "asker.toml").write_text(text + "may_ask = true\n")
    (roles / "program.toml").write_text(text.replace("asker", "program") + 'backend = "claude"\n')
    recipe = RECIPE.replace("may_ask: true, ", "")
    assert ask(fanfold, project, recipe.replace("worker", "asker"))[0] == 3
    checked = fanfold("check", "asks.yaml")
    assert checked.status == 0
    (project / "asks.yaml").write_text(RECIPE.replace("worker", "program"))
    refused = fanfold("check", "asks.yaml")
    assert refused.status == 2
    assert "cannot ask" in refused.out + refused.err


def test_a_detached_run_continues_after_the_answer_and_pays_nothing_twice(
    fanfold: Fanfold,
    project: Path,
    provider: Provider,
    background: Callable[..., subprocess.Popen[bytes]],
    until: Callable[..., Any],
) -> None:
    (project / "asks.yaml").write_text(RECIPE)
    process = background("run", "asks.yaml", "--yes", "--json", "--detach")
    process.wait()
    until(lambda seen: seen["steps"].get("work", {}).get("status") == "waiting")
    assert fanfold("answer", "last", "work", "8080 please").status == 0
    until(lambda seen: seen["output"] == "heard 8080 please")
    assert provider.paid_twice() == []


def test_a_message_reaches_a_running_agent_before_its_next_turn(
    fanfold: Fanfold,
    project: Path,
    provider: Provider,
    model: Model,
    background: Callable[..., subprocess.Popen[bytes]],
    until: Callable[..., Any],
) -> None:
    (project / "work.yaml").write_text(
        "name: work\nsteps: [{id: work, agent: worker, write_set: ['*.txt'], prompt: hold on}]\n"
    )
    model.hold.clear()
    first = background("run", "work.yaml", "--yes", "--json")
    assert model.reached.wait(PATIENCE_S)
    assert fanfold("send", "last", "work", "use tabs").status == 0
    first.send_signal(signal.SIGKILL)  # the message is in the log, and the agent has not read it yet
    first.wait()
    model.hold.set()
    done = fanfold("resume", "last", "--json").json()
    assert done.get("output") == "heard use tabs", done
    told = [message.text for message in provider.asked[-1].messages]
    assert sum("use tabs" in text for text in told) == 1, "it is read once"
    assert "use tabs" in fanfold("transcript", "last", "work").out
    late = fanfold("send", "last", "work", "too late")
    assert (late.status, "is completed" in late.err) == (2, True)


def test_a_message_to_no_agent_is_refused(fanfold: Fanfold, project: Path, provider: Provider) -> None:
    (project / "wait.yaml").write_text("name: wait\nsteps: [{id: ok, approve: Go?}]\n")
    assert fanfold("run", "wait.yaml").status == 3
    assert "message.not_agent" in fanfold("send", "last", "ok", "hello").err
    assert "step.not_found" in fanfold("send", "last", "no", "hello").err
    assert fanfold("send", "last", "ok", "hello", "--resume").status == 2
