"""Text that looks like a path, an expression or logic of another language, and would stay text.

Rules
* A text that is completely a path or an expression, or nearly a path, is an error with a fix, because it is
  never meant as literal text. `{literal: …}` is the notation for such a text among values.
* Syntax of other languages inside a text, and words of a command line, are warnings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable

from fanfold.language.diagnostics import edits
from fanfold.language.tables import Notes, quoted
from fanfold.language.template import is_state_path
from fanfold.language.tree import Node, Scalar

CODE = "recipe.not_evaluated"
_TAG = r"\{[%#]-?\s*\w*"
_DOLLAR = r"\$(?=\{\{)"
_ROOTS = r"(?<![\w.])(?:steps|inputs|item|feedback)\s*[.\[]"
_OPERATOR = r"[-+*/%?]|[=!<>]=|[<>]|&&|\|\|"
_PATH = r"(?a)([A-Za-z_][\w-]*)((?:\.[\w-]+|\[\d+\])*)"
_SUFFIXES = frozenset("json yaml yml csv txt md py js ts toml xml html log sh go rs java c h lock".split())
_PIECE = re.compile(
    r"""\s*(?:"(?P<double>[^"\\]*)"|'(?P<single>[^'\\]*)'|(?P<path>[A-Za-z_][\w.\[\]-]*))\s*(?:\+|$)"""
)
MIN_NAME_CHARS = 4
"""A shorter name resembles too many words."""
_VARIABLE = r"(?a)\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?"
_QUOTED = r"(?s)'[^']*'|\{\{.*?\}\}"
_SHELLS = frozenset(
    "sh bash dash zsh ksh fish ash busybox awk gawk perl ruby node python python3 env".split()
)
MAX_CHARS = 500
MAX_WORD_CHARS = 40
"""Longer texts are prose."""


def check_text(node: Scalar, names: Iterable[str], notes: Notes, *, strict: bool = True) -> None:
    """Refuse a text that is completely a path or an expression; warn about other syntax in the text.

    Without `strict` it is a warning, because a word of a command may look like anything.
    """
    text = node.text
    if "{" in text and (found := re.search(_TAG, text)) is not None and _closes(text, found):
        hint = "give the step a `when`, or compute the text in a `set` step"
        message = f"templates have no logic: {quoted(found[0])} stays in the text as it is"
        notes.warning(CODE, message, node.span(*found.span()), hint)
    if "$" in text and (found := re.search(_DOLLAR, text)) is not None:
        message = 'the "$" stays in the text: a template is written {{…}}'
        notes.warning(CODE, message, node.span(*found.span()), 'leave the "$" out')
    if "{{" not in text and len(text) <= MAX_CHARS and _mentions(text, names):
        _refuse_expression(node, names, notes, strict)


def _mentions(text: str, names: Iterable[str]) -> bool:
    if re.search(_ROOTS, text) is not None:
        return True
    return re.search(_OPERATOR, text) is not None and any(
        re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) for name in names
    )


def _closes(text: str, opened: re.Match[str]) -> bool:
    return ("%}" if text[opened.start() + 1] == "%" else "#}") in text[opened.end() :]


def _refuse_expression(node: Scalar, names: Iterable[str], notes: Notes, strict: bool) -> None:
    text = node.text.strip()
    tell = notes.error if strict else notes.warning
    code = "recipe.bad_value" if strict else CODE
    if is_state_path(text):
        fix = notes.fix(node.start, node.end, f'"{{{{{text}}}}}"') if strict else None
        tell(code, f"this is text: {quoted(text)}", node, f"for the value, write {{{{{text}}}}}", fix)
        return
    from fanfold.language.expressions import reads_values  # slow to load, and rarely needed

    if not reads_values(text, names):
        return
    as_template = _as_template(text)
    if as_template is not None:
        fix = notes.fix(node.start, node.end, json.dumps(as_template, ensure_ascii=False)) if strict else None
        hint = f"write {quoted(as_template)}"
    else:
        fix, value = None, "{value: " + quoted(text) + "}"
        hint = f"compute it in a step: set: {value}, and write {{{{steps.<id>.output.value}}}}"
    tell(code, f"this is text, nothing is computed here: {quoted(text)}", node, hint, fix)


def _as_template(text: str) -> str | None:
    """Return a sum of texts and paths as a template: `item + ".py"` is `{{item}}.py`."""
    parts, at = [], 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            return None
        literal = piece["double"] if piece["double"] is not None else piece["single"]
        parts.append(literal if literal is not None else f"{{{{{piece['path'].strip()}}}}}")
        at = piece.end()
    return "".join(parts)


def refuse_near_path(
    node: Scalar,
    names: Collection[str],
    inputs: Collection[str],
    is_step: Callable[[str], object],
    notes: Notes,
) -> bool:
    """Refuse a value that is nearly a path: `itm` in a map, `step.ls.output`, `ls.output`."""
    found = re.fullmatch(_PATH, node.text)
    if found is None or node.style:
        return False
    root, rest = found[1], found[2]
    first, _, after = rest[1:].partition(".")
    meant: str | None = None
    if rest and first in inputs and notes.nearest(root, ("inputs",)):
        meant = f"inputs{rest}"
    elif rest and is_step(first) and notes.nearest(root, ("steps",)):
        meant = f"steps{rest}"
    elif first in ("output", "status", "error") and is_step(root):
        meant = f"steps.{node.text}"
    elif len(root) <= MAX_WORD_CHARS and not (rest and not after and first in _SUFFIXES):
        known = [name for name in sorted(names) if len(name) >= MIN_NAME_CHARS and root != f"{name}s"]
        near = next((name for name in known if edits(root, name) == 1), None)
        meant = f"{near}{rest}" if near else None
    if meant is None or meant == node.text:
        return False
    message = f"{quoted(node.text)} looks like a path, and there is none of that name"
    hint = f"write {meant}, or {{literal: {node.text}}} for the text"
    notes.error("recipe.bad_value", message, node, hint, notes.fix(node.start, node.end, meant))
    return True


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
        if not whole and (program in _SHELLS or not re.fullmatch(_VARIABLE, node.text)):
            continue
        text = re.sub(_QUOTED, lambda hidden: " " * len(hidden[0]), node.text)
        if (found := re.search(_VARIABLE, text)) is not None:
            message = f"no shell reads this: {quoted(found[0])} is handed over as it is"
            hint = (
                "write `shell:` for a script (`env_vars` hands it variables of yours), or the value as {{…}}"
            )
            notes.warning("recipe.shell_syntax", message, node.span(*found.span()), hint)
            return
