"""Limits, budgets, outages and wrong guesses with the real agents, counted at the provider.

What was seen goes into `seen.json`, with the version and the day. With `AGENTS_RECORD=FOLDER` what the
programs said is kept there, for the tests that replay it without them (`tests/agents/recorded`).
"""

import json
import os
import re
import socket
import time
from pathlib import Path

import pytest

from fanfold.agents.command.events import read_line
from fanfold.agents.command.profile_files import find_profile
from tests.real_agents.provider import KEY
from tests.real_agents.test_real_agents import WANTED, note, processes, pytestmark
from tests.real_agents.world import WAIT_S, Outside, RealWorld, task

__all__ = ["pytestmark"]

SOON_S = 8
"""A profile with little patience: what takes a minute for users takes so long here."""
SILENT_S = 90
"""How long a program may be silent in these tests: on a busy machine some take a minute to start."""
GEMINI_S = 45
"""For Gemini CLI, which gives up a silent request by itself after a minute."""
LIMIT_S = 130
"""Until the reset of a usage limit: longer than what is left to the program itself."""


MODELS = {
    "claude": "claude-sonnet-4-5",
    "codex": "scripted",
    "opencode": "scripted/m1",
    "gemini": "gemini-2.5-flash",
}
"""What the roles name as their models where a budget is in dollars."""


