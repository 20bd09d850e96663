"""Skills: folders with a `SKILL.md`, which roles and steps name and agents read when they need them.

Rules
* A skill is a folder whose `SKILL.md` starts with front matter (`name`, `description`). It is found where
  Fanfold, Codex and Claude Code look: `.fanfold/skills`, `.codex/skills`, `.agents/skills` and
  `.claude/skills` of the project, then of the user. The first folder of that name counts.
* Only skills that a role or step names reach an agent. Its prompt has their names and descriptions. The agent
  reads their files on demand with `read_skill`, and runs their scripts like any other command: in the
  sandbox, with the permissions of its step.
* A run uses skills as they were when it started: their files are copied to the user's own folder, by digest.
  Links and special files are left out. The sandbox shows the copy, read-only.
* A skill of a project is text of its authors. It is marked so in the prompt, and it grants nothing: neither
  tools nor commands nor network access.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from fanfold.agents.backend import ToolFailed, Tools, ToolsAround
from fanfold.agents.role import Skill
from fanfold.agents.tool_names import ToolSpec, object_schema, text_schema
from fanfold.errors import AuthorError, WorldError
from fanfold.kernel.plan import JSON
from fanfold.language.diagnostics import nearest
from fanfold.language.terminal import one_line
from fanfold.project_files import list_beneath, read_beneath

FILE = "SKILL.md"
COPIES = "skill-copies"
"""The folder of copies below the user's own folder."""
MAX_FILES = 256
MAX_FILE_BYTES = 1024 * 1024
MAX_BYTES = 8 * 1024 * 1024
MAX_DESCRIPTION_CHARS = 500
READ_CHARS = 32_000
NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
TOOL = "read_skill"
_DESCRIPTION = r"^description:[ \t]*(?:[>|][+-]?[ \t]*\r?\n)?(.+(?:\r?\n[ \t]+.+)*)"
"""The value in front matter, which may continue on indented lines."""


class SkillRoot(NamedTuple):
    """A folder of skills."""

    folder: Path
    top: Path
    """The folder that must contain every file; no link on the way is followed."""
    brought: bool


def skill_roots(project: Path, user_home: Path, fanfold_home: Path) -> list[SkillRoot]:
    """Return the folders in which skills are looked up, the strongest first."""
    names = (".codex/skills", ".agents/skills", ".claude/skills")
    own = [SkillRoot(project / name, project, True) for name in (".fanfold/skills", *names)]
    return [
        *own,
        SkillRoot(fanfold_home / "skills", fanfold_home, False),
        *(SkillRoot(user_home / name, user_home, False) for name in names),
    ]


def take_skills(names: Iterable[str], roots: Sequence[SkillRoot], home: Path | None) -> dict[str, Skill]:
    """Return the named skills that are found, copied to the user's folder, or not copied without `home`."""
    taken: dict[str, Skill] = {}
    for name in dict.fromkeys(names):
        if (found := _find(name, roots)) is not None:
            root, text = found
            folder = root.folder / name
            if home is not None:
                folder = _copied(name, dict(_files(root.top, folder, name)), home)
            taken[name] = Skill(name, _description(text), str(folder), root.brought)
    return taken


def check_skills(needed: Iterable[str], wanted: Iterable[str], roots: Sequence[SkillRoot]) -> list[str]:
    """Raise if a skill of a step is missing.

    Returns a warning for each missing skill of a role, and for each skill of the project that has the name of
    one of the user's.
    """
    warnings: list[str] = []
    needed = dict.fromkeys(needed)
    for name in dict.fromkeys((*needed, *wanted)):
        found = _find(name, roots)
        if found is None and name in needed:
            known: set[str] = set()
            for root in roots:
                with suppress(OSError):
                    known |= {
                        entry for entry in list_beneath(root.top, root.folder) if re.fullmatch(NAME, entry)
                    }
            near = nearest(name, sorted(known))
            hint = f'did you mean "{near}"?' if near else f"known skills: {', '.join(sorted(known)[:50])}"
            hint = f"its folder has no readable {FILE}; links are not followed" if name in known else hint
            hint = hint if known else f"put a folder with a {FILE} into .fanfold/skills"
            raise AuthorError("skill.not_found", f'there is no skill "{one_line(name)}" here', hint=hint)
        if found is None:
            warnings.append(
                f'a role names the skill "{one_line(name)}", which does not exist here: it works without'
            )
        elif found[0].brought and _find(name, [root for root in roots if not root.brought]) is not None:
            warnings.append(f'the skill "{name}" is the project\'s, which shadows yours')
    return warnings


