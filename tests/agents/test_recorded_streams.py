"""What the real programs said in hard cases, replayed without them: limits, outages, budgets, corrections.

Recorded by `AGENTS_RECORD=FOLDER make agents-test` (`tests/real_agents/test_hardship.py`), one file for each
program, version and case; `.stderr` is what it wrote there. Paths, ports and keys are replaced.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from pathlib import Path

import pytest

from fanfold.agents.command.events import read_line
from fanfold.agents.command.profile import Profile
from fanfold.agents.command.profile_files import find_profile
from fanfold.agents.command.recorder import TranscriptRecorder, stderr_facts
from fanfold.agents.command.transcript_events import judge
from fanfold.agents.entries import Entry, News, paid_in
from fanfold.kernel.events import Failure

RECORDED = Path(__file__).parent / "recorded"
LIMITS = sorted(file.stem for file in RECORDED.glob("*-*-limit.jsonl"))
AT = datetime.fromisoformat("2026-11-18T06:00:30+00:00").timestamp()
"""When limits were recorded, about; some name a time of the day."""


class Replay:
    """What was heard of one recorded call."""

    def __init__(self, stem: str, home: Path) -> None:
        name = stem.partition("-")[0]
        found = find_profile(name, home)
        assert found is not None, stem
        self.profile: Profile = found
        self.entries: list[Entry] = []
        self.hearing = TranscriptRecorder(self._record, self._progress, str)
        self._stem = stem
        asyncio.run(self._hear())

    async def _record(self, entry: Entry) -> None:
        self.entries.append(entry)

    def _progress(self, _: News) -> None:
        return None

    async def _hear(self) -> None:
        for line in (RECORDED / f"{self._stem}.jsonl").read_bytes().splitlines():
            self.hearing.ending.lines += 1
            for fact in read_line(line, self.profile.events) or ():
                await self.hearing.hear(fact)
        said = RECORDED / f"{self._stem}.stderr"
        self.hearing.ending.stderr = said.read_text() if said.exists() else ""
        for text in self.hearing.ending.stderr.splitlines():
            for fact in stderr_facts(self.profile, text):
                await self.hearing.hear(fact)

    def judged(self, stopped: str = "") -> Failure:
        """Why it failed; `stopped` is why it was ended, if it did not end by itself."""
        if self.hearing.ending.finished is None:
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


def test_each_of_the_four_main_programs_was_recorded_in_each_case() -> None:
    for name in ("limit", "overloaded", "unreachable", "budget", "correction", "killed"):
        assert {stem.partition("-")[0] for stem in case(name)} >= {"claude", "codex", "gemini", "opencode"}


@pytest.mark.parametrize("stem", LIMITS)
def test_a_usage_limit_is_recognised_with_its_reset(tmp_path: Path, then: None, stem: str) -> None:
    failure = Replay(stem, tmp_path).judged("limit")
    assert (failure.kind, failure.code) == ("quota", "agent.limit")
    assert 0 < failure.until / 1_000 - AT < 86_400, failure.message


@pytest.mark.parametrize("stem", case("overloaded"))
def test_an_overloaded_provider_is_an_outage(tmp_path: Path, stem: str) -> None:
    replay = Replay(stem, tmp_path)
    failure = replay.judged("trouble")
    assert failure.code in ("agent.rate_limit", "agent.unreachable"), failure
    assert failure.retryable
    assert replay.hearing.began is not None or replay.profile.ids, "its conversation can be continued"


@pytest.mark.parametrize("stem", case("unreachable"))
def test_an_unreachable_host_is_named(tmp_path: Path, stem: str) -> None:
    replay = Replay(stem, tmp_path)
    replay.hearing.ending.unreached = ("127.0.0.1:8000",)
    failure = replay.judged("unreachable")
    assert failure.code == "agent.unreachable"
    assert "cannot reach 127.0.0.1:8000" in failure.message
    assert "hosts" not in failure.hint


@pytest.mark.parametrize("stem", case("correction"))
def test_a_turn_that_ends_well_has_an_answer_and_a_conversation(tmp_path: Path, stem: str) -> None:
    replay = Replay(stem, tmp_path)
    assert judge(replay.profile, replay.hearing.ending) is None
    assert replay.hearing.text.endswith("Done.")
    assert replay.hearing.began is not None
    assert replay.hearing.began.conversation
    used = replay.hearing.so_far
    assert used is not None
    assert used.input_tokens == 2_200
    assert used.output_tokens == 50


@pytest.mark.parametrize("stem", [stem for stem in (*case("killed"), *case("budget")) if "opencode" in stem])
def test_what_a_killed_program_used_is_recorded_before_its_end(tmp_path: Path, stem: str) -> None:
    replay = Replay(stem, tmp_path)
    paid = [used for one in replay.entries if (used := paid_in(one)) is not None]
    assert sum(one.input_tokens for one in paid) >= 1_000


def test_claude_reports_the_price_of_each_call_once(tmp_path: Path) -> None:
    used = Replay(case("usd")[0], tmp_path).hearing.so_far
    assert used is not None
    assert used.micro_usd == 6_600, "two requests of $0.0033"
