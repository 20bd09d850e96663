"""What no step may ever change, whatever its write-set says: files that are instructions to programs.

Git's (hooks and configuration run code), Fanfold's, and what tells Codex and Claude Code who their agents are
and which programs to start, at any depth: a folder inside may be somebody's project too.

Rules
* Names are compared as the most forgiving file system would: without case, without characters nobody sees,
  and with the short names of old disks: what is harmless here is no trap where it is checked out next.
* Pointing at something protected is changing it: links are followed as the kernel follows them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Final

LEFTOVER: Final = re.compile(r"\.fanfold-[0-9a-f]{16}\.tmp\Z")
"""What our tools call a file that is about to become another: one that died in between leaves it behind."""
OWNERS: Final = {
    ".git": "git",
    ".fanfold": "Fanfold",
    ".codex": "Codex",
    ".claude": "Claude Code",
    ".mcp.json": "Claude Code",
}
"""Protected names, and whose they are."""
MAX_LINKS: Final = 40
_SHORT: Final = {"git~1": ".git", "fanfol~1": ".fanfold", "codex~1": ".codex", "claude~1": ".claude"}


def plain_name(name: str) -> str:
    """A name as a forgiving file system reads it.

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
    """Whose a protected path is; nothing for any other.

    >>> [owner_of(path) for path in ("lib/.git/config", ".Fanfold/x", ".mcp.json", "git.py")]
    ['git', 'Fanfold', 'Claude Code', '']
    """
    if "." not in path and "~" not in path:
        return ""
    for name in path.split("/"):
        owner = OWNERS.get(plain_name(name))
        if owner is not None:
            return owner
    return ""


def is_protected(path: str) -> bool:
    """Whether no step may change what is at a path."""
    return owner_of(path) != ""


def leads_out(path: str, target: str, link_at: Callable[[str], str | None]) -> bool:
    """Whether a link at `path` ends outside the workspace, or at or behind something protected.

    `link_at` tells where the link at a path of the workspace points; None for what is no link.

    >>> def no_links(_): return None
    >>> [leads_out("a/b", to, no_links) for to in ("../c", "../../c", "/etc", "../.git")]
    [False, True, True, True]
    >>> leads_out("y", "x/../f", {"x": "."}.get)
    True
    """
    here = path.split("/")[:-1]
    ahead = _reversed(target)
    followed = 0
    if not target or target.startswith("/"):
        return True
    while ahead:
        name = ahead.pop()
        if name == "..":
            if not here:
                return True
            here.pop()
            continue
        here.append(name)
        if is_protected("/".join(here)):
            return True
        inner = link_at("/".join(here))
        if inner is not None:
            followed += 1
            if not inner or inner.startswith("/") or followed > MAX_LINKS:
                return True
            here.pop()
            ahead += _reversed(inner)
    return False


def _reversed(target: str) -> list[str]:
    return [name for name in target.split("/") if name not in ("", ".")][::-1]
