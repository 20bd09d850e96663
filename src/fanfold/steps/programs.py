"""Runs all programs of steps and agents in the sandbox.

Rules
* The sandbox level is the strongest that this machine supports. It is detected once and recorded in the log
  of every step that runs programs. Without a sandbox no program runs, unless the user allowed that for a run.
* A program sees the workspace of its session at the path of the project. Of the environment it gets only the
  variables of the allow-list and those of its step.
* Files and cgroups that a start needs outside the sandbox are removed after the last process ends.
* A failure of the sandbox is never reported as a failure of its program. The sandbox is planned again, up to
  `TRIES` times in total, since folders such as `.venv` may appear and disappear. Then it fails as
  `sandbox.setup`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from fanfold.agents.backend import TRACE, NetworkReach, SessionRequest
from fanfold.errors import WorldError
from fanfold.language.json_text import MAX_VALUE_BYTES
from fanfold.language.terminal import shorten_middle
from fanfold.sessions.processes import ExitStatus, Process, end_tree, run_process, see_out, start_process
from fanfold.steps.step_workspace import StepWorkspace

if TYPE_CHECKING:
    from fanfold.steps.step_workspace import Isolation
    from fanfold.workspace.artifacts import ArtifactRoom
    from fanfold.workspace.sandbox import Launch, LevelName
    from fanfold.workspace.sandbox_policy import ExtraMounts

TRIES = 3
SETUP_S = 1_800.0
MAX_SETUP_CHARS = 500
SETUP_HINT = "correct `setup` under [workspace] in your own config.toml"
SETUP_FAILED = "sandbox.setup"
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
"""The limit of Linux for one argument or variable, including its name, without the final NUL byte."""
MAX_GUARD_BYTES = 64 * 1024
MAX_GIVEN_BYTES = 1024 * 1024
"""The limit for all arguments and variables together. The limit of Linux depends on the user's settings."""
_NOT_EXECUTED = r"(?:bwrap: execvp|sandbox:) (?P<program>.*): (?P<why>[^:]*)\Z"
_PROGRAM_FAULTS = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


