"""What the real programs said in hard cases, replayed without them: limits, outages, budgets, corrections.

Recorded by `AGENTS_RECORD=FOLDER make agents-test` (`tests/real_agents/test_hardship.py`), one file for each
program, version and case; `.stderr` is what it wrote there, `.usage` what it wrote about its usage into files
of its own. Paths, ports and keys are replaced.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import acp as _acp  # noqa: F401  # takes longer to load than a fast test may
import pytest
from msgspec import structs

from fanfold.agents.backend import AgentProgram, SessionFailed, SessionRequest
from fanfold.agents.command.acp import PROMPT, AgentTurn
from fanfold.agents.command.calls import Turn, make_call
from fanfold.agents.command.events import read_line
from fanfold.agents.command.profile import Profile
from fanfold.agents.command.profile_files import find_profile
from fanfold.agents.command.recorder import TranscriptRecorder, stderr_facts
from fanfold.agents.command.transcript_events import judge
from fanfold.agents.entries import Entry, FailedRequest, News, paid_in
from fanfold.agents.role import Role
from fanfold.agents.spending import Account, OpenRequest
from fanfold.kernel.budget import Ledger
from fanfold.kernel.events import Failure, Usage
from fanfold.steps.ids import INTERRUPTIONS

RECORDED = Path(__file__).parent / "recorded"
MAIN = ("claude", "codex", "gemini", "opencode")
CASES = (
    "limit",
    "limited",
    "overloaded",
    "dropped",
    "unreachable",
    "silent",
    "budget",
    "usd",
    "correction",
    "killed",
)
AT = datetime.fromisoformat("2026-11-18T06:00:30+00:00").timestamp()
"""When limits were recorded, about; some name a time of the day."""


class RecordedProgram:
    """A program that speaks the Agent Client Protocol as recorded: each request releases its response.

    Lines before the response come first. A request without a recorded response gets the rest of the
    recording; then the program has ended. `aside` is what else it does before the end of its turn.
    """

    def __init__(self, lines: list[bytes], aside: Callable[[], Awaitable[None]]) -> None:
        self.stdin = self.stdout = self
        self._lines = lines
        self._aside = aside
        self._ready: asyncio.Queue[bytes | None] = asyncio.Queue()

    def write(self, data: bytes) -> None:
        asked = json.loads(data)
        if "method" not in asked or "id" not in asked:
            return
        answers = [number for number, line in enumerate(self._lines) if _answers(line, asked["id"])]
        end = answers[0] if answers else len(self._lines)
        for line in self._lines[:end]:
            self._ready.put_nowait(line + b"\n")
        if asked["method"] == PROMPT:
            self._ready.put_nowait(None)
        self._ready.put_nowait(self._lines[end] + b"\n" if answers else b"")
        self._lines = self._lines[end + 1 :]

    async def drain(self) -> None:
        """There is room."""

    async def read(self, _: int) -> bytes:
        data = await self._ready.get()
        if data is None:
            await self._aside()
            return await self.read(_)
        return data


def _answers(line: bytes, number: int) -> bool:
    said = json.loads(line)
    return "method" not in said and said.get("id") == number


def program_of(stem: str) -> str:
    """The back end of a recording: `claude` or `claude-acp`."""
    found = re.match(r"[a-z]+(-acp)?(?=-)", stem)
    assert found is not None, stem
    return found[0]


def priced(used: Usage) -> Usage:
    """What is used by a program that reports no price, at the user's own price of its model."""
    price = 3 * used.input_tokens + 15 * used.output_tokens
    return used if used.micro_usd is not None else structs.replace(used, micro_usd=price)


