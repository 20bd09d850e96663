"""Work that did not come home: who ran it is told, and told the command that shows it."""

import pytest

from tests.work import long_enough_ms

pytestmark = pytest.mark.full


def test_a_step_that_wrote_only_ignored_files_is_named_at_the_end_and_by_diff(fanfold, project):
    (project / ".gitignore").write_text("*.log\n")
    (project / "w.yaml").write_text(
        "name: w\nsteps:\n  - {id: w, run: [touch, a.log], write_set: ['**/*']}\n"
    )
    ran = fanfold("run", "w.yaml", "--yes")
    assert ran.status == 0
    assert "w wrote only 1 file that git ignores: fanfold diff" in ran.err
    run = ran.err.partition("fanfold diff ")[2].split()[0]
    shown = fanfold("diff", run, "w").out
    assert shown.startswith("# w: 1 file left behind")
    assert "a.log" in shown
    assert fanfold("diff", run, "--json").json()["steps"][0]["left_out"] == ["a.log"]


def test_a_failed_step_names_the_command_that_shows_its_work_and_diff_what_has_no_patch(fanfold, project):
    (project / "w.yaml").write_text(
        "name: w\nsteps:\n"
        "  - {id: w, run: [bash, -c, 'echo x > a; mkfifo p; mkdir hollow'], write_set: [a, p, hollow]}\n"
    )
    ran = fanfold("run", "w.yaml", "--yes")
    assert ran.status == 1
    run = ran.err.partition("what it changed is kept: fanfold diff ")[2].split()[0]
    shown = fanfold("diff", run, "w").out
    assert "3 files kept" in shown
    assert "# without a patch: hollow, p\n" in shown
    assert "b/a\n" in shown


def test_a_conflict_names_the_command_that_runs_the_step_again(fanfold, project, background, until):
    (project / "a").write_text("old\n")
    (project / "w.yaml").write_text("name: w\nsteps: [{id: w, agent: worker, prompt: x, write_set: [a]}]\n")
    answer = f"{{output: ok, delay_ms: {long_enough_ms(5_000)}, writes: {{a: theirs}}}}"
    (project / "s.yaml").write_text(f"steps: {{w: {answer}}}")
    process = background("run", "w.yaml", "--script", "s.yaml", "--yes")
    until(lambda _: list(project.glob(".fanfold/subagents/*/child.json")))
    (project / "a").write_text("ours\n")
    said = process.communicate()[1].decode()
    run = said.partition("on the current files: fanfold fork ")[2].split()[0]
    assert f"fanfold fork {run} --from w\n" in said
    assert f"what it changed is kept: fanfold diff {run} w\n" in said
    assert "changed nothing" not in fanfold("explain", run, "w").out
