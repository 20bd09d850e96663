"""Where recipes are found: files by path, else names in the project's, the user's and our own folder.

    <folder>/name.yaml   name.yml   name/recipe.yaml   name@2.yaml   name@2/recipe.yaml

Rules
* A reference with a slash or a YAML suffix is a path; anything else is a name, with or without a version
  (`name@2`, `name@v2`). Without one the highest version is meant.
* The nearest folder that has the name wins with all its versions; what it hides is said.
* A file that cannot be read is listed with what is wrong with it: one broken file takes nothing away
  from the others.
* Names cannot lead out of a folder: they are slugs, links are not followed, and saving replaces a file
  as a whole or not at all.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from fanfold.errors import AuthorError, NotFoundError, WorldError
from fanfold.recipe.surroundings import FoundRecipe
from fanfold.text.patterns import regex
from fanfold.text.spelling import nearest
from fanfold.trust.project_files import LedOut, resolve_beneath, write_whole

if TYPE_CHECKING:  # every command has a library, and few look into a file of it
    from fanfold.text.trees.tree import Mapping

MAX_FILES_PER_FOLDER = 2_000
SUFFIXES = (".yaml", ".yml")
_NAMED = regex(r"(?P<name>[a-z0-9][a-z0-9_-]{0,63})(?:@v?(?P<version>[1-9][0-9]{0,9}))?", re.ASCII)
_VERSION_LINE = regex(rb"^version:[ \t]*([1-9][0-9]{0,9})[ \t]*(?:#.*)?\r?$", re.MULTILINE)


class ListedRecipe(Struct, frozen=True):
    """One recipe in a folder."""

    name: str
    version: int
    description: str
    origin: str
    """`project`, `user` or `builtin`."""
    file: str
    warnings: tuple[str, ...] = ()
    """What it shadows, or why it cannot be used."""


class _Candidate(Struct, frozen=True):
    name: str
    version: int | None
    """None: the file's name does not say; the text does."""
    origin: str
    file: Path


