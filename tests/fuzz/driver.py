"""The differential fuzzer: random recipes, run for real and disturbed at random, against the interpreter.

    python -m tests.fuzz.driver --seed 1 --count 2000 [--jobs N]

One tree of recipes per seed, with scripted agents, on a real database. On the way the run is killed, paused
and resumed at random commits, and sometimes cancelled. However it got there, the end of every step, every
output and the status of the run have to be what the interpreter says, and the log has to keep every
invariant. A difference prints the recipe and the command that repeats it; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from fanfold.api.archives import verify
from fanfold.api.ownership import own
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.engine.run_tree import RunTree
from fanfold.kernel.events import Envelope
from fanfold.kernel.state import RUN_TERMINAL, Node
from fanfold.language.compile import compile_recipe
from fanfold.wiring import wire
from tests.dying_store import DyingStore, claimed, opened
from tests.fuzz.interpreter import Foretold, Interpreter, Said, StepEnd
from tests.fuzz.recipes import ROOT, Writer
from tests.work import PATIENCE_S

MOST_STAGES = 12
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Processes are killed, not machines: nothing here needs a disk to be forced."""


class Difference(Exception):
    """A run came to something else than it should."""


class Disturbance:
    """What happens to a run in one stage of its life: at which commit, and what."""

    def __init__(self, rng: Random) -> None:
        self.word = rng.choice(("kill before", "kill after", "pause", "pause", "leave"))
        self.at = rng.randint(1, 12)


def check_seed(seed: int, *, calm: bool = False, mostly_agents: bool = False) -> None:
    """Run the recipes of a seed; raises `Difference`."""
    rng = Random(seed * 7919)
    writer = Writer(seed, mostly_agents=mostly_agents)
    recipes = writer.draw()
    foretold = Interpreter(recipes, writer.outcomes).foretell(ROOT)
    stages = [] if calm or rng.random() < 0.3 else [Disturbance(rng) for _ in range(rng.randint(1, 4))]
    cancelled_at = rng.randint(1, 15) if not calm and rng.random() < 0.12 else 0
    with tempfile.TemporaryDirectory(prefix="fuzz", dir=MEMORY) as folder:
        home = Path(folder) / "project"
        home.mkdir()
        os.environ["FANFOLD_HOME"] = f"{folder}/home"
        for name, recipe in recipes.items():
            (home / f"{name}.yaml").write_text(json.dumps(recipe.written()))
        (home / "script.json").write_text(json.dumps(_script(writer)))
        (home / "inputs.json").write_text(json.dumps(recipes[ROOT].inputs))
        claimed(home)
        root = _live(home, stages, cancelled_at)
        project = wire(home)
        try:
            tree = project.view(root)
            problems = [one.message for one in verify(project.store, root).violations]
            problems += list(_differences(tree, foretold, bool(cancelled_at)))
        finally:
            project.close()
        if problems:
            text = json.dumps({name: one.written() for name, one in recipes.items()}, indent=1)
            raise Difference("\n".join([*problems[:10], text, json.dumps(_script(writer))]))


def _script(writer: Writer) -> dict[str, Any]:
    script = writer.outcomes.script()
    for path, answers in script["steps"].items():
        if path in writer.outcomes.writes:  # its writes make it fail, or nothing does
            script["steps"][path] = [{key: said[key] for key in ("output", "writes")} for said in answers]
    return script


def _live(home: Path, stages: list[Disturbance], cancelled_at: int) -> str:
    """Drive the run through its disturbances to its end; its id."""
    for number in range(MOST_STAGES):
        disturbance = stages[number] if number < len(stages) else None
        _in_a_process_of_its_own(home, disturbance, cancelled_at)
        found = home / "root.txt"
        ended = home / "ended.txt"
        if ended.exists():
            return found.read_text()
    raise Difference(f"still not over after {MOST_STAGES} stages")


def _in_a_process_of_its_own(home: Path, disturbance: Disturbance | None, cancelled_at: int) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=_stage, args=(home, disturbance, cancelled_at)
    )
    process.start()
    process.join(PATIENCE_S)
    if process.is_alive():
        process.kill()
        process.join()
        raise Difference("a stage hung")
    if process.exitcode not in (0, -9):
        raise Difference(f"a stage ended with {process.exitcode}: {(home / 'error.txt').read_text()}")


def _stage(home: Path, disturbance: Disturbance | None, cancelled_at: int) -> None:
    try:
        asyncio.run(_drive(home, disturbance, cancelled_at))
    except BaseException as error:  # noqa: BLE001  # whatever it was, whoever compares has to hear of it
        (home / "error.txt").write_text("".join(traceback.format_exception(error)))
        os._exit(1)
    os._exit(0)


