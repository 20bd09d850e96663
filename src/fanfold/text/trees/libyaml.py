"""libyaml's parser, as PyYAML brings it, at the price of what is used of it.

PyYAML compiles ten regular expressions while it is imported, for a reader and constructors in Python that
nothing here ever calls: more than all the rest of it costs, and a tenth of a short command. They are compiled
when somebody uses them, which another package in this process may.
"""

from __future__ import annotations

import re
import sys
from threading import Lock
from types import ModuleType
from typing import Any

from fanfold.text.patterns import regex

_importing = Lock()


def import_yaml() -> ModuleType:
    """The package `yaml`, with libyaml."""
    with _importing:
        if "yaml" in sys.modules:
            import yaml

            return yaml
        compile_now = re.compile

        def compile_later(pattern: str, flags: int = 0) -> Any:
            caller = sys._getframe(1).f_globals  # noqa: SLF001 - other threads may be importing, too
            theirs = caller.get("__name__", "").startswith("yaml.")
            return regex(pattern, flags) if theirs else compile_now(pattern, flags)

        re.compile = compile_later  # type: ignore[assignment] # there are overloads of it for bytes
        try:
            import yaml
        finally:
            re.compile = compile_now
        return yaml
