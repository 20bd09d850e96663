"""Permission questions for a person, and their display, which is the same for all interfaces.

A terminal, a chat, a form of an MCP client and the console show the same rows, generated here.

Rules
* Totals come first, then every effect, numbered and complete. Nothing is cut: long questions have pages.
* Text of a recipe, a model or a file never starts a row. A number or a bar is before it, so that it cannot
  look like one of our questions.
* An interface that cannot show all rows cannot grant the permission.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from fanfold.language.terminal import visible, wrap_line

MIN_COLUMNS = 20
_KINDS = {
    "command": ("command", "commands"),
    "function": ("Python function", "Python functions"),
    "write": ("step that writes files", "steps that write files"),
    "program": ("agent program", "agent programs"),
    "server": ("MCP server", "MCP servers"),
    "guard": ("guard command", "guard commands"),
    "network": ("role with network access", "roles with network access"),
    "tool": ("fixed tool call", "fixed tool calls"),
    "deliver": ("delivery", "deliveries"),
}

_SET_OFF = frozenset({"server", "guard", "tool", "deliver", "script", "include"})
"""Kinds whose text is after a colon."""


class Effect(Struct, frozen=True):
    """One effect of a permitted run: the step or role that causes it, and its exact content."""

    who: str
    kind: str
    does: str
    what: str
    network: bool = False
    permitted: bool = False
    """Whether there is no need to ask: the configuration permits it, or it is asked about later."""

    @property
    def text(self) -> str:
        network = " with network" if self.network else ""
        colon = ":" if self.does == "runs" or self.kind in _SET_OFF else ""
        return f"{self.who} {self.does}{network}{colon} {self.what}".rstrip()


class ConsentRequest(Struct, frozen=True):
    """The request for a permission; `question` is our own text, `effects` may contain any text."""

    question: str
    effects: tuple[str, ...]
    totals: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Return an identifier of the permission; estimates in the totals do not count."""
        from hashlib import blake2b

        shown = "\0".join((self.question, *self.effects))
        return blake2b(shown.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def count_effects(effects: Sequence[Effect]) -> str:
    """Return the number of effects of each kind, in a line.

    >>> count_effects([Effect("a", "command", "runs", "ls"), Effect("b", "command", "runs", "ls", True)])
    '2 commands (1 with network)'
    """
    counts = Counter(effect.kind for effect in effects)
    reaching = Counter(effect.kind for effect in effects if effect.network and effect.kind != "network")
    parts = []
    for kind, names in _KINDS.items():
        if number := counts[kind]:
            network = f" ({reaching[kind]} with network)" if reaching[kind] else ""
            parts.append(f"{number:,} {names[number != 1]}{network}")
    return ", ".join(parts)


def rows_of(request: ConsentRequest, columns: int) -> list[str]:
    """Return all rows of a request, none wider than `columns`.

    >>> rows_of(ConsentRequest("Run it", ("a runs: ls", "b writes x"), ("1 command",)), 40)
    ['Run it', '  1 command', '  1. a runs: ls', '  2. b writes x']
    """
    rows = broken(request.question, columns, "", "  │ ")
    for total in request.totals:
        rows += broken(total, columns, "  ", "  │ ")
    width = len(str(len(request.effects)))
    bar = " " * (width + 2) + "│ "
    for number, effect in enumerate(request.effects, start=1):
        rows += broken(effect, columns, f"  {number:>{width}}. " if len(request.effects) > 1 else bar, bar)
    return rows


def pages_of(request: ConsentRequest, columns: int, rows: int) -> list[list[str]]:
    """Return the rows in pages of at most `rows`."""
    every = rows_of(request, columns)
    room = max(1, rows)
    return [every[at : at + room] for at in range(0, len(every), room)]


def broken(text: str, columns: int, first: str, others: str) -> list[str]:
    """Return a text as rows of a terminal, with visible control characters.

    `first` is the prefix of the first row, `others` of all others.
    """
    columns = max(columns, MIN_COLUMNS)
    rows: list[str] = []
    for line in visible(text, keep="\n").split("\n"):
        rows += wrap_line(line, columns, others if rows else first, others)
    return rows
