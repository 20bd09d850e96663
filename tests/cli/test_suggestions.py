"""`check --suggest` and `explain`: the sets that steps really used, from evidence alone."""

import pytest

pytestmark = pytest.mark.full

RECIPE = """\
name: mend
steps:
  - {id: look, agent: explorer, prompt: Look}
  - {id: fix, agent: worker, depends_on: [look], prompt: Fix}
  - id: each
    for_each: "['a', 'b', 'c']"
    agent: worker
    depends_on: [fix]
    prompt: "{{item}}"
  - {id: idle, agent: worker, depends_on: [each], write_set: ["docs/**"], prompt: Nothing}
  - {id: runs, agent: explorer, depends_on: [idle], prompt: Run}
  - {id: exact, agent: worker, depends_on: [runs], write_set: [x.txt], prompt: Fix}
"""
SCRIPT = """\
default: done
steps:
  look:
    output: seen
    tool_calls:
      - {tool: read_file, args: {path: README.md}}
      - {tool: list_files, args: {path: src, glob: "*.py"}}
  fix: {output: ok, writes: {"src/a.py": "x = 1\\n", "pages/[id].tsx": "x\\n"}}
  "each[0]": {output: ok, writes: {"parts/a.md": "a\\n"}}
  "each[1]": {output: ok, writes: {"parts/b.md": "b\\n"}}
  "each[2]": {output: ok, writes: {"parts/c.md": "c\\n"}}
  runs: {output: ok, tool_calls: [{tool: read_file, args: {path: README.md}}, {tool: fetch_page, args: {}}]}
  exact: {output: ok, writes: {"x.txt": "x\\n"}}
"""


@pytest.fixture
def ran(fanfold, project):
    (project / "README.md").write_text("hello\n")
    (project / "mend.yaml").write_text(RECIPE)
    (project / "script.yaml").write_text(SCRIPT)
    done = fanfold("run", "mend.yaml", "--script", "script.yaml", "--yes", "--json")
    assert done.status in (0, 1), done.out
    return done.json()


def test_check_proposes_the_sets_that_were_used(fanfold, ran):
    checked = fanfold("check", "mend.yaml", "--suggest", "--json").json()
    found = {(one["step"], one["key"]): one for one in checked["suggestions"]}
    assert found["look", "read_set"]["proposed"] == ["README.md", "src/*.py"]
    assert found["fix", "write_set"]["proposed"] == ["pages/[[]id].tsx", "src/a.py"]
    assert found["fix", "write_set"]["declared"] == ["**/*"]
    assert found["each", "write_set"]["proposed"] == ["parts/{{item}}.md"]
    assert found["idle", "write_set"]["proposed"] == []
    assert "changed nothing" in found["idle", "write_set"]["note"]
    assert ("exact", "write_set") not in found, "it declares what it uses"
    assert {one["runs"] for one in checked["suggestions"]} == {1}
    assert "suggest  mend each  write_set: " in fanfold("check", "mend.yaml", "--suggest").out


def test_a_step_that_ran_something_else_is_not_guessed_about(fanfold, ran):
    checked = fanfold("check", "mend.yaml", "--suggest", "--json").json()
    assert ("runs", "read_set") not in {(one["step"], one["key"]) for one in checked["suggestions"]}
    used = fanfold("explain", ran["run_id"], "runs", "--json").json()["used"]
    assert (used["reads"], used["unseen_reads"]) == (["README.md"], "it ran programs")


def test_a_proposal_can_be_declared_and_the_recipe_then_needs_none(fanfold, project, ran):
    text = RECIPE.replace('prompt: "{{item}}"', 'prompt: "{{item}}"\n    write_set: ["parts/{{item}}.md"]')
    (project / "mend.yaml").write_text(text)
    again = fanfold("run", "mend.yaml", "--script", "script.yaml", "--yes", "--json").json()
    assert again["steps"]["each[2]"]["status"] == "completed"
    checked = fanfold("check", "mend.yaml", "--suggest", "--json").json()
    assert "each" not in {one["step"] for one in checked["suggestions"]}


def test_explain_names_what_a_step_read_and_changed(fanfold, ran):
    told = fanfold("explain", ran["run_id"], "fix", "--json").json()
    assert told["used"]["writes"] == ["pages/[id].tsx", "src/a.py"]
    assert told["suggested"][0]["proposed"] == ["pages/[[]id].tsx", "src/a.py"]
    text = fanfold("explain", ran["run_id"], "look").out
    assert "read README.md, src/*.py" in text
    assert 'suggest read_set: ["README.md","src/*.py"]' in text


def test_a_project_without_runs_proposes_no_sets(fanfold, project):
    (project / "mend.yaml").write_text(RECIPE)
    assert fanfold("check", "mend.yaml", "--suggest", "--json").json()["suggestions"] == []
    assert "suggestions" not in fanfold("check", "mend.yaml", "--json").json()
    assert not (project / ".fanfold").exists()
