"""One session of an agent that is a program: call it, record its output, judge it, and correct it.

Rules
* The program's own conversation has an id, recorded as soon as it is known. A session after a crash, a
  following turn and a correction continue that conversation. If the program cannot do that, or no longer
  knows the conversation, the task starts again, and the log reports it.
* Each call is one process tree, which is ended before anything else happens. Then the lent credentials are
  removed.
* An invalid answer is sent back with the validator's message, as for models.
* The outcome of a call is judged in `transcript_events`. Fanfold limits the time: a program without output,
  or with only errors, is stopped.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TypeAlias

from msgspec import UNSET, structs

from fanfold.agents.backend import (
    FIRST_OPEN_PORT,
    SOCKET,
    AgentHome,
    AgentProgram,
    AgentPrograms,
    NetworkReach,
    Progress,
    Record,
    SandboxRequest,
    SessionFailed,
    SessionRequest,
    SessionResult,
    proxy_port,
)
from fanfold.agents.backend_registry import BackendSetup, Machine
from fanfold.agents.command.calls import (
    ASIDE,
    NONE,
    AgentCredentials,
    ProgramCall,
    Turn,
    hand,
    make_call,
    model_for,
    native_schema,
    retold,
)
from fanfold.agents.command.profile import OF_ROLES, Profile
from fanfold.agents.command.profile_files import find_profile, keep_tools, unkept
from fanfold.agents.command.provider_gate import ProviderGate, loopback_ports
from fanfold.agents.command.recorder import TranscriptRecorder, UsageFiles, hear_usage, listen, watch
from fanfold.agents.command.transcript_events import judge
from fanfold.agents.entries import (
    AgentBegin,
    Entry,
    Response,
    ToolResult,
    paid_in,
    redacted,
    since_last_input,
)
from fanfold.agents.models.connections import list_price, replace_price
from fanfold.agents.models.messages import MAX_COMPLAINTS, OUTPUT_TOOL, Contract
from fanfold.agents.providers import Access
from fanfold.agents.redaction import Redactor, without_key_parts
from fanfold.agents.role import Role
from fanfold.agents.spending import NO_NEED, OutOfBudget
from fanfold.agents.tools.mcp_servers import wanted_servers
from fanfold.errors import AuthorError, BugError, WorldError
from fanfold.kernel.events import NOTHING_SPENT, Failure, Usage
from fanfold.kernel.plan import JSON
from fanfold.language.json_text import aside
from fanfold.workspace.children import remove_beneath, write_beneath
from fanfold.workspace.git import find_program

INTERRUPTED = (
    "You were interrupted while you worked on the following task. Look at what is already done, then finish"
    " it.\n\n"
)
OUTAGES = ("agent.unreachable", "agent.rate_limit")
"""Failures that affect every session with the same login."""
WRITE_SET = "write_set"
"""In the record of a correction: its subject."""


Listen: TypeAlias = Callable[
    [AgentProgram, ProgramCall, SessionRequest, Turn, TranscriptRecorder, Callable[[], Awaitable[None]]],
    Awaitable[None],
]
"""Gives a program its task and records its output; calls back when the conversation's id is known."""


def reach_of(role: Role) -> NetworkReach:
    """Return the network access of a role's agent: its provider, unless the role has another setting."""
    return "all" if role.network else "none" if role.offline else "provider"


