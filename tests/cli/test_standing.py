"""How steps stand: in a run that is paused, where somebody is asked, and what the report says of each."""

import re

import pytest

RECIPE = """\
name: halts
steps:
  - {id: b, agent: explorer, prompt: y}
  - id: g
    depends_on: [b]
    steps: [{id: a, agent: explorer, prompt: x}]
"""


@pytest.fixture
def halted(fanfold, project):
    """A run whose provider refused to go on: paused, and nobody drives it."""
    (project / "halts.yaml").write_text(RECIPE)
    (project / "script.yaml").write_text(
        "default: {output: ok, usage: {input_tokens: 3, output_tokens: 4, cost_usd: 0.25}}\n"
        "steps: {g/a: {fail: {class: quota, message: no money left}}}\n"
    )
    assert fanfold("run", "halts.yaml", "--script", "script.yaml").status == 3
    return fanfold("inspect", "last", "--json").json()["run_id"]


def test_a_paused_run_runs_no_step_and_uses_no_time(fanfold, project, halted, monkeypatch):
    now = fanfold("inspect", halted).out
    assert "no process" not in now, "a paused run needs none"
    assert "running" not in now
    assert re.search(r"a +waiting .*was stopped; runs again when the run is resumed", now)
    monkeypatch.setattr("fanfold.cli.history.wall_clock_ms", lambda: 4_000_000_000_000)
    assert fanfold("inspect", halted).out == now
    document = fanfold("inspect", halted, "--json").json()
    stand = {path: (step["status"], step.get("reason", "")) for path, step in document["steps"].items()}
    assert stand == {
        "b": ("completed", ""),
        "g": ("waiting", "interrupted"),
        "g/a": ("waiting", "interrupted"),
    }
    assert "waiting (interrupted)" in fanfold("inspect", halted, "g/a").out.replace("  ", " ")
    assert fanfold("explain", halted, "g/a", "--json").json()["status"] == "waiting"
    report = (project / ".fanfold" / "runs" / halted / "report.md").read_text()
    assert "- g/a (explorer): waiting (interrupted)" in report
    assert fanfold("verify", halted).status == 0


def test_the_report_says_what_each_step_took_and_cost(fanfold, project, halted):
    report = (project / ".fanfold" / "runs" / halted / "report.md").read_text()
    (line,) = [line for line in report.splitlines() if line.startswith("- b (")]
    assert re.match(r"- b \(explorer\): completed in \d+(\.\d)? m?s, 7 tokens, \$0\.2500", line), line


def test_a_step_that_asks_is_shown_with_what_it_asks(fanfold, project):
    (project / "asks.yaml").write_text(
        "name: asks\nsteps:\n"
        "  - {id: ok, approve: Ship it?, show: 'all of\\n\\nthis', choices: [go, stop]}\n"
        "  - {id: when, ask: When?}\n"
    )
    assert fanfold("run", "asks.yaml").status == 3
    run = fanfold("inspect", "last", "--json").json()["run_id"]
    shown = fanfold("inspect", run, "ok").out
    for words in ("Ship it?", "all of", "this", "choices: go, stop", f"fanfold approve {run} ok --choice go"):
        assert words in shown
    shown = fanfold("inspect", run, "when").out
    assert "When?" in shown
    assert f"fanfold answer {run} when" in shown
