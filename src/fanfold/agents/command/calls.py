"""The command line of one call of a program, with its files and variables."""

from __future__ import annotations

import re
import shutil
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, structs

from fanfold.agents.backend import FURNISHED, SessionFailed, SessionRequest
from fanfold.agents.command.profile import LOGIN, OF_ROLES, Profile
from fanfold.agents.command.profile_files import ALL, KeptTools, read_own
from fanfold.agents.command.profile_files import FILE as TOOLS
from fanfold.agents.entries import Entry, Response, UserInput
from fanfold.agents.models.messages import Contract
from fanfold.agents.tool_names import spellings
from fanfold.agents.tools.mcp_servers import Server, unavailable
from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.plan import JSON
from fanfold.language.json_text import SettingsUnreadableError, entry_at, remove_entry
from fanfold.language.terminal import shorten_middle
from fanfold.language.toml_text import remove_table
from fanfold.workspace.children import (
    forget_lent,
    is_lent_by_another,
    note_lent,
    remove_beneath,
    write_beneath,
)

if TYPE_CHECKING:
    from acp.schema import HttpMcpServer, McpServerStdio, SseMcpServer

# -----------------------------------------------------------------------------------------------------------
# MCP servers of a role for an agent that is a program: the agent starts them inside its sandbox.
#
# Rules
# * The profile defines how an agent receives servers (`servers`). An agent with the Agent Client Protocol
#   receives them with its session. An agent that cannot receive them is not started, because it could not do
#   what its role requires.
# * A role can choose among the tools of a server. An agent that cannot be limited to the choice does not get
#   the server.
# * The environment of a server follows the rules of `tools.mcp_servers`. It is in a file that is removed when
#   the agent ends, or in a variable of the agent. It is never in a command line, because every user of the
#   machine can read that.

FILE = "servers.json"
CONTENT = "OPENCODE_CONFIG_CONTENT"
PLACEHOLDER = "{servers_file}"


class ServerSetup(Struct, frozen=True, kw_only=True):
    """How an agent receives its servers: a file, words of its call, variables, or its session."""

    servers: tuple[Server, ...] = ()
    by_session: bool = False
    """Whether they are sent with the session."""
    file: bytes = b""
    allowed: str = ""
    """The names of their tools, as in the list of allowed tools in Claude Code."""
    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}


NONE = ServerSetup()


def hand(profile: Profile, request: SessionRequest, servers: Sequence[Server]) -> ServerSetup:
    """Return the server setup of an agent; raise `SessionFailed` if it cannot receive servers."""
    if not servers:
        return NONE
    way: str = profile.servers
    if profile.acp and way != "none":
        way = "session"
    elif profile.name in OF_ROLES and any(PLACEHOLDER in word for word in request.role.command):
        way = "file"
    chosen = {server.name: _chosen(server, request.role.tools) for server in servers}
    for server in servers if way not in ("codex", "claude") else ():
        if chosen[server.name] is not None or server.disabled_tools:
            why = f"{profile.title or profile.name} cannot be limited to some of its tools"
            raise unavailable(server.name, why, "let the role have all tools of the server")
    setup = ServerSetup(servers=tuple(servers))
    match way:
        case "session":
            return structs.replace(setup, by_session=True)
        case "claude" | "file":
            allowed: list[str] = []
            for name, tools in chosen.items():
                whole = [f"mcp__{name}"]
                allowed += whole if tools is None else [f"mcp__{name}__{tool}" for tool in sorted(tools)]
            # The form of `.mcp.json`, which several agents accept.
            entries = {
                server.name: {"command": server.argv[0], "args": server.argv[1:], "env": server.environment}
                if server.argv
                else {"type": "sse" if server.sse else "http", "url": server.url, "headers": server.headers}
                for server in servers
            }
            content = msgspec.json.encode({"mcpServers": entries})
            return structs.replace(setup, file=content, allowed=",".join(allowed))
        case "codex":
            return _codex(servers, chosen)
        case "opencode":
            settings = {
                server.name: {"type": "local", "command": server.argv, "environment": server.environment}
                if server.argv
                else {"type": "remote", "url": server.url, "headers": server.headers}
                for server in servers
            }
            enabled = {name: {**setting, "enabled": True} for name, setting in settings.items()}
            text = msgspec.json.encode({"mcp": enabled}).decode()
            return structs.replace(setup, variables={CONTENT: text})
    raise _not_given(profile, servers[0])


