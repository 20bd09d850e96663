"""Random recipes: every construct the interpreter knows, small enough for thousands of runs."""

from __future__ import annotations

from random import Random
from typing import Any
from zlib import crc32

from tests.fuzz.given import draw
from tests.fuzz.model import Expression, Loop, ModelRecipe, ModelStep, Names

ROOT = "root"
FAILURES = ("agent", "agent", "transport", "tool", "invalid_output", "conflict", "rate_limit", "internal")
NASTY = ("plain", "[id]", "*", "{a,b}", "a?", "**", "a b", "ümläut")


class Outcomes:
    """What agents do, by path and attempt: drawn from the seed when first asked, and kept for the script."""

    def __init__(self, seed: int, failing: float) -> None:
        self._seed = seed
        self._failing = failing
        self.asked: dict[str, list[dict[str, Any]]] = {}
        self.writes: dict[str, dict[str, Any]] = {}
        """What writers do, whatever the attempt."""

    def __call__(self, path: str, attempt: int) -> dict[str, Any]:
        done = self.asked.setdefault(path, [])
        while len(done) < attempt:
            done.append(self._draw(path, len(done) + 1))
        return done[attempt - 1]

    def _draw(self, path: str, attempt: int) -> dict[str, Any]:
        kept = self.writes.get(path)
        if kept is not None:
            return kept
        rng = Random(crc32(f"{self._seed}:{path}:{attempt}".encode()))
        if rng.random() < self._failing:
            return {"fail": {"class": rng.choice(FAILURES), "message": "failed as it should"}}
        return {"output": rng.choice(("good", "bad", "worse")), "delay_ms": rng.choice((0, 0, 1, 5))}

    def script(self) -> dict[str, Any]:
        return {
            "default": "nobody asked for this",
            "steps": dict(self.asked),
        }


