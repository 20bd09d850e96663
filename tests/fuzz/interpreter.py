"""A second, slow and obvious reading of the recipe language, to hold runs against.

Written from the description of the language alone, and sharing nothing with the compiler, the kernel or the
host: a recipe is walked step by step in the order of its edges, and every step has one result. There is no
time, no concurrency and no log here, which is the point: whatever order a run took, and however often it was
killed, it has to come to this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.model import ModelRecipe, ModelStep, Names, Unresolved

Outcome = Callable[[str, int], dict[str, Any]]
"""What the agent at a tree path does in an attempt: `{"output": …}`, or `{"fail": {"class": …}}`."""
LOST = ("failed", "timed_out")
ROUND_FAILURES = ("agent", "tool", "timeout", "invalid_output")
DIGEST_CHARS = 1_800


class Said:
    """Text or data that tells of a failure: only that it does is foretold."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __repr__(self) -> str:
        return f"<says {self.word!r}>"


@dataclass
class StepEnd:
    """How one instance of a step ended."""

    status: str
    output: Any = None
    kind: str = ""
    """The class of its failure."""
    reason: str = ""
    policy: str = "skip"
    kept: bool = False
    """A loop that never converged keeps what its last round put out, and null is an output too."""
    tolerated: bool = False
    inner: dict[str, StepEnd] = field(default_factory=dict)

    @property
    def lost(self) -> bool:
        return self.status in LOST or (self.status == "skipped" and self.reason == "failure")

    @property
    def reaches(self) -> bool:
        """Whether those who depend on it are skipped."""
        return self.lost and not (self.policy == "inline" and self.status != "skipped")

    def seen(self) -> Any:
        """What others see as its output: what it left, or words about its failure."""
        told = self.status in LOST and self.policy == "inline" and self.output is None and not self.kept
        return Said(self.status) if told else self.output


@dataclass
class Foretold:
    """What a run tree comes to."""

    status: str
    output: Any
    ends: dict[str, StepEnd]
    """By tree path."""
    digests: dict[str, str]
    """What tasks of phases are told of earlier ones, by tree path, where that is known to the letter."""
    stopped: tuple[str, ...]
    """Prefixes of the runs in which a `stop` fires: how far the rest of them got is a matter of time."""


class Interpreter:
    def __init__(self, recipes: dict[str, ModelRecipe], outcome: Outcome) -> None:
        self.recipes = recipes
        self.outcome = outcome
        self.ends: dict[str, StepEnd] = {}
        self.digests: dict[str, str] = {}
        self.stopped: list[str] = []

    def foretell(self, name: str) -> Foretold:
        status, output = RunReading(self, self.recipes[name], "").read(self.recipes[name].inputs)
        return Foretold(status, output, self.ends, self.digests, tuple(self.stopped))


