"""Streams that nobody reads, or that have no room: what is said is lost, what is done is not."""

import subprocess
import sys

import pytest

RECIPE = "name: two\nsteps: [{id: a, agent: explorer, prompt: a}, {id: b, agent: explorer, prompt: b}]\n"


@pytest.fixture
def run_two(project):
    (project / "two.yaml").write_text(RECIPE)
    (project / "script.yaml").write_text("default: OK from {{step}}\n")
    command = [sys.executable, "-m", "fanfold.cli.main", "run", "two.yaml", "--script", "script.yaml"]
    return lambda *more, **streams: subprocess.run(
        [*command, *more], cwd=project, check=False, timeout=60, **streams
    )


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_run_whose_progress_nobody_can_keep_goes_on_to_its_end(fanfold, run_two, flags):
    with open("/dev/full", "w") as full:
        done = run_two(*flags, stdout=subprocess.PIPE, stderr=full)
    assert done.returncode == 0
    assert b"OK from b" in done.stdout
    assert fanfold("inspect", "last", "--json").json()["status"] == "completed"


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_result_that_cannot_be_written_is_said_and_the_run_is_whole(fanfold, run_two, flags):
    with open("/dev/full", "w") as full:
        done = run_two(*flags, stdout=full, stderr=subprocess.PIPE)
        silent = run_two(*flags, stdout=full, stderr=full)
    assert (done.returncode, silent.returncode) == (1, 1)
    assert b"error[world.io]: No space left on device" in done.stderr
    assert {run["status"] for run in fanfold("runs", "--json").json()} == {"completed"}
