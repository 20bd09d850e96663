"""What agents are doing at this moment, in a few words each: for live views, never recorded."""

from __future__ import annotations

from fanfold.agents.entries import (
    AskingFor,
    Calling,
    Compacting,
    Fallback,
    News,
    Retrying,
    StageNews,
    TextDelta,
)
from fanfold.text.terminal import cut_start, one_line

MAX_CHARS = 60
KEPT_CHARS = 4 * MAX_CHARS


class Doing:
    """The last word of every running session, by the tree path of its step."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._does: dict[str, str] = {}

    def hear(self, path: str, news: News) -> None:
        """A session lets us know what it does."""
        match news:
            case TextDelta(delta=delta):
                self._said[path] = (self._said.get(path, "") + delta)[-KEPT_CHARS:]
                self._does.pop(path, None)
                return
            case AskingFor(tool=tool) | Calling(tool=tool):
                self._does[path] = f"→ {tool}"
            case Retrying(kind=kind, wait_s=wait_s):
                self._does[path] = f"{kind}, tries again in {wait_s:.0f} s"
            case Fallback(model=model):
                self._does[path] = f"{model} does not answer, asks another"
            case Compacting():
                self._does[path] = "sums up what was said so far"
            case StageNews(stage=stage, of=of, name=name):
                self._does[path] = f"stage {stage} of {of}" + (f": {name}" if name else "")
        self._said.pop(path, None)

    def forget(self, path: str) -> None:
        """The session is over."""
        self._said.pop(path, None)
        self._does.pop(path, None)

    def now(self, path: str) -> str:
        """A few words, or none."""
        if path in self._does:
            return one_line(self._does[path], MAX_CHARS)
        return cut_start(one_line(self._said.get(path, "")), MAX_CHARS)