class RunReading:
    """One run: the root, or a child."""

    def __init__(self, whole: Interpreter, recipe: ModelRecipe, prefix: str) -> None:
        self._whole = whole
        self._recipe = recipe
        self._prefix = prefix
        self._own: dict[str, StepEnd] = {}
        self._stops = False
        self._ended = ""

    def read(self, inputs: dict[str, Any]) -> tuple[str, Any]:
        recipe = self._recipe
        ends = self._scope(recipe.steps, self._prefix, {"inputs": inputs, "steps": {}})
        self._tolerate_read(recipe.steps, self._prefix, ends, recipe.output or ())
        self._whole.ends.update(self._own)
        if self._stops:
            self._whole.stopped.append(self._prefix)
            return "failed", None
        lost = [end for end in self._own.values() if end.lost]
        done = any(end.status == "completed" for end in self._own.values())
        status = "completed"
        if lost and not (done and all(end.tolerated for end in lost)):
            status = "partial" if done else "failed"
        status = self._ended or status
        if recipe.output is not None:
            whole = {name: ends[name].seen() for name in recipe.output}
            holes = any(ends[name].lost and value is None for name, value in whole.items())
            return status, None if holes else whole
        return status, ends[recipe.steps[-1].id].seen()

    # Scopes

    def _scope(self, steps: list[ModelStep], prefix: str, names: Names) -> dict[str, StepEnd]:
        ends: dict[str, StepEnd] = {}
        for step in _in_order(steps):
            seen = {**names, "steps": {**names["steps"], **ends}}
            ends[step.id] = self._declared(step, f"{prefix}{step.id}", seen)
        return ends

    def _tolerate_read(
        self, steps: list[ModelStep], prefix: str, ends: dict[str, StepEnd], shown: tuple[str, ...]
    ) -> None:
        """Inline failures that a completed step refers to, or what is around shows."""
        for step in steps:
            read = step.id in shown or any(
                ends[other.id].status == "completed" and step.id in other.told() for other in steps
            )
            if step.policy == "inline" and read:
                self._tolerate(f"{prefix}{step.id}", ends[step.id].status in LOST)

    def _tolerate(self, path: str, fully: bool = True) -> None:
        """Fully: with all that is inside it. Else only what its items lost, which stands in its list."""
        below = (f"{path}/", f"{path}[", f"{path}#") if fully else (f"{path}[",)
        for other, end in self._own.items():
            inside = other.startswith(below) and (fully or self._is_in_lost_item(other, path))
            if inside or (fully and other == path):
                end.tolerated = True

    def _is_in_lost_item(self, path: str, of: str) -> bool:
        item = path[: path.index("]", len(of)) + 1]
        return self._own[item].status in LOST

    # Steps

    def _note(self, path: str, end: StepEnd, step: ModelStep) -> StepEnd:
        end.policy = step.policy
        self._own[path] = end
        if step.policy == "stop" and end.status in LOST:
            self._stops = True
        return end

    def _declared(self, step: ModelStep, path: str, names: Names) -> StepEnd:
        if any(names["steps"][name].reaches for name in step.needs):
            cause = next(names["steps"][name] for name in step.needs if names["steps"][name].reaches)
            return self._note(path, StepEnd("skipped", kind=cause.kind, reason="failure"), step)
        if step.items is None:
            return self._note(path, self._item(step, path, names), step)
        try:
            items = step.items.means(names)
        except Unresolved:
            return self._note(path, StepEnd("failed", kind="agent"), step)
        ends = []
        for index, item in enumerate(items):
            inner = {**names, "item": item, "index": index}
            ends.append(self._note(f"{path}[{index}]", self._item(step, f"{path}[{index}]", inner), step))
        lost = next((end for end in ends if end.lost), None)
        if lost is not None and step.policy != "inline":
            return self._note(path, StepEnd("failed", kind=lost.kind), step)
        output = [Said("error") if end.lost else end.output for end in ends]
        return self._note(path, StepEnd("completed", output), step)

    def _item(self, step: ModelStep, path: str, names: Names) -> StepEnd:
        try:
            if step.when is not None and not step.when.means(names):
                return StepEnd("skipped", reason="condition")
        except Unresolved:
            return StepEnd("failed", kind="agent")
        if step.kind == "phase":
            return self._phase(step, path, names)
        return self._loop(step, path, names) if step.loop is not None else self._body(step, path, names)

    def _loop(self, step: ModelStep, path: str, names: Names) -> StepEnd:
        assert step.loop is not None
        end = StepEnd("failed")
        for iteration in range(1, step.loop.most + 1):
            inner = {**names, "iteration": iteration}
            end = self._note(f"{path}#{iteration}", self._body(step, f"{path}#{iteration}", inner), step)
            if end.lost:
                if end.kind not in ROUND_FAILURES or step.policy == "stop":
                    return StepEnd("failed", kind=end.kind)
            elif step.loop.until.means({**inner, "output": end.output, "steps": end.inner}):
                for earlier in range(1, iteration):
                    self._tolerate(f"{path}#{earlier}")
                return StepEnd("completed", end.output)
        if step.loop.goes_on:
            for earlier in range(1, step.loop.most + 1):
                self._tolerate(f"{path}#{earlier}")
            return StepEnd("completed", end.output)
        return StepEnd("failed", end.output, kind="agent", kept=not end.lost)

    def _phase(self, step: ModelStep, path: str, names: Names) -> StepEnd:
        digest = self._digest(step, names)
        ends = self._scope(step.inner, f"{path}#1/", names)
        for task in step.inner:
            if digest is not None and ends[task.id].status == "completed":
                self._whole.digests[f"{path}#1/{task.id}"] = digest
        first = next((ends[task.id] for task in step.inner if ends[task.id].reaches), None)
        everything = tuple(task.id for task in step.inner)
        self._tolerate_read(step.inner, f"{path}#1/", ends, () if first is not None else everything)
        if first is not None:
            self._note(f"{path}#1", StepEnd("failed", kind=first.kind), step)
            return StepEnd("failed", kind=first.kind)
        tasks = {task.id: ends[task.id].seen() for task in step.inner}
        self._note(f"{path}#1", StepEnd("completed", {"tasks": tasks}), step)
        fold = self._attempts(f"{path}/fold", 2, ("transport", "rate_limit"))
        summary = fold.get("output", Said("Extract"))
        self._note(f"{path}/fold", StepEnd("completed", summary), ModelStep("fold", "agent"))
        return StepEnd("completed", {"tasks": tasks, "summary": summary})

    def _digest(self, step: ModelStep, names: Names) -> str | None:
        """What the phase is told of all it depends on; None where that is not known to the letter."""
        phases = {one.id: one for one in self._recipe.steps}
        ranks: dict[str, int] = {}

        def rank(name: str) -> int:
            ranks[name] = 1 + max((rank(other) for other in phases[name].needs), default=0)
            return ranks[name]

        rank(step.id)
        before = [(place, name) for name, place in ranks.items() if name != step.id]
        ends = [(name, names["steps"][name]) for _, name in sorted(before)]
        told = [(name, end.output["summary"]) for name, end in ends if end.status == "completed"]
        if any(isinstance(summary, Said) for _, summary in told) or any(end.lost for _, end in ends):
            return None
        return "\n".join(f"{name}: {summary}" for name, summary in told)

    def _body(self, step: ModelStep, path: str, names: Names) -> StepEnd:
        if step.kind == "group":
            return self._group(step, path, names)
        if step.kind == "approval":
            return _answered(step)
        if step.kind == "ask":
            return (
                StepEnd("timed_out", kind="timeout")
                if step.default is None
                else StepEnd("completed", step.default)
            )
        if step.kind == "set":
            assert step.value is not None
            return StepEnd("completed", {"v": step.value.means(names)})
        if step.kind == "function":
            return _echoed(step, names)
        if step.kind == "wait":
            return StepEnd("completed")
        if step.kind == "end":
            self._ended = step.word
            return StepEnd("completed", "over")
        if step.kind == "workflow":
            inputs = {name: given.means(names) for name, given in step.given.items()}
            called = RunReading(self._whole, self._whole.recipes[step.recipe], f"{path}/")
            status, output = called.read(inputs)
            return StepEnd("completed", output) if status == "completed" else StepEnd("failed", kind="agent")
        last = self._attempts(path, step.attempts, step.retried)
        if "fail" in last:
            return StepEnd("failed", kind=last["fail"]["class"])
        return StepEnd("completed", last["output"])

    def _group(self, step: ModelStep, path: str, names: Names) -> StepEnd:
        looked_at = (*(step.output or ()), *(step.loop.until.refers if step.loop is not None else ()))
        ends = self._scope(step.inner, f"{path}/", names)
        first = next((ends[one.id] for one in step.inner if ends[one.id].reaches), None)
        self._tolerate_read(step.inner, f"{path}/", ends, () if first is not None else looked_at)
        if first is not None:
            return StepEnd("failed", kind=first.kind, inner=ends)
        if step.output is not None:
            return StepEnd("completed", {name: ends[name].seen() for name in step.output}, inner=ends)
        return StepEnd("completed", ends[step.inner[-1].id].seen(), inner=ends)

    def _attempts(self, path: str, attempts: int, retried: tuple[str, ...]) -> dict[str, Any]:
        last: dict[str, Any] = {}
        for attempt in range(1, attempts + 1):
            last = self._whole.outcome(path, attempt)
            if "fail" not in last or last["fail"]["class"] not in retried:
                break
        return last