class CommandSession:
    """Runs one session request to its end."""

    def __init__(
        self, request: SessionRequest, backend: CommandBackend, record: Record, progress: Progress
    ) -> None:
        self._request = request
        self._backend = backend
        self._profile = profile = backend.profile
        self._programs = backend.programs
        self._credentials = backend.credentials
        self._handed = NONE
        """The setup of the role's servers for this program."""
        if request.role.mcp_servers:
            servers = wanted_servers(request.role, self._programs.environment_for(request))
            self._handed = hand(profile, request, servers)
        self._kept = keep_tools(profile, request.role, [server.name for server in self._handed.servers])
        given = [text for server in self._handed.servers for text in server.secrets()]
        self._own = Redactor([*self._credentials.secrets(), *given])
        self._record_raw = record
        self._progress = progress
        self._contract = Contract.of(request)
        self._turn_entries = since_last_input(request.entries)
        self._begun = next(
            (entry for entry in reversed(request.entries) if isinstance(entry, AgentBegin)), None
        )
        recorded = (paid_in(entry) for entry in self._turn_entries)
        self._usage = sum((usage for usage in recorded if usage is not None), NOTHING_SPENT)
        """The usage of this turn, with that of executions before a crash."""
        self._counted = _counted(request.entries)
        self._own_rate = backend.access.rate_of(request.role.model)
        self._calls = 0
        self._version = ""
        self._may_stray = request.strays is not None and not any(
            isinstance(entry, ToolResult) and entry.tool == WRITE_SET for entry in self._turn_entries
        )
        """Whether changes that are not allowed are corrected; only once per turn, then they fail the step."""

    async def run(self) -> SessionResult:
        """Return the result; raise `SessionFailed` with the usage so far."""
        for entry in self._turn_entries:
            if isinstance(entry, Response) and entry.output is not UNSET:  # it finished before the crash
                return self._result(entry.output, self._usage)
        begun, prompt = self._begun, self._request.prompt
        own = begun is not None and begun.program == self._profile.name  # a fork can have another back end
        if begun is None or not own or not begun.conversation or not self._profile.resumes:
            turn = self._anew()
        else:
            interrupted = any(isinstance(entry, AgentBegin) for entry in self._turn_entries)
            prompt = f"{INTERRUPTED}{prompt}" if interrupted else prompt
            turn = Turn(prompt=prompt, conversation=begun.conversation, resumes=True)
        try:
            return await self._converse(turn)
        except SessionFailed as failed:
            failed.usage = self._usage if self._calls or self._usage.tokens else None
            raise

    def _anew(self) -> Turn:
        """Return the task as a new conversation, with the earlier messages, which the agent does not know."""
        before = retold(self._request.earlier)
        prompt = f"{before}\n\n{self._request.prompt}" if before else self._request.prompt
        return self._in_new_conversation(prompt)

    def _in_new_conversation(self, prompt: str) -> Turn:
        self._counted = NOTHING_SPENT
        ids = "" if self._profile.acp else self._profile.ids  # agents with the protocol choose the id
        names = {"uuid": str(uuid.uuid4()), "name": f"{self._request.session_id}-{uuid.uuid4().hex[:8]}"}
        return Turn(prompt=prompt, conversation=names.get(ids, ""))

    async def _converse(self, turn: Turn) -> SessionResult:
        """Call the program until there is a valid answer."""
        begun, complaints, anew = self._begun, 0, ""
        if begun is not None and not turn.resumes:
            whose = "this conversation" if begun.program == self._profile.name else f"one of {begun.program}"
            anew = f"{self._profile.title} cannot continue {whose}"
        try:
            copied = begun is not None and turn.resumes and begun.home != self._request.session_id
            home = await self._programs.home_of(self._request, begun.home if begun and copied else "")
        except WorldError as error:
            if error.code != "agent.forgotten":
                raise
            turn, anew = self._anew(), error.message
            home = await self._programs.home_of(self._request)
        await asyncio.to_thread(self._credentials.furnish_once, home.outside)
        while True:
            if (refusal := self._uncounted()) is not None:
                raise refusal
            transcript, failure = await self._call(turn, home, anew)
            if failure is not None and turn.resumes and failure.kind == "agent" and not transcript.has_worked:
                anew = f"{self._profile.title} does not know the conversation any more: {failure.message}"
                turn = self._anew()
                continue
            if failure is not None:
                await transcript.close(Response(text=transcript.text, usage=self._spent(transcript)))
                capped = self._request.account.cap_reached() if failure.kind == "budget" else None
                raise self._failed(capped or failure)
            value = UNSET if transcript.ending.finished is None else transcript.ending.finished.value
            by_wire = native_schema(self._profile, self._contract) is not None
            judge_answer = partial(self._contract.judge_answer, by_wire=by_wire)
            judgement = await aside(judge_answer, transcript.text, value)
            tool, complaint = OUTPUT_TOOL, judgement.complaint
            if judgement.final and self._may_stray and self._request.strays is not None:
                self._may_stray = False
                tool, complaint = WRITE_SET, await self._request.strays()
            if judgement.final and not complaint:
                output = self._clean(judgement.value)
                spent = self._spent(transcript)
                self._backend.is_counted = spent is not None
                if (refusal := self._uncounted()) is not None:
                    await transcript.close(Response(text=transcript.text))
                    raise refusal
                await transcript.close(
                    Response(text=self._clean(transcript.text), usage=spent, output=output)
                )
                return self._result(output, self._usage)
            await transcript.close(Response(text=transcript.text, usage=self._spent(transcript)))
            complaints += not judgement.final
            if complaints > MAX_COMPLAINTS:
                message = f"no valid answer after {MAX_COMPLAINTS} corrections: {complaint}"
                hint = "relax the step's output schema, or use another agent"
                raise self._failed(Failure("invalid_output", "output.invalid", message, hint))
            await self._record(ToolResult(id="", tool=tool, complaint=complaint))
            turn = self._corrected(transcript, complaint)

    def _uncounted(self) -> SessionFailed | None:
        """Return the refusal of a program that reported no tokens, under a budget in tokens."""
        budgets = self._request.account.ledgers
        if self._backend.is_counted or all(budget.max_tokens is None for budget in budgets):
            return None
        message = f"the budget in tokens cannot be enforced: {self._profile.title} does not report its tokens"
        hint = "use another back end, or start the run without a budget in tokens"
        return self._failed(Failure("budget", "budget.uncounted", message, hint, retryable=False))

    def _corrected(self, transcript: TranscriptRecorder, complaint: str) -> Turn:
        known = self._begun.conversation if self._begun is not None else ""
        if self._profile.resumes and known:
            return Turn(prompt=complaint, conversation=known, resumes=True)
        prompt = f"{self._request.prompt}\n\nYour last answer was:\n{transcript.text[:20_000]}\n\n{complaint}"
        return self._in_new_conversation(prompt)

    async def _call(
        self, turn: Turn, home: AgentHome, anew: str
    ) -> tuple[TranscriptRecorder, Failure | None]:
        profile = self._profile
        reach = await self._programs.reach_here(reach_of(self._request.role))
        try:
            need = structs.replace(NO_NEED, priced=profile.priced or self._own_rate is not None)
            opened = await self._request.account.open_request(need)
        except OutOfBudget as error:
            raise self._failed(error.failure) from None
        left = self._request.account.micro_usd_left()
        left = None if left is None else max(1, left)
        turn = structs.replace(turn, folder=home.workspace, max_micro_usd=left)
        call = make_call(profile, self._request, turn, home.inside, self._handed, self._kept)
        model = model_for(profile, self._request.role.model)
        transcript = TranscriptRecorder(
            self._record,
            self._progress,
            self._clean,
            model,
            lambda used: self._cost(transcript, used),
            opened,
        )
        if turn.conversation:
            await self._begin(turn.conversation, anew)
        self._calls += 1
        hosts = await asyncio.to_thread(self._credentials.hosts) if reach == "provider" else []
        usage = UsageFiles(home.outside, profile.usage_files)
        if turn.resumes and profile.named_by_minute:
            await usage.next_minute(turn.conversation)
        async with AsyncExitStack() as stack:
            gate: ProviderGate | None = None
            prepared = asyncio.ensure_future(asyncio.to_thread(self._prepare, home.outside, call))
            stack.push_async_callback(self._take_back, home.outside, call, prepared)
            await asyncio.shield(prepared)
            if reach == "provider":
                gate = await stack.enter_async_context(
                    ProviderGate(home.outside, hosts, by_port=not home.own_network)
                )
            program = await self._start(call, home, reach, loopback_ports(hosts))
            stack.callback(opened.close)
            watching = asyncio.create_task(watch(profile, program, transcript, gate, usage))
            try:
                attached = partial(self._attached, transcript, anew)
                await self._backend.listen(program, call, self._request, turn, transcript, attached)
            except SessionFailed:
                if transcript.ending.loop is None:
                    raise
            finally:
                watching.cancel()
                await asyncio.wait({watching})
                await program.end()
                await hear_usage(profile, transcript, usage)
        if gate is not None:
            transcript.ending.has_reached = gate.has_reached
            transcript.ending.unreached = tuple(gate.unreached) if gate.is_failing else ()
            transcript.ending.refused = () if gate.has_reached else tuple(gate.refused)
        failure = _not_started(program) or judge(
            profile, transcript.ending, read_only=self._request.role.read_only
        )
        if failure is not None and (failure.until or failure.code in OUTAGES):
            failure = structs.replace(failure, subject=self._backend.subject(self._request.role))
        return transcript, failure

    async def _start(
        self, call: ProgramCall, home: AgentHome, reach: NetworkReach, ports: tuple[int, ...]
    ) -> AgentProgram:
        variables, named = self._credentials.variables()
        variables |= {**self._handed.variables, **self._kept.variables}
        opened = tuple(port for port in ports if port >= FIRST_OPEN_PORT)
        if reach == "provider":
            proxy = f"http://127.0.0.1:{proxy_port(opened)}"
            variables |= dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), proxy)
            if opened == ports:  # otherwise the loopback is also reached through the proxy
                variables |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost,::1")
            variables |= {"NODE_USE_ENV_PROXY": "1"}
        confines = SandboxRequest(
            home=home,
            variables=variables,
            named=named | {*self._handed.variables},
            network=reach,
            covered=self._profile.state.brought,
            ports=opened,
        )
        try:
            return await self._programs.start(self._request, call.argv, confines)
        except FileNotFoundError:
            message = f'there is no program "{call.argv[0]}"'
            raise self._failed(Failure("agent", "agent.no_program", message, "install it", False)) from None
        except WorldError as error:
            if error.code != "command.not_startable":
                raise
            hint = "say {prompt_file} for {prompt} in the command, or neither: then it reads standard input"
            raise WorldError(error.code, error.message, hint=hint) from None

    def _prepare(self, home: Path, call: ProgramCall) -> None:
        for name, data in call.files.items():
            write_beneath(home, f"{ASIDE}/{name}", data)
        remove_beneath(home, SOCKET)
        self._credentials.lend(home, call.lent)

    async def _take_back(self, home: Path, call: ProgramCall, prepared: asyncio.Future[None]) -> None:
        """Remove the lent files; after a cancellation, wait until the lending has finished."""
        await asyncio.wait({prepared})
        self._credentials.take_back(home, call.lent)

    async def _attached(self, transcript: TranscriptRecorder, anew: str) -> None:
        """Record the id of the conversation, which the program has reported."""
        if transcript.began is not None and transcript.began.conversation:
            self._version = transcript.began.version or self._version
            await self._begin(transcript.began.conversation, anew)

    async def _begin(self, conversation: str, anew: str) -> None:
        known = self._begun
        home = self._request.session_id
        same = known is not None and (known.conversation, known.home) == (conversation, home)
        if same and (not anew or (known is not None and known.anew == anew)):
            return
        self._begun = AgentBegin(
            program=self._profile.name, version=self._version, conversation=conversation, home=home, anew=anew
        )
        await self._record(self._begun)

    def _spent(self, transcript: TranscriptRecorder) -> Usage | None:
        """Return the usage of a call that is not recorded yet."""
        used = transcript.so_far
        if used is None:
            self._usage += Usage()  # unreported usage is unknown, not zero
            return None
        total = self._cost(transcript, used, ended=True)
        self._counted += total
        return transcript.take_usage(total)

    def _cost(self, transcript: TranscriptRecorder, used: Usage, *, ended: bool = False) -> Usage:
        """Return the cost of a call from the usage that the program reports."""
        profile = self._profile
        if profile.counts_all:
            before = structs.replace(self._counted, micro_usd=0)
            used = structs.replace(used.beyond(before), micro_usd=used.micro_usd)
        if used.micro_usd is None and self._own_rate is not None:
            return replace_price(used, self._own_rate)
        named = used.micro_usd is None and transcript.model and profile.provider
        if named and not self._credentials.is_elsewhere():
            price = list_price(transcript.model, profile.provider, used)
            used = structs.replace(used, micro_usd=price).bounded()
        if used.micro_usd is None and profile.priced and not ended:
            return structs.replace(used, micro_usd=0)  # it reports the total price at its end
        return used

    async def _record(self, entry: Entry) -> None:
        self._usage += paid_in(entry) or NOTHING_SPENT
        await self._record_raw(redacted(entry, self._clean))

    def _clean(self, value: JSON) -> JSON:
        return self._backend.redactor.json(self._own.json(value))

    def _result(self, output: JSON, usage: Usage) -> SessionResult:
        trace = {
            "backend": self._profile.name,
            "conversation": self._begun.conversation if self._begun is not None else "",
            "calls": self._calls,
            "continued": bool(self._request.entries),
        }
        return SessionResult(output=output, usage=usage, trace=trace)

    def _failed(self, failure: Failure) -> SessionFailed:
        request = self._request
        message = f"{request.step}: {without_key_parts(self._clean(failure.message))}"
        failure = structs.replace(failure, message=message, step=request.step, attempt=request.attempt)
        return SessionFailed(failure)


