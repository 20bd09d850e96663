"""Random recipes for several hosts: the same seed gives the same digest in each of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fanfold.api.archives import digest_run, verify
from fanfold.api.run_options import Options
from fanfold.api.start import create
from fanfold.kernel.digest import RunDigest
from fanfold.language.compile import compile_recipe
from fanfold.store.address import PostgresAddress
from fanfold.wiring import wire
from tests.fuzz.driver import _script
from tests.fuzz.interpreter import Interpreter
from tests.fuzz.model import ModelStep
from tests.fuzz.recipes import ROOT, Writer


class SeededRecipe:
    """The files of one random recipe; `is_serial`: with one slot, and nothing that depends on time."""

    def __init__(self, seed: int, *, is_serial: bool) -> None:
        writer = Writer(seed, mostly_agents=is_serial)
        recipes = writer.draw()
        for recipe in recipes.values():
            recipe.slots = (
                1 if is_serial else max(2, recipe.slots)
            )  # with one, the order is part of the digest
            if is_serial:
                for step in _all(recipe.steps):
                    step.kind = "agent" if step.kind == "approval" else step.kind
                    step.attempts = 1
        foretold = Interpreter(recipes, writer.outcomes).foretell(ROOT)
        self.is_settled = is_serial or not foretold.stopped
        """Whether the results do not depend on how far other steps were when one stopped the run."""
        self.inputs: dict[str, Any] = recipes[ROOT].inputs
        self._files = {f"{name}.yaml": json.dumps(one.written()) for name, one in recipes.items()}
        self._files["script.json"] = json.dumps(_script(writer))
        self._files["inputs.json"] = json.dumps(self.inputs)

    def write(self, folder: Path, handler: str = "fuzz-echo") -> None:
        """Write the files; `handler` names the function that recipes call."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self._files.items():
            (folder / name).write_text(text.replace("fuzz-echo", handler))

    async def run(self, folder: Path, address: PostgresAddress | None = None) -> RunDigest:
        """Run it in this process, on SQLite or at an address."""
        self.write(folder)
        project = wire(folder, store=address)
        try:
            file = folder / f"{ROOT}.yaml"
            compiled = compile_recipe(file.read_bytes(), str(file), project.compile_context(scripted=True))
            assert compiled.plan is not None, compiled.report.diagnostics
            options = Options(permission="auto", script=self._files["script.json"])
            owned = create(project, compiled.plan, self.inputs, options)
            await owned.host(leave_when_waiting=False).start()
            owned.done()
            run = owned.tree.root.id
            assert verify(project.store, run).ok
            return digest_run(project, run)
        finally:
            project.close()


def settled(first: int, count: int, *, is_serial: bool) -> Iterable[tuple[int, SeededRecipe]]:
    """The first recipes from a seed whose results do not depend on time, with their seeds."""
    seed = first
    while count:
        recipe = SeededRecipe(seed, is_serial=is_serial)
        if recipe.is_settled:
            yield seed, recipe
            count -= 1
        seed += 1


def _all(steps: list[ModelStep]) -> Iterable[ModelStep]:
    for step in steps:
        yield step
        yield from _all(step.inner)