class Library:
    """The folders recipes are kept in, nearest first."""

    def __init__(
        self, project: Path | None, user: Path | None, builtin: Path, *, top: Path | None = None
    ) -> None:
        """`top` is the project's own folder: what a recipe in it refers to is not read from outside."""
        self._folders = [("project", project), ("user", user), ("builtin", builtin)]
        self._project = project
        self._top = top

    # -- finding -------------------------------------------------------------------------------------

    def find(self, ref: str, relative_to: str | None = None) -> FoundRecipe:
        """The recipe meant by `./file.yaml`, `name` or `name@version`; raises NotFoundError.

        `relative_to` is the file that holds the reference.
        """
        if is_path(ref):
            return self._find_file(ref, relative_to)
        named = _NAMED.fullmatch(ref)
        if named is None:
            message = f'"{ref[:80]}" cannot be the name of a recipe'
            raise NotFoundError("recipe.unknown_workflow", message, hint="write name, name@2 or ./file.yaml")
        wanted = int(named["version"]) if named["version"] else None
        found = [one for one in self._named(named["name"]) if wanted is None or _version_of(one) == wanted]
        if not found:
            raise self._unknown(named["name"], wanted)
        origin = found[0].origin
        here = [one for one in found if one.origin == origin]
        chosen = max(here, key=_version_of)
        hidden = [one for one in found if one.origin != origin]
        hidden += [one for one in here if one is not chosen and _version_of(one) == _version_of(chosen)]
        return FoundRecipe(
            _read(chosen.file), str(chosen.file), origin, tuple(str(one.file) for one in hidden)
        )

    def _find_file(self, ref: str, relative_to: str | None) -> FoundRecipe:
        base = os.path.dirname(relative_to) if relative_to is not None else ""
        file = os.path.normpath(os.path.join(base, ref))
        try:
            if relative_to is not None:
                self._stay_inside(file, relative_to)
            else:
                self._refuse_link_out(file)
            return FoundRecipe(_read(Path(file)), file)
        except NotFoundError as error:
            if error.details.get("there"):
                raise
            folder, name = os.path.split(file)
            meant = nearest(name, _yaml_names(Path(folder or ".")))
            hint = f'did you mean "{os.path.join(os.path.dirname(ref), meant)}"?' if meant else error.hint
            raise NotFoundError(error.code, error.message, hint=hint, details=error.details) from None

    def _stay_inside(self, file: str, referring: str) -> None:
        """A recipe may be somebody else's: what it names is read from its project, else from its folder."""
        top = self._top
        if top is None or not _is_below(referring, top):
            top = Path(os.path.dirname(referring) or ".")
        if not _is_below(file, top):
            message = f"{file} lies outside of {top}"
            hint = "a recipe names files of its own project, and other recipes by name"
            raise NotFoundError("recipe.unknown_workflow", message, hint=hint, details={"there": True})

    def _refuse_link_out(self, file: str) -> None:
        """What is named inside the project is the project's, and may be a link to what is not."""
        top = self._top
        if top is None or not Path(os.path.abspath(file)).is_relative_to(os.path.realpath(top)):
            return
        if not _is_below(file, top):
            message = f"{file} is a link that leads out of the project"
            hint = "name the file that it leads to, if you trust it"
            raise NotFoundError("recipe.unknown_workflow", message, hint=hint, details={"there": True})

    def _unknown(self, name: str, version: int | None) -> NotFoundError:
        versions = sorted({_version_of(one) for one in self._named(name)})
        if versions:
            listed = ", ".join(str(one) for one in versions)
            message = f'recipe "{name}" has no version {version}'
            return NotFoundError("recipe.unknown_workflow", message, hint=f"there are versions {listed}")
        beside = [
            os.path.join(folder, f"{name}{suffix}") for folder in ("", self._top or "") for suffix in SUFFIXES
        ]
        file = next((one for one in beside if os.path.isfile(one)), None)
        if file is not None:
            hint = f'did you mean the file "{os.path.relpath(file)}"?'
            return NotFoundError("recipe.unknown_workflow", f'there is no recipe "{name}"', hint=hint)
        meant = nearest(name, self.names())
        hint = f'did you mean "{meant}"?' if meant else "`fanfold list` shows the recipes known here"
        return NotFoundError("recipe.unknown_workflow", f'there is no recipe "{name}"', hint=hint)

    # -- listing -------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The names of all recipes; no file is opened for that."""
        return sorted({one.name for one in self._candidates()})

    def list(self) -> list[ListedRecipe]:
        """Every recipe by name and version, those that are hidden left out but named in a warning."""
        by_name: dict[str, list[_Candidate]] = {}
        for one in self._candidates():
            by_name.setdefault(one.name, []).append(one)
        entries: list[ListedRecipe] = []
        for name in sorted(by_name):
            origin = by_name[name][0].origin
            hidden = [str(one.file) for one in by_name[name] if one.origin != origin]
            here = [_entry(one) for one in by_name[name] if one.origin == origin]
            entries += _with_shadows(sorted(here, key=lambda entry: (entry.version, entry.file)), hidden)
        return entries

    def _candidates(self) -> Iterator[_Candidate]:
        for origin, folder in self._folders:
            if folder is not None:
                yield from _scan(origin, folder)

    def _named(self, name: str) -> tuple[_Candidate, ...]:
        return tuple(one for one in self._candidates() if one.name == name)

    # -- saving --------------------------------------------------------------------------------------

    def save(self, name: str, text: str) -> Path:
        """Write `name.yaml` (or `name@2.yaml`) into the project's folder, as a whole or not at all."""
        folder = self._project
        if folder is None:
            raise AuthorError("recipe.no_project", "there is no project to save the recipe in")
        require_name(name)
        folder.mkdir(parents=True, exist_ok=True)
        handle = _open_folder(folder)
        try:
            target = f"{name}.yaml"
            _refuse_link(target, handle, folder)
            _replace(target, text.encode("utf-8"), handle)
        finally:
            os.close(handle)
        return folder / target


def require_name(name: str) -> None:
    """Raise unless a recipe can be saved as this: `name` or `name@2`."""
    if _NAMED.fullmatch(name) is None:
        hint = "use lower-case letters, digits, - and _, at most 64 of them"
        raise AuthorError("recipe.bad_value", f'"{name[:80]}" cannot be the name of a recipe', hint=hint)


def said_by_file(file: str) -> tuple[str | None, int | None]:
    """The name and version that a file's own name promises; None where it promises none."""
    folder, base = os.path.split(file)
    stem = os.path.basename(folder) if base == "recipe.yaml" else os.path.splitext(base)[0]
    named = _NAMED.fullmatch(stem)
    if named is None:
        return None, None
    return named["name"], int(named["version"]) if named["version"] else None


def is_path(ref: str) -> bool:
    """Whether a reference names a file rather than a recipe."""
    return "/" in ref or os.sep in ref or ref.endswith(SUFFIXES)


# ---------------------------------------------------------------------------------------------------
# Folders


def _is_below(file: str, top: Path) -> bool:
    """Whether a file, with every link resolved, lies below a folder."""
    try:
        resolve_beneath(top, Path(file))
    except LedOut:
        return False
    return True


