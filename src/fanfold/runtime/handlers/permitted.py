"""Imports in the process of a run's functions: of the project only what was there when it was permitted.

A file of the project is read once, held against the digest that the run remembers, and what was read is what
is executed. Bytecode beside it is not looked at: nobody permitted that. What is installed where this
interpreter keeps its packages is as trusted as the interpreter, also when that lies in the project (`.venv`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType
from typing import Any

from fanfold.errors import AuthorError


class ChangedSource(AuthorError):
    """A file of the project is not what it was when the run was permitted."""


class PermittedImports(MetaPathFinder):
    """Stands before every other finder, and answers for files of the project alone."""

    def __init__(self, project: str, files: Mapping[str, str]) -> None:
        self._project = os.path.realpath(project)
        self._files = files
        self._loaded: dict[str, tuple[int, ...]] = {}
        """Files that were executed, as they were on disk then."""
        self._environments = [
            place for place in map(os.path.realpath, (sys.prefix, sys.exec_prefix)) if self._holds(place)
        ]

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not spec.has_location:
            return None
        if (file := self._own(spec.origin)) is None:
            return None
        content = self.read(file)
        if isinstance(spec.loader, ExtensionFileLoader):
            return spec
        if not isinstance(spec.loader, SourceFileLoader):
            raise ChangedSource("function.changed", f"{file} is bytecode; only its source can be permitted")
        return self._spec(fullname, spec.origin, content, spec.submodule_search_locations)

    def spec_of(self, name: str, file: str) -> ModuleSpec:
        """How a file that is in no package is imported."""
        return self._spec(name, os.path.join(self._project, file), self.read(file), None)

    def _spec(self, name: str, origin: str, content: bytes, inside: list[str] | None) -> ModuleSpec:
        spec = spec_from_file_location(
            name, origin, loader=_PermittedSource(name, origin, content), submodule_search_locations=inside
        )
        assert spec is not None
        return spec

    def read(self, file: str) -> bytes:
        """The content of a file of the project, if it is what was permitted."""
        known = self._files.get(file)
        if known is None:
            message = f"{file} was not there when this run was permitted"
            raise ChangedSource("function.changed", message)
        path = os.path.join(self._project, file)
        with open(path, "rb") as opened:
            state = _state(os.fstat(opened.fileno()))
            content = opened.read()
        if digest(content) != known:
            message = f"{file} changed since this run was permitted"
            raise ChangedSource("function.changed", message)
        self._loaded[file] = state
        return content

    def check_loaded(self) -> None:
        """Refuse to go on with code whose file says something else by now."""
        for file, state in list(self._loaded.items()):
            try:
                now = _state(os.stat(os.path.join(self._project, file)))
            except OSError:
                now = ()
            if now != state:
                try:
                    self.read(file)
                except OSError:
                    message = f"{file} is gone since this run was permitted"
                    raise ChangedSource("function.changed", message) from None

    def _own(self, origin: str) -> str | None:
        """The path of a file within the project; None for any other."""
        for path in (os.path.abspath(origin), os.path.realpath(origin)):
            if self._holds(path) and not any(_is_below(path, place) for place in self._environments):
                return os.path.relpath(path, self._project)
        return None

    def _holds(self, path: str) -> bool:
        return path != self._project and _is_below(path, self._project)


class _PermittedSource(SourceFileLoader):
    """Executes the content that was looked at, whatever is on disk by then."""

    def __init__(self, name: str, path: str, content: bytes) -> None:
        super().__init__(name, path)
        self._content = content

    def get_code(self, fullname: str) -> CodeType | None:
        code: Any = self.source_to_code(self._content, self.get_filename(fullname))
        return code  # type: ignore[no-any-return]  # what compile() gives

    def get_source(self, fullname: str) -> str | None:  # noqa: ARG002 - importlib names it so
        from importlib.util import decode_source

        return decode_source(self._content)


def digest(content: bytes) -> str:
    """What the content of a file is remembered by."""
    return blake2b(content, digest_size=16).hexdigest()


def _state(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
