"""Wiring: the one place that decides which implementations a project gets.

Everything a recipe is compiled against is put together here from the project's folder and the
environment: roles, handlers, the library of recipes, ceilings. Surfaces ask for it; nobody else builds it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, ValuesView
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from fanfold.agents.roles.registry import Registry, load_roles, role_roots
from fanfold.errors import FanfoldError
from fanfold.recipe.library import Library
from fanfold.runtime.config import Config, fanfold_home, user_home
from fanfold.runtime.operations.project import Project
from fanfold.trust.state import require_ours

if TYPE_CHECKING:
    from fanfold.agents.backend import Backend
    from fanfold.kernel.events import Raised
    from fanfold.runtime.operations.by_hand import HandMeans
    from fanfold.runtime.records.frozen import Frozen
    from fanfold.runtime.steps.toolboxes import Toolboxes
    from fanfold.sessions.supervisor import Supervisor
    from fanfold.store.protocol import Store, StoreAddress

BUILT_IN_RECIPES = Path(__file__).parent / "recipe" / "builtin"


class Wired:
    """What is chosen for one project. Each part is made when the project first asks for it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        require_ours(folder, fanfold_home(environment))
        self.config = Config.read(folder, environment)
        self._environment = environment

    @cached_property
    def roles(self) -> Registry:
        roots = role_roots(self.folder, user_home(self._environment), self.config.home)
        has_anthropic = bool(self.config.text("models.anthropic_api_key"))
        return load_roles(roots, self.folder, has_anthropic=has_anthropic)

    def library(self) -> Library:
        own, theirs = self.folder / ".fanfold" / "workflows", self.config.home / "workflows"
        return Library(own, theirs, BUILT_IN_RECIPES, top=self.folder)

    def store(self) -> StoreAddress:
        """Where the project keeps its runs."""
        from fanfold.agents.redaction import Redactor
        from fanfold.store.address import SqliteAddress

        return SqliteAddress(
            folder=self.folder / ".fanfold",
            durability="normal" if self.config.text("store.durability") == "normal" else "full",
            clean=Redactor.of(self._environment).encoded,
        )

    def resume_command(self, root: str, raised: Raised | None) -> list[str]:
        """`fanfold resume`, in a process of its own."""
        # -P: the current folder is the project's, and its files are not modules of ours.
        own = [sys.executable, "-P", "-m", "fanfold.cli.main", "resume", root]
        limits = {} if raised is None else structs.asdict(raised)
        if (micro_usd := limits.pop("budget_micro_usd", None)) is not None:
            limits["budget_usd"] = micro_usd / 1_000_000
        given = [
            (f"--{name.replace('_', '-')}", str(value)) for name, value in limits.items() if value is not None
        ]
        return [*own, "--project", str(self.folder.resolve()), *(word for pair in given for word in pair)]

    def supervise(self, store: Store, frozen: Frozen, toolboxes: Toolboxes) -> Supervisor:
        from fanfold.agents.backends.scripted import Script, ScriptedBackend
        from fanfold.process_identity import this_process
        from fanfold.sessions.supervisor import Supervisor

        backends: dict[str, Backend] = {}
        if frozen.script is not None:
            backends["scripted"] = ScriptedBackend(
                Script.load(frozen.script, frozen.script_file), toolbox=toolboxes.toolbox
            )
        if frozen.backend == "model" and frozen.roles:  # a recipe without agents needs no model
            backends["model"] = self._models(frozen, toolboxes, self._default_of(frozen))
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

    def _models(self, frozen: Frozen, toolboxes: Toolboxes | HandMeans, default: str | None) -> Backend:
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
            toolbox=toolboxes.toolbox,
            instructions=partial(self._told, frozen),
        )
        idle_s = config.integer("models.local_idle_s")
        return Pipelines(
            AnyModel(default, speak(access), reach, config.home, idle_s),
            find=frozen.roles.get if frozen.roles else self.roles.find,
            toolbox=toolboxes.toolbox,
            redactor=redactor,
            model=frozen.model,
        )

    def _told(self, frozen: Frozen, workspace: str) -> str:
        """What the project tells every agent: as it was when the run began, where a run froze it."""
        from fanfold.agents.instructions import project_instructions

        if frozen.instructions is not None:
            return frozen.instructions
        return project_instructions(workspace) if self.config.switch("agents.project_instructions") else ""


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


def wire(
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    store: StoreAddress | None = None,
    to_read: bool = False,
) -> Project:
    """Put a project together; `environment` defaults to the process's, the store to the one it names.

    `to_read`: its runs are looked at and nothing else, and where there are none no store is made.
    """
    wired = Wired(folder, os.environ if environment is None else environment)
    return Project(
        folder,
        wired.config,
        wired.library(),
        load_roles=lambda: wired.roles,
        address=wired.store() if store is None else store,
        supervise=wired.supervise,
        resume_command=wired.resume_command,
        to_read=to_read,
    )


def supervise_by_hand(project: Project) -> Supervisor:
    """The supervisor of subagents that people start themselves."""
    return Wired(project.folder, os.environ).supervise_by_hand(project)
