"""A scripted provider for the real agents, and a project for each test of them."""

import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from tests.real_agents.world import CACHE, SEEN, Outside, RealWorld, until


@pytest.fixture(scope="session")
def provider(tmp_path_factory):
    folder = tmp_path_factory.mktemp("provider")
    process = subprocess.Popen([sys.executable, "-m", "tests.real_agents.provider", str(folder)])
    until(lambda: (folder / "port").exists() and (folder / "port").read_text(), "provider")
    yield folder
    process.kill()
    process.wait()


@pytest.fixture
def world(tmp_path, provider):
    outside = Outside(tmp_path, *(int((provider / name).read_text()) for name in ("port", "google")))
    world = RealWorld(tmp_path, outside, provider)
    yield world
    world.end()


@pytest.fixture(scope="session")
def seen():
    """What was seen, by agent; written when all is over, over what was known before."""
    found: dict[str, dict[str, str]] = {}
    yield found
    known = json.loads(SEEN.read_text()) if SEEN.exists() else {}
    for name, facts in found.items():
        about = {"version": _version(name), "on": f"{datetime.now(UTC):%Y-%m-%d}"}
        before = known.get(name, {})
        same = before.get("version") == about["version"]  # else nothing is known of this version yet
        known[name] = {**(before if same else {}), **facts, **about}
    SEEN.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def _version(name: str) -> str:
    versions: dict[str, str] = json.loads((CACHE / "versions.json").read_text())
    return versions.get(name) or versions[name.removesuffix("-acp")]
