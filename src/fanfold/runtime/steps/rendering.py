"""Values and templates of a step, filled in with the names its place in the run may see."""

from __future__ import annotations

from collections.abc import Mapping

from fanfold.kernel.nodes import Node
from fanfold.kernel.plan import JSON, Constant, Fields, Output, Ref, Template
from fanfold.kernel.sets.globs import escape
from fanfold.text.template import parse_path, parse_template, render, resolve


def value_of(value: Output, names: dict[str, JSON]) -> JSON:
    """A reference keeps its type, a template is text, a literal is itself."""
    if isinstance(value, Ref):
        return resolve(parse_path(value.path), names)
    if isinstance(value, Template):
        return text_of(value.text, names)
    if isinstance(value, Fields):
        return {key: value_of(inner, names) for key, inner in value.fields.items()}
    assert isinstance(value, Constant)
    return value.value


def text_of(template: str, names: dict[str, JSON]) -> str:
    return render(parse_template(template), names) if "{{" in template else template


def render_sets(node: Node, names: dict[str, JSON]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The read-set and write-set of an instance, with item and inputs put in."""
    read = tuple(pattern_of(pattern, names) for pattern in node.step.read_set)
    return read, tuple(pattern_of(pattern, names) for pattern in node.step.write_set)


def pattern_of(template: str, names: Mapping[str, JSON]) -> str:
    """A pattern of a set. Its wildcards are the author's alone: what is put in stands for itself."""
    return "".join(
        part if isinstance(part, str) else escape(render((part,), names)) for part in parse_template(template)
    )
