"""The local back end: every session is done by the model on this machine, whatever model its role names.

A recipe can be tried so without a key, and nothing of it leaves the machine. The model back end does the
talking; it serves single `local:` models too, beside those of providers.
"""

from __future__ import annotations

from msgspec import structs

from fanfold.agents.backend import Backend, Progress, Record, SessionRequest, SessionResult
from fanfold.agents.backend_registry import BackendSetup, Machine
from fanfold.agents.local.weights import PROVIDER, SMOLLM2, find_weights, require_library

SMALL = f"{PROVIDER}:{SMOLLM2}"


class LocalBackend:
    """Hands every session to `inner` with the local model in place of its own."""

    name = "local"

    def __init__(self, inner: Backend, model: str) -> None:
        self._inner = inner
        self._model = model

    async def run(self, request: SessionRequest, record: Record, progress: Progress) -> SessionResult:
        role = structs.replace(request.role, model=self._model)
        return await self._inner.run(structs.replace(request, role=role), record, progress)

    async def aclose(self) -> None:
        await self._inner.aclose()


def make(setup: BackendSetup, inner: Backend) -> LocalBackend:
    """With the local model that the user chose for the run, else the small one."""
    chosen = setup.model or setup.default_model or ""
    return LocalBackend(inner, chosen if chosen.startswith(f"{PROVIDER}:") else SMALL)


def check(machine: Machine) -> None:
    """Whether llama.cpp and the weights of the small model are here."""
    require_library()
    find_weights(SMALL, machine.home)
