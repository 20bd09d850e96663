"""Role files: TOML in the format of Codex, and markdown with front matter in the format of Claude Code.

Both formats become the same tree and then a `Role`. A file is untrusted input: its size is limited, every
value is checked, and every problem becomes a notice with its position. Unknown keys belong to other programs
and cause only a note.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct, structs

from fanfold.agents.providers import ANTHROPIC
from fanfold.agents.role import COMMAND, IGNORED, CallGuard, Notice, Role, SandboxMode, Stage
from fanfold.agents.role_tools import (
    GrantedTools,
    StageBounds,
    claude_tools,
    only_reads,
    read_stages,
    toml_tools,
)
from fanfold.language import tree
from fanfold.language.diagnostics import Diagnostic, Report, Source, nearest
from fanfold.language.tables import Entries, Key, Notes, listed, quoted, read_entries, shape, span_of
from fanfold.language.template import TemplateError, parse_template
from fanfold.language.toml_text import Habits, parse_front_matter, parse_toml
from fanfold.language.tree import Mapping, Node, Scalar, Sequence, plain, texts
from fanfold.language.yaml_text import TextFormat
from fanfold.project_files import read_beneath

# -----------------------------------------------------------------------------------------------------------
# The keys of role files, in TOML and in front matter, and common ways to write the latter.
#
# A key that is read and has no effect is listed here with the reason. A key that is not listed belongs to
# another program and causes only a note.

SANDBOXES: dict[str, SandboxMode] = {
    "read-only": "read-only",
    "workspace-write": "workspace-write",
    "danger-full-access": "danger-full-access",
}
_COMMON = (
    Key("name", "text", "What steps call it."),
    Key("description", "text", "What it is for."),
    Key("version", "json", "Steps may ask for `name@version`."),
    Key("sandbox_mode", "word", "How much it may touch.", words=tuple(SANDBOXES)),
    Key("model", "text", "The model that does the work."),
    Key("reasoning_effort", "text", "How long that model thinks."),
    Key(
        "fallback_backends",
        "texts",
        "Back ends that do its work while an outage or a usage limit keeps its own from it.",
    ),
    Key("fallback_models", "texts", "Models to ask when that one cannot answer."),
    Key("max_turns", "integer", "How often it may be asked.", low=1, high=10_000),
    Key("may_ask", "boolean", "Whether it may ask a person (tool `ask_user`)."),
    Key("backend", "text", "Who does the work."),
    Key("command", "arguments", "The program that does the work."),
    Key("mcp_servers", "json", "Servers whose tools it has."),
    Key("network", "json", 'Whether it may reach the network; "provider" is what agents need themselves.'),
    Key("prompt_template", "template", "What a step without a prompt says."),
    Key("pipeline", "objects", "Stages that run one after the other."),
)
_OF_CODEX = ("approval_policy", "model_reasoning_summary", "model_verbosity", "nickname_candidates")
_SHOWN = ("background", "color")
TOML = shape(
    "role",
    "A role as Codex writes it.",
    *_COMMON,
    Key("instructions", "text", "Its instructions."),
    Key("developer_instructions", "text", "The same.", alias="instructions"),
    Key("model_reasoning_effort", "text", "The same.", alias="reasoning_effort"),
    Key("tools", "texts", "The tools that it may use; all when none are named."),
    Key("default_permissions", "text", "The same as `sandbox_mode`, for the profiles of Codex itself."),
    Key("sandbox_workspace_write", "json", "Of which `network_access` counts."),
    Key("web_search", "json", "Not here."),
    Key("skills", "json", "Skills that it has, by name."),
    *(Key(name, "json", "Not ours to follow.") for name in _OF_CODEX),
    open=True,
)
MD = shape(
    "role",
    "A role as Claude Code writes it; the text below is its instructions.",
    *_COMMON,
    Key("effort", "text", "How long the model thinks.", alias="reasoning_effort"),
    Key("maxTurns", "integer", "How often it may be asked.", low=1, high=10_000, alias="max_turns"),
    Key("mcpServers", "json", "Servers whose tools it has.", alias="mcp_servers"),
    Key("tools", "json", "The tools that it may use; all when none are named."),
    Key("disallowedTools", "json", "Tools that it may not use."),
    *(
        Key(name, "json", "The same.", alias="tools")
        for name in ("allowed-tools", "allowed_tools", "allowedTools")
    ),
    *(
        Key(name, "json", "The same.", alias="disallowedTools")
        for name in ("disallowed-tools", "disallowed_tools")
    ),
    Key("permission", "json", "Of which what it denies counts, as other programs have it."),
    Key("permissions", "json", "The same.", alias="permission"),
    Key("readonly", "json", "`true` makes a reader of it, as in Cursor."),
    *(Key(name, "json", "The same.", alias="readonly") for name in ("readOnly", "read_only", "read-only")),
    Key("permissionMode", "text", "`plan` makes a reader of it, `dontAsk` answers its questions with no."),
    Key("isolation", "json", "`worktree` keeps it out of the project itself."),
    Key("hooks", "json", "Commands that judge its calls."),
    Key("memory", "json", "Not here."),
    Key("skills", "json", "Skills that it has, by name."),
    *(Key(name, "json", "Nothing hangs on it.") for name in _SHOWN),
    open=True,
)

# Other common keys of front matter. They also end a text that is not indented.
_ELSEWHERE = (
    "argument-hint author category created initialprompt license maxtokens metadata mode omitclaudemd"
    " priority source tags temperature triggers updated"
)
HABITS = Habits(
    known=frozenset({*map(str.lower, MD.keys), *_ELSEWHERE.split()}),
    prose=frozenset({"description"}),
    repeated=frozenset({"color"}),
)

# -----------------------------------------------------------------------------------------------------------
# Restrictions in role files: each is enforced, or the role is refused.
#
# Rules
# * An unknown mode, isolation or profile may be a restriction. The role is refused, with the position and a
#   hint. It never runs without the restriction.
# * A request for more than a role gets here (`acceptEdits`, `bypassPermissions`) has no effect: the user's
#   own permission decides.
# * A hook that allows or denies calls before they run is a guard. It is enforced if it is a command. A guard
#   by a model or a server refuses the role. Other hooks restrict nothing and do not run.

GUARDING = ("PreToolUse", "PermissionRequest")
MAX_GUARDS = 16
MAX_GUARD_S = 600
_AS_USUAL = frozenset({"", "default", "ask", "manual", "acceptedits", "auto", "bypasspermissions"})
_PROFILES: dict[str, SandboxMode] = {
    # The permission profiles of Codex.
    ":read-only": "read-only",
    ":workspace": "workspace-write",
    ":danger-full-access": "danger-full-access",
}


class Restrictions(NamedTuple):
    """The restrictions that one file puts on its role."""

    reads: bool = False
    asks: bool = True
    isolated: bool = False
    guards: tuple[CallGuard, ...] = ()
    lacked: tuple[str, ...] = ()
    """Features that the file requests in the same keys and that do not exist here."""


def claude_restrictions(entries: Entries, notes: Notes) -> Restrictions:
    """Return the restrictions in `permissionMode`, `readonly`, `isolation` and `hooks` of Claude Code."""
    node, mode = entries.nodes.get("permissionMode"), entries.text("permissionMode") or ""
    if node is not None and mode == "bypassPermissions":
        notes.note("role.note", "permissionMode bypassPermissions gives it no more than any other role", node)
    elif node is not None and mode not in ("plan", "dontAsk") and mode.lower() not in _AS_USUAL:
        hint = "there are default, acceptEdits, plan, dontAsk and bypassPermissions"
        notes.error(
            ".refused", f"permissionMode {quoted(mode)} is unknown, so it cannot be enforced", node, hint
        )
    readonly = entries.nodes.get("readonly")
    reads = readonly is not None and not (isinstance(readonly, Scalar) and readonly.value is False)
    isolation = entries.nodes.get("isolation")
    text = _text(isolation)
    none = isinstance(isolation, Scalar) and (isolation.value in (None, False) or text in ("none", "shared"))
    if isolation is not None and text != "worktree" and not none:
        shown = quoted(text) if isinstance(isolation, Scalar) else "that"
        hint = "only `isolation: worktree` is supported"
        notes.error(".refused", f"isolation {shown} is not supported here", isolation, hint)
    hooks = entries.nodes.get("hooks")
    guards, lacked = ((), ()) if hooks is None else read_hooks(hooks, notes)
    return Restrictions(mode == "plan" or reads, mode != "dontAsk", text == "worktree", guards, lacked)


def read_hooks(hooks: Node, notes: Notes) -> tuple[tuple[CallGuard, ...], tuple[str, ...]]:
    """Return the guards among the hooks of a file, and the names of the other hooks, which do not run.

    The form is `event: [{matcher, hooks: [{type, command, timeout}]}]`.
    """

    def refuse(message: str, at: Node) -> None:
        hint = "only `type: command` can check a call here; remove the hook, or use another role"
        notes.error(".refused", message, at, hint)

    guards: list[CallGuard] = []
    lacked: list[str] = []
    if not isinstance(hooks, Mapping):
        refuse("hooks must be a map of events", hooks)
        return (), ()
    for event, groups in hooks.entries:
        if event.text not in GUARDING:
            lacked += [f"{event.text} hooks"] if event.text[:1].isalpha() else []
        elif not isinstance(groups, Sequence):
            refuse("hooks of an event must be a list", groups)
        else:
            for group in groups.items:
                guards += _read_group(group, refuse)
    if len(guards) > MAX_GUARDS:
        refuse(f"it has more than {MAX_GUARDS} hooks before its calls", hooks)
    return tuple(guards), tuple(lacked)


def _read_group(group: Node, refuse: Callable[[str, Node], None]) -> Iterator[CallGuard]:
    inner = group.get("hooks") if isinstance(group, Mapping) else None
    matcher = group.get("matcher") if isinstance(group, Mapping) else None
    if not isinstance(inner, Sequence) or not (matcher is None or isinstance(matcher, Scalar)):
        refuse("hooks need a `matcher` and a list of `hooks`", group)
        return
    tools = _text(matcher)
    if re.fullmatch(r"\*?|[\w*.-]+(?:\|[\w*.-]+)*", tools) is None:
        refuse(f"the hooks' matcher {quoted(tools)} is no pattern", group)
    for hook in inner.items:
        settings = {key.text: value for key, value in hook.entries} if isinstance(hook, Mapping) else {}
        kind, command = _text(settings.get("type")), _text(settings.get("command"))
        unknown = set(settings) - {"type", "command", "timeout", "statusMessage"}
        timeout = settings.get("timeout")
        seconds = timeout.value if isinstance(timeout, Scalar) and type(timeout.value) is int else 60
        if kind != "command" or not command.strip() or unknown:
            what = next(iter(sorted(unknown)), f"type {kind or 'none'}")
            refuse(f"its hooks guard tools in a way that is not supported here ({what})", hook)
        elif not 1 <= seconds <= MAX_GUARD_S:
            refuse(f"the timeout of a hook must be from 1 to {MAX_GUARD_S} seconds", hook)
        else:
            yield CallGuard(tools if tools != "*" else "", command, seconds)


def codex_sandbox(entries: Entries, notes: Notes) -> SandboxMode | None:
    """Return the sandbox of Codex's `default_permissions`; None if the file has no such key."""
    profile = entries.nodes.get("default_permissions")
    if profile is None:
        return None
    known = _PROFILES.get(profile.text) if isinstance(profile, Scalar) else None
    if known is None:
        hint = "write `sandbox_mode` instead; it is enforced"
        notes.error(".refused", "the profile in default_permissions is not supported here", profile, hint)
    return known


