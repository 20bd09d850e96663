"""Roles: named agent definitions that a step delegates to.

A role defines the behavior of an agent (instructions, model, tools) and its permissions (sandbox). Files
override built-in roles, and the project overrides the user:

    1 project .fanfold/agents/*.toml      4 user ~/.fanfold/agents/*.toml
    2 project .codex/agents/*.toml        5 user ~/.codex/agents/*.toml
    3 project .claude/agents/*.md         6 user ~/.claude/agents/*.md      7 built in

Sub-folders are read too, and so are the files that `.codex/config.toml` declares. A project inside a
repository also has the roles of its parent folders, up to the top of the repository. They come after its own
roles.

Rules
* Loading never raises an error for the content of a file. An unusable file becomes a `Notice` with file and
  line, because one broken file must not remove the other roles.
* A name in two places is always visible: the notice names the selected and the shadowed file.
* An unusable file still reserves its name (`broken`). A weaker role with that name is not the intended one
  and may have more permissions.
* There is one exception: a built-in role replaces a file that cannot be read, because a stray file must not
  remove it. A file that was refused, because a restriction cannot be enforced, also reserves a built-in name
  and its aliases.
* Several versions of one name can exist side by side. A bare name means the first root that has it and,
  within that root, the highest version.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

from fanfold.agents.command.profile import is_program
from fanfold.agents.providers import ANTHROPIC
from fanfold.agents.role import ALIASES, BUILT_IN, IGNORED, ROLES, Notice, Role
from fanfold.agents.role_files import NAME, RoleDeclaration, RoleFile, read_declarations, read_role
from fanfold.agents.tool_names import is_wanted, spellings
from fanfold.language.tree import Mapping as MappingNode
from fanfold.language.tree import plain
from fanfold.language.yaml_text import TextFormat, parse_yaml
from fanfold.project_files import read_beneath, walk_beneath

MAX_FILES_PER_ROOT = 500
MAX_FOLDERS = 200
MAX_DEPTH = 8
MISPLACED = "role.misplaced"
_KINDS = {".toml": "and *.toml in .fanfold/agents and .codex/agents", ".md": "and *.md in .claude/agents"}
"""The suffixes of role files, and the folders where each kind is read."""
_BUILT_IN = frozenset({*(role.name for role in ROLES), *ALIASES})


class Registry:
    """All known roles, by name and version.

    >>> load_roles(roots=()).find("researcher").name
    'explorer'
    """

    def __init__(
        self,
        roles: Iterable[Role],
        aliases: Mapping[str, str],
        notices: Sequence[Notice],
        ranks: Mapping[str, int] | None = None,
    ) -> None:
        """Create a registry; `ranks` maps each file to the rank of its root, where 0 is the strongest."""
        by_name: dict[str, list[Role]] = {}
        for role in roles:
            by_name.setdefault(role.name, []).append(role)
        # An alias follows its target. A real role with the name of the alias replaces the alias.
        for alias, target in aliases.items():
            if alias not in by_name and target in by_name:
                by_name[alias] = by_name[target]
        self._by_name = {name: tuple(found) for name, found in by_name.items()}
        self.notices = tuple(notices)
        self.broken: dict[str, str] = {}
        """The problems of files that would have been the strongest of their name."""
        ranks = ranks or {}
        for notice in self.notices:
            rank, found = ranks.get(notice.file), self.find(notice.role)
            if (
                notice.code not in ("role.invalid", "role.refused", MISPLACED)
                or not notice.role
                or rank is None
            ):
                continue
            built_in = found is not None and found.source == BUILT_IN and notice.code == "role.invalid"
            if built_in or (found is not None and notice.code == MISPLACED):  # steps do not expect it there
                continue
            if found is None or rank < ranks.get(found.source, sys.maxsize):
                why = notice.message.removeprefix(IGNORED)
                self.broken.setdefault(notice.role, f"{notice.file}:{notice.line}: {why}")
        for alias, target in aliases.items():
            if target in self.broken and self._by_name.get(alias) == self._by_name.get(target):
                self.broken.setdefault(alias, self.broken[target])

    def names(self) -> tuple[str, ...]:
        """Return every name that a step can use, with aliases, sorted."""
        return tuple(sorted(self._by_name.keys() - self.broken.keys()))

    def versions(self, name: str) -> tuple[str, ...]:
        """Return the versions of a name, the default one first; empty if no file has a version."""
        return tuple(role.version for role in self._by_name.get(name, ()) if role.version is not None)

    def with_version(self, version: str) -> tuple[Role, ...]:
        """Return every role with that version, sorted by name."""
        named = ((name, role) for name in self.names() for role in self._by_name[name])
        return tuple(role for name, role in named if role.name == name and role.version == _bare(version))

    def find(self, name: str, version: str | None = None) -> Role | None:
        """Return the role for `name`, `name@version` or the pair; None if there is none."""
        if version is None and "@" in name:
            name, _, version = name.partition("@")
        found = self._by_name.get(name, ())
        if version is None:
            return found[0] if found else None
        return next((role for role in found if role.version == _bare(version)), None)


class Root(Struct, frozen=True):
    """A folder that can contain role files."""

    folder: Path
    kind: Literal["toml", "md"]
    top: Path | None = None
    """The checkout that contains the folder; None for the user's own folder."""
    config: Path | None = None
    """The configuration file of Codex next to the folder; it can name more files."""


