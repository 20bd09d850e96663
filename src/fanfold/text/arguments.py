"""What a program can be given as arguments and variables: the kernel has its limits, and NUL ends each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MAX_ARGUMENT_BYTES = 128 * 1024 - 1
"""What Linux takes for one argument or variable, with its name and the byte that ends it."""
MAX_GIVEN_BYTES = 1024 * 1024
"""All arguments and variables together; the kernel's own limit depends on the user's settings."""


def why_not_startable(argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Why the kernel would refuse to start a program with these; empty when it would not.

    >>> why_not_startable(["echo", "x\\0"])
    'argument 1 holds a NUL character'
    """
    named = {f"argument {i}": value for i, value in enumerate(argv)}
    named |= {f"the variable {name}": f"{name}={value}" for name, value in (env or {}).items()}
    total = 0
    for what, value in named.items():
        if "\0" in value:
            return f"{what} holds a NUL character"
        size = len(value.encode("utf-8", "surrogateescape"))
        if size > MAX_ARGUMENT_BYTES:
            return f"{what} has {size:,} bytes; a program can be given {MAX_ARGUMENT_BYTES:,} at most"
        total += size
    if total > MAX_GIVEN_BYTES:
        return (
            f"arguments and variables have {total:,} bytes together; at most {MAX_GIVEN_BYTES:,} can be given"
        )
    return ""
