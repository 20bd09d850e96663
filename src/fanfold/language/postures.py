"""Postures: which steps can change files, and in which workspace.

Rules
* The role decides: a read-only role reads, others write. A function or command writes if it declares a
  `write_set`, and reads otherwise.
* `posture: read_only`, on the step or on anything around it, narrows. Nothing widens: a `write_set` on a
  read-only step is a contradiction and is refused.
* A step that continues the conversation of a read-only step is read-only. So instructions that arrived
  without write permission cannot get it later.
* Readers share the workspace, writers work in a snapshot. A command without a `write_set` also gets a
  snapshot, which is discarded, because tests write caches. A function runs in the engine's own process, so it
  always shares the workspace.
* A group or workflow step counts as a writer if something inside may write. The target of a read-only
  workflow step is compiled as a separate plan in which everything is read-only.
"""

from __future__ import annotations

from typing import cast

from fanfold.kernel.plan import EVERYTHING, WorkspaceMode
from fanfold.language import tree
from fanfold.language.draft import Draft, RoleFacts
from fanfold.language.references import Unit
from fanfold.language.tables import Notes, quoted, with_article


def settle_posture(draft: Draft, unit: Unit) -> None:
    """Set posture, sets and workspace of one step, and refuse contradictions."""
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
    """Return why the step cannot write, whatever it declares; empty if it can."""
    if draft.entries.text("posture") == "read_only":
        return "the step is read-only"
    if draft.narrowed:
        return "the step stands inside something read-only"
    if role is not None and role.read_only:
        return f"role {quoted(name)} is read-only"
    reader = _continued_reader(draft)
    return f"the step goes on with {quoted(reader)}, which only reads" if reader else ""


def _continued_reader(draft: Draft) -> str:
    """Return an earlier step of the conversation that is read-only by its own keys, not by its role."""
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
    for name in ("merge", "on_conflict", "require_changes"):
        if not entries.has(name) or (name == "require_changes" and not entries.flag(name)):
            continue
        if not writes:
            message = f"{quoted(name)} is for writers, and this step only reads"
            notes.error("recipe.conflicting_keys", message, entries.keys[name])
        elif mode == "shared":
            message = f"{quoted(name)} is for isolated writers, and this one works in the shared workspace"
            notes.error("recipe.conflicting_keys", message, entries.keys[name])
    if entries.flag("require_changes") and entries.text("merge") == "discard":
        message = f"{quoted('require_changes')} needs changes that are merged, and this step discards them"
        notes.error("recipe.conflicting_keys", message, entries.keys["require_changes"])
    if entries.flag("cache") and writes:
        message = f"{quoted('cache')} is for read-only steps, and this one writes"
        hint = "say `posture: read_only` if it only reads"
        notes.error("recipe.conflicting_keys", message, entries.keys["cache"], hint)
