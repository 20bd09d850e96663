"""Recipes as the fuzzer thinks of them: data that can be written as a recipe, and read by `interpreter`.

An expression has both its words in the recipe language and its meaning as a function of what it may see, so
that the interpreter needs nobody to evaluate it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Names = Mapping[str, Any]
"""`inputs`, `steps` (results by id), and where there are such: item, index, iteration, output."""


class Unresolved(Exception):
    """A path leads nowhere, or an expression cannot be evaluated."""


@dataclass(frozen=True)
class Expression:
    words: Any
    """Text, but for an input of a function that is given as data."""
    means: Callable[[Names], Any]
    """What it comes to; raises `Unresolved` where it comes to nothing."""
    refers: tuple[str, ...] = ()
    """The steps of its scope that it looks at."""


@dataclass
class Loop:
    until: Expression
    most: int
    goes_on: bool = False
    """`on_exhausted: continue`."""


@dataclass
class ModelStep:
    id: str
    kind: str
    """agent, writer, function, approval, ask, set, wait, end, group, workflow, phase."""
    needs: tuple[str, ...] = ()
    """Edges, written or implied."""
    policy: str = "skip"
    places: tuple[str, ...] = ()
    """Steps whose output its prompt places."""
    when: Expression | None = None
    items: Expression | None = None
    loop: Loop | None = None
    attempts: int = 2
    backoff_ms: int = 1
    retried: tuple[str, ...] = ("transport", "rate_limit")
    choices: tuple[str, ...] = ()
    default: str | None = None
    inner: list[ModelStep] = field(default_factory=list)
    output: tuple[str, ...] | None = None
    """Of a group: the steps that its `output` shows; None for the last one's output."""
    recipe: str = ""
    given: dict[str, Expression] = field(default_factory=dict)
    """Of a workflow: its inputs, by paths. Of a function: its inputs, as they are written."""
    named: tuple[str, ...] | None = None
    """Of a function: the names that its output must have, and no others."""
    value: Expression | None = None
    """Of a `set`: what it works out."""
    word: str = ""
    """Of an `end`: how the run ends."""
    folder: str = ""
    """Of a writer: the input that names the folder it may write into."""

    def told(self) -> tuple[str, ...]:
        """The steps of its scope that it is told something of."""
        seen = list(self.places)
        for expression in (self.when, self.items, self.value, *self.given.values()):
            seen += expression.refers if expression is not None else ()
        if self.kind in ("agent", "writer"):
            seen += self.needs  # an agent is given a summary of what it depends on
        return tuple(seen)

    def written(self) -> dict[str, Any]:
        """The step as a recipe says it."""
        text: dict[str, Any] = {"id": self.id}
        if self.kind == "phase":
            text |= {"depends_on": list(self.needs), "tasks": [step.written() for step in self.inner]}
            if self.when is not None:
                text["when"] = self.when.words
            return text
        text |= {"on_failure": self.policy} | ({"depends_on": list(self.needs)} if self.needs else {})
        if self.when is not None:
            text["when"] = self.when.words
        if self.items is not None:
            text["for_each"] = self.items.words
        if self.loop is not None:
            text["repeat"] = {"until": self.loop.until.words, "max_iterations": self.loop.most}
            if self.loop.goes_on:
                text["repeat"]["on_exhausted"] = "continue"
        own: dict[str, Any] = getattr(self, f"_{self.kind}")()
        return text | own

    def _agent(self) -> dict[str, Any]:
        retry = {"attempts": self.attempts, "backoff": f"{self.backoff_ms}ms", "on": list(self.retried)}
        prompt = "".join(["p", *(f" {{{{steps.{name}.output}}}}" for name in self.places)])
        return {"agent": "explorer", "prompt": prompt, "retry": retry}

    def _writer(self) -> dict[str, Any]:
        return {"agent": "worker", "prompt": "p", "write_set": [f"w/{{{{inputs.{self.folder}}}}}/*"]}

    def _function(self) -> dict[str, Any]:
        text: dict[str, Any] = {
            "handler": "fuzz-echo",
            "inputs": {name: one.words for name, one in self.given.items()},
        }
        return text | ({"outputs": list(self.named)} if self.named is not None else {})

    def _approval(self) -> dict[str, Any]:
        text: dict[str, Any] = {"approve": "Go?", "timeout": "1ms"}
        if self.choices:
            text["choices"] = list(self.choices)
        return text | ({"default": self.default} if self.default is not None else {})

    def _ask(self) -> dict[str, Any]:
        text: dict[str, Any] = {"ask": "Which?", "timeout": "1ms"}
        if self.choices:
            text["choices"] = list(self.choices)
        return text | ({"default": self.default} if self.default is not None else {})

    def _set(self) -> dict[str, Any]:
        assert self.value is not None
        return {"set": {"v": self.value.words}}

    def _wait(self) -> dict[str, Any]:
        return {"wait": "1ms"}

    def _end(self) -> dict[str, Any]:
        return {"end": self.word, "message": "over"}

    def _group(self) -> dict[str, Any]:
        text: dict[str, Any] = {"steps": [step.written() for step in self.inner]}
        if self.output is not None:
            text["output"] = shown(self.output)
        return text

    def _workflow(self) -> dict[str, Any]:
        inputs = {name: f"{{{{{one.words}}}}}" for name, one in self.given.items()}
        return {"workflow": f"./{self.recipe}.yaml", "inputs": inputs}


@dataclass
class ModelRecipe:
    name: str
    steps: list[ModelStep]
    output: tuple[str, ...] | None
    inputs: dict[str, Any]
    """The inputs it declares, with the values that its run, or every caller, gives."""
    phased: bool = False
    slots: int = 4

    def written(self) -> dict[str, Any]:
        text: dict[str, Any] = {
            "name": self.name,
            "inputs": [{"name": name} for name in self.inputs],
            "limits": {"max_concurrency": self.slots, "max_agents": 400},
            "phases" if self.phased else "steps": [step.written() for step in self.steps],
        }
        return text | ({"output": shown(self.output)} if self.output is not None else {})


def shown(names: tuple[str, ...]) -> dict[str, str]:
    return {name: f"steps.{name}.output" for name in names}