def _scan(origin: str, folder: Path) -> Iterator[_Candidate]:
    try:
        names = sorted(os.listdir(folder))[:MAX_FILES_PER_FOLDER]
    except OSError:
        return  # a folder that is not there holds nothing
    for name in names:
        file = folder / name
        stem, suffix = os.path.splitext(name)
        if suffix not in SUFFIXES:
            stem, file = name, file / "recipe.yaml"
        named = _NAMED.fullmatch(stem)
        if named is not None and _is_own_file(file):
            version = int(named["version"]) if named["version"] else None
            yield _Candidate(named["name"], version, origin, file)


def _is_own_file(file: Path) -> bool:
    """A regular file below its folder: a link could lead anywhere."""
    try:
        return stat.S_ISREG(os.lstat(file).st_mode) and not file.parent.is_symlink()
    except OSError:
        return False


def _yaml_names(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder)[:MAX_FILES_PER_FOLDER] if name.endswith(SUFFIXES)]
    except OSError:
        return []


def _read(file: Path) -> bytes:
    """At most one byte more than a recipe may have: the parser then says what is wrong."""
    from fanfold.text.trees.yaml import MAX_BYTES

    missing = f"there is no file {file}"
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):  # opening a pipe would wait for its other end
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
    """The version, from the file's name or cheaply from its text: finding a recipe reads many files."""
    if candidate.version is not None:
        return candidate.version
    try:
        found = _VERSION_LINE.search(_read(candidate.file))
    except NotFoundError:
        return 1
    return int(found[1]) if found else 1


# ---------------------------------------------------------------------------------------------------
# Entries


def _entry(candidate: _Candidate) -> ListedRecipe:
    """What the list shows of a file; a broken one is shown with its first error."""
    from fanfold.text.trees.tree import Mapping
    from fanfold.text.trees.yaml import parse_yaml

    version = _version_of(candidate)
    description = ""
    warnings: list[str] = []
    try:
        tree, _, report = parse_yaml(_read(candidate.file), str(candidate.file))
    except NotFoundError as error:
        warnings.append(error.message)
    else:
        if not report.ok:
            first = next(one for one in report.diagnostics if one.severity == "error")
            warnings.append(f"{first.code} at line {first.range.start.line}: {first.message}")
        if isinstance(tree, Mapping):
            description = _text_of(tree, "description")
            if (said := _text_of(tree, "name")) and said != candidate.name:
                warnings.append(f'the file is called "{candidate.name}", but says its name is "{said}"')
            if (inside := tree.get("version")) is not None and _said_version(inside) not in {None, version}:
                warnings.append(f"the file is called version {version}, but says {_said_version(inside)}")
        elif report.ok:
            warnings.append("recipe.bad_type: the file is not a map of keys")
    return ListedRecipe(
        candidate.name, version, description, candidate.origin, str(candidate.file), tuple(warnings)
    )


def _with_shadows(entries: list[ListedRecipe], hidden: list[str]) -> Iterator[ListedRecipe]:
    """Say what the highest version hides; the same version twice in one folder is said too."""
    for i, entry in enumerate(entries):
        twins = [one.file for one in entries if one is not entry and one.version == entry.version]
        shadows = [*(hidden if i == len(entries) - 1 else []), *twins]
        if shadows:
            message = f"recipe.shadowed: {entry.file} shadows {', '.join(shadows)}"
            yield replace(entry, warnings=(*entry.warnings, message))
        else:
            yield entry


def _text_of(tree: Mapping, key: str) -> str:
    from fanfold.text.trees.tree import Scalar

    node = tree.get(key)
    return node.text if isinstance(node, Scalar) and isinstance(node.value, str) else ""


def _said_version(node: object) -> int | None:
    from fanfold.text.trees.tree import Scalar

    return node.value if isinstance(node, Scalar) and type(node.value) is int else None


# ---------------------------------------------------------------------------------------------------
# Writing


def _open_folder(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        message = f"{folder} cannot be used to save recipes: {error.strerror or error}"
        raise WorldError("recipe.not_saved", message, hint="links are not followed") from None


def _refuse_link(name: str, folder: int, shown: Path) -> None:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise WorldError("recipe.not_saved", f"{shown / name} is not a regular file and is not replaced")


def _replace(name: str, data: bytes, folder: int) -> None:
    try:
        write_whole(name, data, folder=folder, mode=0o644, durable=True)
    except OSError as error:
        raise WorldError("recipe.not_saved", f"{name} was not saved: {error.strerror or error}") from None
