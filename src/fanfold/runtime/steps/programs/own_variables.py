"""Variables of the user's own environment that a command asks for by name (`env_vars`).

A recipe may be anybody's, and so may the yes that a script gave it: a variable is handed over only when the
user's own configuration lists its name, and to that command alone. Its value is taken from the environment
when the command starts, and is in no plan, event or output: what is written down is masked.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from msgspec import Struct

from fanfold.agents.redaction import MIN_SECRET_CHARS, looks_secret

SETTING = "environment.allow"


class Withheld(Struct, frozen=True):
    """Why a variable is not handed over."""

    code: str
    message: str
    hint: str


def why_withheld(names: Iterable[str], allowed: Collection[str]) -> Withheld | None:
    """The first reason why one of these variables cannot be handed over, or nothing."""
    wanted = tuple(names)
    if missing := [name for name in wanted if name not in allowed]:
        listed = ", ".join(f'"{name}"' for name in (*sorted(allowed), *missing))
        message = f"{', '.join(missing)} of your environment is asked for, and you did not allow it"
        hint = f"in your own config.toml: [environment] allow = [{listed}]"
        return Withheld("variable.not_allowed", message, hint)
    for name in wanted:
        value = os.environ.get(name, "")
        if not value:
            return Withheld("variable.not_set", f"{name} is not set in your environment", f"export {name}=…")
        if looks_secret(name) and len(value) < MIN_SECRET_CHARS:
            message = f"{name} has fewer than {MIN_SECRET_CHARS} characters, and could not be masked"
            return Withheld("variable.too_short", message, "give it a longer value, or another name")
    return None
