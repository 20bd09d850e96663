"""Back ends by name: which there are, whether each can be used here, and those of one run.

Rules
* A back end is one module of `backends/` and one row in `wiring`. Nobody else names one: roles and flags do,
  by its name.
* Whether it can be used here is asked before a run begins (`problem`), never at the moment of the call.
* It is imported and made when a role first needs it: a run of scripted agents loads no model.
* The stages of a role's pipeline run on any back end, each as a session of its own.
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
    from fanfold.agents.backend import Backend, SessionRequest
    from fanfold.agents.confined import AgentPrograms
    from fanfold.agents.redaction import Redactor
    from fanfold.agents.toolbox.catalogue import Tools

MODEL = "model"
SCRIPTED = "scripted"


class Machine(Struct, frozen=True, kw_only=True):
    """What is the same for every run here."""

    home: Path
    """The user's own folder."""
    config: Mapping[str, bool | int | str | None]
    """Every setting by its key."""
    providers: Sequence[Provider]
    """The providers of models."""
    redactor: Redactor


class BackendSetup(Struct, frozen=True, kw_only=True):
    """Everything a back end may be made from: the machine, and what one run fixed."""

    machine: Machine
    toolbox: Callable[[SessionRequest], Tools]
    """Makes the tools of a session."""
    find_role: Callable[[str], Role | None]
    """The roles that stages of pipelines may name."""
    programs: AgentPrograms | None = None
    """Starts agents that are programs; None where nothing can be run."""
    instructions: ProjectInstructions = field(default_factory=ProjectInstructions)
    """What the project tells its agents."""
    model: str | None = None
    """What the user chose for the whole run."""
    default_model: str | None = None
    """For sessions for which nobody names one."""
    script: str | None = None
    """Text of the script, where agents are scripted."""
    script_file: str = ""


class BackendKind(Struct, frozen=True, kw_only=True):
    """One row: a back end that roles and `--agent-backend` can name.

    `make` imports what it needs when it is called; `check` raises what is missing on this
    machine; it gets the `command` of the role, which some back ends start.
    """

    name: str
    make: Callable[[BackendSetup], Backend]
    check: Callable[[Machine, Sequence[str]], None] = field(default=lambda *_: None)
    tells_price: Callable[[Machine], bool] = field(default=lambda _: True)
    """Whether what its sessions cost in dollars can be known."""
    in_stages: bool = True
    """Whether a role's pipeline is run stage by stage; a script answers for the whole session."""


class Backends:
    """The back ends of one run by name, each made when it is first needed."""

    def __init__(self, makers: Mapping[str, Callable[[], Backend]]) -> None:
        self._makers = makers
        self._made: dict[str, Backend] = {}

    def named(self, name: str) -> Backend:
        """The back end of that name; `AuthorError` says which there are."""
        if name not in self._made:
            if name not in self._makers:
                raise _unknown(name, self._makers)
            self._made[name] = self._makers[name]()
        return self._made[name]

    async def aclose(self) -> None:
        """Let go of the connections of those that were made."""
        for backend in self._made.values():
            await backend.aclose()


class BackendRegistry:
    """The back ends there are on this machine."""

    def __init__(self, kinds: Iterable[BackendKind], machine: Machine) -> None:
        self._kinds = {kind.name: kind for kind in kinds}
        self.machine = machine

    def problem(self, name: str, command: Sequence[str] = ()) -> FanfoldError | None:
        """Why a back end cannot be used here by a role with that `command`; None when it can."""
        if name not in self._kinds:
            return _unknown(name, self._kinds)
        try:
            self._kinds[name].check(self.machine, command)
        except FanfoldError as error:
            return error
        return None

    def tells_price(self, name: str) -> bool:
        """Whether what sessions of a back end cost in dollars can be known."""
        return self._kinds[name].tells_price(self.machine)

    def open(self, setup: BackendSetup) -> Backends:
        """The back ends for one run."""
        return Backends({name: partial(_make, kind, setup) for name, kind in self._kinds.items()})


def _make(kind: BackendKind, setup: BackendSetup) -> Backend:
    made = kind.make(setup)
    if not kind.in_stages:
        return made
    from fanfold.agents.pipelines import Pipelines

    return Pipelines(
        made,
        find=setup.find_role,
        toolbox=setup.toolbox,
        redactor=setup.machine.redactor,
        model=setup.model,
    )


def _unknown(name: str, known: Iterable[str]) -> AuthorError:
    there = ", ".join(sorted(known)) or "none"
    return AuthorError("backend.unknown", f'there is no agent back end "{name}"', hint=f"there are {there}")
