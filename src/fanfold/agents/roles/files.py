"""Role files: TOML as Codex writes it, and markdown with front matter as Claude Code writes it.

Both become the same tree, and that the same `Role`. A file is hostile input: its size is bounded, every value
is checked, and what is wrong becomes a notice with its place. Keys we do not know are somebody else's and are
only noted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from fanfold.agents.providers import ANTHROPIC
from fanfold.agents.role import COMMAND, IGNORED, Notice, Role, SandboxMode, Stage
from fanfold.agents.roles.tools import claude_tools, only_reads, toml_tools
from fanfold.text.diagnostics import Diagnostic, Source
from fanfold.text.notes import Notes, span_of
from fanfold.text.report import Report
from fanfold.text.tables.entries import Entries, read_entries
from fanfold.text.tables.shapes import Key, shape
from fanfold.text.template import TemplateError, parse_template
from fanfold.text.trees import tree
from fanfold.text.trees.tree import Scalar, plain, texts
from fanfold.text.trees.yaml import TextFormat
from fanfold.trust.project_files import read_beneath

MAX_FILE_BYTES = 256 * 1024
PROVIDER_ONLY = "provider"
FORMAT = TextFormat(name="role", max_bytes=MAX_FILE_BYTES, clean_text=False, clean_values=False)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}\Z")
_BOM = b"\xef\xbb\xbf"

_LARGE = f"{ANTHROPIC.name}:claude-opus-5-5"
CLAUDE_MODELS = {
    # The words that Claude Code has for its models.
    "sonnet": ANTHROPIC.default,
    "opus": _LARGE,
    "haiku": ANTHROPIC.fast,
    "opusplan": _LARGE,
}
_SANDBOXES: dict[str, SandboxMode] = {
    "read-only": "read-only",
    "workspace-write": "workspace-write",
    "danger-full-access": "danger-full-access",
}
_COMMON = (
    Key("name", "text", "What steps call it.", required=True),
    Key("description", "text", "What it is for.", required=True),
    Key("version", "json", "Steps may ask for `name@version`."),
    Key("sandbox_mode", "word", "How much it may touch.", words=tuple(_SANDBOXES)),
    Key("model", "text", "The model that does the work."),
    Key("reasoning_effort", "text", "How long that model thinks."),
    Key("fallback_models", "texts", "Models to ask when that one cannot answer."),
    Key("max_turns", "integer", "How often it may be asked.", low=1, high=10_000),
    Key("backend", "text", "Who does the work."),
    Key("command", "arguments", "The program that does the work."),
    Key("mcp_servers", "json", "Servers whose tools it has."),
    Key("network", "json", 'Whether it may reach the network; "provider" is what agents need themselves.'),
    Key("prompt_template", "template", "What a step without a prompt says."),
    Key("pipeline", "objects", "Stages that run one after the other."),
)
_TOML = shape(
    "role",
    "A role as Codex writes it.",
    *_COMMON,
    Key("instructions", "text", "What it is told."),
    Key("developer_instructions", "text", "The same.", alias="instructions"),
    Key("model_reasoning_effort", "text", "The same.", alias="reasoning_effort"),
    Key("tools", "texts", "The tools that it may use; all when none are named."),
    open=True,
)
_MD = shape(
    "role",
    "A role as Claude Code writes it; the text below is what it is told.",
    *_COMMON,
    Key("effort", "text", "How long the model thinks.", alias="reasoning_effort"),
    Key("maxTurns", "integer", "How often it may be asked.", low=1, high=10_000, alias="max_turns"),
    Key("mcpServers", "json", "Servers whose tools it has.", alias="mcp_servers"),
    Key("tools", "json", "The tools that it may use; all when none are named."),
    Key("disallowedTools", "json", "Tools that it may not use."),
    Key("permissionMode", "text", "`plan` makes a reader of it."),
    open=True,
)


class RoleFile(NamedTuple):
    """A role and the file it was read from, for whoever has something to say about a key of it."""

    role: Role
    source: Source
    entries: Entries

    def notice(self, code: str, message: str, key: str, stage: int = 0) -> Notice:
        """A warning at a key of the file, or of a stage of its pipeline."""
        word = self.entries.keys.get(key)
        if stage:
            table = self.entries.items("pipeline")[stage - 1]
            assert isinstance(table, tree.Mapping), "it was read"
            word = table.key(key)
        span = (0, 0) if word is None else span_of(word)
        found = Diagnostic(code, "warning", message, self.source.file, self.source.range(*span))
        return _notice(found, self.role.name)


def read_role(
    path: Path, kind: Literal["toml", "md"], notices: list[Notice], top: Path | None = None
) -> RoleFile | None:
    """One file as a role, or None with notices that say what is wrong and where.

    `top` is the project that the file came with; a link that leads out of it is not followed.
    """
    try:
        # The user's own files may be links to anywhere; those of a project stay inside it.
        data = read_beneath(top or Path(path.anchor), path, MAX_FILE_BYTES + 1).removeprefix(_BOM)
    except OSError as error:
        message = f"{IGNORED}cannot be read: {error.strerror}"
        notices.append(Notice("role.invalid", message, str(path), role=path.stem))
        return None
    content = _toml_content(data, str(path)) if kind == "toml" else _md_content(data, str(path))
    role = None if content.entries is None else _RoleMaker(content, content.entries).role()
    name = role.name if role is not None else _name_in(content.source.text) or path.stem
    notices += (_notice(found, name) for found in content.report.diagnostics)
    if role is None or content.entries is None:
        return None
    return RoleFile(role, content.source, content.entries)


def _notice(found: Diagnostic, role: str) -> Notice:
    start = found.range.start
    if found.severity == "error":
        message = f"{IGNORED}{found.message}"
        return Notice(
            "role.invalid", message, found.file, start.line, "warning", role, start.column, found.help
        )
    return Notice(
        found.code, found.message, found.file, start.line, found.severity, role, start.column, found.help
    )


class _Content(Struct, frozen=True):
    """What a file says, in the terms of both kinds; without `entries` it says nothing that can be read."""

    source: Source
    report: Report
    entries: Entries | None = None
    instructions: str = ""
    tools: list[str] | None = None
    servers: dict[str, dict[str, Any]] = {}
    sandbox: SandboxMode = "workspace-write"


def _toml_content(data: bytes, file: str) -> _Content:
    from fanfold.text.trees.toml import parse_toml

    found, source, report = parse_toml(data, file, FORMAT)
    notes = Notes(report, source)
    entries = None if found is None else read_entries(found, _TOML, notes)
    if entries is None:
        return _Content(source, report)
    tools = toml_tools(entries.scalars("tools"), notes) if "tools" in entries.nodes else None
    servers = _servers(plain(entries.nodes["mcp_servers"])) if "mcp_servers" in entries.nodes else {}
    return _Content(source, report, entries, entries.text("instructions") or "", tools, servers)


def _md_content(data: bytes, file: str) -> _Content:
    from fanfold.text.trees.front_matter import parse_front_matter

    found = parse_front_matter(data, file, FORMAT)
    source, report, notes = found.source, found.report, Notes(found.report, found.source)
    for key in found.unread:
        if key in _MD.keys:
            report.add(found.unread[key])
    if found.tree is None or not report.ok:
        return _Content(source, report)
    # A key without a value says nothing.
    said = [(key, value) for key, value in found.tree.entries if not _is_empty(value)]
    entries = read_entries(tree.Mapping(said, found.tree.start, found.tree.end), _MD, notes)
    assert entries is not None, "it is a mapping"
    servers = _servers(texts(entries.nodes["mcp_servers"])) if "mcp_servers" in entries.nodes else {}
    tools = claude_tools(entries.nodes.get("tools"), entries.nodes.get("disallowedTools"), servers, notes)
    # Claude Code has no sandbox key: a plan-mode agent, or one whose tools only look, is a reader.
    reads = entries.text("permissionMode") == "plan" or only_reads(tools)
    sandbox: SandboxMode = "read-only" if reads else "workspace-write"
    return _Content(source, report, entries, found.body.strip(), tools, servers, sandbox)


def _servers(value: object) -> dict[str, dict[str, Any]]:
    from fanfold.agents.toolbox.mcp.servers import servers_of  # few files name servers

    return servers_of(value)


class _RoleMaker:
    """Makes a role of a file's content, or says what is wrong and where."""

    def __init__(self, content: _Content, entries: Entries) -> None:
        self._content = content
        self._entries = entries
        self._notes = Notes(content.report, content.source)

    def role(self) -> Role | None:
        """The role, or None when something is wrong."""
        entries, content = self._entries, self._content
        name = entries.nodes.get("name")
        if isinstance(name, Scalar) and not NAME.match(name.text):
            hint = 'use letters, digits, "-" and "_", at most 64 of them'
            self._notes.error(".bad_id", f'"name" cannot be "{name.text[:80]}"', name, hint)
        description = entries.nodes.get("description")
        if isinstance(description, Scalar) and not description.text.strip():
            self._notes.error(".missing_key", 'a role needs a "description"', description)
        sandbox = _SANDBOXES.get(entries.text("sandbox_mode") or "", content.sandbox)
        command = self._command()
        if command and entries.has("pipeline"):
            message = '"command" and "pipeline" are two strategies; a role has one'
            self._notes.error(".conflicting_keys", message, entries.keys["pipeline"])
        if not (content.instructions or entries.has("command") or entries.has("pipeline")):
            message = "the instructions are missing (developer_instructions, or the text after ---)"
            self._notes.error(".missing_key", message, (0, 0))
        role = Role(
            name=entries.text("name") or "",
            description=(entries.text("description") or "").strip(),
            instructions=content.instructions,
            version=self._version(),
            sandbox_mode=sandbox,
            model=_model(entries.text("model"), is_claude=entries.shape is _MD),
            reasoning_effort=entries.text("reasoning_effort"),
            fallback_models=tuple(one.text for one in entries.scalars("fallback_models")),
            tools=None if content.tools is None else tuple(content.tools),
            max_turns=entries.integer("max_turns"),
            backend=entries.text("backend") or (COMMAND if command else None),
            command=command,
            mcp_servers=content.servers,
            network=self._network() is True,
            offline=self._network() is False,
            prompt_template=self._template(),
            pipeline=self._pipeline(sandbox),
            source=content.source.file,
        )
        return role if content.report.ok else None

    def _network(self) -> bool | str | None:
        """True, False, `provider`, or None when nothing is said."""
        node = self._entries.nodes.get("network")
        if node is None:
            return None
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, bool):
            return value
        if value == PROVIDER_ONLY:
            return PROVIDER_ONLY
        self._notes.error(".bad_value", '"network" must be true, false or "provider"', node)
        return None

    def _version(self) -> str | None:
        node = self._entries.nodes.get("version")
        if node is None:
            return None
        if not isinstance(node, Scalar) or isinstance(node.value, bool) or not VERSION.match(node.text):
            self._notes.error(".bad_value", '"version" must be a whole number or a short word', node)
            return None
        text = node.text
        return text[1:] if text[0] == "v" and text[1:].isdecimal() else text

    def _command(self) -> tuple[str, ...]:
        node = self._entries.nodes.get("command")
        if not isinstance(node, Scalar):
            return tuple(one.text for one in self._entries.scalars("command"))
        import shlex

        try:
            return tuple(shlex.split(node.text))
        except ValueError as error:
            self._notes.error(".bad_value", f'"command" cannot be split into arguments: {error}', node)
            return ()

    def _template(self) -> str | None:
        node = self._entries.nodes.get("prompt_template")
        if not isinstance(node, Scalar):
            return None
        problems: list[TemplateError] = []
        parse_template(node.text, problems)
        for problem in problems:
            self._notes.error(".bad_template", problem.message, node.span(problem.position, problem.end))
        return node.text.strip()

    def _pipeline(self, sandbox: SandboxMode) -> tuple[Stage, ...]:
        if "pipeline" not in self._entries.nodes:
            return ()
        # Few roles have one, and every command that knows roles would pay for the import.
        from fanfold.agents.roles.stages import StageBounds, read_stages

        bounds = StageBounds(
            tools=self._content.tools,
            read_only=sandbox == "read-only",
            network=self._network() is True,
            own_tools=bool(self._content.servers),
        )
        return read_stages(self._entries.nodes["pipeline"], self._notes, bounds)


def _model(model: str | None, *, is_claude: bool) -> str | None:
    """What Claude Code calls its models, with their provider; None for the one that the run has anyway."""
    if not is_claude or model is None:
        return model
    if model in ("", "inherit", "default"):
        return None
    name = model.strip().removesuffix("[1m]")  # a larger window, which is not ours to ask for
    if name.startswith(ANTHROPIC.families):
        return f"{ANTHROPIC.name}:{name}"
    return CLAUDE_MODELS.get(name.lower(), model)


def _is_empty(node: tree.Node) -> bool:
    return isinstance(node, Scalar) and node.value is None


def _name_in(text: str) -> str | None:
    """The name that a file which cannot be used gives itself, as far as that can be told."""
    found = re.search(r"""^name[ \t]*[=:][ \t]*["']?([\w-]+)["']?[ \t]*(?:#.*)?$""", text, re.MULTILINE)
    return found[1] if found and NAME.match(found[1]) else None
