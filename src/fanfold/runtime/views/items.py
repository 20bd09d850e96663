"""What the items of maps are called: by what a step's `key` leads to, else by their value.

A number in brackets says nothing to a reader: `per_file[7]` is `src/shop/m08.py`. The names are read from the
list that the log keeps of each map, once for a tree, and are never part of an address.
"""

from __future__ import annotations

from fanfold.kernel.nodes import MAP, Map, Node
from fanfold.kernel.plan import JSON, Step
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.text.json_value import as_text
from fanfold.text.template import UnresolvedPath, parse_path, resolve
from fanfold.text.terminal import cut_name, one_line

MAX_NAME_CHARS = 60
_ENDS_CHARS = 1_000
"""Read of a long value: its beginning and its end. What is between cannot come into view."""
_TELLING = ("name", "id", "key", "path", "file", "title")
"""Fields that people name things by, for objects of steps that have no `key`."""


def item_name(tree: RunTree, node: Node) -> str:
    """The name of the item that an instance of a map works on; empty for anything else."""
    if node.parent is None or node.parent.kind != MAP:
        return ""
    assert isinstance(node.parent, Map)
    names = _names(tree, node.parent)
    index = node.order[-1]
    return names[index] if index < len(names) else ""


def item_around(tree: RunTree, node: Node | None) -> str:
    """The name of the item that a step works on, its own or that of the nearest map around it."""
    while node is not None:
        if name := item_name(tree, node):
            return name
        node = node.parent if node.parent is not None else node.run.call
    return ""


def item_around_at(tree: RunTree | None, run: str, path: str) -> str:
    """The same for an address."""
    found = tree.state.runs.get(run) if tree is not None else None
    node = found.nodes.get(path) if found is not None else None
    return item_around(tree, node) if tree is not None else ""


def named_path(tree: RunTree, node: Node) -> str:
    """The path of a step as seen from the root, and what its item is called: for people, no address."""
    path, item = node.run.tree_path(node.path), item_around(tree, node)
    return f"{one_line(path)} {item}" if item else one_line(path)


def _names(tree: RunTree, mapped: Map) -> tuple[str, ...]:
    address = (mapped.run.id, mapped.path)
    names = tree.memory.item_names.get(address)
    if names is None:
        kept = tree.memory.items.get(address)
        items = tree.blobs.get(kept) if kept is not None else []
        names = tuple(_called(mapped.step, item) for item in items)
        tree.memory.item_names[address] = names
    return names


def _called(step: Step, item: JSON) -> str:
    value = item
    if step.key:
        try:
            value = resolve(parse_path(step.key), {step.item_name: item})
        except UnresolvedPath:
            value = None
    if isinstance(value, dict):
        value = next((value[field] for field in _TELLING if isinstance(value.get(field), str)), value)
    if value is None:
        return ""
    text = as_text(value)
    if len(text) > 2 * _ENDS_CHARS:
        text = text[:_ENDS_CHARS] + text[-_ENDS_CHARS:]
    return cut_name(one_line(text), MAX_NAME_CHARS)
