"""Agents by the thousand, through the command line, on models, and with much to say.

Each kind is looked at in a process of its own (`bench/agent_probes.py`), beside the least that could do the
same on this machine: a loop that commits, a client that asks, an insert. CPU time, the best of some turns,
because a shared disk is whatever is left of it; `us` columns are time on the clock.

Through the command line, a run of 450 agent steps is measured less one of a single step, so that starting
Python is left out, beside the bare loop of `durable`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from time import perf_counter

from bench.contenders.protocol import WORDS
from bench.durable import SHAPES, Facts, graphs, plain_graph, run
from bench.startup import compile_package, cpu_ms

Table = dict[str, dict[str, float]]

WORK = Path(__file__).parent / ".work"
STEPS = (1_000, 10_000, 100_000)
CALLS, OUTPUTS = 320, 240
LISTED = 450
LINES = {"chain": "450 steps by command, chain", "fan-out": "450 steps by command, fan-out"}
BARS = {
    f"{STEPS[1]:,} agent steps": [("kb_per_step", 4.0)],
    f"{STEPS[2]:,} agent steps": [("cpu_growth", 1.2), ("kb_growth", 1.2)],
    "a model call, 16 at once": [("cpu_of_bare", 3.5), ("forced_writes", 0.2)],
    "an output of 100 kB": [("cpu_of_bare", 2.0), ("stored_times", 1.1)],
    LINES["chain"]: [("of_bare", 2.0)],
    LINES["fan-out"]: [("of_bare", 5.0)],
}


def measure(rounds: int) -> Table:
    """A row for each kind."""
    compile_package()
    turns = max(1, min(rounds, 3))
    table: Table = {}
    for steps in STEPS:
        table[f"{steps:,} agent steps"] = _best(turns if steps < STEPS[-1] else 1, "layers", steps)
    first, last = (table[f"{steps:,} agent steps"] for steps in (STEPS[0], STEPS[-1]))
    last["cpu_growth"] = last["cpu_us_per_step"] / first["cpu_us_per_step"]
    last["kb_growth"] = last["kb_per_step"] / first["kb_per_step"]
    table["a model call, 16 at once"] = _best(turns, "models", CALLS, "cpu_of_bare")
    table["an output of 100 kB"] = _best(turns, "outputs", OUTPUTS, "cpu_of_bare")
    return table | _through_the_command_line(turns)


def _best(turns: int, name: str, number: int, by: str = "cpu_us_per_step") -> dict[str, float]:
    return min((_probe(name, number) for _ in range(turns)), key=lambda figures: figures[by])


def _probe(name: str, number: int) -> dict[str, float]:
    """The figures of one probe in a process of its own."""
    WORK.mkdir(exist_ok=True)
    place = tempfile.mkdtemp(dir=WORK)
    command = [sys.executable, "-m", "bench.agent_probes", name, place, str(number)]
    try:
        done = subprocess.run(
            command, cwd=WORK.parent.parent, capture_output=True, text=True, timeout=900, check=False
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if done.returncode != 0:
        raise RuntimeError(f"the probe {name} failed:\n{done.stderr[-2_000:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _through_the_command_line(turns: int) -> Table:
    told: Facts = {}
    best: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)

    def note(shape: str, who: str, wall_us: float, cpu_us: float) -> None:
        for column, value in (("us", wall_us), ("cpu_us", cpu_us)):
            known = best[shape, who]
            known[column] = min(value, known.get(column, value))

    for _ in range(turns):
        with graphs(LISTED) as drawn:
            for shape in LINES:
                bare = run("bare loop", sys.executable, drawn[shape], told)
                note(shape, "bare", bare.wall_s * 1e6 / bare.steps, bare.cpu_s * 1e6 / bare.steps)
                note(shape, "one", *_run_listed(shape, 1))
                note(shape, "all", *_run_listed(shape, LISTED))
    table: Table = {}
    for shape, name in LINES.items():
        of_all, of_one, bare_loop = (best[shape, who] for who in ("all", "one", "bare"))
        each = {column: (of_all[column] - of_one[column]) / (LISTED - 1) for column in of_all}
        table[name] = each | {
            "bare_us": bare_loop["us"],
            "of_bare": each["us"] / bare_loop["us"],
            "cpu_of_bare": each["cpu_us"] / bare_loop["cpu_us"],
        }
    return table


def _run_listed(shape: str, steps: int) -> tuple[float, float]:
    """Microseconds on the clock, and of CPU, of `fanfold run` with so many agent steps."""
    place = Path(tempfile.mkdtemp(dir=WORK))
    (place / ".fanfold").mkdir(mode=0o700)  # a project of its own, and not the one around it
    lines = ["name: listed", f"limits: {{max_steps: {steps + 1}, max_agents: {steps + 1}}}", "steps:"]
    for number, needs in enumerate(plain_graph(SHAPES[shape](steps))):
        edges = ", ".join(f"s{one}" for one in needs)
        lines.append(f"- {{id: s{number}, agent: explorer, prompt: Look into it., depends_on: [{edges}]}}")
    (place / "listed.yaml").write_text("\n".join([*lines, ""]))
    (place / "answers.yaml").write_text(f'default: "{{{{step}}}} {WORDS}"\n')
    command = [str(Path(sys.executable).with_name("fanfold")), "run", "listed.yaml"]
    command += ["--script", "answers.yaml", "--max-concurrency", "16"]
    begin = perf_counter()
    spent_ms = cpu_ms(command, str(place))
    wall_us = (perf_counter() - begin) * 1e6
    shutil.rmtree(place, ignore_errors=True)
    return wall_us, spent_ms * 1_000


def failures(table: Table) -> list[str]:
    """What misses its bar."""
    return [
        f"{name}: {column} {table[name][column]:.2f}, allowed {bar:g}"
        for name, bars in BARS.items()
        for column, bar in bars
        if table[name][column] > bar
    ]
