"""From a step that may start to the work itself: every template rendered, every value looked up.

A job holds all that its executor needs and refers to nothing that can change. Whatever cannot be
rendered fails the step before it starts, with the place and the reason.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from fanfold.kernel.events import Failure
from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import (
    JSON,
    AgentAction,
    ApprovalAction,
    CommandAction,
    Constant,
    Fields,
    FunctionAction,
    GroupAction,
    Output,
    Ref,
    Template,
)
from fanfold.runtime.records.values import Values, shorten
from fanfold.text.template import Path, UnresolvedPath, parse_path, parse_template, render, resolve

MAX_ITEM_EXCERPT = 20_000


class AgentJob(Struct, frozen=True):
    prompt: str
    inputs: dict[str, JSON]


class FunctionJob(Struct, frozen=True):
    handler: str
    inputs: dict[str, JSON]


class CommandJob(Struct, frozen=True):
    argv: tuple[str, ...]
    env: dict[str, str]
    network: bool


class CallJob(Struct, frozen=True):
    inputs: dict[str, JSON]


class Question(Struct, frozen=True):
    """What a person is asked."""

    question: str
    show: str
    choices: tuple[str, ...]


class NoJob(Struct, frozen=True):
    """A group: nothing to do but to open it."""


Job: TypeAlias = AgentJob | FunctionJob | CommandJob | CallJob | Question | NoJob


class Unrenderable(Exception):
    """A step's templates do not resolve; `failure` is what the step fails with."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def prepare(values: Values, node: Node) -> Job:
    """The job of a step that is about to start; raises `Unrenderable`."""
    names = values.at(node)
    action = node.step.action
    try:
        inputs = {key: value_of(value, names) for key, value in node.step.inputs.items()}
        if isinstance(action, AgentAction):
            return AgentJob(_prompt(values, node, action, names, inputs), inputs)
        if isinstance(action, FunctionAction):
            return FunctionJob(action.handler, inputs)
        if isinstance(action, CommandAction):
            argv = tuple(_text(part, names) for part in action.run)
            return CommandJob(argv, {k: _text(v, names) for k, v in action.env.items()}, action.network)
        if isinstance(action, ApprovalAction):
            show = _text(action.show, names) if action.show is not None else ""
            return Question(_text(action.approve, names), show, action.choices)
        return NoJob() if isinstance(action, GroupAction) else CallJob(inputs)
    except UnresolvedPath as error:
        message = f"{node.path} cannot start: {error}"
        raise Unrenderable(
            Failure("agent", "template.unresolved", message, retryable=False, step=node.path)
        ) from None


def value_of(value: Output, names: dict[str, JSON]) -> JSON:
    """A reference keeps its type, a template is text, a literal is itself."""
    if isinstance(value, Ref):
        return resolve(_path(value.path), names)
    if isinstance(value, Template):
        return _text(value.text, names)
    if isinstance(value, Fields):
        return {key: value_of(inner, names) for key, inner in value.fields.items()}
    assert isinstance(value, Constant)
    return value.value


def _path(text: str) -> Path:
    return parse_path(text)


def _text(template: str, names: dict[str, JSON]) -> str:
    return render(parse_template(template), names) if "{{" in template else template


def render_sets(node: Node, names: dict[str, JSON]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The read-set and write-set of an instance, with item and inputs put in."""
    read = tuple(_text(pattern, names) for pattern in node.step.read_set)
    return read, tuple(_text(pattern, names) for pattern in node.step.write_set)


def _prompt(
    values: Values, node: Node, action: AgentAction, names: dict[str, JSON], inputs: dict[str, JSON]
) -> str:
    parts = [_text(action.prompt, names)] if action.prompt is not None else []
    for name in action.summaries:
        dependency = _sibling(node, name)
        if dependency is not None:
            parts.append(f"Result of the earlier step {name}:\n{values.summary(dependency)}")
    for name, value in inputs.items():
        shown = value if isinstance(value, str) else _json(value)
        parts.append(f"{name}:\n{shown}")
    if action.purpose == "fold":
        parts += _fold_material(values, node)
    if node.run.plan.phased and action.purpose == "work" and "{{digest}}" not in (action.prompt or ""):
        digest = names.get("digest")
        if digest:
            parts.append(f"What earlier phases found:\n{digest}")
    return "\n\n".join(parts)


def _fold_material(values: Values, node: Node) -> list[str]:
    """The outputs of the phase's last iteration, bounded, for the summary that folds it."""
    loop = node.parent
    if loop is None:
        return []
    body = loop.children[-2] if loop.children[-1] is node else loop.children[-1]
    children = getattr(body, "children", [])
    return [
        f"{child.step.id}:\n{shorten(_json_or_text(values.output(child)), MAX_ITEM_EXCERPT)}"
        for child in children
    ]


def _sibling(node: Node, name: str) -> Node | None:
    """A step by id, looked up from the scope around a node outwards."""
    parent = node.parent
    while parent is not None:
        found = node.run.nodes.get(f"{parent.path}/{name}" if parent.path else name)
        if found is not None:
            return found
        parent = parent.parent
    return None


def _json_or_text(value: JSON) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: JSON) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
