"""What a role file says that its role may not do: kept here, or the role is refused.

Rules
* A mode, an isolation or a profile that is not known may take something away. The role is refused with the
  place and a way out, rather than served without it.
* What asks for more than a role gets here (`acceptEdits`, `bypassPermissions`) changes nothing: the user's
  own permission decides.
* A hook that judges calls before they are made is a guard, and is kept if it is a command. One that a model
  or a server would answer refuses the role. Hooks at other moments restrict nothing and do not run.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fanfold.agents.role import CallGuard, SandboxMode
from fanfold.text.notes import Notes, quoted
from fanfold.text.tables.entries import Entries
from fanfold.text.trees.tree import Mapping, Node, Scalar, Sequence

GUARDING = ("PreToolUse", "PermissionRequest")
MAX_GUARDS = 16
MAX_GUARD_S = 600
_AS_USUAL = frozenset({"", "default", "ask", "manual", "acceptedits", "auto"})
_PROFILES: dict[str, SandboxMode] = {
    # The permission profiles that Codex itself has.
    ":read-only": "read-only",
    ":workspace": "workspace-write",
    ":danger-full-access": "danger-full-access",
}


class Restrictions(NamedTuple):
    """What one file takes away from its role."""

    reads: bool = False
    asks: bool = True
    isolated: bool = False
    guards: tuple[CallGuard, ...] = ()
    lacked: tuple[str, ...] = ()
    """What the file asks for in the same keys, and nobody does here."""


def claude_restrictions(entries: Entries, notes: Notes) -> Restrictions:
    """`permissionMode`, `readonly`, `isolation` and `hooks` of a Claude Code agent."""
    found = _mode(entries, notes)
    only = entries.nodes.get("readonly")
    if only is not None and not (isinstance(only, Scalar) and only.value is False):
        found = found._replace(reads=True)
    isolation = entries.nodes.get("isolation")
    if isinstance(isolation, Scalar) and isolation.text == "worktree":
        found = found._replace(isolated=True)
    elif isolation is not None and not _says_no(isolation):
        said = quoted(isolation.text) if isinstance(isolation, Scalar) else "that"
        hint = "`isolation: worktree` is the one there is"
        notes.error(".refused", f"isolation {said} cannot be kept here", isolation, hint)
    hooks = entries.nodes.get("hooks")
    return found if hooks is None else _Hooks(notes).read(hooks, found)


def codex_sandbox(entries: Entries, notes: Notes) -> SandboxMode | None:
    """The sandbox of Codex's `default_permissions`; None when the file does not say."""
    profile = entries.nodes.get("default_permissions")
    if profile is None:
        return None
    known = _PROFILES.get(profile.text) if isinstance(profile, Scalar) else None
    if known is None:
        hint = "say `sandbox_mode` instead, which is kept"
        notes.error(".refused", "the profile in default_permissions cannot be kept here", profile, hint)
    return known


def _mode(entries: Entries, notes: Notes) -> Restrictions:
    node = entries.nodes.get("permissionMode")
    mode = entries.text("permissionMode") or ""
    if node is None or mode.lower() in _AS_USUAL:
        return Restrictions()
    if mode == "plan":
        return Restrictions(reads=True)
    if mode == "dontAsk":
        return Restrictions(asks=False)
    if mode == "bypassPermissions":
        notes.note("role.note", "permissionMode bypassPermissions gives it no more than any other role", node)
        return Restrictions()
    hint = "there are default, acceptEdits, plan, dontAsk and bypassPermissions"
    notes.error(".refused", f"permissionMode {quoted(mode)} is not known and cannot be kept", node, hint)
    return Restrictions()


def _says_no(node: Node) -> bool:
    return isinstance(node, Scalar) and (node.value in (None, False) or node.text in ("none", "shared"))


class _Hooks:
    """The hooks of one file: `event: [{matcher, hooks: [{type, command, timeout}]}]`."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._guards: list[CallGuard] = []

    def read(self, hooks: Node, found: Restrictions) -> Restrictions:
        lacked: list[str] = []
        for event, groups in hooks.entries if isinstance(hooks, Mapping) else ():
            if event.text in GUARDING:
                self._read_groups(groups)
            elif event.text[:1].isalpha():
                lacked.append(f"{event.text} hooks")
        if not isinstance(hooks, Mapping):
            self._refuse("hooks must be a map of events", hooks)
        if len(self._guards) > MAX_GUARDS:
            self._refuse(f"it has more than {MAX_GUARDS} hooks before its calls", hooks)
        return found._replace(guards=tuple(self._guards), lacked=tuple(lacked))

    def _read_groups(self, groups: Node) -> None:
        if not isinstance(groups, Sequence):
            self._refuse("hooks of an event must be a list", groups)
            return
        for group in groups.items:
            inner = group.get("hooks") if isinstance(group, Mapping) else None
            matcher = group.get("matcher") if isinstance(group, Mapping) else None
            if not isinstance(inner, Sequence) or not (matcher is None or isinstance(matcher, Scalar)):
                self._refuse("hooks need a `matcher` and a list of `hooks`", group)
                continue
            text = matcher.text if isinstance(matcher, Scalar) else ""
            if _is_bad_pattern(text):
                self._refuse(f"the hooks' matcher {quoted(text)} is no pattern", group)
            for hook in inner.items:
                self._read_hook(text, hook)

    def _read_hook(self, matcher: str, hook: Node) -> None:
        said = {key.text: value for key, value in hook.entries} if isinstance(hook, Mapping) else {}
        kind, command = _text(said.get("type")), _text(said.get("command"))
        unknown = set(said) - {"type", "command", "timeout", "statusMessage"}
        if kind != "command" or not command.strip() or unknown:
            what = next(iter(sorted(unknown)), f"type {kind or 'none'}")
            self._refuse(f"its hooks guard tools in a way that cannot be kept here ({what})", hook)
            return
        timeout = said.get("timeout")
        seconds = timeout.value if isinstance(timeout, Scalar) and type(timeout.value) is int else 60
        if not 1 <= seconds <= MAX_GUARD_S:
            self._refuse(f"the timeout of a hook must be from 1 to {MAX_GUARD_S} seconds", hook)
            return
        self._guards.append(CallGuard(matcher if matcher != "*" else "", command, seconds))

    def _refuse(self, message: str, at: Node) -> None:
        hint = "only `type: command` can judge a call here; remove the hook, or use another role"
        self._notes.error(".refused", message, at, hint)


def _text(node: Node | None) -> str:
    return node.text if isinstance(node, Scalar) else ""


def _is_bad_pattern(matcher: str) -> bool:
    """Matchers are names with `|` between them, or regular expressions; those we keep are the former."""
    return re.fullmatch(r"\*?|[\w*.-]+(?:\|[\w*.-]+)*", matcher) is None
