"""Commands: arguments and environment, with templates kept whole; scripts, with none.

Rules
* `run` is a list of arguments and never meets a shell. Text is split the way a shell splits words, for
  convenience; a `{{path}}` in it stays one piece, and its value stays part of one argument.
* `shell` is a script for `sh -c`. No value becomes part of its text: what a model wrote would be run. Values
  reach it as variables, and none of those may be one that the shell or the loader obeys.
"""

from __future__ import annotations

import re

from fanfold.recipe.checks.look_alikes import warn_of_variables
from fanfold.recipe.checks.references import References, TextPlace
from fanfold.text.notes import Notes, quoted
from fanfold.text.patterns import regex
from fanfold.text.tables.entries import Entries
from fanfold.text.template import Hole, TemplateError, parse_template
from fanfold.text.trees.tree import Scalar

_VARIABLE = regex(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OBEYED = frozenset(
    {"BASH_ENV", "BASH_FUNC", "ENV", "HOME", "IFS", "OPTIND", "PATH", "PS4", "PWD", "SHELL", "SHELLOPTS"}
)
"""Variables that change what a script does, beside all that begin with `LD_`."""
_FIRST_STAND_IN = 0xF0000
"""Private characters that stand for holes while text is split; no recipe holds them by accident."""


def read_arguments(entries: Entries, references: References, place: TextPlace) -> tuple[str, ...]:
    """The argument templates of `run`."""
    node = entries.nodes["run"]
    notes = references.notes
    if "inputs" in entries.keys:
        hint = "place values in `run` or `env` with {{…}}, or write a `shell` script"
        message = '"inputs" are variables of a `shell` script, and this step has none'
        notes.error("recipe.conflicting_keys", message, entries.keys["inputs"], hint)
    if isinstance(node, Scalar):
        if not _warn_of_shell_syntax(node, notes):
            warn_of_variables([node], notes, whole=True)
        arguments = _split(node, references.template(node, place), notes)
    else:
        words = entries.scalars("run")
        warn_of_variables(words, notes, whole=False)
        arguments = tuple(references.template(item, place) for item in words)
    if not arguments or not arguments[0].strip():
        notes.error("recipe.bad_value", "the command is empty", node)
    return arguments


def read_script(entries: Entries, notes: Notes) -> str:
    """The script of `shell`, or an empty text."""
    node = entries.nodes.get("shell")
    if not isinstance(node, Scalar):
        return ""
    if "{{" in node.text:
        at = node.text.index("{{")
        hint = 'give the value under `inputs` and write "$name" in the script'
        message = "a script holds no {{…}}: the value would be run as part of it"
        notes.error("recipe.bad_template", message, node.span(at, at + 2), hint)
    if not node.text.strip():
        notes.error("recipe.bad_value", "the script is empty", node)
    given = {word.text for word, _ in entries.pairs("env")}
    for word, _ in entries.pairs("inputs"):
        if _is_usable(word, notes) and word.text in given:
            notes.error(
                "recipe.conflicting_keys", f"{quoted(word.text)} is in `env` too", word, "keep one of them"
            )
    return node.text


def _is_usable(word: Scalar, notes: Notes) -> bool:
    """Whether a command may be given a variable of this name."""
    problem = hint = ""
    if not _VARIABLE.fullmatch(word.text):
        problem, hint = f"{quoted(word.text)} cannot be the name of a variable", "use letters, digits and _"
    elif word.text in _OBEYED or word.text.startswith(("LD_", "BASH_FUNC_")):
        problem, hint = f"{word.text} would change what the script does", "choose another name"
    if problem:
        notes.error("recipe.bad_value", problem, word, hint)
    return not problem


def read_own_variables(entries: Entries, notes: Notes) -> tuple[str, ...]:
    """The names in `env_vars`, whose values come from the user's environment."""
    given = {word.text for key in ("env", "inputs") for word, _ in entries.pairs(key)}
    names: dict[str, None] = {}
    for word in entries.scalars("env_vars"):
        if _is_usable(word, notes) and (word.text in given or word.text in names):
            notes.error("recipe.conflicting_keys", f"{quoted(word.text)} is given twice", word, "keep one")
        names[word.text] = None
    if names and entries.flag("cache"):
        message = "what a command makes of your environment is not kept for other runs"
        notes.error("recipe.conflicting_keys", message, entries.keys["cache"], "leave `cache` out")
    return tuple(names)


def _warn_of_shell_syntax(node: Scalar, notes: Notes) -> bool:
    """Text for `run` that was written for a shell: the program would get the signs as arguments."""
    import shlex

    try:
        words = shlex.split(node.text)
    except ValueError:
        return False  # reported when it is split
    signs = ("&&", "||", "|", ";", ">", ">>", "<", "2>", "2>&1", "&")
    found = next((word for word in words if word in signs or word.endswith(";")), None)
    bare = re.sub(r"'[^']*'|\"[^\"]*\"|\{\{.*?\}\}", "", node.text)
    found = found or next((sign for sign in ("*", "$(", "`") if sign in bare), None)
    if found is not None:
        hint = "write `shell:` for a script, or quote what is meant as it stands"
        message = f"no shell reads this: {quoted(found)} goes to {quoted(words[0])} as it is"
        notes.warning("recipe.shell_syntax", message, node, hint)
    return found is not None


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
            warn_of_variables([value], references.notes, whole=True)
            found[word.text] = references.template(value, place)
    return found
