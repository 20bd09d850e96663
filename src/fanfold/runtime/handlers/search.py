"""Find handlers by reading Python files, never by importing them.

Used by `check` and only when a recipe names a handler. Importing would run the project's code just to
look at it; so the syntax tree has to do. The price: names made at run time are not seen.

Bounds: 2,000 files of 1 MB each; hidden folders, environments and build products are left out. Files
that mention neither word are not parsed, so a large project costs little more than reading it.
"""

from __future__ import annotations

import ast
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fanfold.trust.project_files import read_named, resolve_beneath

MAX_FILES = 2_000
MAX_FILE_BYTES = 1_000_000
SKIPPED_FOLDERS = frozenset(
    {"node_modules", "venv", "env", "site-packages", "__pycache__", "build", "dist", "target", "vendor"}
)
SOURCE = ".py"
COMPILED = (".so", ".pyd")


class HandlerSearch:
    """What a recipe in `project` may name; every answer is computed once."""

    def __init__(self, project: Path, path: Sequence[str] | None = None) -> None:
        self._project = project
        entries = sys.path if path is None else path
        self._roots = [project, project / "src", *(Path(entry) for entry in entries if entry)]
        self._names: set[str] | None = None
        self.complete = True
        """False when the project has more files than are read, so a name may have been missed."""

    def names(self) -> tuple[str, ...]:
        """Names given with `@fanfold.function` anywhere in the project, sorted."""
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
        """True when a step may name this handler."""
        module, colon, attribute = handler.partition(":")
        if colon:
            return self._has_attribute(module.split("."), attribute.split("."))
        return handler in self._registered()

    def _has_attribute(self, module: list[str], attribute: list[str]) -> bool:
        if not all(part.isidentifier() for part in [*module, *attribute]):
            return False
        for root in self._roots:
            file = _module_file(self._project, root, module)
            if file is None:
                continue
            if file.suffix != SOURCE:  # compiled: it is there, and no more can be known
                return True
            tree = _parse(read(self._project, file))
            return tree is None or _defines(tree.body, attribute)
        return module[0] in sys.builtin_module_names


def walk(folder: Path, endings: tuple[str, ...]) -> Iterator[Path]:
    """The files of a project that end so and are its own, in one order everywhere.

    Links are followed where they end inside the project; where others lead is not even looked at.
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
                # Any environment has this file at its root, whatever the folder is called.
                own = entry.name[0] != "." and entry.name not in SKIPPED_FOLDERS
                if own and not os.path.lexists(os.path.join(entry.path, "pyvenv.cfg")):
                    below.append(Path(entry.path))
            # A pipe of that name would be waited for.
            elif entry.name.endswith(endings) and _is_file(folder, Path(entry.path)):
                yield Path(entry.path)
        ahead += below[::-1]


def _is_file(top: Path, file: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(resolve_beneath(top, file)).st_mode)
    except OSError:
        return False


def _module_file(project: Path, root: Path, module: list[str]) -> Path | None:
    base = root.joinpath(*module)
    for candidate in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
        own = candidate.is_relative_to(project)
        if _is_file(project, candidate) if own else candidate.is_file():
            return candidate
    try:
        siblings = sorted(base.parent.glob(f"{base.name}.*"))
    except OSError:
        return None
    return next((path for path in siblings if path.suffix in COMPILED), None)


def read(project: Path, file: Path, limit: int = MAX_FILE_BYTES) -> bytes | None:
    """What a file holds, or None when it cannot be read or is too large."""
    try:
        data = read_named(project, file, limit + 1)
    except OSError:
        return None
    return data if len(data) <= limit else None


def _parse(data: bytes | None, must_mention: bytes = b"") -> ast.Module | None:
    """The syntax tree, or None when there is too much, or no Python."""
    if data is None or len(data) > MAX_FILE_BYTES or must_mention not in data:
        return None
    try:
        return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def decorated_names(data: bytes | None) -> Iterator[str]:
    """The names that a source registers with `@fanfold.function`."""
    tree = _parse(data, must_mention=b"fanfold")
    if tree is None:
        return
    modules, functions = _imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for decorator in node.decorator_list:
                name = _registered_name(decorator, node.name, modules, functions)
                if name is not None:
                    yield name


def _imported_names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Local names of the package `fanfold` and of its `function` decorator."""
    modules: set[str] = set()
    functions: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.update(a.asname or a.name for a in node.names if a.name == "fanfold")
        elif isinstance(node, ast.ImportFrom) and node.module in (
            "fanfold",
            "fanfold.runtime.handlers.registration",
        ):
            functions.update(a.asname or a.name for a in node.names if a.name == "function")
    return modules, functions


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
                # Re-exports count; a star may bring anything, so it gets the benefit of the doubt.
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
