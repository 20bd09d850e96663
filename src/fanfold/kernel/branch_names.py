"""Names of branches: those that git takes, and that mean nothing else anywhere."""

from __future__ import annotations

import re

_OID = re.compile(r"[0-9a-f]{40}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9._/+@=-]{1,200}", re.ASCII)


def check_branch_name(branch: str) -> str:
    """Why a text cannot name a branch of ours; empty when it can.

    >>> check_branch_name("fix/owls"), check_branch_name("a..b")
    ('', "'a..b' cannot be the name of a branch")
    """
    parts = branch.split("/")
    bad = not _NAME.fullmatch(branch) or ".." in branch or "@{" in branch or branch.endswith((".", "/"))
    bad = bad or any(not part or part.startswith((".", "-")) or part.endswith(".lock") for part in parts)
    if bad or branch in ("HEAD", "@") or _OID.fullmatch(branch):
        return f"{branch!r:.120} cannot be the name of a branch"
    return ""
