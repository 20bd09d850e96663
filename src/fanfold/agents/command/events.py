"""The output of a program, line by line, as facts.

Rules
* A line is JSON or garbage. Garbage lines are counted and otherwise ignored. Lines have a maximum size.
* Paths are names with dots (`item.text`, `errors.0`). They start at the top of a line or, with `each.`, at
  one element of the list that the rule names. `a.*.b` is the sum over all values of `a`. `a | b + c` is
  `a` if it exists, else the sum of `b` and `c`; `=true` is a constant.
* A condition is a value, a list of values, `"*"` for any existing value, or `{ not = value }`.
* The output of a program is untrusted. It is used only as text and numbers.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from pathlib import PurePosixPath
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from fanfold.agents.command.profile import Meaning, Profile, Rule
from fanfold.kernel.events import MOST_SPENT, Usage
from fanfold.kernel.plan import JSON
from fanfold.language.json_text import with_text_only

_OUTCOME = ("failed", "ok", "state", "exit_code")
TAKES: dict[Meaning, tuple[str, ...]] = {
    "began": ("conversation", "model", "version"),
    "said": ("text", "message", "model", "delta"),
    "delta": ("text",),
    "called": ("id", "tool", "args", "message"),
    "returned": ("id", "tool", "args", "text", *_OUTCOME),
    "trouble": ("text", "status"),
    "spending": ("message", "input", "cached", "output", "usd"),
    "spent": ("input", "cached", "output", "usd"),
    "denied": ("id", "tool"),
    "limited": ("until", "text"),
    "finished": ("text", "value", "reason", "why", "status", *_OUTCOME),
}
"""The fields that a rule can take from a line, by the meaning of the line."""
_BAD = frozenset(("error", "failed", "failure", "declined"))
_MICRO = 1_000_000
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.:@+=-]{0,199}"


class ConversationStart(Struct, frozen=True):
    """The id of the conversation, with the model and the version."""

    conversation: str
    model: str = ""
    version: str = ""


class TextEvent(Struct, frozen=True):
    """Text of its model; the text of one message can arrive in pieces."""

    text: str
    message: str = ""
    model: str = ""
    delta: bool = False


class Delta(Struct, frozen=True):
    """A part of a text that will arrive again as a whole."""

    text: str


class ToolCallEvent(Struct, frozen=True):
    """A call of one of its tools."""

    id: str
    tool: str
    args: JSON = None
    message: str = ""


class ToolResultEvent(Struct, frozen=True):
    """The result of a tool call."""

    id: str
    text: str = ""
    failed: bool = False
    tool: str = ""
    args: JSON = None


class Hitch(Struct, frozen=True):
    """An error that the program may recover from."""

    text: str
    status: int | None = None


class UsageEvent(Struct, frozen=True):
    """The usage since the last event; with `message`, the usage of that message so far."""

    usage: Usage
    message: str = ""


class DenialEvent(Struct, frozen=True):
    """A tool was denied."""

    id: str
    tool: str


class LimitEvent(Struct, frozen=True):
    """A usage limit blocks the program until then; 0: unknown."""

    until: int
    words: str = ""


class TurnEnd(Struct, frozen=True, kw_only=True):
    """The end of a turn, and its outcome."""

    text: str | None = None
    value: JSON | UnsetType = UNSET
    failed: bool = False
    reason: str = ""
    why: str = ""
    status: int | None = None


Fact: TypeAlias = (
    ConversationStart
    | TextEvent
    | Delta
    | ToolCallEvent
    | ToolResultEvent
    | Hitch
    | UsageEvent
    | DenialEvent
    | LimitEvent
    | TurnEnd
)


def read_line(line: bytes, rules: Sequence[Rule]) -> list[Fact] | None:
    """Return the facts of one line; None if the line is not in this format."""
    value = decode_line(line)
    return list(facts_in(value, rules)) if isinstance(value, dict) else None


def decode_line(line: bytes) -> JSON:
    """Return one line as JSON; None if it is not JSON.

    Programs cut text inside a character and write invalid numbers. Such a line is still decoded.

    >>> decode_line(b'{"a": NaN}'), decode_line(b'{"a":')
    ({'a': None}, None)
    """
    try:
        return with_text_only(msgspec.json.decode(line))
    except (ValueError, RecursionError):  # bytes that are not text do not raise `DecodeError`
        pass
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return with_text_only(json.loads(line.decode("utf-8", "replace"), parse_constant=lambda _: None))
    except (ValueError, RecursionError):
        return None


def facts_in(line: Mapping[str, JSON], rules: Sequence[Rule]) -> Iterator[Fact]:
    """Yield the facts of one decoded line."""
    for rule in rules:
        elements = _at(line, rule.each) if rule.each else [None]
        for element in elements if isinstance(elements, list) else ():
            view = {**line, "each": element} if rule.each else line
            if all(_fits(_at(view, path), wanted) for path, wanted in rule.when.items()):
                taken = {name: _take(view, path) for name, path in rule.take.items()}
                fact = _make(rule.means, taken)
                if fact is not None:
                    yield fact


def _at(value: JSON, path: str) -> JSON:
    for at, name in enumerate(names := path.split(".")):
        if name == "*":
            rest = ".".join(names[at + 1 :])
            return (
                sum(_amount(_at(item, rest)) for item in value.values()) if isinstance(value, dict) else None
            )
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
    for way in path.split("|"):
        found = [value for part in way.split("+") if (value := _at(view, part.strip())) is not None]
        if found:
            return sum(map(_amount, found)) if "+" in way else found[0]
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
            # The id becomes a word of the next call; an unsafe one is dropped.
            name = taken.get("conversation")
            conversation = name if isinstance(name, str) and re.fullmatch(_NAME, name) else ""
            return ConversationStart(conversation, text("model")[:200], text("version")[:200])
        case "said":
            return TextEvent(text("text"), text("message"), text("model"), taken.get("delta") is True)
        case "delta":
            return Delta(text("text"))
        case "called":
            return ToolCallEvent(text("id"), text("tool") or "tool", taken.get("args"), text("message"))
        case "returned":
            return ToolResultEvent(text("id"), text("text"), _is_bad(taken), text("tool"), taken.get("args"))
        case "trouble":
            return Hitch(text("text"), _status(taken.get("status")))
        case "spent":
            return next(iter(consumed(taken)), None)
        case "spending":
            return next(iter(consumed(taken, text("message") or "all")), None)
        case "limited":
            return LimitEvent(reset_at(taken.get("until")), text("text"))
        case "denied":
            return DenialEvent(text("id"), text("tool") or "tool")
        case _:
            final, value = taken.get("text"), taken.get("value")
            return TurnEnd(
                text=None if final is None else _words(final),
                value=UNSET if value is None else value,
                failed=_is_bad(taken),
                reason=_words(taken.get("reason")),
                why=_words(taken.get("why")),
                status=_status(taken.get("status")),
            )


def _is_bad(taken: Mapping[str, JSON]) -> bool:
    """Return whether something failed; a flag with an unexpected value counts as set."""
    return (
        taken.get("failed") not in (None, False)
        or taken.get("ok") is False
        or taken.get("state") in _BAD
        or taken.get("exit_code") not in (None, 0)
    )


def consumed(taken: Mapping[str, JSON], message: str = "") -> list[Fact]:
    """Return the usage with its price, if reported; empty if no numbers are reported."""
    usd = _amount(taken.get("usd"))
    price = math.ceil(usd * _MICRO) if usd > 0 else None
    read, written, cached = (int(_amount(taken.get(name))) for name in ("input", "output", "cached"))
    if not read and not written and price is None:
        return []
    return [UsageEvent(Usage(read, written, price, cached).bounded(), message)]


def _amount(value: JSON) -> float:
    """Return a reported number, limited to the maximum; 0 if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return 0
    return min(value, MOST_SPENT)


