"""Every way out of a sandbox, tried by a program of a recipe: through the command line, at both levels."""

import json
import os
import sys
from pathlib import Path

import pytest

from fanfold.workspace.sandbox import detect
from tests.hostile.worlds import without_bubblewrap
from tests.levels import needs
from tests.runtime.test_sandboxed import Project
from tests.workspace.attempts import ATTEMPTS, NOT_UNDER_LANDLOCK, PRELUDE
from tests.workspace.test_sandbox import ALL, World, look
from tools.tidy import ROOT

pytestmark = pytest.mark.full

NEED_NARROW_LIMITS = {
    "fork without end", "write a file without end", "take memory without end", "fill the temporary folder",
}  # fmt: skip
"""Tried where limits can be set: those of a run are wide enough for work."""


@pytest.mark.parametrize("level", ["bubblewrap", "landlock"])
def test_no_way_leads_out(tmp_path: Path, level: str):
    if not getattr(detect(ROOT), level).available:
        pytest.skip(needs(level))
    world = World(tmp_path)
    try:
        said = tried(world, level)
        assert set(said) == set(ATTEMPTS) - NEED_NARROW_LIMITS
        out = {name: word for name, word in said.items() if not word.startswith("refused")}
        if level == "landlock":
            out = {name: word for name, word in out.items() if name not in NOT_UNDER_LANDLOCK}
        assert out == {}
        assert not Path("/etc/fanfold-was-here").exists()
    finally:
        world.close()


def tried(world: World, level: str) -> dict[str, str]:
    codes = {name: code for name, code in ATTEMPTS.items() if name not in NEED_NARROW_LIMITS}
    facts = world.facts | {"own_pid_namespace": level == "bubblewrap", "mutable": True}
    (world.project / "codes.json").write_text(json.dumps(codes))
    program = PRELUDE + ALL.replace("json.load(sys.stdin)", 'json.load(open("codes.json"))')
    python = os.path.realpath(sys.executable)
    step = {"id": "it", "run": [python, "-I", "-S", "-c", program, json.dumps(facts)]}
    (world.project / "ways.yaml").write_text(json.dumps({"name": "ways", "steps": [step]}))
    (world.project / ".fanfold/fanfold.db").unlink()  # there is to be state of our own
    before = look(world)
    path = without_bubblewrap() if level == "landlock" else os.environ["PATH"]
    project = Project(world.project, f"{Path(python).parent}:{path}")
    project.environment |= {"HOME": str(world.facts["home"]), "PROVIDER_KEY": "CANARY"}
    done = project.run("run", "ways.yaml", "--yes", "--json")
    document = json.loads(done.stdout)
    assert document["status"] == "completed", document["error"]
    assert look(world) == before
    output = document["output"]
    found: dict[str, str] = json.loads(output) if isinstance(output, str) else output
    return found