class Writer:
    """Draws one tree of recipes from a seed; `mostly_agents`: without questions, values, waits and ends."""

    def __init__(self, seed: int, *, mostly_agents: bool = False) -> None:
        self.rng = Random(seed)
        self._mostly_agents = mostly_agents
        self.outcomes = Outcomes(seed, self.rng.choice((0.0, 0.1, 0.25, 0.5)))
        self.recipes: dict[str, ModelRecipe] = {}
        self._stopping = self.rng.random() < 0.15

    def draw(self) -> dict[str, ModelRecipe]:
        rng = self.rng
        for number in range(rng.choice((0, 0, 1, 2))):
            self.recipes[f"sub{number}"] = self._recipe(f"sub{number}", depth=1, names={"x": "given"})
        if rng.random() < 0.2:
            self.recipes[ROOT] = self._phased()
        else:
            names = {"flag": rng.random() < 0.5, "many": [1, "two", None][: rng.randint(0, 3)]}
            folder = rng.choice(NASTY)
            self.recipes[ROOT] = self._recipe(ROOT, depth=0, names={**names, "folder": folder})
        return self.recipes

    def _recipe(self, name: str, depth: int, names: dict[str, Any]) -> ModelRecipe:
        steps = self._steps(self.rng.randint(1, 6 if depth == 0 else 3), depth, names)
        if "folder" in names and self.rng.random() < 0.15:
            steps.append(self._writer(f"w{len(steps)}", names["folder"]))
        if (
            not self._mostly_agents and self.rng.random() < 0.15
        ):  # after all others: how far those got would be a matter of time
            needs = tuple(step.id for step in steps)
            steps.append(ModelStep("over", "end", needs, word=self.rng.choice(("completed", "failed"))))
        return ModelRecipe(name, steps, self._shown(steps), names, slots=self.rng.choice((1, 2, 4, 8)))

    def _shown(self, steps: list[ModelStep]) -> tuple[str, ...] | None:
        if self.rng.random() < 0.5:
            return None
        return tuple(step.id for step in steps if self.rng.random() < 0.5) or (steps[0].id,)

    def _steps(self, count: int, depth: int, names: dict[str, Any]) -> list[ModelStep]:
        steps: list[ModelStep] = []
        for number in range(count):
            steps.append(self._step(f"s{number}", [step.id for step in steps], depth, names))
        if self.rng.random() < 0.3:
            self.rng.shuffle(steps)  # who is depended on may be declared later
        return steps

    def _step(self, name: str, before: list[str], depth: int, names: dict[str, Any]) -> ModelStep:
        rng = self.rng
        kinds = ["agent"] * 6 + ["approval"]
        if not self._mostly_agents:
            kinds = ["agent", *kinds, "ask", "set", "set", "wait", "function", "function", "function"]
        kinds += ["group"] * 2 if depth < 2 else []
        kinds += ["workflow"] if depth == 0 and self.recipes else []
        step = ModelStep(name, rng.choice(kinds))
        needs = {one for one in before if rng.random() < 0.3}
        step.policy = rng.choice(("skip", "skip", "skip", "inline", "stop" if self._stopping else "inline"))
        if step.kind == "agent":
            step.attempts, step.backoff_ms = rng.randint(1, 3), rng.choice((1, 1, 1, 40))
            step.retried = tuple(rng.sample(("transport", "rate_limit", "agent"), rng.randint(1, 3)))
            step.places = tuple(one for one in before if rng.random() < 0.2)
            needs |= set(step.places)
        elif step.kind == "approval":
            step.choices = rng.choice(((), ("ship", "reject")))
            step.default = rng.choice((None, *(step.choices or ("approve", "reject"))))
        elif step.kind == "ask":
            step.choices = rng.choice(((), ("this", "that")))
            step.default = rng.choice((None, *(step.choices or ("anything",))))
        elif step.kind == "set":
            step.value = self._value(before)
            needs |= set(step.value.refers)
        elif step.kind == "wait":
            pass
        elif step.kind == "function":
            given = {f"x{n}": draw(rng, before, names) for n in range(rng.randint(1, 3))}
            step.given, step.named = given, rng.choice((None, None, tuple(given), ("x0", "y")))
            needs |= {one for expression in given.values() for one in expression.refers}
        elif step.kind == "group":
            step.inner = self._steps(rng.randint(1, 3), depth + 1, names)
            step.output = self._shown(step.inner) if rng.random() < 0.4 else None
        else:
            step.recipe = rng.choice(list(self.recipes))
            step.given = {"x": Expression("inputs.flag", lambda seen: seen["inputs"]["flag"])}
        if rng.random() < 0.2:
            step.when = self._condition(before, names)
            needs |= set(step.when.refers)
        if rng.random() < 0.15:
            step.items = self._items(names)
        if rng.random() < 0.2 and step.kind in ("agent", "group"):
            step.loop = Loop(self._until(step), rng.choice((1, 2, 3, 6)), rng.random() < 0.3)
        step.needs = tuple(one for one in before if one in needs)
        return step

    def _value(self, before: list[str]) -> Expression:
        """A number, or how an earlier step ended."""
        rng = self.rng
        number = rng.randint(0, 9)
        options = [Expression(f"{number} + 1", lambda _: number + 1)]
        if before:
            other = rng.choice(before)
            options.append(
                Expression(f"steps.{other}.status", lambda seen: seen["steps"][other].status, (other,))
            )
        return rng.choice(options)

    def _condition(self, before: list[str], names: dict[str, Any]) -> Expression:
        options = [Expression("true", lambda _: True), Expression("1 > 2", lambda _: False)]
        if "flag" in names:
            options.append(Expression("inputs.flag", lambda seen: seen["inputs"]["flag"]))
        if before:
            other, word = self.rng.choice(before), self.rng.choice(("completed", "failed", "skipped"))

            def has(seen: Names) -> bool:
                return bool(seen["steps"][other].status == word)

            options += [Expression(f"steps.{other}.status == '{word}'", has, (other,))] * 2
        return self.rng.choice(options)

    def _items(self, names: dict[str, Any]) -> Expression:
        if "many" in names and self.rng.random() < 0.7:
            return Expression("inputs.many", lambda seen: seen["inputs"]["many"])
        count = self.rng.randint(0, 3)
        return Expression(str(list(range(count))), lambda _: list(range(count)))

    def _until(self, step: ModelStep) -> Expression:
        rng = self.rng
        at = rng.randint(1, 4)
        options = [Expression(f"iteration >= {at}", lambda seen: seen["iteration"] >= at)]
        if step.kind == "agent":
            options.append(Expression("output == 'good'", lambda seen: seen["output"] == "good"))
        else:
            inner = rng.choice(step.inner).id

            def completed(seen: Names) -> bool:
                return bool(seen["steps"][inner].status == "completed")

            options.append(Expression(f"steps.{inner}.status == 'completed'", completed, (inner,)))
        return rng.choice(options)

    def _writer(self, name: str, folder: str) -> ModelStep:
        """It may write into one folder, whatever that is called, and tries to."""
        outside = self.rng.random() < 0.4
        target = "other" if outside else folder
        said: dict[str, Any] = {"output": "done", "writes": {f"w/{target}/f.txt": "x"}}
        if outside:  # the interpreter only has to know that this fails
            said = {**said, "fail": {"class": "violation"}}
        self.outcomes.writes[name] = said
        return ModelStep(name, "writer", folder="folder", attempts=1)

    def _phased(self) -> ModelRecipe:
        rng = self.rng
        phases: list[ModelStep] = []
        for number in range(rng.randint(2, 5)):
            name = f"p{number}"
            needs = tuple(one.id for one in phases if rng.random() < 0.5)
            tasks = [
                ModelStep(f"t{n}", "agent", policy=rng.choice(("skip", "inline")))
                for n in range(rng.randint(1, 2))
            ]
            phases.append(ModelStep(name, "phase", needs, inner=tasks))
            if rng.random() < 0.15:
                phases[-1].when = Expression("1 > 2", lambda _: False)
        rng.shuffle(phases)
        return ModelRecipe(ROOT, phases, tuple(phase.id for phase in phases), {}, phased=True)
