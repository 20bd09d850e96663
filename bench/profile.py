"""Where the time of steps goes while they are driven: the profile behind the figures of `durable`.

    python -m bench.profile [agents|async|plain] [chain|fan-out|layered]

The profiler makes every call of Python dearer and none of SQLite's, so shares are to be read, not sums.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import sys
import tempfile
from pathlib import Path

from bench.contenders import ours
from bench.contenders.protocol import Clock
from bench.durable import SHAPES, STEPS, plain_graph

SHOWN = 45


class ProfiledClock(Clock):
    """Looks on from the moment that steps are driven."""

    def __init__(self) -> None:
        super().__init__(limit_s=60.0)
        self.profile = cProfile.Profile()

    def drive(self) -> None:
        super().drive()
        self.profile.enable()

    def stop(self) -> None:
        self.profile.disable()
        super().stop()


def main(kind: str = "agents", shape: str = "chain") -> None:
    os.environ["BENCH_VARIANT"] = kind
    clock = ProfiledClock()
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        ours.run(plain_graph(SHAPES[shape](STEPS)), Path(folder), clock)
    print(
        f"{clock.steps} steps ({kind}, {shape}), {clock.driven_s * 1e6 / clock.steps:.0f} us each, profiled"
    )
    pstats.Stats(clock.profile).strip_dirs().sort_stats("tottime").print_stats(SHOWN)


if __name__ == "__main__":
    main(*sys.argv[1:])