def _text(node: Node | None) -> str:
    return node.text if isinstance(node, Scalar) else ""


MAX_FILE_BYTES = 256 * 1024
PROVIDER_ONLY = "provider"
FORMAT = TextFormat(name="role", max_bytes=MAX_FILE_BYTES, clean_text=False, clean_values=False)
NAME = re.compile(r"[^\W_][\w.-]{0,63}\Z")
_SPACES = r"[ /:]+"
REFUSED = f"{FORMAT.name}.refused"
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}\Z")
_BOM = b"\xef\xbb\xbf"

_LARGE = f"{ANTHROPIC.name}:claude-opus-5-5"
CLAUDE_MODELS = {
    # Names of models in Claude Code.
    "sonnet": ANTHROPIC.default,
    "opus": _LARGE,
    "haiku": ANTHROPIC.fast,
    "fable": f"{ANTHROPIC.name}:claude-fable-5-1",
    "opusplan": _LARGE,
}


class RoleDeclaration(Struct, frozen=True):
    """The name and description of a role from the file that refers to its file."""

    name: str
    description: str


class RoleFile(NamedTuple):
    """A role and the file it was read from; used for notices at a key of the file."""

    role: Role
    source: Source
    entries: Entries

    def notice(self, code: str, message: str, key: str, stage: int = 0) -> Notice:
        """Return a warning at a key of the file, or of a stage of its pipeline."""
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
    declared: RoleDeclaration | None = None,
) -> RoleFile | None:
    """Return one file as a role, or None with notices that name each problem and its position.

    `top` is the checkout that contains the file; a link that leads out of it is not followed. `declared` is
    the declaration that refers to the file.
    """
    try:
        # The user's own files can be links to any place. Files of a project must be inside it.
        data = read_beneath(top or Path(path.anchor), path, MAX_FILE_BYTES + 1).removeprefix(_BOM)
    except OSError as error:
        message = f"{IGNORED}cannot be read: {error.strerror}"
        name = declared.name if declared is not None else path.stem
        notices.append(Notice("role.invalid", message, str(path), role=_called(name)))
        return None
    if declared is None and kind == "md":
        declared = RoleDeclaration(path.stem, "")
    content = _toml_content(data, str(path)) if kind == "toml" else _md_content(data, str(path))
    role = None if content.entries is None else _RoleMaker(content, content.entries, declared).role()
    otherwise = declared.name if declared is not None else path.stem
    name = role.name if role is not None else _name_in(content.source.text) or _called(otherwise)
    notices += (_notice(found, name) for found in content.report.diagnostics)
    if role is None or content.entries is None:
        return None
    return RoleFile(structs.replace(role, brought=top is not None), content.source, content.entries)


