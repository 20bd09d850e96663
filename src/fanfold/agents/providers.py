"""The providers of models: one row each, and their configuration on this machine.

All code that needs provider data reads it here: the settings and their environment variables, the default
model, the parsing of model names, prices, and the keys that must not be passed on.

Rules
* A provider is one row. It uses one of the wire formats in `models/connections`. Only a provider with another
  format needs more than its row.
* A model is `provider:name`, or `format:name` if the row has words that select a wire format. A bare name is
  accepted if it starts like the models of one provider. It is also accepted if a compatible server is
  configured, because such a server can use any model names.
* The user's file adds rows: `[providers.NAME]`. A preset is a row for a known service, which needs only its
  key or a table in that file. A project's file never adds or changes a row.
* Nothing here imports an SDK or sends a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, structs

WireFormat: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic"]


class Rate(Struct, frozen=True):
    """The price of one token of a model in micro-dollars, or of a million tokens in dollars."""

    input: float
    output: float
    cached: float


class Provider(Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    """The part before the colon in the names of its models."""
    address: str
    """The provider's own address."""
    speaks: WireFormat
    default_model: str
    fast_model: str
    """For summaries and other small work."""
    families: tuple[str, ...] = ()
    """Prefixes of the names of its models."""
    imitated: WireFormat | None = None
    """The wire format of compatible servers that can replace it. Their models have any name, and they may
    need no key. None: there are no such servers."""
    words: Mapping[str, WireFormat] = {}
    """Other words before the colon, which select a wire format."""
    prices: str | None = None
    """Its name in the price list; None: its prices are unknown."""
    key_env: str | None = None
    """The environment variable with its key, if the name of the provider does not determine it."""
    needs_key: bool = True
    by_table: bool = False
    """Whether it is configured by a table `[providers.NAME]`; see `PRESETS`."""
    is_enabled: bool = True
    """False: a preset without a key whose table is not in the user's file."""
    models: tuple[str, ...] = ()
    """Models that the user listed. They need no provider before their names."""
    own_prices: Mapping[str, Rate] = {}
    """The user's prices, by the name of the model."""

    @property
    def key_variable(self) -> str:
        """The environment variable with its key."""
        return self.key_env or f"{self.name.upper()}_API_KEY"

    @property
    def address_variable(self) -> str:
        """The environment variable with another address."""
        return f"{self.name.upper()}_BASE_URL"

    @property
    def key_setting(self) -> str:
        return f"providers.{self.name}.api_key" if self.by_table else f"models.{self.name}_api_key"

    @property
    def address_setting(self) -> str:
        return f"providers.{self.name}.base_url" if self.by_table else f"models.{self.name}_base_url"

    @property
    def default(self) -> str:
        """The default model, with the provider's name."""
        return f"{self.name}:{self.default_model}"

    @property
    def fast(self) -> str:
        return f"{self.name}:{self.fast_model}"

    def is_at(self, url: str | None) -> bool:
        """Return whether an address is the provider's own; None counts as its own.

        >>> OPENAI.is_at("https://eu.api.openai.com/v1"), OPENAI.is_at("http://127.0.0.1:80/v1")
        (True, False)
        """
        if not url:
            return True
        from urllib.parse import urlsplit

        try:
            host, own = urlsplit(url).hostname or "", urlsplit(self.address).hostname or ""
        except ValueError:  # not an address; the connection will report it
            return False
        return host == own or host.endswith(f".{own}")


OPENAI = Provider(
    name="openai",
    address="https://api.openai.com/v1",
    speaks="openai-responses",
    imitated="openai-chat",
    words={"openai-chat": "openai-chat", "openai-responses": "openai-responses"},
    families=("gpt-", "o1", "o3", "o4", "chatgpt-", "codex-"),
    default_model="gpt-5.2",
    fast_model="gpt-5-mini",
    prices="openai",
)
ANTHROPIC = Provider(
    name="anthropic",
    address="https://api.anthropic.com",
    speaks="anthropic",
    families=("claude-",),
    default_model="claude-sonnet-4-6",
    fast_model="claude-haiku-5-5",
    prices="anthropic",
)
PROVIDERS = (OPENAI, ANTHROPIC)
"""In the order in which they are checked if no model is configured."""


def _preset(name: str, address: str, key_env: str = "", prices: str | None = None) -> Provider:
    return Provider(
        name=name,
        address=address,
        speaks="openai-chat",
        default_model="",
        fast_model="",
        prices=prices,
        key_env=key_env or None,
        needs_key=bool(key_env),
        by_table=True,
        is_enabled=bool(key_env and address),
    )