def _counted(entries: Sequence[Entry]) -> Usage:
    """Return the usage of the last conversation, for programs that report the sum of all calls."""
    spent, conversation = NOTHING_SPENT, ""
    for entry in entries:
        if isinstance(entry, AgentBegin) and entry.conversation != conversation:
            spent, conversation = NOTHING_SPENT, entry.conversation
        elif isinstance(entry, Response) and entry.usage:
            spent += entry.usage
    return spent


def _not_started(program: AgentProgram) -> Failure | None:
    """Return why the sandbox did not execute the program; None if it did."""
    try:
        program.check_started()
    except WorldError as error:
        return Failure("transport", error.code, error.message, error.hint)
    except OSError as error:
        message = f"{error.filename} cannot be executed: {error.strerror}"
        return Failure("agent", "agent.no_program", message, "install it", False)
    return None


# -----------------------------------------------------------------------------------------------------------
# The command back end: agents that are separate programs, such as Claude Code or Codex.
#
# There is one row for each profile (`claude`, `codex` …), and `command` for a role that names a program. The
# common code is in `agents.command`; the differences are data.


class CommandBackend:
    """Runs sessions with one program."""

    def __init__(self, profile: Profile, programs: AgentPrograms, machine: Machine) -> None:
        self.name = profile.name
        self.profile = profile
        self.programs = programs
        self.credentials = AgentCredentials(profile, os.environ)
        self.redactor = machine.redactor
        self.access = Access.of(machine.config, machine.providers)
        self.is_counted = True
        """Whether the program reported tokens, as far as known."""
        listener: Callable[..., Awaitable[None]] = listen
        if profile.acp:
            from fanfold.agents.command import acp

            listener = acp.listen
        self.listen: Listen = partial(listener, profile)
        """The function that exchanges messages with the program."""

    def subject(self, _role: Role) -> str:
        """Return the program's login, shared with its ACP variant; empty for a role's own command."""
        return "" if self.name in OF_ROLES else self.profile.like or self.name

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        if self.name in OF_ROLES and not request.role.command:
            message = f'{request.step}: role "{request.role.name}" names no program'
            raise SessionFailed(
                Failure("agent", "backend.no_command", message, _COMMAND_HINT, retryable=False)
            )
        if key := unkept(self.profile, request.role):
            message = f'role "{request.role.name}" says {key}, which {self.name} does not enforce'
            hint = "use a model for this role, or another role"
            raise SessionFailed(Failure("permission", "role.refused", message, hint, retryable=False))
        return await CommandSession(request, self, record, progress).run()

    async def aclose(self) -> None:
        """Do nothing: the back end has no connections."""


