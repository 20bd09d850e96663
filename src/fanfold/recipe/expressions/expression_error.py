"""What is raised for an expression that cannot be used: by whoever reads, checks or evaluates it."""

from __future__ import annotations


class ExpressionError(ValueError):
    """The expression cannot be used; `position` to `end` is the part that is wrong."""

    parts: tuple[str | int, ...] = ()
    """The path behind a name that is not known."""

    def __init__(self, message: str, position: int, end: int, meant: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.meant = meant
        """What was probably meant in place of the wrong part."""
        self.position = position
        self.end = max(end, position + 1)
