"""Role files as public repositories have them, read as their owners mean.

`corpus/` holds small repositories with role files of every shape that was seen, in words of our own; beside
each of them a `.yaml` says what the owners mean, written before the files were ever read by the code. What
`fanfold agents` then prints of them is kept in `corpus/*.txt` (`UPDATE_GOLDEN=1` writes it anew).
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from fanfold.agents.role import BUILT_IN, Role
from fanfold.agents.roles import Registry, load_roles, role_roots
from fanfold.agents.tool_names import ALIASES, BY_NAME
from fanfold.cli.main import main
from fanfold.workspace.layout import folders_above

CORPUS = Path(__file__).parent / "corpus"
WORDS = {
    "read": "read_file",
    "list": "list_files",
    "search": "search_files",
    "write": "write_file",
    "edit": "edit_file",
    "run": "run_command",
    "fetch": "fetch_url",
}
PROJECTS = {
    "claude-team": ".",
    "codex-team": ".",
    "monorepo": "packages/api",
    "foreign": ".",
}
EXPECTED = {name: yaml.safe_load((CORPUS / f"{name}.yaml").read_text(encoding="utf-8")) for name in PROJECTS}


def clone(name: str, to: Path) -> Path:
    """The repository as somebody has checked it out; the project in it."""
    shutil.copytree(CORPUS / name, to / name)
    (to / name / ".git").mkdir()
    return to / name / PROJECTS[name]


@pytest.fixture(scope="module")
def registries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Registry]:
    top = tmp_path_factory.mktemp("corpus")
    found = {}
    for name in PROJECTS:
        project = clone(name, top)
        home = top / "home"
        found[name] = load_roles(
            role_roots(project, home, home / ".fanfold", folders_above(project)), project
        )
    return found


def test_there_are_at_least_60_files():
    files = [path for path in CORPUS.rglob("*") if "agents" in path.parts[-3:] or path.suffix == ".toml"]
    assert sum(path.suffix in (".md", ".toml") for path in files) >= 60


@pytest.mark.parametrize(
    ("repository", "name"), [(one, name) for one, roles in EXPECTED.items() for name in roles]
)
def test_a_file_is_read_as_its_owner_means(registries, repository, name):
    said: dict[str, Any] = EXPECTED[repository][name]
    roles = registries[repository]
    told = [one for one in roles.notices if one.role == name]
    if "refused" in said:
        about = [one for one in roles.notices if one.code in ("role.invalid", "role.refused")]
        whole = [f"{one.file} {one.message} {one.help}" for one in about if one.role == name]
        whole = whole or [f"{one.file} {one.message}" for one in about]
        assert any(all(word in text for word in said["refused"]) for text in whole), whole
        if not said.get("built_in"):
            assert roles.find(name) is None or name in roles.broken
            return
    role = roles.find(name)
    assert role is not None, told
    assert name not in roles.broken
    assert (role.source == BUILT_IN) == said.get("built_in", False)
    assert facts_of(role, said) == {key: said[key] for key in facts_of(role, said)}
    text = " ".join(one.message for one in told if one.code != "role.duplicate")
    assert not [word for word in said.get("says", ()) if word not in text], text
    if "says" not in said and "refused" not in said:
        assert text == ""


def facts_of(role: Role, said: dict[str, Any]) -> dict[str, Any]:
    """What of the role its owner says something about, in the owner's words."""
    tools = set(WORDS.values()) if role.tools is None else {ALIASES.get(one, one) for one in role.tools}
    tools -= {name for name in tools if role.read_only and name in BY_NAME and BY_NAME[name].mutates}
    model = said.get("model") if said.get("model", "?") in (role.model or "") else role.model
    facts = {
        "posture": "reads" if role.read_only else "writes",
        "can": [word for word, tool in WORDS.items() if tool in tools and said.get("can") is not None],
        "commands": [one for listed in role.allowed_commands for one in listed],
        "guards": [f"{one.matcher}: {one.command}" for one in role.guards],
        "asks": role.asks,
        "isolated": role.isolated,
        "network": role.network,
        "model": model,
        "effort": role.reasoning_effort,
        "max_turns": role.max_turns,
        "description": said.get("description")
        if role.description.split() == str(said.get("description")).split()
        else role.description,
        "instructions": role.instructions,
    }
    usual = {"commands": [], "guards": [], "asks": True, "isolated": False, "network": False}
    usual |= {"model": None, "effort": None, "max_turns": None}
    for key, value in usual.items():
        if key not in said:
            assert facts[key] == value, key
    return {key: value for key, value in facts.items() if key in said}


@pytest.mark.parametrize("repository", PROJECTS)
def test_the_listing_of_agents_is_unchanged(repository, tmp_path, monkeypatch, capsys):
    project = clone(repository, tmp_path)
    monkeypatch.chdir(project)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    assert main(["agents"]) == 0
    said = capsys.readouterr()
    assert main(["agents", "--json"]) == 0
    roles = json.loads(capsys.readouterr().out)["roles"]
    lines = [said.out, said.err]
    for role in roles:
        shown = {key: value for key, value in role.items() if value not in (None, [], False)}
        shown["instructions"] = len(shown.get("instructions", ""))
        lines.append(f"{json.dumps(shown, ensure_ascii=False)}\n")
    text = "".join(lines).replace(str(tmp_path), "TOP")
    golden = CORPUS / f"{repository}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
