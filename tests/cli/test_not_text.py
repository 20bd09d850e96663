"""Bytes that are no text, characters that are none, values too deep: refused or made text, never a bug."""

import json

import pytest

pytestmark = pytest.mark.full

BYTES = "\udcff\udcfe"
"""What Python makes of an argument that is not UTF-8."""
RECIPE = """\
name: r
inputs: [{name: x}, {name: l, type: array}]
steps:
  - {id: a, run: [printf, "%s", "{{inputs.x}}"]}
  - {id: ask, approve: "{{steps.a.output}}?"}
"""
LINES = """
run {} --yes | run {}.yaml --yes | run ./{}.yaml --json | run r.yaml --yes -i x={} | run r.yaml --yes -i {}=1
run r.yaml --script {} | run r.yaml --model {} --yes -i x=1 | run r.yaml --agent-backend {} --yes -i x=1
run r.yaml --inputs {} --yes | check {}.yaml | check {} --json | show {} | show {} --json | schema {}
inspect {} | inspect {} --json | logs {} | logs {} --json | watch {} | explain {} | explain last {} --json
approve last {} | reject last {} --json | reject last ask --comment {} | approve last ask --comment {} --json
pause {} | cancel {} | resume {} | verify {} | replay {} | whatif {} | diff {} | diff last {} | apply last {}
fork {} | fork last --from {} | fork last --from a -i x={} --yes | fork last --from a --prompt ask={} --yes
query {} | query {} --json | query last {} | runs --status {} | gc --older-than {} | state {} | state show {}
spawn {} task | spawn explorer {} --script s.yaml | spawn explorer hi --name {} --script s.yaml | wait {}
send {} x | close {} | ps {} | agents {} | agents show {} | models {} | init {} | smoke {} | doctor {}
--project {} list | --project {} run r.yaml | {} | list --{} | help {}
"""


@pytest.fixture
def asked(fanfold, project):
    """A run that waits for an answer."""
    (project / "r.yaml").write_text(RECIPE)
    (project / "s.yaml").write_text("default: ok\n")
    assert fanfold("run", "r.yaml", "--yes", "-i", "x=1").status == 3
    return project


@pytest.mark.parametrize(
    "line", [line.strip() for row in LINES.split("\n") for line in row.split("|") if line]
)
def test_no_argument_that_is_not_text_is_a_bug(fanfold, asked, line):
    done = fanfold(*(word.replace("{}", BYTES) for word in line.split()))
    assert done.status in (0, 2, 4, 6), done.err
    assert "Traceback" not in done.err
    assert "internal" not in done.out + done.err


DEEP = "[" * 5_000 + "]" * 5_000
FILES = {
    "bytes": b"\xff\xfe",
    "a value in bytes": b"x: \xff",
    "half a character": b'{"x": "\\ud800"}',
    "NUL": b'{"x": "a\\u0000b"}',
    "depth": f'{{"x": {DEEP}}}'.encode(),
    "depth in YAML": f"x: {DEEP}".encode(),
    "no number": b'{"x": NaN}',
    "a number too large": b'{"x": ' + b"9" * 5_000 + b"}",
}


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("how", ["inputs", "recipe", "script", "config", "role"])
def test_no_file_that_holds_such_things_is_a_bug(fanfold, asked, what, how):
    file = {"config": ".fanfold/config.toml", "role": ".fanfold/agents/odd.toml"}.get(how, "odd.yaml")
    (asked / file).parent.mkdir(parents=True, exist_ok=True)
    (asked / file).write_bytes(FILES[what])
    line = {
        "inputs": ["run", "r.yaml", "--yes", "--inputs", "odd.yaml"],
        "recipe": ["run", "odd.yaml", "--yes"],
        "script": ["run", "r.yaml", "--yes", "--script", "odd.yaml", "-i", "x=1"],
        "config": ["list"],
        "role": ["agents"],
    }[how]
    done = fanfold(*line, "--json")
    assert done.status in (0, 1, 2, 3), done.err
    assert "internal" not in done.out + done.err


def test_a_command_that_would_be_given_nul_fails_and_says_why(fanfold, asked):
    (asked / "inputs.json").write_text(json.dumps({"x": "a\0b"}))
    done = fanfold("run", "r.yaml", "--yes", "--inputs", "inputs.json", "--json")
    assert done.json()["steps"]["a"]["error"]["code"] == "command.not_startable"


@pytest.mark.parametrize("mode", ["isolated", "shared"])
def test_a_file_whose_name_is_no_text_fails_its_step_and_is_named_in_the_log(fanfold, asked, mode):
    (asked / "w.yaml").write_text(
        "name: w\nsteps:\n"
        "  - {id: w, run: [bash, -c, \"printf x > $'\\\\xff.txt'\"], write_set: [a],"
        f" workspace_mode: {mode}}}\n"
    )
    done = fanfold("run", "w.yaml", "--yes", "--json")
    error = done.json()["steps"]["w"]["error"]
    assert (done.status, error["code"]) == (1, "workspace.violation")
    assert "\\xff.txt" in error["message"]
    assert fanfold("verify", "last").status == 0
    assert "\\xff.txt" in fanfold("logs", "last", "--json").out.replace("\\\\", "\\")


def test_a_project_whose_path_is_no_text_is_refused(fanfold, asked):
    folder = asked / BYTES
    folder.mkdir()
    done = fanfold("list", "--project", str(folder))
    assert (done.status, "usage.bad_project" in done.err) == (2, True)
