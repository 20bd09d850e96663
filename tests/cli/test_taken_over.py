"""A process that was stopped until its lease ran out wakes while another one goes on with its run."""

import json
import os
import signal

import apsw
import pytest

from tests.levels import HAS_BUBBLEWRAP
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

RECIPE = """\
name: slow
steps:
  - id: c
    shell: "touch made.txt; until [ -e node_modules/go ]; do sleep 0.05; done; echo made > made.txt"
    write_set: [made.txt]
"""


def let_run_out(project, run):
    """Have the lease of a run be over, as it is when its owner was stopped for long enough."""
    db = apsw.Connection(str(project / ".fanfold/fanfold.db"))
    db.set_busy_timeout(10_000)
    with db:
        db.execute("UPDATE leases SET expires_at = 0 WHERE root = ?", (run,))
    db.close()


@pytest.mark.skipif(not HAS_BUBBLEWRAP, reason="needs bubblewrap: apt-get install bubblewrap")
def test_it_leaves_running_processes_alone_and_loses_no_work(fanfold, project, background, until):
    (project / "slow.yaml").write_text(RECIPE)
    (project / "node_modules").mkdir()
    stopped = background("run", "slow.yaml", "--yes")
    # Not before it only waits: what is stopped while it writes or opens a workspace has locks of the project.
    run = until(lambda run: any((project / ".fanfold/subagents").glob("*/*/made.txt")))["run_id"]
    os.kill(stopped.pid, signal.SIGSTOP)
    let_run_out(project, run)
    other = background("resume", run)
    until(lambda run: _executions(fanfold, run["run_id"]) == [1, 2])
    until(lambda run: _is_there(project, other))
    os.kill(stopped.pid, signal.SIGCONT)
    _, said = stopped.communicate(timeout=PATIENCE_S)
    assert b"error[lease.lost]" in said
    (project / "node_modules/go").touch()
    out, err = other.communicate(timeout=PATIENCE_S)
    assert other.returncode == 0, out + err
    assert (project / "made.txt").read_text() == "made\n"
    document = fanfold("inspect", run, "--json").json()
    assert [(row["path"], row["state"]) for row in document["changes"]] == [("made.txt", "merged")]
    assert fanfold("verify", run).status == 0


def _executions(fanfold, run):
    told = (json.loads(line)["data"] for line in fanfold("logs", run, "--json").out.splitlines())
    return [data["execution"] for data in told if data.get("status") == "started" and data.get("step") == "c"]


def _is_there(project, owner):
    """Whether the workspace is the new owner's."""
    records = (project / ".fanfold/subagents").glob("*/child.json")
    return [f":{owner.pid}:" in json.loads(one.read_text())["owner"] for one in records] == [True]
