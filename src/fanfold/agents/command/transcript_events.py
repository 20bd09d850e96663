"""The outcome of a program's work, judged by all evidence and never by one report alone.

Exit statuses are unreliable: programs end with 0 although a key was refused, a host was unreachable, or a
write was denied. Final events are unreliable too: "success" next to an error flag. So the judgement combines
the final event, denials, reported errors, the exit status and stderr.

Rules
* A refusal by the provider is classified by its status, if one is known. Otherwise it is classified by words
  that mean the same with every provider, because only the error text is available.
* A denied tool fails the session unless the same tool worked later, because the agent believes that it did
  something it could not do.
* A format with a final event requires one. A program that ends without it did not finish.
"""

from __future__ import annotations

import re
from typing import TypeVar

from msgspec import Struct, structs

from fanfold.agents.command.events import DenialEvent, Hitch, LimitEvent, TurnEnd, limit_in
from fanfold.agents.command.profile import Profile
from fanfold.kernel.events import Failure
from fanfold.language.terminal import shorten, shorten_line

# -----------------------------------------------------------------------------------------------------------
# A text that arrives in very many pieces, with a maximum size.

MAX_TEXT_CHARS = 1_000_000


class GrowingText:
    """A text that grows; its pieces are joined when it is read."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._chars = 0

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def add(self, text: str, between: str = "") -> None:
        """Append text, up to the maximum size."""
        more = (between if self._chars else "") + text
        more = more[: MAX_TEXT_CHARS - self._chars]
        if more:
            self._pieces.append(more)
            self._chars += len(more)


# -----------------------------------------------------------------------------------------------------------
# The tool calls that a program reported, as far as they matter for its outcome, with a limit.
#
# Rules
# * A program can report any number of calls and denials. Only the latest are kept, and older ones are dropped
#   with their results.
# * Every operation is fast, because programs report hundreds of thousands of calls.

MAX_KNOWN = 10_000
MAX_NAME_CHARS = 200

Name = TypeVar("Name")
Known = TypeVar("Known")


class KnownCall(Struct):
    """One call: its tool, its position in the order of all calls, and whether it returned."""

    tool: str
    order: int
    returned: bool = False


class KnownCalls:
    """The calls of a program, by their ids."""

    def __init__(self) -> None:
        self._calls: dict[str, KnownCall] = {}
        self._denied: dict[tuple[str, str], None] = {}
        self._done: dict[str, int] = {}
        """Tools that worked, with the position of the last call that did."""
        self._count = 0

    def find(self, name: str) -> KnownCall | None:
        return self._calls.get(short(name))

    def begin(self, name: str, tool: str) -> KnownCall:
        """Add a new call."""
        self._count += 1
        made = KnownCall(short(tool), self._count)
        _keep(self._calls, short(name), made)
        return made

    def come_back(self, call: KnownCall, *, failed: bool) -> None:
        call.returned = True
        if not failed:
            self._done.pop(call.tool, None)
            _keep(self._done, call.tool, call.order)

    def deny(self, name: str, tool: str) -> None:
        _keep(self._denied, (short(name), short(tool)), None)

    def still_denied(self) -> list[str]:
        """Return the tools that were denied and did not work afterwards."""
        found: dict[str, None] = {}
        for name, tool in self._denied:
            call = self._calls.get(name)
            if self._done.get(tool, -1) <= (-1 if call is None else call.order):
                found[tool] = None
        return list(found)


def short(name: str) -> str:
    """Return a name in the length in which it is stored."""
    return name[:MAX_NAME_CHARS]


def _keep(known: dict[Name, Known], name: Name, value: Known) -> None:
    """Add an item, and drop the oldest one if there are too many."""
    known[name] = value
    if len(known) > MAX_KNOWN:
        del known[next(iter(known))]


MAX_WORDS_CHARS = 500
_SORTS = (
    ("quota", (402,), r"quota|billing|credit balance|insufficient (credit|funds)|usage limit"),
    ("rate_limit", (429, 529), r"rate.?limit|too many requests|overloaded"),
    (
        "permission",
        (401, 403),
        r"\b40[13]\b|api.?key|unauthori[sz]ed|authenticat|not logged in|/login|log ?in again|credential",
    ),
    (
        "transport",
        (500, 502, 503, 504, 408),
        r"connect|network|econn|enotfound|eai_again|unreachable|timed? ?out|socket|fetch failed|\b50[0-4]\b",
    ),
)
_CODES = {
    "quota": "agent.quota",
    "rate_limit": "agent.rate_limit",
    "permission": "agent.key_refused",
    "transport": "agent.unreachable",
    "agent": "agent.failed",
}
_HINTS = {
    "quota": "top up the account or raise its limit, then resume the run",
    "rate_limit": "lower the concurrency, or try again later",
    "permission": "renew its login",
    "transport": "check the network, and which hosts its profile lets it reach (fanfold doctor)",
    "agent": "its transcript shows what it did",
}
_AGAIN = frozenset(("rate_limit", "transport", "agent"))


class CallEnd:
    """The evidence about one call of a program, collected while it runs."""

    def __init__(self) -> None:
        self.finished: TurnEnd | None = None
        self.troubles: list[Hitch] = []
        self.calls = KnownCalls()
        self.limited: LimitEvent | None = None
        self.garbage = 0
        """Number of lines that are not in its format."""
        self.lines = 0
        self.stopped = ""
        """Why Fanfold stopped it: `idle`, `trouble`, `budget`, `limit`, `unreachable`."""
        self.unreached: tuple[str, ...] = ()
        """Hosts of its provider that could not be reached, if its last connection failed."""
        self.has_reached = False
        """Whether it reached any host of its provider."""
        self.refused: tuple[str, ...] = ()
        """Hosts that it requested and that are not allowed, if it reached no other."""
        self.silent_s = 0.0
        """How long Fanfold waited for it, if that differs from its profile."""
        self.loop: Failure | None = None
        """Why Fanfold stopped it, if it repeated its calls endlessly."""
        self.exit_code = 0
        self.stderr = ""
        self.words = GrowingText()
        """The text of the last message that has any."""

    def refuse(self, fact: DenialEvent | LimitEvent) -> None:
        """Record a denial or a usage limit."""
        if isinstance(fact, LimitEvent):
            self.limited = fact
        else:
            self.calls.deny(fact.id, fact.tool)

    def trouble(self, one: Hitch) -> None:
        """Record an error; only the last five are kept."""
        self.troubles = [*self.troubles[-4:], one]


def judge(profile: Profile, ending: CallEnd, *, read_only: bool = False) -> Failure | None:
    """Return why a call of a program failed; None if it succeeded. Denials do not fail a read-only role."""
    finished = ending.finished
    if ending.stopped or ending.loop is not None:
        return _stopped(profile, ending)
    if finished is not None and finished.reason in profile.reasons:
        why = shorten_line(finished.why or finished.text or finished.reason, MAX_WORDS_CHARS)
        if profile.reasons[finished.reason] == "budget":
            hint = "resume the run with a higher budget (--budget-usd), or split the task"
            return Failure("budget", "agent.budget", f"{profile.title}: {why}", hint, retryable=False)
        hint = "read its transcript; then split the task into smaller steps, or make the prompt more precise"
        return Failure("agent", "session.max_turns", f"{profile.title}: {why}", hint, retryable=False)
    if finished is not None and finished.failed:
        return _sorted(profile, ending, "it failed")
    if _is_error_text(profile, ending.words.text):
        return _sorted(profile, ending, ending.words.text)
    if ending.exit_code != 0:
        how = f"signal {-ending.exit_code}" if ending.exit_code < 0 else f"status {ending.exit_code}"
        return _sorted(profile, ending, f"it ended with {how}")
    if not read_only and (denied := ending.calls.still_denied()):
        tools = shorten_line(", ".join(denied), MAX_WORDS_CHARS)
        message = f"{profile.title} was denied {tools}, but reports that it is done"
        hint = "its own permissions deny it: check its configuration, or its profile"
        return Failure("permission", "agent.denied", message, hint, retryable=False)
    if finished is None and (profile.acp or any(rule.means == "finished" for rule in profile.events)):
        why = "ended without a final message"
        if not ending.lines:
            why = "ended without output"
        elif ending.garbage == ending.lines:
            why = "wrote nothing that its profile can read"
        last = _last_line(ending.stderr)
        kind = sort_of(" ".join([*(trouble.text for trouble in ending.troubles[-1:]), last]), None) or "agent"
        detail = f": {shorten(last, MAX_WORDS_CHARS)}" if last else ""
        hint = "another version of it may have another format: `fanfold doctor` shows the installed one"
        return Failure(kind, "agent.broken_off", f"{profile.title} {why}{detail}", hint)
    return None


def _stopped(profile: Profile, ending: CallEnd) -> Failure:
    """Return the failure of a call that Fanfold stopped."""
    if ending.stopped == "budget":
        message = f"{profile.title} was stopped: the budget is used up"
        hint = "resume the run with a higher budget: it continues the conversation"
        return Failure("budget", "agent.budget", message, hint, retryable=False)
    if ending.loop is not None:
        return structs.replace(ending.loop, message=f"{profile.title}: {ending.loop.message}")
    if ending.stopped == "idle":
        message = f"{profile.title} wrote nothing for {ending.silent_s or profile.idle_s:g} s"
        hint = "it may wait for input; raise idle_s in its profile if it needs longer"
        return Failure("timeout", "agent.silent", message, hint)
    if ending.stopped == "limit" and ending.limited is not None:
        return _at_limit(profile, ending.limited.words or "it is at its usage limit", ending.limited.until)
    if ending.stopped == "unreachable":
        return _unreachable(profile, ending, "")
    return _sorted(profile, ending, f"no way on for {profile.patience_s:g} s", "transport")


def _sorted(profile: Profile, ending: CallEnd, otherwise: str, kind: str = "") -> Failure:
    """Return the failure, classified by the program's error messages."""
    finished = ending.finished
    last = ending.troubles[-1] if ending.troubles else Hitch("")
    texts = [finished.why, finished.text or ""] if finished is not None and finished.failed else []
    spoken = ending.words.text if _is_error_text(profile, ending.words.text) else ""
    texts += [last.text, spoken, _last_line(ending.stderr)]
    words = next((text for text in texts if text.strip()), otherwise)
    status = last.status if finished is None or finished.status is None else finished.status
    is_limit, until = limit_in(profile, texts)
    if is_limit or ending.limited is not None:
        until = ending.limited.until if ending.limited is not None else until
        return _at_limit(profile, words, until)
    kind = sort_of(" ".join(texts), status) or kind or "agent"
    cut_off = kind == "transport" and status is None
    if ending.unreached and (cut_off or not ending.has_reached):
        return _unreachable(profile, ending, words)
    # 403 is also the status with which the gate refuses.
    if ending.refused and (kind == "transport" or "403" in " ".join(texts)):
        return _unreachable(profile, ending, words)
    message = f"{profile.title}: {shorten_line(words, MAX_WORDS_CHARS)}"
    hint = _HINTS[kind]
    if kind == "permission" and profile.file:  # a role's command has no profile to change
        hint = f'list the credentials that it may use in {profile.file}: credentials = ["login"]; or {hint}'
    return Failure(kind, _CODES[kind], message, hint, retryable=kind in _AGAIN)


