"""One session of an agent that is a program: call it, hear it, judge it, and say again what does not fit.

Rules
* The program's own conversation has an id, recorded as soon as it is known. A session that runs again after a
  crash, a turn that follows another and a correction go on by it. Where the program cannot, or does not know
  the conversation any more, the task begins again, and the log says so.
* Each call is one process tree, ended before anything else happens. What it was lent is taken back then.
* An answer that does not fit is sent back with the validator's words, as for models.
* How a call ended is judged (see `verdict`), and how long it may take is ours: a program that says nothing,
  or nothing but errors, is ended.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import UNSET, Struct, structs

from fanfold.agents.backend import Progress, Record, SessionFailed, SessionRequest, SessionResult
from fanfold.agents.command.belongings import Belongings
from fanfold.agents.command.calls import ASIDE, ProgramCall, Turn, make_call, model_for, native_schema, retold
from fanfold.agents.command.hearing import Hearing
from fanfold.agents.command.kept_tools import keep_tools
from fanfold.agents.command.profile import Profile
from fanfold.agents.command.provider_gate import ProviderGate, loopback_ports
from fanfold.agents.command.served import NONE, Handed, hand
from fanfold.agents.command.verdict import judge
from fanfold.agents.confined import (
    FIRST_OPEN_PORT,
    FURNISHED,
    SOCKET,
    AgentHome,
    AgentPrograms,
    Confines,
    NetworkReach,
    proxy_port,
)
from fanfold.agents.entries import AgentBegin, Entry, Response, ToolResult, redacted, since_last_input
from fanfold.agents.models.answers import MAX_COMPLAINTS, OUTPUT_TOOL, Contract, Judgement
from fanfold.agents.redaction import Redactor
from fanfold.agents.role import Role
from fanfold.errors import WorldError
from fanfold.kernel.events import NOTHING_SPENT, Failure, Usage
from fanfold.kernel.plan import JSON
from fanfold.workspace.homes import remove_beneath, write_beneath

if TYPE_CHECKING:
    from fanfold.agents.confined import AgentProgram

INTERRUPTED = (
    "You were interrupted while you worked on the following task. Look at what is already done, then finish"
    " it.\n\n"
)


class Listen(Protocol):
    """Gives a program its task, hears it to its end, and leaves in the hearing what came of it."""

    def __call__(
        self,
        program: AgentProgram,
        call: ProgramCall,
        request: SessionRequest,
        turn: Turn,
        hearing: Hearing,
        attached: Callable[[], Awaitable[None]],
        /,
    ) -> Awaitable[None]:
        """`attached` is called once it has told which conversation this is."""
        ...


class CommandParts(Struct, frozen=True, kw_only=True):
    """What a session works with."""

    profile: Profile
    programs: AgentPrograms
    belongings: Belongings
    redactor: Redactor
    listen: Listen
    """How it is spoken to and heard."""


def reach_of(role: Role) -> NetworkReach:
    """What an agent of a role may reach: its provider, unless the role says otherwise."""
    return "all" if role.network else "none" if role.offline else "provider"


class CommandSession:
    """Runs one request to its end."""

    def __init__(
        self, request: SessionRequest, parts: CommandParts, record: Record, progress: Progress
    ) -> None:
        self._request = request
        self._profile = parts.profile
        self._programs = parts.programs
        self._belongings = parts.belongings
        self._redactor = parts.redactor
        self._listen = parts.listen
        self._handed = self._hand()
        self._kept = keep_tools(parts.profile, request.role, [one.name for one in self._handed.servers])
        given = [text for one in self._handed.servers for text in one.secrets()]
        self._own = Redactor([*parts.belongings.secrets(), *given])
        self._record_raw = record
        self._progress = progress
        self._contract = Contract.of(request)
        self._begun = next((one for one in reversed(request.entries) if isinstance(one, AgentBegin)), None)
        self._usage = NOTHING_SPENT
        self._counted = _counted(request.entries)
        self._calls = 0
        self._version = ""

    async def run(self) -> SessionResult:
        """The answer; raises `SessionFailed` with what was spent."""
        recorded = since_last_input(self._request.entries)
        for entry in recorded:
            if isinstance(entry, Response) and entry.output is not UNSET:  # all was said before the crash
                return self._result(entry.output, entry.usage or Usage())
        try:
            return await self._converse(self._first_turn(recorded))
        except SessionFailed as failed:
            failed.usage = self._usage if self._calls else None
            raise

    def _hand(self) -> Handed:
        """The servers of the role, in the way that the program takes them."""
        if not self._request.role.mcp_servers:
            return NONE
        from fanfold.agents.toolbox.mcp.servers import wanted_servers

        servers = wanted_servers(self._request.role, self._programs.environment_for(self._request))
        return hand(self._profile, self._request, servers)

    def _first_turn(self, recorded: Sequence[Entry]) -> Turn:
        """How to begin: anew, with the next words of a conversation, or where a crash cut it off."""
        begun, prompt = self._begun, self._request.prompt
        if begun is None or not begun.conversation or self._is_strange(begun) or not self._profile.resumes:
            return self._anew()
        interrupted = any(isinstance(entry, AgentBegin) for entry in recorded)
        asked = f"{INTERRUPTED}{prompt}" if interrupted else prompt
        return Turn(prompt=asked, conversation=begun.conversation, resumes=True)

    def _is_strange(self, begun: AgentBegin) -> bool:
        """Whether a conversation is another program's: a fork may be given another back end."""
        return begun.program != self._profile.name

    def _why_anew(self, begun: AgentBegin) -> str:
        whose = f"one of {begun.program}" if self._is_strange(begun) else "this conversation"
        return f"{self._profile.title} cannot go on with {whose}"

    def _anew(self) -> Turn:
        """The task from its beginning, with what was said before it for an agent that cannot know."""
        before = retold(self._request.earlier)
        prompt = f"{before}\n\n{self._request.prompt}" if before else self._request.prompt
        return self._in_new_conversation(prompt)

    def _in_new_conversation(self, prompt: str) -> Turn:
        self._counted = NOTHING_SPENT
        return Turn(prompt=prompt, conversation=self._new_conversation())

    def _new_conversation(self) -> str:
        if self._profile.acp:
            return ""  # there the agent names them
        match self._profile.ids:
            case "uuid":
                return str(uuid.uuid4())
            case "name":
                return f"{self._request.session_id}-{uuid.uuid4().hex[:8]}"
        return ""

    async def _converse(self, turn: Turn) -> SessionResult:
        """Call the program until there is an answer that fits."""
        begun, complaints = self._begun, 0
        earlier = begun.home if begun is not None and turn.resumes else ""
        home = await self._programs.home_of(
            self._request, "" if earlier == self._request.session_id else earlier
        )
        await asyncio.to_thread(self._furnish, home.outside)
        anew = "" if begun is None or turn.resumes else self._why_anew(begun)
        while True:
            hearing, failure = await self._call(turn, home, anew)
            if failure is not None and turn.resumes and failure.kind == "agent" and not hearing.has_worked:
                anew = f"{self._profile.title} does not know the conversation any more: {failure.message}"
                turn = self._anew()
                continue
            if failure is not None:
                await hearing.close(Response(text=hearing.text, usage=self._spent(hearing)))
                raise self._failed(failure)
            judgement = self._judge(hearing)
            if judgement.final:
                output = self._clean(judgement.value)
                spent = self._spent(hearing)
                await hearing.close(Response(text=self._clean(hearing.text), usage=spent, output=output))
                return self._result(output, self._usage)
            await hearing.close(Response(text=hearing.text, usage=self._spent(hearing)))
            complaints += 1
            if complaints > MAX_COMPLAINTS:
                message = f"no valid answer after {MAX_COMPLAINTS} corrections: {judgement.complaint}"
                hint = "loosen the step's output schema, or use another agent"
                raise self._failed(Failure("invalid_output", "output.invalid", message, hint))
            await self._record(ToolResult(id="", tool=OUTPUT_TOOL, complaint=judgement.complaint))
            turn = self._corrected(hearing, judgement.complaint)

    def _corrected(self, hearing: Hearing, complaint: str) -> Turn:
        known = self._begun.conversation if self._begun is not None else ""
        if self._profile.resumes and known:
            return Turn(prompt=complaint, conversation=known, resumes=True)
        said = f"{self._request.prompt}\n\nYour last answer was:\n{hearing.text[:20_000]}\n\n{complaint}"
        return self._in_new_conversation(said)

    # ------------------------------------------------------------------------------------ one call

    async def _call(self, turn: Turn, home: AgentHome, anew: str) -> tuple[Hearing, Failure | None]:
        profile, reach = self._profile, reach_of(self._request.role)
        await self._programs.check_reach(reach)
        turn = structs.replace(turn, folder=home.workspace, max_micro_usd=self._left())
        call = make_call(profile, self._request, turn, home.inside, self._handed, self._kept)
        model = model_for(profile, self._request.role.model)
        hearing = Hearing(self._record, self._progress, self._clean, model)
        if turn.conversation:
            await self._begin(turn.conversation, anew)
        self._calls += 1
        hosts = await asyncio.to_thread(self._belongings.hosts) if reach == "provider" else []
        async with AsyncExitStack() as stack:
            gate: ProviderGate | None = None
            prepared = asyncio.ensure_future(asyncio.to_thread(self._prepare, home.outside, call))
            stack.push_async_callback(self._take_back, home.outside, call, prepared)
            await asyncio.shield(prepared)
            if reach == "provider":
                gate = await stack.enter_async_context(ProviderGate(home.outside / SOCKET, hosts))
            program = await self._start(call, home, reach, loopback_ports(hosts))
            try:
                attached = partial(self._attached, hearing, anew)
                await self._listen(program, call, self._request, turn, hearing, attached)
            finally:
                await program.end()
        failure = judge(profile, hearing.ending, read_only=self._request.role.read_only)
        if failure is not None and failure.kind == "transport" and gate is not None and gate.refused:
            told = f"it was kept from {', '.join(gate.refused[:5])}"
            hint = "write network = true into the role"
            if profile.file:
                hint = f'name the host in {profile.file} (hosts = ["…"]), or {hint}'
            failure = structs.replace(failure, message=f"{failure.message} ({told})", hint=hint)
        return hearing, failure

    async def _start(
        self, call: ProgramCall, home: AgentHome, reach: NetworkReach, ports: tuple[int, ...]
    ) -> AgentProgram:
        variables, named = self._belongings.variables()
        variables, named = {**variables, **self._handed.variables}, named | {*self._handed.variables}
        variables |= self._kept.variables
        opened = tuple(port for port in ports if port >= FIRST_OPEN_PORT)
        if reach == "provider":
            proxy = f"http://127.0.0.1:{proxy_port(opened)}"
            variables |= dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"), proxy)
            if opened == ports:  # else the way to the loopback is the proxy, too
                variables |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost,::1")
            variables |= {"NODE_USE_ENV_PROXY": "1"}
        confines = Confines(
            home=home,
            variables=variables,
            named=named,
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
            hint = "say {prompt_file} for {prompt} among its words, or neither: then it reads standard input"
            raise WorldError(error.code, error.message, hint=hint) from None

    def _furnish(self, home: Path) -> None:
        """Copy the configuration into a home that is new: later it is full of what the agent put there."""
        mark = home.parent / FURNISHED
        if not mark.exists():
            self._belongings.furnish(home)
            (home / ASIDE).mkdir(mode=0o700, exist_ok=True)
            mark.touch()

    def _prepare(self, home: Path, call: ProgramCall) -> None:
        for name, data in call.files.items():
            write_beneath(home, f"{ASIDE}/{name}", data)
        remove_beneath(home, SOCKET)
        self._belongings.lend(home, call.lent)

    async def _take_back(self, home: Path, call: ProgramCall, prepared: asyncio.Future[None]) -> None:
        """Take out what was lent; who is cancelled while it is lent waits for that first."""
        await asyncio.wait({prepared})
        self._belongings.take_back(home, call.lent)

    async def _attached(self, hearing: Hearing, anew: str) -> None:
        """The program has told which conversation this is."""
        if hearing.began is not None and hearing.began.conversation:
            self._version = hearing.began.version or self._version
            await self._begin(hearing.began.conversation, anew)

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

    # ------------------------------------------------------------------------------------- the end

    def _judge(self, hearing: Hearing) -> Judgement:
        finished = hearing.ending.finished
        native = native_schema(self._profile, self._contract) is not None
        value = finished.value if finished is not None else UNSET
        return self._contract.judge_answer(hearing.text, value, by_wire=native)

    def _left(self) -> int | None:
        """What the next call may spend."""
        most = self._request.max_micro_usd
        return None if most is None else max(1, most - (self._usage.micro_usd or 0))

    def _spent(self, hearing: Hearing) -> Usage | None:
        """What a call spent, counted once."""
        said = hearing.spent
        if said is None:
            self._usage += Usage()  # what it does not tell is not known to be nothing
            return None
        if self._profile.counts_all:
            before = self._counted
            said = Usage(
                max(0, said.input_tokens - before.input_tokens),
                max(0, said.output_tokens - before.output_tokens),
                said.micro_usd,
            )
        if said.micro_usd is None:
            said = structs.replace(said, micro_usd=self._price(hearing.model, said)).bounded()
        self._counted += said
        self._usage += said
        return said

    def _price(self, model: str, said: Usage) -> int | None:
        if not model or not self._profile.provider or self._belongings.is_elsewhere():
            return None
        from fanfold.agents.models.prices import list_price

        return list_price(model, self._profile.provider, said.input_tokens, said.output_tokens)

    async def _record(self, entry: Entry) -> None:
        await self._record_raw(redacted(entry, self._clean))

    def _clean(self, value: JSON) -> JSON:
        return self._redactor.json(self._own.json(value))

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
        message = f"{request.step}: {self._clean(failure.message)}"
        return SessionFailed(
            structs.replace(failure, message=message, step=request.step, attempt=request.attempt)
        )


def _counted(entries: Sequence[Entry]) -> Usage:
    """What the calls of the last conversation spent, for programs that tell the sum of all of them."""
    spent, conversation = NOTHING_SPENT, ""
    for entry in entries:
        if isinstance(entry, AgentBegin) and entry.conversation != conversation:
            spent, conversation = NOTHING_SPENT, entry.conversation
        elif isinstance(entry, Response) and entry.usage:
            spent += entry.usage
    return spent
