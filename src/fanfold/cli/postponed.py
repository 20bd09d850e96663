"""Modules that packages name while they are imported, and that a command seldom uses, loaded when it does.

asyncio imports TLS and the library behind it, for connections that only agents with models make; msgspec
imports what makes JSON schemas, and click what reads source code; modules of Python's own import others for
what is hardly ever asked of them. Each stands in `sys.modules` as an empty module first, and is filled when
somebody asks it for anything: `import ssl` costs nothing, `ssl.SSLContext` loads it.

Some that are loaded compile regular expressions while they are, for what a command hardly ever does; these
are compiled when it does. So are annotations that are texts, which few are ever asked for.
"""

from __future__ import annotations

import os
import re
import sys
import typing
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from threading import RLock
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from fanfold.text.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from types import FrameType, ModuleType

POSTPONED = frozenset(
    {
        "asyncio.sslproto",
        "asyncio.staggered",
        "asyncio.trsock",
        "base64",
        "fnmatch",
        "gettext",
        "inspect",
        "ipaddress",
        "locale",
        "msgspec.inspect",
        "msgspec.toml",
        "msgspec.yaml",
        "ntpath",
        "platform",
        "shlex",
        "ssl",
        "textwrap",
        "tokenize",
        "traceback",
        "urllib.parse",
    }
)
COMPILED_LATER = frozenset(
    {"click._compat", "json.encoder", "json.scanner", "logging", "string", "urllib.parse"}
)
"""Modules whose regular expressions are."""
SOURCES = ("fanfold.", "asyncio.", "click.")
"""Packages that hold nothing but Python, each in one folder: their modules are found there at once. Looking
for compiled ones first, in the way of each finder in turn, would cost as much as many of them do."""
_folders: dict[str, frozenset[str]] = {}
"""What is in those of them that were looked into."""
_CO_COROUTINE = 0x80
"""`inspect.CO_COROUTINE`"""


def postpone() -> None:
    """From now on; what is loaded already stays as it is."""
    if _Finder in sys.meta_path:
        return
    sys.meta_path.insert(0, _Finder)
    _compile_later()
    typing.__dict__["compile"] = _as_text
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


def _as_text(annotation: str, *_how: object) -> str:
    """What `typing` evaluates when it is asked for an annotation: code, or a text just as well.

    It compiles each as soon as it meets it, so that a mistake is found there, and for the first one Python
    makes some hundred classes of syntax trees; click has dozens that nobody asks for.
    """
    return annotation


class _Finder:
    """Finds the modules that are postponed, and no other."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in POSTPONED:
            return _find_source(path[0], name) if path and name.startswith(SOURCES) else None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Later(spec.loader)  # type: ignore[assignment] # it does what is asked of one
        return spec


def _find_source(folder: str, name: str) -> ModuleSpec | None:
    """A module or package of Python in a folder, if that is what it is; others find anything else."""
    names = _folders.get(folder)
    if names is None:
        names = _folders[folder] = frozenset(os.listdir(folder) if os.path.isdir(folder) else ())
    last = name.rpartition(".")[2]
    is_package = f"{last}.py" not in names
    file = f"{folder}/{last}/__init__.py" if is_package else f"{folder}/{last}.py"
    if is_package and not os.path.isfile(file):
        return None
    spec = ModuleSpec(name, SourceFileLoader(name, file), origin=file, is_package=is_package)
    spec.has_location = True
    if spec.submodule_search_locations is not None:
        spec.submodule_search_locations.append(f"{folder}/{last}")
    return spec


class _Later:
    """Loads a module when it is first asked for anything, and again where that was cut short. While one
    thread does, others wait for this module and no other, which the one thread may have to wait for itself.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._begun = False
        self._loading = RLock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        names = module.__dict__

        def load_for(name: str) -> Any:
            with self._loading:
                if not self._begun and name != "__path__":  # whoever imports from it asks; packages have one
                    self._begun = True
                    try:
                        self._loader.exec_module(module)
                    except BaseException:
                        self._begun = False
                        raise
                    if names.get("__getattr__") is load_for:
                        del names["__getattr__"]
            if name in names:
                return names[name]
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        names["__getattr__"] = load_for
        names.update(_ANSWERED.get(module.__name__, {}))


def _is_coroutine_function(found: object) -> bool:
    """What event loops ask of whatever is to be called on a signal: of a function, its code knows it."""
    function = found.__func__ if isinstance(found, MethodType) else found
    if type(function) is FunctionType and not function.__dict__:  # nothing was noted on it
        return bool(function.__code__.co_flags & _CO_COROUTINE)
    inspect = sys.modules["inspect"]
    inspect.signature  # noqa: B018 - loads it, which puts its own function in the place of this one
    return bool(inspect.iscoroutinefunction(found))


def _system() -> str:
    """What `uuid` asks while it is imported."""
    return os.uname().sysname


def _of(module: str, name: str) -> Callable[..., Any]:
    """Stands for a function that somebody takes from its module early, and that is seldom called."""

    def call(*given: Any, **named: Any) -> Any:
        found = sys.modules[module]
        hasattr(found, "")  # loads it, which puts the function itself in the place of this one
        return getattr(found, name)(*given, **named)

    return call


def _extract_stack(f: FrameType | None = None, limit: int | None = None) -> Any:
    """What event loops note of every task where somebody looks for mistakes in them."""
    return _of("traceback", "extract_stack")(f or sys._getframe(1), limit)  # noqa: SLF001 - as it does


_ANSWERED: dict[str, dict[str, Callable[..., Any]]] = {
    "gettext": {name: _of("gettext", name) for name in ("gettext", "ngettext")},
    "inspect": {"iscoroutinefunction": _is_coroutine_function},
    "platform": {"system": _system},
    "traceback": {"extract_stack": _extract_stack},
    "urllib.parse": {"quote_from_bytes": _of("urllib.parse", "quote_from_bytes")},
}
"""What is asked of modules in every run, and answered as they do without loading them; and what click,
asyncio and pathlib take from them while they are imported."""
