"""Artifacts: files that steps leave beside the project, for the steps after them and for people."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

MAKE_AND_USE = """\
name: artifacts
steps:
  - {id: make, agent: worker, write_set: ["*.txt"], prompt: Make it.}
  - id: use
    depends_on: make
    shell: cat "$FANFOLD_ARTIFACTS/notes/plan.md"; echo built > "$FANFOLD_ARTIFACTS/out.txt"
  - {id: beside, agent: explorer, prompt: Look., depends_on: []}
  - {id: look, agent: explorer, prompt: Look., depends_on: use}
output: "{{steps.use.output}}"
"""
SCRIPT = """\
default: done
steps:
  make: {output: made, writes: {"artifacts/notes/plan.md": "the owl plan", "a.txt": "x"}}
  look:
    output: seen
    tool_calls:
      - {tool: read_file, args: {path: artifacts/notes/plan.md}}
      - {tool: list_files, args: {path: $FANFOLD_ARTIFACTS}}
  beside:
    output: seen
    tool_calls:
      - {tool: list_files, args: {path: artifacts}}
"""


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        home = folder.parent / "home"
        self.environment = {**os.environ, "HOME": str(home), "FANFOLD_HOME": str(home / ".fanfold")}

    def fanfold(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "fanfold.cli.main", *words], cwd=self.folder, text=True,
            env={**self.environment, **environment}, capture_output=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip

    def run(self, recipe: str, script: str = "default: done", *words: str, **environment: str) -> Any:
        (self.folder / "r.yaml").write_text(recipe)
        (self.folder / "s.yaml").write_text(script)
        done = self.fanfold("run", "r.yaml", "--script", "s.yaml", "--yes", "--json", *words, **environment)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def artifacts(self, run: str) -> dict[str, str]:
        home = self.folder / ".fanfold/runs" / run / "artifacts"
        return {str(one.relative_to(home)): one.read_text() for one in home.rglob("*") if one.is_file()}

    def facts(self) -> list[Any]:
        lines = self.fanfold("logs", "last", "--json").stdout.splitlines()
        return [data for line in lines if (data := json.loads(line)["data"]).get("what") == "artifacts"]

    def shown(self, step: str) -> str:
        return self.fanfold("transcript", "last", step).stdout


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def failing(project: Project, script: str) -> Any:
    """How a command fails that does this before it is done."""
    recipe = f"name: x\nsteps:\n  - {{id: a, shell: {json.dumps(script)}}}\n"
    document = project.run(recipe)
    run = document["run_id"]
    assert not (project.folder / ".fanfold/runs" / run / "artifacts").exists()
    assert not (project.folder / ".fanfold/runs" / run / "staging").exists()
    return document["steps"]["a"]["error"]


def test_artifacts_of_a_step_are_published_to_later_steps(project: Project) -> None:
    document = project.run(MAKE_AND_USE, SCRIPT)
    assert document["status"] == "completed", document["error"]
    assert document["output"] == "the owl plan"
    assert project.artifacts(document["run_id"]) == {"notes/plan.md": "the owl plan", "out.txt": "built\n"}
    assert sorted(one.name for one in project.folder.iterdir()) == [".fanfold", "a.txt", "r.yaml", "s.yaml"]
    made, used = project.facts()
    assert made["files"][0]["sha256"] == hashlib.sha256(b"the owl plan").hexdigest()
    assert (made["step"], used["step"]) == ("make", "use")
    assert 'files: ["artifacts/notes/plan.md","artifacts/out.txt"]' in project.shown("look")
    assert "files: []" in project.shown("beside")  # it does not depend on them
    report = (project.folder / ".fanfold/runs" / document["run_id"] / "report.md").read_text()
    assert "/artifacts/notes/plan.md (12 bytes)" in report
    assert "make/artifacts/notes/plan.md" in project.fanfold("query", "owl").stdout
    assert project.fanfold("verify", "last").returncode == 0


def test_a_fork_has_the_artifacts_of_the_steps_that_it_keeps(project: Project) -> None:
    project.run(MAKE_AND_USE, SCRIPT)
    assert project.fanfold("fork", "last", "--from", "look", "--yes").returncode == 0
    assert '"artifacts/notes/plan.md"' in project.shown("look")
    assert project.fanfold("verify", "last").returncode == 0


def test_artifacts_of_other_steps_are_read_only(project: Project) -> None:
    own = 'cat "$FANFOLD_ARTIFACTS/notes/plan.md"; echo built > "$FANFOLD_ARTIFACTS/out.txt"'
    assert own in MAKE_AND_USE
    changed = MAKE_AND_USE.replace(own, "cd $FANFOLD_ARTIFACTS/notes; rm -f plan.md; echo other > plan.md")
    error = project.run(changed, SCRIPT)["steps"]["use"]["error"]
    assert (error["class"], error["code"]) == ("violation", "artifact.taken")
    assert project.artifacts(project.facts()[0]["step"] and _last(project)) == {
        "notes/plan.md": "the owl plan"
    }


def _last(project: Project) -> str:
    return str(json.loads(project.fanfold("inspect", "last", "--json").stdout)["run_id"])


READER = """\
name: readers
steps:
  - {id: plan, agent: planner, prompt: Plan it.}
  - {id: look, agent: explorer, prompt: Look., depends_on: plan}
