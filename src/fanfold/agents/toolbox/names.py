"""Lists of tools by name: what two of them both let through, and whether one names anything of a server.

A list that is None names everything. A tool of an MCP server is `mcp__server__tool`; `mcp__server` (or
`mcp__server__*`) is all of that server's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fanfold.agents.toolbox.schemas import ALIASES
from fanfold.text.patterns import regex

UNSAFE = regex(r"[^A-Za-z0-9_-]")
"""Letters that not every provider takes in the name of a tool."""


def is_wanted(server: str, listed: Sequence[str] | None) -> bool:
    """Whether a list of tools names anything of a server."""
    if listed is None:
        return True
    names = spellings(f"mcp__{server}")
    return any(one in names or one.startswith(tuple(f"{name}__" for name in names)) for one in listed)


def narrowed(
    allowed: Sequence[str] | None, wanted: Sequence[str] | None, servers: Iterable[str] = ()
) -> tuple[str, ...] | None:
    """The tools that two lists both let through; `servers` are those there are.

    >>> narrowed(["Read", "mcp__wiki"], ["read_file", "write_file", "mcp__wiki__find"], ["wiki"])
    ('read_file', 'mcp__wiki__find')
    """
    if allowed is None or wanted is None:
        chosen = allowed if wanted is None else wanted
        return None if chosen is None else tuple(chosen)
    whole = {spelled for server in servers for spelled in spellings(f"mcp__{server}")}
    names = {ALIASES.get(name, name) for name in allowed}
    kept = [name for name in wanted if ALIASES.get(name, name) in names or _is_of(name, allowed, whole)]
    kept += [name for name in allowed if _is_of(name, wanted, whole)]
    return tuple(dict.fromkeys(kept))


def spellings(name: str) -> frozenset[str]:
    """A name as a file may have it and as providers take it."""
    return frozenset({name, UNSAFE.sub("_", name)})


def _is_of(name: str, listed: Sequence[str], whole: set[str]) -> bool:
    """Whether a name is a tool, or all the tools, of a server that is listed as a whole."""
    if name in whole:  # a server whose name begins like another's is not a tool of that one
        return f"{name}__*" in listed
    listed_whole = (one.removesuffix("__*") for one in listed)
    return any(name.startswith(f"{one}__") for one in listed_whole if one in whole)
