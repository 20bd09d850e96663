"""The MCP servers that a role names, and how each of them is reached.

Role files are written for several agents, with different spellings of the same settings. This module reads
every common spelling and returns one form: `Server`.

Rules
* An unusable server is refused with its name and a hint. Nothing is guessed, because a role that silently
  lacks its tools would do something else than its author meant.
* A server gets those of our environment variables that the role names (`env_vars`, `bearer_token_env_var`,
  `env_http_headers`, `${NAME}`, `${NAME:-otherwise}`). It never gets a provider's key, under any name. A
  server of a project gets no variable that looks like a secret, unless the user's own configuration names it.
* The description of a server for the user's consent (`declare_server`) comes from the same code that connects
  to it.
* A message names settings and variables, never their values.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from fanfold.agents.backend import SessionFailed
from fanfold.agents.providers import key_variables
from fanfold.agents.redaction import Redactor, holds_secret, looks_secret
from fanfold.agents.role import Role
from fanfold.agents.tool_names import UNSAFE, ToolSpec, is_wanted, spellings
from fanfold.kernel.events import Failure
from fanfold.kernel.plan import JSON
from fanfold.language.json_text import schema_problem
from fanfold.language.terminal import shorten, shorten_middle

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock, Tool

STARTUP_TIMEOUT_S = 10.0
TOOL_TIMEOUT_S = 60.0
MAX_TIMEOUT_S = 3_600.0
MAX_SERVERS = 32

_VARIABLE = r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}"
_HTTP_TYPES = frozenset({"http", "streamable-http", "streamable_http", "streamablehttp", "remote", "sse"})
_TYPES = _HTTP_TYPES | {"stdio", "local"}
_URLS = ("url", "httpUrl", "serverUrl")
_ONLY_NAMED = "only its name is given here"
_SAY_HOW = "write its command or its url into the role's file"


class Server(Struct, frozen=True, kw_only=True):
    """One server, ready for a connection: a program (`argv`) or an address (`url`)."""

    name: str
    argv: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    sse: bool = False
    """Whether it uses the older HTTP transport: one event stream for all responses."""
    startup_timeout_s: float = STARTUP_TIMEOUT_S
    tool_timeout_s: float = TOOL_TIMEOUT_S
    enabled_tools: frozenset[str] | None = None
    disabled_tools: frozenset[str] = frozenset()

    def has_use_for(self, tool: str) -> bool:
        """Return whether the role's settings of this server allow the tool."""
        chosen = self.enabled_tools is None or tool in self.enabled_tools
        return chosen and tool not in self.disabled_tools

    def secrets(self) -> list[str]:
        """Return the secrets that the server receives."""
        named = [text for name, text in self.environment.items() if looks_secret(name) or holds_secret(text)]
        return [*named, *(word for value in self.headers.values() for word in value.split())]

    def without_secrets(self, text: str) -> str:
        """Return a server's text without secrets, because it may repeat the ones it received."""
        words = [word for value in self.headers.values() for word in value.split()]  # `Bearer token`
        return Redactor([*self.environment.values(), *words, urlsplit(self.url).query]).text(text)


def unavailable(name: str, why: str, hint: str = "", *, retryable: bool = False) -> SessionFailed:
    """Return the failure of a session with an unusable server."""
    message = f'the MCP server "{name}" cannot be used: {why}'
    return SessionFailed(Failure("tool", "mcp.unavailable", message, hint, retryable))


def servers_of(value: object) -> dict[str, dict[str, Any]]:
    """Return the servers of a role by name, from a map, a list of names or maps, or nothing.

    >>> servers_of(["github", {"docs": {"url": "https://docs.example/mcp"}}])
    {'github': {}, 'docs': {'url': 'https://docs.example/mcp'}}
    """
    if isinstance(value, Mapping):
        return {str(name): _settings(settings) for name, settings in value.items()}
    found: dict[str, dict[str, Any]] = {}
    for item in value if isinstance(value, list | tuple) else [value] if value else []:
        if isinstance(item, Mapping) and isinstance(item.get("name"), str):
            found[item["name"]] = {key: one for key, one in item.items() if key != "name"}
        elif isinstance(item, Mapping):
            found |= servers_of(item)
        else:
            found[str(item)] = {}
    return found


