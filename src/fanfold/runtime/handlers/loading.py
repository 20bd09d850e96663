"""Finds the Python callable that a `function` step names, in the process that is there for it.

Loading runs the project's code, so it happens under the run's permission, never in `check`, and never in the
process that drives the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

from fanfold.errors import AuthorError
from fanfold.runtime.handlers.permitted import ChangedSource, PermittedImports
from fanfold.runtime.handlers.registration import registered

IMPORTED = 'its file is imported: what it does only as a program belongs under if __name__ == "__main__":'


class Handlers:
    """Handlers of one project, each loaded once."""

    def __init__(self, project: str, imports: PermittedImports) -> None:
        self._project = project
        self._imports = imports
        self._loaded: dict[str, Callable[..., Any]] = {}
        sys.path[:0] = self._roots = [project, os.path.join(project, "src")]
        sys.meta_path.insert(0, imports)

    def find(self, name: str, file: str | None) -> Callable[..., Any]:
        """The callable; `AuthorError` when there is none, or its module cannot be imported."""
        if name not in self._loaded:
            try:
                found = self._import_file(name, file) if file is not None else _import_attribute(name)
            except ChangedSource:
                raise
            except (Exception, SystemExit, KeyboardInterrupt, GeneratorExit) as error:
                where = file or name.partition(":")[0]
                message = f'{where}, which has the function "{name}", cannot be imported: {_said(error)}'
                raise AuthorError("function.import", message, hint=IMPORTED) from error
            if not callable(found):
                raise AuthorError("function.not_found", f'there is no function "{name}" in this project')
            self._loaded[name] = found
        self._imports.check_loaded()
        return self._loaded[name]

    def _import_file(self, name: str, file: str) -> Any:
        path = os.path.join(self._project, file)
        if not self._import_as_module(path):
            alias = "fanfold_project_" + "".join(sign if sign.isalnum() else "_" for sign in file)
            spec = self._imports.spec_of(alias, file)
            assert spec.loader is not None
            sys.modules[alias] = module = module_from_spec(spec)
            spec.loader.exec_module(module)
        return registered().get(name)

    def _import_as_module(self, path: str) -> bool:
        """Import a file under the name that others import it by, if it has one and it is this file's."""
        for root in reversed(self._roots):
            inside = os.path.relpath(path, root).removesuffix(".py").removesuffix(f"{os.sep}__init__")
            parts = inside.split(os.sep)
            if all(part.isidentifier() for part in parts):
                module = sys.modules.get(".".join(parts))
                if module is None and _is_found(path, parts):
                    module = import_module(".".join(parts))
                return module is not None and _is_file(module, path)
        return False


def _is_found(path: str, parts: list[str]) -> bool:
    """Whether a module of that name would be this file, and not one of Python's own or of another folder."""
    from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

    top = parts[0]
    if BuiltinImporter.find_spec(top) or FrozenImporter.find_spec(top):
        return False
    spec = PathFinder.find_spec(top)
    if spec is None:
        return False
    if len(parts) == 1:
        return spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(path)
    folder = os.path.realpath(path)
    return any(
        folder.startswith(os.path.realpath(place) + os.sep) for place in spec.submodule_search_locations or ()
    )


def _is_file(module: ModuleType, path: str) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and os.path.realpath(origin) == os.path.realpath(path)


def _import_attribute(name: str) -> Any:
    module, _, attribute = name.partition(":")
    found: Any = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
