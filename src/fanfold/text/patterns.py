"""Regular expressions that are compiled when they are first used.

Compiling one takes as long as importing a small module, and most commands use few of those that the modules
they load have.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar, cast

Text = TypeVar("Text", str, bytes)


class _Pattern:
    """Stands for a pattern: what is first asked of it is kept for the next time."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self.pattern, self._flags), name)
        setattr(self, name, found)
        return found


def regex(pattern: Text, flags: int = 0) -> re.Pattern[Text]:
    """As `re.compile`, whose cache keeps it once it was used."""
    return cast("re.Pattern[Text]", _Pattern(pattern, flags))
