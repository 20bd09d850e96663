"""`fanfold check`: what it reports, in which shape, and what --fix may change."""

import os

import pytest

GOOD = """\
name: good
inputs:
  - {name: topic, required: true}
steps:
  - {id: one, agent: explorer, prompt: "Look at {{inputs.topic}}"}
"""
BAD = GOOD.replace("explorer", "explorr")
FIXABLE = """\
name: fixable
steps:
  - id: one
    agent: explorer
    prompt: Look.
  - id: two
    agent: explorer
    prompt: {{steps.one.output}}
"""


def diagnostics(result):
    return [(d["code"], d["severity"]) for d in result.json()["diagnostics"]]


def test_a_good_recipe_is_ok(fanfold, project):
    (project / "good.yaml").write_text(GOOD)
    assert fanfold("check", "good.yaml") == (0, "ok  good@1 (good.yaml)\n", "")
    assert fanfold("check", "good.yaml", "--json").json() == {"ok": True, "diagnostics": []}


def test_a_bad_recipe_is_explained_on_stderr_and_exits_with_two(fanfold, project):
    (project / "bad.yaml").write_text(BAD)
    status, out, err = fanfold("check", "bad.yaml")
    assert (status, out) == (2, "error  bad.yaml: 1 error\n")
    assert err.startswith('error[recipe.unknown_role]: there is no role "explorr"\n --> bad.yaml:5:22\n')
    assert 'did you mean "explorer"?' in err


def test_json_has_the_shape_scripts_rely_on(fanfold, project):
    (project / "bad.yaml").write_text(BAD)
    (problem,) = fanfold("check", "bad.yaml", "--json").json()["diagnostics"]
    assert set(problem) == {"code", "severity", "message", "file", "range", "help", "fix"}
    assert (problem["code"], problem["severity"], problem["file"]) == (
        "recipe.unknown_role",
        "error",
        "bad.yaml",
    )
    assert problem["range"] == {"start": {"line": 5, "column": 22}, "end": {"line": 5, "column": 29}}


def test_format_json_and_json_say_the_same(fanfold, project):
    (project / "bad.yaml").write_text(BAD)
    assert fanfold("check", "bad.yaml", "--json").out == fanfold("check", "bad.yaml", "--format", "json").out


def test_github_gets_annotations(fanfold, project):
    (project / "bad.yaml").write_text(BAD)
    status, out, _ = fanfold("check", "bad.yaml", "--format", "github")
    assert status == 2
    assert out.startswith("::error file=bad.yaml,line=5,col=22,")


def test_several_recipes_are_checked_and_one_error_decides(fanfold, project):
    (project / "good.yaml").write_text(GOOD)
    (project / "bad.yaml").write_text(BAD)
    status, out, _ = fanfold("check", "good.yaml", "bad.yaml", "research-and-brief")
    assert status == 2
    assert [line.split()[0] for line in out.splitlines()] == ["ok", "error", "ok"]
    assert fanfold("check", "good.yaml", "bad.yaml", "--json").json()["ok"] is False


def test_every_built_in_recipe_passes_without_a_warning(fanfold, project):
    (project / "pytest.ini").write_text("[pytest]\n")  # what a gate of one of them looks for
    names = [entry["name"] for entry in fanfold("list", "--json").json()]
    assert len(names) >= 8
    assert fanfold("check", "--json", *names).json() == {"ok": True, "diagnostics": []}


def test_a_file_is_looked_for_here_and_then_in_the_project(fanfold, project):
    (project / "sub").mkdir()
    (project / "sub/good.yaml").write_text(GOOD)
    assert fanfold("check", "good.yaml").status == 6
    assert fanfold("check", "good.yaml", "--project", "sub").status == 0


def test_a_recipe_that_hides_another_is_a_warning(fanfold, project):
    folder = project / ".fanfold/workflows"
    folder.mkdir(parents=True)
    (folder / "code-review.yaml").write_text(GOOD.replace("name: good", "name: code-review"))
    result = fanfold("check", "code-review", "--json")
    assert result.status == 0
    assert diagnostics(result) == [("recipe.shadowed", "warning")]


