"""What can be known before a run: inputs, what follows from them by expressions, who is surely left out.

Names are those of a run (`records.values`), as far as they have a value; the others are simply not there.
What an expression comes to without them is certain: CEL lets `false && …` be false whatever stands behind it.
Where it cannot be evaluated, `is_certain` tells a mistake of its own from the want of a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from fanfold.kernel.lifecycle import COMPLETED, SKIPPED
from fanfold.kernel.nodes import MAP, SCOPE, Composite, Loop, Node, Scope
from fanfold.kernel.plan import JSON, Constant, Ref, Value
from fanfold.kernel.sets.globs import escape
from fanfold.recipe.expressions.usage import Use, free_uses, read
from fanfold.runtime.forecast.host import ROOT
from fanfold.text.template import Hole, UnresolvedPath, parse_path, parse_template, render

_UNKNOWN = object()
_LEFT_OUT: dict[str, JSON] = {"output": None, "status": SKIPPED, "error": None}


class Known:
    """The values that are known, by run and by map."""

    def __init__(self, inputs: Mapping[str, JSON]) -> None:
        self.inputs: dict[str, dict[str, JSON]] = {ROOT: dict(inputs)}
        self.items: dict[tuple[str, str], list[JSON]] = {}
        """Of maps whose list is known."""
        self.outputs: dict[tuple[str, str], JSON] = {}
        """Of steps that work with nothing but what is known."""

    def at(self, node: Node) -> dict[str, JSON]:
        """The names that a step's templates and expressions may use."""
        return {**self._around(node), "steps": KnownSteps(self.outputs, list(_visible(node)))}

    def gate(self, loop: Loop) -> dict[str, JSON]:
        """What `until` sees after an iteration; its `output` is never known."""
        names = self.at(loop)
        body = loop.children[loop.iteration - 1]
        if isinstance(body, Scope):
            ids = tuple(child.step.id for child in body.children)
            names["steps"] = KnownSteps(self.outputs, [(body, ids), *_visible(loop)])
        names["iteration"] = loop.iteration
        return names

    def _around(self, node: Node) -> dict[str, JSON]:
        names: dict[str, JSON] = {"inputs": self.inputs[node.run.id]}
        child, parent = node, node.parent
        while parent is not None and parent.run is node.run:
            if parent.kind == MAP and parent.step.item_name not in names:
                items = self.items.get((parent.run.id, parent.path))
                index = child.order[-1]
                names[parent.step.item_name] = _UNKNOWN if items is None else items[index]
                names.setdefault("index", _UNKNOWN if items is None else index)
            elif isinstance(parent, Loop) and "iteration" not in names:
                is_fold = child.step is parent.step.fold
                names["iteration"] = parent.iteration if is_fold else child.order[-1]
            child, parent = parent, parent.parent
        return {name: value for name, value in names.items() if value is not _UNKNOWN}


class KnownSteps(Mapping[str, JSON]):
    """`steps`, of which only those have a value that a condition left out (null) or that is known already."""

    def __init__(
        self,
        outputs: Mapping[tuple[str, str], JSON],
        places: list[tuple[Composite, tuple[str, ...]]],
    ) -> None:
        self._outputs = outputs
        self._places = places

    def __getitem__(self, name: str) -> JSON:
        for scope, allowed in self._places:
            if name in allowed:
                node = scope.run.nodes[f"{scope.path}/{name}" if scope.path else name]
                if node.status == SKIPPED and node.reason == "condition":
                    return _LEFT_OUT
                if (node.run.id, node.path) in self._outputs:
                    output = self._outputs[node.run.id, node.path]
                    return {"output": output, "status": COMPLETED, "error": None}
                break
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        names = dict.fromkeys(name for _, allowed in self._places for name in allowed)
        return (name for name in names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _visible(node: Node) -> Iterator[tuple[Composite, tuple[str, ...]]]:
    """The scopes around a node within its run, each with the ids that edges make visible."""
    current, parent = node, node.parent
    while parent is not None and parent.run is node.run:
        if parent.kind == SCOPE:
            yield parent, current.step.depends_on
        current, parent = parent, parent.parent


# Whether everything that a text refers to has a value


def is_certain(expression: str, names: Mapping[str, JSON]) -> bool:
    """Whether an expression that fails would fail in the run too: nothing it refers to is missing."""
    return all(_has(use.name, use.parts, names) for use in _uses(expression))


@lru_cache(maxsize=1_024)
def _uses(expression: str) -> tuple[Use, ...]:
    return tuple(free_uses(read(expression)))


def is_known(value: Value | str, names: Mapping[str, JSON]) -> bool:
    """Whether all that a value of a step, or a template, refers to is known."""
    if isinstance(value, Constant):
        return True
    if isinstance(value, Ref):
        paths = [parse_path(value.path)]
    else:
        parts = parse_template(value if isinstance(value, str) else value.text)
        paths = [part.path for part in parts if isinstance(part, Hole)]
    return all(_has(path.root, path.parts, names) for path in paths)


def _has(root: str, parts: tuple[str | int, ...], names: Mapping[str, JSON]) -> bool:
    if root not in names:
        return False
    if root not in ("inputs", "steps"):
        return True
    word, held = str(parts[0]) if parts else "", names[root]
    return word in held or any(name.replace("-", "_") == word for name in held)


def widest(pattern: str, names: Mapping[str, JSON]) -> str:
    """A pattern of a path set with its holes filled; what is not known yet may be any name, or any path."""
    parts = parse_template(pattern)
    filled: list[str] = []
    for place, part in enumerate(parts):
        if isinstance(part, str):
            filled.append(part)
            continue
        try:
            filled.append(escape(render((part,), names)))
        except UnresolvedPath:
            before, after = parts[place - 1] if place else "/", parts[place + 1 : place + 2]
            alone = isinstance(before, str) and before.endswith("/")
            if after:
                alone = alone and isinstance(after[0], str) and after[0].startswith("/")
            filled.append("**" if alone else "*")
    return "".join(filled)
