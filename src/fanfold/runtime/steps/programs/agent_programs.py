"""Agents that are programs, as a run starts them: in the sandbox, with a home of their own, and one way out.

Rules
* The program is the user's own, never one that the project put on PATH: it is lent the user's credentials.
* Without a network an agent would be of no use, and with all of it a prompt that somebody planted could send
  anything anywhere. So the usual way is neither: no network but a forwarder inside that leads to a socket in
  the agent's home, and behind the socket, outside, a proxy that knows the provider alone.
* What a project tells agents to run is covered (`workspace.sandbox.covered`): nobody chose it.
* Where that cannot be kept (Landlock has no network of its own for a program) nothing is started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fanfold.agents.backend import SessionRequest
from fanfold.errors import WorldError
from fanfold.runtime.steps.programs.sandboxed import Programs, RunningProgram

if TYPE_CHECKING:
    from fanfold.agents.confined import AgentHome, Confines, NetworkReach

FORWARDER = ".fanfold/forwarder.py"
MAX_FIRST_LINE_BYTES = 4_096
_LIBS = ("lib", "lib64")


class ConfinedAgents:
    """Starts agents for the sessions of one run."""

    def __init__(
        self, programs: Programs, environment_for: Callable[[SessionRequest], Mapping[str, str]]
    ) -> None:
        self._programs = programs
        self.environment_for = environment_for

    async def home_of(self, request: SessionRequest, earlier: str = "") -> AgentHome:
        """The home of a session; it is the user's own place for the agent where the sandbox can say so."""
        from fanfold.agents.confined import AgentHome

        outside = await self._programs.home_of(request.session_id, request.run_id, earlier)
        if await self._programs.level() == "bubblewrap":
            return AgentHome(outside, Path.home(), str(self._programs.project))
        return AgentHome(outside, outside, request.workspace)

    async def check_reach(self, network: NetworkReach) -> None:
        if network == "provider" and await self._programs.level() == "landlock":
            message = "an agent cannot be kept to its provider here: Landlock has no network for it alone"
            hint = "install bubblewrap, or write network = true into the role"
            raise WorldError("sandbox.insufficient", message, hint=hint)

    async def start(self, request: SessionRequest, argv: Sequence[str], confines: Confines) -> RunningProgram:
        from fanfold.workspace.sandbox.policy import Rooms

        program = self._found(argv[0])
        home, also = confines.home, installation(program)
        words = [program, *argv[1:]]
        if confines.network == "provider" and await self._programs.level() == "bubblewrap":
            words = [*self._forwarded(home, confines.ports, also), *words]
        return await self._programs.start_agent(
            request,
            words,
            confines.variables,
            confines.named,
            Rooms(home=home.outside, also=tuple(also), covered=confines.covered),
            network=confines.network == "all",
        )

    def _found(self, program: str) -> str:
        from fanfold.workspace.files.programs import find_program

        if os.sep in program:
            return program
        found = find_program(program, self._programs.project)
        if found is None:
            raise FileNotFoundError(program)
        return found

    def _forwarded(self, home: AgentHome, ports: tuple[int, ...], also: list[Path]) -> list[str]:
        """What stands before the agent's own words; `also` grows by what that needs to see."""
        from fanfold.agents.confined import SOCKET, proxy_port
        from fanfold.workspace.homes import write_beneath
        from fanfold.workspace.sandbox import forwarder

        write_beneath(home.outside, FORWARDER, Path(forwarder.__file__).read_bytes())
        python = Path(os.path.realpath(sys.executable))
        prefix = Path(os.path.realpath(sys.base_prefix))
        import shutil

        if shutil.which(python.name, path="/usr/bin:/bin") != str(python):
            also += [python, *(prefix / part for part in _LIBS)]
        own = ",".join(map(str, ports)) or "-"
        return [
            str(python),
            "-I",
            "-S",
            str(home.inside / FORWARDER),
            str(home.inside / SOCKET),
            str(proxy_port(ports)),
            own,
        ]


def installation(program: str) -> list[Path]:
    """What a program is made of besides its own file, where that is known: packages of Node lie side by side,
    tools of Python in an environment of their own.

    >>> installation("/opt/a/node_modules/.bin/a")
    [PosixPath('/opt/a/node_modules')]
    """
    real = Path(os.path.realpath(program))
    tops = [
        folder for path in (Path(program), real) for folder in path.parents if folder.name == "node_modules"
    ]
    return list(dict.fromkeys(tops))[-1:] or _environment(real)


def _environment(program: Path) -> list[Path]:
    """The virtual environment whose Python the first line of a script names, and that Python."""
    try:
        with program.open("rb") as opened:
            first = opened.read(MAX_FIRST_LINE_BYTES).partition(b"\n")[0]
    except OSError:
        return []
    words = first.removeprefix(b"#!").split() if first.startswith(b"#!") else []
    python = Path(os.fsdecode(words[0])) if words else Path()
    environment = python.parent.parent
    if not (python.is_absolute() and (environment / "pyvenv.cfg").is_file()):
        return []
    if Path.home().is_relative_to(environment):  # it would show what is the user's own
        return []
    real = Path(os.path.realpath(python))
    base = [] if real.is_relative_to("/usr") else [real.parent, *(real.parent.parent / lib for lib in _LIBS)]
    return [environment, *(folder for folder in base if folder.is_dir())]
