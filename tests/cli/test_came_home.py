"""A run tells what it did to the project's files all in all, and not what it did on the way."""

import pytest

pytestmark = pytest.mark.full

CHILD = """\
name: child
steps: [{id: deep, agent: worker, write_set: [deep.txt], prompt: x}]
"""
RECIPE = """\
name: rounds
steps:
  - id: round
    repeat: {until: iteration == 2, max_iterations: 2}
    steps:
      - {id: write, agent: worker, write_set: ["*.txt"], prompt: x}
  - {id: kid, workflow: ./child.yaml, depends_on: round}
"""
SCRIPT = """\
steps:
  "round#1/write":
    {output: one, writes: {made.txt: "1", kept.txt: "1", gone.txt: "1"}, deletes: [back.txt, left.txt]}
  "round#2/write": {output: two, writes: {made.txt: "2", back.txt: "2"}, deletes: [gone.txt]}
  kid/deep: {output: deep, writes: {deep.txt: "x"}}
"""
TOLD = """\
  back.txt  modified  round#2/write
  deep.txt  added     kid/deep
  kept.txt  modified  round#1/write
  left.txt  deleted   round#1/write
  made.txt  added     round#2/write
"""


def test_summary_and_inspection_list_each_file_once_with_its_outcome(fanfold, project):
    (project / "child.yaml").write_text(CHILD)
    (project / "rounds.yaml").write_text(RECIPE)
    (project / "script.yaml").write_text(SCRIPT)
    for name in ("kept", "back", "left"):
        (project / f"{name}.txt").write_text("before")
    done = fanfold("run", "rounds.yaml", "--script", "script.yaml", "--yes")
    assert done.status == 0, done.err
    assert TOLD in done.err
    assert f"\nChanged\n{TOLD}" in fanfold("inspect", "last").out


def test_changes_of_a_sub_workflow_are_part_of_the_result_by_their_paths_in_the_tree(fanfold, project):
    (project / "child.yaml").write_text(CHILD)
    (project / "rounds.yaml").write_text("name: rounds\nsteps: [{id: kid, workflow: ./child.yaml}]\n")
    (project / "script.yaml").write_text(SCRIPT)
    done = fanfold("run", "rounds.yaml", "--script", "script.yaml", "--yes", "--json").json()
    assert [(one["path"], one["step"], one["state"]) for one in done["changes"]] == [
        ("deep.txt", "kid/deep", "merged")
    ]
    assert "added deep.txt (kid/deep, merged)" in done["report"]
    assert fanfold("inspect", "last", "--json").json()["changes"] == done["changes"]
