"""Wiring: the one place that decides which implementations a project gets.

Everything a recipe is compiled against is put together here from the project's folder and the
environment: roles, handlers, the library of recipes, ceilings. Surfaces ask for it; nobody else builds it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from fanfold.agents.backend_registry import (
    MODEL,
    SCRIPTED,
    BackendKind,
    BackendRegistry,
    BackendSetup,
    Machine,
)
from fanfold.agents.providers import ANTHROPIC, PROVIDERS, Provider, guard_keys
from fanfold.api.project import Continuation, Parts, Project
from fanfold.engine.config import Config, fanfold_home, user_home
from fanfold.errors import AuthorError, FanfoldError
from fanfold.workspace.layout import folders_above, remote_name
from fanfold.workspace.seal import chain_key, is_keyed, require_ours

if TYPE_CHECKING:
    from fanfold.agents.backend import Backend, SessionRequest, Tools
    from fanfold.agents.permissions import Ask
    from fanfold.agents.redaction import Redactor
    from fanfold.agents.roles import Registry
    from fanfold.api.run_options import Options
    from fanfold.api.system import ClusterStatus
    from fanfold.api.workers import WorkerRow
    from fanfold.engine.run_tree import KeptTrees
    from fanfold.kernel.events import LimitsRaised
    from fanfold.language.library import Library
    from fanfold.server.mcp import FanfoldServer, HttpEndpoint
    from fanfold.server.service import OnReady
    from fanfold.steps.run_config import RunConfig
    from fanfold.store.protocol import Health, Store, StoreAddress

BUILT_IN_RECIPES = Path(__file__).parent / "language" / "builtin"


def _model(setup: BackendSetup) -> Backend:
    from fanfold.agents.models import session

    return session.make(setup)


def _local(setup: BackendSetup) -> Backend:
    from fanfold.agents.local import server

    return server.make(setup, _model(setup))


def _check_local(machine: Machine, _command: Sequence[str]) -> None:
    from fanfold.agents.local import server

    server.check(machine)


def _scripted(setup: BackendSetup) -> Backend:
    from fanfold.agents import script

    return script.make(setup)


def _root_tools(
    project: Project, frozen: RunConfig, ask: Ask | None, request: SessionRequest, own: Tools
) -> Tools:
    from fanfold.api.tool_registry import DrivingTools

    return DrivingTools(project, frozen, ask, request, own)


BACKENDS = (
    BackendKind(name=MODEL, make=_model),
    BackendKind(name="local", make=_local, check=_check_local),
    BackendKind(name=SCRIPTED, make=_scripted, in_stages=False),
)
"""What roles and `--agent-backend` can name."""


def _commands(home: Path, known: Sequence[BackendKind]) -> list[BackendKind]:
    """A row for every profile of an agent that is a program, as far as nothing else is called so."""
    from fanfold.agents.command.profile import NAMED_BY_ROLES, profile_names

    taken = {kind.name for kind in known}
    names = [name for name in (*NAMED_BY_ROLES, *profile_names(home)) if name not in taken]
    return [
        BackendKind(
            name=name,
            make=partial(_command, name=name),
            check=partial(_check_command, name=name),
            tells_price=partial(_command_tells_price, name=name),
        )
        for name in names
    ]


def _command(setup: BackendSetup, name: str) -> Backend:
    from fanfold.agents.command import session

    return session.make(setup, name)


def _command_tells_price(machine: Machine, name: str) -> bool:
    from fanfold.agents.command import session

    return session.profile_named(name, machine).priced


def _check_command(machine: Machine, words: Sequence[str], name: str) -> None:
    from fanfold.agents.command import session

    session.check(machine, name, words)


class ProjectWiring:
    """What is chosen for one project. Each part is made when the project first asks for it."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        backends: Sequence[BackendKind] = BACKENDS,
        providers: Sequence[Provider] = PROVIDERS,
    ) -> None:
        self.folder = folder
        try:
            str(folder.resolve()).encode()
        except UnicodeEncodeError:
            message = f"the path of the project is not UTF-8 text: {folder}"
            raise AuthorError("usage.bad_project", message, hint="rename the folder") from None
        self.notice = require_ours(folder, fanfold_home(environment))
        self._backend_kinds = backends
        self.config = Config.read(folder, environment, providers)
        guard_keys(self.config.providers)
        self._environment = environment

    @cached_property
    def roles(self) -> Registry:
        from fanfold.agents.roles import load_roles, role_roots

        own = user_home(self._environment)
        roots = role_roots(self.folder, own, self.config.home, folders_above(self.folder))
        has_anthropic = bool(self.config.text(ANTHROPIC.key_setting))
        return load_roles(roots, self.folder, has_anthropic=has_anthropic)

    def library(self) -> Library:
        from fanfold.language.library import Library

        own, theirs = self.folder / ".fanfold" / "workflows", self.config.home / "workflows"
        return Library(own, theirs, BUILT_IN_RECIPES, top=self.folder)

    def store(self) -> StoreAddress:
        """Where the project keeps its runs."""
        from fanfold.store.address import MIN_LEASE_S, PostgresAddress, SqliteAddress

        url = self.config.text("store.url")
        if url is not None:
            return PostgresAddress(
                url=url,
                project=self._cluster_project(),
                clean=self.redactor.encoded,
                expiry_s=max(MIN_LEASE_S, self.config.integer("cluster.heartbeat_s")),
                patience_s=self.config.integer("store.patience_s"),
            )
        return SqliteAddress(
            folder=self.folder / ".fanfold",
            durability="normal" if self.config.text("store.durability") == "normal" else "full",
            clean=self.redactor.encoded,
            read_key=lambda: (chain_key(self.config.home), not is_keyed(self.folder, self.config.home)),
        )

    def _cluster_project(self) -> str:
        """The name of the project in a shared database: configured, or that of its git remote."""
        name = self.config.text("cluster.project") or remote_name(self.folder)
        is_path = name is not None and name.startswith(("/", ".", "~"))
        if name is None or is_path:
            message = (
                "runs are stored in a shared database, and this folder has no git remote to name the project"
            )
            raise AuthorError(
                "config.no_project",
                f"cluster.project is {name!r}, which is a path and no name" if is_path else message,
                hint="set FANFOLD_PROJECT, or cluster.project in your own configuration, to the same name on"
                " every machine",
            )
        return name

    def continuation(self) -> Continuation:
        """Who continues a run that no process of this project drives."""
        from fanfold.api.ownership import DetachedProcesses, WorkerContinuation

        at_home = DetachedProcesses(self._resume_command)
        return WorkerContinuation(at_home) if self.config.text("cluster.temporal") is not None else at_home

    def _resume_command(self, root: str, raised: LimitsRaised | None) -> list[str]:
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

    def backends(self) -> BackendRegistry:
        config = self.config
        kinds = (*self._backend_kinds, *_commands(config.home, self._backend_kinds))
        machine = Machine(
            home=config.home, config=config.values, providers=config.providers, redactor=self.redactor
        )
        return BackendRegistry(kinds, machine)

    @cached_property
    def redactor(self) -> Redactor:
        """Takes the secrets of this process out of whatever is recorded."""
        from fanfold.agents.redaction import Redactor

        # Commands may be given these, whatever they are called; see `runtime.steps.programs.own_variables`.
        allowed = self.config.names("environment.allow")
        return Redactor.of(self._environment, [self._environment.get(name) for name in sorted(allowed)])


