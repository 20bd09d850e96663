"""Settings shared by every test."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.levels import HAS_BUBBLEWRAP
from tests.tiers import pytest_addoption, pytest_configure

# The trial of the sandbox is made here, once: dry runs need its outcome, and fast tests start no process.
__all__ = ["HAS_BUBBLEWRAP", "pytest_addoption", "pytest_configure"]

# Deadlines, and how fast examples are drawn, measure the machine: a slow neighbour must not fail a property.
settings.register_profile("dev", deadline=None)
# The same examples on every run, so that a red build is red for everyone until someone fixes it.
settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


# Tests neither read nor change the user's files and settings, of git for example; both may be odd.
OWN = Path(tempfile.mkdtemp(prefix="fanfold-home-"))
for _name in [name for name in os.environ if name.startswith(("GIT_", "XDG_"))]:
    del os.environ[_name]
os.environ |= {"HOME": str(OWN / "user"), "FANFOLD_HOME": str(OWN)}
Path(os.environ["HOME"]).mkdir()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Full tests wait for processes, disks and clocks: two workers per processor. Fast tests only compute."""
    return (1 if config.getoption("--tier") == "fast" else 2) * (os.cpu_count() or 1)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Lift the overlays of processes that tests killed, so that their folders can be deleted."""
    shutil.rmtree(OWN, ignore_errors=True)
    factory = getattr(session.config, "_tmp_path_factory", None)
    if factory is None:
        return
    mounts = Path("/proc/self/mountinfo")
    below = f"{factory.getbasetemp()}/"  # other sessions of tests are none of our business
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        fields = line.split()
        if " - overlay fanfold " in line and fields[4].startswith(below):
            subprocess.run(["umount", "--lazy", fields[4]], check=False, capture_output=True)
