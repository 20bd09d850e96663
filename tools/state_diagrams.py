"""Draws the life of a step and of a run from the tables that enforce them."""

from __future__ import annotations

from collections.abc import Mapping

from fanfold.kernel.state import RUN_PROJECTIONS, RUN_TERMINAL, RUN_TRANSITIONS, STEP_TRANSITIONS, TERMINAL


def state_diagrams() -> str:
    """Two Mermaid state diagrams, as the architecture page shows them."""
    return "\n\n".join(
        (
            "**A step**\n\n" + _mermaid(STEP_TRANSITIONS, TERMINAL),
            "**A run**\n\n" + _mermaid({**RUN_TRANSITIONS, **RUN_PROJECTIONS}, RUN_TERMINAL),
        )
    )


def _mermaid(table: Mapping[tuple[str, str], tuple[str, ...]], terminal: frozenset[str]) -> str:
    arrows: dict[tuple[str, str], list[str]] = {}
    for (status, word), followers in table.items():
        for follower in followers:
            arrows.setdefault((status, follower), []).append(word)
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> pending"]
    lines += [f"    {a} --> {b}: {', '.join(words)}" for (a, b), words in arrows.items() if a != b]
    lines += [f"    {status} --> [*]" for status in sorted(terminal)]
    return "\n".join([*lines, "```"])
