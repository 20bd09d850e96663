"""Roles: named agent definitions that a step delegates to.

A role says how an agent behaves (instructions, model, tools) and how much it may touch (sandbox).
Files win over what is built in, the project wins over the user:

    1 project .fanfold/agents/*.toml      4 user ~/.fanfold/agents/*.toml
    2 project .codex/agents/*.toml        5 user ~/.codex/agents/*.toml
    3 project .claude/agents/*.md         6 user ~/.claude/agents/*.md      7 built in

Rules
* Loading never raises for what a file contains. A file that cannot be used becomes a `Notice` that
  names file and line, because one broken file must not take the other roles away.
* One name in two places is always visible: the notice names the selected and the shadowed file.
* A file that cannot be used still stands for its name (`broken`): a role of that name from further down is
  not what was meant, and may be allowed more.
* Several versions of one name may live side by side; a bare name means the first root that has it
  and, within that root, the highest version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fanfold.agents.role import BUILT_IN, IGNORED, Notice, Role
from fanfold.agents.roles.builtin import ALIASES, ROLES
from fanfold.trust.project_files import list_beneath

if TYPE_CHECKING:
    from fanfold.agents.roles.files import RoleFile

MAX_FILES_PER_ROOT = 500


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
        roots: Sequence[Path] = (),
    ) -> None:
        by_name: dict[str, list[Role]] = {}
        for role in roles:
            by_name.setdefault(role.name, []).append(role)
        # An alias follows whatever its target has become; a real role of that name takes it away.
        for alias, target in aliases.items():
            if alias not in by_name and target in by_name:
                by_name[alias] = by_name[target]
        self._by_name = {name: tuple(found) for name, found in by_name.items()}
        self.notices = tuple(notices)
        self.broken = self._broken(roots)
        """What is wrong with files that would have been the strongest of their name."""

    def _broken(self, roots: Sequence[Path]) -> dict[str, str]:
        places = {str(root): rank for rank, root in enumerate(roots)}
        broken: dict[str, str] = {}
        for notice in self.notices:
            file = Path(notice.file)
            rank, found = places.get(str(file.parent)), self.find(notice.role)
            if notice.code != "role.invalid" or rank is None:
                continue
            if found is None or rank < places.get(str(Path(found.source).parent), len(roots)):
                why = notice.message.removeprefix(IGNORED)
                broken.setdefault(notice.role, f"{notice.file}:{notice.line}: {why}")
        return broken

    def names(self) -> tuple[str, ...]:
        """Every name a step may use, aliases included, sorted."""
        return tuple(sorted(self._by_name))

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


def load_roles(
    roots: Sequence[tuple[Path, Literal["toml", "md"]]],
    project: Path | None = None,
    *,
    has_anthropic: bool = True,
) -> Registry:
    """Read every root in order of precedence; built-in roles come last.

    `project` is where servers are looked up that roles only name. Without `has_anthropic` the roles of Claude
    Code, which can name no other models than Anthropic's, take the model that a run has anyway.
    """
    chosen: list[Role] = []
    notices: list[Notice] = []
    files: dict[str, RoleFile] = {}
    for folder, kind in roots:
        top = project if project is not None and folder.is_relative_to(project) else None
        found = _read_root(folder, kind, notices, top)
        files |= {one.role.source: one for one in found}
        _take(chosen, notices, [one.role for one in found])
    _take(chosen, notices, list(ROLES))
    if project is not None and any(role.mcp_servers for role in chosen):
        from fanfold.agents.roles.named_servers import NamedServers

        servers = NamedServers(project, notices)
        chosen = [servers.complete(role) for role in chosen]
    if any(role.pipeline for role in chosen):
        chosen = _without_bad_stages(Registry(chosen, ALIASES, ()), chosen, files, notices)
    if any(role.source != BUILT_IN for role in chosen):  # start-up pays for every import
        from fanfold.agents.roles.needs import tell_of_network, with_models_here

        tell_of_network(chosen, files, notices)
        chosen = chosen if has_anthropic else with_models_here(chosen, files, notices)
    return Registry(chosen, ALIASES, notices, [folder for folder, _ in roots])


def role_roots(
    project: Path, user_home: Path, fanfold_home: Path
) -> list[tuple[Path, Literal["toml", "md"]]]:
    """The six folders where role files may live, the strongest first."""
    roots: list[tuple[Path, Literal["toml", "md"]]] = []
    for own, shared in ((project / ".fanfold", project), (fanfold_home, user_home)):
        roots.append((own / "agents", "toml"))
        roots.append((shared / ".codex" / "agents", "toml"))
        roots.append((shared / ".claude" / "agents", "md"))
    return roots


def _read_root(
    folder: Path, kind: Literal["toml", "md"], notices: list[Notice], top: Path | None
) -> list[RoleFile]:
    try:
        names = list_beneath(top or Path(folder.anchor), folder)
        files = [folder / name for name in names if name.endswith(f".{kind}")]
    except FileNotFoundError:
        return []
    except OSError as error:
        notices.append(Notice("role.invalid", f"cannot list role files: {error.strerror}", str(folder)))
        return []
    if len(files) > MAX_FILES_PER_ROOT:
        text = f"{len(files)} role files, only the first {MAX_FILES_PER_ROOT} are read"
        notices.append(Notice("role.invalid", text, str(folder)))
    if not files:
        return []
    # Only here: most projects have no role files, and start-up pays for every import.
    from fanfold.agents.roles.files import read_role

    found = (read_role(path, kind, notices, top) for path in files[:MAX_FILES_PER_ROOT])
    return sorted((one for one in found if one is not None), key=lambda one: _newest_first(one.role))


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
