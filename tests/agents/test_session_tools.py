"""The tools a model is offered: what they do, what they refuse, and how more is read."""

import asyncio
import difflib
import os
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.agents.backend import SessionRequest, ToolFailed
from fanfold.agents.permissions import Action, Permissions
from fanfold.agents.tool_names import PatchError, apply, parse
from fanfold.agents.tools.files import ArtifactFiles
from fanfold.agents.tools.toolbox import SessionTools
from fanfold.errors import WorldError
from fanfold.workspace.artifacts import NOTHING_SEEN, ArtifactRoom
from tests.session_requests import session_request


def asked(workspace, **given: Any) -> SessionRequest:
    return session_request(**{"prompt": "", "workspace": str(workspace), **given})


def call(workspace, tool: str, given: dict[str, Any] | None = None, tools=None, **args: Any) -> Any:
    box = tools or SessionTools(asked(workspace, **(given or {})))
    return asyncio.run(box.call(tool, args))


def refused(workspace, tool: str, code: str, given: dict[str, Any] | None = None, **args: Any) -> ToolFailed:
    with pytest.raises(ToolFailed) as failed:
        call(workspace, tool, given, **args)
    assert failed.value.code == code
    return failed.value


@pytest.fixture
def project(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("def one():\n    return 1\n\n\ndef two():\n    return 2\n")
    (tmp_path / "src" / "b.txt").write_text("nothing\n")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "x.py").write_text("def noise(): return 0\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("def hidden\n")
    return tmp_path


# --------------------------------------------------------------------------------------- reading


def test_a_long_file_is_read_in_pieces_that_put_together_are_the_file(tmp_path):
    whole = "".join(f"line {i}\n" for i in range(10_000))
    (tmp_path / "long").write_text(whole)
    text, offset = "", 0
    while len(text) < len(whole):
        piece = call(tmp_path, "read_file", path="long", offset=offset)
        assert len(piece["text"]) <= 32 * 1024
        text += piece["text"]
        offset = piece.get("next_offset", 0)
    assert text == whole
    assert offset == 0


def test_files_are_listed_by_name_and_read_on_by_offset(project):
    first = call(project, "list_files", limit=2)
    assert first == {"files": ["node_modules/x.py", "src/a.py"], "next_offset": 2}
    assert call(project, "list_files", limit=2, offset=2) == {"files": ["src/b.txt"]}
    assert call(project, "list_files", glob="**/*.txt") == {"files": ["src/b.txt"]}
    assert call(project, "list_files", path="src") == {"files": ["src/a.py", "src/b.txt"]}


@pytest.mark.full
def test_searching_gives_lines_and_leaves_out_what_is_noise(project):
    found = call(project, "search_files", pattern=r"^def \w+")
    assert [(hit["path"], hit["line"]) for hit in found["matches"]] == [("src/a.py", 1), ("src/a.py", 5)]
    assert found["matches"][0]["text"] == "def one():"
    named = call(project, "search_files", pattern="def", path="node_modules")
    assert [hit["path"] for hit in named["matches"]] == ["node_modules/x.py"]
    one = call(project, "search_files", pattern="DEF", ignore_case=True, limit=1)
    assert one["next_offset"] == 1
    two = call(project, "search_files", pattern="DEF", ignore_case=True, limit=1, offset=1)
    assert two["matches"][0]["line"] == 5


@pytest.mark.full
def test_a_pattern_that_never_ends_is_ended(project, monkeypatch):
    monkeypatch.setattr("fanfold.agents.tools.files.SEARCH_S", 0.3)
    (project / "evil").write_text("a" * 5_000 + "b")
    failed = refused(
        project, "search_files", "tool.timeout", pattern=r"^(a|a|aa)+$|(x+x+)+y|(a*)*c", path="evil"
    )
    assert "simpler" in failed.hint


@pytest.mark.full
def test_a_search_does_not_hold_up_the_others(project):
    (project / "evil").write_text("a" * 5_000 + "b")

    async def main():
        box = SessionTools(asked(project))
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticking = asyncio.create_task(tick())
        with pytest.raises(ToolFailed):
            await box.call("search_files", {"pattern": r"^(a|a|aa)+$|(a*)*c", "path": "evil"})
        ticking.cancel()
        assert ticks > 5

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fanfold.agents.tools.files.SEARCH_S", 0.5)
        asyncio.run(main())


@pytest.mark.full
@pytest.mark.parametrize("tool", ["read_file", "list_files", "search_files", "edit_file"])
@pytest.mark.parametrize("path", ["/etc", "../..", "out", "src/../../.."])
def test_nothing_outside_the_workspace_is_reached(project, tool, path):
    os.symlink("/etc", project / "out")
    args: dict[str, Any] = {"pattern": "root", "old": "root", "new": "x"}
    used = {"search_files": ("pattern",), "edit_file": ("old", "new")}.get(tool, ())
    with pytest.raises(ToolFailed):
        call(project, tool, path=path, **{name: args[name] for name in used})


# --------------------------------------------------------------------------------------- editing


def test_an_edit_replaces_what_is_there_exactly_once(project):
    result = call(project, "edit_file", path="src/a.py", old="return 2", new="return 3")
    assert result == {"path": "src/a.py", "replaced": 1, "line": 6}
    assert (project / "src" / "a.py").read_text().endswith("return 3\n")


def test_an_edit_that_is_not_clear_changes_nothing_and_says_why(project):
    before = (project / "src" / "a.py").read_text()
    assert (
        "2 times"
        in refused(project, "edit_file", "tool.ambiguous", path="src/a.py", old="def", new="x").message
    )
    failed = refused(project, "edit_file", "tool.no_match", path="src/a.py", old="def  one():", new="x")
    assert "whitespace" in failed.hint
    refused(project, "edit_file", "tool.not_found", path="src/c.py", old="a", new="b")
    refused(project, "edit_file", "tool.no_match", path="src/a.py", old="", new="b")
    assert (project / "src" / "a.py").read_text() == before
    assert call(project, "edit_file", path="src/a.py", old="def", new="fn", all=True)["replaced"] == 2


def test_edits_keep_to_the_write_set(project):
    given = {"write_set": ("docs/**",)}
    refused(project, "edit_file", "tool.outside_write_set", given, path="src/a.py", old="return 2", new="x")


PATCH = """\
diff --git a/src/a.py b/src/a.py
--- a/src/a.py
+++ b/src/a.py
@@ -1,2 +1,2 @@
 def one():
-    return 1
+    return 11
@@ -5,2 +5,3 @@ def two():
 def two():
-    return 2
+    x = 22
+    return x
--- /dev/null
+++ b/new/c.py
@@ -0,0 +1,2 @@
+import a
+a.one()
--- a/src/b.txt
+++ /dev/null
@@ -1 +0,0 @@
-nothing
"""


def test_a_patch_changes_creates_and_deletes(project):
    result = call(project, "apply_patch", patch=PATCH)
    assert {one["path"]: one["change"] for one in result["files"]} == {
        "src/a.py": "changed",
        "new/c.py": "created",
        "src/b.txt": "deleted",
    }
    text = (project / "src" / "a.py").read_text()
    assert text == "def one():\n    return 11\n\n\ndef two():\n    x = 22\n    return x\n"
    assert (project / "new" / "c.py").read_text() == "import a\na.one()\n"
    assert not (project / "src" / "b.txt").exists()


def test_a_patch_that_does_not_fit_changes_nothing(project):
    before = (project / "src" / "a.py").read_text()
    failed = refused(project, "apply_patch", "tool.patch_failed", patch=PATCH.replace("return 2", "return 9"))
    assert "hunk 2" in failed.message
    assert (project / "src" / "a.py").read_text() == before
    assert not (project / "new").exists()


def test_a_patch_refused_in_the_middle_is_put_back(project):
    given = {"write_set": ("src/a.py",)}
    before = (project / "src" / "a.py").read_text()
    refused(project, "apply_patch", "tool.outside_write_set", given, patch=PATCH)
    assert (project / "src" / "a.py").read_text() == before
    assert (project / "src" / "b.txt").exists()


lines = st.lists(st.sampled_from(["a", "b", "  c", "", "d"]), max_size=12).map(
    lambda found: "".join(f"{x}\n" for x in found)
)


@given(lines, lines, st.booleans(), st.booleans())
def test_every_patch_of_diff_can_be_applied(old, new, old_open, new_open):
    old = old.rstrip("\n") if old_open else old
    new = new.rstrip("\n") if new_open else new
    diff = difflib.unified_diff(old.splitlines(True), new.splitlines(True), "a/f", "b/f")
    made = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in diff]
    if not made:
        return
    (change,) = parse("".join(made))
    assert apply(change, old) == new


