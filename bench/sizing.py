"""The plan for 1,000 workers and 1,000,000 steps a day, by simulation: what is busy, and how long steps wait.

Nothing runs here but a simulation. Its costs were measured with two workers on a machine with 2 cores; `COST`
names them. Steps arrive at random in the busiest hour, which has four times the mean. Each needs PostgreSQL,
Temporal, its driver, PostgreSQL and Temporal again, in this order; a server takes its jobs one after another.
Each driving worker also searches for runs without a driver, at every commit but at most ten times a second.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass

WORKERS = 1_000
STEPS_A_DAY = 1_000_000
PEAK = 4.0
SIMULATED_S = 120
CONNECTIONS = 4
SEARCHES_S = 10.0
"""Searches of a driving worker a second, while commits of others wake it."""
ANNOUNCEMENTS_S = 0.2
MAX_BUSY, MAX_DELAY_MS = 0.7, 250.0
"""The bars of the recommended set-up: how busy a server is, and the delay of 99 of 100 steps."""


@dataclass(frozen=True)
class Cost:
    """Milliseconds of a core."""

    read: float = 0.1
    commit: float = 1.3
    reads_a_step: int = 24
    commits_a_step: int = 6
    search: float = 0.6
    temporal_a_step: float = 16.0
    driver_a_step: float = 5.0


COST = Cost()


@dataclass(frozen=True)
class Setup:
    """A cluster: how many workers drive runs, how many processes there are, and the cores of each service."""

    drivers: int
    processes: int
    postgres_cores: int
    temporal_cores: int


SETUPS = {
    "two cores each, all drive": Setup(WORKERS, WORKERS, 2, 2),
    "two cores each, 20 drive": Setup(20, WORKERS, 2, 2),
    "recommended": Setup(20, 125, 8, 4),
}


class Server:
    """Cores with one queue; `background` is the share of them that other work takes."""

    def __init__(self, cores: int, background: float = 0.0) -> None:
        self._speed = max(0.01, 1.0 - background)
        self._free = [0.0] * cores
        self.worked = 0.0

    def serve(self, at: float, ms: float) -> float:
        """The time at which a job that arrives now has ended."""
        self.worked += ms
        began = max(at, heapq.heappop(self._free))
        ended = began + ms / 1_000 / self._speed
        heapq.heappush(self._free, ended)
        return ended


def simulate(setup: Setup, seed: int = 1) -> dict[str, float]:
    """How busy each server is, and how much longer steps take than without other steps."""
    chance = random.Random(seed)
    idle_ms = setup.drivers * SEARCHES_S * COST.search + setup.processes * ANNOUNCEMENTS_S * COST.commit
    background = idle_ms / 1_000 / setup.postgres_cores
    postgres, temporal = Server(setup.postgres_cores, background), Server(setup.temporal_cores)
    drivers = [Server(1) for _ in range(setup.drivers)]
    stored = (COST.reads_a_step * COST.read + COST.commits_a_step * COST.commit) / 2
    rate = STEPS_A_DAY / 86_400 * PEAK
    stages: list[tuple[float, int, int, float]] = []
    at = 0.0
    number = 0
    while (at := at + chance.expovariate(rate)) < SIMULATED_S:
        heapq.heappush(stages, (at, number, 0, at))
        number += 1
    costs = (stored, COST.temporal_a_step / 2, COST.driver_a_step, stored, COST.temporal_a_step / 2)
    delays: list[float] = []
    while stages:
        at, one, stage, began = heapq.heappop(stages)
        if stage == len(costs):
            delays.append((at - began) * 1_000 - sum(costs))
            continue
        servers = (postgres, temporal, drivers[one % setup.drivers], postgres, temporal)
        heapq.heappush(stages, (servers[stage].serve(at, costs[stage]), one, stage + 1, began))
    delays.sort()
    whole = SIMULATED_S * 1_000
    return {
        "steps_s": rate,
        "postgres_busy": background + postgres.worked / whole / setup.postgres_cores,
        "temporal_busy": temporal.worked / whole / setup.temporal_cores,
        "driver_busy": sum(one.worked for one in drivers) / whole / setup.drivers,
        "delay_ms": delays[len(delays) // 2],
        "delay_99_ms": delays[len(delays) * 99 // 100],
        "connections": float(setup.processes * CONNECTIONS),
    }


def measure(_rounds: int) -> dict[str, dict[str, float]]:
    """A row for each set-up."""
    return {name: simulate(setup) for name, setup in SETUPS.items()}


def failures(table: dict[str, dict[str, float]]) -> list[str]:
    """What the recommended set-up misses."""
    row = table["recommended"]
    missed = [f"{name} is {row[name]:.2f}" for name in row if name.endswith("_busy") and row[name] > MAX_BUSY]
    if row["delay_99_ms"] > MAX_DELAY_MS:
        missed.append(f"99 of 100 steps wait up to {row['delay_99_ms']:.0f} ms")
    return missed
