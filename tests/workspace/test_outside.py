"""What of the machine is inside: the system's own, read-only; of all else the folder, empty."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fanfold.workspace import sandbox_policy
from fanfold.workspace.sandbox import detect, plan_sandbox
from fanfold.workspace.sandbox_policy import around, look_outside
from fanfold.workspace.workspaces import Workspaces
from tests.work import PATIENCE_S
from tools.tidy import ROOT

INSIDE = """
import json, os, sys
def writable(path):
    try:
        os.mkdir(path + "/fanfold-was-here")
    except OSError:
        return False
    return True
def holds(path):
    return sorted(os.path.join(at, name) for at, _, names in os.walk(path) for name in names)
asked = json.load(sys.stdin)
print(json.dumps({
    "top": {top: sorted(os.listdir(top)) for top in ("/", "/var")},
    "links": {path: os.readlink(path) for path in asked["links"]},
    "writable": [path for path in ["/", "/var", *asked["folders"]] if writable(path)],
    "files": {path: holds(path) for path in asked["hidden"]},
    "mounts": {line.split()[4]: line.split()[5].split(",")[0] for line in open("/proc/self/mountinfo")},
}))
"""


@pytest.mark.full
@pytest.mark.skipif(
    not detect(ROOT).bubblewrap.available, reason="needs bubblewrap: apt-get install bubblewrap"
)
def test_at_the_top_is_what_is_outside_but_empty_where_it_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    project = tmp_path / "project"
    project.mkdir()
    (project / "own").write_text("x")
    there = look_outside(Path.home())
    launch = plan_sandbox("bubblewrap", Workspaces(project).policy(None))
    folders = [*there.hidden, *(path for path in there.seen if os.path.isdir(path))]
    asked = {
        "links": [path for path, _ in there.links],
        "folders": folders,
        "hidden": there.hidden,
    }
    ended = subprocess.run(
        launch.command(["/usr/bin/python3", "-I", "-S", "-c", INSIDE]),
        cwd=launch.cwd,
        env=os.environ | launch.environment,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    launch.close()
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    for top, names in found["top"].items():
        special = {entry.name for entry in os.scandir(top) if _is_special(entry)}
        assert names == sorted({*os.listdir(top)} - special)
    kernel = [
        f"/proc/{name}" for name in ("sys", "irq", "bus", "fs", "driver") if Path("/proc", name).exists()
    ]
    assert {path: found["mounts"].get(path) for path in kernel} == dict.fromkeys(kernel, "ro")
    assert found["links"] == dict(there.links)
    assert found["writable"] == [path for path in folders if path in there.scratch]
    assert [path for paths in found["files"].values() for path in paths] == [str(project / "own")]


def _is_special(entry: os.DirEntry[str]) -> bool:
    return not (entry.is_symlink() or entry.is_dir() or entry.is_file())


def test_no_folder_is_seen_whose_name_is_not_the_systems(tmp_path: Path):
    found = look_outside(tmp_path)
    kept = {path for path in found.seen if os.path.isdir(path)}
    assert kept <= {f"/{name}" for name in sandbox_policy.SYSTEM} | {
        f"/var/{name}" for name in sandbox_policy.VARIABLE
    }
    assert not kept & {"/var", "/dev", "/proc"}
    assert not any(Path(path).is_relative_to(folder) for path in found.seen for folder in found.hidden)
    assert any(tmp_path.is_relative_to(folder) for folder in found.scratch)


def test_siblings_of_a_protected_path_are_visible_except_links(tmp_path: Path):
    for name in ("a/b/c", "a/d", "e"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("e")
    found = around(str(tmp_path), [str(tmp_path / "a/b")])
    assert [os.path.relpath(path, tmp_path) for path in found] == ["a/d", "e"]
    assert around(str(tmp_path), [sys.prefix]) == [str(tmp_path)]
