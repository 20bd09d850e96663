"""What programs of a run can see and do: through the command line, at every level of the sandbox."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fanfold.workspace.sandbox import detect
from tests.levels import needs
from tests.work import PATIENCE_S
from tools.tidy import ROOT

pytestmark = pytest.mark.full

RECIPE = """\
name: program
description: One program
steps:
  - id: it
    run: [sh, -c, "{{inputs.does}}"]
    outputs: [exit_code, stdout, stderr]
inputs: [{name: does, required: true}]
"""
# Answers ENOSYS to whoever asks for Landlock, then becomes the command it is given.
WITHOUT_LANDLOCK = """\
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x00050000 | 38), (0x06, 0, 0, 0x7FFF0000)]
code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(rules), code)), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


class Project:
    def __init__(self, folder: Path, path: str) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PATH": path, "HOME": str(folder.parent / "home")}
        self.before: list[str] = []

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [*self.before, sys.executable, "-P", "-m", "fanfold.cli.main", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env={**self.environment, **environment}, text=True,
            capture_output=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    def program(self, does: str, *flags: str, **environment: str) -> dict[str, object]:
        """What a shell of a recipe's step says."""
        done = self.run("run", "program.yaml", "-i", f"does={does}", "--yes", "--json", *flags, **environment)
        output: dict[str, object] = json.loads(done.stdout)["output"]
        return output

    def level(self) -> list[str]:
        lines = self.run("logs", "last", "--json").stdout.splitlines()
        facts = [json.loads(line)["data"] for line in lines]
        return [fact["level"] for fact in facts if fact.get("what") == "sandbox"]


def make(tmp_path: Path, path: str) -> Project:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "program.yaml").write_text(RECIPE)
    (folder / "a.txt").write_text("a\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return Project(folder, path)


def without_bubblewrap(tmp_path: Path) -> str:
    """A PATH with what the tests need, and no bwrap."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "cat", "env", "touch", "git", "ls", "sleep", "mkdir", "id", "readlink"):
        found = subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout.strip()
        (tools / name).symlink_to(os.path.realpath(found))
    return f"{tools}:{Path(sys.executable).parent}"


@pytest.fixture(params=["bubblewrap", "landlock"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    if not getattr(detect(ROOT), request.param).available:
        pytest.skip(needs(request.param))
    bubblewrap = request.param == "bubblewrap"
    everything = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return make(tmp_path, everything if bubblewrap else without_bubblewrap(tmp_path))


def test_a_program_reads_the_workspace_and_the_log_names_the_level(project, request):
    said = project.program("cat a.txt")
    assert (said["exit_code"], said["stdout"]) == (0, "a\n"), said
    assert project.level() == [request.node.callspec.params["project"]]


def test_a_program_gets_no_keys_and_only_listed_variables(project):
    said = project.program("env", OPENAI_API_KEY="sk-canary-canary-canary", MY_NOTE="private")
    assert "canary" not in str(said)
    assert "private" not in str(said)


@pytest.mark.proof("sandboxed command")
def test_a_program_cannot_write_outside_the_workspace(project, tmp_path):
    outside = tmp_path / "outside.txt"
    (tmp_path / "home").mkdir()
    project.program(f"touch {outside}; touch {tmp_path}/home/x; touch /etc/fanfold-was-here")
    assert not outside.exists()
    assert not (tmp_path / "home" / "x").exists()
    assert not Path("/etc/fanfold-was-here").exists()


def test_a_program_has_no_network_unless_its_step_says_so(project):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reach = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        (project.folder / "net.yaml").write_text(
            "name: net\nsteps:\n"
            f"  - {{id: closed, run: ['{sys.executable}', -c, \"{reach}\"]}}\n"
            f"  - {{id: open, run: ['{sys.executable}', -c, \"{reach}\"], network: true}}\n"
        )
        steps = json.loads(project.run("run", "net.yaml", "--yes", "--json").stdout)["steps"]
    assert (steps["closed"]["status"], steps["open"]["status"]) == ("failed", "completed"), steps


def test_configuration_that_is_run_or_believed_is_closed_to_programs(project):
    said = project.program("touch .git/hooks/post-commit; touch .git/config2; ls .fanfold/fanfold.db")
    assert said["exit_code"] != 0
    assert not (project.folder / ".git/hooks/post-commit").exists()
    assert not (project.folder / ".git/config2").exists()


def test_a_shared_command_without_a_write_set_can_only_read(project):
    (project.folder / "shared.yaml").write_text(
        "name: shared\nsteps: [{id: it, run: [touch, new.txt], workspace_mode: shared}]\n"
    )
    done = project.run("run", "shared.yaml", "--yes")
    assert done.returncode == 1
    assert not (project.folder / "new.txt").exists()


def test_a_program_that_is_not_there_is_named(project):
    (project.folder / "typo.yaml").write_text("name: typo\nsteps: [{id: it, run: [pyhton, x]}]\n")
    done = project.run("run", "typo.yaml", "--yes", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "command.not_found"


def test_an_agent_runs_commands_in_its_own_snapshot(project):
    (project.folder / "agent.yaml").write_text(
        "name: agent\nsteps: [{id: it, agent: worker, prompt: x, write_set: [made.txt]}]\n"
    )
    call = "{tool: run_command, args: {argv: [sh, -c, 'echo made > made.txt; pwd']}}"
    (project.folder / "script.yaml").write_text(f"steps: {{it: {{output: done, tool_calls: [{call}]}}}}\n")
    done = project.run("run", "agent.yaml", "--script", "script.yaml", "--yes", "--json")
    assert json.loads(done.stdout)["status"] == "completed", done.stdout
    assert (project.folder / "made.txt").read_text() == "made\n"
    assert project.level()


def test_without_any_sandbox_commands_are_refused_before_the_run_begins(tmp_path):
    project = make(tmp_path, without_bubblewrap(tmp_path))
    project.before = [sys.executable, "-c", WITHOUT_LANDLOCK]
    done = project.run("run", "program.yaml", "-i", "does=cat a.txt", "--yes", "--json")
    assert done.returncode == 4, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "sandbox.unavailable"
    assert "--unsafe-no-sandbox" in error["hint"]
    assert json.loads(project.run("runs", "--json").stdout) == []
    assert project.program("cat a.txt", "--unsafe-no-sandbox")["stdout"] == "a\n"
    assert project.level() == ["unsafe"]
    doctor = project.run("doctor", "--json")
    [check] = [one for one in json.loads(doctor.stdout)["checks"] if one["name"] == "sandbox"]
    assert "refused" in check["message"]


def test_many_programs_start_while_others_end(project):
    """The layers of other workspaces come and go while a program's view is put together."""
    (project.folder / "many.yaml").write_text(
        "name: many\nlimits: {max_concurrency: 8}\nsteps:\n"
        "  - {id: it, for_each: '[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]', run: [cat, a.txt]}\n"
    )
    done = project.run("run", "many.yaml", "--yes", "--json")
    assert json.loads(done.stdout)["output"] == ["a"] * 16, done.stderr


@pytest.mark.parametrize("project", ["bubblewrap"], indirect=True)  # Landlock binds no dependency folders
def test_the_project_s_own_virtual_environment_works(project):
    """Its interpreter may live in somebody's home, which is closed but for it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project.folder / ".venv"], check=True)
    secret = Path.home() / ".fanfold-test-secret"
    secret.write_text("secret")
    try:
        (project.folder / ".venv/bin/python3.99").symlink_to(secret)
        said = project.program(".venv/bin/python -c 'import json; print(json.dumps(1))'")
        assert said["stdout"] == "1\n", said
        said = project.program("cat .venv/bin/python3.99")
        assert "secret" not in str(said["stdout"])
    finally:
        secret.unlink()


def test_variables_of_a_step_reach_its_program_and_no_process_between(project, tmp_path):
    """A library to preload, say, would run outside of the sandbox in whoever puts it up."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    source, library, mark = tmp_path / "evil.c", tmp_path / "evil.so", tmp_path / "escaped"
    source.write_text(
        "#include <fcntl.h>\n__attribute__((constructor)) void begin(void) "
        f'{{ open("{mark}", O_CREAT | O_WRONLY, 0600); }}\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    (project.folder / "given.yaml").write_text(
        "name: given\nsteps:\n  - {id: it, run: [sh, -c, 'echo $GREETING $LD_PRELOAD'], "
        f"env: {{GREETING: hello, LD_PRELOAD: '{library}', OPENAI_API_KEY: x, FANFOLD_SESSION: y}}}}\n"
    )
    done = project.run("run", "given.yaml", "--yes", "--json")
    assert json.loads(done.stdout)["output"] == f"hello {library}", done.stdout
    assert not mark.exists()
    asked = json.loads(project.run("run", "given.yaml", "--json").stdout)["error"]["details"]["needs"]
    assert "LD_PRELOAD" in asked[0]


def test_files_of_the_project_are_not_modules_of_a_run_in_the_background(project):
    (project.folder / "click.py").write_text("open('ran', 'w').close(); raise SystemExit\n")
    (project.folder / "msgspec.py").write_text("open('ran', 'w').close(); raise SystemExit\n")
    started = project.run("run", "program.yaml", "-i", "does=cat a.txt", "--yes", "--detach")
    assert started.returncode == 0, started.stderr
    assert project.run("watch", "last").returncode == 0
    (project.folder / "s.yaml").write_text("default: seen\n")
    spawned = project.run("spawn", "explorer", "look", "--script", "s.yaml", "--wait")
    assert spawned.returncode == 0, spawned.stderr
    assert not (project.folder / "ran").exists()


@pytest.mark.parametrize("project", ["landlock"], indirect=True)
def test_doctor_names_what_landlock_does_not_give(project):
    checks = json.loads(project.run("doctor", "--json").stdout)["checks"]
    [told] = [one["details"] for one in checks if one["name"] == "sandbox"]
    assert any("a pid namespace" in line for line in told)


SCRIPT = """\
name: script
inputs: [{name: word, required: true}]
steps:
  - id: it
    shell: 'echo "${#word}" && echo "$list"'
    inputs: {word: inputs.word, list: {literal: [1, {a: null}]}}
output: "{{steps.it.output}}"
"""


def test_values_reach_a_script_as_variables_and_never_as_text_of_it(project):
    (project.folder / "script.yaml").write_text(SCRIPT)
    word = '$(touch planted) "; touch planted; `touch planted`'
    done = project.run("run", "script.yaml", "-i", f"word={word}", "--yes", "--json")
    assert json.loads(done.stdout)["output"].split() == [str(len(word)), '[1,{"a":null}]']
    assert not (project.folder / "planted").exists()


@pytest.mark.parametrize(
    ("word", "says"),
    [("x" * (128 * 1024), "131,077 bytes"), ("a\\u0000b", "NUL")],
    ids=["too long", "NUL"],
)
def test_a_value_that_no_program_can_be_given_fails_the_step_in_words(project, word: str, says: str):
    (project.folder / "script.yaml").write_text(SCRIPT)
    (project.folder / "inputs.json").write_text(f'{{"word": "{word}"}}')
    done = project.run("run", "script.yaml", "--inputs", "inputs.json", "--yes", "--json")
    error = json.loads(done.stdout)["steps"]["it"]["error"]
    assert (error["class"], error["code"]) == ("agent", "command.not_startable")
    assert says in error["message"]