class Replay:
    """What was heard of one recorded call; its budget is in tokens, or in millionths of a dollar."""

    def __init__(
        self, stem: str, home: Path, budget: int | None = None, micro_usd: int | None = None, model: str = ""
    ) -> None:
        found = find_profile(program_of(stem), home)
        assert found is not None, stem
        self.profile: Profile = found
        self.entries: list[Entry] = []
        self._ledger = Ledger(budget, micro_usd)
        self._model = model
        opened = OpenRequest(Account((self._ledger,)), None)
        self.hearing = TranscriptRecorder(self._record, self._progress, str, count=priced, request=opened)
        self._stem = stem
        asyncio.run(self._hear())

    async def _record(self, entry: Entry) -> None:
        self.entries.append(entry)
        used = paid_in(entry)
        self._ledger.spent_tokens += 0 if used is None else used.tokens
        self._ledger.spent_micro_usd += 0 if used is None else used.micro_usd or 0

    def _progress(self, _: News) -> None:
        return None

    async def _hear(self) -> None:
        lines = (RECORDED / f"{self._stem}.jsonl").read_bytes().splitlines()
        if self.profile.acp:  # stderr is read while the turn lasts
            await self._speak(lines)
            return
        for line in lines:
            self.hearing.ending.lines += 1
            for fact in read_line(line, self.profile.events) or ():
                await self.hearing.hear(fact)
        await self._hear_stderr()

    async def _hear_stderr(self) -> None:
        said = RECORDED / f"{self._stem}.stderr"
        self.hearing.ending.stderr = said.read_text() if said.exists() else ""
        for text in self.hearing.ending.stderr.splitlines():
            for fact in stderr_facts(self.profile, text):
                await self.hearing.hear(fact)
        used = RECORDED / f"{self._stem}.usage"
        for line in used.read_bytes().splitlines() if used.exists() else ():
            for fact in read_line(line, self.profile.asides) or ():
                await self.hearing.hear(fact)

    async def _speak(self, lines: list[bytes]) -> None:
        program = cast(AgentProgram, cast(Any, RecordedProgram(lines, self._hear_stderr)))
        role = Role(name="coder", description="", model=self._model or None)
        request = SessionRequest(
            session_id="s1", run_id="r1", step="work", attempt=1, execution=1, role=role, prompt="Work."
        )

        async def attached() -> None:
            return None

        turn = Turn(prompt="Work.", folder="/project")
        call = make_call(self.profile, request, turn, Path("/own"))
        await AgentTurn(program, request, self.profile, turn, self.hearing, attached, call).run()

    def judged(self, stopped: str = "") -> Failure:
        """Why it failed; `stopped` is why it was ended, if it did not end by itself."""
        if self.hearing.ending.finished is None and stopped:
            self.hearing.ending.stopped = stopped
        failure = judge(self.profile, self.hearing.ending)
        assert failure is not None
        return failure


def case(name: str) -> list[str]:
    return sorted(file.stem for file in RECORDED.glob(f"*-*-{name}.jsonl"))


@pytest.fixture
def then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the day on which it was recorded."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr(time, "time", lambda: AT)


def test_each_of_the_main_programs_was_recorded_in_each_case_in_both_ways() -> None:
    for name in CASES:
        assert {program_of(stem) for stem in case(name)} >= {*MAIN, *(f"{one}-acp" for one in MAIN)}, name


@pytest.mark.parametrize("stem", [*case("limit"), *case("limited")])
def test_a_usage_limit_is_recognised_with_its_reset(tmp_path: Path, then: None, stem: str) -> None:
    replay = Replay(stem, tmp_path)
    failure = replay.judged("limit")
    assert (failure.kind, failure.code) == ("quota", "agent.limit")
    assert 0 < failure.until / 1_000 - AT < 86_400, failure.message
    if stem.endswith("limited"):
        assert replay.hearing.has_worked
        assert replay.hearing.began is not None
        assert failure.kind in INTERRUPTIONS, "its conversation continues"


@pytest.mark.parametrize("stem", case("overloaded"))
def test_an_overloaded_provider_is_an_outage(tmp_path: Path, stem: str) -> None:
    replay = Replay(stem, tmp_path)
    failure = replay.judged("trouble")
    assert failure.code in ("agent.rate_limit", "agent.unreachable"), failure
    assert failure.retryable
    assert replay.hearing.began is not None or replay.profile.ids, "its conversation can be continued"
    failed = [entry for entry in replay.entries if isinstance(entry, FailedRequest)]
    assert [entry.count for entry in failed] == list(range(1, len(failed) + 1))
    assert all(entry.message for entry in failed)
    if not stem.startswith(("claude-acp", "gemini-acp")):  # these report only the end of their retries
        assert failed, "its own retries are in the transcript"


def test_codex_over_acp_that_gives_up_has_failed_although_it_says_end_turn(tmp_path: Path) -> None:
    failure = Replay(case("gave_up")[0], tmp_path).judged()
    assert (failure.code, failure.retryable) == ("agent.unreachable", True)
    assert "503 Service Unavailable" in failure.message


@pytest.mark.parametrize("stem", case("unreachable"))
def test_an_unreachable_host_is_named(tmp_path: Path, stem: str) -> None:
    replay = Replay(stem, tmp_path)
    replay.hearing.ending.unreached = ("127.0.0.1:8000",)
    failure = replay.judged("unreachable")
    assert failure.code == "agent.unreachable"
    assert "cannot reach 127.0.0.1:8000" in failure.message
    assert "hosts" not in failure.hint


@pytest.mark.parametrize("stem", case("silent"))
def test_an_agent_that_falls_silent_has_a_conversation_to_continue(tmp_path: Path, stem: str) -> None:
    replay = Replay(stem, tmp_path)
    failure = replay.judged("idle")
    assert (failure.kind, failure.code) == ("timeout", "agent.silent")
    assert failure.kind in INTERRUPTIONS, "the next attempt and a retry continue"
    assert replay.hearing.has_worked
    assert replay.hearing.began is not None
    assert replay.hearing.began.conversation


