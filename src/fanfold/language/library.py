"""The search for recipes: files by path, or names in the project's, the user's and the built-in folder.

    <folder>/name.yaml   name.yml   name/recipe.yaml   name@2.yaml   name@2/recipe.yaml

Rules
* A reference with a slash or a YAML suffix is a path. Anything else is a name, with or without a version
  (`name@2`, `name@v2`). Without a version, the highest one is used.
* The nearest folder with the name is used for all its versions, and the shadowed files are reported.
* A file that cannot be read is listed with its problem. One broken file does not affect the others.
* Names cannot lead out of a folder: they are slugs, links are not followed, and files are saved atomically.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fanfold.errors import AuthorError, NotFoundError, WorldError
from fanfold.language.diagnostics import nearest
from fanfold.language.draft import FoundRecipe
from fanfold.project_files import Closing, LedOut, resolve_beneath, write_whole

MAX_FILES_PER_FOLDER = 2_000
SUFFIXES = (".yaml", ".yml")
_NAMED = r"(?a)(?P<name>[a-z0-9][a-z0-9_-]{0,63})(?:@v?(?P<version>[1-9][0-9]{0,9}))?"
_VERSION_LINE = rb"(?m)^version:[ \t]*([1-9][0-9]{0,9})[ \t]*(?:#.*)?\r?$"


class ListedRecipe(Struct, frozen=True):
    """One recipe in a folder."""

    name: str
    version: int
    description: str
    origin: str
    """`project`, `user` or `builtin`."""
    file: str
    warnings: tuple[str, ...] = ()
    """The files it shadows, or why it cannot be used."""


class _Candidate(Struct, frozen=True):
    name: str
    version: int | None
    """None: the file name has no version; the text has it."""
    origin: str
    file: Path


class Library:
    """The folders with recipes, nearest first."""

    def __init__(
        self, project: Path | None, user: Path | None, builtin: Path, *, top: Path | None = None
    ) -> None:
        """Create a library; `top` is the project's folder, and its recipes cannot refer to files outside."""
        self._folders = [("project", project), ("user", user), ("builtin", builtin)]
        self._project = project
        self._top = top

    def find(self, ref: str, relative_to: str | None = None) -> FoundRecipe:
        """Return the recipe for `./file.yaml`, `name` or `name@version`; raises NotFoundError.

        `relative_to` is the file with the reference.
        """
        if is_path(ref):
            base = os.path.dirname(relative_to) if relative_to is not None else ""
            file = os.path.normpath(os.path.join(base, ref))
            try:
                self._refuse_outside(file, relative_to)
                return FoundRecipe(_read(Path(file)), file)
            except NotFoundError as error:
                if error.details.get("there"):
                    raise
                folder, name = os.path.split(file)
                names: list[str] = []
                with suppress(OSError):
                    names = os.listdir(folder or ".")[:MAX_FILES_PER_FOLDER]
                meant = nearest(name, [one for one in names if one.endswith(SUFFIXES)])
                hint = f'did you mean "{os.path.join(os.path.dirname(ref), meant)}"?' if meant else error.hint
                raise NotFoundError(error.code, error.message, hint=hint, details=error.details) from None
        if (named := re.fullmatch(_NAMED, ref)) is None:
            message = f'"{ref[:80]}" cannot be the name of a recipe'
            raise NotFoundError("recipe.unknown_workflow", message, hint="write name, name@2 or ./file.yaml")
        wanted = int(named["version"]) if named["version"] else None
        found = [
            entry for entry in self._named(named["name"]) if wanted is None or _version_of(entry) == wanted
        ]
        if not found:
            raise self._unknown(named["name"], wanted)
        origin = found[0].origin
        here = [entry for entry in found if entry.origin == origin]
        chosen = max(here, key=_version_of)
        hidden = [entry for entry in found if entry.origin != origin]
        hidden += [
            entry for entry in here if entry is not chosen and _version_of(entry) == _version_of(chosen)
        ]
        shadowed = tuple(str(entry.file) for entry in hidden)
        return FoundRecipe(_read(chosen.file), str(chosen.file), origin, shadowed)

    def _refuse_outside(self, file: str, referring: str | None) -> None:
        """Refuse a file outside the project, or else the folder, of the recipe that refers to it.

        A user can name any file, except by a link inside the project that leads out of it.
        """
        top = self._top
        if referring is not None:
            if top is None or not _is_below(referring, top):
                top = Path(os.path.dirname(referring) or ".")
            message = f"{file} is outside {top}"
            hint = "a recipe names files of its own project, and other recipes by name"
        elif top is None or not Path(os.path.abspath(file)).is_relative_to(os.path.realpath(top)):
            return
        else:
            message = f"{file} is a link to a target outside the project"
            hint = "name the target itself, if you trust it"
        if not _is_below(file, top):
            raise NotFoundError("recipe.unknown_workflow", message, hint=hint, details={"there": True})

    def _unknown(self, name: str, version: int | None) -> NotFoundError:
        if versions := sorted({_version_of(entry) for entry in self._named(name)}):
            listed = ", ".join(str(version) for version in versions)
            message = f'recipe "{name}" has no version {version}'
            return NotFoundError("recipe.unknown_workflow", message, hint=f"there are versions {listed}")
        beside = [
            os.path.join(folder, f"{name}{suffix}") for folder in ("", self._top or "") for suffix in SUFFIXES
        ]
        if (file := next((one for one in beside if os.path.isfile(one)), None)) is not None:
            hint = f'did you mean the file "{os.path.relpath(file)}"?'
            return NotFoundError("recipe.unknown_workflow", f'there is no recipe "{name}"', hint=hint)
        meant = nearest(name, self.names())
        hint = f'did you mean "{meant}"?' if meant else "`fanfold list` shows the recipes known here"
        return NotFoundError("recipe.unknown_workflow", f'there is no recipe "{name}"', hint=hint)

    def names(self) -> list[str]:
        """Return the names of all recipes, without opening a file."""
        return sorted({candidate.name for candidate in self._candidates()})

    def list(self) -> list[ListedRecipe]:
        """Return every recipe by name and version; shadowed ones are only named in a warning."""
        by_name: dict[str, list[_Candidate]] = {}
        for candidate in self._candidates():
            by_name.setdefault(candidate.name, []).append(candidate)
        entries: list[ListedRecipe] = []
        for name in sorted(by_name):
            origin = by_name[name][0].origin
            hidden = [str(one.file) for one in by_name[name] if one.origin != origin]
            here = [_entry(one) for one in by_name[name] if one.origin == origin]
            here.sort(key=lambda entry: (entry.version, entry.file))
            for entry in here:
                # Files with the same version in this folder; the highest version also shadows other folders.
                twins = [one.file for one in here if one is not entry and one.version == entry.version]
                shadowed = [*(hidden if entry is here[-1] else ()), *twins]
                message = f"recipe.shadowed: {entry.file} shadows {', '.join(shadowed)}"
                warnings = (*entry.warnings, message) if shadowed else entry.warnings
                entries.append(replace(entry, warnings=warnings))
        return entries

    def _candidates(self) -> Iterator[_Candidate]:
        for origin, folder in self._folders:
            if folder is not None:
                yield from _scan(origin, folder)

    def _named(self, name: str) -> tuple[_Candidate, ...]:
        return tuple(candidate for candidate in self._candidates() if candidate.name == name)

    def save(self, name: str, text: str) -> Path:
        """Write `name.yaml` (or `name@2.yaml`) to the project's folder atomically."""
        if (folder := self._project) is None:
            raise AuthorError("recipe.no_project", "the recipe cannot be saved: there is no project")
        require_name(name)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{name}.yaml"
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            message = f"{folder} cannot be used to save recipes: {error.strerror or error}"
            raise WorldError("recipe.not_saved", message, hint="links are not followed") from None
        with Closing(handle):
            with suppress(FileNotFoundError):
                if not stat.S_ISREG(os.stat(target.name, dir_fd=handle, follow_symlinks=False).st_mode):
                    message = f"{target} is not a regular file and is not replaced"
                    raise WorldError("recipe.not_saved", message)
            try:
                write_whole(target.name, text.encode("utf-8"), folder=handle, mode=0o644, durable=True)
            except OSError as error:
                message = f"{target.name} was not saved: {error.strerror or error}"
                raise WorldError("recipe.not_saved", message) from None
        return target


