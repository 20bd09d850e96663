"""Whatever a role, a recipe, a script, a file or an argument holds, no command prints it as it is."""

import json
import re

import pytest

from tests.text.test_terminal import HOSTILE, is_harmless

pytestmark = pytest.mark.full

EVIL = re.sub("[\ud800-\udfff\x00]", "", "".join(HOSTILE.values()))
SAID = {"one": EVIL, "two": {"fail": {"class": "agent", "message": EVIL, "hint": EVIL}}}
ALLOWED = re.sub("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\uffff]", "", EVIL)
RECIPE = f"""
name: evil
description: {json.dumps(ALLOWED, ensure_ascii=False)}
steps:
  - {{id: one, agent: evil, prompt: {json.dumps(ALLOWED, ensure_ascii=False)}}}
  - {{id: two, agent: evil, prompt: hello}}
"""
BROKEN = "name: x\nsteps:\n  - {id: 'a\u202eb', prompt: hi, nonsense\u200b: \u2066}\n"


def toml(text):
    return '"' + "".join(f"\\U{ord(char):08x}" for char in text) + '"'


def test_hostile_text_reaches_no_terminal(project, fanfold):
    agents = project / ".fanfold" / "agents"
    agents.mkdir(parents=True)
    (agents / "evil.toml").write_text(
        f'name = "evil"\ndescription = {toml(EVIL)}\ndeveloper_instructions = {toml(EVIL)}\n'
    )
    (agents / "broken.toml").write_text(f'name = "broken"\ndescription = "x"\nsandbox_mode = {toml(EVIL)}\n')
    (project / "evil.yaml").write_text(RECIPE)
    (project / "bad.yaml").write_text(BROKEN)
    (project / "script.json").write_text(json.dumps({"steps": SAID}))
    for arguments, status in (
        (["agents"], 0),
        (["agents", "evil"], 0),
        (["agents", "broken"], 2),
        (["agents", EVIL], 6),
        (["check", "bad.yaml"], 2),
        (["check", "bad.yaml", "--format", "github"], 2),
        (["check", "evil.yaml"], 0),
        (["run", "evil.yaml", "--script", "script.json", "--yes"], 1),
        (["run", "evil.yaml", "--script", "script.json", "--yes", "--json"], 1),
        (["inspect", "last", "--steps"], 0),
        (["inspect", "last", "--state"], 0),
        (["inspect", "last", "--json"], 0),
        (["logs", "last"], 0),
        (["logs", "last", "--json"], 0),
        (["explain", "last", "two"], 0),
        (["query", "title"], 0),
        (["runs"], 0),
        (["show", "evil.yaml"], 0),
        (["run", "evil.yaml", "--script", "script.json", "--dry-run"], 0),
        (["doctor"], 0),
        (["inspect", EVIL], 6),
        (["run", EVIL], 6),
        (["list", EVIL], 2),
        ([EVIL], 2),
    ):
        done = fanfold(*arguments)
        for stream in (done.out, done.err):
            bad = {char for char in stream if not is_harmless(char)}
            assert not bad, (arguments, bad)
        assert (arguments, done.status) == (arguments, status), done.err
