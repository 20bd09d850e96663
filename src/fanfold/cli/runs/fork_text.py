"""What a fork or a retry will do, for people to read before it does anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fanfold.cli.terminal.output import paint, plain
from fanfold.runtime.operations.runs.again.recipe_changes import ForkForecast, RecipeChanges
from fanfold.runtime.views.runs.rows import StepUsage

MAX_PATHS = 12
_TOP = re.compile(r"[^/\[#]*")
"""The step of the recipe that a path begins with."""


def forecast_lines(forecast: ForkForecast, colour: bool) -> Iterator[str]:
    """What is reused, what runs again, what is different, and what that may cost."""
    yield f"{paint('fork of', 'bold', colour)} run {forecast.source_run_id}\n"
    for title, paths in _changes(forecast.recipe):
        yield _line(paint(title.ljust(10), "yellow", colour), _listed(paths))
    yield _line("reuses", _listed(_gathered(forecast.reuses)))
    if forecast.keeps_failures:
        yield _line("tolerated", f"{_listed(forecast.keeps_failures)}; as before")
    yield _line("runs again", _listed(_gathered(forecast.runs_again)))
    for path, turn in forecast.goes_on.items():
        yield _line("goes on", f"{plain(path)} behind turn {turn} of its conversation")
    if forecast.merged:
        files = sum(forecast.merged.values())
        what = f"{files} file{'' if files == 1 else 's'} as merged by {_listed(list(forecast.merged))}"
        yield _line("leaves", f"{what}: fanfold diff {forecast.source_run_id}")
    for line in forecast.asks[:MAX_PATHS]:
        yield _line("new", plain(line))
    agents = f"{forecast.agents} agent{'' if forecast.agents == 1 else 's'}"
    yield _line("may cost", f"{agents}{_price(forecast.last_time)}")


def _line(title: str, text: str) -> str:
    return f"  {title.ljust(10)} {text}\n"


def _changes(recipe: RecipeChanges) -> Iterator[tuple[str, Sequence[str]]]:
    """What the recipe says that it did not say then."""
    told = [
        ("changed", recipe.changed),
        ("tuned", recipe.tuned),
        ("added", recipe.added),
        ("removed", recipe.removed),
        ("roles", recipe.roles),
        ("recipe's", recipe.others),
    ]
    return ((title, paths) for title, paths in told if paths)


def _gathered(paths: Sequence[str]) -> list[str]:
    """Paths, with those of one map, loop or group told together where there are many."""
    if len(paths) <= MAX_PATHS:
        return list(paths)
    held: dict[str, list[str]] = {}
    for path in paths:
        held.setdefault(_TOP.match(path)[0], []).append(path)  # type: ignore[index]  # matches every path
    return [f"{top} ({len(inside)} steps)" if len(inside) > 1 else inside[0] for top, inside in held.items()]


def _listed(paths: Sequence[str]) -> str:
    if not paths:
        return "nothing"
    more = f" and {len(paths) - MAX_PATHS} more" if len(paths) > MAX_PATHS else ""
    return plain(", ".join(paths[:MAX_PATHS])) + more


def _price(usage: StepUsage) -> str:
    """What the same steps took last time; the best guess there is."""
    tokens = usage.input_tokens + usage.output_tokens
    if not tokens:
        return ""
    price = "price unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    return f"; last time these took {tokens:,} tokens, {price}"
