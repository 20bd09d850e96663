"""The model back end: agents that are API models (OpenAI, Anthropic, anything that speaks like OpenAI).

Rules
* One back end serves a whole process: it holds the connections, the limits and the circuits of providers, and
  nothing of any session. Sessions hold nothing that is not in their entries.
* Keys are given to it and stay in it: they reach a provider's address and nothing else. Everything it records
  or returns passes through the redactor first.
* Importing this module costs nothing. The SDKs are loaded by the first session that asks a model.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from fanfold.agents.backend import Progress, Record, SessionFailed, SessionRequest, SessionResult
from fanfold.agents.instructions import compose, project_instructions
from fanfold.agents.models.asking import Asker, Patience
from fanfold.agents.models.providers import Access, Providers
from fanfold.agents.models.session import ModelSession, Setting
from fanfold.agents.redaction import Redactor
from fanfold.agents.toolbox.catalogue import SessionTools, Tools
from fanfold.kernel.events import Failure

__all__ = ["Access", "ModelBackend", "Patience"]


class ModelBackend:
    """Answers sessions by asking models.

    `model` is what a session uses that names none. `toolbox` makes the tools of a session, `instructions` is
    what a project tells every agent.
    """

    name = "model"

    def __init__(
        self,
        access: Access,
        *,
        model: str | None = None,
        redactor: Redactor | None = None,
        toolbox: Callable[[SessionRequest], Tools] = SessionTools.of,
        instructions: Callable[[str], str] | None = project_instructions,
        patience: Patience | None = None,
        providers: Providers | None = None,
    ) -> None:
        self._model = model
        self._redactor = redactor or Redactor(access.secrets)
        self._toolbox = toolbox
        self._instructions = instructions
        self._patience = patience or Patience()
        self._providers = providers or Providers(access)

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        role = request.role
        model = role.model or self._model
        if model is None:
            hint = "set FANFOLD_MODEL, pass --model, or write `model:` in the step or role"
            message = f"{request.step}: nobody said which model to use"
            raise SessionFailed(Failure("agent", "model.none", message, hint, retryable=False))
        models = [model, *(one for one in role.fallback_models if one != model)]
        await self._providers.load(models)
        request = self._without_secrets(request)
        told = "" if self._instructions is None else self._instructions(request.workspace)
        tools = self._toolbox(request)
        setting = Setting(
            asker=Asker(
                self._providers, models, self._redactor, self._patience, progress, request.max_output_tokens
            ),
            tools=tools,
            redactor=self._redactor,
            instructions=compose(request.role.instructions, told),
        )
        try:
            if not _is_over(request):
                await tools.open()
            return await ModelSession(request, setting, record, progress).run()
        finally:
            await tools.aclose()

    def _without_secrets(self, request: SessionRequest) -> SessionRequest:
        """The request as a model may know it: a prompt made from a file may hold one of our keys."""
        role = request.role
        return structs.replace(
            request,
            prompt=self._redactor.known(request.prompt),
            role=structs.replace(role, instructions=self._redactor.known(role.instructions)),
            entries=self._redactor.json(request.entries, shapes=False),
        )

    async def aclose(self) -> None:
        """Close the connections to providers."""
        await self._providers.aclose()


def _is_over(request: SessionRequest) -> bool:
    """Whether the session said everything before a crash: then it uses no tool any more."""
    return bool(request.entries) and "output" in request.entries[-1]