def _not_given(profile: Profile, server: Server) -> SessionFailed:
    why = f"{profile.title or profile.name} cannot receive MCP servers"
    hint = f'write backend = "{profile.name}-acp" into the role: it can receive them'
    if profile.servers == "none":
        hint = "use another back end for this role"
    elif profile.name in OF_ROLES:
        hint = "put {servers_file} into the role's command, a file in the form of .mcp.json"
    return unavailable(server.name, why, hint)


def _chosen(server: Server, listed: Sequence[str] | None) -> frozenset[str] | None:
    """Return the tools of a server that a role names; None for all."""
    by_role: frozenset[str] | None = None
    if listed is not None:
        names = spellings(f"mcp__{server.name}")
        heads = [f"{name}__" for name in names]
        if not {*names, *(f"{head}*" for head in heads)} & set(listed):
            tools = ((tool, head) for tool in listed for head in heads if tool.startswith(head))
            by_role = frozenset(tool.removeprefix(head) for tool, head in tools)
    if server.enabled_tools is None or by_role is None:
        return by_role if server.enabled_tools is None else server.enabled_tools
    return by_role & server.enabled_tools


def _codex(servers: Sequence[Server], chosen: Mapping[str, frozenset[str] | None]) -> ServerSetup:
    words: list[str] = []
    variables: dict[str, str] = {}
    for server in servers:
        if re.fullmatch(r"[A-Za-z0-9_-]+", server.name) is None:
            raise unavailable(server.name, "Codex takes no such name", "use letters, digits, - and _")
        settings: dict[str, Any]
        if server.argv:
            settings = {
                "command": server.argv[0],
                "args": list(server.argv[1:]),
                "env_vars": sorted(server.environment),
            }
            given = dict(server.environment)
        else:
            given = {_variable(server.name, header): text for header, text in server.headers.items()}
            names = {header: _variable(server.name, header) for header in server.headers}
            settings = {"url": server.url, "env_http_headers": names}
        for name, text in given.items():
            if variables.setdefault(name, text) != text:
                why = f"two servers need different values of {name}, which Codex does not support"
                raise unavailable(server.name, why, "call one of the variables otherwise")
        tools = chosen[server.name]
        settings |= {} if tools is None else {"enabled_tools": sorted(tools)}
        settings |= {"disabled_tools": sorted(server.disabled_tools)} if server.disabled_tools else {}
        # Otherwise the first request to the model does not wait for the server.
        settings["required"] = True
        for key, value in settings.items():
            words += ["-c", f"mcp_servers.{server.name}.{key}={_toml(value)}"]
    return ServerSetup(servers=tuple(servers), words=tuple(words), variables=variables)


def _variable(server: str, header: str) -> str:
    return re.sub(r"[^A-Z0-9_]", "_", f"FANFOLD_MCP_{server}_{header}".upper())


def _toml(value: Any) -> str:
    """Return a value as TOML; strings are written as in JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return msgspec.json.encode(value).decode()


def for_session(servers: Sequence[Server], http: bool, sse: bool) -> list[Any]:
    """Return the servers in the form of an Agent Client Protocol session."""
    from acp.schema import EnvVariable, HttpHeader, HttpMcpServer, McpServerStdio, SseMcpServer

    found: list[HttpMcpServer | SseMcpServer | McpServerStdio] = []
    for server in servers:
        if server.argv:
            variables = [EnvVariable(name=name, value=text) for name, text in server.environment.items()]
            found.append(
                McpServerStdio(
                    name=server.name, command=server.argv[0], args=list(server.argv[1:]), env=variables
                )
            )
            continue
        if not (sse if server.sse else http):
            raise unavailable(server.name, "the agent says that it takes no servers at addresses")
        headers = [HttpHeader(name=name, value=text) for name, text in server.headers.items()]
        if server.sse:
            found.append(SseMcpServer(type="sse", name=server.name, url=server.url, headers=headers))
        else:
            found.append(HttpMcpServer(type="http", name=server.name, url=server.url, headers=headers))
    return found


ASIDE = ".fanfold"
"""The folder in a session's home for the files of a call."""
MAX_RETOLD_CHARS = 20_000
TYPED = (
    "Your last message must be the answer and nothing else: one JSON value, without a fence around it, that"
    " fits this schema:\n"
)


