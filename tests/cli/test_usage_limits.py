"""Usage limits of agents that are programs: recognised, waited for, and continued at the reset."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fanfold.agents.command.events import TurnEnd, read_line, reset_at
from fanfold.agents.command.profile_files import find_profile
from fanfold.agents.command.transcript_events import CallEnd, judge
from fanfold.api.result import Result
from fanfold.api.run_options import Options
from tests.cli.agent_world import RECORDED, SUCCESS, AgentWorld
from tests.fast_clock import FastClock
from tests.runtime.running import client
from tests.work import PATIENCE_S


@pytest.fixture
def agents(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentWorld:
    return AgentWorld(project, tmp_path / "home", monkeypatch)


NOW = datetime(2026, 11, 18, 20, 5, tzinfo=UTC)
"""A Wednesday."""


@pytest.mark.parametrize(
    ("words", "when"),
    [
        ("9pm", "2026-11-18T21:00"),
        ("8pm", "2026-11-18T20:00"),  # it reset five minutes ago
        ("7pm", "2026-11-19T19:00"),
        ("Mon 9am", "2026-11-23T09:00"),
        ("Wed 9pm", "2026-11-18T21:00"),
        ("Wed 3am", "2026-11-25T03:00"),
        ("12:42am (UTC)", "2026-11-19T00:42"),
        ("12am", "2026-11-19T00:00"),
        ("9pm (Europe/Berlin)", "2026-11-18T20:00"),
        ("2pm (Asia/Shanghai)", "2026-11-19T06:00"),
        ("Nov 22nd, 2026 3:04 PM", "2026-11-22T15:04"),
        ("November 20, 2026 at 2:00 AM", "2026-11-20T02:00"),
        ("10:57 PM GMT-3", "2026-11-19T01:57"),
        ("15 hours 23 minutes", "2026-11-19T11:28"),
        ("Jan 2, 9am", "2026-01-02T09:00"),
        ("4 days 2 hours 46 minutes", "2026-11-22T22:51"),
        ("3h12m5s", "2026-11-18T23:17"),
        ("1795042800", "2026-11-18T23:00"),
        ("1795042800000", "2026-11-18T23:00"),
    ],
)
def test_the_time_of_a_reset_is_the_next_moment_of_that_name(words: str, when: str) -> None:
    at = reset_at(words, NOW.timestamp(), UTC)
    expected = datetime.fromisoformat(when).replace(tzinfo=UTC)
    if expected < NOW.replace(hour=0):  # further away than a limit lasts
        assert at == 0
        return
    assert datetime.fromtimestamp(at // 60_000 * 60, UTC) == expected


@pytest.mark.parametrize(
    "words",
    ["", "soon", "25:00", "13pm", "99999999999999", "Feb 31, 2026 9am", "9" * 5_000, f"{'9' * 300} days"],
)
def test_a_text_without_a_time_has_none(words: str) -> None:
    assert reset_at(words, NOW.timestamp(), UTC) == 0


HIT = "Sorry, you've hit a rate limit that restricts the number of Copilot model requests you can make."
WEEKLY = "You've reached your weekly rate limit. Please wait for your limit to reset"
MESSAGES = [
    ("claude", "You've hit your session limit · resets 9pm", True),
    ("claude", "You've hit your 5-hour limit · resets 12:42am (UTC)", True),
    ("claude", "You've reached your weekly limit · resets Mon 9am", True),
    ("claude", "5-hour limit reached ∙ resets 3pm", True),
    ("claude", "You've hit your limit · resets 2pm (Asia/Shanghai)", True),
    ("claude", "You've hit your Opus limit", False),
    ("codex", "You've hit your usage limit. Upgrade to Pro or try again at Jan 3rd, 2099 8:19 PM.", False),
    (
        "codex",
        "You've hit your usage limit. Upgrade to Pro or try again in 2 days 17 hours 14 minutes.",
        True,
    ),
    ("codex", "You've hit your usage limit. Upgrade to Pro, or wait for limits to reset.", False),
    ("gemini", "You have exhausted your capacity on this model. Your quota will reset after 3h12m5s.", True),
    ("gemini", "Usage limit reached for gemini-3-flash-preview. Access resets at 10:57 PM GMT-3.", True),
    ("copilot", f"{HIT} Please try again in 15 hours 23 minutes. Please review our Terms of Service", True),
    ("copilot", f"{WEEKLY} on April 20, 2026 at 2:00 AM or switch to auto model to continue.", False),
    ("qwen", "[API Error: 429 Free allocated quota exceeded.]", False),
    ("gemini", "[API Error: You have exhausted your daily quota on this model.]", False),
]


@pytest.mark.parametrize(("name", "words", "known"), MESSAGES)
def test_the_words_of_each_program_are_a_limit(tmp_path: Path, name: str, words: str, known: bool) -> None:
    profile = find_profile(name, tmp_path)
    assert profile is not None
    ending = CallEnd()
    ending.finished = TurnEnd(failed=True, why=words)
    failure = judge(profile, ending)
    assert failure is not None
    assert (failure.kind, failure.code) == ("quota", "agent.limit")
    assert bool(failure.until) == known
    assert words[:20] in failure.message


def test_structured_reports_of_claude_take_precedence_over_its_text(tmp_path: Path) -> None:
    profile = find_profile("claude", tmp_path)
    assert profile is not None
    at = int(time.time()) + 3_000
    event: dict[str, Any] = {
        "type": "rate_limit_event",
        "rate_limit_info": {"status": "rejected", "resetsAt": at},
    }
    facts = read_line(json.dumps(event).encode(), profile.events)
    assert facts is not None
    ending = CallEnd()
    ending.refuse(facts[0])  # type: ignore[arg-type]  # one fact, of this kind
    ending.finished = TurnEnd(failed=True, text="You've hit your 5-hour limit · resets 3am")
    failure = judge(profile, ending)
    assert failure is not None
    assert failure.until == at * 1_000
    allowed = {**event, "rate_limit_info": {**event["rate_limit_info"], "status": "allowed_warning"}}
    assert read_line(json.dumps(allowed).encode(), profile.events) == []


SAID = {
    "claude": ['{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"result":"%s"}'],
    "codex": [
        '{"type":"thread.started","thread_id":"t1"}',
        '{"type":"turn.failed","error":{"message":"%s"}}',
    ],
    "gemini": [
        '{"type":"init","session_id":"s1"}',
        '{"type":"result","status":"error","error":{"message":"%s"}}',
    ],
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("claude", "You've hit your session limit · resets 9pm"),
        ("codex", "You've hit your usage limit. Upgrade to Pro or try again in 2 hours 3 minutes."),
        ("gemini", "You have exhausted your capacity on this model. Your quota will reset after 2h3m."),
    ],
)
def test_one_of_eight_agents_meets_the_limit_and_the_run_waits_for_the_reset(
    agents: AgentWorld, project: Path, name: str, words: str
) -> None:
    agents.profile(name, "credentials = []\n")
    agents.install(name, {"lines": [line.replace("%s", words) for line in SAID[name]], "exit": 1})
    agents.role("helper", name, 'sandbox_mode = "read-only"')
    each = {"id": "each", "agent": "helper", "for_each": str(list(range(8))), "prompt": "Item {{item}}"}
    recipe = agents.recipe(each, limits={"max_concurrency": 1})
    fanfold = [sys.executable, "-m", "fanfold.cli.main"]
    environment = {**os.environ, "HOME": str(agents.home), "FANFOLD_HOME": str(agents.home / ".fanfold")}
    running = subprocess.Popen(
        [*fanfold, "run", recipe, "--yes"], cwd=project, env=environment, stderr=subprocess.DEVNULL
    )

    def inspect() -> dict[str, Any]:
        said = subprocess.run(
            [*fanfold, "inspect", "last", "--json"],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return json.loads(said.stdout) if said.returncode == 0 else {"status": ""}

    try:
        until = time.monotonic() + PATIENCE_S
        while (seen := inspect())["status"] != "waiting":
            assert time.monotonic() < until, seen
            assert running.poll() is None, seen
            time.sleep(0.2)
    finally:
        running.kill()
        running.wait()
    (waiting,) = seen["waits"]
    assert (waiting["subject"], waiting["reason"], waiting["steps"]) == (name, "limit", 8)
    assert 0 < datetime.fromisoformat(waiting["until"]).timestamp() - time.time() <= 86_400
    assert len(agents.calls()) == 1
    assert seen["usage"]["agents"] == 1
    agents.install(name, {"says": SUCCESS[name]})
    done = subprocess.run(
        [*fanfold, "resume", "last", "--json"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert json.loads(done.stdout)["status"] == "completed", done.stderr
    assert len(agents.calls()) == 9


LIMITS = sorted(file.stem for file in RECORDED.glob("*-*-limit.jsonl") if "-acp-" not in file.stem)
RECORDED_AT = datetime(2026, 11, 18, 6, 0, 30, tzinfo=UTC)


@pytest.mark.full
@pytest.mark.parametrize("stem", LIMITS)
def test_a_recorded_limit_starts_one_agent_of_eight_and_the_run_continues_at_the_reset(
    agents: AgentWorld, project: Path, monkeypatch: pytest.MonkeyPatch, stem: str
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    name = stem.partition("-")[0]
    errs = {"errs": f"{stem}.stderr"} if (RECORDED / f"{stem}.stderr").exists() else {}
    ends = '"type":"result"' in (said := (RECORDED / f"{stem}.jsonl").read_text()) or "turn.failed" in said
    ends = ends or '"type":"complete"' in said
    resets = re.search(r'"resetsAt":(\d+)', said)
    starts = RECORDED_AT.timestamp() if resets is None else int(resets[1]) - 600
    limited = {"says": f"{stem}.jsonl", **errs, **({"exit": 1} if ends else {"then": "hang"})}
    done = {"says": SUCCESS[name]}
    agents.profile(name, "credentials = []\n")
    agents.install(name, {**done, "told": {"Item 0": limited}}, done)
    agents.role("helper", name, 'sandbox_mode = "read-only"')
    each = {"id": "each", "agent": "helper", "for_each": str(list(range(8))), "prompt": "Item {{item}}"}
    recipe = {"name": "work", "limits": {"max_concurrency": 1}, "steps": [each]}
    environment = {"HOME": str(agents.home), "FANFOLD_HOME": str(agents.home / ".fanfold")}
    seen: list[int] = []

    async def work() -> Result:
        async with client(project, environment) as opened:
            handle = await opened.start(json.dumps(recipe), options=Options(permission="auto"))
            while not (found := opened.inspect(handle.id)).waits:
                assert found.status in ("pending", "running"), found
                await asyncio.sleep(0.1)
            seen.append(len(agents.calls()))
            return await handle.result()

    with FastClock(starts) as clock:
        result = clock.run(work())
        assert clock.time() - starts > 5, "it waited until the reset"
    assert result.status == "completed", result.error
    assert seen == [1], "one agent was started before the run waited"
    assert len(agents.calls()) == 9


@pytest.mark.full
def test_a_limit_whose_reset_has_passed_is_tried_again_after_growing_delays(
    agents: AgentWorld, project: Path
) -> None:
    about = {"status": "rejected", "resetsAt": int(RECORDED_AT.timestamp()) - 5}
    past = {"type": "rate_limit_event", "rate_limit_info": about}
    limited = {"lines": [json.dumps(past), SAID["claude"][0].replace("%s", "limit")], "exit": 1}
    agents.profile("claude", "credentials = []\n")
    agents.install("claude", *[limited] * 4, {"says": SUCCESS["claude"]})
    agents.role("helper", "claude", 'sandbox_mode = "read-only"')
    recipe = {"name": "work", "steps": [{"id": "work", "agent": "helper", "prompt": "Work."}]}
    environment = {"HOME": str(agents.home), "FANFOLD_HOME": str(agents.home / ".fanfold")}

    async def work() -> Result:
        async with client(project, environment) as opened:
            handle = await opened.start(json.dumps(recipe), options=Options(permission="auto"))
            return await handle.result()

    with FastClock(RECORDED_AT.timestamp()) as clock:
        result = clock.run(work())
        assert clock.time() - RECORDED_AT.timestamp() > 5 + 10 + 20 + 40
    assert result.status == "completed", result.error
    assert len(agents.calls()) == 5
