"""What no child may ever change, whatever its write-set says: files that are instructions to programs.

`.git` at any depth (hooks and configuration run code), `.fanfold`, and the role files other folders may hold.
Names are compared as the most forgiving file system would: without case, without characters nobody sees, and
with the short names of old disks, so that what is harmless here is not a trap where it is checked out next.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata

LEFTOVER = re.compile(r"\.fanfold-[0-9a-f]{16}\.tmp\Z")
"""What our tools call a file that is about to become another: one that died in between leaves it behind."""
ROLE_FOLDERS = (".codex/agents", ".claude/agents")
_SHORT = {"git~1": ".git", "fanfol~1": ".fanfold"}


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


def is_protected(path: str) -> bool:
    """Whether a path belongs to git, to Fanfold or to the roles.

    >>> [is_protected(path) for path in ("lib/.git/config", ".Fanfold/x", ".codex/agents/a.toml", "git.py")]
    [True, True, True, False]
    """
    if "." not in path and "~" not in path:
        return False
    names = [plain_name(name) for name in path.split("/")]
    if ".git" in names or names[0] == ".fanfold":
        return True
    return "/".join(names[:2]) in ROLE_FOLDERS


def leads_out(path: str, target: str) -> bool:
    """Whether a link at `path` points out of the workspace or at something protected.

    >>> leads_out("a/b", "../c"), leads_out("a/b", "../../c"), leads_out("a", "/etc"), leads_out("a", ".git")
    (False, True, True, True)
    """
    if not target or target.startswith("/"):
        return True
    landed = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return landed == ".." or landed.startswith("../") or is_protected(landed)
