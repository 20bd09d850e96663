"""Merge-back: what comes home, what is refused, and what a conflict says."""

import os
import random
import shutil
from pathlib import Path

import pytest

from fanfold.workspace import project_tree
from fanfold.workspace.changes import Change, WriteViolation, violations
from fanfold.workspace.workspaces import Workspaces
from tests.workspace.test_snapshots import ODD
from tests.workspace.trees import git, git_bytes, repository, tree, write

pytestmark = pytest.mark.full

LINES = "".join(f"line {number}\n" for number in range(40))


def edited(number: int, text: str) -> str:
    return LINES.replace(f"line {number}\n", f"{text}\n")


def test_every_kind_of_change_comes_home(project: Path, method: str):
    repository(
        project, {"a.txt": "a", "d/b.txt": "b", "d/e/c.txt": "c", "tool": "t", "f": "file", "g/h": "h"}
    )
    (project / "link").symlink_to("a.txt")
    (project / "hollow/inner").mkdir(parents=True)
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    top = child.path
    write(top, {"a.txt": "A", "new/deep/n.txt": "n", "data.bin": bytes(range(256)), **ODD})
    os.chmod(top / "tool", 0o755)
    os.unlink(top / "link")
    os.symlink("d/b.txt", top / "link")
    os.unlink(top / "d/e/c.txt")
    os.rmdir(top / "d/e")
    os.unlink(top / "f")
    write(top, {"f/now/a/folder": "x"})
    os.unlink(top / "g/h")
    os.rmdir(top / "g")
    write(top, {"g": "now a file"})
    os.mkdir(top / "void")
    os.rmdir(top / "hollow/inner")
    wanted = tree(top)
    before = git_bytes(project)
    merged = spaces.merge(child)
    assert merged.ok
    spaces.close(child)
    assert tree(project) == wanted
    assert git_bytes(project) == before
    assert os.listdir(project / ".fanfold/subagents") == [".gitignore"]


