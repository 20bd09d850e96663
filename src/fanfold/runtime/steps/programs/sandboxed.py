"""Programs that steps and agents run: every one of them through the sandbox.

Rules
* The level is the strongest this machine gives, found once, and stands in the log of every step that ran
  something. Where there is none nothing is run, unless the user said that this run may go without.
* A program sees the workspace of its own session at the project's own path, and nothing of our environment
  beyond the allow-list and what its step gives it.
* Whatever a start needed outside of it is gone when its last process is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from fanfold.agents.backend import SessionRequest
from fanfold.errors import WorldError
from fanfold.runtime.places.place import Place
from fanfold.sessions.processes import Ended, Process, end_tree, run_process, see_out, start_process
from fanfold.text.json_value import MAX_VALUE_BYTES
from fanfold.text.patterns import regex

if TYPE_CHECKING:
    from fanfold.runtime.places.isolation import Isolation
    from fanfold.workspace.artifacts import ArtifactRoom
    from fanfold.workspace.sandbox.policy import Policy, Rooms
    from fanfold.workspace.sandbox.start import Launch, LevelName

REFUSED = 126
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
"""What Linux takes for one argument or variable, with its name and the byte that ends it."""
MAX_GUARD_BYTES = 64 * 1024
MAX_GIVEN_BYTES = 1024 * 1024
"""All arguments and variables together; the kernel's own limit depends on the user's settings."""
_NO_PROGRAM = regex(r"(?:bwrap: execvp|sandbox:) (?P<program>.*?): No such file or directory\Z")


class Programs:
    """Starts programs for one run. `unsafe` lets them run without a sandbox where there is none."""

    def __init__(self, isolation: Isolation, *, unsafe: bool = False) -> None:
        self._isolation = isolation
        self._unsafe = unsafe
        self._level: LevelName | None = None

    async def run(
        self,
        argv: Sequence[str],
        place: Place,
        *,
        session_id: str,
        read_only: bool = False,
        network: bool = False,
        environment: Mapping[str, str] | None = None,
        named: Collection[str] = (),
        timeout_s: float | None = None,
    ) -> Ended:
        """Run a program to its end. Raises `FileNotFoundError` when there is none of that name.

        `named` are variables that the user named for it: keys of theirs, too.
        """
        launch = await self._plan(argv, place, read_only, network, environment)
        try:
            ended = await run_process(
                launch.command(argv),
                cwd=launch.cwd,
                env=launch.environment,
                session_id=session_id,
                named=named,
                timeout_s=timeout_s,
                max_output_bytes=MAX_VALUE_BYTES,
            )
        finally:
            await _close(launch)
        _check_started(argv[0], ended)
        return ended

    async def run_for(self, request: SessionRequest, argv: Sequence[str], timeout_s: float) -> Ended:
        """Run a program that an agent asked for, where that agent works."""
        return await self.run(
            argv,
            self._isolation.place_of(request.session_id),
            session_id=request.session_id,
            read_only=request.role.read_only,
            network=request.role.network,
            timeout_s=timeout_s,
        )

    async def run_guard(self, request: SessionRequest, command: str, stdin: bytes, timeout_s: float) -> Ended:
        """Run a command that judges a call of an agent. It sees the project itself, where the agent can not
        have changed it, can change nothing and reach nobody.
        """
        argv = ("sh", "-c", command)
        place = Place(str(self.project), None)
        launch = await self._plan(argv, place, True, False, {"CLAUDE_PROJECT_DIR": str(self.project)})
        self._isolation.place_of(request.session_id).note_sandbox(launch)
        try:
            process = await start_process(
                launch.command(argv),
                cwd=launch.cwd,
                env=launch.environment,
                session_id=request.session_id,
                stdin=stdin,
                max_output_bytes=MAX_GUARD_BYTES,
            )
            return await see_out(process, "sh", timeout_s=timeout_s)
        finally:
            await _close(launch)

    async def start_for(
        self, request: SessionRequest, argv: Sequence[str], environment: Mapping[str, str]
    ) -> RunningProgram:
        """Start a program that an agent's tools talk to; it lives until it is ended."""
        place = self._isolation.place_of(request.session_id)
        launch = await self._plan(argv, place, request.role.read_only, request.role.network, environment)
        try:
            process = await start_process(
                launch.command(argv),
                cwd=launch.cwd,
                env=launch.environment,
                session_id=request.session_id,
                interactive=True,
            )
        except BaseException:
            await _close(launch)
            raise
        return RunningProgram(process, launch)

    async def start_agent(
        self,
        request: SessionRequest,
        argv: Sequence[str],
        environment: Mapping[str, str],
        named: Collection[str],
        rooms: Rooms,
        *,
        network: bool,
    ) -> RunningProgram:
        """Start a program that is the agent of a session itself; `named` are keys that are its to have."""
        place = self._isolation.place_of(request.session_id)
        launch = await self._plan(argv, place, request.role.read_only, network, environment, rooms)
        try:
            process = await start_process(
                launch.command(argv),
                cwd=launch.cwd,
                env=launch.environment,
                session_id=request.session_id,
                interactive=True,
                named=named,
            )
        except BaseException:
            await _close(launch)
            raise
        return RunningProgram(process, launch)

    def artifacts_of(self, session_id: str) -> ArtifactRoom | None:
        """Where a session that is under way makes files that are kept beside the project."""
        return self._isolation.place_of(session_id).artifacts

    @property
    def project(self) -> Path:
        return self._isolation.spaces.project

    async def level(self) -> LevelName:
        """The level at which programs run here; raises where there is none."""
        return await asyncio.to_thread(self._choose_level)

    async def home_of(self, session_id: str, run_id: str, earlier: str) -> Path:
        """The private home of a session's agent."""
        return await asyncio.to_thread(self._isolation.spaces.home_of, session_id, run_id, earlier)

    async def _plan(
        self,
        argv: Sequence[str],
        place: Place,
        read_only: bool,
        network: bool,
        environment: Mapping[str, str] | None,
        rooms: Rooms | None = None,
    ) -> Launch:
        given = dict(environment or {})
        if problem := why_not_startable(argv, given):
            hint = "put what is long into a file of the workspace"
            raise WorldError("command.not_startable", problem, hint=hint)
        program = argv[0]
        return await asyncio.to_thread(self._plan_now, program, place, read_only, network, given, rooms)

    def _plan_now(
        self,
        program: str,
        place: Place,
        read_only: bool,
        network: bool,
        environment: dict[str, str],
        rooms: Rooms | None,
    ) -> Launch:
        from fanfold.workspace.sandbox.covered import check_level
        from fanfold.workspace.sandbox.start import plan_sandbox

        level = self._choose_level()
        if place.artifacts is not None:
            from fanfold.workspace.sandbox.policy import Rooms

            rooms = structs.replace(rooms or Rooms(), artifacts=place.artifacts.open())
        policy = self._isolation.spaces.policy(
            place.child,
            read_only=read_only,
            network=network,
            environment=environment,
            rooms=rooms,
        )
        if level == "landlock" and place.child is not None:
            _check_needs(program, policy)
        check_level(level, policy)
        launch = plan_sandbox(level, policy)
        place.note_sandbox(launch)
        return launch

    def _choose_level(self) -> LevelName:
        from fanfold.workspace.sandbox.levels import detect
        from fanfold.workspace.sandbox.start import choose_level

        if self._level is None:
            self._level = choose_level(detect(self._isolation.spaces.project), unsafe=self._unsafe)
        return self._level


