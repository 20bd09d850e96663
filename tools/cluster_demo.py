"""`make cluster-demo`: three workers share a run; one of them and the driver are killed in the middle.

    python -m tools.cluster_demo [--folder DIR]

It starts PostgreSQL, a Temporal development server and three workers on this machine. Each worker has its own
home and no checkout. They run the recipe of `make demo` with scripted agents. A worker and the driver are
killed with `kill -9`, and the log shows where each step ran. Then the same recipe runs without workers, and
the results are compared. At the end everything is stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tools.demo import FANFOLD, KILL_AT, PATIENCE_S, ROOT, SCRIPTED, Demo, in_git
from tools.postgresql import PostgresServer, program

HEARTBEAT_S = "2"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="where; default: a new folder for temporary files")
    folder = parser.parse_args(arguments).folder or Path(tempfile.mkdtemp(prefix="fanfold-cluster."))
    shared, alone = (copy_example(folder / name) for name in ("cluster", "alone"))
    processes: list[subprocess.Popen[bytes]] = []
    if program("initdb") is None:
        raise SystemExit("the demo needs PostgreSQL: tools/install-postgresql")
    database = PostgresServer()
    before = dict(os.environ)
    try:
        os.environ |= {
            "FANFOLD_TEMPORAL": start_server(folder, processes),
            "FANFOLD_HEARTBEAT_S": HEARTBEAT_S,
            "FANFOLD_STORE": database.url,
            "FANFOLD_PROJECT": "demo/shop",
        }
        status, result = run_on_workers(Demo(shared), folder, processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait()
        database.remove()
        os.environ.clear()
        os.environ |= before
    demo = Demo(alone)
    demo.say("The same recipe without workers:")
    with open(folder / "alone.log", "wb") as log:
        words = [str(FANFOLD), "run", "recipe.yaml", "--yes", *SCRIPTED]
        status = subprocess.call(words, cwd=alone, stdout=log, stderr=log) or status
    same = result == result_of(alone)
    demo.say(f"Output and files are {'the same' if same else 'DIFFERENT'} with and without workers.")
    return status or (0 if same else 1)


def copy_example(folder: Path) -> Path:
    shutil.copytree(ROOT / "examples" / "fix-shop", folder)
    in_git(folder)
    return folder


def start_server(folder: Path, processes: list[subprocess.Popen[bytes]]) -> str:
    """Start a Temporal development server on a free port of this machine; returns its address."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [str(Path(sys.executable).with_name("temporal")), "server", "start-dev", "--headless"]
    command += ["--ip", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    command += ["--dynamic-config-value", "history.transferProcessorMaxPollRPS=100000"]
    with open(folder / "temporal.log", "wb") as log:
        processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def listens() -> bool:
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", port)) == 0

    wait_for(listens, "the Temporal server does not start")
    return f"127.0.0.1:{port}"


def run_on_workers(
    demo: Demo, folder: Path, processes: list[subprocess.Popen[bytes]]
) -> tuple[int, tuple[object, dict[str, str]]]:
    """Run the recipe on three workers, kill two of them, and show where each step ran.

    Returns the status of the command, and the result of the run.
    """
    demo.say("A database and three workers, each with its own home and without a checkout:")
    demo.show("fanfold", "cluster", "init")
    first = start_worker(folder, "one", processes)
    second = start_worker(folder, "two", processes, "--no-drive")
    start_worker(folder, "three", processes, "--no-drive")
    run = demo.start("fanfold", "run", "recipe.yaml", "--yes", *SCRIPTED)
    wait_for(lambda: run.poll() is not None or demo.status_of(KILL_AT) == "running", "the run does not start")
    for worker in (first, second):
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    demo.say(
        f"kill -9 {first.pid} {second.pid}: the worker that drives the run is gone, and one that executes"
        " steps. A new one continues:"
    )
    start_worker(folder, "four", processes)
    status = run.wait()
    demo.say("Where each step ran:")
    for step, workers in placed(demo.folder).items():
        print(f"  {step:<18} {', '.join(workers)}")
    demo.show("fanfold", "verify", "last")
    demo.show("fanfold", "cluster", "status")
    return status, result_of(demo.folder)


def start_worker(
    folder: Path, name: str, processes: list[subprocess.Popen[bytes]], *options: str
) -> subprocess.Popen[bytes]:
    log, home = folder / f"{name}.log", folder / name / "home"
    home.mkdir(parents=True)
    (folder / name / "empty").mkdir()
    with open(log, "wb") as opened:
        words = [str(FANFOLD), "worker", "--name", name, "--slots", "2", *options]
        worker = subprocess.Popen(
            words,
            cwd=folder / name / "empty",
            env={**os.environ, "HOME": str(home)},
            stdout=opened,
            stderr=opened,
        )
    processes.append(worker)
    wait_for(lambda: b"takes steps" in log.read_bytes(), f"worker {name} does not start: {log}")
    print(log.read_text(), end="", flush=True)
    return worker


def placed(project: Path) -> dict[str, list[str]]:
    """The workers of each step of the latest run, in order."""
    words = [str(FANFOLD), "logs", "last", "--json"]
    lines = subprocess.run(words, cwd=project, capture_output=True, check=True, text=True).stdout.splitlines()
    found: dict[str, list[str]] = {}
    for data in (json.loads(line)["data"] for line in lines):
        if data.get("what") == "placed":
            found.setdefault(data["step"], []).append(data["worker"])
    return found


def result_of(project: Path) -> tuple[object, dict[str, str]]:
    """The output of the latest run, and the files of the project."""
    words = [str(FANFOLD), "inspect", "last", "--json"]
    shown = subprocess.run(words, cwd=project, capture_output=True, check=True, text=True).stdout
    files = {str(file.relative_to(project)): file.read_text() for file in sorted(project.glob("shop/*.py"))}
    return json.loads(shown)["output"], files


def wait_for(found: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        if time.monotonic() > deadline:
            raise SystemExit(otherwise)
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