def wanted_servers(role: Role, environment: Mapping[str, str]) -> list[Server]:
    """Return the servers with tools that a session in this role can use; raises `SessionFailed`."""
    servers = servers_of(role.mcp_servers)
    if len(servers) > MAX_SERVERS:
        name = list(servers)[MAX_SERVERS]
        raise unavailable(name, f"a role may name {MAX_SERVERS} servers", "take some out of the role")
    wanted = []
    for name, settings in servers.items():
        server = read_server(name, settings, environment) if is_wanted(name, role.tools) else None
        if server is None:
            continue
        if server.url and not role.network:
            why = "it is reached over the network, which this session may not use"
            raise unavailable(name, why, "set `network = true` in the role")
        wanted.append(server)
    return wanted


def read_server(name: str, settings: Mapping[str, Any], environment: Mapping[str, str]) -> Server | None:
    """Return the server, or None if it is disabled; raise `SessionFailed` if it is unusable."""
    if _is(settings.get("enabled"), "false") or _is(settings.get("disabled"), "true"):
        return None
    read = _ServerReader(name, settings, environment)
    kind = read.kind()
    common: dict[str, Any] = {
        "name": name,
        "startup_timeout_s": read.seconds("startup_timeout", STARTUP_TIMEOUT_S),
        "tool_timeout_s": read.seconds("tool_timeout", TOOL_TIMEOUT_S),
        "enabled_tools": read.names("enabled_tools"),
        "disabled_tools": read.names("disabled_tools") or frozenset(),
    }
    if kind in _HTTP_TYPES:
        return Server(url=read.url(), headers=read.headers(), sse=kind == "sse", **common)
    return Server(argv=read.argv(), environment=read.environment(), **common)


def declare_server(name: str, settings: Mapping[str, Any]) -> str:
    """Return a description of a server and its environment; variables are shown as `${NAME}`.

    >>> declare_server("x", {"command": "npx", "args": ["-y", "x"], "env_vars": ["LANG"], "url": "https://a.b"})
    'npx -y x, with LANG=${LANG}'
    """
    try:
        server = read_server(name, settings, _Unread())
    except SessionFailed as failed:
        return failed.failure.message
    if server is None:
        return "switched off"
    sent = server.environment or server.headers
    shown = ", ".join(f"{key}{'=' if server.argv else ': '}{value}" for key, value in sorted(sent.items()))
    what = shlex.join(server.argv) if server.argv else server.url
    return f"{what}, with {shown}" if shown else what


class _Unread(Mapping[str, str]):
    """An environment in which the value of every variable is its own placeholder."""

    def __getitem__(self, name: str) -> str:
        return f"${{{name}}}"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class LentEnvironment(dict[str, str]):
    """Our environment for servers of a project, without variables that look secret and are not allowed."""

    def __init__(self, environment: Mapping[str, str], allowed: frozenset[str]) -> None:
        kept = {
            name: text
            for name, text in environment.items()
            if name in allowed or not (looks_secret(name) or holds_secret(text))
        }
        super().__init__(kept)
        self.withheld = environment.keys() - kept.keys()


def _is(value: object, word: str) -> bool:
    """Return whether a setting is a boolean or its name, because front matter has only texts."""
    return isinstance(value, bool | str) and str(value).lower() == word