def test_handlers_are_found_without_running_the_project(fanfold, project):
    (project / "work.py").write_text(
        "import fanfold\n@fanfold.function\ndef prepare(): ...\nraise SystemExit(9)\n"
    )
    recipe = "name: f\nsteps:\n  - {id: a, handler: prepare}\n  - {id: b, handler: 'work:prepare'}\n"
    (project / "f.yaml").write_text(recipe)
    assert [d for d in diagnostics(fanfold("check", "f.yaml", "--json")) if d[1] == "error"] == []
    (project / "f.yaml").write_text(recipe.replace("handler: prepare", "handler: prepar"))
    status, _, err = fanfold("check", "f.yaml")
    assert status == 2
    assert "recipe.unknown_handler" in err
    assert "prepare" in err


def test_limits_in_the_user_s_own_file_allow_larger_recipes(fanfold, project):
    (project / "large.yaml").write_text(GOOD + "limits: {max_concurrency: 64, max_agents: 5000}\n")
    assert diagnostics(fanfold("check", "large.yaml", "--json")) == [("recipe.limit", "error")] * 2
    limits = "[workflows]\nmax_concurrent = 64\nmax_agents = 5000\n"
    (project / ".fanfold").mkdir()
    (project / ".fanfold/config.toml").write_text(limits)
    refused = fanfold("check", "large.yaml")
    assert "config." in refused.err, "a checkout does not raise them"
    (project / ".fanfold/config.toml").unlink()
    home = project.parent / "home/.fanfold"
    home.mkdir(parents=True)
    (home / "config.toml").write_text(limits)
    assert fanfold("check", "large.yaml").status == 0


def test_fix_repairs_what_is_mechanical_and_a_second_time_changes_nothing(fanfold, project):
    file = project / "fixable.yaml"
    file.write_text(FIXABLE)
    os.chmod(file, 0o640)
    status, out, _ = fanfold("check", "--fix", "fixable.yaml")
    assert status == 0
    assert "fixed" in out
    repaired = file.read_text()
    assert '"{{steps.one.output}}"' in repaired
    assert "depends_on: [one]" in repaired
    assert file.stat().st_mode & 0o777 == 0o640
    before = file.stat().st_mtime_ns
    again = fanfold("check", "--fix", "fixable.yaml")
    assert again == (0, "ok  fixable@1 (fixable.yaml)\n", "")
    assert (file.read_text(), file.stat().st_mtime_ns) == (repaired, before)
    assert [path.name for path in project.iterdir()] == ["fixable.yaml"]


def test_fix_keeps_everything_it_does_not_repair(fanfold, project):
    file = project / "fixable.yaml"
    text = FIXABLE.replace("name: fixable", "# ünïcode 🎈 comment\nname: fixable  # kept").replace(
        "\n", "\r\n"
    )
    file.write_bytes(text.encode())
    assert fanfold("check", "--fix", "fixable.yaml").status == 0
    data = file.read_bytes().decode()
    assert data.startswith("# ünïcode 🎈 comment\r\nname: fixable  # kept\r\n")
    assert data.count("\n") == data.count("\r\n")


def test_without_fix_nothing_is_written(fanfold, project):
    file = project / "fixable.yaml"
    file.write_text(FIXABLE)
    assert fanfold("check", "fixable.yaml").status == 2
    assert file.read_text() == FIXABLE


def test_fix_writes_through_a_link_and_keeps_the_link(fanfold, project):
    (project / "real").mkdir()
    (project / "real/r.yaml").write_text(FIXABLE)
    (project / "link.yaml").symlink_to("real/r.yaml")
    assert fanfold("check", "--fix", "link.yaml").status == 0
    assert (project / "link.yaml").is_symlink()
    assert '"{{steps' in (project / "real/r.yaml").read_text()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"\0",
        b"a: &x [*x]",
        b"[" * 10_000,
        b"x: !!python/object:os.system ls",
        b"a" * 300_000,
        b"- 1",
    ],
)
def test_hostile_files_are_refused_not_crashed_on(fanfold, project, data):
    (project / "hostile.yaml").write_bytes(data)
    for extra in ([], ["--json"], ["--fix"], ["--format", "github"]):
        assert fanfold("check", "hostile.yaml", *extra).status == 2
    assert (project / "hostile.yaml").read_bytes() == data