"""


def test_a_reader_of_the_project_leaves_only_artifacts(project: Project) -> None:
    leaves = "{tool: write_file, args: {path: artifacts/plan.md, content: first owls}}"
    reads = "steps: {plan: {output: x, tool_calls: [%s]}, look: {output: x, tool_calls: [%s]}}\n"
    look = "{tool: read_file, args: {path: artifacts/plan.md}}"
    document = project.run(READER, reads % (leaves, look))
    assert document["status"] == "completed"
    assert project.artifacts(document["run_id"]) == {"plan.md": "first owls"}
    assert "first owls" in project.shown("look")
    for path in ("plan.md", "artifacts/../plan.md", "./docs/artifacts/plan.md"):
        document = project.run(READER, reads % (leaves.replace("artifacts/plan.md", path), look))
        assert document["steps"]["plan"]["status"] == "failed", path
        assert project.artifacts(document["run_id"]) == {}, path
    assert not (project.folder / "plan.md").exists()
    assert not (project.folder / "docs").exists()


def test_a_read_only_run_gets_no_artifacts_of_agents(project: Project) -> None:
    script = "default: {output: x, writes: {artifacts/plan.md: owls}}\n"
    (project.folder / "r.yaml").write_text(READER)
    (project.folder / "s.yaml").write_text(script)
    done = project.fanfold("run", "r.yaml", "--script", "s.yaml", "--permission", "read_only", "--json")
    document = json.loads(done.stdout)
    assert document["steps"]["plan"]["error"]["class"] == "permission"
    assert project.artifacts(document["run_id"]) == {}


def test_two_items_that_publish_one_name_do_not_overwrite_each_other(project: Project) -> None:
    recipe = """\
name: items
steps:
  - {id: each, for_each: "[1, 2]", shell: 'echo $n > "$FANFOLD_ARTIFACTS/one.txt"', inputs: {n: item}}
"""
    document = project.run(recipe)
    codes = [document["steps"][f"each[{i}]"]["error"] for i in (0, 1)]
    assert sorted(one["code"] for one in codes if one) == ["artifact.taken"]


@pytest.mark.parametrize("after", ["make", ""])
@pytest.mark.parametrize(
    ("first", "second"), [("echo 1 > x", "mkdir -p x; echo 2 > x/y"), ("mkdir x; echo 1 > x/y", "echo 2 > x")]
)
def test_a_file_and_a_folder_of_one_name_are_refused_before_anything_is_merged(
    project: Project, first: str, second: str, after: str
) -> None:
    recipe = f"""\
name: names
steps:
  - {{id: make, shell: 'cd "$FANFOLD_ARTIFACTS"; {first}'}}
  - id: clash
    depends_on: [{after}]
    write_set: [z]
    shell: 'echo z > z; cd "$FANFOLD_ARTIFACTS"; rm -rf x; {second}'
"""
    document = project.run(recipe)
    failed = [one for one in document["steps"].values() if one["status"] == "failed"]
    assert [one["error"]["code"] for one in failed] == ["artifact.taken"]
    merged = document["steps"]["clash"]["status"] == "completed"
    assert (project.folder / "z").exists() is merged
    assert len(project.artifacts(document["run_id"])) == 1


def test_a_later_round_sees_and_replaces_what_an_earlier_one_published(project: Project) -> None:
    recipe = """\
