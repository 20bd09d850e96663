"""The log says what a program of a step could see and change, and a program that looks finds nothing more."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_sandboxed import Project, project

pytestmark = pytest.mark.full

__all__ = ["project"]

LOOKING = r"""
import json, os
seen, made = [], []
def look(path, depth):
    try:
        names = os.listdir(path)
    except OSError:
        return
    for name in names:
        below = f"{path.rstrip('/')}/{name}"
        try:
            if os.path.islink(below):
                continue
            if os.path.isdir(below):
                if os.listdir(below):
                    seen.append(below)
                    depth and look(below, depth - 1)
            elif os.path.isfile(below):
                open(below, "rb").close()
                seen.append(below)
        except OSError:
            pass
look("/", 1)
for top in TOPS:
    look(top, 3)
own = {os.getcwd(), os.environ["HOME"], os.environ["TMPDIR"]}
for folder in own | {one for one in seen if os.path.isdir(one)}:
    try:
        open(f"{folder}/made-here", "x").close()
        made.append(folder)
    except OSError:
        pass
print(json.dumps([seen, made, sorted(os.environ)]))
"""


def facts_of(project: Project) -> list[dict[str, Any]]:
    lines = project.run("logs", "last", "--json").stdout.splitlines()
    facts = [json.loads(line)["data"] for line in lines]
    return [fact for fact in facts if fact.get("what") == "sandbox"]


@pytest.mark.parametrize("shared", [False, True], ids=["isolated", "shared"])
def test_a_program_sees_no_more_than_the_log_says(project: Project, tmp_path: Path, shared: bool):
    for place in ("home/.ssh/key", "beside/secret", "project/node_modules/m.js", "project/.fanfold/x"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "home/.ssh/key").write_text("CANARY")
    (tmp_path / "beside/secret").write_text("CANARY")
    (project.folder / "node_modules/m.js").write_text("m")
    (project.folder / ".fanfold").rmdir()
    (project.folder / ".gitignore").write_text("node_modules\n")
    code = f"TOPS = [{str(tmp_path)!r}]\n{LOOKING}"
    step = {"id": "it", "run": [sys.executable, "-c", code], "env": {"SHOWN": "value-of-it"}}
    if shared:
        step["workspace_mode"] = "shared"
    (project.folder / "look.yaml").write_text(json.dumps({"name": "look", "steps": [step]}))
    done = project.run("run", "look.yaml", "--yes", "--json")
    told = json.loads(done.stdout)
    assert told["status"] == "completed", told
    seen, made, variables = json.loads(told["output"])

    [fact] = facts_of(project)
    assert fact["variables"] == ["SHOWN"]
    assert "SHOWN" in variables
    assert "value-of-it" not in json.dumps(fact)
    assert fact["network"] is False
    assert fact["writes"] is (not shared)
    at = str(fact["at"])
    listed = [path for name in ("bound", "programs", "system", "private") for path in fact[name]]
    named = [at, *listed, "/proc", "/sys", "/dev"]
    for path in seen:
        within = any(path == top or path.startswith(f"{top.rstrip('/')}/") for top in named)
        leads = any(top.startswith(f"{path}/") for top in named)
        assert within or leads, f"{path} is seen, and the log does not say so: {fact}"
    assert not [path for path in seen if "/.ssh" in path or path.endswith("beside/secret")]
    own = f"{at}/.fanfold/"  # Landlock's private folders are kept there
    inside = [path for path in made if path.startswith(at) and not path.startswith(own)]
    assert bool(inside) is not shared
