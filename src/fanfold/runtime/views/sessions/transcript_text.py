"""A transcript as text, for files and terminals.

Whatever was said stands behind `> `, and whatever a tool was given or gave back behind four spaces: nothing
in it can be taken for a heading of ours. Who prints it on a terminal passes it through `text.terminal`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import UNSET

from fanfold.kernel.plan import JSON
from fanfold.runtime.views.runs.rows import StepUsage
from fanfold.runtime.views.sessions.transcripts import Transcript, TranscriptEntry, last_turn


def transcript_text(told: Transcript) -> str:
    """The whole of it."""
    entries = TranscriptWriter()
    return "".join([heading(told), *map(entries.text, told.entries), closing(told)])


def heading(told: Transcript) -> str:
    """Who it is and what it was told before anything was asked."""
    attempt = f", attempt {told.attempt} of {told.attempts}" if told.attempts > 1 else ""
    by = f"{told.role} on {told.backend}" + (f" ({told.model})" if told.model else "")
    lines = [f"# {told.step}: {told.status}\n", f"\n{by}, session {told.session_id}{attempt}\n"]
    if told.reused_from is not None:
        where = "an earlier run" if told.reused_from == "cache" else f"run {told.reused_from}"
        return "".join([*lines, f"\nIts result was taken from {where}; there was no conversation.\n"])
    lines += ["\n## System\n", *_quoted(told.system)] if told.system else []
    return "".join(lines)


def closing(told: Transcript) -> str:
    """What it came to."""
    lines: list[str] = []
    if told.entries:
        turns = f"{told.turns} turn{'' if told.turns == 1 else 's'}"
        if before := last_turn(told.entries) - told.turns:
            turns += f" after {before} before"
        lines.append(f"\n{turns}, {_price_of(told.usage)}.\n")
    lines += [f"\nIts conflicts were given to session {session}.\n" for session in told.settled_by]
    return "".join(lines)


class TranscriptWriter:
    """Writes entries in order. What a call was given is told where it is asked for, and not once more where
    it begins: a file that is written may be long.
    """

    def __init__(self) -> None:
        self._asked: dict[str, JSON] = {}

    def text(self, entry: TranscriptEntry) -> str:
        """One entry, with a line break before it."""
        told = entry.id in self._asked and entry.args == self._asked[entry.id]
        self._asked |= {call.id: call.args for call in entry.tool_calls}
        return "".join(_entry_lines(entry, args_told=told))


def _entry_lines(entry: TranscriptEntry, *, args_told: bool) -> Iterator[str]:
    title = _TITLES[entry.kind].format(turn=entry.turn, tool=entry.tool, name=entry.name or entry.stage)
    facts = [entry.model, _price_of(entry.usage) if entry.usage else "", (entry.at or "")[11:19]]
    yield f"\n## {title}{''.join(f' · {fact}' for fact in facts if fact)}\n"
    if entry.system:
        yield from ("\nsystem\n", *_quoted(entry.system))
    yield from _quoted(entry.text)
    for call in entry.tool_calls:
        yield from (f"\nasks for {call.tool} ({call.id})\n", *_data(call.args))
    if entry.args is not UNSET and not args_told:
        yield from _data(entry.args)
    if entry.result is not UNSET:
        yield from _data(entry.result)
    if entry.error is not None:
        hint = f" ({entry.error.hint})" if entry.error.hint else ""
        yield from ("\nfailed\n", *_quoted(f"{entry.error.code}: {entry.error.message}{hint}"))
    if entry.outcome:
        yield "\nNobody knows whether this happened: the process died meanwhile.\n"
    if entry.output is not UNSET and entry.output != entry.text:
        yield from ("\nputs out\n", *_data(entry.output))


_TITLES = {
    "input": "Input",
    "response": "Turn {turn}",
    "tool_call": "{tool} begins",
    "tool_result": "{tool}",
    "compaction": "Summed up",
    "agent": "{name} begins",
    "stage": "Stage {name}",
    "stage_end": "Stage {name} ends",
}


def _price_of(usage: StepUsage) -> str:
    price = "price unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    return f"{usage.input_tokens:,} in, {usage.output_tokens:,} out, {price}"


def _quoted(text: str) -> Iterator[str]:
    """Somebody's words."""
    if text:
        yield "\n"
        yield from (f"> {line}\n" for line in text.splitlines())


def _data(value: JSON) -> Iterator[str]:
    """What a tool was given or gave back; texts of several lines as they are, and not as JSON."""
    rows = value.items() if isinstance(value, dict) else [("", value)]
    for name, one in rows:
        label = f"{name}: " if name else ""
        if isinstance(one, str) and "\n" in one:
            yield from ([f"\n    {label}"] if name else [])
            one_by_one = one.splitlines()
        else:
            text = one if isinstance(one, str) else msgspec.json.encode(one).decode()
            one_by_one = [f"{label}{text}"]
        yield "\n"
        yield from (f"    {line}\n" for line in one_by_one)
