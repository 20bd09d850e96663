"""Expansion: the instances a run of a plan would create, as far as they can be known beforehand.

What is unknown before a run is said, not guessed: a `for_each` over a list that another step makes has
one representative `id[*]`; a `when` that needs a result counts as possibly false; a loop shows its first
iteration. `agents_min` and `agents_max` bound the sessions over all of these and over retries.

Nodes are steps that start (agents, functions, commands, approvals) and invisible joints where a group,
map, loop or child run begins and ends. Joints carry edges across nesting, take no time and hold nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fanfold.kernel.paths import GlobError, check_glob
from fanfold.kernel.plan import (
    EVERYTHING,
    JSON,
    Constant,
    GroupAction,
    Plan,
    Ref,
    Step,
    Template,
    Value,
    WorkflowAction,
)
from fanfold.recipe.expressions.evaluate import ExpressionError, evaluate
from fanfold.text.template import (
    Hole,
    TemplateError,
    UnresolvedPath,
    parse_path,
    parse_template,
    render,
    resolve,
)

MAX_INSTANCES = 5_000

_UNKNOWN = object()
_NEEDS_RESULTS = re.compile(r"\b(?:steps|output|feedback|digest)\b")


class Instance:
    """One node: a step at an address, or a joint (`step` is None)."""

    __slots__ = ("caps", "needs", "path", "read_set", "step", "write_set")

    def __init__(self, path: str, step: Step | None, caps: tuple[int, ...]) -> None:
        self.path = path
        self.step = step
        self.needs: list[int] = []
        self.caps = caps
        """Scopes with a concurrency of their own; indices into `Expansion.caps`."""
        self.write_set: tuple[str, ...] = ()
        self.read_set: tuple[str, ...] = ()


class _Span(NamedTuple):
    """Where a step begins and ends in the node list, and how many agents it may take."""

    start: int
    end: int
    low: int
    high: int


class Expansion:
    """The nodes of a plan in plan order."""

    def __init__(self, plan: Plan, inputs: Mapping[str, JSON]) -> None:
        self.nodes: list[Instance] = []
        self.caps: list[int] = []
        self.warnings: list[str] = []
        self.complete = True
        """False when the run would have more instances than are looked at."""
        self._root = plan
        root = self._joint("", ())
        span = self._scope(plan.steps, "", {"inputs": dict(inputs)}, root, ())
        self.agents_min, self.agents_max = span.low, span.high

    def _joint(self, path: str, caps: tuple[int, ...]) -> int:
        self.nodes.append(Instance(path, None, caps))
        return len(self.nodes) - 1

    def _warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)

    def _scope(
        self, steps: tuple[Step, ...], prefix: str, known: dict[str, JSON], start: int, caps: tuple[int, ...]
    ) -> _Span:
        spans = {step.id: self._step(step, prefix, known, caps) for step in steps}
        for step in steps:
            # Edges last: a step may depend on one that is declared after it.
            needs = self.nodes[spans[step.id].start].needs
            needs.append(start)
            needs += [spans[before].end for before in step.depends_on]
        end = self._joint(prefix, caps)
        self.nodes[end].needs = [start, *(span.end for span in spans.values())]
        return _Span(start, end, sum(s.low for s in spans.values()), sum(s.high for s in spans.values()))

    def _step(self, step: Step, prefix: str, known: dict[str, JSON], caps: tuple[int, ...]) -> _Span:
        path = f"{prefix}{step.id}"
        if step.for_each is None:
            return self._conditional(step, path, known, caps)
        items = self._items(step, path, known)
        start = self._joint(path, caps)
        spans: list[_Span] = []
        if items is None:
            one = self._conditional(
                step, f"{path}[*]", {**known, step.item_name: _UNKNOWN, "index": _UNKNOWN}, caps
            )
            spans.append(one._replace(low=0, high=one.high * step.max_items))
        for index, item in enumerate(items or ()):
            if len(self.nodes) >= MAX_INSTANCES:
                self.complete = False
                left = len(items or ()) - index
                spans.append(_Span(start, start, spans[-1].low * left, spans[-1].high * left))
                break
            within = {**known, step.item_name: item, "index": index}
            spans.append(self._conditional(step, f"{path}[{index}]", within, caps))
        end = self._joint(path, caps)
        for span in spans:
            self.nodes[span.start].needs.append(start) if span.start != start else None
        self.nodes[end].needs = [start, *(span.end for span in spans)]
        return _Span(start, end, sum(s.low for s in spans), sum(s.high for s in spans))

    def _items(self, step: Step, path: str, known: dict[str, JSON]) -> list[JSON] | None:
        assert step.for_each is not None
        items = _value_of(step.for_each, known)
        if items is _UNKNOWN:
            self._warn(
                f'"{path}" runs once per item of a list that is known only during the run; shown as {path}[*]'
            )
            return None
        if not isinstance(items, list):
            self._warn(f'"{path}" would fail: its for_each does not give a list')
            return []
        if len(items) > step.max_items:
            self._warn(f'"{path}" would fail: {len(items)} items, but max_items is {step.max_items}')
        return items

    def _conditional(self, step: Step, path: str, known: dict[str, JSON], caps: tuple[int, ...]) -> _Span:
        holds = True if step.when is None else _value_of(step.when, known)
        if holds is False:
            joint = self._joint(path, caps)
            return _Span(joint, joint, 0, 0)
        span = self._repeated(step, path, known, caps)
        return span._replace(low=0) if holds is _UNKNOWN else span

    def _repeated(self, step: Step, path: str, known: dict[str, JSON], caps: tuple[int, ...]) -> _Span:
        inner = path
        if step.repeat is not None:
            inner, known = f"{path}#1", {**known, "iteration": 1}
        span = self._body(step, inner, known, caps)
        times = 1 if step.repeat is None else step.repeat.max_iterations
        span = span._replace(high=span.high * times)
        if step.fold is None:
            return span
        fold = self._step(step.fold, f"{path}/", known, caps)
        self.nodes[fold.start].needs.append(span.end)
        return _Span(span.start, fold.end, span.low + fold.low, span.high + fold.high)

    def _body(self, step: Step, path: str, known: dict[str, JSON], caps: tuple[int, ...]) -> _Span:
        action = step.action
        if isinstance(action, GroupAction):
            if action.max_concurrency is not None:
                self.caps.append(action.max_concurrency)
                caps = (*caps, len(self.caps) - 1)
            return self._scope(action.steps, f"{path}/", known, self._joint(path, caps), caps)
        if isinstance(action, WorkflowAction):
            child = self._root.workflows[action.workflow]
            inputs = {"inputs": dict(_child_inputs(child, step, known))}
            return self._scope(child.steps, f"{path}/", inputs, self._joint(path, caps), caps)
        node = Instance(path, step, caps)
        node.read_set = self._set(step, step.read_set, path, known)
        if step.posture == "writer":
            node.write_set = self._set(step, step.write_set or EVERYTHING, path, known)
        self.nodes.append(node)
        agent = step.traits.role is not None
        low = 1 if agent and not step.cache else 0
        return _Span(len(self.nodes) - 1, len(self.nodes) - 1, low, step.retry.attempts if agent else 0)

    def _set(self, step: Step, globs: tuple[str, ...], path: str, known: dict[str, JSON]) -> tuple[str, ...]:
        if not step.templated_sets:
            return globs
        found = tuple(_rendered_glob(glob, known) for glob in globs)
        for glob in found:
            try:
                check_glob(glob)
            except GlobError as error:
                self._warn(f'"{path}" would fail: "{glob}" cannot be a path set: {error}')
                return EVERYTHING
        return found


def _value_of(expression: str, known: Mapping[str, JSON]) -> object:
    """The value of an expression that needs nothing but what is known, else `_UNKNOWN`."""
    if _NEEDS_RESULTS.search(expression):
        return _UNKNOWN
    try:
        return evaluate(expression, {name: value for name, value in known.items() if value is not _UNKNOWN})
    except ExpressionError:
        return _UNKNOWN


def _child_inputs(child: Plan, step: Step, known: Mapping[str, JSON]) -> Iterator[tuple[str, JSON]]:
    """The inputs of a child run that are known; the others are left out, so nothing can rely on them."""
    for declared in child.inputs:
        given = step.inputs.get(declared.name)
        value = declared.default if given is None else _known_value(given, known)
        if value is not _UNKNOWN:
            yield declared.name, value


def _known_value(value: Value, known: Mapping[str, JSON]) -> object:
    try:
        match value:
            case Constant(value=literal):
                return literal
            case Ref(path=path):
                return resolve(parse_path(path), _only_known(known))
            case Template(text=text):
                return render(parse_template(text), _only_known(known))
    except (TemplateError, UnresolvedPath):
        return _UNKNOWN


def _only_known(known: Mapping[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in known.items() if value is not _UNKNOWN}


def _rendered_glob(text: str, known: Mapping[str, JSON]) -> str:
    """A path set with its holes filled; what is not known yet may be any path."""
    parts = parse_template(text)
    lookup = _only_known(known)
    filled: list[str] = []
    for i, part in enumerate(parts):
        if isinstance(part, Hole):
            try:
                filled.append(render((part,), lookup))
            except UnresolvedPath:
                alone = text_ends(parts, i - 1, "/", last=True) and text_ends(parts, i + 1, "/", last=False)
                filled.append("**" if alone else "*")
        else:
            filled.append(part)
    return "".join(filled)


def text_ends(parts: tuple[str | Hole, ...], i: int, with_: str, last: bool) -> bool:
    """True when there is no neighbour at `i`, or it touches the hole with `with_`."""
    if not 0 <= i < len(parts):
        return True
    part = parts[i]
    return isinstance(part, str) and (part.endswith(with_) if last else part.startswith(with_))