PRESETS = (
    _preset("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "openrouter"),
    _preset("gemini", "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY", "google"),
    _preset("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", "groq"),
    _preset("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY", "mistral"),
    _preset("azure", "", "AZURE_OPENAI_API_KEY", "azure"),
    _preset("ollama", "http://127.0.0.1:11434/v1"),
    _preset("vllm", "http://127.0.0.1:8000/v1"),
    _preset("lmstudio", "http://127.0.0.1:1234/v1"),
)
"""Known services. A server on this machine needs its table in the user's file even if it needs no key: a
recipe must not choose a port of this machine, where another user may listen. Azure needs the address of a
resource."""

_key_variables = {row.key_variable for row in (*PROVIDERS, *PRESETS) if row.needs_key}


def configured(name: str, known: Iterable[Provider], table: Mapping[str, Any]) -> Provider:
    """Return the row of a table `[providers.NAME]`, made from the preset of that name if there is one.

    Raises ValueError if a value that the row needs is missing, or the name is taken.
    """
    taken = [word for row in known if not row.by_table for word in (row.name, *row.words)]
    if name in (*taken, "local"):
        raise ValueError(f"{name} is a built-in provider; choose another name")
    row = next((row for row in PRESETS if row.name == name), _preset(name, ""))
    address = table.get("base_url") or row.address
    if not address:
        raise ValueError("base_url is missing")
    models = tuple(table.get("models") or ())
    variable = table.get("api_key_env") or row.key_env
    return structs.replace(
        row,
        address=address,
        speaks=table.get("format") or row.speaks,
        prices=row.prices if row.is_at(address) or not row.address else None,
        key_env=variable,
        needs_key=variable is not None,
        is_enabled=True,
        models=models,
        default_model=models[0] if models else "",
        fast_model=models[0] if models else "",
        own_prices=table.get("prices") or {},
    )


def guard_keys(providers: Iterable[Provider]) -> None:
    """Keep the keys of these providers in this process, besides those of the table."""
    _key_variables.update(row.key_variable for row in providers if row.needs_key)


def key_variables() -> frozenset[str]:
    """Return the environment variables that no started program receives."""
    return frozenset(_key_variables)


class ModelName(Struct, frozen=True):
    """The parsed name of a model."""

    provider: Provider
    speaks: WireFormat
    name: str
    """The provider's own name for it."""


class Access(Struct, frozen=True, kw_only=True):
    """The keys and addresses of providers, by their names. Never printed, never stored."""

    providers: Sequence[Provider] = PROVIDERS
    keys: Mapping[str, str] = {}
    addresses: Mapping[str, str] = {}
    """Addresses of providers that are not at their own address."""
    own_prices: Mapping[str, Rate] = {}
    """The user's prices of models, by name, with or without the provider's name."""
    native_json: bool = False
    """Whether the server itself constrains answers to a schema, because small models cannot submit them by a
    tool call."""

    @classmethod
    def of(cls, config: Mapping[str, object], providers: Sequence[Provider]) -> Access:
        """Return the keys, addresses and prices from the configuration."""
        keys = {row.name: str(key) for row in providers if (key := config.get(row.key_setting))}
        at_settings = [row for row in providers if not row.by_table]
        addresses = {row.name: str(url) for row in at_settings if (url := config[row.address_setting])}
        priced = msgspec.json.decode(str(config["models.prices"] or "{}"), type=dict[str, Rate])
        for row in providers:
            priced |= {f"{row.name}:{name}": rate for name, rate in row.own_prices.items()}
        return cls(providers=providers, keys=keys, addresses=addresses, own_prices=priced)

    def __repr__(self) -> str:
        return "Access(…)"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must never be recorded."""
        return tuple(self.keys.values())

    def address(self, provider: Provider) -> str:
        return self.addresses.get(provider.name, provider.address)

    def is_imitated(self, provider: Provider) -> bool:
        """Return whether a compatible server is used in place of the provider."""
        elsewhere = not provider.is_at(self.addresses.get(provider.name))
        return provider.imitated is not None and elsewhere

    def is_usable(self, provider: Provider) -> bool:
        """Return whether the provider has a key, or an address that may need no key."""
        if provider.by_table:
            return provider.is_enabled and (provider.name in self.keys or not provider.needs_key)
        return provider.name in self.keys or (
            provider.imitated is not None and provider.name in self.addresses
        )

    def prices(self, provider: Provider) -> str | None:
        """Return the name in the price list for the provider's responses; None: unknown."""
        return provider.prices if provider.is_at(self.addresses.get(provider.name)) else None

    def own_rate(self, provider: Provider | None, *names: str) -> Rate | None:
        """Return the user's price of a model; `names` are its possible names, the provider's own last."""
        names = names if provider is None else (f"{provider.name}:{names[-1]}", *names)
        return next((self.own_prices[name] for name in names if name in self.own_prices), None)

    def rate_of(self, model: str | None) -> Rate | None:
        """Return the user's price of a model that another program calls."""
        name = model or ""
        return self.own_rate(None, name, name.rpartition(":")[2])

    def understand(self, model: str) -> ModelName | None:
        """Parse the name of a model; None if its provider is unknown.

        >>> Access().understand("claude-sonnet-4-6").provider.name
        'anthropic'
        """
        word, colon, rest = model.partition(":")
        for row in self.providers:
            if colon and rest and word in row.words:
                return ModelName(row, row.words[word], rest)
            if colon and rest and word == row.name:
                return ModelName(row, self._speaks(row), rest)
        by_name = (row for row in self.providers if model in row.models or model.startswith(row.families))
        found = next(by_name, None) or next(filter(self.is_imitated, self.providers), None)
        return None if found is None else ModelName(found, self._speaks(found), model)

    def words(self) -> list[str]:
        """Return all words that are allowed before the colon."""
        return [word for row in self.providers for word in (row.name, *row.words)]

    def why_unusable(self, provider: Provider, model: str) -> tuple[str, str]:
        """Return a message and a hint about a provider that is not usable."""
        table = f"[providers.{provider.name}]"
        if provider.by_table and not provider.address:
            hint = f"add {table} with base_url to config.toml in your own folder (~/.fanfold)"
            return f'"{model}" needs the address of your {provider.name} resource', hint
        if not provider.is_enabled:
            hint = f"add the line {table} to config.toml in your own folder (~/.fanfold)"
            return f'"{model}" needs a server that is not enabled: {provider.address}', hint
        variable = provider.key_variable
        return f'"{model}" needs {variable}, which is not set', f"set {variable} in the environment"

    def _speaks(self, provider: Provider) -> WireFormat:
        if provider.imitated is not None and self.is_imitated(provider):
            return provider.imitated
        return provider.speaks
