"""`make cluster-chaos`: random faults from a seed, while runs start all the time; one line per fault and run.

    python -m tests.cluster.chaos [--minutes 30] [--seed 1]

Four workers with their own homes and no checkout take the steps of small runs. Workers are killed and started
again, frozen, and cut off from the services; PostgreSQL and Temporal are killed and started again. At the end
everything is healed. Then each run must have completed with the right output and a valid log, with no job, no
lease and no process left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from fanfold.store.address import PostgresAddress
from tests.cluster.relays import Relay
from tests.cluster.workers import Cluster, TemporalServer, until
from tests.e2e.processes import of_project
from tools.postgresql import PostgresServer

RECIPE = """
name: chaos
limits: {max_concurrency: 4}
output: "{{steps.end.output.n}}"
steps:
  - {id: look, agent: explorer, prompt: look}
  - {id: each, for_each: "lists.range(8)", handler: "hand:work", inputs: {i: "{{item}}"}, depends_on: [look]}
  - {id: list, shell: "ls; sleep 1", depends_on: [look]}
  - {id: write, agent: worker, workspace_mode: isolated, write_set: ["*.md"], prompt: go, depends_on: [look]}
  - {id: child, workflow: ./child.yaml, depends_on: [each]}
  - id: end
    set: {n: "size(steps.each.output) + size(steps.child.output)"}
    depends_on: [child, list, write]
"""
FILES = {
    "recipe.yaml": RECIPE,
    "child.yaml": 'name: child\noutput: "{{steps.a.output}}"\nsteps:\n'
    '  - {id: a, shell: "sleep 0.5; echo yes"}\n',
    "hand.py": "import time\n\ndef work(i):\n    time.sleep(0.2)\n    return i\n",
    "script.yaml": "default: {output: ok, delay_ms: 300}\nsteps:\n"
    '  write: {output: ok, tool_calls: [{tool: write_file, args: {path: a.md, content: "a"}},'
    ' {tool: run_command, args: {argv: [sleep, "1"]}}]}\n',
}
EXPECTED = 11
NAMES = ("one", "two", "three", "four")
HEARTBEAT_S = 5
PAUSE_S = (2.0, 6.0)
"""The shortest and the longest time between two faults."""


class Chaos:
    """A cluster, and the faults that it gets."""

    def __init__(self, folder: Path, seed: int, out: TextIO = sys.stdout) -> None:
        self._chance = random.Random(seed)
        self._out = out
        self._began = time.monotonic()
        (folder / "temporal").mkdir()
        self._database = PostgresServer()
        self._address = PostgresAddress(url=self._database.url, project="team/chaos")
        self._address.init()
        self._temporal = TemporalServer(folder / "temporal")
        self._cluster = Cluster(folder, self._temporal.address)
        self._cluster.environment |= {
            "FANFOLD_STORE": self._database.url,
            "FANFOLD_PROJECT": "team/chaos",
            "FANFOLD_HEARTBEAT_S": str(HEARTBEAT_S),
        }
        for name, text in FILES.items():
            (self._cluster.project / name).write_text(text)
        self._relays: dict[str, tuple[Relay, Relay]] = {}
        self._number = 0
        self._workers = [self._start(name) for name in NAMES]
        self._runs: list[str] = []

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  {text}", file=self._out, flush=True)

    def _start(self, kind: str) -> str:
        self._number += 1
        name = f"{kind}-{self._number}"
        relays = Relay(self._database.folder / ".s.PGSQL.5432"), Relay(self._temporal.port)
        self._relays[name] = relays
        self._cluster.start(
            name, apart=True,
            FANFOLD_STORE=f"postgresql://fanfold@127.0.0.1:{relays[0].port}/postgres",
            FANFOLD_TEMPORAL=f"127.0.0.1:{relays[1].port}",
        )  # fmt: skip
        return name

    def run(self, seconds: float) -> None:
        """Start runs and cause faults for this long, then check what is left."""
        faults = (self._kill, self._freeze, self._cut_off, self._crash_database, self._crash_temporal)
        while time.monotonic() - self._began < seconds:
            script = ("--script", "script.yaml", "--unsafe-no-sandbox")
            self._runs.append(self._cluster.ok("run", "recipe.yaml", "--yes", "--detach", *script).strip())
            self._say(f"started run {self._runs[-1]}")
            time.sleep(self._chance.uniform(*PAUSE_S))
            fault: Callable[[], None] = self._chance.choice(faults)
            fault()
        self._check()

    def _kill(self) -> None:
        victim = self._workers.pop(self._chance.randrange(len(self._workers)))
        self._say(f"kill -9 of worker {victim}")
        self._cluster.kill(victim)
        self._workers.append(self._start(victim.partition("-")[0]))

    def _freeze(self) -> None:
        victim, seconds = self._chance.choice(self._workers), self._chance.uniform(1, 3 * HEARTBEAT_S)
        self._say(f"worker {victim} stands still for {seconds:.1f} s")
        self._cluster.signal(victim, signal.SIGSTOP)
        time.sleep(seconds)
        self._cluster.signal(victim, signal.SIGCONT)

    def _cut_off(self) -> None:
        victim, seconds = self._chance.choice(self._workers), self._chance.uniform(1, 3 * HEARTBEAT_S)
        chosen = self._chance.choice(((0,), (1,), (0, 1)))
        names = " and ".join(("PostgreSQL", "Temporal")[one] for one in chosen)
        self._say(f"worker {victim} does not reach {names} for {seconds:.1f} s")
        for one in chosen:
            self._relays[victim][one].silence()
        time.sleep(seconds)
        for one in chosen:
            self._relays[victim][one].heal()

    def _crash_database(self) -> None:
        self._say("PostgreSQL is killed and started again")
        self._database.crash()

    def _crash_temporal(self) -> None:
        self._say("Temporal is killed and started again")
        self._temporal.kill()
        time.sleep(self._chance.uniform(0, HEARTBEAT_S))
        self._temporal.start()

    def _check(self) -> None:
        self._say("the last fault is over")
        for run in self._runs:
            found = self._cluster.finished(run)
            assert (found["status"], found["output"]) == ("completed", EXPECTED), found
            again = len(self._cluster.about(run, "interrupted"))
            self._say(f"run {run} completed; {again} executions were interrupted")
        until(lambda: not json.loads(self._cluster.ok("cluster", "status", "--json"))["jobs"])
        store = self._address.open()
        assert [run for run in self._runs if store.owner(run) is not None] == []
        store.close()
        self._cluster.stop()
        self._temporal.stop()
        until(lambda: not of_project(self._cluster.project.parent))
        self._say(f"{len(self._runs)} runs completed; no job, lease or process is left")

    def close(self) -> None:
        self._cluster.stop()
        self._temporal.stop()
        self._database.remove()
        for pair in self._relays.values():
            for relay in pair:
                relay.close()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long; default: 30")
    parser.add_argument("--seed", type=int, default=1, help="which faults; default: 1")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fanfold-chaos.") as folder:
        os.chmod(folder, 0o755)
        chaos = Chaos(Path(folder), options.seed)
        try:
            chaos.run(options.minutes * 60)
        finally:
            chaos.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
