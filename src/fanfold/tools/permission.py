"""Whether a tool may change anything: `read_only` denies, `ask` asks a person, `auto` goes ahead.

What only reads is a mutation too when it starts something: a run or a subagent spends money. A person agrees
to what they were shown and to nothing else; what an agent wants to do besides is asked for by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from fanfold.agents.permissions import Action
from fanfold.errors import EXIT_PERMISSION, WorldError
from fanfold.kernel.plan import Plan
from fanfold.text.excerpts import shorten
from fanfold.text.terminal import visible
from fanfold.tools.caller import Caller, Form

YES, NO = "allow", "deny"
MAX_LINES = 40
MAX_LINE_CHARS = 300
READ_ONLY = "it has --permission read_only: the user can do it in a terminal, or choose another one for it"


class Agreed:
    """A person who agreed to what a recipe or task declares, and whom nobody can ask again."""

    def may_run(self, plan: Plan, lines: Sequence[str]) -> bool:  # noqa: ARG002 - they were shown before
        return True

    async def allow(self, action: Action) -> bool:  # noqa: ARG002 - whatever it is
        return False


async def permit(caller: Caller, what: str, lines: Sequence[str]) -> None:
    """Return when the caller may do `what`; `lines` say what it entails. Raises `permission_denied`."""
    posture = caller.options.permission
    if posture == "auto":
        return
    if posture == "read_only":
        raise denied(f"this session may only read, so it may not {what}", READ_ONLY)
    filled = await caller.person.fill_in(_form(what, lines)) if caller.person is not None else None
    if filled is None:
        raise denied(f"nobody could be asked whether to {what}", caller.how_to_allow, lines)
    if filled.values is None or filled.values.get("decision") != YES:
        raise denied(f"the user does not want you to {what}", "ask the user what they want instead")


def denied(message: str, hint: str, lines: Sequence[str] = ()) -> WorldError:
    details = {"needs": list(lines)} if lines else {}
    return WorldError("permission_denied", message, hint=hint, details=details, exit_status=EXIT_PERMISSION)


def _form(what: str, lines: Sequence[str]) -> Form:
    # Texts of recipes and models stand in it: each on a line of its own, so that none passes for another.
    shown = [f"  {shorten(visible(line), MAX_LINE_CHARS)}" for line in lines[:MAX_LINES]]
    if len(lines) > MAX_LINES:
        shown.append(f"  and {len(lines) - MAX_LINES} more")
    decision = {"type": "string", "title": "Decision", "enum": [YES, NO]}
    return Form(
        key="consent",
        message="\n".join([f"Fanfold asks for permission to {visible(what)}.", *shown]),
        properties={"decision": decision},
        required=("decision",),
    )
