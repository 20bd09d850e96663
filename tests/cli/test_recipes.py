"""`fanfold list`, `fanfold show` and `fanfold schema`."""

import json
from xml.etree import ElementTree as ET

import pytest

from fanfold.language.json_text import SettingsUnreadableError, set_entry

OWN = "name: own\ndescription: Mine\nversion: 3\nsteps:\n  - {id: one, agent: explorer, prompt: Look.}\n"


@pytest.fixture
def own(project):
    folder = project / ".fanfold/workflows"
    folder.mkdir(parents=True)
    (folder / "own.yaml").write_text(OWN)
    return folder


def test_list_shows_the_project_s_recipes_before_those_built_in(fanfold, own):
    status, out, err = fanfold("list")
    assert (status, err) == (0, "")
    assert out.index("This project") < out.index("own@3") < out.index("Built in") < out.index("code-review@1")


def test_list_in_json_names_origin_and_file(fanfold, own):
    (entry,) = [entry for entry in fanfold("list", "--json").json() if entry["name"] == "own"]
    assert entry == {
        "name": "own",
        "version": 3,
        "description": "Mine",
        "origin": "project",
        "file": ".fanfold/workflows/own.yaml",
        "warnings": [],
    }


def test_list_names_files_that_cannot_be_used(fanfold, own):
    (own / "broken.yaml").write_text("name: [")
    status, _, err = fanfold("list")
    assert status == 0
    assert "recipe.syntax" in err


def test_show_has_inputs_and_steps_with_their_edges(fanfold):
    status, out, _ = fanfold("show", "migrate-files")
    assert status == 0
    for words in ("goal ", "array, required", "for each", "up to 3 times", "writes", "after look"):
        assert words in out


def test_show_accepts_a_version_and_a_file(fanfold, own):
    assert fanfold("show", "own@3").out == fanfold("show", ".fanfold/workflows/own.yaml").out
    assert fanfold("show", "own@2").status == 6


def test_show_in_json_is_the_recipe_s_structure(fanfold):
    document = fanfold("show", "migrate-files", "--json").json()
    assert [one["name"] for one in document["inputs"]] == ["goal", "files"]
    group = document["steps"][0]
    assert (group["type"], group["for_each"]) == ("group", "inputs.files")
    assert group["steps"][1]["steps"][0]["write_set"] == ["{{item}}"]


@pytest.mark.parametrize("name", ["audit-fix-verify", "code-review", "release-notes", "build-components"])
def test_pictures_are_well_formed(fanfold, project, name):
    (project / "pytest.ini").write_text("[pytest]\n")  # what a gate of one of them looks for
    out = fanfold("show", name, "--svg").out
    root = ET.fromstring(out)
    assert root.tag.endswith("svg")
    assert fanfold("show", name, "--mermaid").out.startswith("flowchart LR\n")
    assert fanfold("show", name, "--svg", "--json").json()["graph"] == out


def test_showing_a_recipe_with_errors_shows_the_errors(fanfold, project):
    (project / "bad.yaml").write_text("name: bad\nsteps:\n  - {id: a, agent: nobody, prompt: x}\n")
    status, out, err = fanfold("show", "bad.yaml")
    assert (status, out) == (2, "")
    assert err.startswith("error[recipe.unknown_role]")
    details = fanfold("show", "bad.yaml", "--json").json()["error"]["details"]
    assert details == fanfold("check", "bad.yaml", "--json").json()


def test_the_schema_knows_the_project_s_roles(fanfold, project):
    folder = project / ".fanfold/agents"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('name = "my-role"\ndescription = "d"\ndeveloper_instructions = "i"\n')
    document = json.loads(fanfold("schema").out)
    assert document["$schema"].startswith("https://json-schema.org/")
    assert "my-role" in json.dumps(document)


def test_installing_the_schema_twice_changes_nothing_the_second_time(fanfold, project):
    assert fanfold("schema", "--install").status == 0
    schema, settings = project / ".fanfold/recipe.schema.json", project / ".vscode/settings.json"
    before = schema.read_bytes(), settings.read_bytes(), settings.stat().st_mtime_ns
    assert json.loads(before[1])["yaml.schemas"]["./.fanfold/recipe.schema.json"]
    document = fanfold("schema", "--install", "--json").json()
    assert document[".vscode/settings.json"] == "unchanged"
    assert (schema.read_bytes(), settings.read_bytes(), settings.stat().st_mtime_ns) == before


SETTINGS = """\
// my settings
{
    "editor.tabSize": 3, /* odd, I know */
    "files.exclude": {"**/x": true,},
    "yaml.schemas": {
        // somebody else's
        "https://example.com/other.json": "other.yaml",
    },
    "last": [1, {"a": "}"}] // no comma
}
"""


def test_settings_of_the_user_stay_as_they_are(fanfold, project):
    (project / ".vscode").mkdir()
    settings = project / ".vscode/settings.json"
    settings.write_text(SETTINGS)
    assert fanfold("schema", "--install").status == 0
    after = settings.read_text()
    inserted = [line for line in after.splitlines() if "recipe.schema.json" in line]
    assert len(inserted) == 1
    assert "".join(after.split()).replace("".join(inserted[0].split()), "") == "".join(SETTINGS.split())
    assert fanfold("schema", "--install", "--json").json()[".vscode/settings.json"] == "unchanged"


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"a"}', '{"yaml.schemas": 3}', '{"a": }', "nonsense", '{"a": "', '{"a": ]']
)
def test_settings_that_are_not_understood_are_left_alone(fanfold, project, text):
    with pytest.raises(SettingsUnreadableError):
        set_entry(text, ("yaml.schemas", "s"), ["g"])
    (project / ".vscode").mkdir()
    (project / ".vscode/settings.json").write_text(text)
    status, out, _ = fanfold("schema", "--install")
    assert status == 0
    assert "add this yourself" in out
    assert (project / ".vscode/settings.json").read_text() == text


@pytest.mark.parametrize(
    "text", ["", "{}", '{"a": 1}', '{"yaml.schemas": {}}', '{\n  "yaml.schemas": {"x": "y"}\n}\n']
)
def test_an_added_entry_leaves_valid_settings(text):
    once = set_entry(text, ("yaml.schemas", "./s.json"), ["*.yaml"])
    assert json.loads(once)["yaml.schemas"]["./s.json"] == ["*.yaml"]
    assert json.loads(once).items() >= {k: v for k, v in json.loads(text or "{}").items() if k == "a"}.items()
    assert set_entry(once, ("yaml.schemas", "./s.json"), ["*.yaml"]) == once
