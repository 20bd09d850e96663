"""Role files: TOML as Codex writes it, and markdown with front matter as Claude Code writes it.

Both become the same tree, and that the same `Role`. A file is hostile input: its size is bounded, every value
is checked, and what is wrong becomes a notice with its place. Keys we do not know are somebody else's and are
only noted.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct, structs

from fanfold.agents.providers import ANTHROPIC
from fanfold.agents.role import COMMAND, IGNORED, Notice, Role, SandboxMode, Stage
from fanfold.agents.roles.keys import HABITS, MD, SANDBOXES, TOML
from fanfold.agents.roles.restrictions import Restrictions, claude_restrictions, codex_sandbox
from fanfold.agents.roles.tools import GrantedTools, claude_tools, only_reads, toml_tools
from fanfold.text.diagnostics import Diagnostic, Source
from fanfold.text.notes import Notes, listed, quoted, span_of
from fanfold.text.report import Report
from fanfold.text.spelling import nearest
from fanfold.text.tables.entries import Entries, read_entries
from fanfold.text.template import TemplateError, parse_template
from fanfold.text.trees import tree
from fanfold.text.trees.tree import Scalar, plain, texts
from fanfold.text.trees.yaml import TextFormat
from fanfold.trust.project_files import read_beneath

MAX_FILE_BYTES = 256 * 1024
PROVIDER_ONLY = "provider"
FORMAT = TextFormat(name="role", max_bytes=MAX_FILE_BYTES, clean_text=False, clean_values=False)
NAME = re.compile(r"[^\W_][\w.-]{0,63}\Z")
_SPACES = re.compile(r"[ /:]+")
REFUSED = f"{FORMAT.name}.refused"
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}\Z")
_BOM = b"\xef\xbb\xbf"

_LARGE = f"{ANTHROPIC.name}:claude-opus-5-5"
CLAUDE_MODELS = {
    # The words that Claude Code has for its models.
    "sonnet": ANTHROPIC.default,
    "opus": _LARGE,
    "haiku": ANTHROPIC.fast,
    "fable": f"{ANTHROPIC.name}:claude-fable-5-1",
    "opusplan": _LARGE,
}


class Declared(Struct, frozen=True):
    """What a file that names another one says about the role in it."""

    name: str
    description: str


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
    path: Path,
    kind: Literal["toml", "md"],
    notices: list[Notice],
    top: Path | None = None,
    declared: Declared | None = None,
) -> RoleFile | None:
    """One file as a role, or None with notices that say what is wrong and where.

    `top` is the checkout that the file came with; a link that leads out of it is not followed. `declared` is
    what was said where the file was named.
    """
    try:
        # The user's own files may be links to anywhere; those of a project stay inside it.
        data = read_beneath(top or Path(path.anchor), path, MAX_FILE_BYTES + 1).removeprefix(_BOM)
    except OSError as error:
        message = f"{IGNORED}cannot be read: {error.strerror}"
        name = declared.name if declared is not None else path.stem
        notices.append(Notice("role.invalid", message, str(path), role=_called(name)))
        return None
    if declared is None and kind == "md":
        declared = Declared(path.stem, "")
    content = _toml_content(data, str(path)) if kind == "toml" else _md_content(data, str(path))
    role = None if content.entries is None else _RoleMaker(content, content.entries, declared).role()
    otherwise = declared.name if declared is not None else path.stem
    name = role.name if role is not None else _name_in(content.source.text) or _called(otherwise)
    notices += (_notice(found, name) for found in content.report.diagnostics)
    if role is None or content.entries is None:
        return None
    return RoleFile(structs.replace(role, brought=top is not None), content.source, content.entries)


def _called(said: str) -> str:
    """What steps call the role of a file that says this name, also when the file cannot be used."""
    said = unicodedata.normalize("NFC", said.strip())
    return _SPACES.sub("-", said).lower() if _SPACES.search(said) else said


def _notice(found: Diagnostic, role: str) -> Notice:
    start = found.range.start
    if found.severity == "error":
        message = f"{IGNORED}{found.message}"
        code = REFUSED if found.code == REFUSED else "role.invalid"
        return Notice(code, message, found.file, start.line, "warning", role, start.column, found.help)
    return Notice(
        found.code, found.message, found.file, start.line, found.severity, role, start.column, found.help
    )


class _Content(Struct, frozen=True):
    """What a file says, in the terms of both kinds; without `entries` it says nothing that can be read."""

    source: Source
    report: Report
    entries: Entries | None = None
    instructions: str = ""
    granted: GrantedTools = GrantedTools(None)
    servers: dict[str, dict[str, Any]] = {}
    sandbox: SandboxMode = "workspace-write"
    restrictions: Restrictions = Restrictions()
    network: bool = False
    """Whether it asks for the network in another program's words."""
    lacked: tuple[str, ...] = ()
    """Keys that ask for what nobody does here."""


