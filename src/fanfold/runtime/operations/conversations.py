"""Conversations that are taken up again in another session, from one of their turns on.

A turn is one response of the model with what came of the calls it asked for, as `fanfold transcript` counts
them. What was recorded up to it is copied: the new session does not need the old one any more.

A conversation can be taken up, the files it changed cannot. Whoever goes on is told so.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from msgspec import structs

from fanfold.agents.entries import AgentBegin, Response, ToolCall, UserInput
from fanfold.errors import AuthorError, NotFoundError
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.records.frozen import RecordedEntry, TakenUp
from fanfold.runtime.records.subagents import turn_before
from fanfold.runtime.steps.agent import words_of
from fanfold.runtime.views.sessions.transcripts import Speaker, speaker_of
from fanfold.sessions.log import read_recorded

GO_ON = "Go on from here."
FILES_MOVED = "The files are as they are now, which may not be as you left them: look before you rely on it."


def take_up(tree: RunTree, speaker: Speaker, turn: int, say: str | None) -> TakenUp:
    """What was said up to a turn, and what comes next: None to go on, empty for what the step asks."""
    if speaker.role.pipeline:
        message = f"{speaker.step} works in stages, which begin anew when somebody speaks"
        raise AuthorError("fork.stages", message, hint="leave --turn out: the step runs again from its start")
    before = _before(tree, speaker)
    said = [*before, *_recorded(tree, speaker)]
    at = [number for number, recorded in enumerate(said) if isinstance(recorded.entry, Response)]
    if not 1 <= turn <= len(at):
        turns = f"{len(at)} turn{'' if len(at) == 1 else 's'}"
        hint = f"fanfold transcript {tree.root.id} {shlex.quote(speaker.step)}"
        raise NotFoundError("session.no_turn", f"{speaker.step} has had {turns}", hint=hint)
    entries = said if turn == len(at) else list(map(_unnamed, _without_what_was_asked(said[: at[turn]])))
    if say is None and at[turn - 1] < len(before) and _asks_behind(tree, speaker):
        say = ""
    if say is None:
        moved = any(isinstance(recorded.entry, ToolCall | AgentBegin) for recorded in entries)
        say = f"{GO_ON} {FILES_MOVED}" if moved else GO_ON
    return TakenUp(
        run_id=speaker.node.run.id,
        step=speaker.step,
        session_id=speaker.session_id,
        attempt=speaker.attempt,
        turn=turn,
        say=say,
        entries=tuple(entries),
    )


def _asks_behind(tree: RunTree, speaker: Speaker) -> bool:
    """Whether a step of a recipe goes on with another's conversation, in which it has not asked yet."""
    return not tree.root.plan.open and speaker.step not in speaker.frozen.taken_up


def _without_what_was_asked(entries: list[RecordedEntry]) -> list[RecordedEntry]:
    """All up to what was done last, without what was asked then: it is asked otherwise, or not at all."""
    end = len(entries)
    while end and isinstance(entries[end - 1].entry, UserInput | AgentBegin):
        end -= 1
    return entries[:end]


def _unnamed(recorded: RecordedEntry) -> RecordedEntry:
    """An entry without the name that a program has for the conversation: there it went on behind the turn."""
    entry = recorded.entry
    if not isinstance(entry, AgentBegin):
        return recorded
    return RecordedEntry(recorded.at, structs.replace(entry, conversation=""))


def _before(tree: RunTree, speaker: Speaker) -> Sequence[RecordedEntry]:
    """What the session itself had taken up, or goes on with."""
    taken = speaker.frozen.taken_up.get(speaker.step)
    if taken is not None:
        return taken.entries
    before = turn_before(speaker.node)
    if before is None:
        return []
    if not before.attempt:  # it was cancelled before it began; what was said to it counts all the same
        return [RecordedEntry(before.ended_at, UserInput(text=words_of(before)))]
    one = speaker_of(tree, before, before.attempt)
    return [*_before(tree, one), *_recorded(tree, one)]


def _recorded(tree: RunTree, speaker: Speaker) -> list[RecordedEntry]:
    return [
        RecordedEntry(envelope.at, entry) for envelope, entry in read_recorded(tree.store, speaker.session_id)
    ]
