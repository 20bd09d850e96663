"""Where recipes are found, what hides what, and how one is saved."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fanfold.errors import AuthorError, NotFoundError, WorldError
from fanfold.language.library import Library
from fanfold.language.yaml_text import MAX_BYTES

GOOD = "name: {name}\ndescription: Does {name}\nversion: {version}\nsteps:\n  - {{id: a, prompt: x}}\n"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    made = tuple(tmp_path / name for name in ("project", "user", "builtin"))
    for folder in made:
        folder.mkdir()
    return made[0], made[1], made[2]


@pytest.fixture
def library(folders: tuple[Path, Path, Path]) -> Library:
    return Library(*folders)


def put(folder: Path, file: str, name: str = "", version: int = 1) -> Path:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    named = re.match(r"[a-z]+", file)
    assert named is not None
    path.write_text(GOOD.format(name=name or named[0], version=version))
    return path


@pytest.mark.parametrize(
    "file", ["brief.yaml", "brief.yml", "brief/recipe.yaml", "brief@1.yaml", "brief@v1.yaml"]
)
def test_a_name_is_found_in_every_form_of_file(folders: tuple[Path, Path, Path], library: Library, file: str):
    path = put(folders[1], file)
    for ref in ("brief", "brief@1", "brief@v1"):
        found = library.find(ref)
        assert (found.file, found.origin, found.shadowed) == (str(path), "user", ())
        assert found.data == path.read_bytes()


def test_the_highest_version_is_meant_when_none_is_given(folders: tuple[Path, Path, Path], library: Library):
    put(folders[0], "brief@2.yaml", version=2)
    tenth = put(folders[0], "brief@10.yaml", version=10)
    third = put(folders[0], "brief.yaml", version=3)
    assert library.find("brief").file == str(tenth)
    assert library.find("brief@3").file == str(third)


def test_the_nearest_place_wins_and_says_what_it_hides(folders: tuple[Path, Path, Path], library: Library):
    project, user, builtin = folders
    files = [put(project, "brief.yaml"), put(user, "brief@9.yaml", version=9), put(builtin, "brief.yaml")]
    found = library.find("brief")
    assert (found.file, found.origin) == (str(files[0]), "project")
    assert found.shadowed == (str(files[1]), str(files[2]))
    (entry,) = library.list()
    assert entry.warnings == (f"recipe.shadowed: {files[0]} shadows {files[1]}, {files[2]}",)


def test_a_version_that_only_a_farther_place_has_is_found_there(
    folders: tuple[Path, Path, Path], library: Library
):
    put(folders[0], "brief.yaml")
    ninth = put(folders[1], "brief@9.yaml", version=9)
    assert library.find("brief@9").file == str(ninth)


def test_two_files_of_one_version_are_reported(folders: tuple[Path, Path, Path], library: Library):
    put(folders[0], "brief.yaml")
    put(folders[0], "brief.yml")
    assert len(library.find("brief").shadowed) == 1
    assert all("recipe.shadowed" in entry.warnings[0] for entry in library.list())


@pytest.mark.parametrize(
    ("ref", "hint"),
    [
        ("breif", 'did you mean "brief"?'),
        ("brief@7", "there are versions 1"),
        ("nothing-like-it", "fanfold list"),
        ("Not A Name", "name@2"),
        ("brief@0", "name@2"),
        ("..", "name@2"),
        ("./breif.yaml", 'did you mean "./brief.yaml"?'),
        ("./none/breif.yaml", "check the path"),
    ],
)
def test_not_found_errors_have_a_hint(
    folders: tuple[Path, Path, Path], library: Library, ref: str, hint: str
):
    put(folders[0], "brief.yaml")
    with pytest.raises(NotFoundError) as caught:
        library.find(ref, relative_to=str(folders[0] / "caller.yaml"))
    assert hint in caught.value.hint
    assert caught.value.exit_status == 6


def test_paths_are_relative_to_the_caller(folders: tuple[Path, Path, Path], library: Library):
    path = put(folders[0], "sub/brief.yaml")
    for ref in ("./sub/brief.yaml", "sub/brief.yaml", "./x/../sub/brief.yaml"):
        found = library.find(ref, relative_to=str(folders[0] / "caller.yaml"))
        assert (found.file, found.origin) == (str(path), "path")


def test_a_path_without_a_calling_recipe_is_relative_to_the_working_folder(
    folders: tuple[Path, Path, Path], library: Library, monkeypatch: pytest.MonkeyPatch
):
    put(folders[0], "brief.yaml")
    monkeypatch.chdir(folders[0])
    assert library.find("brief.yaml").file == "brief.yaml"
    assert library.find("./brief.yaml").file == "brief.yaml"


def test_files_that_are_not_files_are_not_opened(folders: tuple[Path, Path, Path], library: Library):
    os.mkfifo(folders[0] / "pipe.yaml")
    (folders[0] / "folder.yaml").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(NotFoundError, match="not a file"):
            library.find(f"./{name}.yaml", relative_to=str(folders[0] / "x"))
        with pytest.raises(NotFoundError):
            library.find(name)


def test_a_huge_file_is_not_read_to_its_end(folders: tuple[Path, Path, Path], library: Library):
    (folders[0] / "big.yaml").write_bytes(b"x" * (MAX_BYTES * 4))
    assert len(library.find("big").data) == MAX_BYTES + 1


def test_a_file_that_may_not_be_read_says_why(
    folders: tuple[Path, Path, Path], library: Library, monkeypatch: pytest.MonkeyPatch
):
    put(folders[0], "brief.yaml")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(NotFoundError, match="Permission denied"):
        library.find("brief")
    (entry,) = library.list()
    assert "Permission denied" in entry.warnings[0]


def test_names_do_not_lead_through_links(folders: tuple[Path, Path, Path], library: Library, tmp_path: Path):
    outside = put(tmp_path / "outside", "secret.yaml")
    (folders[0] / "secret.yaml").symlink_to(outside)
    (tmp_path / "outside" / "recipe.yaml").write_text("name: folder\n")
    (folders[0] / "folder").symlink_to(tmp_path / "outside")
    for name in ("secret", "folder"):
        with pytest.raises(NotFoundError):
            library.find(name)
    assert library.list() == []


def test_the_list_shows_everything_with_what_is_wrong(folders: tuple[Path, Path, Path], library: Library):
    project, user, builtin = folders
    put(project, "brief@1.yaml")
    put(project, "brief@2.yaml", version=3)
    put(user, "alpha/recipe.yaml", name="other")
    (user / "broken.yaml").write_text("name: [\n")
    (user / "list.yaml").write_text("- a\n")
    (user / "notes.txt").write_text("not a recipe")
    (user / "Bad Name.yaml").write_text("name: x\n")
    put(builtin, "zeta.yml")
    entries = library.list()
    assert [(entry.name, entry.version, entry.origin) for entry in entries] == [
        ("alpha", 1, "user"),
        ("brief", 1, "project"),
        ("brief", 2, "project"),
        ("broken", 1, "user"),
        ("list", 1, "user"),
        ("zeta", 1, "builtin"),
    ]
    assert entries[1].description == "Does brief"
    assert 'says its name is "other"' in entries[0].warnings[0]
    assert "says 3" in entries[2].warnings[0]
    assert "recipe.syntax at line" in entries[3].warnings[0]
    assert "recipe.bad_type" in entries[4].warnings[0]


def test_missing_folders_hold_nothing(tmp_path: Path):
    assert Library(None, tmp_path / "none", tmp_path / "also-none").list() == []


def test_a_saved_recipe_is_found(folders: tuple[Path, Path, Path], tmp_path: Path):
    library = Library(tmp_path / "new" / "workflows", None, folders[2])
    path = library.save("brief", "name: brief\n")
    assert path == tmp_path / "new" / "workflows" / "brief.yaml"
    assert library.find("brief").data == b"name: brief\n"
    library.save("brief", "name: brief\nversion: 2\n")
    library.save("brief@3", "name: brief\nversion: 3\n")
    assert sorted(os.listdir(path.parent)) == ["brief.yaml", "brief@3.yaml"]
    assert library.find("brief@2").data == b"name: brief\nversion: 2\n"


@pytest.mark.parametrize(
    "name", ["", "../brief", "a/b", "Brief", ".hidden", "brief.yaml", "x" * 65, "a\0b", "brief@0"]
)
def test_only_slugs_can_be_saved(folders: tuple[Path, Path, Path], library: Library, name: str):
    with pytest.raises(AuthorError):
        library.save(name, "name: x\n")
    assert os.listdir(folders[0]) == []


def test_saving_does_not_follow_links(folders: tuple[Path, Path, Path], library: Library, tmp_path: Path):
    target = tmp_path / "target.yaml"
    target.write_text("precious")
    (folders[0] / "brief.yaml").symlink_to(target)
    with pytest.raises(WorldError):
        library.save("brief", "name: brief\n")
    assert target.read_text() == "precious"
    linked = tmp_path / "linked"
    linked.symlink_to(folders[1])
    with pytest.raises(WorldError):
        Library(linked, None, folders[2]).save("brief", "name: brief\n")
    assert os.listdir(folders[1]) == []


def test_a_failed_save_leaves_the_old_recipe(
    folders: tuple[Path, Path, Path], library: Library, monkeypatch: pytest.MonkeyPatch
):
    library.save("brief", "name: brief\n")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(WorldError, match="No space left"):
        library.save("brief", "name: other\n")
    assert os.listdir(folders[0]) == ["brief.yaml"]
    assert library.find("brief").data == b"name: brief\n"


def test_there_must_be_a_project_to_save_in(folders: tuple[Path, Path, Path]):
    with pytest.raises(AuthorError, match="no project"):
        Library(None, None, folders[2]).save("brief", "name: brief\n")
