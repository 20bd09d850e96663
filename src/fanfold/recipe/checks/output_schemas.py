"""`output_schema`: is it a JSON Schema, and does it stand on its own?

A schema may not fetch others: checking a recipe and running it must not depend on the network, and a
frozen run must not change because a document somewhere else did.
"""

from __future__ import annotations

from fanfold.kernel.plan import JSON
from fanfold.text.json_schema import schema_problem
from fanfold.text.notes import Notes
from fanfold.text.trees import tree
from fanfold.text.trees.tree import Node, Scalar, find, plain

_REFERRING = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


def read_schema(node: Node, notes: Notes) -> JSON:
    """The schema as data; problems are reported where they stand in the schema."""
    schema = plain(node)
    if _refuse_remote(node, notes):
        return schema
    problem = schema_problem(schema)
    if problem is not None:
        where = find(node, problem.path)
        notes.error("recipe.bad_schema", f"not a JSON Schema: {problem.message}", where)
    return schema


def _refuse_remote(node: Node, notes: Notes) -> bool:
    refused = False
    if isinstance(node, tree.Sequence):
        for item in node.items:
            refused |= _refuse_remote(item, notes)
    elif isinstance(node, tree.Mapping):
        for word, value in node.entries:
            text = value.text if isinstance(value, Scalar) and isinstance(value.value, str) else None
            if word.text in _REFERRING and text is not None and not text.startswith("#"):
                hint = "put the other schema under `$defs` and refer to it as #/$defs/…"
                notes.error("recipe.bad_schema", "a schema cannot refer to another document", value, hint)
                refused = True
            else:
                refused |= _refuse_remote(value, notes)
    return refused
