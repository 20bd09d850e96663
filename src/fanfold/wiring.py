"""Wiring: the one place that decides which implementations a project gets.

Everything a recipe is compiled against is put together here from the project's folder and the
environment: roles, handlers, the library of recipes, ceilings. Surfaces ask for it; nobody else builds it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, ValuesView
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fanfold.agents.roles.registry import Registry, load_roles, role_roots
from fanfold.errors import FanfoldError
from fanfold.recipe.library import Library, is_path
from fanfold.recipe.surroundings import Ceilings, Found, RoleFacts, Surroundings
from fanfold.runtime.config import Config, user_home

if TYPE_CHECKING:
    from fanfold.agents.backend import Backend
    from fanfold.agents.role import Role
    from fanfold.kernel.plan import Plan
    from fanfold.recipe.builder import Recipe
    from fanfold.runtime.operations.by_hand import HandMeans
    from fanfold.runtime.operations.client import Client
    from fanfold.runtime.operations.project import Project
    from fanfold.runtime.records.frozen import Frozen
    from fanfold.runtime.steps.handler_search import HandlerSearch
    from fanfold.runtime.steps.means import Means
    from fanfold.sessions.supervisor import Supervisor
    from fanfold.store.protocol import Store, StoreAddress

BUILT_IN_RECIPES = Path(__file__).parent / "recipe" / "builtin"


class Wired:
    """A project with everything chosen. Parts are made when first asked for."""

    def __init__(self, project: Path, environment: Mapping[str, str]) -> None:
        self.project = project
        self._environment = environment
        self.config = Config.read(project, environment)
        self.library = Library(
            project / ".fanfold" / "workflows", self.config.home / "workflows", BUILT_IN_RECIPES
        )

    @cached_property
    def roles(self) -> Registry:
        """Roles by precedence, with notices about files that are shadowed or cannot be used."""
        roots = role_roots(self.project, user_home(self._environment), self.config.home)
        has_anthropic = bool(self.config.text("models.anthropic_api_key"))
        return load_roles(roots, self.project, has_anthropic=has_anthropic)

    @cached_property
    def around(self) -> Surroundings:
        """What recipes of this project are compiled against."""
        ceilings = Ceilings(
            self.config.integer("ceilings.concurrency"), self.config.integer("ceilings.agents")
        )
        return Surroundings(
            _facts(self.roles),
            self._is_handler,
            self._handler_names,
            self.library,
            ceilings,
            self.roles.broken,
        )

    @cached_property
    def _handlers(self) -> HandlerSearch:
        # Reading a project's Python files is for recipes that name a handler; most do not.
        from fanfold.runtime.steps.handler_search import HandlerSearch

        return HandlerSearch(self.project)

    def find(self, ref: str) -> Found:
        """A recipe by name or file; a file is looked for in the current folder, then in the project."""
        if is_path(ref) and not os.path.exists(ref) and os.path.exists(self.project / ref):
            return self.library.find(str(self.project / ref))
        return self.library.find(ref)

    def plan_of(self, recipe: str | os.PathLike[str] | Recipe) -> Plan:
        """The plan of a recipe by name, by file or built in code; raises `RecipeRefused`."""
        from fanfold.recipe.builder import Recipe
        from fanfold.recipe.compile import compile_recipe
        from fanfold.recipe.refusal import RecipeRefused

        if isinstance(recipe, Recipe):
            name, compiled = recipe.name, recipe.compile(self.around, self.project)
        else:
            name = os.fspath(recipe)
            found = self.find(name)
            compiled = compile_recipe(found.data, found.file, self.around)
        if compiled.plan is None:
            raise RecipeRefused(name, compiled.report.diagnostics, compiled.sources)
        return compiled.plan

    def client(self) -> Client:
        """The project as Python sees it."""
        from fanfold.runtime.operations.client import Client

        return Client(self.open(), self.plan_of)

    @cached_property
    def store(self) -> StoreAddress:
        """Where this project keeps its runs."""
        from fanfold.agents.redaction import Redactor
        from fanfold.store.address import SqliteAddress

        return SqliteAddress(
            folder=self.project / ".fanfold",
            durability="normal" if self.config.text("store.durability") == "normal" else "full",
            clean=Redactor.of(self._environment).encoded,
        )

    def open(self) -> Project:
        """The project with its store, ready to run recipes."""
        return self._around_store(self.store.open())

    def open_to_read(self) -> Project:
        """The project with its store as it is, to look at runs; `NotFoundError` where nothing has run yet."""
        return self._around_store(self.store.open_to_read())

    def _around_store(self, store: Store) -> Project:
        # Looking at recipes must not cost the import of what runs them.
        from fanfold.runtime.operations.project import Project

        return Project(self.project, self.config, lambda: self.roles, store, self.supervise)

    def supervise(self, store: Store, frozen: Frozen, means: Means) -> Supervisor:
        from fanfold.agents.backends.scripted import Script, ScriptedBackend
        from fanfold.process_identity import this_process
        from fanfold.sessions.supervisor import Supervisor

        backends: dict[str, Backend] = {}
        if frozen.script is not None:
            backends["scripted"] = ScriptedBackend(
                Script.load(frozen.script, frozen.script_file), toolbox=means.toolbox
            )
        if frozen.backend == "model" and frozen.roles:  # a recipe without agents needs no model
            backends["model"] = self._models(frozen, means, self._default_of(frozen))
        return Supervisor(
            store,
            backends,
            max_threads=self.config.integer("sessions.max_threads"),
            max_depth=self.config.integer("sessions.max_depth"),
            max_sessions=self.config.integer("sessions.max_sessions"),
            owner=this_process(),
        )

    def supervise_by_hand(self, project: Project) -> Supervisor:
        """The supervisor of subagents that people start themselves; each names its own back end."""
        from fanfold.process_identity import this_process
        from fanfold.runtime.operations.by_hand import HandMeans
        from fanfold.runtime.operations.hand_places import HandPlaces
        from fanfold.sessions.supervisor import Supervisor

        places = HandPlaces(project.folder)
        means = HandMeans(project, places.isolation)
        supervisor = Supervisor(
            project.store,
            _Doors(partial(self._door, project.store, means)),
            max_threads=self.config.integer("sessions.max_threads"),
            max_depth=self.config.integer("sessions.max_depth"),
            max_sessions=self.config.integer("sessions.max_sessions"),
            owner=this_process(),
        )
        supervisor.children.turns.housing = places
        return supervisor

    def _door(self, store: Store, means: HandMeans, name: str) -> Backend:
        from fanfold.agents.backends.scripted import Script, ScriptedBackend
        from fanfold.runtime.records.frozen import Frozen

        kind, _, blob = name.partition(":")
        if kind == "scripted" and blob:
            return ScriptedBackend(Script.load(store.blob(blob), "script"), toolbox=means.toolbox)
        if kind == "model":
            return self._models(Frozen(), means, self._default_of(Frozen()))
        raise KeyError(name)

    def _choose(self) -> str:
        from fanfold.agents.local.weights import local_state
        from fanfold.runtime.model_choice import choose_model

        return choose_model(self.config, local_state(self.config.home)).model

    def _default_of(self, frozen: Frozen) -> str | None:
        """The model of agents for whom nobody names one: as it was chosen when the run began.

        It is not tried here: to look at a run, or to cancel it, no key is needed. Whether the model can still
        be used, the session that needs it says.
        """
        known = frozen.model or frozen.default_model
        if known is not None:
            return known
        try:
            return self._choose()
        except FanfoldError:  # every step names its own
            return None

    def _models(self, frozen: Frozen, means: Means | HandMeans, default: str | None) -> Backend:
        from fanfold.agents.backends.local import AnyModel
        from fanfold.agents.backends.model import Access, ModelBackend
        from fanfold.agents.pipelines import Pipelines
        from fanfold.agents.redaction import Redactor

        config = self.config
        access = Access(
            openai_api_key=config.text("models.openai_api_key"),
            openai_base_url=config.text("models.openai_base_url"),
            anthropic_api_key=config.text("models.anthropic_api_key"),
            anthropic_base_url=config.text("models.anthropic_base_url"),
        )

        def reach(address: str) -> ModelBackend:
            return speak(Access(openai_api_key="local", openai_base_url=address, native_json=True))

        redactor = Redactor.of(self._environment, access.secrets)
        speak = partial(
            ModelBackend,
            model=default,
            redactor=redactor,
            toolbox=means.toolbox,
            instructions=partial(self._told, frozen),
        )
        idle_s = config.integer("models.local_idle_s")
        return Pipelines(
            AnyModel(default, speak(access), reach, config.home, idle_s),
            find=frozen.roles.get if frozen.roles else self.roles.find,
            toolbox=means.toolbox,
            redactor=redactor,
            model=frozen.model,
        )

    def _told(self, frozen: Frozen, workspace: str) -> str:
        """What the project tells every agent: as it was when the run began, where a run froze it."""
        from fanfold.agents.instructions import project_instructions

        if frozen.instructions is not None:
            return frozen.instructions
        return project_instructions(workspace) if self.config.switch("agents.project_instructions") else ""

    def _is_handler(self, name: str) -> bool:
        return self._handlers.knows(name)

    def _handler_names(self) -> Sequence[str]:
        return self._handlers.names()


class _Doors(Mapping[str, "Backend"]):
    """Back ends by name, each made when a session first asks for it: `model`, or `scripted:BLOB`."""

    def __init__(self, make: Callable[[str], Backend]) -> None:
        self._make = make
        self._made: dict[str, Backend] = {}

    def __getitem__(self, name: str) -> Backend:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("model", "scripted"))

    def __len__(self) -> int:
        return 2

    def values(self) -> ValuesView[Backend]:
        """Those that were made."""
        return self._made.values()


def wire(project: Path, environment: Mapping[str, str] | None = None) -> Wired:
    """Put a project together; `environment` defaults to the process's."""
    return Wired(project, os.environ if environment is None else environment)


def _facts(roles: Registry) -> dict[str, RoleFacts]:
    facts: dict[str, RoleFacts] = {}
    for name in roles.names():
        versions = roles.versions(name)
        by_version = {version: _facts_of(roles.find(name, version)) for version in versions}
        own = _facts_of(roles.find(name))
        facts[name] = msgspec.structs.replace(own, versions=versions, by_version=by_version)
    return facts


def _facts_of(role: Role | None) -> RoleFacts:
    assert role is not None, "every listed name and version is found"
    return RoleFacts(role.read_only, tools=role.tools, prompt_template=role.prompt_template)
