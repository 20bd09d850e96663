"""`fanfold capture`: shown, saved, refused; and run again from the library."""

import pytest

pytestmark = pytest.mark.full


@pytest.fixture
def delegated(fanfold, project):
    """Two subagents, the second of which was told what the first put out."""
    (project / "look.yaml").write_text('default: "Found it in lib/clock.py, line 40."\n')
    (project / "mend.yaml").write_text("default: mended\n")
    fanfold("spawn", "explorer", "Find the leap year bug.", "--script", "look.yaml", "--wait")
    told = "Explain how to mend this: Found it in lib/clock.py, line 40."
    fanfold("spawn", "explorer", told, "--script", "mend.yaml", "--wait")
    return fanfold


def test_delegated_work_is_shown_as_a_recipe_with_recognised_parts(delegated, project):
    shown = delegated("capture", "hand", "--request", "Find the leap year bug.")
    assert shown.status == 0
    assert "prompt: 'Explain how to mend this: {{steps.find.output}}'" in shown.out
    assert "Recognised" in shown.err
    assert "fanfold capture hand --name find-leap-year-bug saves it" in shown.err
    assert not (project / ".fanfold/workflows").exists()


def test_a_captured_recipe_is_saved_under_its_name_and_runs(delegated, project):
    saved = delegated("capture", "hand", "--name", "mend-bug", "--json")
    assert saved.status == 0
    assert saved.json()["file"].endswith(".fanfold/workflows/mend-bug.yaml")
    assert delegated("check", "mend-bug").status == 0
    (project / "both.yaml").write_text("steps: {find: in a.py, explain: as follows}\n")
    ran = delegated("run", "mend-bug", "--script", "both.yaml", "--json")
    assert (ran.json()["status"], ran.json()["output"]) == ("completed", "as follows")


def test_an_existing_recipe_is_replaced_only_on_request(delegated):
    delegated("capture", "hand", "--name", "mend-bug")
    refused = delegated("capture", "hand", "--name", "mend-bug", "--json")
    assert (refused.status, refused.json()["error"]["code"]) == (2, "recipe.exists")
    assert delegated("capture", "hand", "--name", "mend-bug", "--replace").status == 0


def test_some_of_the_children_are_captured_by_name(delegated):
    one = delegated("capture", "hand", "explorer-1", "--json").json()
    assert one["made_of"] == {"find": ["explorer-1"]}
    missing = delegated("capture", "hand", "nobody", "--json")
    assert (missing.status, missing.json()["error"]["code"]) == (6, "subagent.not_found")


def test_a_run_of_a_workflow_gives_its_own_recipe_also_when_the_file_is_gone(fanfold, project):
    (project / "r.yaml").write_text("name: r\nsteps: [{id: a, prompt: x}]\n")
    (project / "s.yaml").write_text("default: ok\n")
    fanfold("run", "r.yaml", "--script", "s.yaml", "--yes")
    (project / "r.yaml").unlink()
    run = fanfold("runs", "--json").json()[0]["run_id"]
    assert fanfold("show", run).out == "name: r\nsteps: [{id: a, prompt: x}]\n"
    assert fanfold("capture", "last", "--name", "kept").status == 0
    assert fanfold("show", "kept").status == 0


def test_a_kept_recipe_finds_the_files_beside_the_recipe_of_its_run(fanfold, project):
    (project / "team").mkdir()
    (project / "team" / "one.yaml").write_text("name: one\nsteps: [{id: a, prompt: x}]\n")
    text = "name: r # here\nsteps: [{id: a, workflow: ./one.yaml}, {id: b, prompt: 'workflow: ./one.yaml'}]\n"
    (project / "team" / "r.yaml").write_text(text)
    (project / "s.yaml").write_text("default: ok\n")
    fanfold("run", "team/r.yaml", "--script", "s.yaml", "--yes")
    assert fanfold("capture", "last", "--name", "kept").status == 0
    kept = (project / ".fanfold" / "workflows" / "kept.yaml").read_text()
    assert "{id: a, workflow: \"../../team/one.yaml\"}, {id: b, prompt: 'workflow: ./one.yaml'}" in kept
    assert fanfold("run", "kept", "--script", "s.yaml", "--yes").status == 0


def test_a_run_in_which_nothing_succeeded_has_no_recipe(fanfold, project):
    (project / "bad.yaml").write_text("default: {fail: {class: agent, message: it broke}}\n")
    fanfold("spawn", "explorer", "look", "--script", "bad.yaml", "--wait")
    refused = fanfold("capture", "hand", "--json")
    assert (refused.status, refused.json()["error"]["code"]) == (6, "capture.nothing")


def test_a_failed_child_with_new_input_is_captured_as_one_step_with_a_retry(fanfold, project):
    (project / "twice.yaml").write_text(
        "steps: {scout: {fail: {class: agent, message: lost}}, 'scout#2': there it is}\n"
    )
    fanfold("spawn", "explorer", "Find the map.", "--script", "twice.yaml", "--name", "scout", "--wait")
    fanfold("send", "scout", "Try again.")
    fanfold("wait", "scout")
    found = fanfold("capture", "hand", "--json").json()
    assert "retry:" in found["recipe"]
    assert "prompt: Find the map." in found["recipe"]


def test_no_task_or_output_controls_the_terminal(fanfold, project):
    (project / "evil.yaml").write_text('default: "\\e]0;owned\\a and \\u202e more words than six in a row"\n')
    fanfold("spawn", "explorer", "Say \x1b[31m it.", "--script", "evil.yaml", "--wait")
    told = "Repeat: \x1b]0;owned\x07 and \u202e more words than six in a row"
    fanfold("spawn", "explorer", told, "--script", "evil.yaml", "--wait")
    shown = fanfold("capture", "hand")
    assert shown.status == 0
    for letter in ("\x1b", "\x07", "\u202e"):
        assert letter not in shown.out + shown.err
