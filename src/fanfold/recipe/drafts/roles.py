"""Roles as steps name them: `name` or `name@version`, known here or refused."""

from __future__ import annotations

from msgspec import Struct

from fanfold.recipe.surroundings import RoleFacts, Surroundings
from fanfold.text.diagnostics import Span
from fanfold.text.notes import Notes, quoted
from fanfold.text.trees.tree import Scalar


class UnknownRole(Struct, frozen=True):
    """Stands for a role that nobody knows, so that the rest of its step can be checked."""

    read_only: bool = False
    tools: tuple[str, ...] | None = None
    prompt_template: str | None = None
    backend: str | None = None
    command: tuple[str, ...] = ()
    isolated: bool = False


UNKNOWN = UnknownRole()


class NamedRole(Struct, frozen=True):
    """A role as a step asked for it, and what is known about it."""

    name: str
    version: str | None
    facts: RoleFacts
    known: bool = True


def find_role(
    text: str, at: Scalar | None, around: Surroundings, notes: Notes, otherwise: Span = (0, 0)
) -> NamedRole:
    """The role meant; one that is not known is reported at `at`, unless nobody wrote it. One whose file
    cannot be used is reported in any case, `otherwise` there.
    """
    name, marked, version = text.partition("@")
    roles = around.roles
    facts = roles.find(name)
    if name in roles.broken:  # another role of that name is not what was meant
        why = f"the file of role {quoted(name)} cannot be used: {roles.broken[name]}"
        place = otherwise if at is None else at.span(0, len(name))
        notes.error("recipe.broken_role", why, place, "correct the file, or remove it")
        return NamedRole(name, None, facts or UNKNOWN, known=False)
    if facts is None:
        if at is not None:
            hint = notes.did_you_mean(name, roles.names()) or "`fanfold agents` lists the roles known here"
            where = at.span(0, len(name))
            notes.error("recipe.unknown_role", f"there is no role {quoted(name)}", where, hint)
        return NamedRole(name, None, UNKNOWN, known=False)
    found = None
    if marked:
        versions = roles.versions(name)
        found = next((one for one in versions if one.removeprefix("v") == version.removeprefix("v")), None)
        if found is None:
            if at is not None:
                known = ", ".join(versions)
                hint = f"there are versions {known}" if known else "the role has no versions; leave out the @"
                message = f"role {quoted(name)} has no version {quoted(version)}"
                notes.error("recipe.unknown_role", message, at, hint)
            return NamedRole(name, version, facts)
        facts = roles.find(name, found) or facts
    _check_backend(name, facts, at, around, notes)
    return NamedRole(name, found, facts)


def _check_backend(
    name: str, facts: RoleFacts, at: Scalar | None, around: Surroundings, notes: Notes
) -> None:
    """A role whose work nobody can do here is refused now, not when the step begins."""
    if facts.backend is None or at is None:
        return
    problem = around.backend_problem(facts.backend, facts.command)
    if problem is not None:
        where = at.span(0, len(name))
        notes.error("recipe.unknown_backend", f"role {quoted(name)}: {problem.message}", where, problem.hint)