def why_not_startable(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Why the kernel would refuse to start a program, or nothing."""
    named = {f"argument {i}": value for i, value in enumerate(argv)}
    named |= {f"the variable {name}": f"{name}={value}" for name, value in environment.items()}
    total = 0
    for what, value in named.items():
        if "\0" in value:
            return f"{what} holds a NUL character"
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > MAX_ARGUMENT_BYTES:
            return f"{what} has {size:,} bytes; a program can be given {MAX_ARGUMENT_BYTES:,} at most"
        total += size
    if total > MAX_GIVEN_BYTES:
        return (
            f"arguments and variables have {total:,} bytes together; at most {MAX_GIVEN_BYTES:,} can be given"
        )
    return ""


class RunningProgram:
    """A program in its sandbox that one can talk to."""

    def __init__(self, process: Process, launch: Launch) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin = process.stdin
        self.stdout = process.stdout
        self._process = process
        self._launch = launch

    def said(self) -> str:
        """What it wrote to stderr, as far as it was kept."""
        return self._process.said()[1]

    async def wait(self) -> int:
        """Wait until it and all it started are gone; its exit code."""
        return await self._process.wait()

    async def end(self) -> None:
        """End it with all it started; returns when nothing is left."""
        try:
            await end_tree(self._process)
        finally:
            await _close(self._launch)


async def _close(launch: Launch) -> None:
    """Remove what a launch needed outside; for a cgroup alone a thread would cost more than it spares."""
    if launch.has_files:
        await asyncio.to_thread(launch.close)
    else:
        launch.close()


def _check_needs(program: str, policy: Policy) -> None:
    """Refuse what needs a folder of the parent inside its snapshot, which Landlock cannot put there."""
    folder = ".git" if os.path.basename(program) == "git" else program.removeprefix("./").partition("/")[0]
    if folder not in policy.points:
        return
    message = f"{program} needs {folder} inside an isolated workspace, which Landlock cannot give"
    raise WorldError("sandbox.insufficient", message, hint="install bubblewrap; fanfold doctor says more")


def _check_started(program: str, ended: Ended) -> None:
    """Tell what the sandbox said from what the program said."""
    last = ended.stderr.rstrip("\n").rpartition("\n")[2]
    missing = _NO_PROGRAM.match(last)
    if missing and missing["program"] == program and ended.exit_code in (1, 127):
        raise FileNotFoundError(program)
    if ended.exit_code == REFUSED and last.startswith("sandbox: "):
        message = f"{program} could not be started: {last.removeprefix('sandbox: ')}"
        raise WorldError("sandbox.failed", message, hint="fanfold doctor says what this machine gives")
