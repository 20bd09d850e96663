"""`make cluster-demo`: three workers share a run; the one that drives it is killed in the middle.

    python -m tools.cluster_demo [--folder DIR]

It starts a Temporal development server and three workers on this machine, runs the recipe of `make demo` with
scripted agents, kills a worker with `kill -9`, and shows where each step ran. Then it runs the same recipe
without workers and compares the results. At the end everything is stopped.
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

HEARTBEAT_S = "2"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="where; default: a new folder for temporary files")
    folder = parser.parse_args(arguments).folder or Path(tempfile.mkdtemp(prefix="fanfold-cluster."))
    shared, alone = (copy_example(folder / name) for name in ("cluster", "alone"))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        address = start_server(folder, processes)
        os.environ |= {"FANFOLD_TEMPORAL": address, "FANFOLD_HEARTBEAT_S": HEARTBEAT_S}
        status = run_on_workers(Demo(shared), folder, processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait()
        os.environ.pop("FANFOLD_TEMPORAL", None)
    demo = Demo(alone)
    demo.say("The same recipe without workers:")
    with open(folder / "alone.log", "wb") as log:
        words = [str(FANFOLD), "run", "recipe.yaml", "--yes", *SCRIPTED]
        status = subprocess.call(words, cwd=alone, stdout=log, stderr=log) or status
    same = result_of(shared) == result_of(alone)
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


def run_on_workers(demo: Demo, folder: Path, processes: list[subprocess.Popen[bytes]]) -> int:
    """Run the recipe on three workers, kill the driver, and show where each step ran."""
    demo.say("Three workers share the steps of one run. The first one drives it:")
    first = start_worker(demo, folder, "one", processes)
    for name in ("two", "three"):
        start_worker(demo, folder, name, processes, "--no-drive")
    run = demo.start("fanfold", "run", "recipe.yaml", "--yes", *SCRIPTED)
    wait_for(lambda: run.poll() is not None or demo.status_of(KILL_AT) == "running", "the run does not start")
    first.send_signal(signal.SIGKILL)
    first.wait()
    demo.say(f"kill -9 {first.pid}: the worker that drives the run is gone. A new one continues it:")
    start_worker(demo, folder, "four", processes)
    status = run.wait()
    demo.say("Where each step ran:")
    for step, workers in placed(demo.folder).items():
        print(f"  {step:<18} {', '.join(workers)}")
    demo.show("fanfold", "verify", "last")
    demo.show("fanfold", "cluster", "status")
    return status


def start_worker(
    demo: Demo, folder: Path, name: str, processes: list[subprocess.Popen[bytes]], *options: str
) -> subprocess.Popen[bytes]:
    log = folder / f"{name}.log"
    with open(log, "wb") as opened:
        words = [str(FANFOLD), "worker", "--name", name, "--slots", "2", *options]
        worker = subprocess.Popen(words, cwd=demo.folder, stdout=opened, stderr=opened)
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
