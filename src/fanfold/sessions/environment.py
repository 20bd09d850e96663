"""What a process we start may know of our environment: a short list, and what its step gives it.

Provider keys stay in this process. A step cannot hand one on either, not even under another name: recipes
are written by people who need not know which key the engine was given. Only an agent for which the user
named a key in their own configuration gets that one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from fanfold.agents.providers import key_variables
from fanfold.workspace.sandbox.policy import GIVEN

MARKER = "FANFOLD_SESSION"
"""Names the session a process belongs to; how stragglers are found after a crash."""
ALLOWED = frozenset(("PATH", "HOME", "LANG", "TERM", "TMPDIR", "TZ")) | {
    f"LC_{name}" for name in ("ALL", "COLLATE", "CTYPE", "MESSAGES", "MONETARY", "NUMERIC", "TIME")
}
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


def child_environment(
    session_id: str,
    given: Mapping[str, str] | None = None,
    ours: Mapping[str, str] | None = None,
    named: Collection[str] = (),
) -> dict[str, str]:
    """The environment of a process of a session; `ours` defaults to this process's.

    `named` are variables of `given` that the user named for this very program: keys of theirs, too.
    """
    ours = os.environ if ours is None else ours
    passed = {name: ours[name] for name in ALLOWED if name in ours}
    keys = key_variables()
    secrets = {ours[name] for name in keys if ours.get(name)}
    passed |= {
        name: text
        for name, text in (given or {}).items()
        if name.removeprefix(GIVEN) in named or (name.removeprefix(GIVEN) not in keys and text not in secrets)
    }
    passed.setdefault("PATH", DEFAULT_PATH)
    passed[MARKER] = session_id
    return passed
