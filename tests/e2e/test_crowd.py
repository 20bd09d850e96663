"""Two hundred agents of one recipe at once, in one process; the provider tells some of them to slow down."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.world import MODELS, Project, Provider
from tests.provider import Call, Fault, RecordedRequest, Reply, answer_with
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

AGENTS = 200
NUMBERS = [str(i) for i in range(AGENTS)]
RECIPE = f"""\
name: crowd
inputs: [{{name: numbers, type: array, required: true}}]
limits: {{max_concurrency: {AGENTS}, max_agents: {AGENTS}}}
steps:
  - id: each
    agent: explorer
    for_each: inputs.numbers
    max_items: {AGENTS}
    prompt: "{{{{item}}}} is who I am"
    output_schema:
      type: object
      properties: {{who: {{type: string}}}}
      required: [who]
      additionalProperties: false
"""
CEILINGS = f"[workflows]\nmax_concurrent = {AGENTS}\nmax_agents = {AGENTS}\n"
MAX_MB = 300


OF_A_CHILD = """
import json, os, resource, subprocess, sys
status = subprocess.call(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as file:
    json.dump([status, used.ru_utime + used.ru_stime, used.ru_maxrss / 1_024], file)
"""
"""A small process in between: what a program used at most counts from what the one that forked it held."""


class Measured(NamedTuple):
    status: int
    out: str
    err: str
    took_s: float
    cpu_s: float
    most_mb: float

    def __str__(self) -> str:
        return f"{AGENTS} agents: {self.took_s:.1f} s, {self.cpu_s:.1f} s CPU, {self.most_mb:.0f} MB at most"


def measure(project: Project, *arguments: str, **environment: str) -> Measured:
    """Run a command and ask the kernel what it used."""
    begun = time.monotonic()
    used = project.file("../used")
    done = subprocess.run(
        [sys.executable, "-c", OF_A_CHILD, used, sys.executable, "-m", "fanfold.cli.main", *arguments],
        cwd=project.folder, env={**project.environment, **environment}, timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
    )  # fmt: skip
    status, cpu_s, most_mb = json.loads(used.read_text())
    return Measured(status, done.stdout, done.stderr, time.monotonic() - begun, cpu_s, most_mb)


def test_two_hundred_agents_of_a_recipe_work_at_once_and_all_complete(project: Project):
    project.file("crowd.yaml").write_text(RECIPE)
    project.file("a.txt").write_text("hello\n")
    own = Path(project.environment["HOME"]) / ".fanfold"  # a project cannot raise what the user allows
    own.mkdir(parents=True, exist_ok=True)
    (own / "config.toml").write_text(CEILINGS)
    limited: set[str] = set()

    def script(asked: RecordedRequest) -> Reply | Fault:
        who = asked.prompt.split()[0]
        if who.endswith("7") and who not in limited:  # one in ten is told to slow down, once
            limited.add(who)
            return Fault("rate_limit", retry_after_s=0.05)
        if asked.turns == 0:
            return Reply(calls=(Call("read_file", {"path": "a.txt"}),))
        return answer_with({"who": who}, asked)

    given = ("-i", f"numbers={json.dumps(NUMBERS)}", "--model", MODELS["chat"], "--yes", "--json")
    with Provider(script) as provider:
        ran = measure(project, "run", "crowd.yaml", *given, **provider.environment)
    sys.stdout.write(f"{ran}\n")
    assert ran.status == 0, ran.err[-2_000:]
    result = json.loads(ran.out)
    assert result["output"] == [{"who": who} for who in NUMBERS]
    assert result["usage"]["agents"] == AGENTS
    assert result["usage"]["input_tokens"] == sum(reply.input_tokens for _, reply in provider.given)
    assert len(provider.given) == 2 * AGENTS
    assert len(provider.asked) == 2 * AGENTS + len(limited)
    assert provider.paid_twice() == []
    assert most_at_once(project) == AGENTS
    assert project("verify", "--all").status == 0
    # Time, on the clock or of a processor, is told and not judged: it measures whoever else uses the machine.
    assert ran.most_mb < MAX_MB, ran


def most_at_once(project: Project) -> int:
    """How many agents were under way at the same time, by the log."""
    under_way = most = 0
    for line in project("logs", "last", "--json").out.splitlines():
        event = json.loads(line)
        if event["type"] == "subagent_event":
            under_way += {"started": 1, "finished": -1}[event["data"]["status"]]
            most = max(most, under_way)
    return most
