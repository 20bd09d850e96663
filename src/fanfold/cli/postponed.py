"""Modules that packages name while they are imported, and that a command seldom uses, loaded when it does.

asyncio imports TLS and the library behind it, for connections that only agents with models make; msgspec
imports what makes JSON schemas, and click what reads source code. Each stands in `sys.modules` as an empty
module first, and is filled when somebody asks it for anything: `import ssl` costs nothing, `ssl.SSLContext`
loads it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

POSTPONED = frozenset({"ssl", "asyncio.sslproto", "inspect", "msgspec.inspect", "textwrap"})
_loading = RLock()


def postpone() -> None:
    """From now on; what is loaded already stays as it is."""
    if _Finder in sys.meta_path:
        return
    sys.meta_path.insert(0, _Finder)
    if not {"typing_extensions", "msgspec"} & set(sys.modules):
        # msgspec takes from it what is in Python's own `typing` by now, and looks there where it is missing.
        sys.modules["typing_extensions"] = None  # type: ignore[assignment] # as Python means it to be missing
        import_module("msgspec")  # for who imports it next
        del sys.modules["typing_extensions"]


class _Finder:
    """Finds the modules that are postponed, and no other."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in POSTPONED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Later(spec.loader)  # type: ignore[assignment] # it does what is asked of one
        return spec


class _Later:
    """Loads a module when it is first asked for anything. While one thread does, others wait for it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._begun = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        names = module.__dict__

        def load_for(name: str) -> Any:
            with _loading:
                if not self._begun:
                    self._begun = True
                    self._loader.exec_module(module)
                    if names.get("__getattr__") is load_for:
                        del names["__getattr__"]
            if name in names:
                return names[name]
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        names["__getattr__"] = load_for