def require_name(name: str) -> None:
    """Raise an error unless this is a valid name for saving: `name` or `name@2`."""
    if re.fullmatch(_NAMED, name) is None:
        hint = "use lower-case letters, digits, - and _, at most 64 of them"
        raise AuthorError("recipe.bad_value", f'"{name[:80]}" cannot be the name of a recipe', hint=hint)


def said_by_file(file: str) -> tuple[str | None, int | None]:
    """Return the name and version in a file's own name; None if there is none."""
    folder, base = os.path.split(file)
    stem = os.path.basename(folder) if base == "recipe.yaml" else os.path.splitext(base)[0]
    if (named := re.fullmatch(_NAMED, stem)) is None:
        return None, None
    return named["name"], int(named["version"]) if named["version"] else None


def is_path(ref: str) -> bool:
    """Return whether a reference names a file and not a recipe."""
    return "/" in ref or os.sep in ref or ref.endswith(SUFFIXES)


# ---------------------------------------------------------------------------------------------------
# Folders


def _is_below(file: str, top: Path) -> bool:
    """Return whether a file, with every link resolved, is below a folder."""
    try:
        resolve_beneath(top, Path(file))
    except LedOut:
        return False
    return True


def _scan(origin: str, folder: Path) -> Iterator[_Candidate]:
    try:
        names = sorted(os.listdir(folder))[:MAX_FILES_PER_FOLDER]
    except OSError:
        return  # a missing folder has no recipes
    for name in names:
        file = folder / name
        stem, suffix = os.path.splitext(name)
        if suffix not in SUFFIXES:
            stem, file = name, file / "recipe.yaml"
        if (named := re.fullmatch(_NAMED, stem)) is not None and _is_own_file(file):
            version = int(named["version"]) if named["version"] else None
            yield _Candidate(named["name"], version, origin, file)