NOWHERE = Path("/nonexistent")
"""No project: programs that a project puts on PATH are checked when a program starts."""
_COMMAND_HINT = 'write `command = ["program", "argument"]` into the role'


def make(setup: BackendSetup, name: str) -> CommandBackend:
    """Return the back end of one profile."""
    if setup.programs is None:
        raise BugError("backend.no_programs", "programs for agents cannot be started here")
    return CommandBackend(profile_named(name, setup.machine), setup.programs, setup.machine)


def profile_named(name: str, machine: Machine) -> Profile:
    found = find_profile(name, machine.home)
    if found is None:
        raise AuthorError("backend.unknown", f'there is no agent back end "{name}"')
    return found


def check(machine: Machine, name: str, command: Sequence[str]) -> None:
    """Raise an error if the program is missing, or if the user did not choose its credentials."""
    profile = profile_named(name, machine)
    if name in OF_ROLES:
        if not command:
            raise AuthorError("backend.no_command", "there is no program to run", hint=_COMMAND_HINT)
        # A path is checked when the program starts.
        if not {"/", "{"} & set(command[0]) and find_program(command[0], NOWHERE) is None:
            message = f"there is no program {command[0]!r}"
            hint = "install it, or correct the role's `command`"
            raise WorldError("backend.not_installed", message, hint=hint)
        return
    if not profile.program:
        raise AuthorError("backend.bad_profile", f'the profile "{name}" names no program')
    if find_program(profile.program, NOWHERE) is None:
        message = f"{profile.title or name} is not installed: there is no program {profile.program!r}"
        raise WorldError("backend.not_installed", message, hint="install it, or choose another back end")
    offered = [] if profile.named else AgentCredentials(profile, os.environ).offered()
    if offered:
        words = ", ".join(f'"{credential}"' for credential in offered)
        hint = f"write into {machine.home}/backends/{name}.toml: credentials = [{words}], or [] for none"
        message = f"no credentials are configured for {profile.title or name}"
        raise WorldError("backend.credentials", message, hint=hint)
