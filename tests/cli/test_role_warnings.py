"""What is said about role files: by `check` and `run` of the roles used, by `agents` of all."""

import os
import shutil
import sys

from fanfold.language.terminal import cells

GOOD = """\
name: good
steps:
  - {id: one, agent: explorer, prompt: Look}
"""


def diagnostics(result):
    return [(d["code"], d["severity"]) for d in result.json()["diagnostics"]]


def test_warnings_concern_the_roles_that_a_recipe_uses_and_others_are_counted(fanfold, project):
    folder = project / ".fanfold/agents"
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text("name = \n")
    (folder / "mine.toml").write_text('name = "mine"\ndescription = "d"\ndeveloper_instructions = "i"\n')
    (project / ".claude/agents/deep").mkdir(parents=True)
    (project / ".claude/agents/deep/mine.md").write_text(
        "---\nname: other\ndescription: d\nmemory: user\n---\n"
    )
    (project / "good.yaml").write_text(GOOD.replace("explorer", "mine"))
    result = fanfold("check", "good.yaml", "--json")
    assert (result.status, diagnostics(result)) == (0, [])
    said = fanfold("check", "good.yaml").err
    assert said == "note: 2 other role files have warnings: fanfold agents lists them\n"
    listed = fanfold("agents").err
    assert "broken.toml" in listed
    assert "works without memory" in listed
    (project / "good.yaml").write_text(GOOD.replace("explorer", "other"))
    result = fanfold("check", "good.yaml", "--json")
    assert (result.status, diagnostics(result)) == (0, [("role.lacks", "warning")])
    assert "note: 1 other role file has warnings" in fanfold("check", "good.yaml").err


def test_a_role_file_in_the_wrong_folder_is_reported(fanfold, project):
    (project / ".fanfold/agents/deep").mkdir(parents=True)
    (project / ".claude/agents").mkdir(parents=True)
    role = "---\nname: mine\ndescription: d\n---\nDo it.\n"
    (project / ".fanfold/agents/deep/mine.md").write_text(role)
    (project / ".fanfold/agents/README.md").write_text("What is here.\n")
    (project / ".claude/agents/other.toml").write_text('name = "other"\n')
    said = fanfold("agents")
    places = {line.split(": ")[1].split(":")[0]: line for line in said.err.splitlines()}
    assert {os.path.relpath(place, project) for place in places} == {
        ".fanfold/agents/deep/mine.md",
        ".claude/agents/other.toml",
    }
    assert "role files are *.toml in this folder, and *.md in .claude/agents" in said.err
    assert "role files are *.md in this folder, and *.toml in .fanfold/agents and .codex/agents" in said.err
    (project / "good.yaml").write_text(GOOD.replace("explorer", "mine"))
    refused = fanfold("check", "good.yaml")
    assert refused.status == 2
    assert "mine.md" in refused.err + refused.out
    (project / ".fanfold/agents/deep/mine.md").rename(project / ".claude/agents/mine.md")
    assert fanfold("check", "good.yaml").status == 0


def test_missing_parts_of_a_role_are_reported_once_when_it_is_used(fanfold, project):
    (project / ".claude/agents").mkdir(parents=True)
    keys = "tools: Read, WebSearch, WebFetch\nmemory: project\nskills: {a: b}\nmcpServers: [nowhere]"
    (project / ".claude/agents/needy.md").write_text(f"---\nname: needy\ndescription: d\n{keys}\n---\n")
    (project / "good.yaml").write_text(GOOD.replace("explorer", "needy"))
    (project / "script.yaml").write_text("default: done\n")
    said = fanfold("run", "good.yaml", "--script", "script.yaml", "--yes").err
    assert said.count("works without WebSearch, memory and skills") == 1
    assert said.count("WebFetch") == 1
    assert said.count('"nowhere"') == 0  # of which its tools name nothing


def test_agents_and_check_agree_on_a_name_that_a_file_takes_away(fanfold, project):
    (project / ".claude/agents").mkdir(parents=True)
    file = project / ".claude/agents/explorer.md"
    (project / "good.yaml").write_text(GOOD)
    for keys, listed in (("permissionMode: locked", False), ("description: [", True)):
        file.write_text(f"---\nname: explorer\ndescription: d\n{keys}\n---\n")
        names = [role["name"] for role in fanfold("agents", "--json").json()["roles"]]
        for name in ("explorer", "researcher"):
            assert (name in names) == listed
            assert (fanfold("agents", name).status == 0) == listed
            (project / "good.yaml").write_text(GOOD.replace("explorer", name))
            assert (fanfold("check", "good.yaml").status == 0) == listed


def test_a_list_of_roles_is_no_wider_than_its_terminal(fanfold, project, monkeypatch):
    (project / ".claude/agents").mkdir(parents=True)
    long = "words and 漢字 " * 80
    (project / ".claude/agents/long.md").write_text(f"---\nname: long\ndescription: {long}\n---\n")
    (line,) = [one for one in fanfold("agents").out.splitlines() if one.startswith("long ")]
    assert cells(line) <= 200
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((72, 20)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert max(cells(one) for one in fanfold("agents", "--no-color").out.splitlines()) <= 72
