"""Fan a job out to a team of AI agents and fold one answer back.

Public names are loaded at their first use: `fanfold --help` and every script that imports the package
would otherwise pay for all of it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for true; importing it from typing would cost 10 ms
if TYPE_CHECKING:
    from fanfold.errors import FanfoldError
    from fanfold.runtime.functions import function

__version__ = "0.1.0"
__all__ = ["FanfoldError", "__version__", "function"]

_HOMES = {"FanfoldError": "fanfold.errors", "function": "fanfold.runtime.functions"}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
