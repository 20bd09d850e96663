"""Start-up stays cheap: a command loads what it uses. What it costs is measured by `bench waits`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.startup import large_recipe
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

HEAVY = {"asyncio", "ssl", "subprocess", "fanfold.engine.driver", "fanfold.sessions.supervisor"}
"""What only who drives a run needs, or follows one."""
CODE = """\
import sys
from fanfold.cli.main import main
status = main(sys.argv[1:])
sys.stderr.write("\\n".join(["LOADED", *sys.modules]))
sys.exit(status)
"""


def loaded(project: Path, *arguments: str) -> set[str]:
    """The modules that a command has loaded at its end."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("COVERAGE")}
    environment["HOME"] = str(project.parent / "home")
    command = [sys.executable, "-c", CODE, *arguments]
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("LOADED\n")[2].split("\n"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which one agent has worked."""
    project = tmp_path_factory.mktemp("startup") / "project"
    project.mkdir()
    (project / "one.yaml").write_text("name: one\nsteps: [{id: one, agent: explorer, prompt: x}]\n")
    (project / "answers.yaml").write_text("default: ok\n")
    assert "asyncio" in loaded(project, "run", "one.yaml", "--script", "answers.yaml")
    return project


@pytest.mark.parametrize(
    "words",
    [
        "runs",
        "inspect last",
        "logs last",
        "transcript last one",
        "explain last",
        "verify last",
        "replay last",
    ],
)
def test_inspecting_a_run_loads_no_event_loop_and_no_driver(ran: Path, words: str):
    assert not loaded(ran, *words.split()) & HEAVY


def test_a_list_of_runs_loads_no_recipe_no_step_type_and_no_scheduler(ran: Path):
    rooms = (
        "fanfold.language.compile",
        "fanfold.steps.step_type",
        "fanfold.kernel.transitions",
        "fanfold.sessions",
        "yaml",
    )
    assert not [name for name in loaded(ran, "runs") if name.startswith(rooms)]


def test_checking_a_recipe_loads_no_store_and_no_event_loop(project: Path):
    (project / "large.yaml").write_text(large_recipe(200))
    found = loaded(project, "check", "large.yaml")
    assert not found & (HEAVY | {"apsw"})


def test_a_step_of_one_type_loads_the_work_of_no_other(ran: Path):
    found = loaded(ran, "inspect", "last")
    assert "fanfold.steps.agent" in found
    assert not {f"fanfold.steps.{name}" for name in ("command", "function", "deliver")} & found


def test_a_run_of_scripted_agents_loads_no_tools_of_agents(ran: Path):
    modules = loaded(ran, "run", "one.yaml", "--script", "answers.yaml")
    assert "fanfold.agents.tools.toolbox" not in modules
