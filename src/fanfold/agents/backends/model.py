"""The model back end: agents that are models, of providers or on this machine.

Rules
* One back end serves a whole process: it holds the connections, the limits and the circuits of providers, and
  nothing of any session. Sessions hold nothing that is not in their entries.
* Keys are given to it and stay in it: they reach a provider's address and nothing else. Everything it records
  or returns passes through the redactor first.
* Importing this module costs nothing. The SDKs are loaded by the first session that asks a model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import UNSET, structs

from fanfold.agents.backend import Progress, Record, SessionFailed, SessionRequest, SessionResult
from fanfold.agents.backend_registry import MODEL, BackendSetup
from fanfold.agents.entries import Ending, redacted
from fanfold.agents.instructions import ProjectInstructions, compose, instructions_for
from fanfold.agents.local.requests import LocalServers, fitted
from fanfold.agents.local.weights import PROVIDER
from fanfold.agents.models.connections import Connections
from fanfold.agents.models.questions import Asker, Patience
from fanfold.agents.models.session import ModelSession, SessionParts
from fanfold.agents.providers import OPENAI, Access
from fanfold.agents.redaction import Redactor
from fanfold.agents.toolbox.catalogue import SessionTools, Tools
from fanfold.kernel.events import Failure


class ModelBackend:
    """Answers sessions by asking models.

    `model` is what a session uses that names none. `toolbox` makes the tools of a session, `instructions` is
    what a project tells its agents, `local` starts the servers of models on this machine.
    """

    name = MODEL

    def __init__(
        self,
        access: Access,
        *,
        model: str | None = None,
        redactor: Redactor | None = None,
        toolbox: Callable[[SessionRequest], Tools] = SessionTools.of,
        instructions: ProjectInstructions | None = None,
        local: LocalServers | None = None,
        patience: Patience | None = None,
        connections: Connections | None = None,
    ) -> None:
        self._model = model
        self._redactor = redactor or Redactor(access.secrets)
        self._toolbox = toolbox
        self._instructions = instructions or ProjectInstructions()
        self._local = local
        self._local_connections: dict[str, Connections] = {}
        self._patience = patience or Patience()
        self._connections = connections or Connections(access)

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        role = request.role
        model = role.model or self._model
        if model is None:
            hint = "set FANFOLD_MODEL, pass --model, or write `model:` in the step or role"
            message = f"{request.step}: nobody said which model to use"
            raise SessionFailed(Failure("agent", "model.none", message, hint, retryable=False))
        connections = self._connections
        if self._local is not None and model.startswith(f"{PROVIDER}:"):
            connections = self._at(await self._local.reach(request, model, progress))
            request = fitted(request, model)
            model, role = request.role.model or model, request.role
        models = [model, *(one for one in role.fallback_models if one != model)]
        await connections.load(models)
        request = self._without_secrets(request)
        tools, project = self._toolbox(request), self._instructions
        nested = instructions_for(project.below, (*request.read_set, *request.write_set))
        if project.below:
            from fanfold.agents.toolbox.local_instructions import InstructedTools  # few projects have any

            tools = InstructedTools(tools, project.below, nested)
        parts = SessionParts(
            asker=Asker(
                connections, models, self._redactor, self._patience, progress, request.max_output_tokens
            ),
            tools=tools,
            redactor=self._redactor,
            instructions=compose(request.role.instructions, project.top, nested),
        )
        try:
            if not _is_over(request):
                await tools.open()
            return await ModelSession(request, parts, record, progress).run()
        finally:
            await tools.aclose()

    def _at(self, address: str) -> Connections:
        """What reaches a server of this machine."""
        if address not in self._local_connections:
            access = Access(addresses={OPENAI.name: address}, native_json=True)
            self._local_connections[address] = Connections(access)
        return self._local_connections[address]

    def _without_secrets(self, request: SessionRequest) -> SessionRequest:
        """The request as a model may know it: a prompt made from a file may hold one of our keys."""
        role, redactor = request.role, self._redactor
        known = partial(redactor.json, shapes=False)
        return structs.replace(
            request,
            prompt=redactor.known(request.prompt),
            role=structs.replace(role, instructions=redactor.known(role.instructions)),
            entries=[redacted(entry, known) for entry in request.entries],
        )

    async def aclose(self) -> None:
        """Close the connections to providers."""
        for connections in (self._connections, *self._local_connections.values()):
            await connections.aclose()


def make(setup: BackendSetup) -> ModelBackend:
    """With the keys and addresses of this machine's configuration."""
    config, default = setup.machine.config, setup.model or setup.default_model
    idle_s = config["models.local_idle_s"]
    assert isinstance(idle_s, int)
    return ModelBackend(
        Access.of(config, setup.machine.providers),
        model=default,
        redactor=setup.machine.redactor,
        toolbox=setup.toolbox,
        instructions=setup.instructions,
        local=LocalServers(setup.machine.home, idle_s, default),
    )


def _is_over(request: SessionRequest) -> bool:
    """Whether the session said everything before a crash: then it uses no tool any more."""
    last = request.entries[-1] if request.entries else None
    return isinstance(last, Ending) and last.output is not UNSET
