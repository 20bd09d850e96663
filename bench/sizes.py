"""Sizes: memory, log and resume, each looked at from inside a fresh process.

The probes are in `bench/probes.py`. Memory is resident memory; a step's is what a run of 10,000 still holds
at its end, a session's what 1,000 of them hold while they wait for their answers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import time

HERE = Path(__file__).parent
WORK = HERE / ".work"
STEPS = 10_000
EVENTS = 10_000
SESSIONS = 1_000
LOG_SIZES = (100, 1_000, 10_000)

MAX_IDLE_KB = 60 * 1_024
MAX_KB_PER_STEP = 4.0
MAX_KB_PER_SESSION = 10.0
MAX_CPU_MS_PER_SESSION = 0.3
MAX_RESUME_S = 1.0
LOG_SPREAD = 0.1

Table = dict[str, dict[str, float]]


def measure(rounds: int) -> Table:
    """A row for each probe; the best of some turns where time is measured."""
    WORK.mkdir(exist_ok=True)
    turns = max(1, min(rounds, 3))
    table: Table = {"idle process": probe("idle"), f"{STEPS} steps": probe("steps", STEPS)}
    for size in LOG_SIZES:
        table[f"log of {size} steps"] = probe("log", size)
    table[f"resume after {EVENTS} events"] = _best(turns, resume, "from_start_s")
    sessions = _best(turns, lambda: probe("sessions", SESSIONS), "cpu_ms_per_session")
    table[f"{SESSIONS} sessions at once"] = sessions
    shutil.rmtree(WORK, ignore_errors=True)
    return table


def probe(name: str, number: int = 0, folder: str = "") -> dict[str, float]:
    """The figures of one probe in a process of its own."""
    place = folder or tempfile.mkdtemp(dir=WORK)
    command = [sys.executable, "-m", "bench.probes", name, place, str(number)]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the probe {name} failed:\n{done.stderr[-2_000:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def resume() -> dict[str, float]:
    folder = tempfile.mkdtemp(dir=WORK)
    left = probe("crash", EVENTS, folder)
    return left | probe("resume", int(time() * 1_000), folder)


def _best(turns: int, work: Callable[[], dict[str, float]], by: str) -> dict[str, float]:
    return min((work() for _ in range(turns)), key=lambda figures: figures[by])


def failures(table: Table) -> list[str]:
    """What misses its bar."""
    missed = []

    def at_most(row: str, figure: str, bar: float) -> None:
        if table[row][figure] > bar:
            missed.append(f"{row}: {figure} {table[row][figure]:.2f}, allowed {bar:.2f}")

    at_most("idle process", "memory_kb", MAX_IDLE_KB)
    at_most(f"{STEPS} steps", "kb_per_step", MAX_KB_PER_STEP)
    at_most(f"resume after {EVENTS} events", "resume_s", MAX_RESUME_S)
    row = f"{SESSIONS} sessions at once"
    at_most(row, "kb_per_idle_session", MAX_KB_PER_SESSION)
    at_most(row, "cpu_ms_per_session", MAX_CPU_MS_PER_SESSION)
    missed += [
        f"{row}: {figure} {table[row][figure]:.0f}, expected {SESSIONS}"
        for figure in ("completed", "live_at_once")
        if table[row][figure] != SESSIONS
    ]
    sizes = [table[f"log of {size} steps"]["log_bytes_per_step"] for size in LOG_SIZES]
    for size, found in zip(LOG_SIZES, sizes, strict=True):
        if abs(found - sizes[0]) > LOG_SPREAD * sizes[0]:
            missed.append(f"log of {size} steps: {found:.0f} bytes a step, {sizes[0]:.0f} at {LOG_SIZES[0]}")
    return missed
