"""What goes wrong in a schedule, and how often.

Each schedule draws its own mixture: some faults are off, some rare, some frequent, so that thousands
of schedules meet every pair of them. Once a schedule is `calm` nothing goes wrong any more; what is
left must come to an end (invariant 19).
"""

from __future__ import annotations

from collections import Counter
from random import Random

RATES: dict[str, tuple[float, ...]] = {
    # Per recorded event.
    "crash": (0.005, 0.03, 0.15),
    "slow disk": (0.02, 0.2),
    "early commit": (0.1, 0.5),
    # Per attempt.
    "failure": (0.1, 0.3, 0.7),
    "hang": (0.05, 0.2),
    "interruption": (0.05, 0.2),
    "unasked end": (0.03, 0.1),
    "unrendered": (0.02, 0.1),
    "deaf to stop": (0.3,),
    "held by another run": (0.3, 0.7),
    "overspending": (0.2, 0.7),
    # Per answer of a person.
    "rejection": (0.3,),
    "nobody answers": (0.3, 1.0),
    # Per report from outside.
    "reordering": (0.3, 1.0),
    "duplicate": (0.05, 0.2),
    "late result": (0.2, 0.7),
    "pause": (0.01, 0.08),
    "pause while waiting": (0.3, 0.8),
    "cancel": (0.01, 0.04),
    "cancel child": (0.03, 0.15),
    "clock forward": (0.02, 0.1),
    "clock backward": (0.02, 0.1),
    "chatter": (0.05,),
    # Per crash, per resume.
    "zombie": (0.5,),
    "cancel while paused": (0.1, 0.4),
    "nothing raised": (0.4,),
    "raised for nothing": (0.3,),
}
FAULTS = tuple(RATES)
FAILURES = (
    "transport", "transport", "transport", "rate_limit", "rate_limit", "timeout", "agent", "agent",
    "invalid_output", "tool", "conflict", "violation", "quota", "permission", "internal",
)  # fmt: skip
"""Classes of failures, the common ones more than once."""
TRANSIENT = ("transport", "rate_limit")
"""In some schedules nothing worse happens, so that steps come to their second and third attempt."""
MAX_CRASHES = 12


class Faults:
    """The mixture of one schedule; `hits` throws the dice and counts what really happened."""

    def __init__(self, rng: Random, reached: Counter[str]) -> None:
        self.rng = rng
        self.reached = reached
        share = 0.0 if rng.random() < 0.12 else rng.choice((0.1, 0.2, 0.35, 0.6))
        self.rates = {name: rng.choice(rates) for name, rates in RATES.items() if rng.random() < share}
        if self.rates and rng.random() < 0.4:
            self.rates["failure"] = 0.3
        self.kinds = FAILURES if rng.random() < 0.6 else TRANSIENT
        self.crashes = 0
        self.calm = not self.rates
        self.lasting = rng.choice((30, 100, 300, 600))
        """Events after which nothing goes wrong any more."""

    def hits(self, name: str) -> bool:
        """Whether the fault strikes here and now."""
        rate = 0.0 if self.calm else self.rates.get(name, 0.0)
        if rate == 0.0 or self.rng.random() >= rate:
            return False
        if name == "crash":
            if self.crashes >= MAX_CRASHES:
                return False
            self.crashes += 1
        self.reached[name] += 1
        return True
