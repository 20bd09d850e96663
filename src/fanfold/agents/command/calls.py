"""The command line of one call of a program, and what goes with it: from its profile and the session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from fanfold.agents.backend import SessionRequest
from fanfold.agents.command.kept_tools import ALL, KeptTools
from fanfold.agents.command.kept_tools import FILE as TOOLS
from fanfold.agents.command.profile import OF_ROLES, Profile
from fanfold.agents.command.served import FILE as SERVERS
from fanfold.agents.command.served import NONE, Handed
from fanfold.agents.entries import Entry, Response, UserInput
from fanfold.agents.models.answers import Contract
from fanfold.agents.toolbox.mcp.servers import Server
from fanfold.errors import AuthorError
from fanfold.text.excerpts import shorten_middle

ASIDE = ".fanfold"
"""In the home of a session: files that a call names."""
MAX_RETOLD_CHARS = 20_000
TYPED = (
    "Your last message must be the answer and nothing else: one JSON value, without a fence around it, that"
    " fits this schema:\n"
)


class ProgramCall(Struct, frozen=True, kw_only=True):
    """One call: words, what goes to standard input, and files by name that have to be there first."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    files: Mapping[str, bytes] = {}
    lent: Mapping[str, bytes] = {}
    """Files by their place in the home, which hold what may be secret."""
    servers: tuple[Server, ...] = ()
    """For an agent that is given them with its session."""


class Turn(Struct, frozen=True, kw_only=True):
    """What one call is to do."""

    prompt: str
    conversation: str = ""
    """The program's own id of the conversation, ours to choose where it takes one."""
    resumes: bool = False
    folder: str = ""
    """Where the workspace is for the program."""
    max_micro_usd: int | None = None
    """What it may spend."""


def make_call(
    profile: Profile,
    request: SessionRequest,
    turn: Turn,
    home: Path,
    handed: Handed = NONE,
    kept: KeptTools = ALL,
) -> ProgramCall:
    """What a program is called with for one turn; `home` is its home as it sees it."""
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
        "instructions": role.instructions,
        "servers_file": str(home / ASIDE / SERVERS),
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
    groups = _groups(profile, turn, values, handed, kept)
    argv = tuple(_words(profile, words, values, groups, handed))
    by_stdin = profile.prompt == "stdin" and not any("{prompt" in word for word in words)
    if any("{prompt_file}" in word for word in words):
        files["prompt.md"] = prompt.encode(errors="replace")
    return ProgramCall(
        argv=argv,
        stdin=prompt.encode(errors="replace") if by_stdin else b"",
        files=files,
        lent={f"{ASIDE}/{SERVERS}": handed.file} if handed.file else {},
        servers=handed.servers if handed.by_session else (),
    )


def with_instructions(profile: Profile, request: SessionRequest, turn: Turn) -> str:
    """What is said in a turn: at first with who the agent is and what its answer must be, as far as it is not
    told otherwise.
    """
    role, contract, prompt = request.role, Contract.of(request), turn.prompt
    if turn.resumes:
        return prompt
    if contract.typed:
        prompt = f"{prompt}\n\n{TYPED}{contract.text}"
    if role.instructions and "instructions" not in profile.options:
        prompt = f"{role.instructions}\n\n{prompt}"
    return prompt


def retold(entries: Sequence[Entry]) -> str:
    """A conversation as an agent is told of it that does not remember; empty where there was none."""
    lines: list[str] = []
    for entry in entries:
        if isinstance(entry, UserInput):
            lines.append(f"You were told:\n{entry.text}")
        elif isinstance(entry, Response) and entry.text:
            lines.append(f"You said:\n{entry.text}")
    text = shorten_middle("\n\n".join(lines), MAX_RETOLD_CHARS, tail=2 / 3)
    return f"This is what was said before.\n\n{text}\n\nThis is what you are told now:" if lines else ""


def native_schema(profile: Profile, contract: Contract) -> Any:
    """The schema as the program itself takes it; None where it takes none, or not this one."""
    if not contract.typed or "schema" not in profile.options:
        return None
    schema = contract.wire
    return schema if not profile.strict_schema or is_strict(schema) else None


def is_strict(schema: Any) -> bool:
    """Whether nothing in a schema is optional and nothing else allowed.

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
    """A model's name as the program takes it; empty where it is another provider's.

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


def _groups(
    profile: Profile, turn: Turn, values: Mapping[str, str], handed: Handed, kept: KeptTools
) -> dict[str, tuple[str, ...]]:
    """The options of this call, by the name that stands for them."""
    given = {name: values[name] for name in ("model", "effort", "max_turns", "budget", "instructions")}
    given["schema"] = values.get("schema", "")
    given["tools"] = "yes"
    given["only"] = "yes" if kept.names or kept.file else ""
    given["servers"] = "yes" if handed.file else ""
    given["name"] = turn.conversation
    given["session"] = turn.conversation if not turn.resumes else ""
    given["resume"] = given["conversation"] = turn.conversation if turn.resumes else ""
    return {name: words for name, words in profile.options.items() if given.get(name)}


def _words(
    profile: Profile,
    words: tuple[str, ...],
    values: Mapping[str, str],
    groups: Mapping[str, tuple[str, ...]],
    handed: Handed,
) -> list[str]:
    found: list[str] = []
    for word in words:
        if word == "<servers>" and handed.words:
            found += handed.words  # as they are: a server's words may look like ours
        elif word.startswith("<") and word.endswith(">") and profile.name not in OF_ROLES:
            found += [_filled(one, values) for one in groups.get(word[1:-1], ())]
        else:
            found.append(_filled(word, values))
    if not found or not found[0]:
        raise AuthorError(
            "backend.no_command", "there is no program to run", hint="give the role a `command`"
        )
    return found


def _filled(word: str, values: Mapping[str, str]) -> str:
    """One word with its values; a value is never looked into again."""
    import re

    return re.sub(r"\{([a-z_]+)\}", lambda found: values.get(found[1], found[0]), word)
