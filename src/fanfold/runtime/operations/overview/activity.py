"""What agents do right now, over all runs, as far as their sessions recorded it: the last thing each did, and
what it has spent so far.

For one thread that looks again and again: of each session only what is new is read.
"""

from __future__ import annotations

from msgspec import Struct, structs

from fanfold.agents.entries import Entry, Response, ToolCall, ToolResult, paid_in
from fanfold.runtime.operations.overview.sessions import LiveSession, live_sessions
from fanfold.runtime.operations.project import Project
from fanfold.sessions.log import read_recorded
from fanfold.text.excerpts import shorten_line

MAX_WORDS = 120


class Activity(Struct, frozen=True):
    """`path` is a tree path of the whole run. An agent whose `words` are empty is not at work any more."""

    run_id: str
    path: str
    tool: str
    words: str
    tokens: int


class _Heard(Struct):
    seq: int
    activity: Activity


class Activities:
    """Remembers what it read of each session."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}

    def look(self, project: Project) -> list[Activity]:
        """Every agent at work, and once more those that were at the last look."""
        live = {one.session_id: one for one in live_sessions(project)}
        gone = [heard.activity for name, heard in self._heard.items() if name not in live]
        self._heard = {name: self._read(project, one) for name, one in live.items()}
        return [
            *(heard.activity for heard in self._heard.values()),
            *(structs.replace(one, tool="", words="") for one in gone),
        ]

    def _read(self, project: Project, session: LiveSession) -> _Heard:
        nothing = Activity(session.run_id, session.step, "", shorten_line(session.task, MAX_WORDS), 0)
        heard = self._heard.get(session.session_id) or _Heard(0, nothing)
        for envelope, entry in read_recorded(project.store, session.session_id, heard.seq):
            heard = _Heard(envelope.seq, _after(heard.activity, entry))
        return heard


def _after(before: Activity, entry: Entry) -> Activity:
    """What an agent does, once it has recorded an entry."""
    paid = paid_in(entry)
    tokens = before.tokens + (0 if paid is None else paid.tokens)
    match entry:
        case ToolCall() | ToolResult():
            return structs.replace(before, tool=entry.tool, words=f"→ {entry.tool}", tokens=tokens)
        case Response() if entry.tool_calls:
            tool = entry.tool_calls[-1].tool
            return structs.replace(before, tool=tool, words=f"→ {tool}", tokens=tokens)
        case Response() if entry.text:
            return structs.replace(before, tool="", words=shorten_line(entry.text, MAX_WORDS), tokens=tokens)
    return structs.replace(before, tokens=tokens)
