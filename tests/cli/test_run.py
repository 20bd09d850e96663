"""`fanfold run`: inputs, flags, and the dry run as scripts and people see it."""

import json

import pytest

RECIPE = """\
name: typed
inputs:
  - {name: topic, type: string, required: true}
  - {name: files, type: array, default: []}
  - {name: deep, type: boolean, default: false}
steps:
  - id: each
    agent: worker
    for_each: inputs.files
    write_set: ["{{item}}"]
    prompt: "Change {{item}} for {{inputs.topic}}"
  - id: more
    agent: explorer
    when: inputs.deep
    prompt: Look deeper.
"""


@pytest.fixture
def recipe(project):
    (project / "typed.yaml").write_text(RECIPE)
    return "typed.yaml"


def test_a_dry_run_in_json_has_exactly_the_documented_keys(fanfold):
    result = fanfold("run", "research-and-brief", "-i", "topic=x", "--dry-run", "--json")
    assert result.status == 0
    assert result.json() == {
        "waves": [["gather"], ["angles"], ["brief"]],
        "conflicts": [],
        "conflicts_total": 0,
        "critical_path": ["gather", "angles", "brief"],
        "agents": {"min": 3, "expected": 3, "max": 6},
        "cost": {"usd_max": None},
        "would_run": True,
        "warnings": [],
    }


def test_a_dry_run_writes_nothing(fanfold, project, recipe):
    before = sorted(path.name for path in project.rglob("*"))
    assert fanfold("run", recipe, "-i", "topic=x", "--dry-run").status == 0
    assert sorted(path.name for path in project.rglob("*")) == before
    assert not (project.parent / "home").exists()


def test_a_dry_run_shows_what_would_happen(fanfold, recipe):
    out = fanfold("run", recipe, "-i", "topic=x", "-i", 'files=["a.py", "b.py"]', "--dry-run").out
    for words in (
        "typed@1",
        "nothing was started",
        "Wave 1",
        "2 together",
        "each[0]",
        "writes a.py",
        "Critical path",
    ):
        assert words in out
    assert "more" not in out


def test_conflicts_are_explained(fanfold, project, recipe):
    out = fanfold("run", recipe, "-i", "topic=x", "-i", 'files=["src/a.py", "src/a.py"]', "--dry-run").out
    assert "each[0] and each[1] may both write src/a.py" in out
    out = fanfold("run", recipe, "-i", "topic=x", "-i", 'files=["*", "a.py"]', "--dry-run").out
    assert "may both write" not in out
    (project / "wide.yaml").write_text(
        "name: wide\nsteps:\n"
        "  - {id: a, agent: worker, write_set: ['**/*'], prompt: x}\n"
        "  - {id: b, agent: worker, write_set: ['**'], prompt: x}\n"
    )
    assert "a and b may both write every file" in fanfold("run", "wide.yaml", "--dry-run").out


