"""Role files: TOML as Codex writes it, and markdown with front matter as Claude Code writes it.

Both become the same `Role`. A file is hostile input: its size is bounded, every value is checked, and
what is wrong becomes a notice with a line. Keys we do not know are somebody else's and only noted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from fanfold.agents.providers import ANTHROPIC
from fanfold.agents.role import Notice, Role
from fanfold.agents.roles.front_matter import FrontMatterError, read_front_matter
from fanfold.agents.roles.tools import Remark, claude_tools, only_reads, toml_tools
from fanfold.trust.project_files import read_beneath

MAX_FILE_BYTES = 256 * 1024
COMMAND = "command"
"""The back end of a role that is a program and names no other."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}\Z")
MAX_NUMBER = 2**53
MAX_LISTED_LINES = 200

_LARGE = f"{ANTHROPIC.name}:claude-opus-5-5"
CLAUDE_MODELS = {
    # The words that Claude Code has for its models.
    "sonnet": ANTHROPIC.default,
    "opus": _LARGE,
    "haiku": ANTHROPIC.fast,
    "opusplan": _LARGE,
}
_TOML_NAMES = {"developer_instructions": "instructions", "model_reasoning_effort": "reasoning_effort"}
_MD_NAMES = {"maxTurns": "max_turns", "mcpServers": "mcp_servers", "effort": "reasoning_effort"}
_SANDBOXES = ("read-only", "workspace-write", "danger-full-access")
_KINDS: dict[bool, tuple[str, Literal["warning", "note"]]] = {
    True: ("role.unknown_tool", "warning"),
    False: ("role.note", "note"),
}
_FIELDS = frozenset(Role.__struct_fields__) - {
    "source",
    "project_servers",
    "instructions",
    "reasoning_effort",
}