class Programs:
    """Starts programs for one run. `unsafe` allows programs without a sandbox if the machine has none."""

    def __init__(self, isolation: Isolation, *, unsafe: bool = False) -> None:
        self._isolation = isolation
        self._unsafe = unsafe
        self._level: LevelName | None = None

    async def run(
        self,
        argv: Sequence[str],
        place: StepWorkspace,
        *,
        session_id: str,
        read_only: bool = False,
        network: bool = False,
        environment: Mapping[str, str] | None = None,
        named: Collection[str] = (),
        timeout_s: float | None = None,
    ) -> ExitStatus:
        """Run a program to its end. Raises `FileNotFoundError` if it does not exist.

        `named` are variables that the user named for the program; they may be keys.
        """
        why = ""
        for _ in range(TRIES):
            try:
                launch = await self._plan(argv, place, read_only, network, environment)
            except OSError as error:  # a folder that the sandbox needs; the program itself is searched inside
                why = f"{error.filename or place.path}: {error.strerror}"
                continue
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
            except FileNotFoundError as error:  # the folder in which the launcher starts
                why = f"{error.filename or launch.cwd}: {error.strerror}"
                continue
            finally:
                await _close(launch)
            if ended.started:
                return ended
            why = why_not_started(argv[0], ended.stderr)
        raise setup_failed(argv[0], why)

    async def set_up(
        self, command: Sequence[str], place: StepWorkspace, session_id: str, network: bool
    ) -> None:
        """Run the user's setup command in a workspace. Raises if it fails."""
        try:
            ended = await self.run(command, place, session_id=session_id, network=network, timeout_s=SETUP_S)
        except OSError as error:  # there is no such program
            why = f"the setup command {command[0]} cannot be started: {error.strerror}"
            raise WorldError("workspace.setup", why, hint=SETUP_HINT) from None
        if ended.exit_code:
            text = shorten_middle(f"{ended.stdout}\n{ended.stderr}".strip(), MAX_SETUP_CHARS, tail=0.8)
            why = f"the setup command ended with status {ended.exit_code}: {text}"
            raise WorldError("workspace.setup", why, hint=SETUP_HINT)

    async def run_for(self, request: SessionRequest, argv: Sequence[str], timeout_s: float) -> ExitStatus:
        """Run a program that an agent requested, in the workspace of that agent."""
        place = self._isolation.place_of(request.session_id)
        place.also = skill_folders(request)
        return await self.run(
            argv,
            place,
            session_id=request.session_id,
            read_only=request.role.read_only,
            network=request.role.network,
            timeout_s=timeout_s,
        )

    async def run_guard(
        self, request: SessionRequest, command: str, stdin: bytes, timeout_s: float
    ) -> ExitStatus:
        """Run a command that checks a tool call of an agent.

        It sees the project tree, not the workspace of the agent. It has no write access and no network.
        """
        argv = ("sh", "-c", command)
        place = StepWorkspace(str(self.project), None)
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
            ended = await see_out(process, "sh", timeout_s=timeout_s)
        finally:
            await _close(launch)
        if not ended.started:
            raise setup_failed("sh", why_not_started("sh", ended.stderr))
        return ended

    async def start_for(
        self, request: SessionRequest, argv: Sequence[str], environment: Mapping[str, str]
    ) -> RunningProgram:
        """Start a program that an agent's tools communicate with. It runs until it is ended."""
        place = self._isolation.place_of(request.session_id)
        launch = await self._plan(argv, place, request.role.read_only, request.role.network, environment)
        return await self._start(request, argv, launch)

    async def start_agent(
        self,
        request: SessionRequest,
        argv: Sequence[str],
        environment: Mapping[str, str],
        named: Collection[str],
        rooms: ExtraMounts,
        *,
        network: bool,
    ) -> RunningProgram:
        """Start a program that is the agent of a session. `named` are the keys that it may have."""
        place = self._isolation.place_of(request.session_id)
        launch = await self._plan(argv, place, request.role.read_only, network, environment, rooms)
        return await self._start(request, argv, launch, named)

    async def _start(
        self, request: SessionRequest, argv: Sequence[str], launch: Launch, named: Collection[str] = ()
    ) -> RunningProgram:
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
        return RunningProgram(process, launch, argv[0])

    def artifacts_of(self, session_id: str) -> ArtifactRoom | None:
        """The folder in which a running session creates its artifacts."""
        return self._isolation.place_of(session_id).artifacts

    @property
    def project(self) -> Path:
        return self._isolation.spaces.project

    async def level(self) -> LevelName:
        """The sandbox level of this machine. Raises if there is none."""
        return await asyncio.to_thread(self._choose_level)

    async def reach_here(self) -> NetworkReach:
        """What an agent reaches that is kept to its provider. Raises if it cannot be, unless `unsafe`."""
        from fanfold.workspace.sandbox import check_reach, detect

        levels = await asyncio.to_thread(detect, self.project)
        check_reach(levels, unsafe=self._unsafe)
        level = await self.level()
        kept = level == "bubblewrap" or (level == "landlock" and levels.landlock.keeps_agents)
        return "provider" if kept else "all"

    async def home_of(self, session_id: str, run_id: str, earlier: str) -> Path:
        """The private home folder of a session's agent."""
        return await asyncio.to_thread(self._isolation.spaces.home_of, session_id, run_id, earlier)

    async def _plan(
        self,
        argv: Sequence[str],
        place: StepWorkspace,
        read_only: bool,
        network: bool,
        environment: Mapping[str, str] | None,
        rooms: ExtraMounts | None = None,
    ) -> Launch:
        given = dict(environment or {})
        if trace := TRACE.get():
            given.setdefault("TRACEPARENT", trace)
        if problem := why_not_startable(argv, given):
            hint = "put long values into a file of the workspace"
            raise WorldError("command.not_startable", problem, hint=hint)
        return await asyncio.to_thread(self._plan_now, place, read_only, network, given, rooms)

    def _plan_now(
        self,
        place: StepWorkspace,
        read_only: bool,
        network: bool,
        environment: dict[str, str],
        rooms: ExtraMounts | None,
    ) -> Launch:
        from fanfold.workspace.sandbox import plan_sandbox
        from fanfold.workspace.sandbox_policy import check_level

        level: LevelName = self._choose_level()
        if place.artifacts is not None or place.also:
            from fanfold.workspace.sandbox_policy import ExtraMounts

            rooms = rooms or ExtraMounts()
            opened = None if place.artifacts is None else place.artifacts.open()
            rooms = structs.replace(rooms, artifacts=opened, also=(*rooms.also, *place.also))
        policy = self._isolation.spaces.policy(
            place.child,
            read_only=read_only,
            network=network,
            environment=environment,
            rooms=rooms,
            points=place.points,
            write_set=place.write_set,
        )
        try:
            check_level(level, policy)
        except WorldError:
            if not self._unsafe:
                raise
            # The user accepts what cannot be hidden. Everything else stays confined.
            policy = structs.replace(policy, rooms=structs.replace(policy.rooms, covered=()))
        launch = plan_sandbox(level, policy)
        place.note_sandbox(launch)
        return launch

    def _choose_level(self) -> LevelName:
        from fanfold.workspace.sandbox import choose_level, detect

        if self._level is None:
            self._level = choose_level(detect(self._isolation.spaces.project), unsafe=self._unsafe)
        return self._level


