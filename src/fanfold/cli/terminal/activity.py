"""What agents are doing at this moment, in a few words each: for live views, never recorded."""

from __future__ import annotations

from fanfold.agents.entries import (
    AskingFor,
    Calling,
    Compacting,
    Fallback,
    News,
    Preparing,
    Retrying,
    Spent,
    StageNews,
    TextDelta,
)
from fanfold.text.terminal import cells, cut_start, one_line

KEPT_CHARS = 400


class Doing:
    """The last word of every running session, by the tree path of its step."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._does: dict[str, str] = {}
        self._spent: dict[str, int] = {}

    def hear(self, path: str, news: News) -> None:
        """A session lets us know what it does."""
        match news:
            case TextDelta(delta=""):
                pass  # a sign of life, and nothing to show
            case TextDelta(delta=delta):
                self._said[path] = (self._said.get(path, "") + delta)[-KEPT_CHARS:]
                self._does.pop(path, None)
            case Spent(tokens=tokens):
                self._spent[path] = tokens
            case Preparing(what=""):
                self._does.pop(path, None)
            case _:
                self._does[path] = words_for(news)
                self._said.pop(path, None)

    def forget(self, path: str) -> None:
        """The session is over."""
        self._said.pop(path, None)
        self._does.pop(path, None)
        self._spent.pop(path, None)

    def now(self, path: str, room: int) -> str:
        """A few words within so many cells, or none: what it does or says, and what it has spent."""
        spent = _short(self._spent[path]) if path in self._spent else ""
        left = room - cells(spent) - 3 if spent else room
        if left < 8:
            return spent if cells(spent) <= room else ""
        if path in self._does:
            words = one_line(self._does[path], left)
        else:
            words = cut_start(one_line(self._said.get(path, "")), left)
        return f"{words} · {spent}" if words and spent else words or spent


def words_for(news: News) -> str:
    """What a session does, said by a third."""
    match news:
        case AskingFor(tool=tool):
            return f"→ {tool}"
        case Calling(tool=tool, about=about):
            return f"→ {tool} {about}" if about else f"→ {tool}"
        case Preparing(what=what):
            return what
        case Retrying(kind=kind, wait_s=wait_s):
            return f"{kind}, tries again in {wait_s:.0f} s"
        case Fallback(model=model):
            return f"{model} does not answer, asks another"
        case Compacting():
            return "sums up what was said so far"
        case StageNews(stage=stage, of=of, name=name):
            return f"stage {stage} of {of}" + (f": {name}" if name else "")
        case Spent(tokens=tokens):
            return _short(tokens)
        case TextDelta(delta=delta):
            return delta


def _short(tokens: int) -> str:
    """
    >>> _short(940), _short(12_345)
    ('940 tokens', '12.3k tokens')
    """
    return f"{tokens} tokens" if tokens < 1_000 else f"{tokens / 1_000:.1f}k tokens"