def _settings(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {str(key): one for key, one in value.items()}
    if isinstance(value, str) and value:
        return {"url" if "://" in value else "command": value}
    if isinstance(value, list):
        return {"command": value}
    return {"enabled": False} if value is False else {}


class _ServerReader:
    """Reads the settings of one server."""

    def __init__(self, name: str, settings: Mapping[str, Any], ours: Mapping[str, str]) -> None:
        self._name = name
        self._settings = settings
        self._ours = ours
        self._never = key_variables()
        self._keys = [ours[key] for key in self._never if ours.get(key)]

    def kind(self) -> str:
        """Return how the server is reached, by its type or, without one, by its other settings."""
        given = next((self._settings[key] for key in ("type", "transport") if key in self._settings), None)
        if given is None:
            if "command" in self._settings:
                return "stdio"
            if any(key in self._settings for key in _URLS):
                return "http"
            raise self._refused(_ONLY_NAMED, _SAY_HOW)
        kind = str(given).lower()
        if kind not in _TYPES:
            raise self._refused(f'"{kind}" is no type known here', "types are stdio, http and sse")
        return kind

    def argv(self) -> tuple[str, ...]:
        command, args = self._settings.get("command"), self._settings.get("args")
        if "cwd" in self._settings and str(self._settings["cwd"]) not in ("", "."):
            hint = "omit cwd, and write paths relative to the workspace"
            raise self._refused('"cwd" is not supported, servers start in the workspace', hint)
        words = [command] if isinstance(command, str) else command
        if args is None and isinstance(command, str) and not os.path.exists(command):
            words = self._split(command)  # authors write `npx -y some-server` as one text
        more = self._split(args) if isinstance(args, str) else args or []
        if not isinstance(words, list) or not isinstance(more, list) or not words or not words[0]:
            raise self._refused("it has no command", _SAY_HOW)
        return tuple(self._text("args", word) for word in [*words, *more])

    def environment(self) -> dict[str, str]:
        given = {**self._map("environment"), **self._map("env")}
        listed = self._settings.get("env_vars") or []
        names = [str(one.get("name") if isinstance(one, Mapping) else one) for one in listed]
        # Such a list has the variables to pass on. They need not be set.
        known = (name for name in names if self._ours.get(name) or self._is_kept(name))
        found = {name: self._variable(name) for name in known}
        found |= {name: self._text(f"env.{name}", text) for name, text in given.items()}
        for name in sorted(self._never):
            if name in found:
                raise self._refused(f"{name} is not handed to servers", "give the server a key of its own")
        return found

    def url(self) -> str:
        given = next((self._settings[key] for key in _URLS if self._settings.get(key)), "")
        url = self._text("url", given)
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname or "", parts.port
        except ValueError:
            raise self._refused("its url is no address", _SAY_HOW) from None
        if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
            raise self._refused("its url is no http or https address", _SAY_HOW)
        if parts.username is not None:
            raise self._refused("its url holds a user name", "use headers, or bearer_token_env_var")
        if parts.scheme == "http" and not _is_this_machine(host):
            raise self._refused("what is sent to a plain http address can be read on the way", "use https")
        return url

    def headers(self) -> dict[str, str]:
        found = {
            name: self._text(f"headers.{name}", text)
            for name, text in {**self._map("headers"), **self._map("http_headers")}.items()
        }
        found |= {name: self._variable(str(key)) for name, key in self._map("env_http_headers").items()}
        token = self._settings.get("bearer_token_env_var")
        if token:
            found["Authorization"] = f"Bearer {self._variable(str(token))}"
        for name, text in found.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not re.fullmatch(
                r"[\t\x20-\x7e]*", text
            ):
                raise self._refused(f'"{name}" cannot be sent as a header', "headers are one line of ASCII")
        return found

    def seconds(self, key: str, otherwise: float) -> float:
        """Return a time from `KEY_sec`, or from `KEY_ms` in older files."""
        for name, scale in ((f"{key}_sec", 1.0), (f"{key}_ms", 0.001)):
            given = self._settings.get(name)
            if given is None:
                continue
            if not re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", str(given)) or float(given) == 0:
                raise self._refused(f'"{name}" must be a number above 0', "it is a time")
            return min(float(given) * scale, MAX_TIMEOUT_S)
        return otherwise

    def names(self, key: str) -> frozenset[str] | None:
        given = self._settings.get(key)
        if given is None:
            return None
        return frozenset(map(str, given if isinstance(given, list | tuple) else [given]))

    def _map(self, key: str) -> dict[str, object]:
        """Return a map of texts; some files have a list of `NAME=text` instead."""
        given = self._settings.get(key) or {}
        if isinstance(given, list) and all(isinstance(entry, str) for entry in given):
            given = dict(entry.partition("=")[::2] for entry in given)
        if not isinstance(given, Mapping):
            raise self._refused(f'"{key}" must be a map of names and texts', "write NAME: text")
        return {str(name): text for name, text in given.items()}

    def _split(self, line: str) -> list[str]:
        try:
            return shlex.split(line)
        except ValueError as error:
            raise self._refused(f"its command cannot be split into words: {error}", _SAY_HOW) from None

    def _text(self, key: str, value: object) -> str:
        """Return a value as text, with its variables filled in."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if not isinstance(value, str | int | float):
            raise self._refused(f'"{key}" must be text', "write it as one text")
        text = re.sub(_VARIABLE, lambda found: self._variable(found[1], found[2]), str(value))
        self._keep_keys(key, text)
        return text

    def _variable(self, name: str, otherwise: str | None = None) -> str:
        if name in self._never:
            raise self._refused(f"{name} is not handed to servers", "give the server a key of its own")
        if self._is_kept(name):
            hint = f'allow it in your own configuration: [environment] allow = ["{name}"]'
            raise self._refused(f"{name} looks like a secret, and the server came with the project", hint)
        text = self._ours.get(name) or otherwise
        if text is None:
            raise self._refused(f"the environment variable {name} is not set", f"set {name} and run again")
        self._keep_keys(name, text)
        return text

    def _is_kept(self, name: str) -> bool:
        return name in self._never or name in getattr(self._ours, "withheld", ())

    def _keep_keys(self, key: str, text: str) -> None:
        if any(secret in text for secret in self._keys):
            why = f'"{key}" holds the key of a model provider'
            raise self._refused(why, "give the server a key of its own")

    def _refused(self, why: str, hint: str) -> SessionFailed:
        return unavailable(self._name, why, hint)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# -----------------------------------------------------------------------------------------------------------
# The tools of MCP servers, prepared for a model: names, descriptions, schemas and results.
#
# Rules
# * A tool is offered as `mcp__server__tool`, in the characters and length that every provider accepts. Two
#   tools never have the same name, and the same servers always produce the same names. A session that
#   continues after a crash must find the tools it called.
# * A list of tools narrows the offer: it has `mcp__server__tool`, or `mcp__server` for all tools of a server.
#   A read-only session is offered the tools that the server itself declares read-only.
# * Texts of a server are limited before a model pays for them. A schema that cannot be checked here, or that
#   refers to other documents, is replaced by one that accepts any object. The server checks its arguments
#   anyway.

MAX_TOOLS = 128
MAX_NAME_CHARS = 64
MAX_DESCRIPTION_CHARS = 1_024
MAX_SCHEMA_CHARS = 16_000
MAX_OFFER_CHARS = 256_000
MAX_RESULT_CHARS = 16_000
MIN_TEXT_CHARS = 1_000
OPEN: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}
_NOT_ON_TOP = ("$schema", "$id", "anyOf", "oneOf", "allOf", "not", "enum", "if", "then", "else")
"""Providers refuse some of these at the top of a schema, and they give a model little information there."""
_UNPRINTABLE = r"[^\n\t\x20-\x7e\xa0-\U0010ffff]"


class Offer(Struct, frozen=True):
    """A tool of a server as the model sees it."""

    spec: ToolSpec
    server: str
    tool: str


def choose_offers(
    served: Mapping[str, tuple[Server, Sequence[Tool]]], listed: Sequence[str] | None, read_only: bool
) -> list[Offer]:
    """Return the tools to offer, in the order of the servers; raise `SessionFailed` if they are too many."""
    offers: list[Offer] = []
    taken: set[str] = set()
    for server, tools in served.values():
        chosen: list[Offer] = []
        for tool in tools:
            name = _unique_name(server.name, tool.name, taken)
            only_reads = tool.annotations is not None and tool.annotations.read_only_hint is True
            is_chosen = server.has_use_for(tool.name) and _is_listed(server.name, tool.name, name, listed)
            if not is_chosen or (read_only and not only_reads):
                continue
            title = tool.title or (tool.annotations.title if tool.annotations else None)
            text = re.sub(_UNPRINTABLE, "", tool.description or title or f"{tool.name} of {server.name}")
            description = shorten(text.strip(), MAX_DESCRIPTION_CHARS)
            spec = ToolSpec(name, description, clean_schema(tool.input_schema), mutates=not only_reads)
            chosen.append(Offer(spec, server.name, tool.name))
        chars = sum(len(str(offer.spec.schema)) + len(offer.spec.description) for offer in chosen)
        if len(chosen) > MAX_TOOLS or chars > MAX_OFFER_CHARS:
            count = f"its {len(chosen)} tools are more than a model can be offered"
            why = f"{count} (at most {MAX_TOOLS} of a server)"
            hint = "name those you need in the role's tools, or in the server's enabled_tools"
            raise unavailable(server.name, why, hint)
        offers += chosen
    return offers


def _is_listed(server: str, tool: str, name: str, listed: Sequence[str] | None) -> bool:
    if listed is None:
        return True
    whole = {f"{spelling}{end}" for spelling in spellings(f"mcp__{server}") for end in ("", "__*")}
    return any(one in whole or one == name or one in spellings(f"mcp__{server}__{tool}") for one in listed)


def _unique_name(server: str, tool: str, taken: set[str]) -> str:
    """Return the name of a tool for a model; a long or duplicate name gets a hash of the real names."""
    name = UNSAFE.sub("_", f"mcp__{server}__{tool}")
    if len(name) > MAX_NAME_CHARS or name in taken:
        mark = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:8]
        name = f"{name[: MAX_NAME_CHARS - 9]}_{mark}"
    taken.add(name)
    return name


def clean_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a server's schema if it can be used, or one that accepts any object."""
    try:
        data = msgspec.json.encode(schema)
        if len(data) > MAX_SCHEMA_CHARS:
            return OPEN
        copy: dict[str, Any] = msgspec.json.decode(data)  # drops everything that JSON cannot represent
    except (ValueError, TypeError, RecursionError):
        return OPEN
    cleaned = {key: value for key, value in copy.items() if key not in _NOT_ON_TOP}
    cleaned["type"] = "object"
    if not isinstance(cleaned.setdefault("properties", {}), dict):
        return OPEN
    return cleaned if schema_problem(cleaned) is None else OPEN


def result_value(result: CallToolResult) -> dict[str, JSON]:
    """Return a result for a model: `text`, and `structured` if the server returns a value."""
    text = "\n".join(_block_text(block) for block in result.content)
    if result.structured_content is None:
        return {"text": shorten_middle(text, MAX_RESULT_CHARS)}
    encoded = msgspec.json.encode(result.structured_content).decode()
    value: JSON = msgspec.json.decode(encoded)  # drops everything that JSON cannot represent
    if len(encoded) > MAX_RESULT_CHARS:
        value = shorten_middle(encoded, MAX_RESULT_CHARS)
    if not text or _says(text, result.structured_content):
        return {"structured": value}
    room = max(MIN_TEXT_CHARS, MAX_RESULT_CHARS - len(encoded))
    return {"structured": value, "text": shorten_middle(text, room)}


def _block_text(block: ContentBlock) -> str:
    from mcp.types import AudioContent, ImageContent, ResourceLink, TextContent, TextResourceContents

    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}, {block.mime_type}, about {_size(block.data)} bytes, not shown]"
        case ResourceLink():
            return f"[resource {block.name}: {block.uri}]"
        case _ if isinstance(block.resource, TextResourceContents):
            return f"[resource {block.resource.uri}]\n{block.resource.text}"
        case _:
            return f"[resource {block.resource.uri}, about {_size(block.resource.blob)} bytes, not shown]"


def _size(base64: str) -> str:
    return f"{len(base64) * 3 // 4:,}"


def _says(text: str, value: JSON) -> bool:
    """Return whether a text is only the encoded value, which servers add for older clients."""
    try:
        return bool(msgspec.json.decode(text) == value)
    except (msgspec.DecodeError, RecursionError):
        return False
