"""The command back end: agents that are programs of their own, such as Claude Code or Codex.

One row of the table for each profile (`claude`, `codex` …), and `command` for a role that names a program
itself. What they have in common is `agents.command`; what tells them apart is data.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from fanfold.agents.backend import Progress, Record, SessionFailed, SessionRequest, SessionResult
from fanfold.agents.backend_registry import BackendSetup, Machine
from fanfold.agents.command.belongings import Belongings
from fanfold.agents.command.kept_tools import unkept
from fanfold.agents.command.profile import OF_ROLES, Profile
from fanfold.agents.command.profile_files import find_profile
from fanfold.agents.command.session import CommandParts, CommandSession
from fanfold.agents.confined import AgentPrograms
from fanfold.agents.redaction import Redactor
from fanfold.errors import AuthorError, BugError, WorldError
from fanfold.kernel.events import Failure
from fanfold.workspace.files.programs import find_program


class CommandBackend:
    """Runs sessions with one program."""

    def __init__(
        self,
        profile: Profile,
        programs: AgentPrograms,
        redactor: Redactor,
        environment: Mapping[str, str],
    ) -> None:
        self.name = profile.name
        self._parts = CommandParts(
            profile=profile,
            programs=programs,
            belongings=Belongings(profile, environment),
            redactor=redactor,
            listen=partial(_listener(profile), profile),
        )

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        if self.name in OF_ROLES and not request.role.command:
            message = f'{request.step}: role "{request.role.name}" names no program'
            raise SessionFailed(
                Failure("agent", "backend.no_command", message, _COMMAND_HINT, retryable=False)
            )
        if said := unkept(self._parts.profile, request.role):
            message = f'role "{request.role.name}" says {said}, which {self.name} would not keep to'
            hint = "let a model do its work, or use another role"
            raise SessionFailed(Failure("permission", "role.refused", message, hint, retryable=False))
        return await CommandSession(request, self._parts, record, progress).run()

    async def aclose(self) -> None:
        """Nothing is held."""


def _listener(profile: Profile) -> Callable[..., Awaitable[None]]:
    if profile.acp:
        from fanfold.agents.acp import conversation

        return conversation.listen
    from fanfold.agents.command import lines

    return lines.listen


NOWHERE = Path("/nonexistent")
"""No project: what one might put on PATH is found out when a program is started."""
_COMMAND_HINT = 'write `command = ["program", "argument"]` into the role'


def make(setup: BackendSetup, name: str) -> CommandBackend:
    """The back end of one profile."""
    if setup.programs is None:
        raise BugError("backend.no_programs", "nobody here can start programs for agents")
    profile = profile_named(name, setup.machine)
    return CommandBackend(profile, setup.programs, setup.machine.redactor, os.environ)


def profile_named(name: str, machine: Machine) -> Profile:
    found = find_profile(name, machine.home)
    if found is None:
        raise AuthorError("backend.unknown", f'there is no agent back end "{name}"')
    return found


def check(machine: Machine, name: str, command: Sequence[str]) -> None:
    """Whether the program is here, and the user has said what of theirs it may have."""
    profile = profile_named(name, machine)
    if name in OF_ROLES:
        _check_program(command)
        return
    if not profile.program:
        raise AuthorError("backend.bad_profile", f'the profile "{name}" names no program')
    if find_program(profile.program, NOWHERE) is None:
        message = f"{profile.title or name} is not installed: there is no program {profile.program!r}"
        raise WorldError("backend.not_installed", message, hint="install it, or choose another back end")
    offered = [] if profile.named else Belongings(profile, os.environ).offered()
    if offered:
        words = ", ".join(f'"{one}"' for one in offered)
        hint = f"write into {machine.home}/backends/{name}.toml: credentials = [{words}], or [] for none"
        message = f"you did not say which of your credentials {profile.title or name} may have"
        raise WorldError("backend.credentials", message, hint=hint)


def _check_program(command: Sequence[str]) -> None:
    """Whether the program of a role is on PATH; one named by its place is looked for when it starts."""
    if not command:
        raise AuthorError("backend.no_command", "there is no program to run", hint=_COMMAND_HINT)
    program = command[0]
    if not {"/", "{"} & set(program) and find_program(program, NOWHERE) is None:
        message = f"there is no program {program!r}"
        raise WorldError("backend.not_installed", message, hint="install it, or correct the role's `command`")