name: rounds
steps:
  - id: grow
    repeat: {until: 'output == "ooo"', max_iterations: 3}
    shell: printf o >> "$FANFOLD_ARTIFACTS/sum"; cat "$FANFOLD_ARTIFACTS/sum"
"""
    document = project.run(recipe)
    assert (document["status"], document["output"]) == ("completed", "ooo")
    assert project.artifacts(document["run_id"]) == {"sum": "ooo"}


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ('ln -s /etc/passwd "$FANFOLD_ARTIFACTS/link"', "artifact.refused"),
        ('mkfifo "$FANFOLD_ARTIFACTS/pipe"', "artifact.refused"),
        ("cd $FANFOLD_ARTIFACTS && ln -s . up && mkdir a && ln -s /tmp a/b", "artifact.refused"),
        ('cd "$FANFOLD_ARTIFACTS" && for i in $(seq 501); do : > $i; done', "artifact.too_large"),
        ('truncate -s 101M "$FANFOLD_ARTIFACTS/big"', "artifact.refused"),
        ("printf x > \"$FANFOLD_ARTIFACTS/$(printf 'a\\033b')\"", "artifact.refused"),
        ('echo x > "$FANFOLD_ARTIFACTS/kept"; exit 3', "command.failed"),
        ('mkdir "$FANFOLD_ARTIFACTS/shut" && chmod 0 "$FANFOLD_ARTIFACTS/shut"; exit 3', "command.failed"),
    ],
)
def test_a_forbidden_artifact_fails_the_step_and_publishes_none(
    project: Project, script: str, code: str
) -> None:
    assert failing(project, script)["code"] == code


def test_a_file_with_a_secret_of_the_user_is_not_published(project: Project) -> None:
    config = Path(project.environment["FANFOLD_HOME"]) / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[environment]\nallow = ["DEPLOY_HOST"]\n')
    recipe = """\
name: x
steps: [{id: a, env_vars: [DEPLOY_HOST], shell: 'echo "$DEPLOY_HOST" > "$FANFOLD_ARTIFACTS/a"'}]
"""
    document = project.run(recipe, DEPLOY_HOST="s3cr3t-value-of-the-user")
    assert document["steps"]["a"]["error"]["code"] == "artifact.secret"


def test_a_folder_of_that_name_in_the_project_stays_the_projects(project: Project) -> None:
    (project.folder / "artifacts").mkdir()
    recipe = "name: x\nsteps: [{id: a, agent: worker, prompt: go}]\n"
    script = 'steps: {a: {output: ok, writes: {artifacts/a: own, "$FANFOLD_ARTIFACTS/b": kept}}}\n'
    document = project.run(recipe, script)
    assert document["status"] == "completed", document["error"]
    assert (project.folder / "artifacts/a").read_text() == "own"
    assert project.artifacts(document["run_id"]) == {"b": "kept"}


def test_a_child_run_has_artifacts_of_its_own(project: Project) -> None:
    script = 'ls "$FANFOLD_ARTIFACTS"; echo x > "$FANFOLD_ARTIFACTS/child"'
    (project.folder / "child.yaml").write_text(
        f"name: child\nsteps: [{{id: c, shell: {json.dumps(script)}}}]\n"
    )
    recipe = """\
name: parent
steps:
  - {id: p, shell: 'echo x > "$FANFOLD_ARTIFACTS/parent"'}
  - {id: call, workflow: ./child.yaml, depends_on: p}
  - {id: after, shell: 'ls "$FANFOLD_ARTIFACTS"', depends_on: call}
output: {inside: steps.call.output, after: steps.after.output}
"""
    assert project.run(recipe)["output"] == {"inside": "", "after": "parent"}


def test_without_bubblewrap_the_folder_is_there_too(project: Project, tmp_path: Path) -> None:
    from fanfold.workspace.sandbox import detect

    if not detect(project.folder).landlock.available:
        pytest.skip("needs Landlock: make test-full on Linux 5.13 or newer")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "cat", "git", "ls"):
        found = next(Path(one) / name for one in os.environ["PATH"].split(":") if (Path(one) / name).exists())
        (programs / name).symlink_to(found.resolve())
    document = project.run(MAKE_AND_USE, SCRIPT, PATH=str(programs))
    assert document["status"] == "completed", document["error"]
    assert project.artifacts(document["run_id"]) == {"notes/plan.md": "the owl plan", "out.txt": "built\n"}