def test_text_that_is_no_patch_says_so():
    for text in ("", "hello", "@@ -1 +1 @@\n-a\n+b\n"):
        with pytest.raises(PatchError):
            parse(text)


# ------------------------------------------------------------------------ what is offered and allowed


def names(box: SessionTools) -> list[str]:
    return [spec.name for spec in box.offered()]


class Ran(NamedTuple):
    exit_code: int = 0
    stdout: str = "ran\n"
    stderr: str = ""


class Runner:
    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    async def __call__(self, request, argv, timeout_s):
        if argv[0] == "nowhere":
            raise FileNotFoundError(argv[0])
        if argv[0] == "slow":
            raise WorldError("process.timeout", "slow did not end within 1 s")
        self.commands.append(list(argv))
        return Ran(stdout="x" * 100_000 if argv[0] == "loud" else "ran\n")


def test_a_reader_is_offered_no_mutation_and_denied_one_it_calls_anyway(project):
    box = SessionTools(asked(project, read_only=True), runner=Runner())
    assert names(box) == ["read_file", "list_files", "search_files"]
    for tool in ("write_file", "edit_file", "apply_patch", "delete_file", "run_command"):
        assert box.mutates(tool)
        with pytest.raises(ToolFailed) as failed:
            asyncio.run(box.call(tool, {"path": "a", "content": "", "argv": ["x"], "patch": ""}))
        assert failed.value.code == "permission_denied"