def skill_folders(request: SessionRequest) -> tuple[Path, ...]:
    """The folders of the skills of a session, which its programs can read."""
    return tuple(Path(skill.folder) for skill in request.role.known_skills)


def why_not_startable(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Why Linux would refuse to start a program, or empty text."""
    named = {f"argument {i}": value for i, value in enumerate(argv)}
    named |= {f"the variable {name}": f"{name}={value}" for name, value in environment.items()}
    total = 0
    for what, value in named.items():
        if "\0" in value:
            return f"{what} contains a NUL character"
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
    """A running program in its sandbox, with open stdin and stdout."""

    def __init__(self, process: Process, launch: Launch, program: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._program = program
        self.stdin = process.stdin
        self.stdout = process.stdout
        self._process = process
        self._launch = launch

    def stderr_text(self) -> str:
        """The stored part of its stderr."""
        return self._process.said()[1]

    def stderr_after(self, position: int) -> tuple[bytes, int]:
        """What arrived on its stderr after a position, as far as it was stored, and the new position."""
        return self._process.stderr_after(position)

    async def wait(self) -> int:
        """Wait until the program and all its child processes have ended. Returns its exit code."""
        return await self._process.wait()

    async def end(self) -> None:
        """End the program and all its child processes, and wait until they have ended."""
        try:
            await end_tree(self._process)
        finally:
            await _close(self._launch)

    def check_started(self) -> None:
        """Raise the reason if the sandbox did not execute the program. Call it after the end."""
        if not self._process.started:
            raise setup_failed(self._program, why_not_started(self._program, self.stderr_text()))


async def _close(launch: Launch) -> None:
    """Remove the files and the cgroup of a launch. A thread is only worthwhile if there are files."""
    if launch.has_files:
        await asyncio.to_thread(launch.close)
    else:
        launch.close()


def why_not_started(program: str, stderr: str) -> str:
    """Why the sandbox did not execute a program, from its last line on stderr.

    Raises `FileNotFoundError` or another `OSError` if the program itself is the reason.
    """
    last = stderr.rstrip("\n").rpartition("\n")[2]
    refused = re.match(_NOT_EXECUTED, last)
    if refused and refused["program"] == program:
        number = next((n for n in _PROGRAM_FAULTS if os.strerror(n) == refused["why"]), None)
        if number is not None:
            raise OSError(number, refused["why"], program)
    return last.removeprefix("sandbox: ")


def setup_failed(program: str, why: str) -> WorldError:
    """The error for a sandbox that could not be set up."""
    message = f"the sandbox for {program} could not be set up: {why or 'no reason was reported'}"
    return WorldError(SETUP_FAILED, message, hint="fanfold doctor shows what this machine can confine")
