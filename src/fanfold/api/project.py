"""One project: its folder, configuration, recipes, roles and store. Every operation takes a project.

Each part is created on first use. Reading recipes must not import a database. Reading a project without runs
must not create a store.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from fanfold.engine.config import Config, recipe_ceilings
from fanfold.errors import WorldError
from fanfold.workspace.layout import Layout
from fanfold.workspace.seal import claim, list_adopted, note_keyed

if TYPE_CHECKING:
    from fanfold.agents.backend import SessionRequest, Tools
    from fanfold.agents.backend_registry import BackendRegistry
    from fanfold.agents.permissions import Ask
    from fanfold.agents.roles import Registry
    from fanfold.engine.run_tree import KeptTrees, RunTree
    from fanfold.kernel.events import LimitsRaised
    from fanfold.kernel.plan import Plan
    from fanfold.language.builder import Recipe
    from fanfold.language.compile import CompileResult
    from fanfold.language.draft import CompileContext, FoundRecipe, OwnCommand
    from fanfold.language.library import Library
    from fanfold.sessions.supervisor import SessionSlots
    from fanfold.steps.function_calls import HandlerSearch
    from fanfold.steps.run_config import RunConfig
    from fanfold.steps.step_workspace import Isolation
    from fanfold.steps.toolboxes import RootTools
    from fanfold.store.protocol import RunHead, Store, StoreAddress

MakeRootTools: TypeAlias = "Callable[[Project, RunConfig, Ask | None, SessionRequest, Tools], Tools]"


class ContinuedRun(Protocol):
    """A run that another process continues."""

    @property
    def root(self) -> str: ...

    def lives(self) -> bool:
        """Whether that process may still become the owner of the run."""
        ...

    def ended_at_once(self) -> WorldError:
        """Return the error for a run that did not get an owner."""
        ...


class Continuation(Protocol):
    """Chooses the process that continues a run which this process does not drive."""

    by_workers: bool
    """Whether workers of a cluster drive runs, also those that a user follows."""

    def takes(self, project: Project, root: str, /) -> bool:
        """Whether workers drive this run, rather than a process in the folder where it was started."""
        ...

    def continue_run(
        self, project: Project, root: str, raised: LimitsRaised | None, *, keep_waits: bool
    ) -> ContinuedRun:
        """Have a run continued. `raised` and `keep_waits` are those of `Host.resume`."""
        ...


class Parts(Struct, frozen=True):
    """The loaders of a project's parts. Each is called on first use."""

    load_library: Callable[[], Library]
    load_roles: Callable[[], Registry]
    load_address: Callable[[], StoreAddress]
    load_backends: Callable[[], BackendRegistry]
    load_continuation: Callable[[], Continuation]
    make_root_tools: MakeRootTools


