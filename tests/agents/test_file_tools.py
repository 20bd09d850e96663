"""The file tools stay in their folder, whatever is planted in it and whenever."""

import asyncio
import ctypes
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from fanfold.agents.backend import ToolFailed
from fanfold.agents.tools.files import MAX_READ_BYTES, FileTools
from tests.work import PATIENCE_S

SECRET = "not for agents"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace with a secret beside it."""
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text(SECRET)
    workspace = tmp_path / "workspace"
    (workspace / "src").mkdir(parents=True)
    (workspace / "src/a.py").write_text("x = 1\n")
    (workspace / "README.md").write_text("read me")
    return workspace


def use(folder: Path, tool: str, *, write_set: tuple[str, ...] = (), read_only: bool = False, **args: Any):
    tools = FileTools(str(folder), read_only=read_only, write_set=write_set)
    return asyncio.run(tools.call(tool, args))


def refused(folder: Path, tool: str, **args: Any) -> ToolFailed:
    with pytest.raises(ToolFailed) as caught:
        use(folder, tool, **args)
    return caught.value


def test_a_file_is_read(folder):
    assert use(folder, "read_file", path="README.md", read_only=True) == {
        "path": "README.md",
        "text": "read me",
        "bytes": 7,
    }


def test_a_long_file_is_read_in_parts(folder):
    (folder / "long").write_bytes(b"a" * MAX_READ_BYTES + b"end")
    first = use(folder, "read_file", path="long")
    rest = use(folder, "read_file", path="long", offset=first["next_offset"])
    assert (len(first["text"]), rest["text"], "next_offset" in rest) == (MAX_READ_BYTES, "end", False)


def test_files_are_listed_sorted_without_git_and_without_following_links(folder):
    (folder / ".git").mkdir()
    (folder / ".git/config").touch()
    (folder / "out").symlink_to("../outside")
    listed = use(folder, "list_files", read_only=True)
    assert listed == {"files": ["README.md", "src/a.py"]}
    assert use(folder, "list_files", path="src")["files"] == ["src/a.py"]


def test_a_write_makes_folders_replaces_text_and_keeps_the_mode(folder):
    (folder / "src/a.py").chmod(0o750)
    assert use(folder, "write_file", path="src/a.py", content="y\n")["created"] is False
    assert use(folder, "write_file", path="new/deep/b", content="z")["created"] is True
    assert ((folder / "src/a.py").read_text(), (folder / "new/deep/b").read_text()) == ("y\n", "z")
    assert (folder / "src/a.py").stat().st_mode & 0o777 == 0o750
    assert sorted(path.name for path in (folder / "src").iterdir()) == ["a.py"]


def test_a_delete_removes_the_file(folder):
    assert use(folder, "delete_file", path="src/a.py") == {"path": "src/a.py", "deleted": True}
    assert not (folder / "src/a.py").exists()


@pytest.mark.parametrize("tool", ["write_file", "delete_file"])
def test_a_read_only_session_changes_nothing(folder, tool):
    failed = refused(folder, tool, path="README.md", content="x", read_only=True)
    assert failed.failure.kind == "permission"
    assert (folder / "README.md").read_text() == "read me"


@pytest.mark.parametrize("tool", ["write_file", "delete_file"])
def test_nothing_outside_the_write_set_changes(folder, tool):
    failed = refused(folder, tool, path="README.md", content="x", write_set=("src/**",))
    assert (failed.failure.kind, failed.refused) == ("violation", True)
    assert (folder / "README.md").read_text() == "read me"


def test_folders_outside_the_write_set_are_not_even_made(folder):
    refused(folder, "write_file", path="new/deep/b", content="x", write_set=("src/**",))
    assert not (folder / "new").exists()


def test_the_write_set_is_about_where_a_path_really_leads(folder):
    (folder / "docs").mkdir()
    (folder / "src/link").symlink_to("../docs")
    failed = refused(folder, "write_file", path="src/link/x", content="x", write_set=("src/**",))
    assert failed.failure.kind == "violation"
    use(folder, "write_file", path="src/link/x", content="x", write_set=("docs/**",))
    assert (folder / "docs/x").read_text() == "x"


@pytest.mark.parametrize("tool", ["read_file", "list_files", "write_file", "delete_file"])
@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "src/../../secret",
        "/etc/passwd",
        "a\0b",
        "x" * 5_000,
        "out",
        "out/secret",
        "absolute",
        "absolute/secret",
        "chain/secret",
        "src/up/secret",
        "loop/x",
    ],
)
def test_no_path_leads_out(folder, tool, path):
    (folder / "out").symlink_to("../outside")
    (folder / "absolute").symlink_to(folder.parent / "outside")
    (folder / "chain").symlink_to("out")
    (folder / "src/up").symlink_to("../..")
    (folder / "loop").symlink_to("loop")
    if tool == "delete_file" and path in ("out", "absolute"):
        use(folder, tool, path=path)  # the link itself is the workspace's own
    elif tool == "write_file" and path in ("out", "absolute"):
        assert refused(folder, tool, path=path, content="x").refused
    else:
        assert refused(folder, tool, path=path, content="x").failure.kind == "permission"
    assert (folder.parent / "secret").read_text() == SECRET
    assert [file.name for file in (folder.parent / "outside").iterdir()] == ["secret"]


def test_links_inside_the_workspace_are_followed_for_reading(folder):
    (folder / "link").symlink_to("src/../src/a.py")
    found = use(folder, "read_file", path="link")
    assert (found["path"], found["text"]) == ("src/a.py", "x = 1\n")


def test_special_files_are_refused_without_waiting(folder):
    os.mkfifo(folder / "pipe")
    assert refused(folder, "read_file", path="pipe").failure.kind == "permission"
    assert refused(folder, "write_file", path="pipe", content="x").failure.kind == "permission"


@pytest.mark.parametrize(
    "path",
    [".git/hooks/post-commit", "sub/.git/config", ".fanfold/config.toml", ".codex/agents/x.toml",
     ".claude/agents/y.md", ".GIT/config", "GIT~1/config", ".Codex/Agents/x.toml", ".g\u200cit/config",
     "src/../.codex/agents/x.toml"],
)  # fmt: skip
def test_files_that_instruct_programs_are_not_written(folder, path):
    assert refused(folder, "write_file", path=path, content="x").failure.kind == "permission"
    assert not (folder / path).exists()


def test_a_hard_link_elsewhere_keeps_its_text(folder):
    os.link(folder.parent / "secret", folder / "linked")
    use(folder, "write_file", path="linked", content="mine")
    assert (folder.parent / "secret").read_text() == SECRET


@pytest.mark.parametrize(
    ("tool", "args", "code"),
    [
        ("read_file", {"path": "gone"}, "tool.not_found"),
        ("read_file", {"path": "gone/x"}, "tool.not_found"),
        ("read_file", {"path": "src"}, "tool.is_a_folder"),
        ("read_file", {"path": "README.md/x"}, "tool.not_a_folder"),
        ("read_file", {}, "tool.bad_args"),
        ("read_file", {"path": "README.md", "offset": -1}, "tool.bad_args"),
        ("write_file", {"path": "src", "content": "x"}, "tool.is_a_folder"),
        ("write_file", {"path": "a", "content": 1}, "tool.bad_args"),
        ("delete_file", {"path": "gone"}, "tool.not_found"),
        ("delete_file", {"path": "src"}, "tool.is_a_folder"),
        ("format_disk", {}, "tool.unknown"),
    ],
)
def test_an_impossible_call_returns_an_error_to_the_agent(folder, tool, args, code):
    failed = refused(folder, tool, **args)
    assert (failed.code, failed.failure.kind, failed.refused) == (code, "tool", False)


def exchange(one: Path, other: Path) -> None:
    """Swap two names in one step of the kernel."""
    libc = ctypes.CDLL(None, use_errno=True)
    at_cwd, rename_exchange = -100, 2
    if libc.renameat2(at_cwd, bytes(one), at_cwd, bytes(other), rename_exchange) != 0:
        pytest.skip("needs a file system that exchanges names: make test-full on ext4, xfs or btrfs")


@pytest.mark.full
def test_a_folder_swapped_for_a_link_at_any_moment_never_leads_out(folder):
    """One thread keeps exchanging a folder and a link to the outside; the tools keep going through it."""
    (folder / "dir").mkdir()
    (folder / "dir/secret").write_text("mine")
    (folder / "link").symlink_to("../outside")
    exchange(folder / "dir", folder / "link")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            exchange(folder / "dir", folder / "link")

    async def attempt() -> tuple[int, int]:
        tools = FileTools(str(folder), read_only=False)
        worked = refusals = 0
        while not (worked > 200 and refusals > 200):
            try:
                assert (await tools.call("read_file", {"path": "dir/secret"}))["text"] == "mine"
                await tools.call("write_file", {"path": "dir/w", "content": str(worked)})
                worked += 1
            except ToolFailed:
                refusals += 1
        return worked, refusals

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        asyncio.run(asyncio.wait_for(attempt(), PATIENCE_S))
    finally:
        done.set()
        swapper.join()
    assert [file.name for file in (folder.parent / "outside").iterdir()] == ["secret"]
    assert (folder.parent / "outside/secret").read_text() == SECRET
