"""Runs that nobody ends: which they are by their names, and how one goes on.

A recipe's run goes on when it is driven. A chat does not: it rests until its user says something.
"""

from __future__ import annotations

HAND = "hand"
"""The open run of subagents that people start themselves."""
CHAT = "chat-"
"""How the names of chats begin."""


def is_chat(run: str) -> bool:
    return run.startswith(CHAT)


def is_kept_open(run: str) -> bool:
    """Whether a run is, or was, one that nobody ends: that of subagents which people start, or a chat.

    >>> [name for name in ("hand", "hand-2", "chat-7k2m9x", "handy", "hand-made") if is_kept_open(name)]
    ['hand', 'hand-2', 'chat-7k2m9x']
    """
    name, _, number = run.partition("-")
    return is_chat(run) or (name == HAND and (not number or number.isdecimal()))


def how_to_resume(root: str) -> str:
    """The command that goes on with a run that is not over, whatever holds it.

    >>> how_to_resume("xp4rzz6mnp7z"), how_to_resume("chat-7k2m9x")
    ('fanfold resume xp4rzz6mnp7z', 'fanfold chat --resume chat-7k2m9x')
    """
    return f"fanfold chat --resume {root}" if is_chat(root) else f"fanfold resume {root}"