def _unreachable(profile: Profile, ending: CallEnd, words: str) -> Failure:
    """Return the failure by the evidence of the gate: the host, and a hint."""
    detail = f": {shorten_line(words, MAX_WORDS_CHARS)}" if words else ""
    if ending.unreached:
        message = f"{profile.title} cannot reach {ending.unreached[-1]}{detail}"
        hint = "check the network and the address of its provider (fanfold doctor)"
        return Failure("transport", _CODES["transport"], message, hint)
    message = f"{profile.title} may not reach {', '.join(ending.refused)}{detail}"
    hint = "if that is its provider, write network = true into the role"
    if profile.file:
        hint = f'if that is its provider, name the host in {profile.file}: hosts = ["…"]'
    return Failure("transport", _CODES["transport"], message, hint)


def _at_limit(profile: Profile, words: str, until: int) -> Failure:
    message = f"{profile.title}: {shorten_line(words, MAX_WORDS_CHARS)}"
    hint = "the run continues when the limit resets" if until else "resume the run when the limit has reset"
    return Failure("quota", "agent.limit", message, hint, retryable=False, until=until)


def sort_of(words: str, status: int | None) -> str:
    """Return the class of a provider's error; empty if it is unknown.

    >>> sort_of("Incorrect API key provided", None), sort_of("boom", 429), sort_of("boom", None)
    ('permission', 'rate_limit', '')
    """
    for kind, statuses, pattern in _SORTS:
        if status in statuses:
            return kind
        if status is None and re.search(pattern, words[:4_000], re.IGNORECASE):
            return kind
    return ""


def _is_error_text(profile: Profile, text: str) -> bool:
    return bool(profile.errors) and text.lstrip().startswith(profile.errors)


def _last_line(text: str) -> str:
    """Return the most useful line of stderr: the last with an error, otherwise the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and "[DEBUG]" not in line]
    pattern = r"error|fail|cannot|denied|refused|not found"
    detail = [line for line in lines if re.search(pattern, line, re.IGNORECASE)]
    return shorten_line((detail or lines)[-1], MAX_WORDS_CHARS) if lines else ""