@pytest.mark.parametrize(
    ("listed", "offered"),
    [
        (None, ["read_file", "list_files", "search_files"]),
        (("Read", "Write", "Edit"), ["read_file", "write_file"]),
    ],
)
def test_a_reader_leaves_artifacts_and_is_offered_it_where_that_is_listed(project, tmp_path, listed, offered):
    room = ArtifactRoom(str(tmp_path / "runs"), "run", "session", NOTHING_SEEN, is_new=True)
    box = SessionTools(
        asked(project, read_only=True, tools=listed), artifacts=ArtifactFiles(room, str(project))
    )
    assert names(box) == offered
    asyncio.run(box.call("write_file", {"path": "artifacts/plan.md", "content": "owls"}))
    assert (room.folder / "plan.md").read_text() == "owls"
    with pytest.raises(ToolFailed) as failed:
        asyncio.run(box.call("write_file", {"path": "plan.md", "content": "owls"}))
    assert failed.value.code == "permission_denied"


def test_a_role_is_offered_what_it_lists_whatever_it_calls_it(project):
    box = SessionTools(asked(project, tools=("Read", "Grep", "edit_file", "run_command")))
    assert names(box) == ["read_file", "search_files", "edit_file"], "there is no runner"
    with pytest.raises(ToolFailed) as failed:
        asyncio.run(box.call("write_file", {"path": "a", "content": ""}))
    assert failed.value.code == "tool.unknown"


def test_every_schema_is_closed_and_accepted_by_the_validator(project):
    import jsonschema_rs

    from fanfold.agents.tool_names import SPECS

    for spec in SPECS:
        assert spec.schema["additionalProperties"] is False
        jsonschema_rs.validator_for(spec.schema)
        assert spec.description.endswith(".")


def test_commands_run_through_the_runner_and_long_output_is_cut(project):
    runner = Runner()
    box = SessionTools(asked(project), runner=runner)
    result = call(project, "run_command", tools=box, argv=["echo", "a b"])
    assert result == {"exit_code": 0, "stdout": "ran\n", "stderr": ""}
    assert runner.commands == [["echo", "a b"]]
    loud = call(project, "run_command", tools=box, argv=["loud"])
    assert len(loud["stdout"]) < 17_000
    assert "left out" in loud["stdout"]
    for program, code in (("nowhere", "tool.no_program"), ("slow", "process.timeout")):
        with pytest.raises(ToolFailed) as failed:
            call(project, "run_command", tools=box, argv=[program])
        assert failed.value.code == code


def test_commands_are_asked_for_in_their_own_words(project):
    questions: list[Action] = []

    async def ask(action: Action) -> bool:
        questions.append(action)
        return action.what == "make test"

    runner = Runner()
    box = SessionTools(asked(project), runner=runner, permissions=Permissions("ask", ask))
    call(project, "run_command", tools=box, argv=["make", "test"])
    with pytest.raises(ToolFailed) as failed:
        call(project, "run_command", tools=box, argv=["rm", "-rf", "a b"])
    assert failed.value.code == "permission_denied"
    assert failed.value.refused
    assert [action.what for action in questions] == ["make test", "rm -rf 'a b'"]
    assert runner.commands == [["make", "test"]]
    call(project, "write_file", tools=box, path="ok.txt", content="x")
    assert len(questions) == 2, "writes were covered by the question at the start"


def test_the_query_of_the_own_run_is_passed_in(project):
    async def query(request, words, k):
        return {"hits": [request.run_id, words, k]}

    box = SessionTools(asked(project, read_only=True), query=query)
    assert call(project, "query_workflow", tools=box, query="why") == {"hits": ["r", "why", 5]}
    assert "query_workflow" not in names(SessionTools(asked(project)))