def impatient(world: RealWorld, name: str, **more: object) -> None:
    keys = {"claude": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY", "copilot": "COPILOT_PROVIDER_API_KEY"}
    key = keys.get(name.removesuffix("-acp"), "OPENAI_API_KEY")
    said = {"credentials": [key], "patience_s": SOON_S, **more}
    text = "".join(f"{word} = {json.dumps(value)}\n" for word, value in said.items())
    world.outside.write(f".fanfold/backends/{name}.toml", text)


def keep(world: RealWorld, name: str, case: str) -> None:
    """Keep what the program said first in this test, without anything of this machine."""
    folder = os.environ.get("AGENTS_RECORD", "")
    found = world.recorded()
    if not folder or not found:
        return
    beside = found[0].with_suffix(".stderr")
    kept = {"jsonl": found[0].read_text(), "stderr": beside.read_text() if beside.exists() else ""}
    places = {
        str(world.project): "/project",
        str(world.project)[1:]: "project",
        re.sub("[^a-zA-Z0-9]", "-", str(world.project)): "-project",
        str(world.outside.home): "/own",
        str(world.project.parent): "/own",
        os.environ.get("AGENTS_CACHE", "/cache"): "/opt/agents",
        KEY: "KEY",
    }
    for ending, text in (kept | {"usage": usage_lines(found[0].parent, name)}).items():
        plain = re.sub("|".join(map(re.escape, places)), lambda one: places[one[0]], text)
        plain = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8000", plain)
        if plain.strip() or ending == "jsonl":
            (Path(folder) / f"{name}-{case}.{ending}").write_text(plain)


def usage_lines(home: Path, name: str) -> str:
    """The lines of the program's own files from which its usage is read while it works."""
    profile = find_profile(name, home)
    assert profile is not None, name
    files = home.glob(profile.usage_files) if profile.usage_files else ()
    lines = [line for file in files for line in file.read_bytes().splitlines()]
    return "".join(f"{line.decode()}\n" for line in lines if read_line(line, profile.asides))


def firsts(world: RealWorld) -> int:
    """How many requests began a conversation; some ask for a title beside the first."""
    return sum(one["turns"] == 0 and len(one["tools"]) > 1 for one in world.asked())


def work(world: RealWorld, name: str, prompt: str, retry: int = 2, **more: object) -> None:
    world.role("coder", name)
    step: dict[str, object] = {"id": "work", "agent": "coder", "prompt": prompt, "write_set": ["*.txt"]}
    step["retry"] = {"attempts": retry}
    (world.project / "work.yaml").write_text(json.dumps({"name": "work", **more, "steps": [step]}))


def wait_for_reset(world: RealWorld) -> None:
    reset = int((world.signs / "reset").read_text())
    time.sleep(max(0.0, reset - time.time()))
    world.fault()


def log_in(world: RealWorld, name: str) -> None:
    """Give Claude Code a login instead of a key: its usage limits belong to logins."""
    if name.startswith("claude"):
        world.outside.environment |= {"CLAUDE_CODE_OAUTH_TOKEN": KEY}
        del world.outside.environment["ANTHROPIC_API_KEY"]
        world.outside.write(f".fanfold/backends/{name}.toml", 'credentials = ["CLAUDE_CODE_OAUTH_TOKEN"]\n')


@pytest.mark.parametrize("name", WANTED)
def test_a_usage_limit_starts_one_agent_of_eight_and_is_waited_for(world, seen, name):
    note(seen, name, "limit", "no")
    log_in(world, name)
    world.role("reader", name, 'sandbox_mode = "read-only"\n')
    each = {
        "id": "each",
        "agent": "reader",
        "for_each": str([*range(8)]),
        "prompt": task(say="done {{item}}"),
    }
    recipe = {"name": "work", "limits": {"max_concurrency": 1}, "steps": [each]}
    (world.project / "work.yaml").write_text(json.dumps(recipe))
    world.fault("limit", for_s=LIMIT_S)
    process = world.start("run", "work.yaml", "--yes", "--json")
    found = world.until_status("waiting")
    assert [(one["reason"], one["steps"]) for one in found["waits"]] == [("limit", 8)]
    assert found["usage"]["agents"] == 1, "one agent was started"
    if name.removesuffix("-acp") in ("claude", "codex", "opencode", "gemini"):  # others try again themselves
        assert sum(one["fault"] for one in world.asked()) <= 2, "the limit was met once, or also by a title"
    keep(world, name, "limit")
    wait_for_reset(world)
    out, err = process.communicate(timeout=WAIT_S)
    assert json.loads(out)["status"] == "completed", err
    answered = [one for one in world.asked() if not one["fault"] and len(one["tools"]) > 1]
    assert len(answered) == 8, "each item once, besides requests for a title"
    note(seen, name, "limit", "yes")


@pytest.mark.parametrize("name", WANTED)
def test_after_a_usage_limit_in_the_middle_of_its_work_an_agent_continues_its_conversation(world, seen, name):
    note(seen, name, "limited", "no")
    log_in(world, name)
    work(world, name, task({"write": "hello.txt", "text": "hello"}, say="Done."))
    world.fault("limit", for_s=LIMIT_S, turns=1)
    process = world.start("run", "work.yaml", "--yes", "--json")
    found = world.until_status("waiting")
    assert [(one["reason"], one["steps"]) for one in found["waits"]] == [("limit", 1)]
    keep(world, name, "limited")
    wait_for_reset(world)
    out, err = process.communicate(timeout=WAIT_S)
    assert json.loads(out)["status"] == "completed", err
    assert (world.project / "hello.txt").read_text() == "hello\n"
    assert firsts(world) == 1, "the first request was paid once"
    note(seen, name, "limited", "yes")


@pytest.mark.parametrize("name", WANTED)
def test_a_budget_of_tokens_stops_a_step_while_it_works(world, seen, name):
    note(seen, name, "budget", "no")
    acts = [{"run": f"sleep 0.7; echo {number} > {number}.txt"} for number in range(6)]
    work(world, name, task(*acts, say="Done."))
    done = world.fanfold("run", "work.yaml", "--yes", "--budget-tokens", "2500")
    assert done["status"] == "paused", done["steps"]
    spent = done["usage"]["input_tokens"] + done["usage"]["output_tokens"]
    assert 2_500 <= spent <= 2_500 + 2_100, "at most the request beyond it, and one that is under way"
    assert done["usage"]["output_tokens"] >= 40, "each whole answer, not only its beginning"
    assert firsts(world) == 1
    keep(world, name, "budget")
    done = world.fanfold("resume", "last", "--budget-tokens", "90000")
    assert done["status"] == "completed", done["steps"]
    assert firsts(world) == 1, "the conversation was continued"
    note(seen, name, "budget", "yes")


@pytest.mark.parametrize("name", [name for name in WANTED if name.removesuffix("-acp") in MODELS])
def test_a_budget_in_dollars_continues_the_conversation(world, seen, name):
    """Claude Code reports its costs; for the others, the user's own price of the model counts."""
    note(seen, name, "usd", "no")
    model = MODELS[name.removesuffix("-acp")]
    budget = 0.009 if name == "claude-acp" else 0.004  # which asks for a title first
    if not name.startswith("claude"):
        rate = "{ input = 3, output = 15 }"
        world.outside.write(".fanfold/config.toml", f"[models.prices]\n{json.dumps(model)} = {rate}\n")
    acts = [{"run": f"sleep 0.7; echo {number} > {number}.txt"} for number in range(4)]
    work(world, name, task(*acts, say="Done."))
    world.role("coder", name, "" if name in ("claude", "gemini", "gemini-acp") else f'model = "{model}"\n')
    done = world.fanfold("run", "work.yaml", "--yes", "--budget-usd", str(budget))
    assert done["status"] == "paused", done["steps"] or done["error"]
    over = done["usage"]["cost_usd"] - budget
    assert 0 <= over <= 0.006, "at most the request beyond it, and one under way"
    assert {one["model"] for one in world.asked()} <= {model, "m1", "scripted"}
    assert 2_000 <= done["usage"]["input_tokens"] <= 3_000
    keep(world, name, "usd")
    done = world.fanfold("resume", "last", "--budget-usd", "5")
    assert done["status"] == "completed", done["steps"]
    assert firsts(world) == 1
    assert 0.017 < done["usage"]["cost_usd"] < budget + 0.025, "each request once"
    note(seen, name, "usd", "yes")


@pytest.mark.parametrize(("kind", "fact"), [("overloaded", "outage"), ("dropped", "dropped")])
@pytest.mark.parametrize("name", WANTED)
def test_an_outage_is_waited_for_and_the_conversation_continues(world, seen, name, kind, fact):
    note(seen, name, fact, "no")
    impatient(world, name)
    work(world, name, task({"write": "hello.txt", "text": "hello"}, say="Done."))
    world.fault(kind, turns=1)
    process = world.start("run", "work.yaml", "--yes", "--json")
    world.until_status("waiting")
    keep(world, name, kind)
    world.fault()
    out, err = process.communicate(timeout=200)
    assert json.loads(out)["status"] == "completed", err
    assert firsts(world) == 1, "nothing was asked twice"
    note(seen, name, fact, "yes")


@pytest.mark.parametrize("name", WANTED)
def test_a_retry_continues_the_conversation_of_an_agent_that_fell_silent(world, seen, name):
    note(seen, name, "retry", "no")
    impatient(world, name, idle_s=GEMINI_S if name.startswith("gemini") else SILENT_S)
    work(world, name, task({"write": "hello.txt", "text": "hello"}, say="Done."), retry=1)
    world.fault("silent", turns=1)
    failed = world.fanfold("run", "work.yaml", "--yes")
    assert failed["status"] == "failed", failed
    assert failed["steps"]["work"]["error"]["class"] == "timeout", failed["steps"]
    keep(world, name, "silent")
    world.fault()
    done = world.fanfold("retry", "last", "--yes")
    assert done["status"] == "completed", done["steps"]
    assert (world.project / "hello.txt").read_text() == "hello\n"
    assert firsts(world) == 1, "the conversation was continued"
    note(seen, name, "retry", "yes")


@pytest.mark.parametrize("name", WANTED)
def test_an_unreachable_provider_is_named_and_a_silent_one_ends_the_step(world, seen, name):
    note(seen, name, "unreachable", "no")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    reachable = world.outside
    world.outside = Outside(world.project.parent, port, port)
    impatient(world, name, idle_s=SILENT_S)
    work(world, name, task(say="Done."), limits={"outage": "1s"})
    begun = time.monotonic()
    done = world.fanfold("run", "work.yaml", "--yes")
    assert done["error"]["code"] == "agent.unreachable", done["error"]
    assert f"127.0.0.1:{port}" in done["error"]["message"]
    assert time.monotonic() - begun < 240, "Gemini alone would be silent for longer"
    keep(world, name, "unreachable")
    world.outside = reachable.again()
    impatient(world, name, idle_s=15)
    world.fault("silent")
    done = world.fanfold("run", "work.yaml", "--yes")
    error = done["steps"]["work"]["error"] or done["error"]
    assert error["code"] in ("agent.silent", "agent.unreachable"), error
    note(seen, name, "unreachable", "yes")


@pytest.mark.parametrize("name", WANTED)
def test_a_wrong_guess_is_corrected_in_one_turn(world, seen, name):
    note(seen, name, "correction", "no")
    wrong = {"run": "echo x > wrong.md"}
    work(world, name, task(wrong, say="Done.", undo={"run": "mv wrong.md right.txt"}))
    done = world.fanfold("run", "work.yaml", "--yes")
    assert "only files that match `*.txt`" in json.dumps(world.asked()[0]["body"])
    assert done["status"] == "completed", done["steps"]
    assert [one["path"] for one in done["changes"]] == ["right.txt"]
    assert firsts(world) == 1
    keep(world, name, "correction")
    note(seen, name, "correction", "yes")


@pytest.mark.parametrize("name", WANTED)
def test_a_killed_run_loses_no_spending(world, seen, name):
    note(seen, name, "spending", "no")
    work(world, name, task({"write": "hello.txt", "text": "hello"}, say="Done.", wait=f"spent-{name}"))
    process = world.start("run", "work.yaml", "--yes")
    world.until(lambda: any(one["turns"] == 1 for one in world.asked()), "second request")
    time.sleep(2)  # what it used is on its way to the log
    process.kill()
    process.communicate()
    session = world.fanfold("transcript", "last", "work")["session_id"]
    world.until(lambda: not processes(session), "end of the agent")
    before = world.fanfold("inspect", "last")["usage"]
    assert (before["input_tokens"], before["output_tokens"]) == (1_000, 20)
    (world.signs / f"spent-{name}").touch()
    done = world.fanfold("resume", "last")
    assert done["status"] == "completed", done["steps"]
    assert firsts(world) == 1, "the conversation was continued"
    answered = [one for one in world.asked() if not one["fault"] and len(one["tools"]) > 1]
    assert done["usage"]["input_tokens"] <= 1_000 * len(answered) + 200
    assert done["usage"]["input_tokens"] >= 2_200
    keep(world, name, "killed")
    note(seen, name, "spending", "yes")
