"""Which model does the work when nobody named one for a step, and why.

The rule, first match wins
1. What was asked for: by the step or its role, else by `--model`, else `FANFOLD_MODEL` (or `models.model` in
   a file).
2. A provider whose key is set: OpenAI, then Anthropic, with that provider's default model.
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
from fanfold.errors import AuthorError, WorldError
from fanfold.runtime.config import Config

LOCAL_MODEL = f"{PROVIDER}:{SMOLLM2}"
DEFAULTS = {"openai": "openai:gpt-5.2", "anthropic": "anthropic:claude-sonnet-4-6"}
KEYS = {"openai": "models.openai_api_key", "anthropic": "models.anthropic_api_key"}
VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_FAMILIES = {
    "openai": ("gpt-", "o1", "o3", "o4", "chatgpt-", "codex-"),
    "anthropic": ("claude-",),
}
_WORDS = {
    "openai": "openai",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "anthropic": "anthropic",
    PROVIDER: PROVIDER,
}
_REMOTE_WAYS = (
    "set OPENAI_API_KEY or ANTHROPIC_API_KEY; or name a model with FANFOLD_MODEL (for a compatible server "
    "also OPENAI_BASE_URL); or try the recipe with scripted agents: --script FILE"
)
_WAYS = f"use the local model, which needs no key: {INSTALL_HINT} && {PULL_HINT}; or {_REMOTE_WAYS}"
_WAYS_FROM_HERE = f"{PULL_HINT}, which needs no key; or {_REMOTE_WAYS}"


class Choice(Struct, frozen=True):
    """A model and the reason it was chosen."""

    model: str
    """As the model back end takes it: `openai:gpt-5.2`, `local:smollm2`."""
    provider: str
    """`openai`, `anthropic` or `local`."""
    why: str

    @property
    def name(self) -> str:
        """The model's own name, without the word for its provider."""
        word, colon, rest = self.model.partition(":")
        return rest if colon and word in _WORDS else self.model


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
    for provider, key in KEYS.items():
        if config.text(key):
            if provider == "openai" and config.text("models.openai_base_url"):
                raise _which_model(config)
            return Choice(DEFAULTS[provider], provider, f"{VARIABLES[provider]} is set")
    if config.text("models.openai_base_url"):
        raise _which_model(config)
    if local.ready:
        return Choice(LOCAL_MODEL, PROVIDER, "no provider is configured, and the local model is here")
    if local.installed:
        raise AuthorError(
            "provider.none",
            "no model: the local one has no weights yet, and no key is set",
            hint=_WAYS_FROM_HERE,
        )
    raise AuthorError(
        "provider.none", "no model: no provider is configured and the local one is not here", hint=_WAYS
    )


def _named(name: str, why: str, config: Config, local: LocalState) -> Choice:
    provider = _provider_of(name, config)
    if provider == PROVIDER:
        _check_local(name, local)
    elif not config.text(KEYS[provider]) and not (
        provider == "openai" and config.text("models.openai_base_url")
    ):
        raise AuthorError(
            "model.no_key",
            f'"{name}" needs {VARIABLES[provider]}, which is not set',
            hint=f"set {VARIABLES[provider]}, or choose a model that needs no key: {LOCAL_MODEL}",
        )
    return Choice(name, provider, why)


def _provider_of(name: str, config: Config) -> str:
    word, colon, rest = name.partition(":")
    if colon and rest and word in _WORDS:
        return _WORDS[word]
    for provider, beginnings in _FAMILIES.items():
        if name.startswith(beginnings):
            return provider
    if config.text("models.openai_base_url"):  # a compatible server may call its models anything
        return "openai"
    raise AuthorError(
        "model.unknown_provider",
        f'"{name}" names no provider known here',
        hint=f"write provider:name; providers are {', '.join(_WORDS)}",
    )


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


def _which_model(config: Config) -> AuthorError:
    return AuthorError(
        "model.unnamed",
        f"{config.origins['models.openai_base_url']} is set, but not which of that server's models to use",
        hint="set FANFOLD_MODEL=openai:NAME",
    )
