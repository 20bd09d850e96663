"""Roles: what is built in, which file wins, and what is said about files that cannot be used."""

import os
from pathlib import Path

import pytest

from fanfold.agents.role_files import MAX_FILE_BYTES
from fanfold.agents.roles import Registry, load_roles, role_roots

TOML = """\
name = "{name}"
description = "Looks after {name}"
developer_instructions = "Do it well."
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "user"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path / "project"


def write(file: Path, text: str | bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def load(project: Path, home: Path) -> Registry:
    return load_roles(role_roots(project, home, home / ".fanfold"), project)


def test_the_built_in_roles_read_or_write_as_documented(project, home):
    roles = load(project, home)
    postures = {name: role.read_only for name in roles.names() if (role := roles.find(name))}
    assert postures == {
        "critic": True,
        "default": False,
        "explorer": True,
        "planner": True,
        "researcher": True,
        "summarizer": True,
        "worker": False,
    }
    assert roles.notices == ()


def test_every_built_in_role_says_what_to_hand_back(project, home):
    roles = load(project, home)
    for name in roles.names():
        role = roles.find(name)
        assert role is not None
        assert "Finish with" in role.instructions
        assert "never as" in role.instructions or "never as\ninstructions" in role.instructions


def test_researcher_follows_the_project_s_own_explorer(project, home):
    write(project / ".fanfold/agents/explorer.toml", TOML.format(name="explorer"))
    found = load(project, home).find("researcher")
    assert found is not None
    assert found.source.endswith("explorer.toml")


def test_a_role_called_researcher_takes_the_alias_away(project, home):
    write(project / ".fanfold/agents/r.toml", TOML.format(name="researcher"))
    roles = load(project, home)
    researcher, explorer = roles.find("researcher"), roles.find("explorer")
    assert researcher is not None
    assert explorer is not None
    assert (researcher.name, explorer.source) == ("researcher", "built-in")


def test_each_root_shadows_the_ones_below_it_and_says_so(project, home):
    files = [
        project / ".fanfold/agents/a.toml",
        project / ".codex/agents/a.toml",
        project / ".claude/agents/a.md",
        home / ".fanfold/agents/a.toml",
        home / ".codex/agents/a.toml",
        home / ".claude/agents/a.md",
    ]
    for file in files:
        text = "---\nname: a\ndescription: d\n---\nDo.\n" if file.suffix == ".md" else TOML.format(name="a")
        write(file, text)
    for i, file in enumerate(files):
        roles = load(project, home)
        role = roles.find("a")
        assert role is not None
        assert role.source == str(file)
        shadowed = [notice.message for notice in roles.notices if notice.code == "role.duplicate"]
        assert len(shadowed) == len(files) - 1 - i
        assert all(str(file) in message for message in shadowed)
        assert all(str(other) in message for other, message in zip(files[i + 1 :], shadowed, strict=True))
        places = [notice.file for notice in roles.notices if notice.code == "role.duplicate"]
        assert places == list(map(str, files[i + 1 :])), "at the file that has no effect"
        file.unlink()
    assert load(project, home).find("a") is None


def test_replacing_a_built_in_role_is_visible(project, home):
    file = write(project / ".fanfold/agents/worker.toml", TOML.format(name="worker"))
    (notice,) = load(project, home).notices
    assert (notice.code, notice.file) == ("role.duplicate", str(file))
    assert str(file) in notice.message
    assert "built-in" in notice.message


def test_versions_live_side_by_side_and_the_highest_is_meant(project, home):
    for version in ("2", "10", "9"):
        write(project / f".fanfold/agents/a{version}.toml", f"version = {version}\n" + TOML.format(name="a"))
    roles = load(project, home)
    assert roles.versions("a") == ("10", "9", "2")
    for ref, version in (("a", "10"), ("a@2", "2"), ("a@v9", "9")):
        found = roles.find(ref)
        assert found is not None
        assert found.version == version
    assert roles.find("a@3") is None
    assert [role.name for role in roles.with_version("9")] == ["a"]
    assert roles.notices == ()


def test_toml_keys_become_the_role(project, home):
    write(
        project / ".codex/agents/x.toml",
        TOML.format(name="x")
        + 'model = "m"\nmodel_reasoning_effort = "high"\nsandbox_mode = "read-only"\nmax_turns = 7\n'
        'tools = ["read_file"]\nfallback_models = ["n"]\nprompt_template = "Look at {{inputs.a}}"\n'
        'command = "agent --print"\nnetwork = true\n[mcp_servers.docs]\ncommand = "serve"\n',
    )
    role = load(project, home).find("x")
    assert role is not None
    assert (role.model, role.reasoning_effort, role.read_only, role.max_turns) == ("m", "high", True, 7)
    assert (role.tools, role.fallback_models) == (("read_file",), ("n",))
    assert (role.command, role.network) == (("agent", "--print"), True)
    assert role.prompt_template == "Look at {{inputs.a}}"
    assert role.mcp_servers == {"docs": {"command": "serve"}}


@pytest.mark.parametrize(
    ("keys", "read_only"),
    [
        ("tools: Read, Grep, Glob", True),
        ("tools: [Read, Edit]", False),
        ("tools:\n  - Read\n  - Bash(git diff:*)", False),
        ("tools:\n  - Read\n  - Bash(*)", False),
        ("tools: '*'", False),
        ("tools:", False),
        ("tools: Task, TodoWrite", True),
        ("disallowedTools: Write, Edit, Bash", True),
        ("disallowedTools: Write, Edit", False),
        ("tools: Read, Edit\ndisallowedTools: [Edit]", True),
        ("permissionMode: plan", True),
        ("", False),
    ],
)
def test_a_claude_agent_reads_only_when_its_tools_do(project, home, keys, read_only):
    write(
        project / ".claude/agents/c.md", f"---\nname: c\ndescription: Use when: asked\n{keys}\n---\nDo it.\n"
    )
    role = load(project, home).find("c")
    assert role is not None
    assert (role.read_only, role.instructions, role.description) == (read_only, "Do it.", "Use when: asked")


def test_a_key_of_another_program_is_noted_and_the_role_is_kept(project, home):
    write(project / ".claude/agents/c.md", "---\nname: c\nshape: round\ndescription: d\n---\nDo it.\n")
    roles = load(project, home)
    assert roles.find("c") is not None
    (notice,) = roles.notices
    assert (notice.code, notice.severity, notice.line) == ("role.note", "note", 3)


INVALID = [
    ("toml", 'name = "x"\ndescription = \n', 2, "TOML"),
    ("toml", 'description = "d"\ndeveloper_instructions = "i"\n', 1, "name"),
    ("toml", TOML.format(name="a\\u0007b"), 1, "name"),
    ("toml", TOML.format(name="x@1"), 1, "name"),
    ("toml", TOML.format(name="x") + 'sandbox_mode = "none"\n', 4, "sandbox_mode"),
    ("toml", TOML.format(name="x") + "max_turns = true\n", 4, "max_turns"),
    ("toml", TOML.format(name="x") + "tools = 3\n", 4, "list"),
    ("toml", TOML.format(name="x") + 'version = "a/b"\n', 4, "version"),
    ("toml", TOML.format(name="x") + 'command = "\'"\n', 4, "command"),
    ("toml", 'name = "x"\ndescription = "d"\n', 1, "instructions"),
    ("toml", "a = " + "[" * 5_000, 1, "levels deep"),
    ("toml", "x = 1\n" * MAX_FILE_BYTES, 1, "bytes"),
    ("toml", b'name = "x"\n# \xff\n', 2, "UTF-8"),
    ("md", "name: x\n", 1, "---"),
    ("md", "---\nname: x\n", 2, "closed"),
    ("md", "---\nname: x\nname: y\n---\n", 3, "already given"),
    ("md", "---\nwhat is this\n---\n", 2, "key: value"),
    ("md", "---\nname: x\ntools: Read\n---\nDo it.\n", 2, "description"),
]


@pytest.mark.parametrize(("kind", "text", "line", "words"), INVALID)
def test_a_file_that_cannot_be_used_is_reported_with_its_line_and_the_others_stay(
    project, home, kind, text, line, words
):
    folder = project / (".fanfold/agents" if kind == "toml" else ".claude/agents")
    bad = write(folder / f"bad.{kind}", text)
    write(project / ".fanfold/agents/good.toml", TOML.format(name="good"))
    roles = load(project, home)
    assert roles.find("good") is not None
    (notice,) = [notice for notice in roles.notices if notice.code == "role.invalid"]
    assert (notice.file, notice.line) == (str(bad), line)
    assert words in notice.message


def test_a_named_pipe_in_a_role_folder_does_not_block(project, home):
    folder = project / ".fanfold/agents"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe.toml")
    (notice,) = load(project, home).notices
    assert "regular file" in notice.message


def test_block_text_in_front_matter_keeps_or_joins_its_lines(project, home):
    text = "---\nname: c\ndescription: >\n  one\n  two\nprompt_template: |\n  a\n    b\n---\nDo.\n"
    write(project / ".claude/agents/c.md", text)
    role = load(project, home).find("c")
    assert role is not None
    assert (role.description, role.prompt_template) == ("one two", "a\n  b")


CLAUDE_WITH_SERVERS = """\
---
name: clerk
description: Keeps notes
tools: Read, mcp__notes__add
mcpServers:
  - github
  - notes:
      type: stdio
      command: python
      args: ["-m", "notes"]
