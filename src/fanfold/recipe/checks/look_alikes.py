"""Text that looks like logic of another language, or of ours in another place: it stays text, and is told so.

Nothing here changes what a recipe means. Each warning says what will happen and how to write what was meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fanfold.text.notes import Notes, quoted
from fanfold.text.patterns import regex
from fanfold.text.template import is_state_path
from fanfold.text.trees.tree import Node, Scalar

CODE = "recipe.not_evaluated"
_TAG = regex(r"\{[%#]-?\s*\w*")
_DOLLAR = regex(r"\$(?=\{\{)")
_ROOTS = regex(r"(?<![\w.])(?:steps|inputs|item|feedback)\s*[.\[]")
_VARIABLE = regex(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?", re.ASCII)
_QUOTED = regex(r"'[^']*'|\{\{.*?\}\}", re.DOTALL)
_SHELLS = frozenset(
    "sh bash dash zsh ksh fish ash busybox awk gawk perl ruby node python python3 env".split()
)
MAX_CHARS = 500
"""Longer texts are prose."""


def warn_of_text(node: Scalar, names: Iterable[str], notes: Notes) -> None:
    """Warn of signs in a template that are no template, and of a text that is an expression as a whole."""
    text = node.text
    if "{" in text and (found := _TAG.search(text)) is not None and _closes(text, found):
        hint = "give the step a `when`, or compute the text in a `set` step"
        message = f"templates have no logic: {quoted(found[0])} stays in the text as it is"
        notes.warning(CODE, message, node.span(*found.span()), hint)
    if "$" in text and (found := _DOLLAR.search(text)) is not None:
        message = 'the "$" stays in the text: a template is written {{…}}'
        notes.warning(CODE, message, node.span(*found.span()), 'leave the "$" out')
    if "{{" not in text and len(text) <= MAX_CHARS and _ROOTS.search(text) is not None:
        _warn_of_expression(node, names, notes)


def _closes(text: str, opened: re.Match[str]) -> bool:
    return ("%}" if text[opened.start() + 1] == "%" else "#}") in text[opened.end() :]


def _warn_of_expression(node: Scalar, names: Iterable[str], notes: Notes) -> None:
    text = node.text.strip()
    if is_state_path(text):
        notes.warning(CODE, f"this is text: {quoted(text)}", node, f"for the value, write {{{{{text}}}}}")
        return
    from fanfold.recipe.expressions.evaluate import reads_values  # costly to load, and seldom needed

    if reads_values(text, names):
        hint = (
            f"compute it in a step: set: {{value: {quoted(text)}}}, and write {{{{steps.<id>.output.value}}}}"
        )
        notes.warning(CODE, "this is text; nothing is computed here", node, hint)


def warn_of_braces(node: Node | None, what: str, hint: str, notes: Notes) -> None:
    """Warn of a template where none is filled in."""
    if isinstance(node, Scalar) and "{{" in node.text:
        at = node.text.index("{{")
        message = f"{what} is no template: {quoted(node.text)} is taken as it stands"
        notes.warning(CODE, message, node.span(at, len(node.text)), hint)


def warn_of_variables(words: list[Scalar], notes: Notes, *, whole: bool) -> None:
    """Warn of `$NAME` in words that no shell reads; `whole`: in one text, which is split into words."""
    program = words[0].text.rpartition("/")[2] if words else ""
    for node in words:
        if not whole and (program in _SHELLS or not _VARIABLE.fullmatch(node.text)):
            continue
        text = _QUOTED.sub(lambda hidden: " " * len(hidden[0]), node.text)
        if (found := _VARIABLE.search(text)) is not None:
            message = f"no shell reads this: {quoted(found[0])} is handed over as it is"
            hint = (
                "write `shell:` for a script (`env_vars` hands it variables of yours), or the value as {{…}}"
            )
            notes.warning("recipe.shell_syntax", message, node.span(*found.span()), hint)
            return
