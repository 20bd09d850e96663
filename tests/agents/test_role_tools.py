"""The tools of role files: which are kept, and what is said about those that are not."""

from pathlib import Path

import pytest

from fanfold.agents.role import Notice, Role
from fanfold.agents.role_files import read_role
from fanfold.agents.tool_names import BY_NAME

EVERYTHING = set(BY_NAME)
FILE_CHANGES = {"write_file", "edit_file", "apply_patch", "delete_file"}


def claude(folder: Path, keys: str) -> tuple[Role, list[Notice]]:
    file = folder / "c.md"
    file.write_text(f"---\nname: c\ndescription: d\n{keys}\n---\nDo it.\n")
    notices: list[Notice] = []
    found = read_role(file, "md", notices)
    assert found is not None, notices
    return found.role, notices


def own(folder: Path, tools: str) -> tuple[Role, list[Notice]]:
    file = folder / "t.toml"
    file.write_text(f'name = "t"\ndescription = "d"\ndeveloper_instructions = "i"\ntools = {tools}\n')
    notices: list[Notice] = []
    found = read_role(file, "toml", notices)
    assert found is not None, notices
    return found.role, notices


@pytest.mark.parametrize("keys", ["tools: '*'", 'tools: ["*"]', "tools:", "tools: null", "disallowedTools:"])
def test_all_tools_can_be_asked_for(tmp_path, keys):
    role, notices = claude(tmp_path, keys)
    assert (role.tools, role.read_only, notices) == (None, False, [])


@pytest.mark.parametrize(
    ("keys", "kept", "words"),
    [
        ("tools: LSP, TodoWrite", (), ["LSP", "TodoWrite"]),
        ("tools: Edit(docs/**), Read", ("Read",), ["Edit(docs/**)"]),
        (
            "tools: [Read, WebFetch(domain:a.example, domain:b.example)]",
            ("Read",),
            ["WebFetch(domain:a.example,domain:b.example)"],
        ),
        ("tools: Bash(*), Read", ("Bash", "Read"), []),
        ("tools: Read, mcp__wiki__find", ("Read", "mcp__wiki__find"), []),
        ("tools: []", (), []),
    ],
)
def test_unsupported_keys_of_a_claude_role_are_noted(tmp_path, keys, kept, words):
    role, notices = claude(tmp_path, keys)
    assert role.tools == kept
    assert [(notice.code, notice.severity, notice.line) for notice in notices] == [
        ("role.note", "note", 4) for _ in words
    ]
    assert all(f'"{word}"' in notice.message for word, notice in zip(words, notices, strict=True))


@pytest.mark.parametrize("tool", ["Task", "Agent"])
def test_a_role_that_cannot_delegate_here_says_so(tmp_path, tool):
    role, notices = claude(tmp_path, f"tools: Read, {tool}")
    assert role.tools == ("Read",)
    (notice,) = notices
    assert (notice.code, notice.severity) == ("role.lacks", "warning")
    assert f"works without {tool}" in notice.message


def test_a_note_stands_at_the_line_of_the_tool(tmp_path):
    _, notices = claude(tmp_path, "tools:\n  - Read\n  - LSP\n  - Edit(src/*)")
    assert [notice.line for notice in notices] == [6, 7]


@pytest.mark.parametrize(
    ("keys", "gone"),
    [
        ("disallowedTools: Bash", {"run_command"}),
        ("disallowedTools:\n  - Bash(git:*)", {"run_command"}),
        ("disallowedTools: Write", FILE_CHANGES - {"edit_file"}),
        ("disallowedTools: [Write, Edit]", FILE_CHANGES),
        ("disallowedTools: Write, Edit, Bash", {*FILE_CHANGES, "run_command"}),
        ("disallowedTools: Grep, TodoWrite", {"search_files"}),
        ("disallowedTools: '*'", EVERYTHING),
    ],
)
def test_disallowed_tools_are_taken_away(tmp_path, keys, gone):
    role, _ = claude(tmp_path, keys)
    assert role.tools is not None
    assert set(role.tools) == EVERYTHING - gone


