"""Work that did not happen is not reported as done: writers without changes, denied tools, loops."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanfold.agents.entries import MAX_REPEATS, CallLoops, RequestedCall, Response, ToolError, ToolResult
from fanfold.language.compile import compile_recipe
from tests.e2e.world import Provider
from tests.provider import Call, RecordedRequest, Reply
from tests.runtime.running import client, run
from tests.runtime.test_preflight import SONNET, STEP, Place

WRITER = "name: w\nsteps: [{id: fix, agent: worker, write_set: [src/**], prompt: Fix it%s}]\n"
IDLE = "default: {output: I fixed it.}"
BUSY = 'default: {output: I fixed it., writes: {"src/a.py": "x = 1\\n"}}'


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider(lambda asked: Reply(text="done")) as running:
        yield running


# -- writers


@pytest.mark.full
def test_a_writer_that_changed_nothing_completes_with_a_warning_everywhere(tmp_path: Path) -> None:
    done = run(tmp_path, WRITER % "", IDLE)
    warning = done.steps["fix"].warning
    assert done.status == "completed"
    assert warning is not None
    assert (warning.code, warning.message) == ("agent.no_changes", "fix changed no file")
    assert "fix changed no file" in done.report
    opened = client(tmp_path)
    try:
        step = opened.inspect_step(done.run_id, "fix").warning
        assert step is not None
        assert step.code == "agent.no_changes"
    finally:
        opened.project.close()


@pytest.mark.full
@pytest.mark.parametrize("merge", ["", ", merge: propose"])
def test_a_writer_that_changed_something_has_no_warning(tmp_path: Path, merge: str) -> None:
    done = run(tmp_path, WRITER % (merge + ", require_changes: true"), BUSY)
    assert (done.status, done.steps["fix"].warning) == ("completed", None)


@pytest.mark.full
@pytest.mark.parametrize("more", [", posture: read_only", ", merge: discard"])
def test_steps_that_merge_nothing_by_design_have_no_warning(tmp_path: Path, more: str) -> None:
    recipe = (WRITER % more).replace("write_set: [src/**], ", "")
    assert run(tmp_path, recipe, IDLE).steps["fix"].warning is None


@pytest.mark.full
def test_require_changes_fails_a_writer_that_changed_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, WRITER % ", require_changes: true", IDLE)
    error = done.steps["fix"].error
    assert (done.status, done.output) == ("failed", None)
    assert error is not None
    assert (error.code, error.message) == ("agent.no_changes", "fix changed no file")
    assert f". fanfold transcript {done.run_id} fix shows what it did instead." in done.report


@pytest.mark.full
def test_require_changes_applies_to_commands_that_write(tmp_path: Path) -> None:
    recipe = "name: c\nsteps: [{id: fmt, run: ['true'], write_set: [a.txt], require_changes: true}]\n"
    error = run(tmp_path, recipe).steps["fmt"].error
    assert error is not None
    assert error.code == "agent.no_changes"


@pytest.mark.parametrize(
    "more",
    [
        "posture: read_only, require_changes: true",
        "workspace_mode: shared, require_changes: true",
        "merge: discard, require_changes: true",
    ],
)
def test_require_changes_needs_an_isolated_writer_that_keeps_its_changes(tmp_path: Path, more: str) -> None:
    recipe = f"name: w\nsteps: [{{id: fix, agent: worker, prompt: Fix it, {more}}}]\n"
    opened = client(tmp_path)
    compiled = compile_recipe(recipe.encode(), "w.yaml", opened.project.compile_context(scripted=True))
    opened.project.close()
    assert [one.code for one in compiled.report.diagnostics] == ["recipe.conflicting_keys"]


# -- denied tools


@pytest.mark.full
def test_a_writer_whose_writes_were_all_refused_is_flagged_with_the_reason(
    place: Place, provider: Provider
) -> None:
    write = Call("write_file", {"path": "docs/x.md", "content": "x"})
    provider.script = lambda asked: _once(asked, write)
    done = place.run(WRITER % "", FANFOLD_MODEL=SONNET, **provider.environment)
    warning = done.steps["fix"].warning
    assert done.status == "completed"
    assert warning is not None
    assert warning.message.startswith("fix changed no file (fix was denied write_file: ")
    strict = place.run(WRITER % ", require_changes: true", FANFOLD_MODEL=SONNET, **provider.environment)
    assert strict.status == "failed"


@pytest.mark.full
def test_an_agent_that_was_denied_a_tool_is_flagged(place: Place, provider: Provider) -> None:
    place.role("network = true\n")
    provider.script = lambda asked: _once(asked, Call("fetch_url", {"url": "http://127.0.0.1/"}))
    done = place.run(STEP % ("scout", ""), FANFOLD_MODEL=SONNET, **provider.environment)
    warning = done.steps["a"].warning
    assert done.status == "completed"
    assert warning is not None
    assert (warning.code, "fetch_url" in warning.message) == ("agent.denied", True)


def _once(asked: RecordedRequest, call: Call) -> Reply:
    return Reply(text="All done.") if len(asked.body["messages"]) > 1 else Reply(calls=(call,))


# -- loops


@pytest.mark.full
def test_an_agent_that_repeats_a_call_is_warned_once_and_then_fails_with_its_cost(
    place: Place, provider: Provider
) -> None:
    (place.folder / "a.txt").write_text("a\n")
    provider.script = lambda asked: Reply(calls=(Call("read_file", {"path": "a.txt"}),))
    done = place.run(STEP % ("explorer", ""), FANFOLD_MODEL=SONNET, **provider.environment)
    error = done.steps["a"].error
    assert error is not None
    assert (error.kind, error.code) == ("agent", "agent.loop")
    assert "max_turns" not in error.hint
    assert len(provider.asked) == 2 * MAX_REPEATS
    texts = [json.dumps(asked.body["messages"]) for asked in provider.asked]
    assert [text.count("You repeat calls") for text in texts] == [0] * MAX_REPEATS + [1] * MAX_REPEATS
    assert done.usage.input_tokens > 0
    opened = client(place.folder, place.environment)
    try:
        entries = opened.transcript(done.run_id, "a").entries
    finally:
        opened.project.close()
    assert [entry.kind for entry in entries if "You repeat calls" in entry.text] == ["tool_result"]


@pytest.mark.full
def test_an_agent_that_heeds_the_warning_completes(place: Place, provider: Provider) -> None:
    (place.folder / "a.txt").write_text("a\n")
    again = Reply(calls=(Call("read_file", {"path": "a.txt"}),))
    provider.script = lambda asked: (
        Reply(text="I stop.") if "You repeat calls" in json.dumps(asked.body) else again
    )
    done = place.run(STEP % ("explorer", ""), FANFOLD_MODEL=SONNET, **provider.environment)
    assert done.output == "I stop."


def test_a_repeated_call_between_new_ones_is_no_loop() -> None:
    loops = CallLoops()
    for round in range(50):
        assert observe(loops, "read_file", f"{round}.py", "text") == ""
        assert observe(loops, "run_command", "pytest", "1 failed") == ""


def test_calls_in_a_circle_are_a_loop() -> None:
    loops = CallLoops()
    verdicts = [observe(loops, "read_file", f"{call % 12}.py", "text") for call in range(90)]
    assert [verdict for verdict in verdicts if verdict] == ["warn", "stop", "stop"]


def test_calls_that_fail_are_no_progress_however_much_they_differ() -> None:
    loops, refused = CallLoops(), ToolError("tool.write_set", "it is outside the write_set")
    verdicts = [observe(loops, "write_file", f"{call}.py", refused) for call in range(60)]
    assert [call for call, verdict in enumerate(verdicts, 1) if verdict] == [25, 50]
    assert "made calls without progress (write_file …)," in loops.failure().message


def test_an_agent_that_succeeds_between_failures_is_not_in_a_loop() -> None:
    loops, missing = CallLoops(), ToolError("tool.not_found", "it does not exist")
    for call in range(200):
        assert observe(loops, "read_file", f"{call}.py", missing if call % 20 else "text") == ""


def test_the_failure_of_a_loop_names_the_call_and_whether_it_was_the_only_one() -> None:
    same, circle = CallLoops(), CallLoops()
    for call in range(60):
        observe(same, "list_files", "*", "a.py")
        observe(circle, "read_file", f"{call % 12}.py", "text")
    assert "repeated one call of list_files," in same.failure().message
    assert "made calls without progress (read_file …)," in circle.failure().message


def test_waiting_for_others_is_no_loop() -> None:
    loops = CallLoops()
    assert {observe(loops, "mcp__fanfold__wait_agent", "a", "running") for _ in range(100)} == {""}


def test_a_resumed_session_remembers_what_it_repeated() -> None:
    entries = [entry for _ in range(9) for entry in called("read_file", "a.py", "text")]
    loops = CallLoops(entries)
    assert observe(loops, "read_file", "a.py", "text") == "stop"


def called(tool: str, argument: str, result: str | ToolError) -> tuple[Response, ToolResult]:
    asked = Response(tool_calls=(RequestedCall("1", tool, {"path": argument}),))
    if isinstance(result, ToolError):
        return asked, ToolResult(id="1", tool=tool, error=result)
    return asked, ToolResult(id="1", tool=tool, result=result)


def observe(loops: CallLoops, tool: str, argument: str, result: str | ToolError) -> str:
    asked, returned = called(tool, argument, result)
    loops.observe(asked)
    return loops.observe(returned)
