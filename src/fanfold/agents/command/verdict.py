"""How the work of a program ended: judged by everything that is known, and never by what it says alone.

Exit statuses lie: programs end with 0 although their key was refused, nobody could be reached, or a write was
not allowed. Final events lie too: "success" beside an error flag. So all of it is looked at together: the
final event, denials, errors it told of, the exit status, and what it wrote to stderr.

Rules
* What the provider refuses is told apart by its status where one is known, else by words that mean the same
  with every provider: the texts of errors are all there is.
* A tool that was denied fails the session unless the same tool did its work later: the agent believes that it
  did what it could not do.
* A format that has a final event needs one. Whoever ends without it did not finish.
"""

from __future__ import annotations

import re

from fanfold.agents.command.events import Hitch, TurnEnd
from fanfold.agents.command.growing_text import GrowingText
from fanfold.agents.command.known_calls import KnownCalls
from fanfold.agents.command.profile import Profile
from fanfold.kernel.events import Failure
from fanfold.text.excerpts import shorten, shorten_line

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
_AGAIN = frozenset(("rate_limit", "transport", "agent"))


class CallEnd:
    """What is known of one call of a program, gathered while it runs."""

    def __init__(self) -> None:
        self.finished: TurnEnd | None = None
        self.troubles: list[Hitch] = []
        self.calls = KnownCalls()
        self.garbage = 0
        """Lines that are none of its format."""
        self.lines = 0
        self.stopped = ""
        """Why we ended it: `idle`, `trouble`."""
        self.silent_s = 0.0
        """How long it was waited for, where that is not what its profile says."""
        self.exit_code = 0
        self.stderr = ""
        self.words = GrowingText()
        """Of the last message that has any."""

    @property
    def last_text(self) -> str:
        return self.words.text

    def trouble(self, one: Hitch) -> None:
        """Keep the last few."""
        self.troubles = [*self.troubles[-4:], one]


def judge(profile: Profile, ending: CallEnd, *, read_only: bool = False) -> Failure | None:
    """Why a call of a program failed; None when it did its work.

    Whoever may only read is refused things by design, and is told so.
    """
    finished = ending.finished
    if ending.stopped == "idle":
        message = f"{profile.title} said nothing for {ending.silent_s or profile.idle_s:g} s"
        hint = "it may wait for somebody; raise idle_s in its profile if it needs longer"
        return Failure("timeout", "agent.silent", message, hint)
    if ending.stopped == "trouble":
        return _sorted(profile, ending, f"no way on for {profile.patience_s:g} s", "transport")
    if finished is not None and finished.reason in profile.reasons:
        return _limited(profile, finished)
    if finished is not None and finished.failed:
        return _sorted(profile, ending, "it failed")
    if _is_error_text(profile, ending.last_text):
        return _sorted(profile, ending, ending.last_text)
    if ending.exit_code != 0:
        how = f"signal {-ending.exit_code}" if ending.exit_code < 0 else f"status {ending.exit_code}"
        return _sorted(profile, ending, f"it ended with {how}")
    if not read_only and (denied := ending.calls.still_denied()):
        tools = shorten_line(", ".join(denied), MAX_WORDS_CHARS)
        message = f"{profile.title} was not allowed to use {tools}, and says that it is done"
        hint = "its own permissions refuse it: look at its configuration, or its profile"
        return Failure("permission", "agent.denied", message, hint, retryable=False)
    if finished is None and (profile.acp or any(rule.means == "finished" for rule in profile.events)):
        return _broken_off(profile, ending)
    return None


def _limited(profile: Profile, finished: TurnEnd) -> Failure:
    why = shorten_line(finished.why or finished.text or finished.reason, MAX_WORDS_CHARS)
    if profile.reasons[finished.reason] == "budget":
        hint = "raise the budget of the run (--budget-usd), or split the task"
        return Failure("budget", "agent.budget", f"{profile.title}: {why}", hint, retryable=False)
    hint = "raise max_turns, or split the task"
    return Failure("agent", "session.max_turns", f"{profile.title}: {why}", hint, retryable=False)


def _sorted(profile: Profile, ending: CallEnd, otherwise: str, kind: str = "") -> Failure:
    """The failure by what the program said of it."""
    finished = ending.finished
    said = [finished.why, finished.text or ""] if finished is not None and finished.failed else []
    said += [ending.troubles[-1].text] if ending.troubles else []
    said += [ending.last_text if _is_error_text(profile, ending.last_text) else "", _last_line(ending.stderr)]
    words = next((one for one in said if one.strip()), otherwise)
    status = finished.status if finished is not None else None
    if status is None and ending.troubles:
        status = ending.troubles[-1].status
    kind = sort_of(" ".join(said), status) or kind or "agent"
    message = f"{profile.title}: {shorten_line(words, MAX_WORDS_CHARS)}"
    return Failure(kind, _CODES[kind], message, _hint(profile, kind), retryable=kind in _AGAIN)


def sort_of(words: str, status: int | None) -> str:
    """The class of an error of a provider; nothing when it is none that is known.

    >>> sort_of("Incorrect API key provided", None), sort_of("boom", 429), sort_of("boom", None)
    ('permission', 'rate_limit', '')
    """
    for kind, statuses, pattern in _SORTS:
        if status in statuses:
            return kind
        if status is None and re.search(pattern, words[:4_000], re.IGNORECASE):
            return kind
    return ""


def _hint(profile: Profile, kind: str) -> str:
    match kind:
        case "permission" if not profile.file:  # a command of a role: it has no profile to change
            return "renew its login"
        case "permission":
            return (
                f"say what of yours it may have in {profile.file}: "
                'credentials = ["login"]; or renew its login'
            )
        case "quota":
            return "top the account up or raise its limit, then resume the run"
        case "rate_limit":
            return "lower the concurrency, or try again later"
        case "transport":
            return "check the network, and which hosts its profile lets it reach (fanfold doctor)"
    return "its transcript shows what it did"


def _broken_off(profile: Profile, ending: CallEnd) -> Failure:
    why = "ended without saying that it was done"
    if not ending.lines:
        why = "ended without a word"
    elif ending.garbage == ending.lines:
        why = "said nothing that its profile can read"
    last = _last_line(ending.stderr)
    kind = sort_of(" ".join([*(one.text for one in ending.troubles[-1:]), last]), None) or "agent"
    told = f": {shorten(last, MAX_WORDS_CHARS)}" if last else ""
    hint = "another version of it may speak otherwise: fanfold doctor says which is here"
    return Failure(kind, "agent.broken_off", f"{profile.title} {why}{told}", hint)


def _is_error_text(profile: Profile, text: str) -> bool:
    return bool(profile.errors) and text.lstrip().startswith(profile.errors)


def _last_line(text: str) -> str:
    """The line of stderr that says most: the last that tells of an error, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [
        line
        for line in lines
        if re.search(r"error|fail|cannot|denied|refused|not found", line, re.IGNORECASE)
    ]
    return shorten_line((told or lines)[-1], MAX_WORDS_CHARS) if lines else ""
