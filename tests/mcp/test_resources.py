"""Runs as resources: what is too long for a client is cut, and that is said."""

import json

import pytest

from fanfold.server.mcp import MAX_CHARS, read_resource
from fanfold.wiring import wire
from tests.mcp.test_session import cli

pytestmark = pytest.mark.full

LONG = "name: long\nsteps: [{id: say, agent: explorer, prompt: x}]\n"


def test_a_very_long_output_is_cut_with_a_hint_how_to_read_the_rest(project):
    (project / ".fanfold" / "workflows" / "long.yaml").write_text(LONG)
    for said in ("x" * MAX_CHARS, "x" * (MAX_CHARS + 1_234)):
        (project / "long.json").write_text(json.dumps({"default": said}))
        run = cli("run", "long", "--script", "long.json", "--yes")["run_id"]
        opened = wire(project)
        text, kind = read_resource(opened, f"fanfold://runs/{run}/outputs/say")
        opened.close()
        rest = "" if len(said) == MAX_CHARS else f"\n\n… 1,234 more characters: fanfold inspect {run} say\n"
        assert (text[:MAX_CHARS], text[MAX_CHARS:], kind) == ("x" * MAX_CHARS, rest, "text/plain")