def load_roles(roots: Sequence[Root], project: Path | None = None, *, has_anthropic: bool = True) -> Registry:
    """Read every root in order of precedence; built-in roles come last.

    `project` is the folder whose servers complete roles that only name a server. Without `has_anthropic`,
    roles of Claude Code use the model of the run, because they can name only Anthropic models.
    """
    chosen: list[Role] = []
    notices: list[Notice] = []
    files: dict[str, RoleFile] = {}
    ranks: dict[str, int] = {}
    for rank, root in enumerate(roots):
        before = len(notices)
        found, described = _read_root(root, notices)
        files |= {entry.role.source: entry for entry in found}
        for file in (*(entry.role.source for entry in found), *(notice.file for notice in notices[before:])):
            ranks.setdefault(file, rank)
        in_order = sorted([*(entry.role for entry in found), *described], key=_newest_first)
        _take(chosen, notices, in_order)
    _take(chosen, notices, list(ROLES))
    if project is not None:
        servers = NamedServers(project, notices)
        chosen = [servers.complete(role) for role in chosen]
    known = Registry(chosen, ALIASES, ())
    chosen = [role for role in chosen if _is_usable(role, known, files, notices)]
    for role in chosen:
        _note_network(role, files, notices)
    if not has_anthropic:
        chosen = [_with_model_here(role, files, notices) for role in chosen]
    return Registry(chosen, ALIASES, notices, ranks)


def role_roots(project: Path, user_home: Path, fanfold_home: Path, above: Sequence[Path] = ()) -> list[Root]:
    """Return the folders for role files, the strongest first; `above` are the project's parent folders."""
    roots: list[Root] = []
    places: list[tuple[Path, Path, Path | None]] = [
        (folder / ".fanfold", folder, above[-1] if above else project) for folder in (project, *above)
    ]
    # If the user's home is the project itself, its files belong to the project.
    places.append((fanfold_home, user_home, None))
    for own, shared, top in places:
        for folder, kind, config in (
            (own / "agents", "toml", None),
            (shared / ".codex" / "agents", "toml", shared / ".codex" / "config.toml"),
            (shared / ".claude" / "agents", "md", None),
        ):
            inside = project if top is None and folder.is_relative_to(project) else top
            root = Root(folder, "md" if kind == "md" else "toml", inside, config)
            if all(folder != root.folder for root in roots):
                roots.append(root)
    return roots


def _read_root(root: Root, notices: list[Notice]) -> tuple[list[RoleFile], list[Role]]:
    """Return the roles of one root: those with their own files, and those with only a description."""
    declared = [] if root.config is None else read_declarations(root.config, root.top, notices)
    files = _list_root(root, notices)
    if named := {os.path.realpath(table.file) for table in declared if table.file is not None}:
        files = [path for path in files if os.path.realpath(path) not in named]
    described = [
        Role(
            name=table.name, description=table.description, source=table.source, brought=root.top is not None
        )
        for table in declared
        if table.file is None and table.description and table.name not in _BUILT_IN and NAME.match(table.name)
    ]
    found = [
        read_role(table.file, "toml", notices, root.top, RoleDeclaration(table.name, table.description))
        for table in declared
        if table.file is not None
    ]
    found += [read_role(path, root.kind, notices, root.top) for path in files]
    return [file for file in found if file is not None], described


