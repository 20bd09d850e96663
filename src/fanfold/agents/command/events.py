"""What a program says while it works, line by line, as facts.

Rules
* A line is JSON or it is none; what is none is counted and otherwise left alone. Lines have a largest size.
* Paths are names with dots (`item.text`, `errors.0`), from the top of a line or, with `each.`, from one
  element of the list that the rule names. `a | b` is the first that is there, `a + b` a sum, `=true` itself.
* A condition is a value, a list of values, `"*"` for anything that is there, or `{ not = value }`.
* Whatever a program says is somebody else's text: it is taken as text and numbers, and nothing follows from
  its form.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fanfold.agents.command.profile import Meaning, Rule
from fanfold.kernel.events import MOST_SPENT, Usage
from fanfold.kernel.plan import JSON
from fanfold.text.json_value import with_text_only

_OUTCOME = ("failed", "ok", "state", "exit_code")
TAKES: dict[Meaning, tuple[str, ...]] = {
    "began": ("conversation", "model", "version"),
    "said": ("text", "message", "model", "delta"),
    "delta": ("text",),
    "called": ("id", "tool", "args", "message"),
    "returned": ("id", "tool", "args", "text", *_OUTCOME),
    "trouble": ("text", "status"),
    "spent": ("input", "output", "usd"),
    "denied": ("id", "tool"),
    "finished": ("text", "value", "reason", "why", "status", *_OUTCOME),
}
"""What a rule may take from a line, by what the line means."""
_BAD = frozenset(("error", "failed", "failure", "declined"))
_MICRO = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+=-]{0,199}")


class Began(Struct, frozen=True):
    """It says which conversation this is."""

    conversation: str
    model: str = ""
    version: str = ""


class Said(Struct, frozen=True):
    """Words of its model; those of one message may come in pieces."""

    text: str
    message: str = ""
    model: str = ""
    delta: bool = False


class Delta(Struct, frozen=True):
    """A few words that will come again as a whole."""

    text: str


class Called(Struct, frozen=True):
    """It uses one of its tools."""

    id: str
    tool: str
    args: JSON = None
    message: str = ""


class Returned(Struct, frozen=True):
    """What came of that."""

    id: str
    text: str = ""
    failed: bool = False
    tool: str = ""
    args: JSON = None


class Hitch(Struct, frozen=True):
    """An error that it may get over by itself."""

    text: str
    status: int | None = None


class Consumed(Struct, frozen=True):
    """What was used since the last time."""

    usage: Usage


class Denied(Struct, frozen=True):
    """It was not allowed to use a tool."""

    id: str
    tool: str


class TurnEnd(Struct, frozen=True, kw_only=True):
    """It says that its turn is over, and how."""

    text: str | None = None
    value: JSON | UnsetType = UNSET
    failed: bool = False
    reason: str = ""
    why: str = ""
    status: int | None = None


Fact: TypeAlias = Began | Said | Delta | Called | Returned | Hitch | Consumed | Denied | TurnEnd


def read_line(line: bytes, rules: Sequence[Rule]) -> list[Fact] | None:
    """What one line means; None when it is no line of this format."""
    value = decode_line(line)
    return list(_facts(value, rules)) if isinstance(value, dict) else None


def decode_line(line: bytes) -> JSON:
    """One line as JSON; None when it is none.

    Programs cut text in the middle of a character, and write numbers that are none: a whole line is not lost
    for that.

    >>> decode_line(b'{"a": NaN}'), decode_line(b'{"a":')
    ({'a': None}, None)
    """
    try:
        return with_text_only(msgspec.json.decode(line))
    except (ValueError, RecursionError):  # bytes that are no text are no `DecodeError`
        pass
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return with_text_only(json.loads(line.decode("utf-8", "replace"), parse_constant=lambda _: None))
    except (ValueError, RecursionError):
        return None


def _facts(line: Mapping[str, JSON], rules: Sequence[Rule]) -> Iterator[Fact]:
    for rule in rules:
        elements = _at(line, rule.each) if rule.each else [None]
        for one in elements if isinstance(elements, list) else ():
            view = {**line, "each": one} if rule.each else line
            if all(_fits(_at(view, path), wanted) for path, wanted in rule.when.items()):
                taken = {name: _take(view, path) for name, path in rule.take.items()}
                fact = _make(rule.means, taken)
                if fact is not None:
                    yield fact


def _at(value: JSON, path: str) -> JSON:
    for name in path.split("."):
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _take(view: Mapping[str, JSON], path: str) -> JSON:
    if path.startswith("="):
        return True if path == "=true" else path[1:]
    if "+" in path:
        return sum(_amount(_at(view, part.strip())) for part in path.split("+"))
    for part in path.split("|"):
        found = _at(view, part.strip())
        if found is not None:
            return found
    return None


def _fits(found: JSON, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return bool(found != wanted.get("not"))
    if isinstance(wanted, list | tuple):
        return found in wanted
    return found is not None if wanted == "*" else found == wanted


def _make(means: str, taken: Mapping[str, JSON]) -> Fact | None:
    def text(name: str) -> str:
        return _words(taken.get(name))

    match means:
        case "began":
            return Began(_name(taken.get("conversation")), text("model")[:200], text("version")[:200])
        case "said":
            return Said(text("text"), text("message"), text("model"), taken.get("delta") is True)
        case "delta":
            return Delta(text("text"))
        case "called":
            return Called(text("id"), text("tool") or "tool", taken.get("args"), text("message"))
        case "returned":
            return Returned(text("id"), text("text"), _is_bad(taken), text("tool"), taken.get("args"))
        case "trouble":
            return Hitch(text("text"), _status(taken.get("status")))
        case "spent":
            return next(iter(consumed(taken)), None)
        case "denied":
            return Denied(text("id"), text("tool") or "tool")
        case _:
            return _finished(taken)


def _finished(taken: Mapping[str, JSON]) -> TurnEnd:
    said, value = taken.get("text"), taken.get("value")
    return TurnEnd(
        text=None if said is None else _words(said),
        value=UNSET if value is None else value,
        failed=_is_bad(taken),
        reason=_words(taken.get("reason")),
        why=_words(taken.get("why")),
        status=_status(taken.get("status")),
    )


def _is_bad(taken: Mapping[str, JSON]) -> bool:
    """Whether something failed; a flag that is set to something odd is set."""
    return (
        taken.get("failed") not in (None, False)
        or taken.get("ok") is False
        or taken.get("state") in _BAD
        or taken.get("exit_code") not in (None, 0)
    )


def consumed(taken: Mapping[str, JSON]) -> list[Fact]:
    """What was used, and its price if one is said; none at all is not known to be nothing."""
    usd = _amount(taken.get("usd"))
    price = math.ceil(usd * _MICRO) if usd > 0 else None
    tokens = int(_amount(taken.get("input"))), int(_amount(taken.get("output")))
    return [Consumed(Usage(*tokens, price).bounded())] if any(tokens) or price is not None else []


def _amount(value: JSON) -> float:
    """A number that somebody says, within what can be counted; 0 for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return 0
    return min(value, MOST_SPENT)


def _name(value: JSON) -> str:
    """The name of a conversation, which is a word of the next call; empty for what could mean more there."""
    return value if isinstance(value, str) and _NAME.fullmatch(value) else ""


def _status(value: JSON) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600 else None


def _words(value: JSON) -> str:
    """Text as it is; lists of pieces of text joined; anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(one, dict) and "text" in one for one in value):
        return "\n".join(str(one["text"]) for one in value if isinstance(one, dict))
    return msgspec.json.encode(value).decode()
