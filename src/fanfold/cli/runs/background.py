"""Going on in the background: a process of its own that outlives the terminal it was started from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fanfold.cli.command import Call
from fanfold.cli.terminal.output import say, say_json
from fanfold.cli.terminal.progress import tell
from fanfold.errors import EXIT_OK
from fanfold.runtime.hosting.run_tree import RunTree
from fanfold.runtime.operations.project import Project
from fanfold.runtime.views.documents import result_document
from fanfold.store.folder import private_folder

LOG = "detached.log"


def hand_over(call: Call, project: Project, tree: RunTree, *flags: str) -> int:
    """Let a background process go on with a run this process owns; say at once which run it is."""
    root = tree.root.id
    if tree.lease is not None:
        project.store.release(tree.lease)
    detach(project, root, *flags)
    if call.as_json:
        say_json(result_document(tree))
    else:
        say(f"{root}\n")
        tell(f"goes on in the background; follow it: fanfold watch {root}\n")
    return EXIT_OK


def detach(project: Project, root: str, *flags: str) -> int:
    """Start `fanfold resume ROOT` in a session of its own; its process id.

    What it says goes to a file beside the run's report, since no terminal is there to hear it.
    """
    # -P: the current folder is the project's, and its files are not modules of ours.
    own = [sys.executable, "-P", "-m", "fanfold.cli.main"]
    command = [*own, "resume", root, "--project", str(project.folder)]
    with log_file(project, root).open("ab") as log:
        process = subprocess.Popen(
            [*command, *flags],
            cwd=project.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # Nobody here waits for it: it belongs to init as soon as this command has ended.
    process.returncode = 0
    return process.pid


def log_file(project: Project, root: str) -> Path:
    """Where a run in the background writes what it says."""
    return private_folder(project.runs_folder / root) / LOG
