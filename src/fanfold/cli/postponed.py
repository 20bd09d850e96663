"""Modules that packages name while they are imported, and that a command seldom uses, loaded when it does.

asyncio imports TLS and the library behind it, for connections that only agents with models make; msgspec
imports what makes JSON schemas, and click what reads source code; modules of Python's own import others for
what is hardly ever asked of them. Each stands in `sys.modules` as an empty module first, and is filled when
somebody asks it for anything: `import ssl` costs nothing, `ssl.SSLContext` loads it.

Some that are loaded compile regular expressions while they are, for what a command hardly ever does; these
are compiled when it does.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from threading import RLock
from types import FunctionType
from typing import TYPE_CHECKING, Any

from fanfold.text.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

POSTPONED = frozenset(
    {
        "asyncio.sslproto",
        "inspect",
        "ipaddress",
        "locale",
        "msgspec.inspect",
        "platform",
        "ssl",
        "textwrap",
        "tokenize",
    }
)
COMPILED_LATER = frozenset(
    {"click._compat", "json.encoder", "json.scanner", "logging", "string", "urllib.parse"}
)
"""Modules whose regular expressions are."""
_CO_COROUTINE = 0x80
"""`inspect.CO_COROUTINE`"""
_loading = RLock()


def postpone() -> None:
    """From now on; what is loaded already stays as it is."""
    if _Finder in sys.meta_path:
        return
    sys.meta_path.insert(0, _Finder)
    _compile_later()
    if not {"typing_extensions", "msgspec"} & set(sys.modules):
        # msgspec takes from it what is in Python's own `typing` by now, and looks there where it is missing.
        sys.modules["typing_extensions"] = None  # type: ignore[assignment] # as Python means it to be missing
        import_module("msgspec")  # for who imports it next
        del sys.modules["typing_extensions"]


def _compile_later() -> None:
    compile_now = re.compile

    def compile_for(pattern: Any, flags: int = 0) -> re.Pattern[Any]:
        caller = sys._getframe(1).f_globals.get("__name__")  # noqa: SLF001 - all that tells who asks
        return regex(pattern, flags) if caller in COMPILED_LATER else compile_now(pattern, flags)

    re.compile = compile_for


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
        names.update(_ANSWERED.get(module.__name__, {}))


def _is_coroutine_function(found: object) -> bool:
    """What event loops ask of whatever is to be called on a signal: of a function, its code knows it."""
    function = getattr(found, "__func__", found)
    if type(function) is FunctionType and not function.__dict__:  # nothing was noted on it
        return bool(function.__code__.co_flags & _CO_COROUTINE)
    inspect = sys.modules["inspect"]
    inspect.signature  # noqa: B018 - loads it, which puts its own function in the place of this one
    return bool(inspect.iscoroutinefunction(found))


def _system() -> str:
    """What `uuid` asks while it is imported."""
    return os.uname().sysname


_ANSWERED: dict[str, dict[str, Callable[..., Any]]] = {
    "inspect": {"iscoroutinefunction": _is_coroutine_function},
    "platform": {"system": _system},
}
"""What is asked of modules in every run, and answered as they do without loading them."""