def test_inputs_are_taken_by_type_and_the_flag_wins_over_the_file(fanfold, project, recipe):
    (project / "in.yaml").write_text("topic: from file\nfiles: [a, b, c]\ndeep: true\n")
    (project / "in.json").write_text('{"topic": "from file", "files": ["a", "b", "c"], "deep": true}')
    for file in ("in.yaml", "in.json"):
        waves = fanfold("run", recipe, "--inputs", file, "-i", "files=[]", "--dry-run", "--json").json()[
            "waves"
        ]
        assert waves == [["more"]]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["-i", "topic"], "usage.bad_input"),
        (["-i", "=x"], "usage.bad_input"),
        (["-i", "topic=a", "-i", "topic=b"], "usage.bad_input"),
        (["-i", "topc=x"], "recipe.unknown_input"),
        (["-i", "topic=x", "-i", "files=a.py"], "recipe.bad_type"),
        (["-i", "topic=x", "-i", "files={}"], "recipe.bad_type"),
        (["-i", "topic=x", "-i", "deep=yes"], "recipe.bad_type"),
        (["-i", "topic=x", "-i", "files=" + "[" * 100_000], "recipe.bad_type"),
        (["--inputs", "nowhere.yaml"], "usage.bad_inputs_file"),
        (["--inputs", "list.json"], "usage.bad_inputs_file"),
        (["--inputs", "broken.json"], "usage.bad_inputs_file"),
        (["--inputs", "broken.yaml"], "usage.bad_inputs_file"),
        (["--inputs", "deep.json"], "usage.bad_inputs_file"),
        (["--inputs", "."], "usage.bad_inputs_file"),
    ],
)
def test_inputs_that_cannot_be_used_are_clear_errors(fanfold, project, recipe, arguments, code):
    (project / "list.json").write_text("[1]")
    (project / "broken.json").write_text("{")
    (project / "broken.yaml").write_text("topic: [")
    (project / "deep.json").write_text('{"topic": ' + "[" * 100_000)
    status, out, err = fanfold("run", recipe, "--dry-run", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(f"error[{code}]: ")


@pytest.mark.parametrize(
    "flag",
    [
        ["--max-concurrency", "0"],
        ["--max-concurrency", "17"],
        ["--max-concurrency", "-1"],
        ["--budget-usd", "0"],
        ["--budget-usd", "nan"],
        ["--budget-usd", "inf"],
        ["--budget-tokens", "0"],
        ["--budget-tokens", str(10**30)],
    ],
)
def test_numbers_outside_their_range_are_refused(fanfold, recipe, flag):
    status, _, err = fanfold("run", recipe, "-i", "topic=x", "--dry-run", *flag)
    assert status == 2
    assert flag[0] in err


def test_every_flag_of_a_real_run_is_accepted(fanfold, recipe):
    flags = ["--model", "m", "--agent-backend", "b", "--max-concurrency", "2", "--budget-usd", "1.5"]
    flags += ["--budget-tokens", "1000", "--permission", "auto", "--detach", "--yes", "--script", "s.yaml"]
    result = fanfold("run", recipe, "-i", "topic=x", "-i", "deep=true", *flags, "--dry-run", "--json")
    assert result.status == 0
    assert result.json()["cost"] == {"usd_max": 1.5}


def test_concurrency_comes_from_the_flag_then_the_recipe_then_configuration(
    fanfold, project, recipe, monkeypatch
):
    def widest(*flags):
        files = 'files=["a","b","c","d","e","f"]'
        result = fanfold("run", recipe, "-i", "topic=x", "-i", files, "--dry-run", "--json", *flags)
        return max(len(wave) for wave in result.json()["waves"])

    assert widest() == 4
    monkeypatch.setenv("AGENT_WORKFLOW_MAX_CONCURRENT", "5")
    assert widest() == 5
    (project / "typed.yaml").write_text(RECIPE + "limits: {max_concurrency: 3}\n")
    assert widest() == 3
    assert widest("--max-concurrency", "2") == 2


def test_a_run_without_any_model_is_refused_honestly(fanfold):
    result = fanfold("run", "research-and-brief", "-i", "topic=x", "--json")
    assert result.status == 2
    assert result.json()["error"]["code"] == "provider.none"
    assert "--script" in result.json()["error"]["hint"]


def test_switched_off_workflows_would_not_run(fanfold, monkeypatch):
    monkeypatch.setenv("FANFOLD_WORKFLOWS", "off")
    document = fanfold("run", "research-and-brief", "-i", "topic=x", "--dry-run", "--json").json()
    assert document["would_run"] is False
    assert "FANFOLD_WORKFLOWS" in document["warnings"][0]


def test_a_recipe_with_errors_is_not_predicted(fanfold, project):
    (project / "bad.yaml").write_text("name: bad\nsteps:\n  - {id: a, agent: nobody, prompt: x}\n")
    status, out, err = fanfold("run", "bad.yaml", "--dry-run")
    assert (status, out) == (2, "")
    assert "recipe.unknown_role" in err


def test_a_run_warns_of_the_files_of_roles_it_uses_and_of_no_others(project, fanfold):
    folder = project / ".claude/agents"
    folder.mkdir(parents=True)
    for name in ("used", "other"):
        (folder / f"{name}.md").write_text(f"---\nname: {name}\ndescription: d\nmodel: sonnet\n---\nDo.\n")
    (project / "r.yaml").write_text(
        "name: r\nsteps: [{id: a, agent: used, posture: read_only, prompt: hi}]\n"
    )
    (project / "s.yaml").write_text("default: ok\n")
    done = fanfold("run", "r.yaml", "--script", "s.yaml")
    assert done.status == 0, done.err
    assert "used.md:4" in done.err
    assert "other.md" not in done.err


@pytest.mark.full
@pytest.mark.parametrize("more", ["", "  - {id: b, handler: 'work:rest', depends_on: [a]}\n"])
def test_a_run_whose_store_is_wiped_away_never_says_that_it_completed(fanfold, project, more):
    wipe = "import shutil\ndef wipe():\n    shutil.rmtree('.fanfold')\ndef rest():\n    pass\n"
    (project / "work.py").write_text(wipe)
    (project / "r.yaml").write_text(f"name: r\nsteps:\n  - {{id: a, handler: 'work:wipe'}}\n{more}")
    result = fanfold("run", "r.yaml", "--yes", "--json")
    assert (result.status, result.json()["error"]["code"]) == (1, "store.gone")
    assert "completed" not in result.out + result.err
    assert not (project / ".fanfold").exists(), "nothing pretends that there is a run"


MANY = """\
name: many
inputs: [{name: files, type: array, default: [a, b]}]
steps:
  - {id: last, agent: explorer, depends_on: [each, kid], prompt: end}
  - id: each
    for_each: inputs.files
    steps:
      - {id: look, agent: explorer, prompt: "Look at {{item}}"}
      - {id: fix, agent: worker, write_set: ["{{item}}", both], prompt: "{{steps.look.output}}"}
  - {id: twice, agent: explorer, repeat: {until: iteration == 2, max_iterations: 3}, prompt: again}
  - {id: never, agent: explorer, when: "size(inputs.files) > 5", prompt: no}
  - {id: kid, workflow: ./kid.yaml, inputs: {n: 2}, depends_on: [twice]}
"""
KID = """\
name: kid
inputs: [{name: n, type: integer}]
steps:
  - {id: up, agent: explorer, for_each: "[inputs.n, 1]", prompt: "{{item}}"}
"""


@pytest.mark.full
def test_the_order_that_a_dry_run_shows_is_the_order_in_the_log(fanfold, project):
    (project / "many.yaml").write_text(MANY)
    (project / "kid.yaml").write_text(KID)
    (project / "script.yaml").write_text("default: ok")
    arguments = ["run", "many.yaml", "--max-concurrency", "1"]
    foretold = fanfold(*arguments, "--dry-run", "--json").json()
    assert not any("known only during the run" in warning for warning in foretold["warnings"])
    ran = fanfold(*arguments, "--script", "script.yaml", "--yes", "--json").json()
    assert ran["status"] == "completed"
    lines = map(json.loads, fanfold("logs", ran["run_id"], "--tree", "--json").out.splitlines())
    started = [
        f"{line['path']}/{line['data']['step']}".lstrip("/")
        for line in lines
        if line["type"] == "subagent_event" and line["data"]["status"] == "started"
    ]
    assert started == [path for wave in foretold["waves"] for path in wave]
    assert ran["usage"]["agents"] == foretold["agents"]["min"] == 9
