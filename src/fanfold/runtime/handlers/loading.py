"""Finds and loads the Python callable that a `function` step names.

Loading runs the project's code, so it happens in `run`, under the run's permission, and never in
`check`. A registered name is looked up first; otherwise the file that registers it is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fanfold.errors import AuthorError
from fanfold.runtime.handlers.registration import is_module_name, registered
from fanfold.runtime.handlers.search import HandlerSearch


class Handlers:
    """Handlers of one project, each loaded once."""

    def __init__(self, project: Path) -> None:
        self._project = project
        self._search = HandlerSearch(project)
        self._loaded: dict[str, Callable[..., Any]] = {}

    def find(self, name: str) -> Callable[..., Any]:
        """The callable; `AuthorError` when there is none or its module cannot be imported."""
        if name not in self._loaded:
            known = registered().get(name)
            self._loaded[name] = known or self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> Callable[..., Any]:
        try:
            found = self._import(name)
        except Exception as error:  # importing runs the project's code, which may raise anything
            raise AuthorError(
                "function.import", f'the module of function "{name}" cannot be imported: {error}'
            ) from error
        if not callable(found):
            raise AuthorError("function.not_found", f'there is no function "{name}" in this project')
        return found  # type: ignore[no-any-return]  # whatever the project registered

    def _import(self, name: str) -> Any:
        for folder in (str(self._project), str(self._project / "src")):
            if folder not in sys.path:
                sys.path.insert(0, folder)
        if is_module_name(name):
            module, _, attribute = name.partition(":")
            found: Any = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
            return found
        file = self._search.file_of(name)
        if file is None:
            return None
        spec = importlib.util.spec_from_file_location(f"fanfold_project_{file.stem}", file)
        if spec is None or spec.loader is None:
            return None
        module_object = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module_object
        spec.loader.exec_module(module_object)
        return registered().get(name)
