"""Values of `inputs` and `output` maps: a reference, a template, or a literal.

A plain string that is a state path is a reference and keeps its type; so does a string that is exactly
one `{{path}}`. Other strings with `{{…}}` are templates. Anything else stands for itself, and
`{literal: item}` is how an author writes a word that would be a path.
"""

from __future__ import annotations

from fanfold.kernel.plan import Constant, Fields, Output, Ref, Template, Value
from fanfold.recipe.checks.look_alikes import warn_of_text
from fanfold.recipe.checks.references import References, TextPlace
from fanfold.text.notes import quoted
from fanfold.text.tables.forms import IDENTIFIER
from fanfold.text.template import is_state_path, parse_path, sole_path
from fanfold.text.trees import tree
from fanfold.text.trees.tree import Node, Scalar, plain

_NEVER_PLAIN = frozenset({"feedback", "digest", "output"})
"""Names that are paths inside `{{…}}` only: as plain strings they are too common to mean one."""


def read_value(node: Node, references: References, place: TextPlace) -> Value:
    """One value of a map, checked."""
    if isinstance(node, tree.Mapping) and len(node.entries) == 1 and node.entries[0][0].text == "literal":
        return Constant(plain(node.entries[0][1]))
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        return Constant(plain(node))
    text = node.text
    if "{{" in text:
        return _read_template(node, references, place)
    if _is_path(text, place):
        path = parse_path(text)
        start = text.index(path.text)
        return Ref(_written_out(path.text, start, references.path(path, node, start, place)))
    warn_of_text(node, place.names, references.notes)
    return Constant(text)


def read_values(node: Node | None, references: References, place: TextPlace) -> dict[str, Value]:
    """A map of names to values, checked."""
    if not isinstance(node, tree.Mapping):
        return {}
    values: dict[str, Value] = {}
    for word, value in node.entries:
        if not IDENTIFIER.fullmatch(word.text):
            hint = "use letters, digits, _ and -, beginning with a letter or _"
            message = f"{quoted(word.text)} cannot be the name of a value"
            references.notes.error("recipe.bad_value", message, word, hint)
        values[word.text] = read_value(value, references, place)
    return values


def read_output(node: Node, references: References, place: TextPlace) -> Output:
    """The output of a recipe or group: a template, or a map."""
    if isinstance(node, tree.Mapping):
        return Fields(read_values(node, references, place))
    assert isinstance(node, Scalar)
    if node.text.startswith(("steps.", "inputs.")):
        return read_value(node, references, place)
    return _read_template(node, references, place)


def _read_template(node: Scalar, references: References, place: TextPlace) -> Value:
    text = references.template(node, place)
    path = sole_path(text)
    return Ref(path.text) if path is not None else Template(text)


def _is_path(text: str, place: TextPlace) -> bool:
    """`as` gives the item another name; that name is a path then, and `item` stays one to be refused."""
    if is_state_path(text):
        return True
    root = text.partition(".")[0].partition("[")[0]
    return root in place.names and root not in _NEVER_PLAIN and is_state_path(text, root)


def _written_out(text: str, start: int, inserts: list[int]) -> str:
    for at in sorted(inserts, reverse=True):
        text = text[: at - start] + ".output" + text[at - start :]
    return text