def _list_root(root: Root, notices: list[Notice]) -> list[Path]:
    top = root.top or Path(root.folder.anchor)
    try:
        both = walk_beneath(top, root.folder, tuple(_KINDS), max_depth=MAX_DEPTH, max_folders=MAX_FOLDERS)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        notices.append(Notice("role.invalid", f"cannot list role files: {error.strerror}", str(root.folder)))
        return []
    names = [name for name in both if name.endswith(f".{root.kind}")]
    for path in (root.folder / name for name in both if not name.endswith(f".{root.kind}")):
        if not path.stem.isupper():  # README.md and similar files are not roles
            text = f"is not read: role files are *.{root.kind} in this folder, {_KINDS[path.suffix]}"
            notices.append(Notice(MISPLACED, text, str(path), role=path.stem))
    if len(names) > MAX_FILES_PER_ROOT:
        text = f"{len(names)} role files, only the first {MAX_FILES_PER_ROOT} are read"
        notices.append(Notice("role.invalid", text, str(root.folder)))
    return [root.folder / name for name in names[:MAX_FILES_PER_ROOT]]


def _take(chosen: list[Role], notices: list[Notice], root: list[Role]) -> None:
    """Add the roles of one root below those already chosen, with notices for shadowed roles."""
    before = {role.name: role for role in reversed(chosen)}
    for role in root:
        twin = next((r for r in chosen if r.name == role.name and r.version == role.version), None)
        winner = twin or before.get(role.name)
        if winner is not None:
            text = f'role "{role.name}" is taken from {winner.source}, which shadows {role.source}'
            if twin is None and role.version is not None:
                text += f" (still reachable as {role.name}@{role.version})"
            # The notice points to the file without effect, which the user must change. Built-in roles have no
            # file.
            place = winner.source if role.source == BUILT_IN else role.source
            notices.append(Notice("role.duplicate", text, place, role=role.name))
        if twin is None:
            chosen.append(role)


def _is_usable(role: Role, known: Registry, files: Mapping[str, RoleFile], notices: list[Notice]) -> bool:
    """Return whether the stages of a role are valid, and its back end would enforce its restrictions."""
    for number, stage in enumerate(role.pipeline, 1):
        if stage.agent is None:
            continue
        other, problem = known.find(stage.agent), ""
        if other is None:
            problem = f'there is no role "{stage.agent}"'
        elif other.pipeline:
            problem = f'role "{stage.agent}" has a pipeline of its own; stages do not nest'
        elif other.backend not in (None, "model"):
            problem = f'role "{stage.agent}" is a program; only a model can be a stage'
        if problem:
            text = f"{IGNORED}stage {number} of the pipeline: {problem}"
            notices.append(files[role.source].notice("role.invalid", text, "agent", number))
            return False
    if role.backend is not None and role.needs_our_tools and is_program(role.backend):
        message = f'{IGNORED}it says {role.needs_our_tools}, which "{role.backend}" does not enforce'
        notices.append(files[role.source].notice("role.refused", message, "backend"))
        return False
    return True


def _note_network(role: Role, files: Mapping[str, RoleFile], notices: list[Notice]) -> None:
    """Warn about a role without network access that needs it, before its sessions fail."""
    if role.network:
        return
    setting = "network: true" if _is_claude(role) else "network = true"
    # In roles of Claude Code, our own tool name means that the tool was not removed. It is no request.
    fetching = ("WebFetch",) if _is_claude(role) else ("WebFetch", "fetch_url")
    if any(name in fetching for name in role.tools or ()):
        message = (
            f'role "{role.name}" cannot fetch pages (WebFetch) without network access: set `{setting}` in it'
        )
        notices.append(files[role.source].notice("role.needs_network", message, "tools"))
    for name, settings in role.mcp_servers.items():
        if is_wanted(name, role.tools) and _is_remote(settings):
            message = f'role "{role.name}" cannot reach its MCP server "{name}": set `{setting}` in it'
            notices.append(files[role.source].notice("role.needs_network", message, "mcp_servers"))