def _called(text: str) -> str:
    """Return the name that steps use for a role with this name in its file, even if the file is unusable."""
    text = unicodedata.normalize("NFC", text.strip())
    return re.sub(_SPACES, "-", text).lower() if re.search(_SPACES, text) else text


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
    """The content of a file, the same for both formats; without `entries` it is unreadable."""

    source: Source
    report: Report
    entries: Entries | None = None
    instructions: str = ""
    granted: GrantedTools = GrantedTools(None)
    servers: dict[str, dict[str, Any]] = {}
    sandbox: SandboxMode = "workspace-write"
    restrictions: Restrictions = Restrictions()
    network: bool = False
    """Whether it requests the network with a key of another program."""
    lacked: tuple[str, ...] = ()
    """Keys that request features which do not exist here."""


def _toml_content(data: bytes, file: str) -> _Content:
    found, source, report = parse_toml(data, file, FORMAT)
    notes = Notes(report, source)
    entries = None if found is None else read_entries(found, TOML, notes)
    if entries is None:
        return _Content(source, report)
    granted = toml_tools(entries.scalars("tools"), notes) if "tools" in entries.nodes else GrantedTools(None)
    settings = entries.nodes.get("sandbox_workspace_write")
    reach = settings.get("network_access") if isinstance(settings, tree.Mapping) else None
    wants = {
        "web_search": _is_wanted(entries, "web_search"),
        "skills": _is_wanted(entries, "skills") and not skills_in(entries),
    }
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
    file_parts = parse_front_matter(data, file, FORMAT, HABITS)
    source, report, notes = file_parts.source, file_parts.report, Notes(file_parts.report, file_parts.source)
    for key in file_parts.unread:
        if key in MD.keys:
            report.add(file_parts.unread[key])
    if file_parts.tree is None or not report.ok:
        return _Content(source, report)
    # A key without a value has no effect.
    filled = [
        (key, value)
        for key, value in file_parts.tree.entries
        if not (isinstance(value, Scalar) and value.value is None)
    ]
    entries = read_entries(tree.Mapping(filled, file_parts.tree.start, file_parts.tree.end), MD, notes)
    assert entries is not None, "it is a mapping"
    servers = _servers(texts(entries.nodes["mcp_servers"])) if "mcp_servers" in entries.nodes else {}
    tools, disallowed = entries.nodes.get("tools"), entries.nodes.get("disallowedTools")
    granted = claude_tools(tools, disallowed, entries.nodes.get("permission"), servers, notes)
    restrictions = claude_restrictions(entries, notes)
    # Claude Code has no sandbox key. An agent in plan mode, or with only reading tools, is read-only.
    sandbox: SandboxMode = (
        "read-only" if restrictions.reads or only_reads(granted.tools) else "workspace-write"
    )
    lacked = [key for key in ("memory", "skills") if _is_wanted(entries, key)]
    lacked = [key for key in lacked if key != "skills" or not skills_in(entries)]
    return _Content(
        source,
        report,
        entries,
        file_parts.body.strip(),
        granted,
        servers,
        sandbox,
        restrictions,
        lacked=(*granted.lacked, *lacked, *restrictions.lacked),
    )


