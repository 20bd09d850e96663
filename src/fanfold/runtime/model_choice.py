"""Which model does the work when nobody named one for a step, and why.

The rule, first match wins
1. What was asked for: by the step or its role, else by `--model`, else `FANFOLD_MODEL` (or `models.model` in
   a file).
2. The first provider of the table whose key is set, with that provider's default model.
3. The local model, when its library is installed and its weights are here.
4. Otherwise an error that lists these ways with the words to type.

A choice that cannot work (a provider without its key, weights that were never pulled) is refused here, before
a run begins. Nothing is looked up: what is on this machine is passed in.

Recipes, roles and a project's file come with a checkout. They may name a model, but not weights by path that
the user did not name too: they would be loaded into a native library by whoever runs that recipe.
"""

from __future__ import annotations

from msgspec import Struct

from fanfold.agents.local.weights import (
    INSTALL_HINT,
    PROVIDER,
    PULL_HINT,
    SMOLLM2,
    LocalState,
    is_weights_file,
)
from fanfold.agents.providers import Access, Provider
from fanfold.errors import AuthorError, WorldError
from fanfold.runtime.config import Config

LOCAL_MODEL = f"{PROVIDER}:{SMOLLM2}"


class Choice(Struct, frozen=True):
    """A model and the reason it was chosen."""

    model: str
    """As the model back end takes it: `openai:gpt-5.2`, `local:smollm2`."""
    name: str
    """The model's own name, without the word for its provider."""
    provider: Provider | None
    """None for models on this machine."""
    why: str
    fast_model: str | None = None
    """For small work, where nobody named a model."""


def choose_model(
    config: Config, local: LocalState, *, asked: str | None = None, flag: str | None = None
) -> Choice:
    """The model to use; `asked` is what a step or role names, `flag` what the user typed.

    >>> from pathlib import Path
    >>> config = Config.read(Path("."), {"FANFOLD_HOME": "/nonexistent", "ANTHROPIC_API_KEY": "…"})
    >>> choose_model(config, LocalState(installed=False, pulled=False)).model
    'anthropic:claude-sonnet-4-6'
    """
    configured, origin = config.text("models.model"), config.origins["models.model"]
    if asked is not None:
        by_user = (flag, None if _is_of_project(config, origin) else configured)
        if is_weights_file(asked) and asked not in by_user:
            raise _not_here("the recipe or role", asked)
        return _named(asked, "the step or its role asks for it", config, local)
    if flag is not None:
        return _named(flag, "it was asked for", config, local)
    if configured is not None:
        if is_weights_file(configured) and _is_of_project(config, origin):
            raise _not_here(origin, configured)
        return _named(configured, f"{origin} says so", config, local)
    access = config.access
    usable = [row for row in access.providers if access.is_usable(row)]
    if usable:
        # One that has a key goes before a server that may want none.
        row = next((row for row in usable if row.name in access.keys), usable[0])
        if row.imitated is not None and row.name in access.addresses:
            raise _which_model(config, row)
        return Choice(row.default, row.default_model, row, f"{row.key_variable} is set", row.fast)
    if local.ready:
        return Choice(LOCAL_MODEL, SMOLLM2, None, "no provider is configured, and the local model is here")
    if local.installed:
        raise AuthorError(
            "provider.none",
            "no model: the local one has no weights yet, and no key is set",
            hint=f"{PULL_HINT}, which needs no key; or {_remote_ways(access)}",
        )
    raise AuthorError(
        "provider.none",
        "no model: no provider is configured and the local one is not here",
        hint=f"use the local model, which needs no key: {INSTALL_HINT} && {PULL_HINT}; "
        f"or {_remote_ways(access)}",
    )


def _named(model: str, why: str, config: Config, local: LocalState) -> Choice:
    word, colon, rest = model.partition(":")
    if colon and rest and word == PROVIDER:
        _check_local(model, local)
        return Choice(model, rest, None, why)
    access = config.access
    meant = access.understand(model)
    if meant is None:
        raise AuthorError(
            "model.unknown_provider",
            f'"{model}" names no provider known here',
            hint=f"write provider:name; providers are {', '.join([*access.words(), PROVIDER])}",
        )
    if not access.is_usable(meant.provider):
        variable = meant.provider.key_variable
        raise AuthorError(
            "model.no_key",
            f'"{model}" needs {variable}, which is not set',
            hint=f"set {variable}, or choose a model that needs no key: {LOCAL_MODEL}",
        )
    return Choice(model, meant.name, meant.provider, why)


def _check_local(name: str, local: LocalState) -> None:
    if not local.installed:
        raise WorldError(
            "local.not_installed", f'"{name}" needs llama.cpp, which is not here', hint=INSTALL_HINT
        )
    if name == LOCAL_MODEL and not local.pulled:
        raise WorldError("local.not_pulled", f'the weights of "{name}" are not here yet', hint=PULL_HINT)


def _is_of_project(config: Config, origin: str) -> bool:
    return origin != "FANFOLD_MODEL" and not origin.startswith(f"{config.home / 'config.toml'} ")


def _not_here(where: str, model: str) -> AuthorError:
    return AuthorError(
        "model.not_here",
        f"{where} names weights by path ({model}), which only the user may do",
        hint=f"if you trust the file: FANFOLD_MODEL={model}",
    )


def _which_model(config: Config, provider: Provider) -> AuthorError:
    origin = config.origins[provider.address_setting]
    return AuthorError(
        "model.unnamed",
        f"{origin} is set, but not which of that server's models to use",
        hint=f"set FANFOLD_MODEL={provider.name}:NAME",
    )


def _remote_ways(access: Access) -> str:
    keys = " or ".join(row.key_variable for row in access.providers)
    servers = " or ".join(row.address_variable for row in access.providers if row.imitated is not None)
    return (
        f"set {keys}; or name a model with FANFOLD_MODEL (for a compatible server also {servers}); "
        "or try the recipe with scripted agents: --script FILE"
    )