class ProgramCall(Struct, frozen=True, kw_only=True):
    """One call: its words, its standard input, and files by name that must exist first."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    files: Mapping[str, bytes] = {}
    lent: Mapping[str, bytes] = {}
    """Files by their path in the home, which may contain secrets."""
    servers: tuple[Server, ...] = ()
    """For an agent that receives them with its session."""
    meta: Mapping[str, JSON] = {}


class Turn(Struct, frozen=True, kw_only=True):
    """The task of one call."""

    prompt: str
    conversation: str = ""
    """The program's id of the conversation; Fanfold chooses it if the program accepts one."""
    resumes: bool = False
    folder: str = ""
    """The workspace folder as the program sees it."""
    max_micro_usd: int | None = None
    """The spending limit."""


def make_call(
    profile: Profile,
    request: SessionRequest,
    turn: Turn,
    home: Path,
    handed: ServerSetup = NONE,
    kept: KeptTools = ALL,
) -> ProgramCall:
    """Return the call of a program for one turn; `home` is its home as the program sees it."""
    role, contract = request.role, Contract.of(request)
    schema = native_schema(profile, contract)
    prompt = with_instructions(profile, request, turn)
    files = {"prompt.md": prompt.encode(errors="replace")} if profile.prompt == "file" else {}
    values: dict[str, str] = {
        "prompt": prompt,
        "prompt_file": str(home / ASIDE / "prompt.md"),
        "session": turn.conversation,
        "model": model_for(profile, role.model),
        "effort": role.reasoning_effort or "",
        "max_turns": str(role.max_turns or ""),
        "budget": "" if turn.max_micro_usd is None else f"{turn.max_micro_usd / 1_000_000:.6f}",
        "instructions": request.described(turn.folder),
        "servers_file": str(home / ASIDE / FILE),
        "servers_allowed": handed.allowed,
        "tools": kept.names,
        "tools_file": str(home / ASIDE / TOOLS),
    }
    if kept.file:
        files[TOOLS] = kept.file
    if schema is not None:
        text = msgspec.json.encode(schema)
        values |= {"schema": text.decode(), "schema_file": str(home / ASIDE / "schema.json")}
        files["schema.json"] = text
    words = role.command if profile.name in OF_ROLES else (profile.program, *profile.call)
    # The options of this call by name.
    given = {name: values[name] for name in ("model", "effort", "max_turns", "budget", "instructions")}
    given["schema"] = values.get("schema", "")
    given["tools"] = "yes"
    given["only"] = "yes" if kept.names or kept.file else ""
    given["servers"] = "yes" if handed.file else ""
    given["name"] = turn.conversation
    given["session"] = turn.conversation if not turn.resumes else ""
    given["resume"] = given["conversation"] = turn.conversation if turn.resumes else ""
    groups = {name: words for name, words in profile.options.items() if given.get(name)}
    found: list[str] = []
    for word in words:
        if word == "<servers>" and handed.words:
            found += handed.words  # unchanged: a server's words may look like placeholders
        elif word.startswith("<") and word.endswith(">") and profile.name not in OF_ROLES:
            found += [_filled(part, values) for part in groups.get(word[1:-1], ())]
        else:
            found.append(_filled(word, values))
    if not found or not found[0]:
        hint = "give the role a `command`"
        raise AuthorError("backend.no_command", "there is no program to run", hint=hint)
    argv = tuple(found)
    by_stdin = profile.prompt == "stdin" and not any("{prompt" in word for word in words)
    if any("{prompt_file}" in word for word in words):
        files["prompt.md"] = prompt.encode(errors="replace")
    lent = {place: text.encode() for place, text in profile.files.items()}
    if handed.file:
        lent[f"{ASIDE}/{FILE}"] = handed.file
    return ProgramCall(
        argv=argv,
        stdin=prompt.encode(errors="replace") if by_stdin else b"",
        files=files,
        lent=lent,
        servers=handed.servers if handed.by_session else (),
        meta=_nested({path: _filled(word, values) for path, word in profile.meta.items()}),
    )