def test_a_broken_configuration_is_named(fanfold, project, monkeypatch):
    (project / "good.yaml").write_text(GOOD)
    monkeypatch.setenv("FANFOLD_WORKFLOW_MAX_AGENTS", "1000")
    status, _, err = fanfold("check", "good.yaml")
    assert status == 2
    assert "FANFOLD_WORKFLOW_MAX_AGENTS" in err
    assert "from 1 to 500" in err


def test_a_recipe_that_is_missing_takes_nothing_away_from_the_others(fanfold, project):
    (project / "a.yaml").write_text(GOOD)
    (project / "b.yaml").write_text(BAD)
    result = fanfold("check", "a.yaml", "nosuch.yaml", "b.yaml", "--json")
    assert result.status == 2
    assert diagnostics(result) == [("recipe.unknown_workflow", "error"), ("recipe.unknown_role", "error")]
    status, out, err = fanfold("check", "nosuch.yaml", "a.yaml")
    assert (status, out) == (6, "error  nosuch.yaml: 1 error\nok  good@1 (a.yaml)\n")
    assert "there is no file nosuch.yaml" in err
    assert fanfold("check", "a.yaml", "nosuch.yaml", "--fix").status == 6


def test_a_file_that_says_another_name_or_version_than_its_own_is_warned_about(fanfold, project):
    kept = project / ".fanfold" / "workflows"
    kept.mkdir(parents=True)
    (kept / "good@3.yaml").write_text(GOOD + "version: 4\n")
    (kept / "wrong.yaml").write_text(GOOD)
    for ref in ("good", ".fanfold/workflows/good@3.yaml"):
        result = fanfold("check", ref, "--json")
        (warning,) = result.json()["diagnostics"]
        assert (result.status, warning["severity"], warning["range"]["start"]["line"]) == (0, "warning", 6)
        assert "called version 3, but says 4" in warning["message"]
    assert "says its name is" in fanfold("check", "wrong").err


def test_a_file_that_is_there_and_cannot_be_used_is_not_called_a_typing_error(fanfold, project):
    (project / "folder.yaml").mkdir()
    result = fanfold("check", "folder.yaml", "--json").json()["error"]
    assert ("is not a file" in result["message"], result["hint"]) == (True, "")


def test_without_a_name_every_recipe_of_the_project_is_checked(fanfold, project):
    assert fanfold("check").status == 6
    (project / "good.yaml").write_text("name: good\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    (project / "bad.yaml").write_text("name: bad\nsteps:\n  - {id: a, promt: x}\n")
    (project / "script.yaml").write_text("default: x\nsteps:\n  a: y\n")
    os.mkfifo(project / "pipe.yaml")
    kept = project / ".fanfold" / "workflows"
    kept.mkdir(parents=True)
    (kept / "kept.yaml").write_text("name: kept\nsteps: [{id: a, agent: explorer, prompt: x}]\n")
    for arguments in ((), (".",)):
        result = fanfold("check", *arguments)
        assert result.status == 2
        verdicts = [line.split()[:2] for line in result.out.splitlines()]
        assert [(word, name.rsplit("/", 1)[-1].strip(":")) for word, name in verdicts] == [
            ("ok", "kept@1"),
            ("error", "bad.yaml"),
            ("ok", "good@1"),
        ]


def test_steps_of_a_called_recipe_need_workers_too(fanfold, project, monkeypatch):
    monkeypatch.setenv("FANFOLD_TEMPORAL", "127.0.0.1:1")
    (project / "kid.yaml").write_text('name: kid\nsteps: [{id: x, run: ["true"], runs_on: gpu}]\n')
    (project / "top.yaml").write_text("name: top\nsteps: [{id: call, workflow: ./kid.yaml}]\n")
    found = fanfold("check", "top.yaml", "--json").json()["diagnostics"]
    advice = "no connected worker has tag gpu: start fanfold worker --runs-on gpu"
    assert [(one["code"], one["message"]) for one in found] == [("cluster.no_worker", advice)]
