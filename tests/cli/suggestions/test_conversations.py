"""What chats, plans and captures suggest; a scripted provider on this machine answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.suggestions.following import DENIED, USAGE, Fanfold, Follow, commands
from tests.cli.suggestions.places import suggested
from tests.e2e.world import MODELS, Provider
from tests.provider import Reply
from tools.screen import Screen

pytestmark = pytest.mark.full


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """Whatever a model is asked, it says the same."""
    with Provider(lambda _: Reply(text="Here is a file.")) as server:
        for name, value in {**server.environment, "FANFOLD_MODEL": MODELS["chat"]}.items():
            monkeypatch.setenv(name, value)
        yield server


def talked(project: Path, words: list[str], *said: str) -> str:
    """A chat at a terminal, as a command says, until it is left; all that it showed."""
    screen = Screen(100, 60, project, *words, PROMPT_TOOLKIT_NO_CPR="1")
    try:
        for line in said:
            screen.until_prompt()
            screen.type(f"{line}\r")
            screen.until(f"> {line}")  # the prompt that stands there still is not the next one
        screen.until_prompt()
        screen.type("\x04")
        assert screen.end() == 0
        return "\n".join(screen.rows)
    finally:
        screen.close()


@suggested("cli/chat.py: fanfold transcript")
def test_of_questions_without_a_user(fanfold: Fanfold, follow: Follow, project: Path) -> None:
    task = "{tool: task, args: {role: explorer, task: Look}}"
    command = "{tool: run_command, args: {argv: [ls]}}"
    (project / "s.yaml").write_text(f"default: {{output: x, tool_calls: [{task}, {command}, {task}]}}\n")
    asked = fanfold("chat", "Look.", "--script", "s.yaml")
    assert "denied: task, run_command; fanfold transcript chat-" in asked.err
    assert follow(asked.err.partition("continue it: ")[0], may=(0,)) == ["transcript"]
    (project / "s.yaml").write_text(f"default: {{output: x, tool_calls: [{command}]}}\n")
    assert "denied" not in fanfold("chat", "Look.", "--script", "s.yaml", "--permission", "auto").err


@suggested(
    "cli/chat.py: fanfold chat",
    "cli/chat.py: fanfold chat --resume",
    "api/chats.py: fanfold chat",
)
def test_of_chats(fanfold: Fanfold, follow: Follow, project: Path, provider: Provider) -> None:
    del provider
    none = fanfold("chat", "--resume", "--json", "hello")
    swallowed = fanfold("chat", "hello", "--resume", "what now")
    assert fanfold("chat", "").status == USAGE
    asked = fanfold("chat", "What is here?")
    assert asked.status == 0
    follow(fanfold("chat", ""), may=(0,))
    follow(fanfold("chat", "", "--json").json()["error"]["hint"], may=(0,))
    follow('fanfold chat "What is here?" --json', may=(0,))  # at a terminal, --json without a text says so

    assert follow(swallowed, may=(0,)) == ["chat"]
    (words,) = commands(asked.err)
    shown = talked(project, words, "/help")
    follow.did(asked.err)
    (bare,) = [one for one in commands(shown) if one == ["chat", "--resume"]]
    left = talked(project, bare)
    follow.did(shown)
    talked(project, commands(left)[-1])
    follow.did(left)

    chat = words[-1]
    assert fanfold("cancel", chat).status == 0
    ended = fanfold("chat", "--resume", chat, "hello")
    assert "was ended" in ended.err
    for told in (ended.err, none.json()["error"]["hint"]):
        begins, *rest = commands(told)
        assert begins == ["chat"]
        talked(project, begins)
        follow.did(told)
        assert all(fanfold(*one).status == 0 for one in rest)


@suggested("steps/run_config.py: fanfold chat --resume {}")
def test_of_every_view_of_an_idle_chat(fanfold: Fanfold, follow: Follow, provider: Provider) -> None:
    del provider
    asked = fanfold("chat", "What is here?", "--json")
    chat = asked.json()["run_id"]
    looks = [
        ["explain"],
        ["inspect"],
        ["pause"],
        ["explain"],
        ["watch"],
        ["resume"],
        ["explain"],
        ["retry"],
        ["send"],
    ]
    for look in looks:
        said = fanfold(*look, chat, *(["Hello?"] if look == ["send"] else []))
        assert commands(said.out + said.err)[-1] == ["chat", "--resume", chat], look
        follow.did(said.out + said.err)
    for name in (chat, "last", chat.removeprefix("chat-")[:4]):
        assert fanfold("chat", "And now?", "--resume", name).status == 0, name
    assert fanfold("cancel", chat).status == 0
    none = fanfold("chat", "And now?", "--resume", "last")
    assert "there is no chat to continue" in none.err


@suggested(
    "cli/recipes.py: fanfold capture",
    "cli/recipes.py: fanfold run {} runs it",
    "api/authoring.py: fanfold inspect {} lists its agents",
    "api/authoring.py: fanfold capture {}",
    "api/subagents.py: fanfold agents lists",
    "cli/agents.py: no subagent is running",
)
def test_of_delegated_work(fanfold: Fanfold, follow: Follow, agents: Path, provider: Provider) -> None:
    del provider
    fanfold("run", "my agents.yaml", "--script", "ok.yaml")
    (agents / "agents.yaml").write_text((agents / "my agents.yaml").read_text())
    fanfold("run", "research-and-brief", "-i", "topic=x", "--script", "ok.yaml")
    refused = fanfold("spawn", "explorer", "Look", "--write-set", "*.txt")
    assert refused.status == USAGE
    assert follow(refused) == ["agents"]
    (agents / "no.yaml").write_text("default: {fail: {class: agent, message: no}}\n")
    fanfold("spawn", "explorer", "Look", "--name", "poor", "--script", "no.yaml", "--wait")
    assert follow(fanfold("capture", "hand", "poor")) == ["inspect"]
    assert follow(fanfold("show", "hand"), may=(6,)) == ["capture"]
    given = ("--script", "ok.yaml", "--wait")
    assert fanfold("spawn", "explorer", "Look at it", "--name", "scout", *given).status == 0
    fanfold("close", "poor")
    idle = fanfold("ps")
    assert idle.out.startswith("no subagent is running")
    assert follow(idle.out) == ["ps"]
    found = fanfold("capture", "hand")
    assert follow(found) == ["capture"]
    assert follow(fanfold("capture", "hand", "--name", "other")) == ["run"]


@suggested("api/planning.py: fanfold", "cli/recipes.py: Run it: fanfold run {}{}")
def test_of_plans(fanfold: Fanfold, follow: Follow, project: Path, provider: Provider) -> None:
    del provider
    small = fanfold("plan", "What does main.py do?", "--no-model")
    assert follow(small, may=(0,)) == ["spawn"]
    task = "Audit every package for swallowed errors and fix them"
    saved = fanfold("plan", task, "--no-model", "--save", "tidy")
    assert saved.status == 0
    assert follow(saved.err, may=(0, 1, DENIED)) == ["run"]
    (project / "no.yaml").write_text("default: {fail: {class: agent, message: no}}\n")
    failed = fanfold("plan", task, "--script", "no.yaml")
    assert failed.status == 1
    assert "--no-model fills in a template" in failed.err
    assert follow(failed, may=(0, 1)) == ["transcript", "inspect"]
    assert fanfold("plan", task, "--no-model").status == 0  # what the hint says besides


def test_a_planner_that_fails_speaks_to_models_of_what_they_can_say(
    project: Path, provider: Provider
) -> None:
    import fanfold

    del provider
    with fanfold.open_sync(project) as opened, pytest.raises(fanfold.FanfoldError) as failed:
        opened.plan("Audit every package and fix it", options=fanfold.Options(script="steps: {}"))
    assert "use_model=False fills in a template" in failed.value.hint
    assert not re.search(r"--\w", failed.value.hint)