def _nested(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return texts by their paths (`a.b`) as objects, numbers as numbers, without empty ones."""
    found: dict[str, Any] = {}
    for path, text in texts.items():
        at, (*above, name) = found, path.split(".")
        for part in above if text else ():
            at = at.setdefault(part, {})
        if text:
            at[name] = float(text) if re.fullmatch(r"[0-9]+\.[0-9]+", text) else text
    return found


def with_instructions(profile: Profile, request: SessionRequest, turn: Turn) -> str:
    """Return the prompt of a turn.

    The first prompt includes the schema of the answer, and the instructions unless the profile has an option
    for them.
    """
    contract, prompt = Contract.of(request), turn.prompt
    if turn.resumes:
        return prompt
    if contract.typed:
        prompt = f"{prompt}\n\n{TYPED}{contract.text}"
    if "instructions" not in profile.options:
        prompt = f"{request.described(turn.folder)}\n\n{prompt}"
    return prompt


def retold(entries: Sequence[Entry]) -> str:
    """Return a conversation as text for an agent that does not know it; empty if there was none."""
    lines: list[str] = []
    for entry in entries:
        if isinstance(entry, UserInput):
            lines.append(f"You received:\n{entry.text}")
        elif isinstance(entry, Response) and entry.text:
            lines.append(f"You said:\n{entry.text}")
    text = shorten_middle("\n\n".join(lines), MAX_RETOLD_CHARS, tail=2 / 3)
    return f"This is the conversation so far.\n\n{text}\n\nThis is your task now:" if lines else ""


def native_schema(profile: Profile, contract: Contract) -> Any:
    """Return the schema for the program's own option; None if it accepts none, or not this one."""
    if not contract.typed or "schema" not in profile.options:
        return None
    schema = contract.wire
    return schema if not profile.strict_schema or is_strict(schema) else None


def is_strict(schema: Any) -> bool:
    """Return whether a schema has no optional and no additional properties.

    >>> is_strict({"type": "object", "properties": {"a": {}}, "required": [], "additionalProperties": False})
    False
    """
    if isinstance(schema, list):
        return all(map(is_strict, schema))
    if not isinstance(schema, dict):
        return True
    names = schema.get("properties")
    if schema.get("type") == "object" or isinstance(names, dict):
        known = names if isinstance(names, dict) else {}
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(known):
            return False
        return all(map(is_strict, known.values()))
    return all(is_strict(part) for part in schema.values() if isinstance(part, dict | list))


def model_for(profile: Profile, model: str | None) -> str:
    """Return a model's name for the program; empty for a model of another provider.

    >>> claude = Profile(program="claude", provider="anthropic")
    >>> model_for(claude, "anthropic:opus"), model_for(claude, "openai:gpt-5"), model_for(claude, "opus")
    ('opus', '', 'opus')
    """
    provider, colon, name = (model or "").partition(":")
    if not colon:
        return provider
    if profile.model_form != "{model}":
        return profile.model_form.format(provider=provider, model=name)
    return name if not profile.provider or provider == profile.provider else ""


def _filled(word: str, values: Mapping[str, str]) -> str:
    """Return one word with its placeholders filled in; values are not expanded again."""
    return re.sub(r"\{([a-z_]+)\}", lambda found: values.get(found[1], found[0]), word)


# -----------------------------------------------------------------------------------------------------------
# The content of an agent's private home: the user's configuration of the agent, and credentials.
#
# Rules
# * The user's own folders are read and never written. Changes of a session stay in its own home.
# * The configuration is copied once, when the home is created. It is the user's own, so links in it are
#   followed. Sizes are limited.
# * Credentials are those that the user named. They are copied when a program starts and removed when it ends,
#   so that none stays with a conversation. Each lent file is noted first. If this process dies, the next
#   process that opens the project removes it.
# * A login is copied without values that can be used only once. Many providers accept a refresh token once
#   and issue another one, which would make the user's own copy useless. The agent works with the access token
#   until it expires. The user's own agent renews it.
# * Environment variables pass by name only. Variables of our own sandbox, of other agents and of terminals do
#   not pass.

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_FILES = 2_000
MAX_BYTES = 64 * 1024 * 1024
MIN_SECRET_CHARS = 16


class AgentCredentials:
    """The user's configuration and credentials for one agent on this machine."""

    def __init__(self, profile: Profile, environment: Mapping[str, str]) -> None:
        self._profile = profile
        self._environment = environment
        self._user = Path(environment.get("HOME") or Path.home())

    def furnish_once(self, home: Path) -> None:
        """Copy the user's configuration into a new home; a used home contains files of the agent."""
        mark = home.parent / FURNISHED
        if mark.exists():
            return
        state = self._profile.state
        target = home / state.folder
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        left = [MAX_FILES, MAX_BYTES]
        for name in state.config:
            _copy(self._folder() / name, target / name, left)
        for name, entry in state.tools_of_users.items():
            # A file that cannot be parsed stays unchanged.
            file = target / name
            try:
                text = file.read_text("utf-8")
                without = remove_table(text, entry) if file.suffix == ".toml" else remove_entry(text, entry)
            except (OSError, UnicodeDecodeError, SettingsUnreadableError):
                continue
            if without != text:
                file.write_text(without, "utf-8")
        (home / ASIDE).mkdir(mode=0o700, exist_ok=True)
        mark.touch()

    def _folder(self) -> Path:
        state = self._profile.state
        given = self._environment.get(state.variable, "").strip() if state.variable else ""
        return Path(given).expanduser() if given else self._user / state.folder

    def _login_files(self) -> Iterator[tuple[Path, str]]:
        """Yield the path of each login file, and its path below a home."""
        for name in self._profile.state.login:
            if name.startswith("~/"):
                yield self._user / name[2:], name[2:]
            else:
                yield self._folder() / name, f"{self._profile.state.folder}/{name}"

    def lend(self, home: Path, files: Mapping[str, bytes]) -> None:
        """Copy the credentials that are removed when the agent ends.

        These are the files by path, and the login if the user named it, without values that can be used only
        once.
        """
        logins = list(self._login_files()) if LOGIN in self._profile.credentials else []
        if not (files or logins):
            return
        note_lent(home, [*files, *(place for _, place in logins)])
        for place, data in files.items():
            write_beneath(home, place, data)
        for source, place in logins:
            try:
                data = _read(source)
            except FileNotFoundError:
                continue
            write_beneath(home, place, self._without_renewal(data, source))

    def take_back(self, home: Path, files: Iterable[str]) -> None:
        """Remove the login and these files from a home, even if the agent changed them.

        If another process took over the run while this one was stopped, that process removes them.
        """
        if is_lent_by_another(home):
            return
        for place in (*files, *(place for _, place in self._login_files())):
            remove_beneath(home, place)
        forget_lent(home)

    def _without_renewal(self, data: bytes, source: Path) -> bytes:
        state = self._profile.state
        if not (state.withheld or state.expires):
            return data
        try:
            value = msgspec.json.decode(data)
        except msgspec.DecodeError:
            hint = f"log in again with {self._profile.program}"
            raise WorldError("agent.bad_login", f"{source} is not a known login", hint=hint) from None
        expires = next(iter(found_at(value, state.expires)), None) if state.expires else None
        if isinstance(expires, int | float) and expires < time.time() * 1_000:
            message = f"the login of {self._profile.title} has expired"
            hint = f"start {self._profile.program} once yourself to renew it; then try again"
            raise WorldError("agent.login_expired", message, hint=hint)
        for path in state.withheld:
            _put(value, path.split("."), "")
        for path in state.renewed:
            _put(value, path.split("."), datetime.now(UTC).isoformat().replace("+00:00", "Z"))
        return msgspec.json.encode(value)

    def variables(self) -> tuple[dict[str, str], frozenset[str]]:
        """Return the environment variables of a session, and the names of the secrets among them."""
        profile, ours = self._profile, self._environment
        found = {
            name: ours[name] for name in (*profile.access.plain, *profile.access.addresses) if ours.get(name)
        }
        named = frozenset(name for name in profile.credentials if name != LOGIN and ours.get(name))
        found |= {name: ours[name] for name in named}
        return {**found, **profile.environment}, named

    def secrets(self) -> list[str]:
        """Return the secrets among the lent credentials, so that they can be redacted from the output."""
        values, named = self.variables()
        found = [values[name] for name in named]
        for source, _ in self._login_files() if LOGIN in self._profile.credentials else ():
            try:
                data = _read(source)
            except (OSError, WorldError):
                continue
            try:
                found += _texts(msgspec.json.decode(data))
            except ValueError:  # another format: any long word may be a secret
                found += re.split(r"[\s\"':,=]+", data.decode(errors="replace"))
        return [value for value in found if len(value) >= MIN_SECRET_CHARS]

    def offered(self) -> list[str]:
        """Return the credentials on this machine that the user could name."""
        found = [name for name in self.key_names() if self._environment.get(name)]
        login = any(source.is_file() for source, _ in self._login_files())
        return [*([LOGIN] if login else []), *found]

    def key_names(self) -> list[str]:
        """Return the environment variables that may contain its keys."""
        keys = [*self._profile.access.keys, *self._config_values(self._profile.state.keys)]
        return list(dict.fromkeys(keys))

    def is_elsewhere(self) -> bool:
        """Return whether the agent may use another provider, whose prices are unknown."""
        profile, ours = self._profile, self._environment
        return any(ours.get(name) for name in profile.access.addresses) or bool(
            self._config_values(profile.state.addresses)
        )

    def hosts(self) -> list[str]:
        """Return the `host:port` of each host of the agent's provider."""
        profile, ours = self._profile, self._environment
        own = [ours[name] for name in profile.access.addresses if ours.get(name)]
        own += self._config_values(profile.state.addresses)
        wanted = [*own, *profile.access.hosts, *profile.hosts]
        return list(dict.fromkeys(filter(None, map(host_and_port, wanted))))

    def _config_values(self, by_file: Mapping[str, tuple[str, ...]]) -> list[str]:
        found: list[str] = []
        for name, paths in by_file.items():
            try:
                text = _read(self._folder() / name).decode()
                is_toml, keys = name.endswith(".toml"), [path.partition(".")[0] for path in paths]
                value = tomllib.loads(text) if is_toml else {key: entry_at(text, [key]) for key in keys}
            except (OSError, ValueError, SettingsUnreadableError):
                continue  # the agent itself will report the problem
            for path in paths:
                found += [one for one in found_at(value, path) if isinstance(one, str)]
        return found


def host_and_port(address: str) -> str:
    """Return the `host:port` of an address; empty if it is invalid.

    >>> host_and_port("http://127.0.0.1:8791/v1"), host_and_port("api.openai.com")
    ('127.0.0.1:8791', 'api.openai.com:443')
    """
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(address if "://" in address else f"https://{address}")
        port = parts.port or (80 if parts.scheme in ("http", "ws") else 443)
    except ValueError:
        return ""
    return f"{parts.hostname.lower()}:{port}" if parts.hostname else ""


def found_at(value: Any, path: str) -> list[Any]:
    """Return the values at a dotted path; `*` matches every name.

    >>> found_at({"a": {"x": {"u": 1}, "y": {"u": 2}}}, "a.*.u")
    [1, 2]
    """
    found = [value]
    for name in path.split("."):
        tables = [one for one in found if isinstance(one, dict)]
        found = [inner for table in tables for key, inner in table.items() if name in ("*", key)]
    return found


def _put(value: Any, path: list[str], text: str) -> None:
    if not isinstance(value, dict):
        return
    for key in list(value):
        if path[0] not in ("*", key):
            continue
        if len(path) == 1:
            value[key] = text
        else:
            _put(value[key], path[1:], text)


def _texts(value: Any) -> list[str]:
    """Return every text in a value, without keys."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in inner for text in _texts(one)]


def _read(file: Path) -> bytes:
    try:
        return read_own(file, MAX_FILE_BYTES)
    except ValueError as error:
        raise WorldError("agent.bad_config", str(error)) from None


def _copy(source: Path, target: Path, left: list[int]) -> None:
    """Copy a file or folder up to the limits."""
    if source.is_file():
        size = source.stat().st_size
        left[0], left[1] = left[0] - 1, left[1] - size
        if size <= MAX_FILE_BYTES and left[0] >= 0 and left[1] >= 0:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(0o600 | (source.stat().st_mode & 0o100))
    elif source.is_dir() and left[0] >= 0:
        for entry in sorted(source.iterdir()):
            _copy(entry, target / entry.name, left)
