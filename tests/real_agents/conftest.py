"""A scripted provider for the real agents, and a project for each test of them."""

import subprocess
import sys

import pytest

from tests.real_agents.world import Outside, RealWorld, until


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
    return RealWorld(tmp_path, outside, provider)