def _with_model_here(role: Role, files: Mapping[str, RoleFile], notices: list[Notice]) -> Role:
    """Return the role for a machine without Anthropic: one of Claude Code uses the model of the run."""
    anthropic = (role.model or "").startswith(f"{ANTHROPIC.name}:")
    if role.backend is not None or not _is_claude(role) or not anthropic:
        return role
    message = (
        f'role "{role.name}" asks for {role.model}, which needs {ANTHROPIC.key_variable}: '
        "the run's own model is used"
    )
    notices.append(files[role.source].notice("role.model", message, "model"))
    return structs.replace(role, model=None)


def _newest_first(role: Role) -> tuple[str, bool, tuple[int, str]]:
    number = role.version or ""
    ordered = (-int(number), "") if number.isdecimal() else (1, number)
    return (role.name, role.version is None, ordered)


def _bare(version: str) -> str:
    """Return a version without a leading `v`: `v2` and `2` are the same, as in recipe references."""
    return version[1:] if version[:1] == "v" and version[1:].isdecimal() else version


_ADDRESSES = ("url", "httpUrl", "serverUrl")


def _is_claude(role: Role) -> bool:
    return role.source.endswith(".md")


def _is_remote(settings: Mapping[str, object]) -> bool:
    """Return whether an enabled server is an address and not a program."""
    off = str(settings.get("enabled")).lower() == "false" or str(settings.get("disabled")).lower() == "true"
    kind = settings.get("type", settings.get("transport"))
    if kind is not None:
        return not off and str(kind).lower() not in ("stdio", "local")
    return not off and "command" not in settings and any(key in settings for key in _ADDRESSES)


# -----------------------------------------------------------------------------------------------------------
# MCP servers that a role only names: their definitions are in `.mcp.json`, as in Claude Code.
#
# The file belongs to the checkout, so its servers need the same consent as those of a role. A file that
# cannot be read defines no servers and causes a notice.

FILE = ".mcp.json"
MAX_BYTES = 256 * 1024
FORMAT = TextFormat(name="servers", max_bytes=MAX_BYTES, clean_text=False, clean_values=False)


class NamedServers:
    """The servers of one project by name, read when a role first names one."""

    def __init__(self, project: Path, notices: list[Notice]) -> None:
        self._project = project
        self._file = project / FILE
        self._notices = notices
        self._found: dict[str, dict[str, Any]] | None = None

    def complete(self, role: Role) -> Role:
        """Return the role with the project's definitions of its servers."""
        declared = role.mcp_servers
        # As in Claude Code, a tool of a server that the role does not define belongs to a server of the
        # project.
        listed = [tool.split("__")[1] for tool in role.tools or () if tool.startswith("mcp__")]
        if all(declared.values()) and all(any(name in spellings(one) for one in declared) for name in listed):
            return role
        if self._found is None:
            self._found = self._read()
        servers = {name: settings or self._found.get(name, {}) for name, settings in declared.items()}
        servers |= {
            name: self._found[name]
            for name in self._found
            if name not in declared and spellings(name) & set(listed)
        }
        named = tuple(name for name in servers if not declared.get(name))
        known = {spelled for name, settings in servers.items() if settings for spelled in spellings(name)}
        for name in dict.fromkeys([*declared, *listed]):
            if name not in known and is_wanted(name, role.tools):
                message = f'role "{role.name}" names the MCP server "{name[:64]}", which is not configured'
                hint = f"add it to {FILE} of the project, or to the role"
                notice = Notice("role.no_server", message, role.source, role=role.name, help=hint)
                self._notices.append(notice)
        return structs.replace(role, mcp_servers=servers, project_servers=named)

    def _read(self) -> dict[str, dict[str, Any]]:
        from fanfold.agents.tools.mcp_servers import servers_of

        try:
            data = read_beneath(self._project, self._file, MAX_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            message = f"its MCP servers cannot be read: {error.strerror}"
            self._notices.append(Notice("role.invalid", message, str(self._file)))
            return {}
        found, _, report = parse_yaml(data, str(self._file), FORMAT)
        for diagnostic in report.diagnostics[:1]:
            message, at = f"its MCP servers cannot be read: {diagnostic.message}", diagnostic.range.start
            self._notices.append(
                Notice(
                    "role.invalid", message, diagnostic.file, at.line, column=at.column, help=diagnostic.help
                )
            )
        servers = found.get("mcpServers") if isinstance(found, MappingNode) and report.ok else None
        return {} if servers is None else servers_of(plain(servers))
