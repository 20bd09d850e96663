"""Handles calls in the process of a run's functions (its program is `function_worker`): load, call, reply."""

from __future__ import annotations

import ast
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    BuiltinImporter,
    ExtensionFileLoader,
    FrozenImporter,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from importlib.util import decode_source, module_from_spec, spec_from_file_location
from inspect import isawaitable
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, overload

import msgspec
from msgspec import Struct

from fanfold.errors import EXIT_PERMISSION, AuthorError, FanfoldError, WorldError
from fanfold.language.json_text import JSON, MAX_VALUE_BYTES, TooLarge, strict
from fanfold.language.terminal import exception_message, exception_text, shorten
from fanfold.project_files import read_named, resolve_beneath

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable

# -----------------------------------------------------------------------------------------------------------
# The protocol between a run and the process of its functions: frames of JSON over two pipes
#
# A frame is a length in four bytes and that many bytes of JSON. The run sends `PermittedFiles` once and then
# one `FunctionCall` after another. Each call gets one `FunctionReply`. Values are sent as text, so neither
# side can change the values of the other.

HEADER_BYTES = 4
MAX_FRAME_BYTES = 8 * MAX_VALUE_BYTES
"""More than any value needs as JSON. A larger frame was not written by Fanfold's code in the process."""

T = TypeVar("T")


class PermittedFiles(Struct, frozen=True):
    """The path of the project, and the digests of its files that may be imported, by path."""

    project: str
    files: dict[str, str]
    allowed: frozenset[str] = frozenset()
    """Functions outside the project that the user's configuration lists: `module:callable`, or `module`."""


class FunctionCall(Struct, frozen=True):
    """A request to call one handler."""

    handler: str
    file: str | None
    """The file that registers the handler, relative to the project; None for `package.module:callable`."""
    inputs: dict[str, JSON]
    trace: str = ""
    """The W3C trace context of the step, for `TRACEPARENT`."""


class CallFailure(Struct, frozen=True):
    """The failure of a call; `kind` is the class of the failure, as in a run."""

    kind: str
    code: str
    message: str
    hint: str = ""


class FunctionReply(Struct, frozen=True):
    """The result of a call; `output` is valid if `error` is None."""

    output: JSON = None
    error: CallFailure | None = None


def to_frame(message: Struct) -> bytes:
    """The frame of a message."""
    content = msgspec.json.encode(message)
    return len(content).to_bytes(HEADER_BYTES, "big") + content


def read_frame(stream: BinaryIO, kind: type[T]) -> T | None:
    """The next message, or None if the other side has closed the pipe."""
    header = _read_exactly(stream, HEADER_BYTES)
    content = _read_exactly(stream, int.from_bytes(header, "big")) if header else b""
    return msgspec.json.decode(content, type=kind) if content else None


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    return content if len(content) == size else b""


# -----------------------------------------------------------------------------------------------------------
# Imports in the process of a run's functions: only project files as they were when the run was permitted
#
# A file of the project is read once and compared with the digest that the run has stored. Exactly the content
# that was read is executed. Bytecode files are ignored, since they were not permitted. Packages that are
# installed for this interpreter are trusted like the interpreter, also if they are in the project (`.venv`).


class ChangedSource(AuthorError):
    """A file of the project has changed since the run was permitted."""


