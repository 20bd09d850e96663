"""What hostile or very large texts cost: seconds of CPU time, each with the most that is allowed.

The tests hold that each of these is answered rightly, and that work grows with size; how long it takes is a
question for a quiet machine, so it is asked here. The best of some rounds counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time

from fanfold.api.graph import draw, svg
from fanfold.api.planning import MAX_CHARS, judge
from fanfold.kernel.paths import matches, witness
from fanfold.language.expressions import evaluate
from fanfold.language.template import ExpressionError
from fanfold.language.yaml_text import parse_yaml
from tests.agents.test_guards import judge_long_patterns
from tests.agents.test_hearing import hear_many_pieces, judge_many_denials
from tests.kernel.test_paths import HOSTILE_PAIRS
from tests.planning.test_intent import LONG_PIECES
from tests.recipe.hostile import CASES
from tests.recipe.test_expressions import TOO_MUCH, TOO_MUCH_OVER
from tests.runtime.test_drawing import random_plan
from tests.text.test_front_matter import HOSTILE_BLOCKS, read
from tests.text.test_parse import HOSTILE

Table = dict[str, dict[str, float]]
Work = Callable[[], object]
ROUNDS = 3
"""The best of more tells nothing more: these take milliseconds to seconds."""


def measure(rounds: int) -> Table:
    """The most expensive of each kind, and what it may cost."""
    table: Table = {}
    for kind, (bar, works) in _kinds().items():
        costs = [min(_cpu_s(work) for _ in range(min(rounds, ROUNDS))) for work in works]
        table[kind] = {"cpu_s": max(costs), "allowed_s": bar}
    table["hostile recipes"] = {"cpu_s": max(map(_recipe_cpu_s, CASES)), "allowed_s": 1.0}
    return table


def _kinds() -> dict[str, tuple[float, list[Work]]]:
    plans = [random_plan(1, 2_000, reach) for reach in (1, 20, 2_000)]
    return {
        "2,000 steps laid out": (0.5, [partial(draw, plan) for plan in plans]),
        "2,000 steps drawn": (1.0, [partial(svg, plan) for plan in plans]),
        "hostile YAML": (1.0, [partial(parse_yaml, text.encode(), "r.yaml") for text in HOSTILE.values()]),
        "hostile front matter": (2.0, [partial(read, block) for block in HOSTILE_BLOCKS]),
        "hostile globs": (0.5, [partial(_compare, *pair) for pair in HOSTILE_PAIRS]),
        "hostile expressions": (0.5, [partial(_refused, text) for text in TOO_MUCH]),
        "agents that say very much": (2.0, [judge_many_denials, hear_many_pieces]),
        "patterns full of stars": (0.5, [judge_long_patterns]),
        "long requests": (1.0, [partial(judge, piece * MAX_CHARS) for piece in LONG_PIECES]),
    }


def _compare(one: str, other: str) -> None:
    witness(one, other)
    matches([one], "a" * 1_000 + "/b")


def _refused(text: str) -> None:
    try:
        evaluate(text, TOO_MUCH_OVER)
    except ExpressionError:
        return
    raise RuntimeError(f"{text} was not refused")


def _cpu_s(work: Work) -> float:
    began = process_time()
    work()
    return process_time() - began


def _recipe_cpu_s(name: str) -> float:
    """In a process of its own, which measures itself: what the one before left behind is not its cost."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.recipe.hostile", name],
        cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(json.loads(done.stdout)["cpu_s"])


def failures(table: Table) -> list[str]:
    return [
        f"{name}: {row['cpu_s']:.2f} s of CPU time, allowed {row['allowed_s']:.1f}"
        for name, row in table.items()
        if row["cpu_s"] > row["allowed_s"]
    ]
