"""Roles: named agent definitions that a step delegates to.

A role says how an agent behaves (instructions, model, tools) and how much it may touch (sandbox).
Files win over what is built in, the project wins over the user:

    1 project .fanfold/agents/*.toml      4 user ~/.fanfold/agents/*.toml
    2 project .codex/agents/*.toml        5 user ~/.codex/agents/*.toml
    3 project .claude/agents/*.md         6 user ~/.claude/agents/*.md      7 built in

Sub-folders are read too, and so are the files that `.codex/config.toml` declares. A project inside a
repository has the roles of the folders above it as well, after its own, up to the repository's top.

Rules
* Loading never raises for what a file contains. A file that cannot be used becomes a `Notice` that
  names file and line, because one broken file must not take the other roles away.
* One name in two places is always visible: the notice names the selected and the shadowed file.
* A file that cannot be used still stands for its name (`broken`): a role of that name from further down is
  not what was meant, and may be allowed more. Only a built-in role serves in the place of one that cannot be
  read: a stray file must not take it away. One that was read and refused, since what it forbids cannot be
  kept, stands for its name there too, and for the aliases of that name.
* Several versions of one name may live side by side; a bare name means the first root that has it
  and, within that root, the highest version.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from fanfold.agents.role import BUILT_IN, IGNORED, Notice, Role
from fanfold.agents.roles.builtin import ALIASES, ROLES
from fanfold.trust.project_files import list_beneath, walk_beneath

if TYPE_CHECKING:
    from fanfold.agents.roles.declared import Declaration
    from fanfold.agents.roles.files import RoleFile

MAX_FILES_PER_ROOT = 500
MAX_FOLDERS = 200
MAX_DEPTH = 8
MISPLACED = "role.misplaced"
_KINDS = {
    ".toml": "and *.toml in .fanfold/agents and .codex/agents",
    ".md": "and *.md in .claude/agents",
}
"""What ends the names of role files, and where those are looked for."""
_BUILT_IN = frozenset({*(role.name for role in ROLES), *ALIASES})


class Registry:
    """All roles known in one place, by name and version.

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
        """`ranks` are those of the roots that files were read for, by file; the strongest is 0."""
        by_name: dict[str, list[Role]] = {}
        for role in roles:
            by_name.setdefault(role.name, []).append(role)
        # An alias follows whatever its target has become; a real role of that name takes it away.
        for alias, target in aliases.items():
            if alias not in by_name and target in by_name:
                by_name[alias] = by_name[target]
        self._by_name = {name: tuple(found) for name, found in by_name.items()}
        self._aliases = aliases
        self.notices = tuple(notices)
        self.broken = self._broken(ranks or {})
        """What is wrong with files that would have been the strongest of their name."""

    def _broken(self, ranks: Mapping[str, int]) -> dict[str, str]:
        broken: dict[str, str] = {}
        for notice in self.notices:
            rank, found = ranks.get(notice.file), self.find(notice.role)
            if (
                notice.code not in ("role.invalid", "role.refused", MISPLACED)
                or not notice.role
                or rank is None
            ):
                continue
            if found is not None and found.source == BUILT_IN and notice.code == "role.invalid":
                continue
            if found is not None and notice.code == MISPLACED:  # nobody looks for it there
                continue
            if found is None or rank < ranks.get(found.source, sys.maxsize):
                why = notice.message.removeprefix(IGNORED)
                broken.setdefault(notice.role, f"{notice.file}:{notice.line}: {why}")
        for alias, target in self._aliases.items():
            if target in broken and self._by_name.get(alias) == self._by_name.get(target):
                broken.setdefault(alias, broken[target])
        return broken

    def names(self) -> tuple[str, ...]:
        """Every name a step may use, aliases included, sorted."""
        return tuple(sorted(self._by_name.keys() - self.broken.keys()))

    def versions(self, name: str) -> tuple[str, ...]:
        """Versions of a name, the meant one first; empty when no file says a version."""
        return tuple(role.version for role in self._by_name.get(name, ()) if role.version is not None)

    def with_version(self, version: str) -> tuple[Role, ...]:
        """Every role of one version, by name."""
        named = ((name, role) for name in self.names() for role in self._by_name[name])
        return tuple(role for name, role in named if role.name == name and role.version == _bare(version))

    def find(self, name: str, version: str | None = None) -> Role | None:
        """The role meant by `name`, `name@version` or the pair; None when there is none."""
        if version is None and "@" in name:
            name, _, version = name.partition("@")
        found = self._by_name.get(name, ())
        if version is None:
            return found[0] if found else None
        return next((role for role in found if role.version == _bare(version)), None)