def test_touching_and_rewriting_with_the_same_content_is_no_change(project: Path, method: str):
    repository(project, {"a.txt": "a", "b.txt": "b"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    os.utime(child.path / "a.txt")
    write(child.path, {"b.txt": "b"})
    os.chmod(child.path / "a.txt", 0o600)
    assert child.changes() == []
    spaces.close(child)


def test_half_written_files_of_a_killed_tool_are_not_merged(project: Path, method: str):
    repository(project, {"a.txt": "a"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    write(child.path, {"d/.fanfold-0123456789abcdef.tmp": "hal", "d/.fanfold-notes.tmp": "kept"})
    merged = spaces.merge(child, ["**"], "auto")
    assert [change.path for change in merged.changes] == ["d/.fanfold-notes.tmp"]
    assert os.listdir(project / "d") == [".fanfold-notes.tmp"]
    spaces.close(child)


def test_a_renamed_folder_is_seen_whole(project: Path, method: str):
    repository(project, {"src/a.txt": "a", "src/in/b.txt": "b", "c.txt": "c"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    try:
        os.rename(child.path / "src", child.path / "lib")
    except OSError:  # EXDEV: an overlay in a namespace copies instead, as programs do
        shutil.move(child.path / "src", child.path / "lib")
    write(child.path, {"src/again.txt": "x"})
    kinds = {(change.path, change.kind) for change in child.changes()}
    assert kinds == {
        ("src/a.txt", "deleted"),
        ("src/in/b.txt", "deleted"),
        ("lib/a.txt", "added"),
        ("lib/in/b.txt", "added"),
        ("src/again.txt", "added"),
    }
    assert spaces.merge(child).ok
    spaces.close(child)
    assert tree(project).keys() == {
        "src",
        "src/again.txt",
        "lib",
        "lib/a.txt",
        "lib/in",
        "lib/in/b.txt",
        "c.txt",
    }


def test_both_sides_of_one_file_are_merged_by_lines(project: Path, method: str):
    repository(project, {"a.txt": LINES})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    write(child.path, {"a.txt": edited(35, "theirs")})
    write(project, {"a.txt": edited(3, "ours"), "other.txt": "unrelated"})
    merged = spaces.merge(child)
    assert merged.ok
    assert (project / "a.txt").read_text() == edited(3, "ours").replace("line 35\n", "theirs\n")
    spaces.close(child)


def test_line_ends_and_attributes_are_not_converted(project: Path):
    repository(
        project, {"a.txt": LINES.replace("\n", "\r\n"), ".gitattributes": "* text=auto eol=lf ident\n"}
    )
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    write(child.path, {"a.txt": edited(35, "theirs $Id$").replace("\n", "\r\n")})
    write(project, {"a.txt": edited(3, "ours").replace("\n", "\r\n")})
    assert spaces.merge(child).ok
    text = (project / "a.txt").read_bytes()
    assert text.count(b"\r\n") == 40
    assert b"$Id$" in text
    spaces.close(child)


def test_a_change_follows_a_file_the_parent_renamed(project: Path):
    repository(project, {"a.txt": LINES})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    write(child.path, {"a.txt": edited(35, "theirs")})
    os.rename(project / "a.txt", project / "b.txt")
    assert spaces.merge(child).ok
    assert not (project / "a.txt").exists()
    assert (project / "b.txt").read_text() == edited(35, "theirs")
    spaces.close(child)
    child = spaces.open_child("s2")
    write(child.path, {"b.txt": edited(1, "again")})
    os.rename(project / "b.txt", project / "c.txt")
    outside = spaces.merge(child, ["b.txt"])  # the rename leads out of what this step may write
    assert [conflict.why for conflict in outside.conflicts if conflict.path == "c.txt"]
    spaces.close(child)


@pytest.mark.parametrize(
    "kind", ["both edit", "edit and delete", "delete and edit", "both add", "binary", "file and folder"]
)
def test_a_conflict_is_data_and_changes_nothing(project: Path, kind: str):
    repository(project, {"a.txt": LINES, "bin": b"\0\1\2", "keep.txt": "k"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    ours, theirs = project, child.path
    path = "a.txt"
    if kind == "both edit":
        write(ours, {path: edited(3, "ours")})
        write(theirs, {path: edited(3, "theirs")})
    elif kind == "edit and delete":
        write(ours, {path: edited(3, "ours")})
        os.unlink(theirs / path)
    elif kind == "delete and edit":
        os.unlink(ours / path)
        write(theirs, {path: edited(3, "theirs")})
    elif kind == "both add":
        path = "new.txt"
        write(ours, {path: "ours\n"})
        write(theirs, {path: "theirs\n"})
    elif kind == "binary":
        path = "bin"
        write(ours, {path: b"\0ours"})
        write(theirs, {path: b"\0theirs"})
    else:
        path = "x"
        write(ours, {"x/y": "folder"})
        write(theirs, {"x": "file"})
    write(theirs, {"keep.txt": "would be fine"})
    before = tree(project), git_bytes(project)
    merged = spaces.merge(child)
    assert not merged.ok
    assert merged.applied == ()
    found = [conflict for conflict in merged.conflicts if conflict.path.startswith(path)]
    assert found
    assert all("CONFLICT" in conflict.why for conflict in found)
    if kind == "both edit":
        (one,) = found
        assert spaces.content(one.base or "") == LINES.encode()
        assert spaces.content(one.ours or "") == edited(3, "ours").encode()
        assert spaces.content(one.theirs or "") == edited(3, "theirs").encode()
    assert (tree(project), git_bytes(project)) == before
    spaces.close(child)


def test_the_same_change_on_both_sides_is_none(project: Path):
    repository(project, {"a.txt": "a", "gone.txt": "g"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    for side in (project, child.path):
        write(side, {"a.txt": "same", "new.txt": "same"})
        os.unlink(side / "gone.txt")
    merged = spaces.merge(child)
    assert merged.ok
    assert merged.applied == ()
    spaces.close(child)


def test_changes_outside_the_write_set_are_refused_with_everything_else(project: Path, method: str):
    repository(project, {"src/a.py": "a", "README.md": "r"})
    before = tree(project)
    spaces = Workspaces(project)
    child = spaces.open_child("s1", write_set=["src/**"])
    write(child.path, {"src/a.py": "A", "README.md": "R", "new.txt": "n"})
    merged = spaces.merge(child, ["src/**"])
    assert merged.violations == (
        WriteViolation("README.md", "outside_write_set"),
        WriteViolation("new.txt", "outside_write_set"),
    )
    assert tree(project) == before
    spaces.close(child)


def links(top: Path, targets: dict[str, str]) -> None:
    for path, target in targets.items():
        (top / path).parent.mkdir(exist_ok=True)
        (top / path).symlink_to(target)


def test_links_that_stay_inside_are_merged_also_through_each_other(project: Path):
    repository(project, {"src/a.txt": "a"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    links(child.path, {"lib": "src", "deep/up": "../lib/a.txt", "b": "lib/../src/a.txt"})
    assert spaces.merge(child).ok
    spaces.close(child)
    assert (project / "deep/up").read_text() == (project / "b").read_text() == "a"


def test_a_link_through_one_of_the_users_that_leads_out_is_refused(project: Path, tmp_path: Path):
    repository(project, {"a.txt": "a"})
    (project / "mine").symlink_to(tmp_path)
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    links(child.path, {"theirs": "mine/secret"})
    assert [violation.why for violation in spaces.merge(child).violations] == ["leads_out"]
    spaces.close(child)


def test_a_read_only_child_may_change_nothing(project: Path):
    repository(project, {"a.txt": "a"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1", read_only=True)
    if child.method.startswith("overlay"):
        with pytest.raises(OSError, match="Read-only"):
            (child.path / "a.txt").write_text("A")
    assert spaces.merge(child).ok
    spaces.close(child)
    assert violations([Change("a.txt", "modified")], ()) == [WriteViolation("a.txt", "read_only")]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda top: write(top, {".git/hooks/pre-commit": "evil"}), "protected"),
        (lambda top: write(top, {".fanfold/agents/evil.toml": "x"}), "protected"),
        (lambda top: write(top, {".codex/agents/evil.toml": "x"}), "protected"),
        (lambda top: write(top, {".claude/agents/evil.md": "x"}), "protected"),
        (lambda top: write(top, {"sub/.git/config": "x"}), "protected"),
        (lambda top: write(top, {".GIT/config": "x"}), "protected"),
        (lambda top: write(top, {".g\u200cit/config": "x"}), "protected"),
        (lambda top: write(top, {"GIT~1/config": "x"}), "protected"),
        (lambda top: os.symlink("/etc", top / "out"), "leads_out"),
        (lambda top: os.symlink("../../..", top / "out"), "leads_out"),
        (lambda top: os.symlink(".git/hooks", top / "in"), "leads_out"),
        (lambda top: links(top, {"y": "x/../f", "x": "."}), "leads_out"),
        (lambda top: links(top, {"deep/x": "..", "y": "deep/x/../f"}), "leads_out"),
        (lambda top: links(top, {"g": "h/config", "h": "lib", "lib": "./.git"}), "leads_out"),
        (lambda top: write(top, {".claude/settings.json": "x"}), "protected"),
        (lambda top: write(top, {"lib/.mcp.json": "x"}), "protected"),
        (lambda top: write(top, {"sub/.Codex/agents/a.toml": "x"}), "protected"),
        (lambda top: write(top, {".gemini/settings.json": "x"}), "protected"),
        (lambda top: write(top, {".QWEN/settings.json": "x"}), "protected"),
        (lambda top: write(top, {"pkg/.opencode/plugin/evil.js": "x"}), "protected"),
        (lambda top: write(top, {"OpenCode.json": "{}"}), "protected"),
        (lambda top: write(top, {"OPENCO~1.JSO": "{}"}), "protected"),
        (lambda top: write(top, {".copilot/mcp-config.json": "x"}), "protected"),
        (lambda top: write(top, {".github/Hooks/evil.json": "x"}), "protected"),
        (lambda top: write(top, {"GITHUB~1/mcp.json": "x"}), "protected"),
        (lambda top: write(top, {".goose/config.yaml": "x"}), "protected"),
        (lambda top: write(top, {".cursor/mcp.json": "x"}), "protected"),
        (lambda top: write(top, {".vscode/mcp.json": "x"}), "protected"),
        (lambda top: os.symlink("src", top / ".vscode"), "protected"),
        (lambda top: os.symlink("src", top / ".GitHub"), "protected"),
        (lambda top: os.symlink(".gemini", top / "g"), "leads_out"),
        (lambda top: os.mkfifo(top / "pipe"), "special_file"),
        (lambda top: (top / os.fsdecode(b"\xff\xfe")).write_text(""), "bad_name"),
    ],
)
def test_some_changes_are_never_merged(project: Path, make, why: str):
    repository(project, {"a.txt": "a"})
    before = tree(project, without=()).keys()
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    make(child.path)
    merged = spaces.merge(child)
    assert {violation.why for violation in merged.violations} == {why}
    spaces.close(child)
    assert {
        path for path in tree(project, without=()).keys() - before if not path.startswith(".fanfold")
    } == set()


@pytest.mark.parametrize(
    ("link", "target", "change"),
    [
        (".claude", "dotfiles/claude", "dotfiles/claude/settings.json"),
        (".mcp.json", "config/servers.json", "config/servers.json"),
        (".claude/settings.json", "../config/claude.json", "config/claude.json"),
        (".cursor", "one", "dotfiles/claude/mcp.json"),
        (".gemini/a/b/hooks", "../../../tools", "tools/x.sh"),
        (".vscode/mcp.json", "../servers.json", "servers.json"),
    ],
)
def test_the_target_of_a_protected_name_is_protected_too(project: Path, link: str, target: str, change: str):
    files = {"dotfiles/claude/x": "", "config/servers.json": "{}", "tools/y": "", "src/a.py": ""}
    write(project, {**files, "config/claude.json": "{}", "servers.json": "{}"})
    os.symlink("dotfiles/claude", project / "one")
    (project / link).parent.mkdir(parents=True, exist_ok=True)
    os.symlink(target, project / link)
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    write(child.path, {change: "evil"})
    merged = spaces.merge(child)
    assert [(one.path, one.why) for one in merged.violations] == [(change, "protected")]
    spaces.close(child)
    harmless = spaces.open_child("s2")
    write(harmless.path, {"src/a.py": "x = 1\n"})
    assert spaces.merge(harmless).ok
    spaces.close(harmless)


@pytest.mark.parametrize("path", [".vscode/settings.json", ".github/workflows/test.yml", "opencode/json"])
def test_files_beside_protected_names_are_merged(project: Path, path: str):
    repository(project, {"a.txt": "a"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    write(child.path, {path: "x"})
    assert spaces.merge(child).ok
    spaces.close(child)
    assert (project / path).read_text() == "x"


def test_a_proposal_waits_and_is_applied_to_the_parent_as_it_is_then(project: Path, method: str):
    repository(project, {"a.txt": LINES, "b.txt": "b\n"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    write(child.path, {"a.txt": edited(35, "theirs"), "n.txt": "n\n"})
    os.unlink(child.path / "b.txt")
    before = tree(project)
    merged = spaces.merge(child, mode="propose")
    spaces.close(child)
    spaces.remains.collect()
    assert tree(project) == before
    assert [proposal.id for proposal in spaces.proposals()] == [merged.proposal]
    patch = spaces.diff(merged.proposal)
    assert "+theirs" in patch
    assert "deleted file mode 100644" in patch
    write(project, {"a.txt": edited(3, "ours")})
    now = tree(project)
    assert spaces.apply(merged.proposal, dry_run=True).applied == ("a.txt", "b.txt", "n.txt")
    assert tree(project) == now
    assert spaces.apply(merged.proposal).ok
    assert (project / "a.txt").read_text() == edited(3, "ours").replace("line 35\n", "theirs\n")
    assert not (project / "b.txt").exists()
    assert spaces.proposals() == []


def test_a_diff_is_a_patch_git_can_apply(project: Path, tmp_path: Path):
    repository(project, {"a.txt": LINES, "b.bin": bytes(range(256))})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    write(child.path, {"a.txt": edited(1, "x"), "b.bin": bytes(range(255, -1, -1)), "n/ü.txt": "n\n"})
    (tmp_path / "patch").write_text(spaces.diff(child))
    git(project, "apply", str(tmp_path / "patch"))
    assert tree(project) == tree(child.path)
    spaces.close(child)


def test_discard_drops_and_merging_twice_does_nothing_twice(project: Path):
    repository(project, {"a.txt": "a"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    write(child.path, {"a.txt": "b"})
    spaces.merge(child, mode="discard")
    assert (project / "a.txt").read_text() == "a"
    first = spaces.merge(child)
    (project / "a.txt").write_text("later work")
    again = Workspaces(project).merge(child)
    assert again == first
    assert (project / "a.txt").read_text() == "later work"
    spaces.close(child)


def test_ignored_files_in_a_removed_folder_stay(project: Path):
    repository(project, {"d/a.txt": "a", ".gitignore": "*.log\n"})
    write(project, {"d/x.log": "mine"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    os.unlink(child.path / "d/a.txt")
    os.rmdir(child.path / "d")
    assert spaces.merge(child).ok
    spaces.close(child)
    assert tree(project).keys() == {"d", "d/x.log", ".gitignore"}


def test_a_removed_folder_takes_its_empty_folders_along(project: Path, method: str):
    repository(project, {"d/a.txt": "a", "d/in/b.txt": "b", "e.txt": "e"})
    for folder in ("d/hollow/inner", "d/in/void", "stays"):
        (project / folder).mkdir(parents=True)
    write(project, {"d/node_modules/m.js": "a dependency"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    shutil.rmtree(child.path / "d/in")
    shutil.rmtree(child.path / "d/hollow")
    kinds = {(change.path, change.what, change.kind) for change in child.changes()}
    assert kinds == {
        ("d/in/b.txt", "file", "deleted"),
        ("d/in/void", "folder", "deleted"),
        ("d/hollow/inner", "folder", "deleted"),
    }
    assert spaces.merge(child).ok
    spaces.close(child)
    assert tree(project).keys() == {"d", "d/a.txt", "d/node_modules", "d/node_modules/m.js", "e.txt", "stays"}


def test_tracked_files_are_merged_although_a_pattern_ignores_them(project: Path):
    repository(project, {".gitignore": "*.log\n", "a.txt": "a"})
    write(project, {"kept.log": "k"})
    git(project, "add", "-f", "kept.log")
    (project / "kept.log").unlink()
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    write(child.path, {"kept.log": "again", "other.log": "ignored", "new.txt": "n"})
    assert [change.path for change in spaces.merge(child).changes] == ["kept.log", "new.txt"]
    spaces.close(child)


def scribble(top: Path, chance: random.Random, who: str) -> None:
    """Change a tree at random: edit, delete, move, add, and put files where folders were."""
    for _ in range(chance.randint(1, 4)):
        files = sorted(path for path, (kind, _) in tree(top).items() if kind == "file")
        path = chance.choice(files) if files else "a.txt"
        what = chance.choice(["edit", "edit", "delete", "move", "add", "swap"])
        new = chance.choice(["a.txt", "n.txt", "d/n.txt", "d", "d/b.txt/deep", "m.txt"])
        if what == "edit" and files:
            line = chance.choice([2, 20, 38])
            text = (top / path).read_text().replace(f"line {line}\n", f"{who}\n")
            write(top, {path: text})
        elif what == "delete" and files:
            (top / path).unlink()
        elif not (top / new).exists() and all(not parent.is_file() for parent in (top / new).parents):
            if what == "move" and files:
                (top / new).parent.mkdir(parents=True, exist_ok=True)
                os.rename(top / path, top / new)
            else:
                write(top, {new: chance.choice([LINES, f"by {who}\n"])})
        elif what == "swap" and (top / "d").is_dir():
            shutil.rmtree(top / "d")
            write(top, {"d": f"by {who}\n"})


@pytest.mark.parametrize("seed", range(20))
def test_looking_only_where_the_child_wrote_finds_what_looking_everywhere_finds(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
):
    files: dict[str, str | bytes] = dict.fromkeys(("a.txt", "c.txt", "d/b.txt"), LINES)
    results = []
    for thorough in (False, True):
        project = tmp_path / f"{thorough}"
        write(project, files)
        spaces = Workspaces(project)
        child = spaces.open_child("s1")
        write(child.path, {"a.txt": edited(30, "theirs")})  # so that in any case git has something to decide
        write(project, {"a.txt": edited(10, "ours")})
        scribble(child.path, random.Random(seed), "theirs")
        scribble(project, random.Random(seed + 1_000), "ours")
        if thorough:
            monkeypatch.setattr(project_tree, "is_in_place", lambda *_: False)
        merged = spaces.merge(child)
        results.append((merged.ok, sorted(merged.applied), tree(project)))
        spaces.close(child)
    assert results[0] == results[1]


def test_modes_and_owners_of_replaced_files_are_kept(project: Path):
    repository(project, {"a.txt": "a", "d/b.txt": "b"})
    (project / "a.txt").chmod(0o640)
    if os.geteuid() == 0:
        os.chown(project / "a.txt", 12345, 12345)
        os.chown(project / "d", 12345, 12345)
    spaces = Workspaces(project)
    child = spaces.open_child("s1")
    write(child.path, {"a.txt": "A", "d/new.txt": "n"})
    assert spaces.merge(child).ok
    spaces.close(child)
    status = (project / "a.txt").stat()
    assert status.st_mode & 0o777 == 0o640
    if os.geteuid() == 0:
        assert status.st_uid == 12345
        assert (project / "d/new.txt").stat().st_uid == 12345


def test_shared_steps_are_watched(project: Path):
    repository(project, {"a.txt": "a", "b.txt": "b", "same.txt": "s", ".gitignore": "*.log\n"})
    spaces = Workspaces(project)
    spaces.close(spaces.open_child("base"))  # then rewriting with the same content can be told apart
    watch = spaces.watch()
    write(project, {"a.txt": "A", "c/new.txt": "n", "x.log": "ignored", "same.txt": "s"})
    os.unlink(project / "b.txt")
    found = [(change.path, change.kind) for change in watch.changes()]
    assert found == [("a.txt", "modified"), ("b.txt", "deleted"), ("c/new.txt", "added")]


def test_a_repository_without_a_name_is_not_merged(project: Path):
    repository(project, {"a.txt": "a"})
    spaces = Workspaces(project)
    child = spaces.open_child("s1", write_set=["**"])
    (child.path / "bare/objects").mkdir(parents=True)
    (child.path / "bare/refs").mkdir()
    write(
        child.path,
        {"bare/HEAD": "ref: refs/heads/x\n", "bare/config": "[core]\n", "docs/HEAD": "no repository"},
    )
    merged = spaces.merge(child, ["**"])
    assert {row.why for row in merged.violations} == {"protected"}
    assert {"bare/HEAD", "bare/config"} <= {row.path for row in merged.violations}
    assert "docs/HEAD" not in {row.path for row in merged.violations}
    assert not (project / "bare").exists()
    spaces.close(child)
