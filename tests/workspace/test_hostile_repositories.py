"""Whatever a tree's git says, looking at the tree runs nothing, fetches nothing and reads nobody else's."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.workspace.git import find_program
from fanfold.workspace.layout import find_repository
from fanfold.workspace.workspaces import Workspaces
from tests.workspace.trees import git, repository, tree, write

pytestmark = pytest.mark.full


def trap(folder: Path) -> tuple[Path, Path]:
    """A program that leaves a mark when it is run, and the mark."""
    mark = folder / "ran"
    program = folder / "trap"
    program.write_text(f"#!/bin/sh\necho ran >> {mark}\nexit 1\n")
    program.chmod(0o755)
    return program, mark


def settings(program: Path) -> str:
    """Every setting of git's that names a program and that some command of git's obeys."""
    return f"""
[core]
\trepositoryformatversion = 1
\tfsmonitor = {program}
\thooksPath = {program.parent}
\tsshCommand = {program}
\tpager = {program}
\talternateRefsCommand = {program}
\tgitProxy = {program}
\taskPass = {program}
[extensions]
\tpartialClone = origin
\tworktreeConfig = true
[remote "origin"]
\turl = ext::{program} %S
\tpromisor = true
\tuploadpack = {program}
[protocol "ext"]
\tallow = always
[filter "x"]
\tclean = {program}
\tsmudge = {program}
\tprocess = {program}
[diff]
\texternal = {program}
[index]
\tsparse = true
[include]
\tpath = {program}.inc
[alias]
\tls-files = !{program}
\tcheck-ignore = !{program}
[credential]
\thelper = !{program}
"""


def sparse(folder: Path) -> None:
    """Make the index one that git has to fetch trees for."""
    git(folder, "sparse-checkout", "set", "--cone", "--sparse-index", "kept")
    for pack in (folder / ".git/objects").rglob("*"):
        if pack.is_file():
            pack.chmod(0o600)
            pack.unlink()


def in_project(project: Path, program: Path) -> None:
    (project / ".git/config").write_text(settings(program))
    (project / ".gitattributes").write_text("* filter=x\n")


def nested(project: Path, program: Path) -> None:
    inner = repository(project / "inner", {"kept/a.txt": "a", "left/b.txt": "b"})
    sparse(inner)
    (inner / ".git/config").write_text(settings(program) + "[core]\n\tsparseCheckout = true\n")
    (project / ".gitattributes").write_text("* filter=x\n")


def submodule(project: Path, program: Path) -> None:
    source = repository(project.parent / "source", {"a.txt": "a"})
    git(project, "submodule", "-q", "add", str(source), "mod")
    (project / ".git/modules/mod/config").write_text(settings(program))


def worktree_configuration(project: Path, program: Path) -> None:
    (project / ".git/config.worktree").write_text(settings(program))
    (project / ".git/config").write_text("[extensions]\n\tworktreeConfig = true\n")


@pytest.mark.parametrize("plant", [in_project, nested, submodule, worktree_configuration])
def test_no_setting_of_a_tree_runs_a_program(
    project: Path, tmp_path: Path, plant: Callable[[Path, Path], None]
):
    repository(project, {"a.txt": "a", "kept/x.txt": "x"})
    program, mark = trap(tmp_path)
    plant(project, program)
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    (child.path / "a.txt").write_text("changed")
    (child.path / "new.txt").write_text("new")
    assert spaces.merge(child, ["**/*"]).ok
    spaces.close(child)
    assert not mark.exists()
    assert (project / "a.txt").read_text() == "changed"


def test_files_of_a_repository_inside_are_in_the_snapshot_and_its_git_folder_is_not(project: Path):
    repository(project, {"a.txt": "a"})
    repository(project / "inner", {"b.txt": "b", ".gitignore": "*.log\n"})
    write(project, {"inner/x.log": "no"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    files = {path for path, (kind, _) in tree(child.path).items() if kind == "file"}
    assert files == {"a.txt", "inner/b.txt", "inner/.gitignore"}
    spaces.close(child)


def test_files_excluded_by_the_repository_s_info_exclude_stay_out(project: Path):
    repository(project, {"a.txt": "a"})
    write(project, {".git/info/exclude": "private/\n*.key\n", "private/x": "no", "b.key": "no"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    assert tree(child.path).keys() == {"a.txt"}
    (child.path / "c.key").write_text("no")
    assert [change.path for change in child.changes()] == []
    spaces.close(child)


def test_a_project_below_a_repository_obeys_the_rules_above_it(tmp_path: Path):
    top = repository(tmp_path / "top", {".gitignore": "*.log\n", "sub/a.txt": "a", "sub/b.log": "b"})
    git(top, "add", "-f", "sub/b.log")
    write(top, {"sub/c.log": "no", "sub/d.txt": "d"})
    spaces = Workspaces(top / "sub")
    child = spaces.open_child("s1")
    assert tree(child.path).keys() == {"a.txt", "b.log", "d.txt"}
    spaces.close(child)


def test_a_linked_work_tree_is_found_and_one_that_is_not_named_back_is_not(tmp_path: Path):
    main = repository(tmp_path / "main", {"a.txt": "a"})
    git(main, "worktree", "add", "-q", str(tmp_path / "linked"))
    found = find_repository(tmp_path / "linked")
    assert found is not None
    assert found.common == main / ".git"
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / ".git").write_text((tmp_path / "linked/.git").read_text())
    assert find_repository(stranger) is None
    (stranger / ".git").write_text(f"gitdir: {main}/.git\n")
    assert find_repository(stranger) is None


def test_a_link_where_git_would_be_is_no_repository(tmp_path: Path):
    main = repository(tmp_path / "main", {"a.txt": "a"})
    other = tmp_path / "other"
    other.mkdir()
    (other / ".git").symlink_to(main / ".git")
    assert find_repository(other) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo make test-full")
def test_a_repository_of_another_user_is_not_obeyed(project: Path):
    repository(project, {"a.txt": "a"})
    os.chown(project / ".git", 65534, 65534)
    assert find_repository(project) is None


def test_programs_that_lie_in_the_project_are_not_ours_to_run(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    outside = tmp_path / "bin"
    for folder in (project / "bin", outside):
        folder.mkdir(parents=True)
        (folder / "git").write_text("#!/bin/sh\n")
        (folder / "git").chmod(stat.S_IRWXU)
    (tmp_path / "linked").symlink_to(project / "bin")
    monkeypatch.setenv("PATH", f"{project}/bin:.::{tmp_path}/linked:{outside}")
    assert find_program("git", project) == str(outside / "git")


def test_an_index_that_is_no_whole_list_is_refused_with_the_way_out(project: Path):
    from fanfold.errors import WorldError

    repository(project, {"kept/a.txt": "a", "left/b.txt": "b"})
    git(project, "update-index", "--split-index")
    spaces = Workspaces(project)
    with pytest.raises(WorldError) as refused:
        spaces.open_child("s1")
    assert refused.value.code == "workspace.partial_index"
    assert "--no-split-index" in refused.value.hint


def test_a_repository_whose_objects_have_long_names_is_worked_in_but_not_delivered_from(project: Path):
    from fanfold.errors import WorldError
    from fanfold.workspace.delivery import Refs

    project.mkdir(exist_ok=True)
    git(project, "init", "-q", "--object-format=sha256")
    write(
        project, {".gitignore": "*.log\n", "kept.log": "k", "a/b.txt": "b", "left.log": "l", "mine.txt": "m"}
    )
    (project / ".git" / "info" / "exclude").write_text("mine.txt\n")
    git(project, "add", "--force", ".gitignore", "kept.log", "a/b.txt")
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    assert set(tree(child.path)) == {".gitignore", "kept.log", "a", "a/b.txt"}
    write(child.path, {"kept.log": "changed", "new.txt": "n", "new.log": "ignored"})
    assert spaces.merge(child, ["**/*"]).ok
    assert ((project / "kept.log").read_text(), (project / "new.txt").exists()) == ("changed", True)
    assert not (project / "new.log").exists()
    spaces.close(child)
    found = find_repository(project)
    assert found is not None
    with pytest.raises(WorldError, match="SHA-256"):
        Refs(found)