def wire(
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    store: StoreAddress | None = None,
    backends: Sequence[BackendKind] = BACKENDS,
    providers: Sequence[Provider] = PROVIDERS,
    to_read: bool = False,
    kept: KeptTrees | None = None,
) -> Project:
    """Put a project together; `environment` defaults to the process's, the store to the one it names.

    `to_read`: its runs are looked at and nothing else, and where there are none no store is made. `kept`
    holds what was folded for the next look.
    """
    wired = ProjectWiring(folder, os.environ if environment is None else environment, backends, providers)
    project = Project(
        folder,
        wired.config,
        parts=Parts(
            load_library=wired.library,
            load_roles=lambda: wired.roles,
            load_address=wired.store if store is None else lambda: store,
            load_backends=wired.backends,
            load_continuation=wired.continuation,
            make_root_tools=_root_tools,
        ),
        to_read=to_read,
        kept=kept,
    )
    project.notice = wired.notice
    return project


class _OpenedStore:
    """The address of a store that is open already, for projects that share it."""

    def __init__(self, address: StoreAddress, store: Store) -> None:
        self._address = address
        self._store = store

    def exists(self) -> bool:
        return True

    def open(self) -> Store:
        return self._store

    def open_to_read(self) -> Store:
        return self._store

    def examine(self) -> Health | None:
        return self._address.examine()

    def engine(self) -> str:
        return self._address.engine()


