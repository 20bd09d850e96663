"""What agents are doing at this moment, in a few words each: for live views, never recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanfold.cli.terminal.output import one_line
from fanfold.text.terminal import cut_start

MAX_CHARS = 60
KEPT_CHARS = 4 * MAX_CHARS


class Doing:
    """The last word of every running session, by the tree path of its step."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._does: dict[str, str] = {}

    def hear(self, path: str, entry: Mapping[str, Any]) -> None:
        """A session lets us know what it does; kinds we do not know change nothing."""
        kind = entry.get("kind")
        if kind == "text":
            self._said[path] = (self._said.get(path, "") + str(entry.get("delta", "")))[-KEPT_CHARS:]
            self._does.pop(path, None)
            return
        if kind in ("calling", "tool_call"):
            self._does[path] = f"→ {entry.get('tool', 'a tool')}"
        elif kind == "retrying":
            self._does[path] = (
                f"{entry.get('class', 'failed')}, tries again in {entry.get('wait_s', 0):.0f} s"
            )
        elif kind == "fallback":
            self._does[path] = f"{entry.get('from', 'its model')} does not answer, asks another"
        elif kind == "compacting":
            self._does[path] = "sums up what was said so far"
        else:
            return
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
