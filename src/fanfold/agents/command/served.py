"""MCP servers of a role, handed to an agent that is a program: it starts them itself, inside its sandbox.

Rules
* How an agent takes servers is data of its profile (`servers`); one that speaks the Agent Client Protocol is
  given them with its session. An agent that takes none from us is not started without them: it would do
  something else than its role says.
* A role may choose among the tools of a server. Where the agent cannot be kept to the choice it gets none.
* What a server is given of the environment follows the rules of `toolbox.mcp.servers`. It is written into a
  file that is gone when the agent ends, or is a variable of the agent; it never stands in a command line,
  which every user of the machine can read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from fanfold.agents.backend import SessionFailed, SessionRequest
from fanfold.agents.command.profile import OF_ROLES, Profile
from fanfold.agents.toolbox.mcp.servers import Server, unavailable
from fanfold.agents.toolbox.names import spellings

if TYPE_CHECKING:
    from acp.schema import HttpMcpServer, McpServerStdio, SseMcpServer

FILE = "servers.json"
CONTENT = "OPENCODE_CONFIG_CONTENT"
PLACEHOLDER = "{servers_file}"


class Handed(Struct, frozen=True, kw_only=True):
    """How the servers of one session reach its agent: files, words of its call, variables, or its session."""

    servers: tuple[Server, ...] = ()
    by_session: bool = False
    """Whether they are given with the session."""
    file: bytes = b""
    allowed: str = ""
    """The names of their tools, as Claude Code lists what it may use."""
    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}


NONE = Handed()


def hand(profile: Profile, request: SessionRequest, servers: Sequence[Server]) -> Handed:
    """What an agent is given of servers; raises `SessionFailed` where it takes none."""
    if not servers:
        return NONE
    way: str = profile.servers
    if profile.acp and way != "none":
        way = "session"
    elif profile.name in OF_ROLES and any(PLACEHOLDER in word for word in request.role.command):
        way = "file"
    chosen = {one.name: _chosen(one, request.role.tools) for one in servers}
    if way not in ("codex", "claude"):
        for one in servers:
            if chosen[one.name] is not None or one.disabled_tools:
                why = f"{profile.title or profile.name} cannot be kept to some of its tools"
                raise unavailable(one.name, why, "let the role have all tools of the server")
    match way:
        case "session":
            return Handed(servers=tuple(servers), by_session=True)
        case "claude" | "file":
            return Handed(servers=tuple(servers), file=_file(servers), allowed=",".join(_allowed(chosen)))
        case "codex":
            return _codex(servers, chosen)
        case "opencode":
            content = msgspec.json.encode({"mcp": {one.name: _opencode(one) for one in servers}})
            return Handed(servers=tuple(servers), variables={CONTENT: content.decode()})
    raise _refused(profile, servers[0])


def _refused(profile: Profile, server: Server) -> SessionFailed:
    why = f"{profile.title or profile.name} is not given servers from here"
    hint = f'write backend = "{profile.name}-acp" into the role, which takes them'
    if profile.servers == "none":
        hint = "let another back end do the work of this role"
    elif profile.name in OF_ROLES:
        hint = "put {servers_file} into the role's command, a file in the form of .mcp.json"
    return unavailable(server.name, why, hint)


def _chosen(server: Server, listed: Sequence[str] | None) -> frozenset[str] | None:
    """The tools of a server that a role names; None for all."""
    by_role: frozenset[str] | None = None
    if listed is not None:
        names = spellings(f"mcp__{server.name}")
        whole = {*names, *(f"{name}__*" for name in names)}
        if not whole & set(listed):
            by_role = frozenset(
                one.removeprefix(f"{name}__")
                for one in listed
                for name in names
                if one.startswith(f"{name}__")
            )
    if server.enabled_tools is None or by_role is None:
        return by_role if server.enabled_tools is None else server.enabled_tools
    return by_role & server.enabled_tools


def _allowed(chosen: Mapping[str, frozenset[str] | None]) -> list[str]:
    found: list[str] = []
    for name, tools in chosen.items():
        found += [f"mcp__{name}"] if tools is None else [f"mcp__{name}__{tool}" for tool in sorted(tools)]
    return found


def _file(servers: Sequence[Server]) -> bytes:
    """In the form of `.mcp.json`, which several agents take."""

    def entry(one: Server) -> dict[str, Any]:
        if one.argv:
            return {"command": one.argv[0], "args": list(one.argv[1:]), "env": one.environment}
        return {"type": "sse" if one.sse else "http", "url": one.url, "headers": one.headers}

    return msgspec.json.encode({"mcpServers": {one.name: entry(one) for one in servers}})


def _opencode(one: Server) -> dict[str, Any]:
    if one.argv:
        return {"type": "local", "command": list(one.argv), "environment": one.environment, "enabled": True}
    return {"type": "remote", "url": one.url, "headers": one.headers, "enabled": True}


def _codex(servers: Sequence[Server], chosen: Mapping[str, frozenset[str] | None]) -> Handed:
    words: list[str] = []
    variables: dict[str, str] = {}
    for one in servers:
        if re.fullmatch(r"[A-Za-z0-9_-]+", one.name) is None:
            raise unavailable(one.name, "Codex takes no such name", "use letters, digits, - and _")
        settings: dict[str, Any]
        if one.argv:
            settings = {
                "command": one.argv[0],
                "args": list(one.argv[1:]),
                "env_vars": sorted(one.environment),
            }
            given = dict(one.environment)
        else:
            given = {_variable(one.name, header): text for header, text in one.headers.items()}
            names = {header: _variable(one.name, header) for header in one.headers}
            settings = {"url": one.url, "env_http_headers": names}
        for name, text in given.items():
            if variables.setdefault(name, text) != text:
                why = f"two servers want different values of {name}, which Codex cannot give"
                raise unavailable(one.name, why, "call one of the variables otherwise")
        tools = chosen[one.name]
        settings |= {} if tools is None else {"enabled_tools": sorted(tools)}
        settings |= {"disabled_tools": sorted(one.disabled_tools)} if one.disabled_tools else {}
        # Otherwise the first question to the model does not wait for the server.
        settings["required"] = True
        for key, value in settings.items():
            words += ["-c", f"mcp_servers.{one.name}.{key}={_toml(value)}"]
    return Handed(servers=tuple(servers), words=tuple(words), variables=variables)


def _variable(server: str, header: str) -> str:
    return re.sub(r"[^A-Z0-9_]", "_", f"FANFOLD_MCP_{server}_{header}".upper())


def _toml(value: Any) -> str:
    """A value as TOML writes it; texts are written alike in JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return msgspec.json.encode(value).decode()


def for_session(servers: Sequence[Server], http: bool, sse: bool) -> list[Any]:
    """The servers as a session of the Agent Client Protocol is given them."""
    from acp.schema import EnvVariable, HttpHeader, HttpMcpServer, McpServerStdio, SseMcpServer

    found: list[HttpMcpServer | SseMcpServer | McpServerStdio] = []
    for one in servers:
        if one.argv:
            variables = [EnvVariable(name=name, value=text) for name, text in one.environment.items()]
            found.append(
                McpServerStdio(name=one.name, command=one.argv[0], args=list(one.argv[1:]), env=variables)
            )
            continue
        if not (sse if one.sse else http):
            raise unavailable(one.name, "the agent says that it takes no servers at addresses")
        headers = [HttpHeader(name=name, value=text) for name, text in one.headers.items()]
        if one.sse:
            found.append(SseMcpServer(type="sse", name=one.name, url=one.url, headers=headers))
        else:
            found.append(HttpMcpServer(type="http", name=one.name, url=one.url, headers=headers))
    return found