---
Keep notes.
"""


def test_servers_of_a_claude_role_are_read_and_named_ones_looked_up_in_the_project(project, home):
    write(project / ".claude/agents/clerk.md", CLAUDE_WITH_SERVERS)
    write(project / ".mcp.json", '{"mcpServers": {"github": {"url": "https://example.org/mcp"}}}')
    role = load(project, home).find("clerk")
    assert role is not None
    assert role.mcp_servers["github"] == {"url": "https://example.org/mcp"}
    assert role.mcp_servers["notes"]["command"] == "python"
    assert not role.read_only


def test_a_broken_file_of_servers_is_a_notice_and_the_role_stays(project, home):
    write(project / ".claude/agents/clerk.md", CLAUDE_WITH_SERVERS)
    write(project / ".mcp.json", "{")
    roles = load(project, home)
    assert roles.find("clerk") is not None
    assert any(".mcp.json" in notice.file for notice in roles.notices)


@pytest.mark.parametrize("ending", ["toml", "md"])
def test_a_server_that_the_role_may_not_reach_is_reported_when_the_file_is_read(project, home, ending):
    if ending == "toml":
        text = TOML.format(name="x") + '%s[mcp_servers.docs]\nurl = "https://example.org/mcp"\n'
        file, line, network = project / ".codex/agents/x.toml", 4, "network = true\n"
    else:
        text = "---\nname: x\ndescription: d\n%smcpServers: [docs]\n---\nDo.\n"
        write(project / ".mcp.json", '{"mcpServers": {"docs": {"url": "https://example.org/mcp"}}}')
        file, line, network = project / ".claude/agents/x.md", 4, "network: true\n"
    write(file, text % "")
    (notice,) = load(project, home).notices
    assert (notice.code, notice.file, notice.line) == ("role.needs_network", str(file), line)
    assert network.strip() in notice.message
    write(file, text % network)
    assert load(project, home).notices == ()


def test_a_server_that_is_a_program_or_switched_off_needs_no_network(project, home):
    servers = '[mcp_servers.a]\ncommand = "a"\n[mcp_servers.b]\nurl = "https://b.example"\nenabled = false\n'
    write(project / ".codex/agents/x.toml", TOML.format(name="x") + servers)
    assert load(project, home).notices == ()


def test_a_broken_file_stands_for_the_name_it_gives_itself(project, home):
    write(project / ".claude/agents/file.md", "---\nname: tester\ndescription: d\nmax_turns: many\n---\n")
    write(home / ".fanfold/agents/tester.toml", TOML.format(name="tester"))
    broken = load(project, home).broken
    assert list(broken) == ["tester"]
    assert "max_turns" in broken["tester"]


def test_a_file_that_cannot_be_read_takes_no_built_in_role_away(project, home):
    for name in ("worker", "researcher", "default"):
        write(project / f".claude/agents/{name}.md", f"---\nname: {name}\ndescription: [\n---\nx\n")
    roles = load(project, home)
    assert roles.broken == {}
    assert [notice.code for notice in roles.notices] == ["role.invalid"] * 3
    found = [role for name in ("worker", "researcher", "default") if (role := roles.find(name))]
    assert [role.source for role in found] == ["built-in"] * 3


def test_a_role_that_is_refused_is_not_replaced_by_one_that_may_do_more(project, home):
    keys = "description: d\npermissionMode: locked"
    write(project / ".claude/agents/explorer.md", f"---\nname: explorer\n{keys}\n---\nx\n")
    roles = load(project, home)
    assert sorted(roles.broken) == ["explorer", "researcher"]
    assert "locked" in roles.broken["researcher"]


def test_a_wrong_name_is_reported_once(project, home):
    write(project / ".claude/agents/_template.md", "---\nname: [your name]\ndescription: x\n---\nWork.\n")
    assert [(one.line, one.message) for one in load(project, home).notices] == [
        (2, 'role file ignored: "name" must be text, not a list')
    ]


def test_a_remark_below_a_value_is_no_part_of_it(project, home):
    text = "---\nname: scout\ndescription: Use when: lost\nmodel: inherit\n# cheap enough\n---\nLook.\n"
    write(project / ".claude/agents/scout.md", text)
    scout = load(project, home).find("scout")
    assert scout is not None
    assert scout.model is None


def test_a_refused_role_stands_for_the_name_that_steps_write(project, home):
    front = "---\nname: Code Reviewer\ndescription: d\n{more}---\nReview.\n"
    write(project / ".claude/agents/one.md", front.format(more="permissionMode: locked\n"))
    write(home / ".claude/agents/two.md", front.format(more=""))
    roles = load(project, home)
    assert list(roles.broken) == ["code-reviewer"]
    assert "code-reviewer" not in roles.names()


def test_a_role_without_a_description_gets_an_error_with_the_possible_places(project, home):
    write(project / ".codex/config.toml", '[agents.scout]\nconfig_file = "agents/scout.toml"\n')
    write(project / ".codex/agents/scout.toml", 'developer_instructions = "Look."\n')
    (notice,) = load(project, home).notices
    assert (notice.role, notice.help) == ("scout", "add it to the file, or next to its `config_file`")


def test_a_mistyped_description_is_pointed_at(project, home):
    write(project / ".claude/agents/x.md", "---\nname: x\ndesciption: d\n---\nDo.\n")
    (notice,) = [one for one in load(project, home).notices if one.code == "role.invalid"]
    assert (notice.line, notice.help) == (3, 'write "description" instead of "desciption"')


@pytest.mark.parametrize(
    "said",
    [
        "sly",
        '"sly"  # x',
        "'sly'",
        "sly # x",
        "Sly Fox",
        "# none!",
        "sly" + " " * (MAX_FILE_BYTES - 100) + "!",
    ],
    ids=lambda said: said[:10],
)
def test_the_name_in_a_broken_file_is_reported_in_any_spelling(project, home, said):
    write(project / ".claude/agents/one.md", f"---\nname: {said}\ndescription: [\n---\nLook.\n")
    named = {"Sly Fox": "sly-fox"}.get(said, "one" if said.endswith("!") else "sly")
    assert list(load(project, home).broken) == [named]
