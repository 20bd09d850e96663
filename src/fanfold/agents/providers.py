"""The providers of models: one row each, and their configuration on this machine.

All code that needs provider data reads it here: the settings and their environment variables, the default
model, the parsing of model names, prices, and the keys that must not be passed on.

Rules
* A provider is one row. It uses one of the wire formats in `models/connections`. Only a provider with another
  format needs more than its row.
* A model is `provider:name`, or `format:name` if the row has words that select a wire format. A bare name is
  accepted if it starts like the models of one provider. It is also accepted if a compatible server is
  configured, because such a server can use any model names.
* Nothing here imports an SDK or sends a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

WireFormat: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic"]


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

    @property
    def key_variable(self) -> str:
        """The environment variable with its key."""
        return f"{self.name.upper()}_API_KEY"

    @property
    def address_variable(self) -> str:
        """The environment variable with another address."""
        return f"{self.name.upper()}_BASE_URL"

    @property
    def key_setting(self) -> str:
        return f"models.{self.name}_api_key"

    @property
    def address_setting(self) -> str:
        return f"models.{self.name}_base_url"

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

_key_variables = {row.key_variable for row in PROVIDERS}


def guard_keys(providers: Iterable[Provider]) -> None:
    """Keep the keys of these providers in this process, besides those of the table."""
    _key_variables.update(row.key_variable for row in providers)


def key_variables() -> frozenset[str]:
    """Return the environment variables that no started program receives."""
    return frozenset(_key_variables)


class Rate(Struct, frozen=True):
    """The price of one token of a model in micro-dollars, or of a million tokens in dollars."""

    input: float
    output: float
    cached: float


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
        keys = {row.name: str(key) for row in providers if (key := config[row.key_setting])}
        addresses = {row.name: str(url) for row in providers if (url := config[row.address_setting])}
        priced = msgspec.json.decode(str(config["models.prices"] or "{}"), type=dict[str, Rate])
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
        return provider.name in self.keys or (
            provider.imitated is not None and provider.name in self.addresses
        )

    def prices(self, provider: Provider) -> str | None:
        """Return the name in the price list for the provider's responses; None: unknown."""
        return provider.prices if provider.is_at(self.addresses.get(provider.name)) else None

    def own_rate(self, *names: str) -> Rate | None:
        """Return the user's price of a model; `names` are its possible names."""
        return next((self.own_prices[name] for name in names if name in self.own_prices), None)

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
        by_name = (row for row in self.providers if model.startswith(row.families))
        found = next(by_name, None) or next(filter(self.is_imitated, self.providers), None)
        return None if found is None else ModelName(found, self._speaks(found), model)

    def words(self) -> list[str]:
        """Return all words that are allowed before the colon."""
        return [word for row in self.providers for word in (row.name, *row.words)]

    def _speaks(self, provider: Provider) -> WireFormat:
        if provider.imitated is not None and self.is_imitated(provider):
            return provider.imitated
        return provider.speaks