class _InvalidError(Exception):
    """The file cannot become a role; `key` says which line to point at, in `stage` of the pipeline if any."""

    def __init__(self, message: str, key: str = "", line: int = 0, stage: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.line = line
        self.stage = stage


def read_role(
    path: Path, kind: Literal["toml", "md"], notices: list[Notice], top: Path | None = None
) -> Role | None:
    """One file as a role, or None with a notice that says what is wrong and where.

    `top` is the project that the file came with; a link that leads out of it is not followed.
    """
    text = ""
    said: list[Remark] = []
    try:
        text = _read_text(path, top)
        values = _toml_values(text, said) if kind == "toml" else _md_values(text, said)
        unknown = sorted(key for key in values if key not in _FIELDS | {"instructions", "reasoning_effort"})
        role = _build({key: value for key, value in values.items() if key not in unknown}, str(path))
    except _InvalidError as error:
        line = error.line or _line_of(text, error.key, error.stage)
        message = f"role file ignored: {error.message}"
        notices.append(Notice("role.invalid", message, str(path), line, role=_name_in(text) or path.stem))
        return None
    for remark in said:
        line = _line_of_word(text, remark.key, remark.word)
        code, severity = _KINDS[remark.warning]
        notices.append(Notice(code, remark.message, str(path), line, severity, role.name))
    for key in unknown:
        message = f'key "{key}" is not used here'
        notices.append(Notice("role.note", message, str(path), _line_of(text, key), "note", role.name))
    return role


def _read_text(path: Path, top: Path | None) -> str:
    try:
        # The user's own files may be links to anywhere; those of a project stay inside it.
        data = read_beneath(top or Path(path.anchor), path, MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _InvalidError(f"cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise _InvalidError(f"larger than {MAX_FILE_BYTES // 1024} KiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise _InvalidError("not UTF-8 text", line=line) from None


def _toml_values(text: str, said: list[Remark]) -> dict[str, object]:
    import tomllib

    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"at line (\d+)", str(error))
        raise _InvalidError(f"not valid TOML: {error}", line=int(where[1]) if where else 1) from None
    except (RecursionError, ValueError):
        raise _InvalidError("not valid TOML: nested too deeply or a number too large") from None
    values = {_TOML_NAMES.get(key, key): value for key, value in raw.items()}
    if "mcp_servers" in values:
        from fanfold.agents.toolbox.mcp.servers import servers_of  # few files name servers

        values["mcp_servers"] = servers_of(values["mcp_servers"])
    toml_tools(values, said)
    return values


def _md_values(text: str, said: list[Remark]) -> dict[str, object]:
    try:
        raw, body = read_front_matter(text)
    except FrontMatterError as error:
        raise _InvalidError(error.message, line=error.line) from None
    values: dict[str, object] = {_MD_NAMES.get(key, key): value for key, value in raw.items()}
    values["instructions"] = body.strip()
    if "mcp_servers" in values:
        from fanfold.agents.toolbox.mcp.servers import servers_in_front_matter  # few files name servers

        try:
            values["mcp_servers"] = servers_in_front_matter(text)
        except ValueError as error:
            raise _InvalidError(str(error), "mcp_servers") from None
    claude_tools(values, said)
    values["model"] = _claude_model(values.get("model"))
    # Claude Code has no sandbox key: a plan-mode agent, or one whose tools only look, is a reader.
    reads = values.get("permissionMode") == "plan" or only_reads(values.get("tools"))
    values.setdefault("sandbox_mode", "read-only" if reads else "workspace-write")
    return values


def _claude_model(model: object) -> object:
    """What Claude Code calls its models, with their provider; None for the one that the run has anyway."""
    if model in ("", "inherit", "default"):
        return None
    if not isinstance(model, str):
        return model
    name = model.strip().removesuffix("[1m]")  # a larger window, which is not ours to ask for
    if name.startswith(ANTHROPIC.families):
        return f"{ANTHROPIC.name}:{name}"
    return CLAUDE_MODELS.get(name.lower(), model)


def _build(values: dict[str, object], source: str) -> Role:
    for key in ("name", "description"):
        if not isinstance(values.get(key), str) or not str(values[key]).strip():
            raise _InvalidError(f'"{key}" is missing or not text', key)
    if not NAME.match(str(values["name"])):
        raise _InvalidError('"name" must be letters, digits, "-" or "_", at most 64 characters', "name")
    acts_by_itself = values.get("command") or values.get("pipeline")
    if not values.get("instructions") and not acts_by_itself:
        raise _InvalidError("the instructions are missing (developer_instructions, or the text after ---)")
    if values.get("sandbox_mode", "read-only") not in _SANDBOXES:
        raise _InvalidError(f'"sandbox_mode" must be one of {", ".join(_SANDBOXES)}', "sandbox_mode")
    turns = values.get("max_turns")
    if turns is not None and not (type(turns) is int and 1 <= turns <= 10_000):
        raise _InvalidError('"max_turns" must be a whole number from 1 to 10,000', "max_turns")
    _normalise_version(values)
    _normalise_command(values)
    _check_pipeline(values)
    try:
        return msgspec.convert({**values, "source": source}, Role)
    except msgspec.ValidationError as error:
        where = re.search(r"\$\.(\w+)", str(error))
        raise _InvalidError(str(error).split(" - at")[0], where[1] if where else "") from None


def _normalise_version(values: dict[str, object]) -> None:
    version = values.get("version")
    if version is None:
        return
    if type(version) is int and 0 < version < MAX_NUMBER:
        version = str(version)
    if not isinstance(version, str) or not VERSION.match(version):
        raise _InvalidError('"version" must be a whole number or a short word', "version")
    values["version"] = version[1:] if version[0] == "v" and version[1:].isdecimal() else version


def _normalise_command(values: dict[str, object]) -> None:
    command = values.get("command")
    if isinstance(command, str):
        import shlex

        try:
            values["command"] = shlex.split(command)
        except ValueError as error:
            raise _InvalidError(f'"command" cannot be split into arguments: {error}', "command") from None
    if command and values.get("backend") is None:
        values["backend"] = COMMAND


def _check_pipeline(values: Mapping[str, object]) -> None:
    if "pipeline" not in values:
        return
    # Few roles have one, and every command that knows roles would pay for the import.
    from fanfold.agents.roles.stages import StageBounds, StageProblem, read_stages

    if values.get("command"):
        raise _InvalidError('"command" and "pipeline" are two strategies; a role has one', "pipeline")
    tools = values.get("tools")
    bounds = StageBounds(
        tools=[str(tool) for tool in tools] if isinstance(tools, list) else None,
        read_only=values.get("sandbox_mode") == "read-only",
        network=values.get("network") is True,
        own_tools=bool(values.get("mcp_servers")),
    )
    try:
        read_stages(values["pipeline"], bounds)
    except StageProblem as problem:
        raise _InvalidError(problem.message, problem.key or "pipeline", stage=problem.stage) from None


def line_in_file(path: str, key: str, stage: int) -> int:
    """The line of a key in a stage of a role's file; 1 when the file cannot be read any more."""
    try:
        return _line_of(_read_text(Path(path), None), key, stage)
    except _InvalidError:
        return 1


def _line_of(text: str, key: str, stage: int = 0) -> int:
    """The first line that sets `key` (in a stage, if one is meant), else where that stage or file begins."""
    lines = text.splitlines()
    headers = [at for at, line in enumerate(lines) if re.match(r"\s*\[\[\s*pipeline\s*\]\]", line)]
    first, last = 0, len(lines)
    if 0 < stage <= len(headers):
        first, last = [*headers, last][stage - 1 : stage + 1]
    elif stage:
        key = "pipeline"  # not written as tables: its stages have no lines of their own
    names = [key, *(name for table in (_TOML_NAMES, _MD_NAMES) for name, own in table.items() if own == key)]
    words = "|".join(map(re.escape, names))
    pattern = re.compile(rf"\s*\[*(?:pipeline\.)?(?:{words})[\"'\].]*\s*[=:.\]]")
    if key:
        for number in range(first, last):
            if pattern.match(lines[number]):
                return number + 1
    return first + 1


def _line_of_word(text: str, key: str, word: str) -> int:
    """The line of a word in the value of a key, which may be a list over several lines; else the key's."""
    first = _line_of(text, key)
    lines = text.splitlines()[first - 1 : first + MAX_LISTED_LINES]
    pattern = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    return next((first + at for at, line in enumerate(lines) if pattern.search(line)), first)


def _name_in(text: str) -> str | None:
    """The name that a file which cannot be used gives itself, as far as that can be told."""
    found = re.search(r"""^name[ \t]*[=:][ \t]*["']?([\w-]+)["']?[ \t]*(?:#.*)?$""", text, re.MULTILINE)
    return found[1] if found and NAME.match(found[1]) else None