def skills_in(entries: Entries) -> tuple[str, ...]:
    """Return the names of skills in a file: a list, or text with commas; empty for anything else."""
    node = entries.nodes.get("skills")
    value = None if node is None else plain(node)
    names = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(name.strip() for name in names if isinstance(name, str) and name.strip())


def _is_wanted(entries: Entries, key: str) -> bool:
    """Return whether a key requests something and does not disable it."""
    node = entries.nodes.get(key)
    if isinstance(node, Scalar):
        return node.value not in (None, False, "", "none", "disabled")
    return node is not None


def _servers(value: object) -> dict[str, dict[str, Any]]:
    from fanfold.agents.tools.mcp_servers import servers_of  # few files name servers

    return servers_of(value)


class _RoleMaker:
    """Creates a role from the content of a file, or reports each problem with its position."""

    def __init__(self, content: _Content, entries: Entries, declared: RoleDeclaration | None) -> None:
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
        alone = self._declared is None  # a declared file can consist of a back end and a model
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
            fallback_backends=tuple(scalar.text for scalar in entries.scalars("fallback_backends")),
            fallback_models=tuple(scalar.text for scalar in entries.scalars("fallback_models")),
            tools=None if content.granted.tools is None else tuple(content.granted.tools),
            allowed_commands=(content.granted.commands,) if content.granted.commands else (),
            guards=content.restrictions.guards,
            asks=content.restrictions.asks,
            # A guard's program is read from a snapshot, where the role cannot have changed it.
            isolated=content.restrictions.isolated or bool(content.restrictions.guards),
            max_turns=entries.integer("max_turns"),
            may_ask=entries.flag("may_ask"),
            skills=skills_in(entries),
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
            which = "which do not exist" if len(content.lacked) > 1 else "which does not exist"
            message = f'role "{name}" works without {listed(content.lacked)}, {which} here'
            self._notes.warning("role.lacks", message, entries.head())
        return role if content.report.ok else None

    def _name(self) -> str:
        """Return the name of the role in the form that steps can write."""
        node = self._entries.nodes.get("name")
        written = node.text if isinstance(node, Scalar) else self._declared.name if self._declared else ""
        at = node or self._entries.head()
        written, name = unicodedata.normalize("NFC", written.strip()), _called(written)
        if not written and not self._entries.has("name"):
            self._notes.error(".missing_key", 'a role needs "name"', at)
        if self._entries.has("name") and node is None:
            return ""  # not a text, already reported
        if not NAME.match(name) and (written or self._entries.has("name")):
            hint = 'use letters, digits, "-", "_" and ".", at most 64 of them'
            self._notes.error(".bad_id", f'"name" cannot be "{written[:80]}"', at, hint)
        elif name != written:
            message = f'role "{written[:80]}" is called {name} here'
            self._notes.warning("role.renamed", message, at, f"steps say `agent: {name}`")
        return name

    def _description(self) -> str:
        node = self._entries.nodes.get("description")
        text = node.text.strip() if isinstance(node, Scalar) else ""
        if isinstance(node, Scalar) and not node.style and self._entries.shape is MD:
            text = text.replace("\\n", "\n")  # in unquoted YAML, authors mean a line break
        text = text or (self._declared.description if self._declared else "")
        if not text and (node is not None or not self._entries.has("description")):
            at = node or self._entries.head()
            beside = self._declared is not None and self._entries.shape is not MD
            hint = "add it to the file, or next to its `config_file`" if beside else ""
            words = {word.text: word for word, _ in self._entries.mapping.entries}
            if node is None and (near := nearest("description", words)) is not None:
                at, hint = words[near], f'write "description" instead of {quoted(near)}'
            self._notes.error(".missing_key", 'a role needs a "description"', at, hint)
        return text

    def _network(self) -> bool | str | None:
        """Return True, False, `provider`, or None if the key is missing."""
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
            return tuple(scalar.text for scalar in self._entries.scalars("command"))
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
        bounds = StageBounds(
            tools=self._content.granted.tools,
            read_only=sandbox == "read-only",
            network=self._network() is True,
            own_tools=bool(self._content.servers),
        )
        return read_stages(self._entries.nodes["pipeline"], self._notes, bounds)


