"""The scripted back end: it acts through real tools, records like any other, and goes on after a crash."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.agents.backend import SessionFailed, SessionResult
from fanfold.agents.entries import E, Entry, ToolResult
from fanfold.agents.script import CALLS_VARIABLE, Script, ScriptedBackend
from tests.session_requests import session_request


class Killed(BaseException):
    """The process dies here."""


class Session:
    """One attempt that may be killed behind any recorded entry and run again."""

    def __init__(self, folder: Path, script: str, step: str = "a", **given: Any) -> None:
        self.folder = folder
        self.entries: list[Entry] = []
        self.backend = ScriptedBackend(Script.load(script, "script.yaml"), folder.parent / "calls")
        self.given = {"step": step, "attempt": 1, "read_only": False, **given}
        self.execution = 0

    def run(self, kill_behind: int = 1_000) -> SessionResult:
        self.execution += 1
        request = session_request(
            execution=self.execution,
            workspace=str(self.folder),
            entries=tuple(self.entries),
            **self.given,
        )

        async def record(entry: Any, *, may_wait: bool = False) -> None:
            if len(self.entries) >= kill_behind:
                raise Killed
            self.entries.append(entry)

        return asyncio.run(self.backend.run(request, record, lambda _: None))

    def kinds(self) -> list[str]:
        return [msgspec.to_builtins(entry)["kind"] for entry in self.entries]

    def of(self, kind: type[E]) -> list[E]:
        return [entry for entry in self.entries if isinstance(entry, kind)]

    def calls(self) -> list[str]:
        return (self.folder.parent / "calls").read_text().splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "README.md").write_text("read me")
    (workspace / "old").write_text("old")
    return workspace


def test_an_answer_is_recorded_before_it_is_handed_back(folder):
    session = Session(folder, "steps: {a: {output: {t: 1}, usage: {input_tokens: 3}}}")
    result = session.run()
    assert (result.output, result.usage.input_tokens) == ({"t": 1}, 3)
    assert session.kinds() == ["response"]
    assert session.calls() == ["a 1 1"]


def test_calls_are_counted_in_the_file_that_the_environment_names(folder, monkeypatch):
    monkeypatch.setenv(CALLS_VARIABLE, str(folder / "count"))
    backend = ScriptedBackend(Script.load("default: x"))
    request = session_request(step="k[0]/u", attempt=2, execution=3)

    async def record(entry: Any, *, may_wait: bool = False) -> None: ...

    asyncio.run(backend.run(request, record, lambda _: None))
    assert (folder / "count").read_text() == "k[0]/u 2 3\n"


def test_a_scripted_failure_has_its_class_and_what_it_cost(folder):
    script = "steps: {a: {fail: {class: quota, message: no credit}, usage: {output_tokens: 9}}}"
    with pytest.raises(SessionFailed) as caught:
        Session(folder, script).run()
    failure = caught.value.failure
    assert (failure.kind, failure.message, failure.step, failure.attempt) == ("quota", "no credit", "a", 1)
    assert caught.value.usage is not None
    assert caught.value.usage.output_tokens == 9


def test_a_step_without_an_answer_fails_with_a_hint_that_names_it(folder):
    with pytest.raises(SessionFailed) as caught:
        Session(folder, "steps: {b: x}", "kids[0]/up").run()
    failure = caught.value.failure
    assert (failure.kind, failure.code, failure.retryable) == ("agent", "script.no_answer", False)
    assert '"kids[0]/up"' in failure.hint


def test_writes_and_deletes_go_through_the_tools(folder):
    session = Session(folder, "steps: {a: {output: ok, writes: {n/f: text}, deletes: [old]}}")
    session.run()
    assert (folder / "n/f").read_text() == "text"
    assert not (folder / "old").exists()
    assert session.kinds() == [
        "response", "tool_call", "tool_result", "tool_call", "tool_result", "response",
    ]  # fmt: skip


def test_a_refused_write_fails_the_session_with_the_refusal(folder):
    script = "steps: {a: {output: ok, writes: {f: x}}}"
    for given, kind in (({"read_only": True}, "permission"), ({"write_set": ("src/**",)}, "violation")):
        with pytest.raises(SessionFailed) as caught:
            Session(folder, script, **given).run()
        assert caught.value.failure.kind == kind
    assert not (folder / "f").exists()


def test_a_tool_that_cannot_is_an_answer_the_agent_lives_with(folder):
    session = Session(folder, "steps: {a: {output: ok, tool_calls: [{tool: read_file, args: {path: gone}}]}}")
    assert session.run().output == "ok"
    error = session.of(ToolResult)[0].error
    assert error is not None
    assert error.code == "tool.not_found"


@pytest.mark.parametrize("kill_behind", range(6))
def test_killed_after_any_entry_it_continues_without_repeating_recorded_ones(folder, kill_behind):
    session = Session(folder, "steps: {a: {output: ok, writes: {f: text}, deletes: [old]}}")
    with pytest.raises(Killed):
        session.run(kill_behind)
    before = list(session.entries)
    assert session.run().output == "ok"
    assert session.entries[: len(before)] == before
    assert (folder / "f").read_text() == "text"
    assert not (folder / "old").exists()
    results = [entry.id for entry in session.of(ToolResult)]
    assert len(results) == len(set(results))
    assert session.kinds().count("response") == 2


def test_a_write_whose_outcome_is_unknown_is_looked_at_before_it_is_made_again(folder):
    session = Session(folder, "steps: {a: {output: ok, writes: {f: text}}}")
    with pytest.raises(Killed):
        session.run(kill_behind=2)  # the call is recorded and was made, its result is not
    stamp = (folder / "f").stat().st_ino
    session.run()
    assert session.of(ToolResult)[0].outcome == "unknown"
    assert (folder / "f").stat().st_ino == stamp


def test_a_write_that_never_happened_is_made_as_a_new_call(folder):
    session = Session(folder, "steps: {a: {output: ok, writes: {f: text}}}")
    with pytest.raises(Killed):
        session.run(kill_behind=2)
    (folder / "f").unlink()  # as if killed between the record and the write
    session.run()
    assert (folder / "f").read_text() == "text"
    assert session.kinds() == [
        "response", "tool_call", "tool_result", "tool_call", "tool_result", "response",
    ]  # fmt: skip


def test_a_write_that_was_refused_before_a_crash_is_refused_after_it(folder):
    session = Session(folder, "steps: {a: {output: ok, writes: {../f: text}}}")
    for _ in range(3):  # the first is killed before anybody heard of its failure, and so is the second
        with pytest.raises(SessionFailed):
            session.run()
    assert session.kinds() == ["response", "tool_call", "tool_result"]


def test_questions_answered_before_a_crash_are_not_asked_again(folder):
    session = Session(folder, "steps: {a: {output: ok, usage: {input_tokens: 5}}}")
    session.run()
    again = session.run()
    assert (again.output, again.usage.input_tokens) == ("ok", 5)
    assert session.calls() == ["a 1 1"]


def test_a_rerun_of_an_attempt_gets_the_same_entry(folder):
    session = Session(folder, "steps: {a: [{fail: {class: agent}}, second]}", attempt=2)
    with pytest.raises(Killed):
        session.run(kill_behind=0)
    assert session.run().output == "second"
    assert session.calls() == ["a 2 1", "a 2 2"]
