"""The providers of models: one row each, and what is configured of them on this machine.

Everything that knows providers reads it here: the settings and their environment variables, which model is
chosen when nobody names one, how a model's name is understood, prices, what must never be handed on.

Rules
* A provider is one row. What it speaks is one of the wire formats in `models/wire_formats`; only a provider
  that speaks otherwise needs more than its row.
* A model is `provider:name`, or `format:name` where a row gives words that insist on a wire format. A bare
  name is understood when it begins like the models of one provider, or when a server of somebody else's is
  configured, which may call its models anything.
* Nothing here imports an SDK or asks anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

WireFormat: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic"]


class Provider(Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    """What stands before the colon in the names of its models."""
    address: str
    """Where it is itself."""
    speaks: WireFormat
    default_model: str
    fast_model: str
    """For summaries and other small work."""
    families: tuple[str, ...] = ()
    """How the names of its models begin."""
    imitated: WireFormat | None = None
    """What servers of other people speak that can be used in its place: their models have any name, and they
    may want no key. None: nobody is expected to speak like it."""
    words: Mapping[str, WireFormat] = {}
    """Other words before the colon, which insist on a wire format."""
    prices: str | None = None
    """Its name in the list of prices; None: what it charges is not known."""

    @property
    def key_variable(self) -> str:
        """The environment variable that holds its key."""
        return f"{self.name.upper()}_API_KEY"

    @property
    def address_variable(self) -> str:
        """The environment variable that names another address."""
        return f"{self.name.upper()}_BASE_URL"

    @property
    def key_setting(self) -> str:
        return f"models.{self.name}_api_key"

    @property
    def address_setting(self) -> str:
        return f"models.{self.name}_base_url"

    @property
    def default(self) -> str:
        """The model that is asked when nobody names one, with the provider's word."""
        return f"{self.name}:{self.default_model}"

    @property
    def fast(self) -> str:
        return f"{self.name}:{self.fast_model}"

    def is_at(self, url: str | None) -> bool:
        """Whether an address is the provider's own; None is.

        >>> OPENAI.is_at("https://eu.api.openai.com/v1"), OPENAI.is_at("http://127.0.0.1:80/v1")
        (True, False)
        """
        if not url:
            return True
        from urllib.parse import urlsplit

        try:
            host, own = urlsplit(url).hostname or "", urlsplit(self.address).hostname or ""
        except ValueError:  # no address at all: whoever connects will say so
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
"""In the order in which they are looked for when nobody names a model."""

_key_variables = {row.key_variable for row in PROVIDERS}


def guard_keys(providers: Iterable[Provider]) -> None:
    """Keep the keys of these providers in this process, besides those of the table."""
    _key_variables.update(row.key_variable for row in providers)


def key_variables() -> frozenset[str]:
    """The environment variables whose values no program that we start may have."""
    return frozenset(_key_variables)


class ModelName(Struct, frozen=True):
    """The name of a model, understood."""

    provider: Provider
    speaks: WireFormat
    name: str
    """As the provider calls it."""


class Access(Struct, frozen=True, kw_only=True):
    """The keys and addresses of providers, by their names. Never printed, never stored."""

    providers: Sequence[Provider] = PROVIDERS
    keys: Mapping[str, str] = {}
    addresses: Mapping[str, str] = {}
    """Where providers are reached that are not at their own address."""
    native_json: bool = False
    """The server constrains answers to a schema itself; small models cannot hand them in by a tool call."""

    @classmethod
    def of(cls, config: Mapping[str, object], providers: Sequence[Provider]) -> Access:
        """What the configuration says."""
        keys = {row.name: str(key) for row in providers if (key := config[row.key_setting])}
        addresses = {row.name: str(url) for row in providers if (url := config[row.address_setting])}
        return cls(providers=providers, keys=keys, addresses=addresses)

    def __repr__(self) -> str:
        return "Access(…)"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must never be recorded."""
        return tuple(self.keys.values())

    def address(self, provider: Provider) -> str:
        return self.addresses.get(provider.name, provider.address)

    def is_imitated(self, provider: Provider) -> bool:
        """Whether a server of somebody else's is asked in the provider's place."""
        elsewhere = not provider.is_at(self.addresses.get(provider.name))
        return provider.imitated is not None and elsewhere

    def is_usable(self, provider: Provider) -> bool:
        """Whether there is all that the provider wants: a key, or an address where none may be wanted."""
        return provider.name in self.keys or (
            provider.imitated is not None and provider.name in self.addresses
        )

    def prices(self, provider: Provider) -> str | None:
        """The name in the list of prices that holds for what the provider answers; None: nobody knows."""
        return provider.prices if provider.is_at(self.addresses.get(provider.name)) else None

    def understand(self, model: str) -> ModelName | None:
        """What the name of a model means; None when it names no provider known here.

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
        """What may stand before the colon."""
        return [word for row in self.providers for word in (row.name, *row.words)]

    def _speaks(self, provider: Provider) -> WireFormat:
        if provider.imitated is not None and self.is_imitated(provider):
            return provider.imitated
        return provider.speaks
