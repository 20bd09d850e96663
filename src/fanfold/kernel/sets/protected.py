"""What no step may ever change, whatever its write-set says: files that are instructions to programs.

Git's (hooks and configuration run code), Fanfold's, and what tells agents that are programs which servers,
hooks and plugins to start when their user next calls them, at any depth: a folder inside may be somebody's
project too.

Rules
* One list, of names and of names in a folder (`.vscode/mcp.json`), for merges, tools, sandboxes and checks.
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
"""Protected names, and whose they are: at most two, one in the other."""
FOLDERS: Final = frozenset(name.partition("/")[0] for name in OWNERS if "/" in name)
"""Folders of which a part is protected."""
MAX_LINKS: Final = 40
_SHORT_CHARS: Final = 6


def _short_names() -> dict[str, str]:
    """Names as old disks shorten them: six characters and the end, upper case, no dot before."""
    parts = (part for name in OWNERS for part in name.split("/"))
    found: dict[str, str] = {}
    for part in parts:
        stem, dot, end = part.lstrip(".").partition(".")
        if part.startswith(".") or len(stem) > 8 or len(end) > 3:
            found.setdefault(f"{stem[:_SHORT_CHARS]}~1{dot}{end[:3]}", part)
    return found


_SHORT: Final = _short_names()


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
    """Whether no step may change what is at a path."""
    return owner_of(path) != ""


def holds_protected(path: str) -> bool:
    """Whether a part of a folder at a path would be protected: a link there is a way round it."""
    return plain_name(path.rpartition("/")[2]) in FOLDERS


def leads_out(path: str, target: str, link_at: Callable[[str], str | None]) -> bool:
    """Whether a link at `path` ends outside the workspace, or at or behind something protected.

    `link_at` tells where the link at a path of the workspace points; None for what is no link.

    >>> def no_links(_): return None
    >>> [leads_out("a/b", to, no_links) for to in ("../c", "../../c", "/etc", "../.git")]
    [False, True, True, True]
    >>> leads_out("y", "x/../f", {"x": "."}.get)
    True
    """
    landed = landing(path, target, link_at)
    return landed is None or landed[1]


def landing(path: str, target: str, link_at: Callable[[str], str | None]) -> tuple[str, bool] | None:
    """Where a link ends, and whether something protected is on the way; None when that is outside.

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