def _toml_content(data: bytes, file: str) -> _Content:
    from fanfold.text.trees.toml import parse_toml

    found, source, report = parse_toml(data, file, FORMAT)
    notes = Notes(report, source)
    entries = None if found is None else read_entries(found, TOML, notes)
    if entries is None:
        return _Content(source, report)
    granted = toml_tools(entries.scalars("tools"), notes) if "tools" in entries.nodes else GrantedTools(None)
    settings = entries.nodes.get("sandbox_workspace_write")
    reach = settings.get("network_access") if isinstance(settings, tree.Mapping) else None
    wants = {"web_search": _is_wanted(entries, "web_search"), "skills": _is_wanted(entries, "skills")}
    return _Content(
        source,
        report,
        entries,
        entries.text("instructions") or "",
        granted,
        _servers(plain(entries.nodes["mcp_servers"])) if "mcp_servers" in entries.nodes else {},
        codex_sandbox(entries, notes) or "workspace-write",
        network=isinstance(reach, Scalar) and reach.value is True,
        lacked=(*granted.lacked, *(key for key, wanted in wants.items() if wanted)),
    )


def _md_content(data: bytes, file: str) -> _Content:
    from fanfold.text.trees.front_matter import parse_front_matter

    found = parse_front_matter(data, file, FORMAT, HABITS)
    source, report, notes = found.source, found.report, Notes(found.report, found.source)
    for key in found.unread:
        if key in MD.keys:
            report.add(found.unread[key])
    if found.tree is None or not report.ok:
        return _Content(source, report)
    # A key without a value says nothing.
    said = [(key, value) for key, value in found.tree.entries if not _is_empty(value)]
    entries = read_entries(tree.Mapping(said, found.tree.start, found.tree.end), MD, notes)
    assert entries is not None, "it is a mapping"
    servers = _servers(texts(entries.nodes["mcp_servers"])) if "mcp_servers" in entries.nodes else {}
    tools, disallowed = entries.nodes.get("tools"), entries.nodes.get("disallowedTools")
    granted = claude_tools(tools, disallowed, entries.nodes.get("permission"), servers, notes)
    held = claude_restrictions(entries, notes)
    # Claude Code has no sandbox key: a plan-mode agent, or one whose tools only look, is a reader.
    sandbox: SandboxMode = "read-only" if held.reads or only_reads(granted.tools) else "workspace-write"
    lacked = [key for key in ("memory", "skills") if _is_wanted(entries, key)]
    return _Content(
        source,
        report,
        entries,
        found.body.strip(),
        granted,
        servers,
        sandbox,
        held,
        lacked=(*granted.lacked, *lacked, *held.lacked),
    )


def _is_wanted(entries: Entries, key: str) -> bool:
    """Whether a key asks for something, and does not switch it off."""
    node = entries.nodes.get(key)
    if isinstance(node, Scalar):
        return node.value not in (None, False, "", "none", "disabled")
    return node is not None


def _servers(value: object) -> dict[str, dict[str, Any]]:
    from fanfold.agents.toolbox.mcp.servers import servers_of  # few files name servers

    return servers_of(value)


