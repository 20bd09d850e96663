"""`fanfold retry`: what failed runs again, what completed is reused, and a changed recipe is told."""

import re
import shlex

import pytest

RECIPE = """\
name: essay
inputs: [{name: topic, default: tea}]
steps:
  - {id: gather, agent: explorer, prompt: "Research {{inputs.topic}}"}
  - {id: angles, agent: explorer, prompt: "Angles of {{steps.gather.output}}"}
  - {id: write, agent: explorer, prompt: "Write: {{steps.angles.output}}"}
  - {id: aside, agent: explorer, prompt: "Something else"}
"""
FAILS = "{default: 'OK from {{step}}', steps: {angles: {fail: {class: agent, message: no idea}}}}"
WORKS = "default: 'OK from {{step}}'\n"


@pytest.fixture
def asked(project, monkeypatch):
    """The steps whose agents were asked since this was last called."""
    calls = project / "calls"
    monkeypatch.setenv("FANFOLD_SCRIPT_CALLS", str(calls))

    def since():
        found = [line.split()[0] for line in calls.read_text().splitlines()] if calls.exists() else []
        calls.unlink(missing_ok=True)
        return found

    return since


@pytest.fixture
def failed(fanfold, project, asked):
    """A run in which `angles` failed; gives what was printed."""
    (project / "essay.yaml").write_text(RECIPE)
    (project / "fails.yaml").write_text(FAILS)
    (project / "works.yaml").write_text(WORKS)
    result = fanfold("run", "essay.yaml", "-i", "topic=owls", "--script", "fails.yaml")
    assert result.status == 1
    asked()
    return result


def suggested(said: str) -> list[str]:
    found = re.search(r"run again what failed: fanfold (.+)", said)
    assert found is not None, said
    return shlex.split(found[1])


def test_the_summary_of_a_failure_names_a_retry_that_runs_what_failed_and_was_skipped(fanfold, failed, asked):
    result = fanfold(*suggested(failed.err), "--script", "works.yaml", "--json")
    assert result.status == 0
    assert asked() == ["angles", "write"]
    document = result.json()
    assert {path: step["output"] for path, step in document["steps"].items()} == {
        name: f"OK from {name}" for name in ("gather", "angles", "write", "aside")
    }
    assert fanfold("inspect", document["run_id"], "--json").json()["inputs"] == {"topic": "owls"}
    assert fanfold("verify", document["run_id"]).status == 0


def test_the_plan_is_shown_first_and_a_dry_run_does_nothing_else(fanfold, failed, asked):
    said = fanfold("retry", "last", "--dry-run")
    assert said.status == 0
    assert "reuses     gather, aside" in said.err
    assert "runs again angles, write" in said.err
    forecast = fanfold("retry", "last", "--dry-run", "--json").json()
    assert (forecast["reuses"], forecast["runs_again"]) == (["gather", "aside"], ["angles", "write"])
    assert asked() == []
    assert len(fanfold("runs", "--json").json()) == 1


def test_the_same_script_fails_again_and_the_new_run_can_be_retried(fanfold, failed, asked):
    again = fanfold(*suggested(failed.err))
    assert again.status == 1
    assert asked() == ["angles"]
    assert fanfold(*suggested(again.err), "--script", "works.yaml").status == 0
    assert asked() == ["angles", "write"]


def test_a_changed_recipe_applies_and_the_changes_are_listed(fanfold, failed, project, asked):
    changed = RECIPE.replace("Something else", "Another thing").replace(
        "name: topic,", "name: topic, type: string,"
    )
    changed += "  - {id: more, agent: explorer, prompt: More}\n"
    (project / "essay.yaml").write_text(changed)
    result = fanfold("retry", "last", "--script", "works.yaml")
    assert result.status == 0
    assert sorted(asked()) == ["angles", "aside", "more", "write"]
    assert "changed    aside" in result.err
    assert "added      more" in result.err
    assert "recipe's   inputs" in result.err
    assert "reuses     gather\n" in result.err


def test_changes_of_execution_settings_keep_finished_steps(fanfold, project, asked):
    recipe = "name: m\nsteps:\n  - {id: per, agent: explorer, for_each: '[1, 2, 3]', prompt: 'do {{item}}'}\n"
    (project / "m.yaml").write_text(recipe)
    (project / "s.yaml").write_text("{default: ok, steps: {'per[1]': {fail: {class: agent}}}}")
    (project / "works.yaml").write_text(WORKS)
    assert fanfold("run", "m.yaml", "--script", "s.yaml").status == 1
    asked()
    (project / "m.yaml").write_text(
        recipe.replace("agent: explorer", "agent: explorer, timeout: 9m, retry: {attempts: 3}")
    )
    result = fanfold("retry", "last", "--script", "works.yaml", "--json")
    assert (result.status, asked()) == (0, ["per[1]"])
    assert "tuned      per" in result.err
    assert result.json()["output"] == ["ok", "OK from per[1]", "ok"]