class Root(Struct, frozen=True):
    """A folder where role files may live."""

    folder: Path
    kind: Literal["toml", "md"]
    top: Path | None = None
    """The checkout that it came with; None for the user's own."""
    config: Path | None = None
    """Codex's configuration beside it, which may name more files."""


def load_roles(roots: Sequence[Root], project: Path | None = None, *, has_anthropic: bool = True) -> Registry:
    """Read every root in order of precedence; built-in roles come last.

    `project` is where servers are looked up that roles only name. Without `has_anthropic` the roles of Claude
    Code, which can name no other models than Anthropic's, take the model that a run has anyway.
    """
    chosen: list[Role] = []
    notices: list[Notice] = []
    files: dict[str, RoleFile] = {}
    ranks: dict[str, int] = {}
    for rank, root in enumerate(roots):
        told = len(notices)
        found, described = _read_root(root, notices)
        files |= {one.role.source: one for one in found}
        for file in (*(one.role.source for one in found), *(notice.file for notice in notices[told:])):
            ranks.setdefault(file, rank)
        in_order = sorted([*(one.role for one in found), *described], key=_newest_first)
        _take(chosen, notices, in_order)
    _take(chosen, notices, list(ROLES))
    if project is not None and any(role.mcp_servers or _names_servers(role) for role in chosen):
        from fanfold.agents.roles.named_servers import NamedServers

        servers = NamedServers(project, notices)
        chosen = [servers.complete(role) for role in chosen]
    if any(role.pipeline for role in chosen):
        chosen = _without_bad_stages(Registry(chosen, ALIASES, ()), chosen, files, notices)
    if any(role.source != BUILT_IN for role in chosen):  # start-up pays for every import
        from fanfold.agents.roles.needs import kept_by_their_programs, tell_of_network, with_models_here

        chosen = kept_by_their_programs(chosen, files, notices)
        tell_of_network(chosen, files, notices)
        chosen = chosen if has_anthropic else with_models_here(chosen, files, notices)
    return Registry(chosen, ALIASES, notices, ranks)


def role_roots(project: Path, user_home: Path, fanfold_home: Path, above: Sequence[Path] = ()) -> list[Root]:
    """The folders where role files may live, the strongest first; `above` are those around the project."""
    roots: list[Root] = []
    places: list[tuple[Path, Path, Path | None]] = [
        (folder / ".fanfold", folder, above[-1] if above else project) for folder in (project, *above)
    ]
    # The user's own home may be the project itself; then what is in it is the project's.
    places.append((fanfold_home, user_home, None))
    for own, shared, top in places:
        for folder, kind, config in (
            (own / "agents", "toml", None),
            (shared / ".codex" / "agents", "toml", shared / ".codex" / "config.toml"),
            (shared / ".claude" / "agents", "md", None),
        ):
            inside = project if top is None and folder.is_relative_to(project) else top
            root = Root(folder, "md" if kind == "md" else "toml", inside, config)
            if all(folder != one.folder for one in roots):
                roots.append(root)
    return roots