class PermittedImports(MetaPathFinder):
    """An import finder for files of the project. It comes before all other finders."""

    def __init__(self, project: str, files: Mapping[str, str]) -> None:
        self._project = os.path.realpath(project)
        self._files = files
        self._loaded: dict[str, tuple[int, ...]] = {}
        """The files that were executed, with their state on disk at that time."""
        self._environments = [
            place for place in map(os.path.realpath, (sys.prefix, sys.exec_prefix)) if self._holds(place)
        ]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
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
        """The import spec of a file that is in no package."""
        return self._spec(name, os.path.join(self._project, file), self.read(file), None)

    def _spec(self, name: str, origin: str, content: bytes, inside: list[str] | None) -> ModuleSpec:
        spec = spec_from_file_location(
            name, origin, loader=_PermittedSource(name, origin, content), submodule_search_locations=inside
        )
        assert spec is not None
        return spec

    def read(self, file: str) -> bytes:
        """The content of a project file. Raises `ChangedSource` if it is not the permitted content."""
        known = self._files.get(file)
        if known is None or os.path.isabs(file) or ".." in file.split(os.sep):
            message = f"{file} did not exist when this run was permitted"
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

    def is_own(self, origin: str | None) -> bool:
        """Whether a module was loaded from a permitted file of the project."""
        return origin is not None and self._own(origin) in self._files

    def check_loaded(self) -> None:
        """Raise `ChangedSource` if the file of loaded code has changed or is gone."""
        for file, state in list(self._loaded.items()):
            try:
                now = _state(os.stat(os.path.join(self._project, file)))
            except OSError:
                now = ()
            if now != state:
                try:
                    self.read(file)
                except OSError:
                    message = f"{file} was deleted since this run was permitted"
                    raise ChangedSource("function.changed", message) from None

    def _own(self, origin: str) -> str | None:
        """The path of a file relative to the project, or None for a file outside it."""
        for path in (os.path.abspath(origin), os.path.realpath(origin)):
            if self._holds(path) and not any(_is_below(path, place) for place in self._environments):
                return os.path.relpath(path, self._project)
        return None

    def _holds(self, path: str) -> bool:
        return path != self._project and _is_below(path, self._project)


class _PermittedSource(SourceFileLoader):
    """Executes the content that was checked, even if the file has changed since."""

    def __init__(self, name: str, path: str, content: bytes) -> None:
        super().__init__(name, path)
        self._content = content

    def get_code(self, fullname: str) -> CodeType | None:
        code: Any = self.source_to_code(self._content, self.get_filename(fullname))
        return code  # type: ignore[no-any-return]  # what compile() gives

    def get_source(self, fullname: str) -> str | None:  # noqa: ARG002 - importlib names it so
        return decode_source(self._content)


def digest(content: bytes) -> str:
    """The digest of a file's content."""
    return blake2b(content, digest_size=16).hexdigest()