def own_copies(skills: Mapping[str, Skill], home: Path) -> dict[str, Skill]:
    """Return the skills of a run that another user may have written, without those that are no copies here.

    The folder of a skill is shown to programs, so a log must not choose it.
    """
    copies = os.path.realpath(home / COPIES)
    return {
        name: structs.replace(skill, brought=True)
        for name, skill in skills.items()
        if str(Path(os.path.realpath(skill.folder)).parent.parent) == copies
    }


def _find(name: str, roots: Sequence[SkillRoot]) -> tuple[SkillRoot, str] | None:
    """Return the first folder of skills that has this one, and the text of its `SKILL.md`."""
    for root in roots if re.fullmatch(NAME, name) else ():
        try:
            data = read_beneath(root.top, root.folder / name / FILE, MAX_FILE_BYTES)
        except OSError:
            continue
        return root, data.decode("utf-8", "replace")
    return None


def _files(top: Path, folder: Path, name: str) -> Iterator[tuple[str, tuple[bytes, bool]]]:
    """Yield the files of a skill by their paths in it, with whether each can be executed."""
    count = total = 0
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if not os.path.islink(os.path.join(place, one)))
        for file in sorted(files):
            path = Path(place) / file
            if path.is_symlink() or not path.is_file():
                continue
            data = read_beneath(top, path, MAX_FILE_BYTES + 1)
            count, total = count + 1, total + len(data)
            if count > MAX_FILES or len(data) > MAX_FILE_BYTES or total > MAX_BYTES:
                message = f'the skill "{name}" is too large ({path.relative_to(folder)})'
                hint = f"at most {MAX_FILES} files, 1 MiB each and 8 MiB together"
                raise WorldError("skill.too_large", message, hint=hint)
            yield str(path.relative_to(folder)), (data, os.access(path, os.X_OK))


def _copied(name: str, files: Mapping[str, tuple[bytes, bool]], home: Path) -> Path:
    """Return the folder with these files, made if it is not there yet."""
    digest = sha256()
    for path, (data, runs) in sorted(files.items()):
        name_bytes = os.fsencode(path)
        digest.update(b"%d:%b:%d:%d:%b" % (len(name_bytes), name_bytes, runs, len(data), data))
    target = home / COPIES / digest.hexdigest()[:32] / name
    if target.exists():
        return target
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=target.parent))
    for path, (data, runs) in files.items():
        file = made / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod(0o555 if runs else 0o444)
    made.chmod(0o755)
    try:
        made.rename(target)
    except OSError:  # another process made it meanwhile
        if not target.exists():
            raise
    return target


def _description(text: str) -> str:
    """Return the description in the front matter of a `SKILL.md`; else its first line of text."""
    head = re.match(r"---\r?\n(.*?)\r?\n---\r?\n", text, re.DOTALL)
    found = re.search(_DESCRIPTION, head[1], re.MULTILINE) if head else None
    body = text[head.end() :] if head else text
    first = next((line.strip() for line in body.splitlines() if line.strip()), "")
    plain = found[1].strip().strip("'\"") if found else first
    return one_line(" ".join(plain.split()))[:MAX_DESCRIPTION_CHARS]


SPEC = ToolSpec(
    TOOL,
    "Read a file of one of your skills.",
    object_schema(
        "skill",
        skill=text_schema("The name of the skill."),
        path=text_schema("The file in its folder; default: SKILL.md."),
    ),
)


class SkilledTools(ToolsAround):
    """The tools of a session with skills: those of the session, and one that reads skills."""

    def __init__(self, tools: Tools, skills: Sequence[Skill]) -> None:
        super().__init__(tools)
        self._skills = {skill.name: skill for skill in skills}

    def offered(self) -> Sequence[ToolSpec]:
        return (*super().offered(), SPEC)

    def mutates(self, name: str) -> bool:
        return name != TOOL and super().mutates(name)

    async def call(self, name: str, args: Mapping[str, Any]) -> JSON:
        if name != TOOL:
            return await super().call(name, args)
        skill = self._skills.get(str(args.get("skill")))
        if skill is None:
            message = f"there is no such skill; you have {', '.join(self._skills)}"
            raise ToolFailed("tool", "skill.not_found", message)
        path = str(args.get("path") or FILE)
        text = await asyncio.to_thread(_read, skill, path)
        shown = {"skill": skill.name, "path": path, "text": text[:READ_CHARS]}
        return {**shown, "cut": f"{len(text):,} characters in all"} if len(text) > READ_CHARS else shown


def _read(skill: Skill, path: str) -> str:
    folder = Path(skill.folder)
    try:
        data = read_beneath(folder, folder / os.path.normpath(path), MAX_FILE_BYTES)
    except (OSError, ValueError):
        files = [str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()]
        message = f"{skill.name} has no file {one_line(path)}; it has {', '.join(files[:50])}"
        raise ToolFailed("tool", "skill.no_file", message) from None
    return data.decode("utf-8", "replace")