def _read_root(root: Root, notices: list[Notice]) -> tuple[list[RoleFile], list[Role]]:
    """The roles of one root: those read from files of their own, and those that are a few words elsewhere."""
    declared: list[Declaration] = []
    if root.config is not None and _is_there(root.config, root.top):  # start-up pays for every import
        from fanfold.agents.roles.declared import read_declarations

        declared = read_declarations(root.config, root.top, notices)
    files = _list_root(root, notices)
    if named := {os.path.realpath(one.file) for one in declared if one.file is not None}:
        files = [path for path in files if os.path.realpath(path) not in named]
    if not files and not declared:
        return [], []
    # Only here: most projects have no role files.
    from fanfold.agents.roles.files import NAME, Declared, read_role

    described = [
        Role(name=one.name, description=one.description, source=one.source, brought=root.top is not None)
        for one in declared
        if one.file is None and one.description and one.name not in _BUILT_IN and NAME.match(one.name)
    ]
    found = [
        read_role(one.file, "toml", notices, root.top, Declared(one.name, one.description))
        for one in declared
        if one.file is not None
    ]
    found += [read_role(path, root.kind, notices, root.top) for path in files]
    return [one for one in found if one is not None], described


def _is_there(file: Path, top: Path | None) -> bool:
    """Whether there is such an entry, found out without following a link that leads out of the checkout."""
    try:
        return file.name in list_beneath(top or Path(file.anchor), file.parent)
    except OSError:
        return False


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
        if not path.stem.isupper():  # README.md and its like are no roles
            text = f"is not read: role files are *.{root.kind} in this folder, {_KINDS[path.suffix]}"
            notices.append(Notice(MISPLACED, text, str(path), role=path.stem))
    if len(names) > MAX_FILES_PER_ROOT:
        text = f"{len(names)} role files, only the first {MAX_FILES_PER_ROOT} are read"
        notices.append(Notice("role.invalid", text, str(root.folder)))
    return [root.folder / name for name in names[:MAX_FILES_PER_ROOT]]


def _names_servers(role: Role) -> bool:
    return any(name.startswith("mcp__") for name in role.tools or ())


def _take(chosen: list[Role], notices: list[Notice], root: list[Role]) -> None:
    """Add one root's roles below those already chosen, saying what is shadowed."""
    before = {role.name: role for role in reversed(chosen)}
    for role in root:
        twin = next((r for r in chosen if r.name == role.name and r.version == role.version), None)
        winner = twin or before.get(role.name)
        if winner is not None:
            text = f'role "{role.name}" is taken from {winner.source}, which shadows {role.source}'
            if twin is None and role.version is not None:
                text += f" (still reachable as {role.name}@{role.version})"
            # At the file that has no effect, which is the one to be changed; what is built in has no lines.
            place = winner.source if role.source == BUILT_IN else role.source
            notices.append(Notice("role.duplicate", text, place, role=role.name))
        if twin is None:
            chosen.append(role)


def _without_bad_stages(
    known: Registry, chosen: list[Role], files: Mapping[str, RoleFile], notices: list[Notice]
) -> list[Role]:
    """Leave out roles whose stages name a role that cannot do a stage; only now are all roles known."""
    kept: list[Role] = []
    for role in chosen:
        problem = next(_stage_problems(known, role), None)
        if problem is None:
            kept.append(role)
            continue
        number, message = problem
        text = f"{IGNORED}stage {number} of the pipeline: {message}"
        notices.append(files[role.source].notice("role.invalid", text, "agent", number))
    return kept


def _stage_problems(known: Registry, role: Role) -> Iterator[tuple[int, str]]:
    for number, stage in enumerate(role.pipeline, 1):
        name = stage.agent
        if name is None:
            continue
        other = known.find(name)
        if other is None:
            yield number, f'there is no role "{name}"'
        elif other.pipeline:
            yield number, f'role "{name}" has a pipeline of its own; stages do not nest'
        elif other.backend not in (None, "model"):
            yield number, f'role "{name}" is no model but a program, which cannot be a stage'


def _newest_first(role: Role) -> tuple[str, bool, tuple[int, str]]:
    number = role.version or ""
    ordered = (-int(number), "") if number.isdecimal() else (1, number)
    return (role.name, role.version is None, ordered)


def _bare(version: str) -> str:
    """`v2` and `2` are the same version, as in recipe references."""
    return version[1:] if version[:1] == "v" and version[1:].isdecimal() else version