def _is_own_file(file: Path) -> bool:
    """Return whether it is a regular file in its folder; a link could lead anywhere."""
    try:
        return stat.S_ISREG(os.lstat(file).st_mode) and not file.parent.is_symlink()
    except OSError:
        return False


def _read(file: Path) -> bytes:
    """Return at most one byte more than the limit of a recipe; the parser then reports the problem."""
    from fanfold.language.yaml_text import MAX_BYTES

    missing = f"there is no file {file}"
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):  # opening a pipe would block
            message = f"{file} is not a file"
            raise NotFoundError("recipe.unknown_workflow", message, details={"there": True})
        with open(file, "rb") as opened:
            return opened.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise NotFoundError("recipe.unknown_workflow", missing, hint="check the path") from None
    except OSError as error:
        message = f"{file} cannot be read: {error.strerror or error}"
        raise NotFoundError("recipe.unknown_workflow", message, details={"there": True}) from None


def _version_of(candidate: _Candidate) -> int:
    """Return the version from the file's name or quickly from its text, because many files are read."""
    if candidate.version is not None:
        return candidate.version
    try:
        found = re.search(_VERSION_LINE, _read(candidate.file))
    except NotFoundError:
        return 1
    return int(found[1]) if found else 1


# ---------------------------------------------------------------------------------------------------
# Entries


def _entry(candidate: _Candidate) -> ListedRecipe:
    """Return the list entry of a file; a broken file has its first error."""
    from fanfold.language.tree import Mapping, plain
    from fanfold.language.yaml_text import parse_yaml

    version = _version_of(candidate)
    description = ""
    warnings: list[str] = []
    try:
        tree, _, report = parse_yaml(_read(candidate.file), str(candidate.file))
    except NotFoundError as error:
        warnings.append(error.message)
    else:
        if (first := report.first_error) is not None:
            warnings.append(f"{first.code} at line {first.range.start.line}: {first.message}")
        if isinstance(tree, Mapping):
            keys = plain(tree)
            name, inside, text = keys.get("name"), keys.get("version"), keys.get("description")
            description = text if isinstance(text, str) else ""
            if isinstance(name, str) and name not in ("", candidate.name):
                warnings.append(f'the file is called "{candidate.name}", but says its name is "{name}"')
            if type(inside) is int and inside != version:
                warnings.append(f"the file is called version {version}, but says {inside}")
        elif report.ok:
            warnings.append("recipe.bad_type: the file is not a map of keys")
    return ListedRecipe(
        candidate.name, version, description, candidate.origin, str(candidate.file), tuple(warnings)
    )