def _state(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


# -----------------------------------------------------------------------------------------------------------
# Functions: Python callables that `function` steps name
#
# A handler is registered by name with `@fanfold.function`, or named `package.module:callable`. This registry
# is used during a run. `HandlerSearch` finds the names that a recipe may use without importing anything:
# checking a recipe must never execute code of its project.

Handler = Callable[..., Any]
SETTING = "functions.allow"
F = TypeVar("F", bound=Handler)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
MODULE_NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\Z"

_registered: dict[str, Handler] = {}


@overload
def function(target: F, /) -> F: ...
@overload
def function(target: str | None = None, /, *, name: str | None = None) -> Callable[[F], F]: ...
def function(target: F | str | None = None, /, *, name: str | None = None) -> F | Callable[[F], F]:
    """Register a callable as a handler, under its own name or the given one.

    >>> @function
    ... def prepare(path: str) -> dict[str, str]:
    ...     return {"path": path}
    >>> @function("count-words")
    ... def count(text: str) -> int:
    ...     return len(text.split())
    """
    if target is not None and not isinstance(target, str):
        return _register(target, name)
    return lambda handler: _register(handler, target or name)


def registered() -> dict[str, Handler]:
    """Every handler registered so far, by name."""
    return dict(_registered)


def is_listed(name: str, allowed: Collection[str]) -> bool:
    """Whether the user's configuration lists a function outside the project, or all of its module."""
    return name in allowed or name.partition(":")[0] in allowed


def not_allowed(name: str) -> WorldError:
    """The error for a function that is neither in the project's files nor listed."""
    message = f"{name} is not in the project's own files, and your configuration does not list it"
    hint = (
        f'call it from a function of the project, or in your own config.toml: [functions] allow = ["{name}"]'
    )
    return WorldError("function.not_allowed", message, hint=hint, exit_status=EXIT_PERMISSION)


def is_module_name(name: str) -> bool:
    """Whether a name has the form `package.module:callable`."""
    return re.match(MODULE_NAME, name) is not None


def _register(handler: F, chosen: str | None) -> F:
    value: object = handler  # a caller may pass anything
    shown = shorten(repr(value), 80)
    if not callable(value):
        message = f"{shown} cannot be called: only a function can be registered"
        raise AuthorError("function.not_callable", message)
    name = str(chosen or getattr(handler, "__name__", ""))
    if not name:
        hint = 'give it one: fanfold.function("name")(…)'
        raise AuthorError("function.bad_name", f"{shown} has no name", hint=hint)
    if not NAME.match(name):
        raise AuthorError(
            "function.bad_name",
            f'"{name}" cannot be the name of a function',
            hint='use letters, digits, "-", "_" and "."',
        )
    earlier = _registered.get(name)
    # Reloading a module registers the same function again, which is not a duplicate.
    if earlier is not None and _origin(earlier) != _origin(handler):
        raise AuthorError(
            "function.duplicate",
            f'two functions are registered as "{name}": {_origin(earlier)} and {_origin(handler)}',
            hint=f'give one of them another name: @fanfold.function("{name}-2")',
        )
    _registered[name] = handler
    return handler


def _origin(handler: Handler) -> str:
    return f"{handler.__module__}:{getattr(handler, '__qualname__', handler)}"


IMPORTED = 'its file is imported: what it does only as a program belongs under if __name__ == "__main__":'


class Handlers:
    """The handlers of one project, each loaded once.

    Loading runs the project's code, so it happens under the run's permission, never in `check`, and never in
    the process that drives the run.
    """

    def __init__(self, project: str, imports: PermittedImports, allowed: frozenset[str]) -> None:
        self._project = project
        self._imports = imports
        self._allowed = allowed
        self._loaded: dict[str, Callable[..., Any]] = {}
        sys.path[:0] = self._roots = [project, os.path.join(project, "src")]
        sys.meta_path.insert(0, imports)

    def find(self, name: str, file: str | None) -> Callable[..., Any]:
        """The callable of a handler. Raises `AuthorError` if it is missing or cannot be imported."""
        if name not in self._loaded:
            try:
                if file is None:
                    found = self._import_named(name)
                else:
                    self._import_file(file)
                    found = registered().get(name)
            except (ChangedSource, WorldError):
                raise
            except (Exception, SystemExit, KeyboardInterrupt, GeneratorExit) as error:
                where = file or name.partition(":")[0]
                reason = str(error) or type(error).__name__
                message = f'{where}, which has the function "{name}", cannot be imported: {reason}'
                raise AuthorError("function.import", message, hint=IMPORTED) from error
            if not callable(found):
                raise AuthorError("function.not_found", f'there is no function "{name}" in this project')
            self._loaded[name] = found
        self._imports.check_loaded()
        return self._loaded[name]

    def _import_named(self, name: str) -> Any:
        """The callable of `package.module:callable`, in the project or listed in the user's configuration."""

        listed = is_listed(name, self._allowed)
        if not listed and not HandlerSearch(Path(self._project)).is_own(name):
            raise not_allowed(name)
        module, _, attribute = name.partition(":")
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        origin = sys.modules.get(getattr(found, "__module__", None) or "")
        # A name in a project module may refer to an object that was only imported there.
        if not listed and not self._imports.is_own(getattr(origin, "__file__", None)):
            raise not_allowed(name)
        return found

    def _import_file(self, file: str) -> None:
        """Import a file under its module name, or under an alias if that name is missing or another file."""
        path = os.path.join(self._project, file)
        for root in reversed(self._roots):
            inside = os.path.relpath(path, root).removesuffix(".py").removesuffix(f"{os.sep}__init__")
            parts = inside.split(os.sep)
            if all(part.isidentifier() for part in parts):
                module = sys.modules.get(".".join(parts))
                if module is None and _is_found(path, parts):
                    module = import_module(".".join(parts))
                origin = getattr(module, "__file__", None)
                if origin is not None and os.path.realpath(origin) == os.path.realpath(path):
                    return
                break
        alias = "fanfold_project_" + "".join(sign if sign.isalnum() else "_" for sign in file)
        spec = self._imports.spec_of(alias, file)
        assert spec.loader is not None
        sys.modules[alias] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


def _is_found(path: str, parts: list[str]) -> bool:
    """Whether a module of that name is this file, not one of Python's own or of another folder."""
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


def answer_calls(incoming: int, outgoing: int) -> None:
    """Handle calls until the other side closes the pipe."""
    own = os.getpid()
    with os.fdopen(incoming, "rb") as calls, os.fdopen(outgoing, "wb") as replies:
        permitted = read_frame(calls, PermittedFiles)
        if permitted is None:
            return
        imports = PermittedImports(permitted.project, permitted.files)
        loop = _Loop()
        handlers = Handlers(permitted.project, imports, permitted.allowed)
        while (call := read_frame(calls, FunctionCall)) is not None:
            reply = _answer(handlers, call, loop)
            if os.getpid() != own:
                os._exit(0)  # a handler forked, and this is the child process
            replies.write(to_frame(reply))
            replies.flush()


def _answer(handlers: Handlers, call: FunctionCall, loop: _Loop) -> FunctionReply:
    if call.trace:
        os.environ["TRACEPARENT"] = call.trace
    try:
        handler = handlers.find(call.handler, call.file)
        value = handler(**call.inputs)
        if isawaitable(value):
            value = loop.run(value)
    except (ChangedSource, WorldError) as error:
        return FunctionReply(error=CallFailure("permission", error.code, error.message, error.hint))
    except FanfoldError as error:
        return FunctionReply(error=CallFailure("agent", error.code, error.message, error.hint))
    except BaseException as error:  # noqa: BLE001 - a handler may raise anything; it is the call's failure
        return FunctionReply(error=CallFailure("agent", "step.exception", exception_text(error)))
    try:
        return FunctionReply(strict(value))
    except TooLarge as error:
        return FunctionReply(error=CallFailure("invalid_output", "output.too_large", str(error)))
    except BaseException as error:  # noqa: BLE001 - reading a value may run code of its own
        return FunctionReply(error=CallFailure("invalid_output", "output.not_json", exception_message(error)))


class _Loop:
    """One event loop for all async handlers, so that they can reuse open connections."""

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


# -----------------------------------------------------------------------------------------------------------
# Search for handlers by parsing Python files, never by importing them
#
# `check` uses this, and only if a recipe names a handler. An import would run the project's code, so only the
# syntax tree is read. Names that are created at run time are therefore not found.
#
# Bounds: 2,000 files of 1 MB each, without hidden folders, environments and build products. Files that do not
# mention `fanfold` are not parsed, so a large project costs little more than reading its files.

MAX_FILES = 2_000
MAX_FILE_BYTES = 1_000_000
SKIPPED_FOLDERS = frozenset(
    {"node_modules", "venv", "env", "site-packages", "__pycache__", "build", "dist", "target", "vendor"}
)
SOURCE = ".py"
COMPILED = (".so", ".pyd")


class HandlerSearch:
    """The handlers that a recipe in `project` may name."""

    def __init__(self, project: Path, path: Sequence[str] | None = None) -> None:
        self._project = project
        entries = sys.path if path is None else path
        self._roots = [project, project / "src", *(Path(entry) for entry in entries if entry)]
        self._names: set[str] | None = None
        self.complete = True
        """False if the project has more than `MAX_FILES` files, so that names may be missing."""

    def names(self) -> tuple[str, ...]:
        """The names that the project registers with `@fanfold.function`, sorted."""
        return tuple(sorted(self._registered()))

    def _registered(self) -> set[str]:
        if self._names is None:
            self._names = set()
            for number, file in enumerate(walk(self._project, (SOURCE,))):
                if number == MAX_FILES:
                    self.complete = False
                    break
                self._names.update(decorated_names(read(self._project, file)))
        return self._names

    def knows(self, handler: str) -> bool:
        """Whether a step may name this handler."""
        name, colon, callable_name = handler.partition(":")
        if not colon:
            return handler in self._registered()
        module, attribute = name.split("."), callable_name.split(".")
        if not all(part.isidentifier() for part in [*module, *attribute]):
            return False
        for root in self._roots:
            file = _module_file(self._project, root, module)
            if file is None:
                continue
            if file.suffix != SOURCE:  # compiled: the module exists, but its names are unknown
                return True
            tree = _parse(read(self._project, file))
            return tree is None or _defines(tree.body, attribute)
        return module[0] in sys.builtin_module_names

    def is_own(self, handler: str) -> bool:
        """Whether `package.module:callable` is in a file of the project, not in an installed package."""
        module = handler.partition(":")[0].split(".")
        for root in self._roots:
            file = _module_file(self._project, root, module)
            if file is not None:
                return is_own_file(self._project, file)
        return False


def is_own_file(project: Path, file: Path) -> bool:
    """Whether a file is in the project and in no environment or build folder there, as in `walk`."""
    if not file.is_relative_to(project):
        return False
    folders = file.relative_to(project).parts[:-1]
    if any(name[0] == "." or name in SKIPPED_FOLDERS for name in folders):
        return False
    above = [project.joinpath(*folders[: count + 1]) for count in range(len(folders))]
    return not any(os.path.lexists(folder / "pyvenv.cfg") for folder in above)


def walk(folder: Path, endings: tuple[str, ...]) -> Iterator[Path]:
    """The project's own files with these endings, in the same order on every machine.

    Links are followed only if their target is inside the project.
    """
    ahead = [folder]
    while ahead:
        here = ahead.pop()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError:
            continue
        below = []
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                # Every virtual environment has this file at its root, whatever its folder name.
                own = entry.name[0] != "." and entry.name not in SKIPPED_FOLDERS
                if own and not os.path.lexists(os.path.join(entry.path, "pyvenv.cfg")):
                    below.append(Path(entry.path))
            # Only regular files: reading a named pipe would block.
            elif entry.name.endswith(endings) and _is_file_search(folder, Path(entry.path)):
                yield Path(entry.path)
        ahead += below[::-1]


def _is_file_search(top: Path, file: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(resolve_beneath(top, file)).st_mode)
    except OSError:
        return False


def _module_file(project: Path, root: Path, module: list[str]) -> Path | None:
    base = root.joinpath(*module)
    for candidate in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
        own = candidate.is_relative_to(project)
        if _is_file_search(project, candidate) if own else candidate.is_file():
            return candidate
    try:
        siblings = sorted(base.parent.glob(f"{base.name}.*"))
    except OSError:
        return None
    return next((path for path in siblings if path.suffix in COMPILED), None)


def read(project: Path, file: Path, limit: int = MAX_FILE_BYTES) -> bytes | None:
    """The content of a file, or None if it cannot be read or is too large."""
    try:
        data = read_named(project, file, limit + 1)
    except OSError:
        return None
    return data if len(data) <= limit else None


def _parse(data: bytes | None, must_mention: bytes = b"") -> ast.Module | None:
    """The syntax tree, or None if the file is too large, irrelevant or invalid Python."""
    if data is None or len(data) > MAX_FILE_BYTES or must_mention not in data:
        return None
    try:
        return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def decorated_names(data: bytes | None) -> Iterator[str]:
    """The names that a source file registers with `@fanfold.function`."""
    tree = _parse(data, must_mention=b"fanfold")
    if tree is None:
        return
    modules: set[str] = set()  # the local names of the package `fanfold`, and of its `function` decorator
    functions: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.update(a.asname or a.name for a in node.names if a.name == "fanfold")
        elif isinstance(node, ast.ImportFrom) and node.module in ("fanfold", "fanfold.steps.function_calls"):
            functions.update(a.asname or a.name for a in node.names if a.name == "function")
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for decorator in node.decorator_list:
                name = _registered_name(decorator, node.name, modules, functions)
                if name is not None:
                    yield name


def _registered_name(decorator: ast.expr, own: str, modules: set[str], functions: set[str]) -> str | None:
    call = decorator if isinstance(decorator, ast.Call) else None
    target = call.func if call else decorator
    match target:
        case ast.Attribute(value=ast.Name(id=module), attr="function") if module in modules:
            pass
        case ast.Name(id=name) if name in functions:
            pass
        case _:
            return None
    given = [*call.args, *(word.value for word in call.keywords if word.arg == "name")] if call else []
    if not given:
        return own
    first = given[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def _defines(body: Sequence[ast.stmt], attribute: list[str]) -> bool:
    name, rest = attribute[0], attribute[1:]
    for node in body:
        match node:
            case ast.ClassDef(name=defined, body=inner) if defined == name and rest:
                return _defines(inner, rest)
            case (
                ast.FunctionDef(name=defined)
                | ast.AsyncFunctionDef(name=defined)
                | ast.ClassDef(name=defined)
            ):
                if defined in (name, "__getattr__"):
                    return True
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                # Re-exports count. A star import may define any name, so it counts too.
                if any((a.asname or a.name.partition(".")[0]) in (name, "*") for a in names):
                    return True
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                    return True
            case ast.If(body=inner, orelse=other) | ast.Try(body=inner, orelse=other):
                if _defines([*inner, *other], attribute):
                    return True
    return False