def test_a_recipe_that_is_gone_is_taken_as_it_was_and_one_that_is_wrong_is_refused(
    fanfold, failed, project, asked
):
    (project / "essay.yaml").write_text(RECIPE.replace("explorer", "nobody"))
    refused = fanfold("retry", "last", "--script", "works.yaml")
    assert refused.status == 2
    assert "essay.yaml:4" in refused.err
    (project / "essay.yaml").unlink()
    assert fanfold("retry", "last", "--script", "works.yaml").status == 0
    assert asked() == ["angles", "write"]


def test_a_loop_that_converged_is_kept_with_the_failures_it_tolerated(fanfold, project, asked):
    (project / "loop.yaml").write_text(
        "name: loop\nsteps:\n  - id: heal\n"
        "    repeat: {until: \"steps.test.output == 'good'\", max_iterations: 3}\n"
        "    steps:\n      - {id: fix, agent: explorer, prompt: x}\n"
        "      - {id: test, agent: explorer, prompt: y, depends_on: [fix]}\n"
        "  - {id: after, agent: explorer, prompt: z, depends_on: [heal]}\n"
        "  - {id: other, agent: explorer, prompt: z}\n"
    )
    (project / "s.yaml").write_text(
        'default: good\nsteps: {"heal#1/test": {fail: {class: agent}}, other: {fail: {class: agent}}}\n'
    )
    (project / "works.yaml").write_text(WORKS)
    assert fanfold("run", "loop.yaml", "--script", "s.yaml").status == 1
    asked()
    result = fanfold("retry", "last", "--script", "works.yaml", "--json")
    assert (result.status, asked()) == (0, ["other"])
    assert "tolerated  heal#1/test" in result.err
    assert result.json()["steps"]["heal#1/test"]["status"] == "failed"
    assert fanfold("verify", "last").status == 0


def test_a_loop_that_did_not_converge_begins_anew(fanfold, project, asked):
    (project / "loop.yaml").write_text(
        "name: loop\nsteps:\n  - id: heal\n"
        "    repeat: {until: \"steps.test.output == 'good'\", max_iterations: 2}\n"
        "    steps:\n      - {id: fix, agent: explorer, prompt: x}\n"
        "      - {id: test, agent: explorer, prompt: y, depends_on: [fix]}\n"
    )
    (project / "s.yaml").write_text("default: bad\n")
    (project / "good.yaml").write_text("default: good\n")
    assert fanfold("run", "loop.yaml", "--script", "s.yaml").status == 1
    asked()
    assert fanfold("retry", "last", "--script", "good.yaml").status == 0
    assert asked() == ["heal#1/fix", "heal#1/test"]


def test_a_failure_in_a_child_run_is_retried_there(fanfold, project, asked):
    (project / "child.yaml").write_text(
        "name: child\nsteps:\n  - {id: a, agent: explorer, prompt: x}\n"
        "  - {id: b, agent: explorer, prompt: y}\n"
    )
    (project / "root.yaml").write_text(
        "name: root\nsteps:\n  - {id: below, workflow: ./child.yaml}\n"
        "  - {id: last, agent: explorer, prompt: z, depends_on: [below]}\n"
    )
    (project / "s.yaml").write_text("{default: ok, steps: {below/b: {fail: {class: agent}}}}")
    (project / "works.yaml").write_text(WORKS)
    assert fanfold("run", "root.yaml", "--script", "s.yaml").status == 1
    asked()
    assert fanfold("retry", "last", "--script", "works.yaml").status == 0
    assert asked() == ["below/b", "last"]


def test_a_cancelled_run_continues_where_it_stopped(fanfold, project, asked):
    (project / "r.yaml").write_text(
        "name: r\nsteps:\n  - {id: a, agent: explorer, prompt: x}\n"
        "  - {id: ok, approve: Go?, depends_on: [a]}\n"
        "  - {id: b, agent: explorer, prompt: y, depends_on: [ok]}\n"
    )
    (project / "works.yaml").write_text(WORKS)
    assert fanfold("run", "r.yaml", "--script", "works.yaml").status == 3
    refused = fanfold("retry", "last", "--json")
    assert (refused.status, refused.json()["error"]["code"]) == (2, "run.not_over")
    fanfold("cancel", "last")
    asked()
    assert fanfold("retry", "last").status == 3
    assert asked() == []
    assert fanfold("runs", "--json").json()[0]["status"] == "waiting"


def test_a_run_of_which_nothing_failed_is_not_retried(fanfold, failed):
    assert fanfold("retry", "last", "--script", "works.yaml").status == 0
    refused = fanfold("retry", "last", "--json")
    assert (refused.status, refused.json()["error"]["code"]) == (2, "run.nothing_failed")


@pytest.mark.full
def test_a_recipe_that_declares_more_than_was_permitted_is_asked_about(fanfold, project, asked):
    (project / "w.yaml").write_text("name: w\nsteps: [{id: a, run: ['false']}]\n")
    assert fanfold("run", "w.yaml", "--yes").status == 1
    assert fanfold("retry", "last").status == 1  # the same command: permitted
    (project / "w.yaml").write_text("name: w\nsteps: [{id: a, run: ['true']}]\n")
    refused = fanfold("retry", "last", "--json")
    assert (refused.status, refused.json()["error"]["code"]) == (4, "permission_denied")
    assert refused.json()["error"]["details"]["needs"] == ["a runs: true"]
    assert fanfold("retry", "last", "--yes").status == 0
