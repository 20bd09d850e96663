"""Models as every surface shows them: what can be used here, and the local one that needs no key."""

from __future__ import annotations

from msgspec import Struct

from fanfold.runtime.views.errors import ErrorBody


class ChosenModel(Struct, frozen=True):
    """The model that is used when a recipe names none, and why it is this one."""

    model: str
    provider: str
    why: str


class ProviderDocument(Struct, frozen=True):
    """Whether a provider is configured; of its key no more than that it is set."""

    provider: str
    configured: bool
    key: str
    key_set: bool
    base_url: str | None
    default_model: str
    fast_model: str


class ServerDocument(Struct, frozen=True):
    """A process that serves the local model; its address when it is ready."""

    pid: int
    state: str
    base_url: str | None
    started_at: float


class LocalModelDocument(Struct, frozen=True):
    model: str
    installed: bool
    pulled: bool
    weights: str | None
    server: ServerDocument | None


class ModelsDocument(Struct, frozen=True):
    """`error` says why there is no default."""

    default: ChosenModel | None
    error: ErrorBody | None
    providers: list[ProviderDocument]
    local: LocalModelDocument


class PulledDocument(Struct, frozen=True):
    """The weights of the local model; `fetched` is false when they were there."""

    model: str
    file: str
    bytes: int
    sha256: str
    fetched: bool
    seconds: float


class ServingDocument(Struct, frozen=True):
    """The local model is served from here on, at this address."""

    base_url: str
    pid: int
    model: str