def _model(model: str | None, *, is_claude: bool) -> str | None:
    """Return a Claude Code model with its provider; None for the model of the run."""
    if not is_claude or model is None:
        return model
    if model in ("", "inherit", "default"):
        return None
    name = model.strip().removesuffix("[1m]")  # a larger context window, which is not supported
    name = name.removeprefix(f"{ANTHROPIC.name}/")  # the notation of programs with several providers
    if name.startswith(ANTHROPIC.families):
        return f"{ANTHROPIC.name}:{name}"
    return CLAUDE_MODELS.get(name.lower(), model)


def _name_in(text: str) -> str | None:
    """Return the role name in an unusable file, if it can be found."""
    line = re.search(r"^name[ \t]*[=:](.*)$", text, re.MULTILINE)
    written = line[1].strip() if line else ""
    quote = written[:1] if written[:1] in ("'", '"') else ""
    name = _called(written.removeprefix(quote).partition(quote or "#")[0])
    return name if NAME.match(name) else None


# -----------------------------------------------------------------------------------------------------------
# Roles in the configuration of Codex: `[agents.NAME]` in `.codex/config.toml`.
#
# Such a table has a description and names a file with the rest. That file can omit its name and description.
# Everything else in the configuration belongs to Codex and has no effect here.
#
# Rules
# * The file is read like any role file of the same root. A file that a project names must be inside the
#   checkout.
# * Problems of the configuration cause notices. They do not affect the files in `.codex/agents`.
# * A table without a file describes a role with only a description. Under a built-in name it has no effect.

