"""One project: its folder, configuration, recipes, roles and store. Every operation is given one.

Parts are made when they are first asked for: looking at recipes must not cost the import of a database, and
looking at a project in which nothing ran yet must not make one.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct

from fanfold.errors import FanfoldError
from fanfold.runtime.config import Config
from fanfold.trust.adopted import list_adopted
from fanfold.trust.state import claim

if TYPE_CHECKING:
    from fanfold.agents.backend import SessionRequest
    from fanfold.agents.backend_registry import BackendRegistry
    from fanfold.agents.permissions import Ask
    from fanfold.agents.roles.registry import Registry
    from fanfold.agents.toolbox.catalogue import Tools
    from fanfold.kernel.events import Raised
    from fanfold.kernel.plan import Plan
    from fanfold.recipe.builder import Recipe
    from fanfold.recipe.compile import Compiled
    from fanfold.recipe.library import Library
    from fanfold.recipe.surroundings import FoundRecipe, OwnCommand, Surroundings
    from fanfold.runtime.handlers.search import HandlerSearch
    from fanfold.runtime.hosting.run_tree import RunTree
    from fanfold.runtime.operations.kept_trees import KeptTrees
    from fanfold.runtime.places.isolation import Isolation
    from fanfold.runtime.records.frozen import Frozen
    from fanfold.runtime.steps.programs.toolboxes import RootTools
    from fanfold.sessions.supervisor import Places
    from fanfold.store.protocol import RunHead, Store, StoreAddress

    ResumeCommand: TypeAlias = Callable[[str, Raised | None], Sequence[str]]
    MakeRootTools: TypeAlias = Callable[["Project", Frozen, Ask | None, SessionRequest, Tools], Tools]


class Parts(Struct, frozen=True):
    """What a project is made with, each made when it is first asked for."""

    load_library: Callable[[], Library]
    load_roles: Callable[[], Registry]
    load_address: Callable[[], StoreAddress]
    load_backends: Callable[[], BackendRegistry]
    resume_command: ResumeCommand
    make_root_tools: MakeRootTools


class Project:
    """`folder` is the workspace; its memory lives in `.fanfold/` below it."""

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
        """As the caller names it, and as messages about its files do."""
        self.config = config
        self.resume_command = parts.resume_command
        """The program that goes on with a run in a process of its own."""
        self._make_root_tools = parts.make_root_tools
        self._load_library = parts.load_library
        self._load_roles = parts.load_roles
        self._load_backends = parts.load_backends
        self._load_address = parts.load_address
        self._to_read = to_read
        self._kept = kept
        """Trees that were folded for a look, where one thread looks again and again."""
        self._is_closed = False

    @cached_property
    def address(self) -> StoreAddress:
        """Where the store is, or will be."""
        return self._load_address()

    @property
    def memory(self) -> Path:
        """Where everything is kept that Fanfold remembers about this project."""
        return self.folder / ".fanfold"

    @property
    def runs_folder(self) -> Path:
        return self.memory / "runs"

    # Recipes and roles

    @cached_property
    def library(self) -> Library:
        """Where its recipes are found."""
        return self._load_library()

    @cached_property
    def roles(self) -> Registry:
        """Roles by precedence, with notices about files that are shadowed or cannot be used."""
        return self._load_roles()

    @cached_property
    def around(self) -> Surroundings:
        """What recipes of this project are compiled against."""
        from fanfold.recipe.surroundings import Ceilings, Surroundings

        config = self.config
        return Surroundings(
            self.roles,
            self._is_handler,
            self._handler_names,
            self.library,
            Ceilings(config.integer("ceilings.concurrency"), config.integer("ceilings.agents")),
            self._backend_problem,
            self._own_command,
            _is_tool,
            _tool_names,
        )

    def surroundings(self, *, scripted: bool) -> Surroundings:
        """`around`; for a run with a script, which answers for every role, no other back end is needed."""
        return msgspec.structs.replace(self.around, backend_problem=_none) if scripted else self.around

    @cached_property
    def backends(self) -> BackendRegistry:
        """The agent back ends there are here."""
        return self._load_backends()

    def _backend_problem(self, name: str, command: Sequence[str]) -> FanfoldError | None:
        return self.backends.problem(name, command)

    def _own_command(self, gate: str) -> OwnCommand | None:
        # Looking for them is for recipes that leave a gate's command to the project; most do not.
        from fanfold.recipe.own_commands import find_own_command

        return find_own_command(self.folder, gate)

    @cached_property
    def _handler_search(self) -> HandlerSearch:
        # Reading a project's Python files is for recipes that name a handler; most do not.
        from fanfold.runtime.handlers.search import HandlerSearch

        return HandlerSearch(self._named)

    def _is_handler(self, name: str) -> bool:
        from fanfold.runtime.handlers.registration import registered

        return name in registered() or self._handler_search.knows(name)

    def _handler_names(self) -> Sequence[str]:
        from fanfold.runtime.handlers.registration import registered

        return sorted({*registered(), *self._handler_search.names()})

    def find_recipe(self, ref: str) -> FoundRecipe:
        """A recipe by name or file; a file is looked for in the current folder, then in the project."""
        from fanfold.recipe.library import is_path

        if is_path(ref) and not os.path.lexists(ref) and os.path.lexists(self._named / ref):
            return self.library.find(str(self._named / ref))
        return self.library.find(ref)

    def plan_of(self, recipe: str | os.PathLike[str] | Recipe, *, scripted: bool = False) -> Plan:
        """The plan of a recipe by name, by file or built in code; raises `FileRefused`."""
        from fanfold.recipe.builder import Recipe
        from fanfold.text.refusal import FileRefused

        if isinstance(recipe, Recipe):
            check = ""
            inside = self.folder == Path(os.path.realpath("."))
            compiled = recipe.compile(self.surroundings(scripted=scripted), "." if inside else self._named)
        else:
            name = os.fspath(recipe)
            check = f"fanfold check {shlex.quote(name)}"
            compiled = self.compile(self.find_recipe(name), scripted=scripted)
        if compiled.plan is None:
            raise FileRefused(compiled.report.diagnostics, compiled.sources, check)
        return compiled.plan

    def compile(self, found: FoundRecipe, *, scripted: bool = False) -> Compiled:
        """Compile a recipe that was found. Its plan says where, so that a retry finds the file again."""
        from fanfold.recipe.compile import compile_recipe

        compiled = compile_recipe(found.data, found.file, self.surroundings(scripted=scripted))
        if compiled.plan is not None:
            file = os.path.realpath(found.file)
            inside = file.startswith(f"{self.folder}{os.sep}")
            name = os.path.relpath(file, self.folder) if inside else file
            compiled.plan = msgspec.structs.replace(compiled.plan, source_file=name)
        return compiled

    # Runs

    @property
    def has_runs(self) -> bool:
        """Whether anything was ever recorded in this project."""
        self.check_open()
        return self.address.exists()

    @cached_property
    def store(self) -> Store:
        """What the project remembers; made when it is missing, unless it is only looked at."""
        self.check_open()
        if self._to_read:
            return self.address.open_to_read()
        claim(self.folder, self.config.home)
        take_back_lent(self.folder)
        store = self.address.open()
        list_adopted(self.folder, store.roots)  # where whoever adopted the state did not come to it
        return store

    @cached_property
    def isolation(self) -> Isolation:
        """The workspaces of steps."""
        from fanfold.runtime.places.isolation import Isolation

        return Isolation(self.folder)

    def root_tools(self, frozen: Frozen, ask: Ask | None) -> RootTools:
        """What adds the tools that drive Fanfold to the toolbox of a session that a person talks to."""
        return lambda request, own: self._make_root_tools(self, frozen, ask, request, own)

    @cached_property
    def session_places(self) -> Places:
        """How many sessions this process runs at once, whatever runs they belong to."""
        from fanfold.sessions.supervisor import Places

        return Places(self.config.integer("sessions.max_sessions"))

    def heads(self, *statuses: str, recipe: str | None = None, limit: int = -1) -> list[RunHead]:
        """Root runs, newest first, those of each status in turn; none where nothing ever ran."""
        wanted = statuses or (None,)
        if not self.has_runs:
            return []
        return [head for word in wanted for head in self.store.heads(status=word, recipe=recipe, limit=limit)]

    def resolve(self, run: str) -> RunHead:
        """A run by id, unique prefix, or `last`."""
        if not self.has_runs:
            self.address.open_to_read()  # refused with the words for it, and nothing is made
        head = self.store.head(self.store.resolve(run))
        if head is None:
            from fanfold.store.protocol import no_run

            raise no_run(run)
        return head

    def view(self, root: str, at: int | None = None) -> RunTree:
        """A reader's copy of a tree as its log is now, or as it was after one of its events."""
        if self._kept is not None:
            return self._kept.view(self.store, root, at)
        from fanfold.runtime.hosting.run_tree import RunTree

        return RunTree.load(self.store, root, until=at)

    def has_owner(self, root: str) -> bool:
        """Whether a live process drives a run tree."""
        found = self.store.owner(root)
        return found is not None and found[1]

    def check_open(self) -> None:
        """Refuse a project that was closed."""
        if self._is_closed:
            from fanfold.store.protocol import closed

            raise closed()

    def close(self) -> None:
        self._is_closed = True
        if "store" in self.__dict__:  # it was opened
            self.store.close()


def _none(_: str, _command: Sequence[str]) -> None:
    return None


def _is_tool(name: str) -> bool:
    from fanfold.agents.roles.tools import is_tool  # few recipes name any

    return is_tool(name)


def _tool_names() -> Sequence[str]:
    from fanfold.agents.toolbox.schemas import BY_NAME

    return tuple(BY_NAME)


def take_back_lent(folder: Path) -> None:
    """Take away what processes that are gone lent to agents: credentials stay nowhere."""
    try:
        if not os.listdir(folder / ".fanfold" / "workspace" / "lent"):
            return
    except OSError:
        return  # nothing was ever lent here
    from fanfold.workspace.files.layout import Layout
    from fanfold.workspace.homes import take_back_abandoned

    take_back_abandoned(Layout(folder))