class Project:
    """An open project. `folder` is the workspace; Fanfold stores its data in `.fanfold/` below it."""

    def __init__(
        self,
        folder: Path,
        config: Config,
        *,
        parts: Parts,
        to_read: bool = False,
        kept: KeptTrees | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self._named = folder
        """The folder as the caller named it. Messages about its files use this name."""
        self.config = config
        self._parts = parts
        self._to_read = to_read
        self._kept = kept
        self._is_closed = False
        self.notice = ""
        """A notice to the user about the state of the project."""
        self.narrate: Callable[[str], None] | None = None
        """Shows the progress of the lead agent's tools to the user of a chat, line by line."""

    @cached_property
    def address(self) -> StoreAddress:
        """The address of the store, which may not exist yet."""
        return self._parts.load_address()

    @property
    def memory(self) -> Path:
        """The folder with all data that Fanfold stores about this project."""
        return self.folder / ".fanfold"

    @property
    def runs_folder(self) -> Path:
        return self.memory / "runs"

    def own_file(self, group: str, kind: str) -> Path:
        """A file of the user about this project, outside of it: a checkout cannot bring its content."""
        from hashlib import sha256

        return self.config.home / group / f"{sha256(bytes(self.folder)).hexdigest()[:16]}.{kind}"

    # Recipes and roles

    @cached_property
    def library(self) -> Library:
        """Finds the recipes of this project."""
        return self._parts.load_library()

    @cached_property
    def roles(self) -> Registry:
        """Roles by precedence, with notices about files that are shadowed or invalid."""
        return self._parts.load_roles()

    def compile_context(self, *, scripted: bool = False) -> CompileContext:
        """Return the context in which recipes of this project are compiled.

        With a script no back end is needed: the script answers for every role.
        """
        if not scripted:
            return self._context
        return msgspec.structs.replace(self._context, backend_problem=lambda _name, _command: None)

    @cached_property
    def _context(self) -> CompileContext:
        from fanfold.agents.role_tools import is_tool
        from fanfold.agents.tool_names import BY_NAME
        from fanfold.language.draft import Ceilings, CompileContext
        from fanfold.steps.step_type import STEP_TYPES

        assert STEP_TYPES  # importing the table passes the step types to the compiler
        config = self.config
        return CompileContext(
            self.roles,
            self._is_handler,
            self._handler_names,
            self.library,
            Ceilings(*recipe_ceilings(config), config.integer("workflows.max_concurrent")),
            lambda name, command: self.backends.problem(name, command),  # noqa: PLW0108 - loaded late
            self._own_command,
            is_tool,
            lambda: tuple(BY_NAME),
        )

    @cached_property
    def backends(self) -> BackendRegistry:
        """The agent back ends that are available here."""
        return self._parts.load_backends()

    def _own_command(self, gate: str) -> OwnCommand | None:
        # Imported late: only recipes that leave a gate's command to the project need this search.
        from fanfold.language.project_commands import find_own_command

        return find_own_command(self.folder, gate)

    @cached_property
    def _handler_search(self) -> HandlerSearch:
        # Created late: only recipes that name a handler require reading the project's Python files.
        from fanfold.steps.function_calls import HandlerSearch

        return HandlerSearch(self._named)

    def _is_handler(self, name: str) -> bool:
        from fanfold.steps.function_calls import registered

        return name in registered() or self._handler_search.knows(name)

    def is_own_handler(self, name: str) -> bool:
        """Whether `package.module:callable` is registered, or is in a file of the project."""
        from fanfold.steps.function_calls import registered

        return name in registered() or self._handler_search.is_own(name)

    def _handler_names(self) -> Sequence[str]:
        from fanfold.steps.function_calls import registered

        return sorted({*registered(), *self._handler_search.names()})

    def find_recipe(self, ref: str) -> FoundRecipe:
        """Find a recipe by name or file. A file is looked up in the current folder, then in the project."""
        from fanfold.language.library import is_path

        if is_path(ref) and not os.path.lexists(ref) and os.path.lexists(self._named / ref):
            return self.library.find(str(self._named / ref))
        return self.library.find(ref)

    def plan_of(self, recipe: str | os.PathLike[str] | Recipe, *, scripted: bool = False) -> Plan:
        """Return the plan of a recipe given by name, by file or as a `Recipe`; raises `FileRefused`."""
        from fanfold.language.builder import Recipe
        from fanfold.language.diagnostics import FileRefused

        if isinstance(recipe, Recipe):
            check = ""
            inside = self.folder == Path(os.path.realpath("."))
            compiled = recipe.compile(self.compile_context(scripted=scripted), "." if inside else self._named)
        else:
            name = os.fspath(recipe)
            check = f"fanfold check {shlex.quote(name)}"
            compiled = self.compile(self.find_recipe(name), scripted=scripted)
        if compiled.plan is None:
            raise FileRefused(compiled.report.diagnostics, compiled.sources, check)
        return compiled.plan

    def compile(self, found: FoundRecipe, *, scripted: bool = False) -> CompileResult:
        """Compile a recipe. The plan records the file, so that a retry finds it again."""
        from fanfold.language.compile import compile_recipe

        compiled = compile_recipe(found.data, found.file, self.compile_context(scripted=scripted))
        if compiled.plan is not None:
            file = os.path.realpath(found.file)
            inside = file.startswith(f"{self.folder}{os.sep}")
            name = os.path.relpath(file, self.folder) if inside else file
            compiled.plan = msgspec.structs.replace(compiled.plan, source_file=name)
        return compiled

    # Runs

    @property
    def has_runs(self) -> bool:
        """Whether the project has a store, that is, whether any run was ever recorded."""
        self.check_open()
        opened = "store" in self.__dict__ and self.store.is_remote  # asking the server takes a connection
        return opened or self.address.exists()

    @cached_property
    def store(self) -> Store:
        """The store. It is created if missing, unless the project was opened read-only."""
        self.check_open()
        if self._to_read:
            return self.address.open_to_read()
        claim(self.folder, self.config.home)
        take_back_lent(self.folder)
        store = self.address.open()
        note_keyed(self.folder, self.config.home)
        list_adopted(self.folder, store.roots)  # in case `adopt` stopped before it listed the runs
        return store

    @cached_property
    def continuation(self) -> Continuation:
        """Chooses the process that continues a run which this process does not drive."""
        return self._parts.load_continuation()

    @cached_property
    def isolation(self) -> Isolation:
        """Creates the workspaces of steps."""
        from fanfold.steps.step_workspace import Isolation

        setup, network = self.config.texts("workspace.setup"), self.config.switch("workspace.setup_network")
        return Isolation(self.folder, self.config.texts("workspace.include"), setup, setup_network=network)

    def root_tools(self, frozen: RunConfig, ask: Ask | None) -> RootTools:
        """Return a function that adds tools that drive Fanfold to the toolbox of an interactive session."""
        return lambda request, own: self._parts.make_root_tools(self, frozen, ask, request, own)

    @cached_property
    def session_places(self) -> SessionSlots:
        """The slots that limit how many sessions this process runs at once, across all runs."""
        from fanfold.sessions.supervisor import SessionSlots

        return SessionSlots(self.config.integer("sessions.max_sessions"))

    def heads(self, *statuses: str, recipe: str | None = None, limit: int = -1) -> list[RunHead]:
        """List root runs, newest first, grouped in the order of `statuses`. Empty if no run was recorded."""
        wanted = statuses or (None,)
        if not self.has_runs:
            return []
        return [head for word in wanted for head in self.store.heads(status=word, recipe=recipe, limit=limit)]

    def resolve(self, run: str) -> RunHead:
        """Return a run by id, unique prefix, or `last`."""
        if not self.has_runs:
            self.address.open_to_read()  # raises the right error and creates nothing
        head = self.store.head(self.store.resolve(run))
        if head is None:
            from fanfold.store.protocol import no_run

            raise no_run(run)
        return head

    def view(self, root: str, at: int | None = None) -> RunTree:
        """Return a read-only copy of a run tree, as its log is now or as it was after event `at`."""
        if self._kept is None:
            from fanfold.engine.run_tree import KeptTrees

            self._kept = KeptTrees()
        return self._kept.view(self.store, root, at)

    def has_owner(self, root: str) -> bool:
        """Whether a live process drives a run tree."""
        found = self.store.owner(root)
        return found is not None and found[1]

    def check_open(self) -> None:
        """Raise an error if the project was closed."""
        if self._is_closed:
            from fanfold.store.protocol import closed

            raise closed()

    def close(self) -> None:
        self._is_closed = True
        if "store" in self.__dict__:  # it was opened
            self.store.close()


def take_back_lent(folder: Path) -> None:
    """Remove credentials that processes which no longer run had lent to agents."""
    try:
        if not os.listdir(folder / ".fanfold" / "workspace" / "lent"):
            return
    except OSError:
        return  # nothing was ever lent here
    from fanfold.workspace.children import take_back_abandoned

    take_back_abandoned(Layout(folder))