MAX_BYTES = 1024 * 1024
MAX_DECLARED = 500


class Declaration(NamedTuple):
    """One table: name and description of the role, and the file with the rest, if there is one."""

    name: str
    description: str
    file: Path | None
    source: str


def read_declarations(config: Path, top: Path | None, notices: list[Notice]) -> list[Declaration]:
    """Return the roles that one configuration declares, in its order; empty if there are none."""
    try:
        data = read_beneath(top or Path(config.anchor), config, MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        notices.append(Notice("role.invalid", f"its roles cannot be read: {error.strerror}", str(config)))
        return []
    if b"agents" not in data:  # most have none; parsing costs time at every start
        return []
    found, source, report = parse_toml(data, str(config), structs.replace(FORMAT, max_bytes=MAX_BYTES))
    for diagnostic in report.diagnostics[:1]:
        message, at = f"its roles cannot be read: {diagnostic.message}", diagnostic.range.start
        notices.append(Notice("role.invalid", message, str(config), at.line, column=at.column))
    agents = found.get("agents") if isinstance(found, Mapping) and report.ok else None
    declared: list[Declaration] = []
    for key, table in agents.entries[:MAX_DECLARED] if isinstance(agents, Mapping) else ():
        if not isinstance(table, Mapping):
            continue  # `max_threads` and similar keys are for Codex
        file, description = table.get("config_file"), _text(table.get("description"))
        path: Path | None = None
        if isinstance(file, Scalar) and isinstance(file.value, str) and file.text:
            # Relative to the folder of the configuration, or else of the project.
            path, from_project = config.parent / file.text, config.parent.parent / file.text
            path = from_project if not path.exists() and from_project.exists() else path
        elif file is not None:
            message = f'{IGNORED}"config_file" of agents.{key.text[:80]} must be the path of a file'
            line = source.position(key.start).line
            notices.append(Notice("role.invalid", message, str(config), line, role=key.text))
            continue
        declared.append(Declaration(key.text, description, path, str(config)))
    return declared