def _echoed(step: ModelStep, names: Names) -> StepEnd:
    """A function that gives back what it is given, and spoils it afterwards."""
    try:
        output = {name: one.means(names) for name, one in step.given.items()}
    except Unresolved:
        return StepEnd("failed", kind="agent")
    if step.named is not None and sorted(step.named) != sorted(output):
        return StepEnd("failed", kind="invalid_output")
    return StepEnd("completed", output)


def _answered(step: ModelStep) -> StepEnd:
    """Nobody answers in time: the default does, like a person."""
    if step.default is None:
        return StepEnd("timed_out", kind="timeout")
    if step.default == "reject" and not step.choices:
        return StepEnd("failed", _decision("reject"), "permission")
    return StepEnd("completed", _decision(step.default))


def _decision(word: str) -> dict[str, Any]:
    return {"decision": word, "by": "default", "comment": None, "edited": None}


def _in_order(steps: list[ModelStep]) -> Iterator[ModelStep]:
    """Who is depended on comes first."""
    by_id, done = {step.id: step for step in steps}, set[str]()

    def visit(step: ModelStep) -> Iterator[ModelStep]:
        if step.id not in done:
            done.add(step.id)
            for name in step.needs:
                if name in by_id:
                    yield from visit(by_id[name])
            yield step

    for step in steps:
        yield from visit(step)
