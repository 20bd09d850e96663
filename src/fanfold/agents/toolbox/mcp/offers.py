"""What MCP servers offer, made fit for a model: names, descriptions, schemas, and results.

Rules
* A tool is offered as `mcp__server__tool`, in the letters and the length that every provider takes. Two tools
  never have one name, and the same servers always give the same names: a session that goes on after a crash
  must find the tools it called.
* A list of tools narrows: it names `mcp__server__tool`, or `mcp__server` for all of a server. A session that
  may only read is offered what the server itself declares to be reading only.
* A server's words are bounded before a model pays for them. A schema that cannot be checked here, or that
  points outside of itself, is replaced by one that takes any object: the server checks its arguments anyway.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from fanfold.agents.backend import SessionFailed
from fanfold.agents.toolbox.mcp.servers import Server, unavailable
from fanfold.agents.toolbox.names import UNSAFE, spellings
from fanfold.agents.toolbox.schemas import ToolSpec
from fanfold.kernel.plan import JSON
from fanfold.text.excerpts import shorten, shorten_middle
from fanfold.text.json_schema import schema_problem

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock, Tool

MAX_TOOLS = 128
MAX_NAME_CHARS = 64
MAX_DESCRIPTION_CHARS = 1_024
MAX_SCHEMA_CHARS = 16_000
MAX_OFFER_CHARS = 256_000
MAX_RESULT_CHARS = 16_000
MIN_TEXT_CHARS = 1_000
OPEN: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}
_NOT_ON_TOP = ("$schema", "$id", "anyOf", "oneOf", "allOf", "not", "enum", "if", "then", "else")
"""Providers refuse some of these at the top of a schema, and none of them tells a model much there."""
_UNPRINTABLE = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]")


class Offer(Struct, frozen=True):
    """A tool of a server as the model sees it."""

    spec: ToolSpec
    server: str
    tool: str


def choose_offers(
    served: Mapping[str, tuple[Server, Sequence[Tool]]], listed: Sequence[str] | None, read_only: bool
) -> list[Offer]:
    """The tools to offer, of all servers, in their order; raises `SessionFailed` when they are too many."""
    offers: list[Offer] = []
    taken: set[str] = set()
    for server, tools in served.values():
        chosen = [
            _offer(server, tool, name)
            for tool, name in [(tool, _unique_name(server.name, tool.name, taken)) for tool in tools]
            if server.has_use_for(tool.name)
            and _is_listed(server.name, tool.name, name, listed)
            and (not read_only or _only_reads(tool))
        ]
        chars = sum(len(str(offer.spec.schema)) + len(offer.spec.description) for offer in chosen)
        if len(chosen) > MAX_TOOLS or chars > MAX_OFFER_CHARS:
            raise _too_much(server.name, len(chosen))
        offers += chosen
    return offers


def _too_much(server: str, tools: int) -> SessionFailed:
    why = f"its {tools} tools are more than a model can be offered (at most {MAX_TOOLS} of a server)"
    return unavailable(
        server, why, "name those you need in the role's tools, or in the server's enabled_tools"
    )


def _offer(server: Server, tool: Tool, name: str) -> Offer:
    title = tool.title or (tool.annotations.title if tool.annotations else None)
    words = _UNPRINTABLE.sub("", tool.description or title or f"{tool.name} of {server.name}").strip()
    spec = ToolSpec(
        name,
        shorten(words, MAX_DESCRIPTION_CHARS),
        clean_schema(tool.input_schema),
        mutates=not _only_reads(tool),
    )
    return Offer(spec, server.name, tool.name)


def _only_reads(tool: Tool) -> bool:
    return tool.annotations is not None and tool.annotations.read_only_hint is True


# ---------------------------------------------------------------------------------------------- names


def _is_listed(server: str, tool: str, name: str, listed: Sequence[str] | None) -> bool:
    if listed is None:
        return True
    whole = {f"{one}{end}" for one in spellings(f"mcp__{server}") for end in ("", "__*")}
    return any(one in whole or one == name or one in spellings(f"mcp__{server}__{tool}") for one in listed)


def _unique_name(server: str, tool: str, taken: set[str]) -> str:
    """The name a model calls a tool by; what does not fit or is taken gets a mark made of the real names."""
    name = UNSAFE.sub("_", f"mcp__{server}__{tool}")
    if len(name) > MAX_NAME_CHARS or name in taken:
        mark = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:8]
        name = f"{name[: MAX_NAME_CHARS - 9]}_{mark}"
    taken.add(name)
    return name


# -------------------------------------------------------------------------------------------- schemas


def clean_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A server's schema as it can be shown and checked, or one that takes any object."""
    try:
        data = msgspec.json.encode(schema)
        if len(data) > MAX_SCHEMA_CHARS:
            return OPEN
        copy: dict[str, Any] = msgspec.json.decode(data)  # what JSON cannot say is gone
    except (ValueError, TypeError, RecursionError):
        return OPEN
    cleaned = {key: value for key, value in copy.items() if key not in _NOT_ON_TOP}
    cleaned["type"] = "object"
    if not isinstance(cleaned.setdefault("properties", {}), dict):
        return OPEN
    return cleaned if schema_problem(cleaned) is None else OPEN


# -------------------------------------------------------------------------------------------- results


def told(result: CallToolResult) -> dict[str, JSON]:
    """A result as a model is told: `text`, and `structured` where the server gives a value."""
    text = "\n".join(_block_text(block) for block in result.content)
    if result.structured_content is None:
        return {"text": shorten_middle(text, MAX_RESULT_CHARS)}
    encoded = msgspec.json.encode(result.structured_content).decode()
    value: JSON = msgspec.json.decode(encoded)  # what JSON cannot say is gone
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
    """Whether a text is nothing but the value in writing, as servers add it for older clients."""
    try:
        return bool(msgspec.json.decode(text) == value)
    except (msgspec.DecodeError, RecursionError):
        return False
