"""Names of branches and addresses of remotes that a delivery takes, and those it does not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fanfold.errors import WorldError
from fanfold.kernel.plan import check_branch_name
from fanfold.workspace.delivery import Refs
from fanfold.workspace.git import Remote
from fanfold.workspace.layout import find_repository


@pytest.mark.parametrize("name", ["x", "fix/owls", "a.b-c_d", "user/fix+1", "release=2"])
def test_a_usual_name_is_taken(name: str) -> None:
    assert check_branch_name(name) == ""


@pytest.mark.parametrize(
    "name",
    ["", "-x", "a..b", "refs/../x", "x.lock", "a b", "HEAD", "@", "a//b", "/a", "a/", ".a", "a/.b", "a\nb",
     "a~1", "a^", "a:b", "a?", "a*", "a[b", "a\\b", "a@{1}", "x.", "0" * 40, "x" * 201, "ü"],
)  # fmt: skip
def test_a_name_that_git_could_take_for_something_else_is_refused(name: str) -> None:
    assert "cannot be the name" in check_branch_name(name)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    return folder


def remote(project: Path, url: str) -> Remote:
    subprocess.run(["git", "config", "remote.origin.url", url], cwd=project, check=True)
    found = find_repository(project)
    assert found is not None
    return Remote(project, found, project / ".git")


@pytest.mark.full
@pytest.mark.parametrize(
    ("url", "host", "slug"),
    [
        ("https://github.com/o/r.git", "github.com", "o/r"),
        ("https://x:secret@github.com/o/r", "github.com", "o/r"),
        ("git@github.com:o/r.git", "github.com", "o/r"),
        ("ssh://git@example.org:22/o/r.git", "example.org", "o/r"),
        ("/srv/git/r.git", "", "r"),
        ("file:///srv/git/r.git", "", "r"),
    ],
)
def test_an_address_is_read_as_data(project: Path, url: str, host: str, slug: str) -> None:
    address = remote(project, url).address
    assert (address.host, address.slug) == (host, slug)
    assert "secret" not in address.shown


@pytest.mark.full
@pytest.mark.parametrize(
    "url",
    ["ext::sh -c x", "inside.git", "./inside.git", "file://inside", "http://example.org/x",
     "git://example.org/x", "-oProxyCommand=x:y", "fd::3", "https:///x", "ssh://-x/y"],
)  # fmt: skip
def test_an_address_that_could_run_something_is_refused(project: Path, url: str) -> None:
    with pytest.raises(WorldError) as refused:
        remote(project, url)
    assert refused.value.code == "deliver.bad_remote"


@pytest.mark.full
def test_a_folder_of_the_project_is_no_remote(project: Path) -> None:
    (project / "link").symlink_to(project)
    for url in (
        str(project / "inside.git"),
        str(project),
        f"{project}/../project/x.git",
        str(project / "link/x"),
    ):
        with pytest.raises(WorldError):
            remote(project, url)


@pytest.mark.full
def test_a_branch_is_made_once_and_never_over_another(project: Path) -> None:
    found = find_repository(project)
    assert found is not None
    refs = Refs(found)
    refs.make("a/b", "1" * 40)
    assert refs.find("refs/heads/a/b") == "1" * 40
    for taken in ("a/b", "a", "a/b/c"):
        with pytest.raises(FileExistsError):
            refs.make(taken, "2" * 40)
    (project / ".git/packed-refs").write_text(f"{'3' * 40} refs/heads/p/q\n")
    assert refs.find("refs/heads/p/q") == "3" * 40
    for taken in ("p/q", "p"):
        with pytest.raises(FileExistsError):
            refs.make(taken, "2" * 40)


@pytest.mark.full
def test_a_branch_is_not_made_through_a_link(project: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (project / ".git/refs/heads/out").symlink_to(tmp_path / "elsewhere")
    found = find_repository(project)
    assert found is not None
    with pytest.raises(FileExistsError):
        Refs(found).make("out/x", "1" * 40)
    assert list((tmp_path / "elsewhere").iterdir()) == []
