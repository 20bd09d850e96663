"""When a conversation outgrows its model: the model sums its own work up, and goes on from the summary.

Rules
* Only whole conversations are summed up, never a part silently dropped: what the summary leaves out was seen
  by whoever wrote it. Long results are cut in the middle for it, with a note of how much.
* The summary is recorded as a response (it was paid for), so a killed session goes on behind it.
* A summary that says nothing is none: it is asked for again, made from less, and then the session fails.
* A conversation that has nothing to leave out, or that overflows again and again, fails with a hint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from fanfold.kernel.plan import JSON
from fanfold.text.excerpts import shorten_middle

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

MAX_COMPACTIONS = 8
FULL = 0.85
"""The part of a context window at which a conversation is summed up before it overflows."""
PIECE_CHARS = (4_000, 1_000, 250)
"""How much of each text the summary is made from; the next when even that does not fit."""

INSTRUCTIONS = """\
You are given the record of your own work on a task so far. It no longer fits, so you will go on from a
summary that you write now. Write down everything you need to finish: what the task demands, what you did and
changed (with paths), what you found out (with paths, line numbers, names, numbers), what failed and why, and
what is left to do. Quote exactly what you will need exactly. No preamble."""


def transcript(messages: Sequence[ModelMessage], piece_chars: int) -> str:
    """The conversation as text, each piece cut to size."""
    from pydantic_ai.messages import TextPart, ToolCallPart, ToolReturnPart, UserPromptPart

    lines: list[str] = []
    for message in messages:
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                lines.append(f"TASK: {_written(part.content, 4 * piece_chars)}")
            elif isinstance(part, TextPart):
                lines.append(f"YOU SAID: {_written(part.content, piece_chars)}")
            elif isinstance(part, ToolCallPart):
                lines.append(f"YOU CALLED {part.tool_name}: {_written(part.args, piece_chars)}")
            elif isinstance(part, ToolReturnPart):
                lines.append(f"{part.tool_name} GAVE: {_written(part.content, piece_chars)}")
    return "\n\n".join(lines)


def _written(value: JSON, limit: int) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    return shorten_middle(text, limit, tail=1 / 2)
