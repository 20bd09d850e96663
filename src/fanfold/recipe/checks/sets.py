"""Read-sets and write-sets: globs, checked as far as they are known before an instance exists.

A set may hold templates of `inputs`, the item and its index, because these are known before the step is
admitted; outputs of other steps are not. A pattern with holes is checked with a harmless word in each
hole, which finds `..` and unbalanced brackets in what the author wrote; the resolved pattern is checked
again when the instance is created. What is put in stands for itself there, so no hole may be inside `[…]`.

A pattern for what no step may change (files of git, of Fanfold, of roles) could never be used and is refused
here, not when the step has done its work.
"""

from __future__ import annotations

from collections.abc import Iterable

from fanfold.kernel.sets.globs import GlobError, check_glob, is_in_class, read_glob
from fanfold.kernel.sets.protected import owner_of
from fanfold.recipe.checks.references import References, TextPlace
from fanfold.recipe.drafts.draft import Draft
from fanfold.text.notes import quoted
from fanfold.text.template import Hole, TemplateError, parse_template
from fanfold.text.trees.tree import Scalar

_STAND_IN = "x"


def read_set(key: str, draft: Draft, references: References) -> tuple[tuple[str, ...], bool]:
    """The patterns of `read_set` or `write_set`, and whether any holds a template."""
    return read_patterns(draft.entries.scalars(key), draft, references, writes=key == "write_set")


def read_patterns(
    nodes: Iterable[Scalar], draft: Draft, references: References, *, writes: bool
) -> tuple[tuple[str, ...], bool]:
    """The patterns of a list that a step of this draft has, and whether any holds a template."""
    templated = False
    patterns: list[str] = []
    for node in nodes:
        if "{{" in node.text:
            templated = True
            _check_templated(node, draft, references)
        else:
            _check_static(node, references, writes=writes)
        if node.text.startswith("!"):
            hint = "list what belongs to the set; ?name matches a file whose name begins with !"
            references.notes.error("recipe.bad_glob", "patterns have no negation", node.span(0, 1), hint)
        patterns.append(node.text)
    return tuple(patterns), templated


def _check_static(node: Scalar, references: References, *, writes: bool) -> None:
    try:
        check_glob(node.text)
    except GlobError as error:
        references.notes.error(
            "recipe.bad_glob", error.message, node.span(error.position, error.position + 1)
        )
        return
    owner = _owner(node.text) if writes else ""
    if owner:
        hint = "leave it out: such a change is never merged, whatever write_set says"
        message = f"no step may write {quoted(node.text)}, which belongs to {owner}"
        references.notes.error("recipe.bad_value", message, node, hint)


def _owner(pattern: str) -> str:
    """Whose files a pattern is all about; nothing for one that can match others."""
    return owner_of("/".join(read_glob(pattern).head))


def _check_templated(node: Scalar, draft: Draft, references: References) -> None:
    names = draft.items()
    place = TextPlace(draft, draft.scope, names)
    references.template(node, place, only_roots=names | {"inputs"})
    try:
        parts = parse_template(node.text)
    except TemplateError:
        return  # reported by the check above
    text = ""
    holes: list[int] = []
    origins: list[int] = []
    at = 0
    for part in parts:
        if isinstance(part, Hole):
            holes.append(len(text))
            text += _STAND_IN
            origins.append(part.start)
            at = node.text.index("}}", part.end) + 2
        else:
            text += part
            origins.extend(range(at, at + len(part)))
            at += len(part)
    try:
        check_glob(text)
    except GlobError as error:
        origin = origins[error.position] if error.position < len(origins) else len(node.text)
        references.notes.error("recipe.bad_glob", error.message, node.span(origin, origin + 1))
        return
    for hole in holes:
        if is_in_class(text, hole):
            message = "a value cannot stand in a character class"
            at = origins[hole]
            references.notes.error(
                "recipe.bad_glob", message, node.span(at, at + 1), "write {a,b} with a value for each"
            )
