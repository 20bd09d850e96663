"""Answers calls in the process of a run's functions (`worker` is its program): load, call, hand back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec
from inspect import isawaitable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fanfold.errors import AuthorError, FanfoldError
from fanfold.runtime.handlers.frames import (
    CallFailure,
    FunctionCall,
    FunctionReply,
    Permitted,
    read_frame,
    to_frame,
)
from fanfold.runtime.handlers.permitted import ChangedSource, PermittedImports
from fanfold.runtime.handlers.registration import registered
from fanfold.text.json_value import TooLarge, strict
from fanfold.text.raised import said, words_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable


IMPORTED = 'its file is imported: what it does only as a program belongs under if __name__ == "__main__":'


class Handlers:
    """Handlers of one project, each loaded once.

    Loading runs the project's code, so it happens under the run's permission, never in `check`, and never in
    the process that drives the run.
    """

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


def answer_calls(incoming: int, outgoing: int) -> None:
    """Until the other side is gone."""
    own = os.getpid()
    with os.fdopen(incoming, "rb") as calls, os.fdopen(outgoing, "wb") as replies:
        permitted = read_frame(calls, Permitted)
        if permitted is None:
            return
        imports = PermittedImports(permitted.project, permitted.files)
        loop = _Loop()
        handlers = Handlers(permitted.project, imports)
        while (call := read_frame(calls, FunctionCall)) is not None:
            reply = _answer(handlers, call, loop)
            if os.getpid() != own:
                os._exit(0)  # a handler forked, and this is the copy
            replies.write(to_frame(reply))
            replies.flush()


def _answer(handlers: Handlers, call: FunctionCall, loop: _Loop) -> FunctionReply:
    try:
        handler = handlers.find(call.handler, call.file)
        value = _call(handler, call.inputs, loop)
    except ChangedSource as error:
        return FunctionReply(error=CallFailure("permission", error.code, error.message, error.hint))
    except FanfoldError as error:
        return FunctionReply(error=CallFailure("agent", error.code, error.message, error.hint))
    except BaseException as error:  # noqa: BLE001 - a handler may raise anything; it is the call's failure
        return FunctionReply(error=CallFailure("agent", "step.exception", said(error)))
    try:
        return FunctionReply(strict(value))
    except TooLarge as error:
        return FunctionReply(error=CallFailure("invalid_output", "output.too_large", str(error)))
    except BaseException as error:  # noqa: BLE001 - reading a value may run code of its own
        return FunctionReply(error=CallFailure("invalid_output", "output.not_json", words_of(error)))


def _call(handler: Callable[..., Any], inputs: dict[str, Any], loop: _Loop) -> object:
    value = handler(**inputs)
    return loop.run(value) if isawaitable(value) else value


class _Loop:
    """One event loop for all async handlers, so that what they keep open stays usable; made when needed."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, value: Awaitable[object]) -> object:
        import asyncio

        async def wait() -> tuple[object, BaseException | None]:
            try:
                return await value, None
            except BaseException as error:  # noqa: BLE001 - what is no Exception would end the loop
                return None, error

        if self._runner is None:
            self._runner = asyncio.Runner()
        result, error = self._runner.run(wait())
        if error is not None:
            raise error
        return result
