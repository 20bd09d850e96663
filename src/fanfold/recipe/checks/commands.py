"""Commands: arguments and environment, with templates kept whole.

A command is a list of arguments and never meets a shell. Text is split the way a shell splits words,
for convenience; a `{{path}}` in it stays one piece, and its value stays part of one argument.
"""

from __future__ import annotations

import re

from fanfold.recipe.checks.references import References, TextPlace
from fanfold.text.notes import Notes, quoted
from fanfold.text.tables.entries import Entries
from fanfold.text.template import Hole, TemplateError, parse_template
from fanfold.text.trees.tree import Scalar

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_FIRST_STAND_IN = 0xF0000
"""Private characters that stand for holes while text is split; no recipe holds them by accident."""


def read_arguments(entries: Entries, references: References, place: TextPlace) -> tuple[str, ...]:
    """The argument templates of `run`."""
    node = entries.nodes["run"]
    notes = references.notes
    if isinstance(node, Scalar):
        arguments = _split(node, references.template(node, place), notes)
    else:
        arguments = tuple(references.template(item, place) for item in entries.scalars("run"))
    if not arguments or not arguments[0].strip():
        notes.error("recipe.bad_value", "the command is empty", node)
    return arguments


def _split(node: Scalar, text: str, notes: Notes) -> tuple[str, ...]:
    pieces: list[str] = []
    first = max(_FIRST_STAND_IN, max(map(ord, text), default=0) + 1)

    def hide(piece: str) -> str:
        pieces.append(piece)
        return chr(first + len(pieces) - 1)

    try:
        parts = parse_template(text)
    except TemplateError:
        return ("?",)  # reported when the template was checked
    hidden = ""
    at = 0
    for part in parts:
        if isinstance(part, Hole):
            opened = text.rindex("{{", 0, part.start)
            closed = text.index("}}", part.end) + 2
            hidden += text[at:opened].replace("\\{{", hide("\\{{")) + hide(text[opened:closed])
            at = closed
    hidden += text[at:].replace("\\{{", hide("\\{{"))
    import shlex

    try:
        words = shlex.split(hidden)
    except ValueError as error:
        hint = "write the command as a list of arguments"
        notes.error("recipe.bad_value", f"the command cannot be split: {str(error).lower()}", node, hint)
        return ("?",)
    shown = {first + i: piece for i, piece in enumerate(pieces)}
    return tuple(word.translate(shown) for word in words)


def read_environment(entries: Entries, references: References, place: TextPlace) -> dict[str, str]:
    """The templates of `env` by variable."""
    found: dict[str, str] = {}
    for word, value in entries.pairs("env"):
        if not _VARIABLE.fullmatch(word.text):
            message = f"{quoted(word.text)} cannot be the name of a variable"
            references.notes.error("recipe.bad_value", message, word, "use letters, digits and _")
        if isinstance(value, Scalar):
            found[word.text] = references.template(value, place)
    return found
