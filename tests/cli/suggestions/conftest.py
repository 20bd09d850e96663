"""`follow` carries out what is suggested, and wants what the test says that it reaches."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.suggestions.following import Fanfold, Follow
from tests.cli.suggestions.places import CLAIMS, places


@pytest.fixture
def follow(
    fanfold: Fanfold,
    background: Callable[..., subprocess.Popen[bytes]],
    request: pytest.FixtureRequest,
) -> Iterator[Follow]:
    follower = Follow(fanfold, background)
    yield follower
    claims = CLAIMS.get(f"{request.node.module.__name__}.{request.node.originalname}", ())
    meant = [one for one in places() if any(one.is_meant_by(claim) for claim in claims)]
    missed = [one.key for one in meant if not follower.reached(one)]
    assert not missed, f"not among what was carried out: {missed}"


AGENTS = """\
name: agents
steps:
  - {id: look, agent: explorer, for_each: '["a b", "c"]', prompt: "Look at {{item}}"}
  - {id: tell, agent: explorer, prompt: "Tell {{steps.look.output}}"}
"""
OK = "default: 'OK from {{step}}'\n"
FAILS = "{default: ok, steps: {'look[0]': {fail: {class: agent, message: no}}}}"


@pytest.fixture
def agents(project: Path) -> Path:
    """A project with a recipe of agents, one script by which it completes and one by which it fails."""
    (project / "my agents.yaml").write_text(AGENTS)
    (project / "ok.yaml").write_text(OK)
    (project / "fails.yaml").write_text(FAILS)
    return project
