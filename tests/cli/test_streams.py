"""Streams that nobody reads, or that have no room: what is said is lost, what is done is not."""

import fcntl
import json
import os
import pty
import subprocess
import sys
import termios

import pytest

from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

RECIPE = "name: two\nsteps: [{id: a, agent: explorer, prompt: a}, {id: b, agent: explorer, prompt: b}]\n"


@pytest.fixture
def run_two(project):
    (project / "two.yaml").write_text(RECIPE)
    (project / "script.yaml").write_text("default: OK from {{step}}\n")
    command = [sys.executable, "-m", "fanfold.cli.main", "run", "two.yaml", "--script", "script.yaml"]
    return lambda *more, **streams: subprocess.run(
        [*command, *more], cwd=project, check=False, timeout=PATIENCE_S, **streams
    )


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_run_whose_progress_cannot_be_written_finishes(fanfold, run_two, flags):
    with open("/dev/full", "w") as full:
        done = run_two(*flags, stdout=subprocess.PIPE, stderr=full)
    assert done.returncode == 0
    assert b"OK from b" in done.stdout
    assert fanfold("inspect", "last", "--json").json()["status"] == "completed"


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_an_unwritable_result_is_an_error_and_the_run_is_complete(fanfold, run_two, flags):
    with open("/dev/full", "w") as full:
        done = run_two(*flags, stdout=full, stderr=subprocess.PIPE)
        silent = run_two(*flags, stdout=full, stderr=full)
    assert (done.returncode, silent.returncode) == (1, 1)
    assert b"error[world.io]: No space left on device" in done.stderr
    assert {run["status"] for run in fanfold("runs", "--json").json()} == {"completed"}


def fill(number: int) -> bytes:
    """Have a pipe hold all that it can; what it holds now."""
    os.set_blocking(number, False)
    held = b""
    try:
        while True:
            held += b"." * os.write(number, b"." * 512)
    except BlockingIOError:
        os.set_blocking(number, True)
    return held


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_run_whose_progress_has_no_reader_finishes(fanfold, run_two, flags):
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4_096)
    held = fill(write)
    done = run_two(*flags, stdout=subprocess.PIPE, stderr=write)
    os.close(write)
    assert done.returncode == 0
    assert b"OK from b" in done.stdout
    assert fanfold("inspect", "last", "--json").json()["status"] == "completed"
    with open(read, "rb") as pipe:
        assert pipe.read() == held


def test_a_run_whose_terminal_is_stopped_finishes(fanfold, run_two):
    here, there = pty.openpty()
    termios.tcflow(there, termios.TCOOFF)  # what Ctrl-S does
    done = run_two(stdout=subprocess.PIPE, stderr=there, env={**os.environ, "TERM": "xterm"})
    assert (done.returncode, done.stdout) == (0, b"OK from b\n")
    assert fanfold("inspect", "last", "--json").json()["status"] == "completed"
    os.close(there)
    os.close(here)


WAITS = """import time
from pathlib import Path


def wait(file: str) -> str:
    while not Path(file).exists():
        time.sleep(0.05)
    return "done"
"""


def test_a_late_reader_gets_the_number_of_omitted_lines_and_the_newest_lines(
    project, background, until, tmp_path_factory
):
    (project / "many.yaml").write_text(
        "name: many\nsteps:\n"
        "  - {id: each, for_each: inputs.names, agent: explorer, prompt: x}\n"
        "  - {id: last, handler: 'waits:wait', inputs: {file: '{{inputs.file}}'}, depends_on: [each]}\n"
        "inputs: [{name: names, type: array, required: true}, {name: file, required: true}]\n"
    )
    (project / "waits.py").write_text(WAITS)
    (project / "script.yaml").write_text("default: ok\n")
    read = tmp_path_factory.mktemp("reader") / "reads"
    names = [f"{number} {'long ' * 12}" for number in range(450)]
    (project / "names.json").write_text(json.dumps({"names": names, "file": str(read)}))
    options = ("--inputs", "names.json", "--script", "script.yaml", "--yes", "--max-agents", "500")
    process = background("run", "many.yaml", *options)
    fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4_096)
    until(lambda run: run["steps"].get("last", {}).get("status") == "running")
    read.touch()  # the step ends only after the reader begins, however late it is
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, b"done\n"), err
    lines = err.decode().splitlines()
    assert " each[0] " in "".join(lines[:9])
    gaps = [number for number, line in enumerate(lines) if "lines left out" in line]
    assert gaps, "a small piece may still fit after one, so there may be several"
    end = next(number for number, line in enumerate(lines) if " last completed" in line)
    assert gaps[-1] < end
    told = [line.split(" ")[1] for number, line in enumerate(lines[:end]) if number not in gaps]
    assert {one.partition("[")[0] for one in told} <= {"run", "each", "last"}, "every line is whole"
    assert 30_000 < len(err) < 100_000
