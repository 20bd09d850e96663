"""What an agent was told, with where each part of it comes from."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from fanfold.kernel.nodes import Node
from fanfold.recipe.types.agent import AgentBody
from fanfold.recipe.types.body import find_body
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.steps.agent import sections_of, sibling
from fanfold.runtime.steps.registry import preparation
from fanfold.text.template import Hole, UnresolvedPath, parse_template, render


class PromptPart(Struct, frozen=True):
    """Characters of a prompt that were put in: from one, up to and not including another."""

    start: int = field(name="from")
    end: int = field(name="to")
    source: str
    """The path that was looked up: `inputs.topic`, `steps.gather.output`."""
    step: str | None
    """Tree path of the step that gave it."""


class PromptDocument(Struct, frozen=True):
    """`parts` in order; what lies between them stands in the recipe."""

    text: str
    parts: list[PromptPart]


def prompt_of(tree: RunTree, node: Node) -> PromptDocument | None:
    """What the agent of a step is told by its recipe; None where it has none, or it cannot be told yet."""
    said = find_body(AgentBody, node.step)
    if said is None:
        return None
    try:
        pieces = list(_pieces(tree, node, said))
    except UnresolvedPath:
        return None
    text, parts = "", []
    for piece, source, giver in pieces:
        if source:
            path = None if giver is None else giver.run.tree_path(giver.path)
            parts.append(PromptPart(len(text), len(text) + len(piece), source, path))
        text += piece
    return PromptDocument(text, parts)


def _pieces(tree: RunTree, node: Node, said: AgentBody) -> Iterator[tuple[str, str, Node | None]]:
    """Text, where it comes from (nowhere: the recipe's own words), and the step that gave it."""
    ready = preparation(tree.values, node)
    between = ""
    for part in parse_template(said.prompt or ""):
        between = "\n\n"
        if isinstance(part, Hole):
            name = str(part.path.parts[0]) if part.path.root == "steps" and part.path.parts else ""
            yield render((part,), ready.names), part.path.text, sibling(node, name) if name else None
        else:
            yield part, "", None
    for section in sections_of(ready, said):
        yield between, "", None
        between = "\n\n"
        yield section.text, section.source, section.step