def _status(value: JSON) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600 else None


def _words(value: JSON) -> str:
    """Return text unchanged, a list of text pieces joined, anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(item, dict) and "text" in item for item in value):
        return "\n".join(str(item["text"]) for item in value if isinstance(item, dict))
    return msgspec.json.encode(value).decode()


# -----------------------------------------------------------------------------------------------------------
# Checks of a profile: placeholders that are never filled in, facts that are never used.
#
# Otherwise such a mistake appears only during a run: an agent does not receive its task, or its answer is
# lost. `ValueError` names the word and the valid alternatives.

GROUPS = (
    *("budget", "conversation", "effort", "instructions", "max_turns", "model", "name", "only", "resume"),
    *("schema", "servers", "session", "tools"),
)
"""Names that are allowed in angle brackets and as keys of `options`."""
VALUES = (
    *("budget", "effort", "instructions", "max_turns", "model", "prompt", "prompt_file", "schema"),
    *("schema_file", "servers_allowed", "servers_file", "session", "tools", "tools_file"),
)
"""Names that are filled in between braces."""
_PLACES = {"argument": "{prompt}", "file": "{prompt_file}"}
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"


def check_profile(profile: Profile) -> None:
    """Raise `ValueError` for the first problem of a profile."""
    program = profile.program
    if not program:
        raise ValueError("it names no program")
    if "/" in program and not PurePosixPath(program).is_absolute():
        raise ValueError(f"the program {program!r} must be a name on PATH or a full path")
    _check_words(profile)
    _check_events(profile)
    for key, seconds in (("idle_s", profile.idle_s), ("patience_s", profile.patience_s)):
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"{key} is {seconds:g}, and must be a number of seconds above 0")
    state = profile.state
    below = [*state.config, *state.brought, *(name.removeprefix("~/") for name in state.login)]
    below += [state.folder] if state.folder else []
    places = [(name, "in [state] must be a path below a folder") for name in below]
    own = [*profile.files, *([profile.usage_files] if profile.usage_files else [])]
    for name, problem in (*places, *((name, "must be a path below its home") for name in own)):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"{name!r} {problem}")
    for limit in profile.limits:
        try:
            re.compile(limit.pattern)
            date.fromisoformat(limit.seen)
        except (re.error, ValueError) as error:
            raise ValueError(f"limits: {error} ({limit.pattern!r}, seen {limit.seen!r})") from None
    try:
        re.compile(profile.retrying)
    except re.error as error:
        raise ValueError(f"retrying: {error}") from None
    for name in profile.environment:
        if re.fullmatch(_VARIABLE, name) is None:
            raise ValueError(f"{name!r} cannot be the name of a variable")


def _check_words(profile: Profile) -> None:
    for name in profile.options:
        _one_of(name, GROUPS, "options")
    words = [*profile.call, *(word for group in profile.options.values() for word in group)]
    for word in words:
        for name in re.findall(r"\{([a-z_]+)\}", word):
            _one_of(name, VALUES, f"the word {word!r}")
    for word in profile.call:
        if word.startswith("<") and word.endswith(">"):
            _one_of(word[1:-1], GROUPS, f"the word {word!r}")
    place = _PLACES.get(profile.prompt, "")
    if not profile.acp and place and not any(place in word for word in words):
        raise ValueError(
            f'prompt = "{profile.prompt}", but call has no {place}: the program would get no task'
        )


def _check_events(profile: Profile) -> None:
    for rule in (*profile.events, *profile.asides):
        for name in rule.take:
            _one_of(name, TAKES[rule.means], f'a rule that means "{rule.means}"')
    if profile.acp or profile.output != "json_lines":
        return
    if not {"said", "finished"} & {rule.means for rule in profile.events}:
        raise ValueError('output = "json_lines" needs events: without a rule its output is ignored')


def _one_of(name: str, known: Iterable[str], where: str) -> None:
    if name not in known:
        raise ValueError(f'"{name}" is unknown in {where}; there are {", ".join(sorted(known))}')


# -----------------------------------------------------------------------------------------------------------
# Usage limits of agents that are programs: whether a limit was reached, and when it resets.
#
# Rules
# * Data from the program (a `limited` fact) comes first. Without it, the program's output is compared with
#   the patterns of its profile. Each pattern has the date on which that output was seen.
# * A time without a date is its next occurrence, in the time zone of this machine unless a zone is named. A
#   time that passed a moment ago is due: the limit was reached just as it reset. A time with minutes means
#   the end of that minute.
# * A limit without a readable reset time pauses the run. A time further away than `MAX_AHEAD` is ignored.

MAX_AHEAD = timedelta(days=40)
JUST_PASSED = timedelta(minutes=10)
MAX_WORDS_CHARS = 200
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_SPAN = r"(?i)(\d+(?:\.\d+)?)\s*(d|h|m(?!s)|s)[a-z]*"
_CLOCK = r"(?i)\b(\d{1,2})(?::(\d{2}))?\s*([ap])\.?m\b|\b(\d{1,2}):(\d{2})\b"
_DATE = rf"(?i)\b({'|'.join(_MONTHS)})[a-z]*\.?\s+(\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s+(\d{{4}}))?"
_DAY = rf"(?i)\b({'|'.join(_DAYS)})[a-z]*\b"
_SHIFT = r"\b(?:GMT|UTC)([+-]\d{1,2})\b"
_ZONE = r"\(([A-Za-z_]+(?:/[A-Za-z_+\-0-9]+)*)\)"


def limit_in(profile: Profile, texts: Iterable[str]) -> tuple[bool, int]:
    """Return whether a program reports a usage limit, and when the limit resets; 0 if unknown."""
    for text in texts:
        for limit in profile.limits:
            found = re.search(limit.pattern, text[:4_000], re.IGNORECASE | re.DOTALL)
            if found is not None:
                words = found.groupdict().get("when") or ""
                return True, reset_at(words) if words else 0
    return False, 0


def reset_at(written: object, now: float | None = None, zone: tzinfo | None = None) -> int:
    """Return the reset time that a program reports, in milliseconds since the epoch; 0 if there is none.

    >>> at = datetime(2026, 11, 18, 20, 0, tzinfo=UTC).timestamp()
    >>> datetime.fromtimestamp(reset_at("9pm", at, UTC) / 1_000, UTC).isoformat()
    '2026-11-18T21:00:00+00:00'
    >>> datetime.fromtimestamp(reset_at("Mon 9am (UTC)", at) / 1_000, UTC).isoformat()
    '2026-11-23T09:00:00+00:00'
    >>> reset_at(1795040000, at), reset_at("soon")
    (1795040000000, 0)
    """
    here = datetime.fromtimestamp(time.time() if now is None else now, zone).astimezone(zone)
    try:
        if isinstance(written, int | float) and not isinstance(written, bool):
            return _bounded(_from_number(written), here)
        words = str(written).strip()[:MAX_WORDS_CHARS]
        return _bounded(_from_number(int(words)) if words.isdecimal() else _from_words(words, here), here)
    except (ValueError, OverflowError):  # a day that does not exist, or a duration beyond the calendar
        return 0


def _from_number(number: float) -> datetime | None:
    seconds = number / 1_000 if number > 10**11 else number
    return datetime.fromtimestamp(seconds, UTC) if 10**9 < seconds < 10**10 else None


def _from_words(words: str, here: datetime) -> datetime | None:
    shifted = re.search(_SHIFT, words)
    if shifted is not None:
        here = here.astimezone(timezone(timedelta(hours=int(shifted[1]))))
    named = re.search(_ZONE, words)
    if named is not None and (zone := _zone(named[1])) is not None:
        here = here.astimezone(zone)
    clock = re.search(_CLOCK, words)
    if clock is None:
        spans = re.findall(_SPAN, words)
        seconds = sum(float(count) * _UNITS[unit.lower()] for count, unit in spans)
        return here + timedelta(seconds=seconds) if spans else None
    hour, minute = int(clock[1] or clock[4]), int(clock[2] or clock[5] or 0)
    if clock[3]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if clock[3].lower() == "p" else 0)
    if hour > 23 or minute > 59:
        return None
    named_s = 0 if clock[2] is None and clock[5] is None else 59
    at = here.replace(hour=hour, minute=minute, second=named_s, microsecond=0)
    date, day = re.search(_DATE, words), re.search(_DAY, words)
    if date is not None:
        month = _MONTHS.index(date[1].lower()) + 1
        at = at.replace(month=month, day=int(date[2]), year=int(date[3] or at.year))
        return at if date[3] or at >= here - JUST_PASSED else at.replace(year=at.year + 1)
    if day is not None:
        at += timedelta(days=(_DAYS.index(day[1].lower()) - at.weekday()) % 7)
    if at < here - JUST_PASSED:
        at += timedelta(days=7 if day is not None else 1)
    return at


def _zone(name: str) -> tzinfo | None:
    from zoneinfo import ZoneInfo

    try:
        return UTC if name.upper() in ("UTC", "GMT") else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def _bounded(at: datetime | None, here: datetime) -> int:
    if at is None or not here - timedelta(days=1) < at < here + MAX_AHEAD:
        return 0
    return int(at.timestamp() * 1_000)