def test_a_disallowed_pattern_takes_the_whole_tool_and_says_so(tmp_path):
    role, (notice,) = claude(tmp_path, "tools: Read, Bash\ndisallowedTools: Bash(rm:*)")
    assert (role.tools, role.read_only) == (("Read",), True)
    assert (notice.severity, notice.line) == ("note", 5)
    assert "works without Bash" in notice.message


SERVERS = "mcpServers:\n  wiki: {command: a}\n  mail: {command: b}\n"


@pytest.mark.parametrize(
    ("disallowed", "left"),
    [
        ("Read", {"mcp__wiki", "mcp__mail"}),
        ("mcp__mail", {"mcp__wiki"}),
        ("mcp__mail__*", {"mcp__wiki"}),
        ("mcp__mail__send", {"mcp__wiki"}),
    ],
)
def test_servers_are_kept_unless_they_or_a_tool_of_theirs_are_disallowed(tmp_path, disallowed, left):
    role, notices = claude(tmp_path, f"{SERVERS}disallowedTools: {disallowed}")
    assert {tool for tool in role.tools or () if tool.startswith("mcp__")} == left
    assert bool(notices) == disallowed.endswith("send")


def test_a_mistyped_tool_is_a_warning_with_what_was_meant(tmp_path):
    role, (notice,) = own(tmp_path, '["red_file", "Bash"]')
    assert role.tools == ("Bash",)
    assert (notice.code, notice.severity, notice.line) == ("role.unknown_tool", "warning", 4)
    assert 'did you mean "read_file"?' in notice.message


def test_a_mistyped_tool_among_those_taken_away_refuses_the_role(tmp_path):
    file = tmp_path / "c.md"
    file.write_text("---\nname: c\ndescription: d\ndisallowedTools: Bsh\n---\nDo it.\n")
    notices: list[Notice] = []
    assert read_role(file, "md", notices) is None
    (notice,) = notices
    assert (notice.code, notice.line, notice.help) == ("role.refused", 4, 'did you mean "Bash"?')


@pytest.mark.parametrize("word", ["bash", "BASH", "Bash", "run_command"])
def test_case_does_not_save_a_tool_from_being_taken_away(tmp_path, word):
    role, _ = claude(tmp_path, f"disallowedTools: {word}")
    assert role.tools is not None
    assert "run_command" not in role.tools


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("Bash(git diff:*)", ("git diff *",)),
        ("Bash(git diff *)", ("git diff *",)),
        ("Bash(git:*), Bash(make test)", ("git *", "make test")),
        ("Bash(git ls-files*)", ("git ls-files* *",)),
        ("Bash(git log:*, git show:*)", ("git log *", "git show *")),
        ("Bash(git commit -m 'a b')", ("git commit -m 'a b'",)),
    ],
)
def test_a_pattern_is_a_list_of_commands_that_may_run(tmp_path, written, kept):
    role, notices = claude(tmp_path, f"tools: Read, {written}")
    assert (role.tools, role.allowed_commands, notices) == (("Read", "Bash"), (kept,), [])


def test_a_tool_that_is_allowed_as_a_whole_too_is_not_narrowed(tmp_path):
    role, _ = claude(tmp_path, "tools: Bash(git diff:*), Bash")
    assert (role.tools, role.allowed_commands) == (("Bash",), ())


@pytest.mark.parametrize(
    "pattern", ["git log | head", "a && b", "echo $HOME", "cat > x", "* --help", "it's", ",", " , "]
)
def test_a_pattern_that_cannot_be_kept_refuses_the_role(tmp_path, pattern):
    file = tmp_path / "c.md"
    file.write_text(f'---\nname: c\ndescription: d\ntools: "Bash({pattern})"\n---\nDo it.\n')
    notices: list[Notice] = []
    assert read_role(file, "md", notices) is None
    assert [notice.code for notice in notices] == ["role.refused"]


def test_unknown_tools_and_tools_of_other_programs_differ(tmp_path):
    role, notices = own(tmp_path, '["frobnicate", "update_plan", "read_file"]')
    assert role.tools == ("read_file",)
    assert [notice.severity for notice in notices] == ["warning", "note"]
    assert own(tmp_path, '["*"]')[0].tools is None