@pytest.mark.parametrize("stem", case("correction"))
def test_a_turn_that_ends_well_has_an_answer_and_a_conversation(tmp_path: Path, stem: str) -> None:
    replay = Replay(stem, tmp_path)
    assert judge(replay.profile, replay.hearing.ending) is None
    assert replay.hearing.text.endswith("Done.")
    assert replay.hearing.began is not None
    assert replay.hearing.began.conversation
    used = replay.hearing.so_far
    if stem.startswith("gemini-acp"):  # which writes it to a file of its home
        return
    assert used is not None
    assert used.input_tokens == 2_200
    assert used.output_tokens == 50


@pytest.mark.parametrize("stem", [stem for stem in (*case("killed"), *case("budget")) if "opencode" in stem])
def test_usage_of_a_killed_program_is_recorded_before_its_end(tmp_path: Path, stem: str) -> None:
    replay = Replay(stem, tmp_path)
    paid = [used for one in replay.entries if (used := paid_in(one)) is not None]
    assert sum(one.input_tokens for one in paid) >= 1_000


@pytest.mark.parametrize("stem", case("budget"))
def test_a_budget_of_tokens_stops_a_program_while_it_works(tmp_path: Path, stem: str) -> None:
    replay = Replay(stem, tmp_path, budget=2_500)
    failure = replay.judged()
    assert (failure.kind, failure.code) == ("budget", "agent.budget")
    used = replay.hearing.so_far
    assert used is not None
    assert 2_500 <= used.tokens <= 4_600, "at most the request beyond it, and one that was under way"
    assert used.output_tokens >= 40, "each whole answer, not only its beginning"
    assert failure.kind in INTERRUPTIONS, "its conversation continues"


MODELS = {"codex-acp": "scripted", "opencode-acp": "scripted/m1"}
"""What the role named, by the program that was then asked to use it."""


@pytest.mark.parametrize("stem", case("usd"))
def test_a_budget_in_dollars_stops_a_program_while_it_works(tmp_path: Path, stem: str) -> None:
    name = program_of(stem)
    budget = 9_000 if name == "claude-acp" else 4_000  # which had also asked for a title
    replay = Replay(stem, tmp_path, micro_usd=budget, model=MODELS.get(name, ""))
    failure = replay.judged()
    assert (failure.kind, failure.code) == ("budget", "agent.budget")
    used = replay.hearing.so_far
    assert used is not None
    assert 2_000 <= used.input_tokens <= 3_000
    assert used.output_tokens >= 40


def test_the_model_of_a_role_and_what_is_left_of_a_budget_are_given_to_claude_over_acp(
    tmp_path: Path,
) -> None:
    profile = find_profile("claude-acp", tmp_path)
    assert profile is not None
    role = Role(name="coder", description="", model="anthropic:claude-sonnet-4-5")
    request = SessionRequest(
        session_id="s1", run_id="r1", step="work", attempt=1, execution=1, role=role, prompt="Work."
    )
    call = make_call(profile, request, Turn(prompt="Work.", max_micro_usd=9_000), tmp_path)
    options = {"model": "claude-sonnet-4-5", "maxBudgetUsd": 0.009}
    assert call.meta == {"claudeCode": {"options": options}}
    unlimited = structs.replace(request, role=structs.replace(role, model=None))
    assert make_call(profile, unlimited, Turn(prompt="Work."), tmp_path).meta == {}


def test_an_agent_that_refuses_the_model_of_its_role_fails_instead_of_using_another(tmp_path: Path) -> None:
    with pytest.raises(SessionFailed) as refused:
        Replay(case("refused_model")[0], tmp_path, model="gpt-none")
    failure = refused.value.failure
    assert (failure.code, failure.retryable) == ("agent.failed", False)
    assert 'OpenCode over ACP refuses the model "gpt-none"' in failure.message


@pytest.mark.parametrize("stem", case("dropped"))
def test_connections_that_break_are_an_outage(tmp_path: Path, stem: str) -> None:
    failure = Replay(stem, tmp_path).judged("trouble")
    assert (failure.code, failure.retryable) == ("agent.unreachable", True)


def test_claude_reports_tokens_and_price_of_each_call_once_also_of_the_one_beyond_its_budget(
    tmp_path: Path,
) -> None:
    used = Replay(case("usd")[0], tmp_path).hearing.so_far
    assert used is not None
    assert (used.input_tokens, used.output_tokens) == (2_000, 40)
    assert used.micro_usd == 6_600, "two requests of $0.0033"
