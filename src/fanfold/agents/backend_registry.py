"""Back ends by name: which exist, whether each is usable on this machine, and those of one run.

Rules
* A back end is one module of `backends/` and one row in `wiring`. Other code does not name back ends; roles
  and flags do.
* `problem` checks before a run starts whether a back end is usable, never at the moment of the call.
* A back end is imported and created when a role first needs it. A run of scripted agents loads no model.
* The stages of a role's pipeline run on any back end, each as a separate session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from fanfold.agents.instructions import ProjectInstructions
from fanfold.agents.providers import Provider
from fanfold.agents.role import Role
from fanfold.errors import AuthorError, FanfoldError

if TYPE_CHECKING:
    from fanfold.agents.backend import AgentPrograms, Backend, SessionRequest, Tools
    from fanfold.agents.redaction import Redactor

MODEL = "model"
SCRIPTED = "scripted"


class Machine(Struct, frozen=True, kw_only=True):
    """Settings that are the same for every run on this machine."""

    home: Path
    """The user's home folder."""
    config: Mapping[str, bool | int | str | None]
    """Every setting by its key."""
    providers: Sequence[Provider]
    redactor: Redactor


class BackendSetup(Struct, frozen=True, kw_only=True):
    """The inputs for the creation of a back end: the machine and the settings of one run."""

    machine: Machine
    toolbox: Callable[[SessionRequest], Tools]
    """Creates the tools of a session."""
    find_role: Callable[[str], Role | None]
    """Finds the roles that stages of pipelines name."""
    programs: AgentPrograms | None = None
    """Starts agents that are programs; None if no program can be started."""
    instructions: ProjectInstructions = field(default_factory=ProjectInstructions)
    """The project's instructions for its agents."""
    model: str | None = None
    """The model that the user chose for the whole run."""
    default_model: str | None = None
    """The model for sessions without a configured model."""
    script: str | None = None
    """Text of the script for scripted agents."""
    script_file: str = ""


class BackendKind(Struct, frozen=True, kw_only=True):
    """One row: a back end that roles and `--agent-backend` can name.

    `make` imports its dependencies when it is called. `check` raises an error for anything that is missing on
    this machine. It receives the role's `command`, because some back ends start it.
    """

    name: str
    make: Callable[[BackendSetup], Backend]
    check: Callable[[Machine, Sequence[str]], None] = field(default=lambda *_: None)
    tells_price: Callable[[Machine], bool] = field(default=lambda _: True)
    """Whether the cost of its sessions in dollars is known."""
    in_stages: bool = True
    """Whether a role's pipeline runs stage by stage. A script replies for the whole session instead."""


class Backends:
    """The back ends of one run by name, each created at its first use."""

    def __init__(
        self,
        makers: Mapping[str, Callable[[], Backend]],
        stages: Mapping[str, Callable[[Backend], Backend]] | None = None,
    ) -> None:
        self._makers = makers
        self._stages = stages or {}
        """The strategy for roles with a pipeline, by back end."""
        self._made: dict[str, Backend] = {}

    def named(self, name: str) -> Backend:
        """Return the back end with that name; `AuthorError` lists the known names."""
        if name not in self._made:
            if name not in self._makers:
                raise _unknown(name, self._makers)
            self._made[name] = self._makers[name]()
        return self._made[name]

    def of_role(self, name: str, role: Role) -> Backend:
        """Return what runs the sessions of a role: the back end, or the stages of its pipeline on it."""
        backend = self.named(name)
        stages = self._stages.get(name) if role.pipeline else None
        return backend if stages is None else stages(backend)

    async def aclose(self) -> None:
        """Close the connections of all back ends that were created."""
        for backend in self._made.values():
            await backend.aclose()


class BackendRegistry:
    """The back ends of this machine."""

    def __init__(self, kinds: Iterable[BackendKind], machine: Machine) -> None:
        self._kinds = {kind.name: kind for kind in kinds}
        self.machine = machine

    def with_kind(self, kind: BackendKind) -> BackendRegistry:
        """Return these back ends and one more, which replaces one of the same name."""
        return BackendRegistry((*self._kinds.values(), kind), self.machine)

    def problem(self, name: str, command: Sequence[str] = ()) -> FanfoldError | None:
        """Return why a role with that `command` cannot use the back end here; None if it can."""
        if name not in self._kinds:
            return _unknown(name, self._kinds)
        try:
            self._kinds[name].check(self.machine, command)
        except FanfoldError as error:
            return error
        return None

    def usable(self) -> tuple[str, ...]:
        """Return the back ends that can be used here, by name."""
        return tuple(name for name in sorted(self._kinds) if self.problem(name) is None)

    def tells_price(self, name: str) -> bool:
        """Return whether the cost in dollars of a back end's sessions is known."""
        return self._kinds[name].tells_price(self.machine)

    def open(self, setup: BackendSetup) -> Backends:
        """Return the back ends for one run."""

        def in_stages(backend: Backend) -> Backend:
            from fanfold.agents.pipelines import Pipelines  # few roles have a pipeline

            redactor = setup.machine.redactor
            return Pipelines(
                backend, find=setup.find_role, toolbox=setup.toolbox, redactor=redactor, model=setup.model
            )

        makers = {name: partial(kind.make, setup) for name, kind in self._kinds.items()}
        staged = [name for name, kind in self._kinds.items() if kind.in_stages]
        return Backends(makers, dict.fromkeys(staged, in_stages))


def _unknown(name: str, known: Iterable[str]) -> AuthorError:
    there = ", ".join(sorted(known)) or "none"
    return AuthorError("backend.unknown", f'there is no agent back end "{name}"', hint=f"there are {there}")