class _RoleMaker:
    """Makes a role of a file's content, or says what is wrong and where."""

    def __init__(self, content: _Content, entries: Entries, declared: Declared | None) -> None:
        self._content = content
        self._entries = entries
        self._declared = declared
        self._notes = Notes(content.report, content.source)

    def role(self) -> Role | None:
        """The role, or None when something is wrong."""
        entries, content = self._entries, self._content
        name, description = self._name(), self._description()
        sandbox = SANDBOXES.get(entries.text("sandbox_mode") or "", content.sandbox)
        command = self._command()
        if command and entries.has("pipeline"):
            message = '"command" and "pipeline" are two strategies; a role has one'
            self._notes.error(".conflicting_keys", message, entries.keys["pipeline"])
        alone = self._declared is None  # other files may leave it at who works, and with which model
        if alone and not (content.instructions or entries.has("command") or entries.has("pipeline")):
            message = "the instructions are missing (developer_instructions, or the text after ---)"
            self._notes.error(".missing_key", message, (0, 0))
        role = Role(
            name=name,
            description=description,
            instructions=content.instructions,
            version=self._version(),
            sandbox_mode=sandbox,
            model=_model(entries.text("model"), is_claude=entries.shape is MD),
            reasoning_effort=entries.text("reasoning_effort"),
            fallback_models=tuple(one.text for one in entries.scalars("fallback_models")),
            tools=None if content.granted.tools is None else tuple(content.granted.tools),
            allowed_commands=(content.granted.commands,) if content.granted.commands else (),
            guards=content.restrictions.guards,
            asks=content.restrictions.asks,
            # What judges its calls is read where it cannot have changed it.
            isolated=content.restrictions.isolated or bool(content.restrictions.guards),
            max_turns=entries.integer("max_turns"),
            backend=entries.text("backend") or (COMMAND if command else None),
            command=command,
            mcp_servers=content.servers,
            network=self._network() is True or (content.network and not entries.has("network")),
            offline=self._network() is False,
            prompt_template=self._template(),
            pipeline=self._pipeline(sandbox),
            source=content.source.file,
        )
        if content.lacked:
            message = f'role "{name}" does without {listed(content.lacked)}, which nobody has here'
            self._notes.warning("role.lacks", message, entries.head())
        return role if content.report.ok else None

    def _name(self) -> str:
        """What the file calls the role, as steps can write it."""
        node = self._entries.nodes.get("name")
        said = node.text if isinstance(node, Scalar) else self._declared.name if self._declared else ""
        at = node or self._entries.head()
        said, name = unicodedata.normalize("NFC", said.strip()), _called(said)
        if not said and not self._entries.has("name"):
            self._notes.error(".missing_key", 'a role needs "name"', at)
        if self._entries.has("name") and node is None:
            return ""  # it is no text, which has been told
        if not NAME.match(name) and (said or self._entries.has("name")):
            hint = 'use letters, digits, "-", "_" and ".", at most 64 of them'
            self._notes.error(".bad_id", f'"name" cannot be "{said[:80]}"', at, hint)
        elif name != said:
            message = f'role "{said[:80]}" is called {name} here'
            self._notes.warning("role.renamed", message, at, f"steps say `agent: {name}`")
        return name

    def _description(self) -> str:
        node = self._entries.nodes.get("description")
        said = node.text.strip() if isinstance(node, Scalar) else ""
        if isinstance(node, Scalar) and not node.style and self._entries.shape is MD:
            said = said.replace("\\n", "\n")  # in plain text, which YAML takes as it is, people write it so
        said = said or (self._declared.description if self._declared else "")
        if not said and (node is not None or not self._entries.has("description")):
            at = node or self._entries.head()
            beside = self._declared is not None and self._entries.shape is not MD
            hint = "say it in the file, or beside its `config_file`" if beside else ""
            words = {word.text: word for word, _ in self._entries.mapping.entries}
            if node is None and (near := nearest("description", words)) is not None:
                at, hint = words[near], f'write "description" instead of {quoted(near)}'
            self._notes.error(".missing_key", 'a role needs a "description"', at, hint)
        return said

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
            tools=self._content.granted.tools,
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
    name = name.removeprefix(f"{ANTHROPIC.name}/")  # as programs with several providers write it
    if name.startswith(ANTHROPIC.families):
        return f"{ANTHROPIC.name}:{name}"
    return CLAUDE_MODELS.get(name.lower(), model)


def _is_empty(node: tree.Node) -> bool:
    return isinstance(node, Scalar) and node.value is None


def _name_in(text: str) -> str | None:
    """The name that a file which cannot be used gives itself, as far as that can be told."""
    found = re.search(r"^name[ \t]*[=:](.*)$", text, re.MULTILINE)
    said = found[1].strip() if found else ""
    quote = said[:1] if said[:1] in ("'", '"') else ""
    name = _called(said.removeprefix(quote).partition(quote or "#")[0])
    return name if NAME.match(name) else None
