"""Postures: who may change files, and in which workspace.

Rules
* The role decides: a read-only role reads, others write. A function or command writes when it declares
  a `write_set`, and reads otherwise.
* `posture: read_only`, on the step or on anything around it, narrows. Nothing widens: a `write_set` on
  what is read-only contradicts itself and is refused.
* Whoever goes on in the conversation of a reader reads: words that came in while nobody could write do not
  get to write later.
* Readers share the workspace, writers work in a snapshot. A command without a `write_set` gets a
  snapshot too, which is thrown away, because tests write caches. A function runs in the engine's own
  process, so it shares whatever it does.
* A group or workflow step is called a writer when something inside may write. What a read-only workflow
  step calls is compiled for it as a plan in which everything reads.
"""

from __future__ import annotations

from typing import cast

from fanfold.kernel.plan import EVERYTHING, WorkspaceMode
from fanfold.recipe.checks.unit import Unit
from fanfold.recipe.drafts.draft import Draft
from fanfold.recipe.surroundings import RoleFacts
from fanfold.text.notes import Notes, quoted, with_article
from fanfold.text.trees import tree


def settle_posture(draft: Draft, unit: Unit) -> None:
    """Decide posture, sets and workspace of one step, and refuse what contradicts them."""
    syntax = draft.syntax
    if syntax is None or syntax.workspace == "none":
        return
    entries = draft.entries
    notes = unit.notes
    role = draft.facts.role
    role_known = role is None or role.known
    declared = entries.nodes.get("write_set")
    claims = isinstance(declared, tree.Sequence) and bool(declared.items)
    reason = why_read_only(draft, None if role is None else role.facts, "" if role is None else role.name)
    if claims and reason:
        hint = "leave out the `write_set`, or let a step that may write do it"
        notes.error(
            "recipe.conflicting_keys",
            f"{reason}, so it can have no write_set",
            entries.keys["write_set"],
            hint,
        )
    if syntax.writes:
        writes = not reason and not (entries.has("write_set") and not claims)
    else:
        writes = claims and not reason
    said = entries.text("posture")
    if said == "writer" and not writes and role_known:
        message = f"{reason or 'without a write_set it reads'}; {quoted('posture')} can only narrow"
        notes.error("recipe.conflicting_keys", message, entries.nodes["posture"])
    snapshot = writes or (syntax.workspace == "scratch" and not claims)
    usual: WorkspaceMode = "isolated" if snapshot else "shared"
    said_mode = cast("WorkspaceMode | None", entries.text("workspace_mode"))
    mode = said_mode or unit.defaults.workspace_mode or usual
    if syntax.workspace == "project":
        mode = "shared"
        if said_mode == "isolated":
            message = (
                f"{with_article(syntax.name)} is Python code of this process and works in the project itself"
            )
            hint = "leave it out, or run the code as a command"
            notes.error("recipe.conflicting_keys", message, entries.nodes["workspace_mode"], hint)
    draft.facts.posture = "writer" if writes else "read_only"
    draft.facts.workspace_mode = mode
    if not writes:
        draft.facts.write_set = ()
    elif not claims:
        draft.facts.write_set = draft.facts.write_set or EVERYTHING
    if role_known:
        _refuse_what_needs_a_writer(draft, notes, writes=writes, mode=mode)


def why_read_only(draft: Draft, role: RoleFacts | None, name: str) -> str:
    """Why the step may not write whatever it declares; empty when it may."""
    if draft.entries.text("posture") == "read_only":
        return "the step is read-only"
    if draft.narrowed:
        return "the step stands inside something read-only"
    if role is not None and role.read_only:
        return f"role {quoted(name)} is read-only"
    reader = _continued_reader(draft)
    return f"the step goes on with {quoted(reader)}, which only reads" if reader else ""


def _continued_reader(draft: Draft) -> str:
    """A step before it in one conversation that is narrowed by its own words; the role is the same in all."""
    seen = {draft.id}
    before = draft.entries.text("continue")
    while before is not None and before not in seen and (step := draft.scope.by_id.get(before)) is not None:
        if step.entries.text("posture") == "read_only" or _claims_nothing(step):
            return before
        seen.add(before)
        before = step.entries.text("continue")
    return ""


def _claims_nothing(draft: Draft) -> bool:
    declared = draft.entries.nodes.get("write_set")
    return isinstance(declared, tree.Sequence) and not declared.items


def _refuse_what_needs_a_writer(draft: Draft, notes: Notes, *, writes: bool, mode: str) -> None:
    entries = draft.entries
    for name in ("merge", "on_conflict"):
        if not entries.has(name):
            continue
        if not writes:
            message = f"{quoted(name)} is for writers, and this step only reads"
            notes.error("recipe.conflicting_keys", message, entries.keys[name])
        elif mode == "shared":
            message = f"{quoted(name)} is for isolated writers, and this one works in the shared workspace"
            notes.error("recipe.conflicting_keys", message, entries.keys[name])
    if entries.flag("cache") and writes:
        message = f"{quoted('cache')} is for read-only steps, and this one writes"
        hint = "say `posture: read_only` if it only reads"
        notes.error("recipe.conflicting_keys", message, entries.keys["cache"], hint)
