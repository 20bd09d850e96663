"""Claims: an index that finds the latest live claim that overlaps a set of paths; and protected paths.

A claim is a sequence number and a set of patterns. `ClaimIndex` answers in constant time if sets are
literal folders and files, or identical. It compares a set with all others only if patterns require it.

Design
    * A trie over the literal leading segments of patterns (their head). A pattern is stored at the node of
      its head: as `exact` (the head alone), `subtree` (`head/**`) or `loose` (anything else).
    * All claims that can overlap a pattern are on the path to its head, or below it. On the path: `subtree`
      claims always overlap, `loose` claims may, `exact` claims cannot. Below the head: every claim overlaps
      `head/**`, no claim overlaps the head alone, and for any other pattern the index must search.
    * Every node keeps the numbers of all claims below it, in order. So "the latest below here" needs no
      enumeration. A set is interned together with its buckets: a claim adds one number to each bucket.
      Identical sets share everything.
    * A search starts at the latest number and goes down: the first claim that overlaps is the result. After
      a few misses it goes by distinct patterns instead. It then skips every branch that has no claim later
      than the best one so far, or that cannot overlap.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from fanfold.kernel.paths import MAX_LENGTH, Glob, overlap, read_glob

_RUN = 256
_MAX_DEPTH = 8  # segments beyond this depth are compared, not walked: a claim costs one bucket per level
_PATIENCE = 16
_MAX_IDLE = 1_024
_NEVER = 1 << 62


class _Seqs(list[int]):
    """A sorted list of numbers, split into runs so that a removal moves few numbers. Fast for appending.

    The list itself is the last run. Equal numbers stay in one run. An older run starts at or after its
    entry in `_firsts`, and before that of the next run. No run is empty, unless it is the only one.
    """

    __slots__ = ("_firsts", "_older")

    def __init__(self) -> None:
        self._older: list[list[int]] | None = None
        self._firsts: list[int] | None = None

    def put(self, seq: int) -> None:
        if not self or seq >= self[-1]:
            if len(self) >= _RUN and seq != self[-1]:
                self._older, self._firsts = self._older or [], self._firsts or []
                self._older.append(self[:])
                self._firsts.append(self[0])
                self.clear()
            self.append(seq)
        elif self._older and self._firsts and seq < self[0]:
            at = max(bisect_right(self._firsts, seq) - 1, 0)
            self._firsts[at] = min(self._firsts[at], seq)
            insort(self._older[at], seq)
        else:
            insort(self, seq)

    def take(self, seq: int) -> None:
        """Remove one occurrence of a number. The list must contain it."""
        if self._older and self._firsts and seq < self[0]:
            at = bisect_right(self._firsts, seq) - 1
            run = self._older[at]
            del run[bisect_left(run, seq)]
            if not run:
                del self._older[at], self._firsts[at]
        else:
            del self[bisect_left(self, seq)]
            if self._older and self._firsts and not self:
                self.extend(self._older.pop())
                self._firsts.pop()

    def latest(self, below: int) -> int:
        """Return the greatest number less than `below`, or -1."""
        if not self:
            return -1
        newest = self[-1]
        if newest < below:
            return newest
        run: list[int] = self
        if self._older and self._firsts and below <= self[0]:
            first = max(bisect_left(self._firsts, below) - 1, 0)
            run = self._older[first]
            if run[0] >= below and first:
                return self._older[first - 1][-1]
        at = bisect_left(run, below)
        return run[at - 1] if at else -1


class _Node:
    """One literal segment: the claims of patterns whose head ends here, and all claims below."""

    __slots__ = ("below", "children", "exact", "loose", "patterns", "subtree")

    def __init__(self) -> None:
        self.children: dict[str, _Node] | None = None
        self.below: _Seqs | None = None
        self.exact: _Seqs | None = None
        self.subtree: _Seqs | None = None
        self.loose: _Seqs | None = None
        self.patterns: dict[str, _Seqs] | None = None
        """The loose claims again, by pattern."""

    def latest(self, below: int) -> int:
        """Return the latest claim here or below, or -1."""
        best = -1 if self.subtree is None else self.subtree.latest(below)
        if self.below is not None:
            best = max(best, self.below.latest(below))
        if self.exact is not None:
            best = max(best, self.exact.latest(below))
        if self.loose is not None:
            best = max(best, self.loose.latest(below))
        return best


class _Set:
    """A distinct set of patterns, the buckets of its claims, and the number of its claims."""

    __slots__ = ("buckets", "globs", "live", "patterns")

    def __init__(self, patterns: tuple[str, ...], globs: tuple[Glob, ...], buckets: list[_Seqs]) -> None:
        self.patterns, self.globs, self.buckets = patterns, globs, buckets
        self.live = 0


class ClaimIndex:
    """An index of live claims by number; finds the latest that overlaps a set.

    >>> index = ClaimIndex()
    >>> index.add(1, ("src/**",))
    >>> index.add(2, ("docs/**",))
    >>> index.latest(("src/*.py",)), index.latest(("**/*",)), index.latest(("**/*",), below=2)
    (1, 2, 1)
    """

    def __init__(self) -> None:
        self._root = _Node()
        self._sets: dict[tuple[str, ...], tuple[_Set]] = {}
        self._claims: dict[int, tuple[_Set, ...]] = {}
        self._count = 0
        self._idle = 0

    def __len__(self) -> int:
        return self._count

    def add(self, seq: int, patterns: tuple[str, ...]) -> None:
        """Claim a set. One number may claim several different sets."""
        entry = self._sets.get(patterns) or self._intern(patterns)
        known = entry[0]
        if seq in self._claims:
            if known in self._claims[seq]:
                raise ValueError(f"claim {seq} holds {patterns} already")
            self._claims[seq] += entry
        elif seq < 0:
            raise ValueError(f"claim {seq} is negative")
        else:
            self._claims[seq] = entry
        if not known.live:
            self._idle -= 1
        known.live += 1
        self._count += 1
        for bucket in known.buckets:
            bucket.put(seq)

    def remove(self, seq: int, patterns: tuple[str, ...]) -> None:
        """Release a set. Raises KeyError if it is not claimed."""
        known = self._sets[patterns][0]
        held = self._claims[seq]
        if known not in held:
            raise KeyError(seq)
        if len(held) == 1:
            del self._claims[seq]
        else:
            self._claims[seq] = tuple(other for other in held if other is not known)
        known.live -= 1
        if not known.live:
            self._idle += 1
        self._count -= 1
        for bucket in known.buckets:
            bucket.take(seq)

    def latest(self, patterns: tuple[str, ...], below: int | None = None) -> int | None:
        """Return the greatest number (less than `below`) whose set overlaps `patterns`, or None."""
        entry = self._sets.get(patterns)
        globs = _read_set(patterns) if entry is None else entry[0].globs
        if not self._count:
            return None
        best = -1
        for glob in globs:
            best = self._latest(glob, _NEVER if below is None else below, best)
        return None if best < 0 else best

    def _latest(self, glob: Glob, below: int, best: int) -> int:
        node, depth = self._root, len(glob.head)
        for name in glob.head if depth <= _MAX_DEPTH else glob.head[:_MAX_DEPTH]:
            if node.subtree is not None:
                best = max(best, node.subtree.latest(below))
            if node.loose is not None:
                best = self._latest_loose(node, glob, below, best)
            child = node.children.get(name) if node.children else None
            if child is None:
                return best
            node = child
        if depth > _MAX_DEPTH or not (glob.subtree or glob.exact):
            return self._latest_further(node, glob, below, best)
        if glob.subtree:
            return max(best, node.latest(below))
        for certain in (node.exact, node.subtree):
            if certain is not None:
                best = max(best, certain.latest(below))
        return best if node.loose is None else self._latest_loose(node, glob, below, best)

    def _latest_loose(self, node: _Node, glob: Glob, below: int, best: int) -> int:
        """Return the latest claim among `best` and the loose patterns at one node."""
        best, settled = self._go_down(node.loose, glob, below, best)
        if not settled and node.patterns:
            for pattern, seqs in node.patterns.items():
                seq = seqs.latest(below)
                if seq > best and overlap(glob.text, pattern):
                    best = seq
        return best

    def _latest_further(self, top: _Node, glob: Glob, below: int, best: int) -> int:
        """Return the latest claim among `best` and everything at or below the head of a loose pattern."""
        pending = [(top, "/".join(glob.head[:_MAX_DEPTH]))]
        while pending:
            node, path = pending.pop()
            if node.subtree is not None:
                best = max(best, node.subtree.latest(below))
            if node.exact is not None and overlap(glob.text, path):
                best = max(best, node.exact.latest(below))
            if node.loose is not None:
                best = self._latest_loose(node, glob, below, best)
            best, settled = self._go_down(node.below, glob, below, best)
            if not settled and node.children:
                prefix = path and path + "/"
                for name, child in node.children.items():
                    if child.latest(below) > best and _may_reach(glob, prefix + name):
                        pending.append((child, prefix + name))
        return best

    def _go_down(self, seqs: _Seqs | None, glob: Glob, below: int, best: int) -> tuple[int, bool]:
        """Compare the latest few claims of a bucket; return the new `best` and whether it is final."""
        if seqs is None:
            return best, True
        text, seq = glob.text, below
        for _ in range(_PATIENCE):
            seq = seqs.latest(seq)
            if seq <= best:
                return best, True
            for held in self._claims[seq]:
                for other in held.globs:
                    if overlap(text, other.text):
                        return seq, True
        return best, False

    def _intern(self, patterns: tuple[str, ...]) -> tuple[_Set]:
        globs = _read_set(patterns)
        if self._idle > _MAX_IDLE + 4 * self._count:
            self._forget_idle()
        buckets = self._place(globs[0]) if globs else []
        for glob in globs[1:]:
            buckets += [new for new in self._place(glob) if not any(new is old for old in buckets)]
        self._idle += 1
        entry = self._sets[patterns] = (_Set(patterns, globs, buckets),)
        return entry

    def _place(self, glob: Glob) -> list[_Seqs]:
        """Create the nodes down to the head of a pattern; return the buckets on that path and at its end."""
        node, buckets = self._root, []
        for name in glob.head[:_MAX_DEPTH]:
            if node.children is None or node.below is None:
                node.children, node.below = {}, _Seqs()
            buckets.append(node.below)
            child = node.children.get(name)
            if child is None:
                child = node.children[name] = _Node()
            node = child
        if len(glob.head) > _MAX_DEPTH or not (glob.exact or glob.subtree):
            if node.loose is None or node.patterns is None:
                node.loose, node.patterns = _Seqs(), {}
            buckets += (node.loose, node.patterns.setdefault(glob.text, _Seqs()))
        elif glob.subtree:
            node.subtree = _Seqs() if node.subtree is None else node.subtree
            buckets.append(node.subtree)
        else:
            node.exact = _Seqs() if node.exact is None else node.exact
            buckets.append(node.exact)
        return buckets

    def _forget_idle(self) -> None:
        """Rebuild the trie from the live claims, so that memory stays proportional to them."""
        claims, self._claims = self._claims, {}
        self._root, self._sets, self._count, self._idle = _Node(), {}, 0, 0
        for seq in sorted(claims):
            for held in claims[seq]:
                self.add(seq, held.patterns)


def _may_reach(glob: Glob, path: str) -> bool:
    """Whether the pattern can match anything at or below a path; True if the path is too long to check."""
    return len(path) + 3 > MAX_LENGTH or overlap(glob.text, path + "/**")


def _read_set(patterns: tuple[str, ...]) -> tuple[Glob, ...]:
    if len(patterns) == 1 and "{" not in patterns[0]:
        return (read_glob(patterns[0]),)
    return _spread_set(patterns)


@lru_cache(maxsize=4_096)
def _spread_set(patterns: tuple[str, ...]) -> tuple[Glob, ...]:
    """Return the distinct patterns with plain braces expanded: `{a,b}/**` then has two useful heads."""
    return tuple(read_glob(text) for text in dict.fromkeys(one for each in patterns for one in _spread(each)))


def _spread(pattern: str) -> list[str]:
    """Expand the first group of braces, if its alternatives are plain text."""
    read_glob(pattern)
    before, opened, rest = pattern.partition("{")
    inside, _, after = rest.partition("}")
    names = inside.split(",")
    if not opened or "[" in pattern or len(names) > 32 or "" in names or not set("*?{").isdisjoint(inside):
        return [pattern]
    return [before + name + after for name in names]


# -----------------------------------------------------------------------------------------------------------
# Protected paths: files that configure programs. No step may change them, even if its write-set allows it.
#
# They belong to git (hooks and configuration run code), to Fanfold, and to agent programs. The files of an
# agent program define the servers, hooks and plugins that it starts the next time a user calls it. They are
# protected at any depth, because a folder inside the project may be a project, too.
#
# Rules
# * There is one list for merges, tools, sandboxes and checks. It holds names, and names in a folder
#   (`.vscode/mcp.json`).
# * Names are compared as the most lenient file system does: without case, without invisible characters, and
#   with the short names of old file systems. A harmless name here must not be dangerous in another checkout.
# * A link to a protected path counts as a change of it. Links are resolved as the operating system does.

LEFTOVER: Final = re.compile(r"\.fanfold-[0-9a-f]{16}\.tmp\Z")
"""Names of temporary files that our tools rename to their target; a tool that crashed leaves one behind."""
OWNERS: Final = {
    ".git": "git",
    ".fanfold": "Fanfold",
    ".codex": "Codex",
    ".claude": "Claude Code",
    ".mcp.json": "Claude Code",
    ".gemini": "Gemini CLI",
    ".qwen": "Qwen Code",
    ".opencode": "OpenCode",
    "opencode.json": "OpenCode",
    "opencode.jsonc": "OpenCode",
    ".copilot": "GitHub Copilot CLI",
    ".github/copilot": "GitHub Copilot CLI",
    ".github/hooks": "GitHub Copilot CLI",
    ".github/mcp.json": "GitHub Copilot CLI",
    ".goose": "Goose",
    ".cursor": "Cursor",
    ".vscode/mcp.json": "VS Code",
}
"""Protected names and their owners. A name has at most two segments."""
FOLDERS: Final = frozenset(name.partition("/")[0] for name in OWNERS if "/" in name)
"""Folders that are partly protected."""
LOGINS: Final = (
    ".claude/.credentials.json",
    ".codex/auth.json",
    ".copilot/config.json",
    ".gemini/oauth_creds.json",
    ".gemini/google_accounts.json",
    ".qwen/oauth_creds.json",
    ".config/goose/secrets.yaml",
    ".local/share/opencode/auth.json",
)
"""Login files of agent programs, relative to the home of their user."""
MAX_LINKS: Final = 40
_SHORT_CHARS: Final = 6


def _short_names() -> dict[str, str]:
    """Map the short (8.3) names of old file systems to the protected names: six characters and the ending."""
    parts = (part for name in OWNERS for part in name.split("/"))
    found: dict[str, str] = {}
    for part in parts:
        stem, dot, end = part.lstrip(".").partition(".")
        if part.startswith(".") or len(stem) > 8 or len(end) > 3:
            found.setdefault(f"{stem[:_SHORT_CHARS]}~1{dot}{end[:3]}", part)
    return found


_SHORT: Final = _short_names()


def plain_name(name: str) -> str:
    """Return a name as a lenient file system reads it.

    >>> plain_name(".GIT "), plain_name(".g\\u200cit"), plain_name("GIT~1")
    ('.git', '.git', '.git')
    """
    if name.isascii():
        folded = name.lower()
    else:
        visible = (char for char in name if unicodedata.category(char) != "Cf")
        folded = unicodedata.normalize("NFKC", "".join(visible)).casefold()
    folded = folded.partition(":")[0].rstrip(" .") or folded
    return _SHORT.get(folded, folded)


def owner_of(path: str) -> str:
    """Return the owner of a protected path; empty for any other path.

    >>> [owner_of(path) for path in ("lib/.git/config", ".Fanfold/x", ".vscode/MCP.json", ".vscode/x")]
    ['git', 'Fanfold', 'VS Code', '']
    """
    if "." not in path and "~" not in path:
        return ""
    before = ""
    for name in path.split("/"):
        plain = plain_name(name)
        owner = OWNERS.get(plain) or (OWNERS.get(f"{before}/{plain}") if before in FOLDERS else None)
        if owner is not None:
            return owner
        before = plain
    return ""


def is_protected(path: str) -> bool:
    """Whether a path is protected: no step may change it."""
    return owner_of(path) != ""


def why_unreadable(path: str) -> str:
    """Return why tools of agents may not read a path; empty if they may.

    >>> why_unreadable("sub/.Fanfold/x"), why_unreadable("me/.codex/auth.json"), why_unreadable(".codex/x")
    ('this belongs to Fanfold', 'this is the login of an agent', '')
    """
    if "." not in path and "~" not in path:
        return ""
    plain = [plain_name(name) for name in path.split("/")]
    if ".fanfold" in plain:
        return "this belongs to Fanfold"
    where = f"/{'/'.join(plain)}"
    return "this is the login of an agent" if where.endswith(tuple(f"/{name}" for name in LOGINS)) else ""


def holds_protected(path: str) -> bool:
    """Whether a folder at this path is partly protected. A link at this path would bypass the protection."""
    return plain_name(path.rpartition("/")[2]) in FOLDERS


def leads_out(path: str, target: str, link_at: Callable[[str], str | None]) -> bool:
    """Whether a link at `path` ends outside the workspace, or reaches or passes a protected path.

    `link_at` returns the target of the link at a path of the workspace; None if the path is no link.

    >>> def no_links(_): return None
    >>> [leads_out("a/b", to, no_links) for to in ("../c", "../../c", "/etc", "../.git")]
    [False, True, True, True]
    >>> leads_out("y", "x/../f", {"x": "."}.get)
    True
    """
    landed = landing(path, target, link_at)
    return landed is None or landed[1]


def landing(path: str, target: str, link_at: Callable[[str], str | None]) -> tuple[str, bool] | None:
    """Return where a link ends and whether it passes a protected path; None if it ends outside.

    >>> landing(".claude/skills", "../skills", lambda _: None)
    ('skills', False)
    """
    here = path.split("/")[:-1]
    ahead = _reversed(target)
    followed = 0
    guarded = False
    if not target or target.startswith("/"):
        return None
    while ahead:
        name = ahead.pop()
        if name == "..":
            if not here:
                return None
            here.pop()
            continue
        here.append(name)
        guarded = guarded or is_protected("/".join(here))
        inner = link_at("/".join(here))
        if inner is not None:
            followed += 1
            if not inner or inner.startswith("/") or followed > MAX_LINKS:
                return None
            here.pop()
            ahead += _reversed(inner)
    return "/".join(here), guarded


def _reversed(target: str) -> list[str]:
    return [name for name in target.split("/") if name not in ("", ".")][::-1]
