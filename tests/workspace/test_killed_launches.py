"""What a launch needs outside is cleared when the project is opened after its process was killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fanfold.workspace import sandbox_policy
from fanfold.workspace.sandbox import Launch, LevelName, detect, plan_sandbox
from fanfold.workspace.workspaces import Workspaces
from tests.levels import needs
from tests.work import PATIENCE_S
from tests.workspace.trees import write
from tools.tidy import ROOT

pytestmark = pytest.mark.full

LAUNCHES = """
import os, signal, sys
from pathlib import Path
from fanfold.workspace.sandbox import plan_sandbox
from fanfold.workspace.workspaces import Workspaces
from tools.tidy import ROOT
launch = plan_sandbox(sys.argv[2], Workspaces(Path(sys.argv[1])).policy(None))
print(*(Path(one).parent for one in launch._group.entrances), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def launched(spaces: Workspaces, level: LevelName) -> Launch:
    if not getattr(detect(ROOT), level).available:
        pytest.skip(needs(level))
    return plan_sandbox(level, spaces.policy(None))


def killed(project: Path, level: LevelName) -> list[Path]:
    """Plan a launch in a process that is killed; the cgroups it made."""
    command = [sys.executable, "-c", LAUNCHES, str(project), level]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return [Path(folder) for folder in ended.stdout.split()]


@pytest.mark.parametrize("clear", [Workspaces.recover, lambda spaces: spaces.remains.collect()])
def test_private_folders_of_the_dead_go_and_those_of_the_living_stay(
    project: Path, clear: Callable[[Workspaces], object]
):
    write(project, {"a.txt": "a"})
    spaces = Workspaces(project)
    alive = launched(spaces, "landlock")
    scratch = project / ".fanfold/workspace/tmp"
    mine = os.listdir(scratch)
    killed(project, "landlock")
    assert len(os.listdir(scratch)) == 2
    clear(Workspaces(project))
    assert os.listdir(scratch) == mine
    assert alive.close()
    assert os.listdir(scratch) == []


@pytest.mark.parametrize("level", ["bubblewrap", "landlock"])
def test_cgroups_of_the_dead_go_and_those_of_the_living_stay(project: Path, level: LevelName):
    if not sandbox_policy.limits_processes():
        pytest.skip("needs cgroups: make test-full where root may make some")
    write(project, {"a.txt": "a"})
    spaces = Workspaces(project)
    alive = launched(spaces, level)
    mine = [Path(one).parent for one in alive._group.entrances]
    left = killed(project, level)
    assert left
    assert all(folder.is_dir() for folder in (*left, *mine))
    spaces.recover()
    assert not any(folder.exists() for folder in left)
    assert all(folder.is_dir() for folder in mine)
    assert alive.close()