def serve(folder: Path, host: str, port: int, *, version: str, take_over: bool, on_ready: OnReady) -> None:
    """Serve a project over HTTP until it is stopped. `on_ready` is called once it can be reached."""
    from fanfold.api.notifications import deliver_left
    from fanfold.api.ownership import LOOK_S, continue_abandoned, continue_due
    from fanfold.api.run_options import Options
    from fanfold.api.schedules import start_due
    from fanfold.api.system import examine
    from fanfold.engine.run_tree import KeptTrees
    from fanfold.server.requests import AppState
    from fanfold.server.service import Address, Tokens
    from fanfold.server.service import serve as serve_project

    history = wire(folder, kept=KeptTrees(open_only=False))
    children = KeptTrees()
    stopped = threading.Event()
    try:
        shared = _OpenedStore(history.address, history.store)
        state = AppState(
            history,
            lambda: wire(folder, store=shared),
            lambda: examine(folder, lambda: wire(folder, to_read=True), version),
            version,
        )
        config = history.config
        tokens = Tokens(config.names("server.operators"), config.names("server.viewers"))

        def take_up() -> list[str]:
            return [one.root for one in continue_abandoned(state.fresh())] if take_over else []

        def watch() -> None:
            left_s = 0.0
            while not stopped.wait(left_s):
                try:
                    with closing(wire(folder)) as project:
                        left_s = min(
                            continue_due(project), deliver_left(project) or LOOK_S, start_due(project)
                        )
                except FanfoldError:  # the store is busy, or a file was changed badly: try again later
                    left_s = LOOK_S

        def make_mcp() -> HttpEndpoint:
            # Hosts and origins are checked by the guard that stands before everything that is served here.
            from fanfold.server.mcp import ON_THE_CONSOLE, FanfoldServer, HttpEndpoint

            make = partial(wire, folder, kept=children)
            return HttpEndpoint(FanfoldServer(make, Options(), version, ON_THE_CONSOLE))

        watcher = threading.Thread(target=watch, name="fanfold-waits", daemon=True)
        watcher.start()
        try:
            serve_project(state, Address(host, port), tokens, make_mcp, take_over=take_up, on_ready=on_ready)
        finally:
            stopped.set()
            watcher.join(timeout=5)
    finally:
        history.close()


def make_mcp_server(folder: Path, options: Options, version: str = "") -> FanfoldServer:
    """The MCP server of a project; its calls start runs with these options."""
    from fanfold.engine.run_tree import KeptTrees
    from fanfold.server.mcp import FanfoldServer

    return FanfoldServer(partial(wire, folder, kept=KeptTrees()), options, version)


async def serve_mcp_stdio(folder: Path, options: Options, version: str) -> None:
    """Serve a project to the MCP client at the other end of stdin and stdout."""
    from fanfold.server.mcp import serve_stdio

    await serve_stdio(make_mcp_server(folder, options, version))


async def run_worker(  # noqa: PLR0913 - the options of the command
    folder: Path,
    *,
    tags: tuple[str, ...],
    slots: int,
    drive: bool,
    name: str,
    grace_s: float,
    prepare: str,
    version: str,
    on_change: Callable[[WorkerRow], None],
) -> None:
    """Run a worker of a project until it is stopped."""
    _require_cluster()
    from fanfold.cluster.worker import WorkerOptions, WorkerProcess

    with closing(wire(folder)) as project:
        options = WorkerOptions(
            tags=tags, slots=slots, drive=drive, name=name, grace_s=grace_s, prepare=prepare
        )
        shared = _OpenedStore(project.address, project.store)

        def open_folder(tree: Path) -> Project:
            return wire(tree, store=shared)

        await WorkerProcess(project, options, version, open_folder).run(on_change)


async def read_cluster(folder: Path) -> ClusterStatus:
    """The workers, queues and jobs of a project's cluster."""
    _require_cluster()
    from fanfold.cluster.status import cluster_status

    with closing(wire(folder, to_read=True)) as project:
        return await cluster_status(project)


async def drain_worker(folder: Path, name: str) -> str:
    """Have a worker stop after its current work."""
    _require_cluster()
    from fanfold.cluster.status import drain_worker

    with closing(wire(folder, to_read=True)) as project:
        return await drain_worker(project, name)


def _require_cluster() -> None:
    """Raise an error that names the missing package, unless the client of Temporal is installed."""
    from importlib.util import find_spec

    if find_spec("temporalio") is None:
        message = "workers need the client of Temporal, which is not installed"
        raise AuthorError("cluster.not_installed", message, hint="pip install 'fanfold[cluster]'")
