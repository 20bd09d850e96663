"""Roles as steps name them: `name` or `name@version`, known here or refused."""

from __future__ import annotations

from msgspec import Struct

from fanfold.recipe.surroundings import RoleFacts, Surroundings
from fanfold.text.notes import Notes, quoted
from fanfold.text.parse import Scalar

UNKNOWN = RoleFacts(read_only=False)


class Role(Struct, frozen=True):
    """A role as a step asked for it, and what is known about it."""

    name: str
    version: str | None
    facts: RoleFacts
    known: bool = True


def find_role(text: str, at: Scalar | None, around: Surroundings, notes: Notes) -> Role:
    """The role meant; one that is not known is reported at `at`, unless nobody wrote it."""
    name, marked, version = text.partition("@")
    facts = around.roles.get(name)
    if at is not None and name in around.broken_roles:  # another role of that name is not what was meant
        why = f"the file of role {quoted(name)} cannot be used: {around.broken_roles[name]}"
        notes.error("recipe.broken_role", why, at.span(0, len(name)), "correct the file, or remove it")
        return Role(name, None, facts or UNKNOWN, known=False)
    if facts is None:
        if at is not None:
            hint = notes.did_you_mean(name, around.roles) or "`fanfold agents` lists the roles known here"
            where = at.span(0, len(name))
            notes.error("recipe.unknown_role", f"there is no role {quoted(name)}", where, hint)
        return Role(name, None, UNKNOWN, known=False)
    if not marked:
        return Role(name, None, facts)
    found = next((one for one in facts.versions if one.removeprefix("v") == version.removeprefix("v")), None)
    if found is None and at is not None:
        known = ", ".join(facts.versions)
        hint = f"there are versions {known}" if known else "the role has no versions; leave out the @"
        notes.error("recipe.unknown_role", f"role {quoted(name)} has no version {quoted(version)}", at, hint)
    if found is None:
        return Role(name, version, facts)
    return Role(name, found, facts.by_version.get(found, facts))