async def _drive(home: Path, disturbance: Disturbance | None, cancelled_at: int) -> None:
    store = DyingStore(home / ".fanfold")
    word, at = (disturbance.word, disturbance.at) if disturbance is not None else ("", 0)
    if word.startswith("kill"):
        store.kill_at, store.when = at, word.removeprefix("kill ")
    project = wire(home, store=opened(store))
    known = home / "root.txt"
    fresh = not known.exists() or project.store.head(known.read_text()) is None
    if fresh:
        file = home / f"{ROOT}.yaml"
        compiled = compile_recipe(file.read_bytes(), str(file), project.compile_context(scripted=True))
        if compiled.plan is None:
            raise Difference(f"refused: {[one.message for one in compiled.report.diagnostics]}")
        options = Options(permission="auto", script=(home / "script.json").read_text())
        owned = create(project, compiled.plan, json.loads((home / "inputs.json").read_text()), options)
        known.write_text(owned.tree.root.id)
    else:
        owned = own(project, known.read_text())
    seen = [0]

    def committed(_written: list[Envelope]) -> None:
        seen[0] += 1
        if seen[0] == at and word == "pause":
            host.pause()
        elif seen[0] == at and word == "leave":
            os._exit(0)
        if cancelled_at and owned.tree.tree_seq >= cancelled_at * 3 and not (home / "cancel.txt").exists():
            (home / "cancel.txt").write_text("asked")
            host.cancel()

    host = owned.host(on_commit=committed, leave_when_waiting=False)
    await (host.start() if fresh else host.resume())
    if owned.tree.root.status in RUN_TERMINAL:
        (home / "ended.txt").write_text(owned.tree.root.status)
    owned.done()


# Comparing


def _differences(tree: RunTree, foretold: Foretold, cancelled: bool) -> Iterator[str]:
    runs = tree.state.runs.values()
    ended = {run.tree_path(path): node for run in runs for path, node in run.nodes.items()}
    if tree.root.status == "cancelled":
        if not cancelled:
            yield "the run is cancelled, and nobody asked"
        foretold = replace(foretold, stopped=("",))
    elif tree.root.status != foretold.status:
        yield f"the run is {tree.root.status}, not {foretold.status}"
    for path in sorted({*foretold.ends, *ended}):
        loosely = any(path.startswith(prefix) for prefix in foretold.stopped)
        end, node = foretold.ends.get(path), ended.get(path)
        if end is not None and node is not None:
            yield from _of_step(tree, path, end, node, loosely)
        elif not loosely:
            yield f"{path} is only in the {'run' if end is None else 'forecast'}"
    if "" not in foretold.stopped:
        if not _same(foretold.output, tree.blobs.get(tree.root.output) if tree.root.output else None):
            got = tree.blobs.get(tree.root.output) if tree.root.output else None
            yield f"the output is not {foretold.output!r}, but {got!r:.200}"
        yield from _wrong_digests(tree, foretold)


def _of_step(tree: RunTree, path: str, end: StepEnd, node: Node, loosely: bool) -> Iterator[str]:
    """`loosely`: its run was wound up early, so it may also have been cancelled, or lost what it needed."""
    if node.status == end.status:
        if end.status == "skipped" and node.reason != end.reason and not loosely:
            yield f"{path} is skipped for {node.reason}, not for {end.reason}"
        if end.status == "completed" and not loosely and not _same(end.output, tree.values.output(node)):
            yield f"{path} has the output {tree.values.output(node)!r}, not {end.output!r}"
    elif not loosely or node.status not in ("cancelled", *_early(end.status)):
        yield f"{path} is {node.status}, not {end.status}"


def _early(status: str) -> tuple[str, ...]:
    """What else a step may have come to when its run was wound up: it may have failed for that."""
    return ("failed", "skipped") if status != "skipped" else ()


def _wrong_digests(tree: RunTree, foretold: Foretold) -> Iterator[str]:
    for path, digest in foretold.digests.items():
        said = tree.values.at(tree.root.nodes[path])["digest"]
        if said != digest:
            yield f"{path} was told {said!r} of earlier phases, not {digest!r}"


def _same(expected: Any, found: Any) -> bool:
    if isinstance(expected, Said):
        return expected.word in json.dumps(found)
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and expected.keys() == found.keys()
            and all(_same(value, found[key]) for key, value in expected.items())
        )
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(_same, expected, found))
    return bool(expected == found)


# Many seeds


def find_difference(seed: int, *, mostly_agents: bool = False) -> tuple[int, str]:
    try:
        check_seed(seed, mostly_agents=mostly_agents)
    except Difference as difference:
        return seed, str(difference)
    return seed, ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.driver")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    seeds = range(given.seed, given.seed + given.count)
    found = 0
    with multiprocessing.get_context("fork").Pool(given.jobs, maxtasksperchild=50) as pool:
        for seed, told in pool.imap_unordered(_pooled, seeds):
            if told:
                found += 1
                sys.stdout.write(f"seed {seed}: {told}\nrepeat it: make fuzz SEED={seed} N=1\n\n")
    sys.stdout.write(f"{given.count} recipes from seed {given.seed}: {found or 'nothing'} found\n")
    return 1 if found else 0


def _pooled(seed: int) -> tuple[int, str]:
    multiprocessing.current_process().daemon = False  # it has children of its own
    return find_difference(seed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
