"""`fanfold whatif`: recorded durations with another number of slots, as scripts and people see it."""

from pathlib import Path

import pytest

RECIPE = """\
name: wide
inputs: [{name: n, type: array, default: [1, 2, 3, 4]}]
steps:
  - {id: each, agent: explorer, for_each: inputs.n, prompt: "{{item}}"}
  - {id: ok, approve: "Go?", depends_on: [each]}
  - {id: flaky, agent: explorer, depends_on: [ok], retry: {attempts: 2, backoff: 10ms}, prompt: try}
  - {id: never, agent: explorer, when: "size(inputs.n) > 9", prompt: no}
  - {id: last, agent: explorer, depends_on: [flaky, never], prompt: end}
"""
SCRIPT = """\
default: {output: ok, delay_ms: 40}
steps:
  flaky:
    - {fail: {class: transport, message: reset}, delay_ms: 20}
    - {output: fine, delay_ms: 20}
"""
KEYS = {
    "run_id", "recipe", "version", "max_concurrency", "time_ms", "attempts", "critical_path",
    "critical_path_ms", "notes",
}  # fmt: skip


@pytest.fixture
def waiting(fanfold, project):
    """A run that ran one step at a time and now waits for a person."""
    (project / "wide.yaml").write_text(RECIPE)
    (project / "script.yaml").write_text(SCRIPT)
    assert fanfold("run", "wide.yaml", "--script", "script.yaml", "--max-concurrency", "1").status == 3


@pytest.fixture
def ran(fanfold, waiting):
    fanfold("approve", "last", "ok")
    fanfold("watch", "last")
    assert fanfold("resume", "last").status == 0


@pytest.mark.full
def test_more_slots_would_have_taken_less_time(fanfold, ran):
    found = fanfold("whatif", "last", "--max-concurrency", "4", "--json").json()
    assert set(found) == KEYS
    assert found["max_concurrency"] == {"recorded": 1, "asked": 4}
    time = found["time_ms"]
    assert time["replayed"] <= time["recorded"]  # which has what lies between the steps too
    assert 0 < found["critical_path_ms"] <= time["asked"] <= time["replayed"] - 3 * 35
    assert found["attempts"] == 4 + 1 + 2 + 1
    assert found["critical_path"][1:] == ["ok", "flaky", "last"]
    assert found["notes"] == ["waits for people are left out (1 question)"]


@pytest.mark.full
def test_text_output_states_the_same(fanfold, ran):
    status, out, _ = fanfold("whatif", "last", "--max-concurrency", "4")
    assert status == 0
    for words in (
        "wide@1  run ",
        "8 attempts replayed",
        "With 4 at once",
        "With 1, as it ran",
        "(-",
        "never",
    ):
        assert words.lower() in out.lower()
    assert "ok → flaky → last" in out


def test_only_finished_steps_of_an_unfinished_run_count(fanfold, waiting):
    found = fanfold("whatif", "last", "--max-concurrency", "2", "--json").json()
    assert found["attempts"] == 4
    assert found["notes"] == ["the run is not over: this is about the steps that have ended"]


@pytest.mark.full
def test_it_writes_nothing(fanfold, project, ran):
    before, told = _bytes_of(project), fanfold("logs", "last", "--json").out
    assert fanfold("whatif", "last", "--max-concurrency", "2").status == 0
    assert _bytes_of(project) == before
    assert fanfold("logs", "last", "--json").out == told


def _bytes_of(project: Path) -> dict[Path, bytes]:
    """Every file of the user's; below `.fanfold` the owner that just ended may still be tidying up."""
    files = (path for path in project.rglob("*") if path.is_file() and ".fanfold" not in path.parts)
    return {path: path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["last", "--max-concurrency", "0"], 2, "usage.out_of_range"),
        (["last", "--max-concurrency", "1025"], 2, "usage.out_of_range"),
        (["last"], 2, "usage.missing_argument"),
        (["nobody", "--max-concurrency", "2"], 6, "run.not_found"),
    ],
)
def test_an_impossible_question_is_a_clear_error(fanfold, waiting, arguments, status, code):
    result = fanfold("whatif", *arguments, "--json")
    assert (result.status, result.json()["error"]["code"]) == (status, code)


@pytest.mark.full
def test_a_question_that_was_open_when_the_run_was_ended_takes_no_time(fanfold, project):
    recipe = """\
name: ends
steps:
  - {id: q, ask: Which?}
  - {id: w, wait: 1s}
  - {id: done, depends_on: [w], end: completed}
"""
    (project / "ends.yaml").write_text(recipe)
    assert fanfold("run", "ends.yaml").status == 0
    found = fanfold("whatif", "last", "--max-concurrency", "4", "--json").json()
    assert found["critical_path_ms"] <= found["time_ms"]["asked"]
    assert found["critical_path"] == ["w"]
    assert found["notes"] == ["waits for people are left out (1 question)"]
