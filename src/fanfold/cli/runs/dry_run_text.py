"""A dry run for people: what starts together, what waits for what, and how much it may take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fanfold.cli.terminal.output import paint, plain
from fanfold.kernel.nodes import Node, is_shared_writer
from fanfold.kernel.paths import overlaps
from fanfold.kernel.plan import Plan
from fanfold.runtime.views.graph.boxes import label, shown
from fanfold.runtime.views.recipes.forecasts import DryRun, ForeseenConflict
from fanfold.text.terminal import one_line

MAX_STEPS_PER_WAVE = 12
MAX_WAVES = 40
MAX_CONFLICTS = 8
MAX_PATH_STEPS = 12


def render(plan: Plan, result: DryRun, steps: Mapping[str, Node], colour: bool) -> str:
    """The whole report."""
    parts = [
        f"{paint(f'{plan.name}@{plan.version}', 'bold', colour)}  dry run, nothing was started or written\n",
        *_waves(result, steps, colour),
        *_conflicts(result, steps, colour),
        *_bounds(result, colour),
        *_warnings(result, colour),
    ]
    return "".join(parts)


def _waves(result: DryRun, steps: Mapping[str, Node], colour: bool) -> Iterator[str]:
    if not result.waves:
        yield "\nNo step would start.\n"
    shown_waves = result.waves[:MAX_WAVES]
    listed = [path for wave in shown_waves for path in wave[:MAX_STEPS_PER_WAVE]]
    names = max((len(path) for path in listed), default=0)
    roles = max((len(_who(steps[path])) for path in listed), default=0)
    for number, wave in enumerate(shown_waves, 1):
        together = f", {len(wave)} together" if len(wave) > 1 else ""
        yield f"\n{paint(f'Wave {number}', 'bold', colour)}{paint(together, 'dim', colour)}\n"
        for path in wave[:MAX_STEPS_PER_WAVE]:
            who = _who(steps[path]).ljust(roles)
            does, hue = _does(steps[path])
            yield f"  {paint(plain(path).ljust(names), 'cyan', colour)}  {who}  {paint(does, hue, colour)}\n"
            yield from _whole_command(steps[path], colour)
        if len(wave) > MAX_STEPS_PER_WAVE:
            yield f"  … and {len(wave) - MAX_STEPS_PER_WAVE} more\n"
    if len(result.waves) > MAX_WAVES:
        yield f"\n… and {len(result.waves) - MAX_WAVES} more waves (--json has them all)\n"


def _whole_command(node: Node, colour: bool) -> Iterator[str]:
    """Of a command that says what it is for, as one that the project's files decide does."""
    if node.step.type == "command" and node.step.description:
        said = f"{one_line(node.step.description)}: {one_line(label(node.step).subtitle)}"
        yield f"    {paint(said, 'dim', colour)}\n"


def _who(node: Node) -> str:
    return plain(shown(label(node.step).subtitle))


def _does(node: Node) -> tuple[str, str]:
    if node.write_set:
        sets = ", ".join(node.write_set[:3]) + (" …" if len(node.write_set) > 3 else "")
        where = " in the shared workspace" if is_shared_writer(node) else ""
        return plain(f"writes {sets}{where}"), "yellow"
    kind = label(node.step).kind
    return {"reader": ("reads", "green"), "approval": ("approval", "magenta")}.get(kind, (kind, "dim"))


def _conflicts(result: DryRun, steps: Mapping[str, Node], colour: bool) -> Iterator[str]:
    if not result.conflicts_total:
        return
    number = f"{result.conflicts_total:,}"
    yield f"\n{paint('Conflicts', 'bold', colour)} ({number}): not at the same time, though no edge says so\n"
    for conflict in result.conflicts[:MAX_CONFLICTS]:
        yield f"  {_explain(conflict, steps)}\n"
    if result.conflicts_total > MAX_CONFLICTS:
        yield f"  … and {result.conflicts_total - MAX_CONFLICTS:,} more\n"


def _explain(conflict: ForeseenConflict, steps: Mapping[str, Node]) -> str:
    a, b = steps[conflict.a], steps[conflict.b]
    on = plain(conflict.on)
    if overlaps(a.write_set, b.write_set):
        # Of sets that hold everything any path is an example, and one that looks like a step misleads.
        what = "every file" if _writes_all(a) and _writes_all(b) else on
        return f"{plain(conflict.a)} and {plain(conflict.b)} may both write {what}"
    first = is_shared_writer(a) and overlaps(a.write_set, b.read_set)
    writer, reader = (conflict.a, conflict.b) if first else (conflict.b, conflict.a)
    return f"{plain(writer)} writes {on} in the shared workspace, where {plain(reader)} reads it"


def _writes_all(node: Node) -> bool:
    return "**/*" in node.write_set or "**" in node.write_set


def _bounds(result: DryRun, colour: bool) -> Iterator[str]:
    path = [plain(step) for step in result.critical_path]
    if len(path) > MAX_PATH_STEPS:
        path = [*path[: MAX_PATH_STEPS - 1], "…", path[-1]]
    length = len(result.critical_path)
    facts = [
        ("Critical path", f"{' → '.join(path)}  ({length} step{'s' * (length != 1)})"),
        ("Agents", _range(result.agents.min, result.agents.max)),
        ("Cost", _cost(result.cost.usd_max)),
    ]
    yield "\n"
    for name, value in facts:
        yield f"{paint(name.ljust(14), 'bold', colour)} {value}\n"


def _range(low: int, high: int) -> str:
    if low == high:
        return f"{low:,}"
    return f"{low:,} to {high:,}, with every retry, item and iteration counted"


def _cost(usd: float | None) -> str:
    if usd is None:
        return "no bound; --budget-usd sets one"
    return "nothing" if usd == 0 else f"at most ${usd:,.2f}"


def _warnings(result: DryRun, colour: bool) -> Iterator[str]:
    if result.warnings:
        yield "\n"
    for warning in result.warnings:
        yield f"{paint('warning', 'yellow', colour)}: {plain(warning)}\n"
    if not result.would_run:
        yield f"{paint('It would not run as it is.', 'red', colour)}\n"
