"""Recipes made to hurt are answered within 200 MB, without a traceback; how soon, `make bench` says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipe.hostile import CASES
from tests.work import PATIENCE_S

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_recipe_costs_little(name: str):
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.recipe.hostile", name],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cost = json.loads(done.stdout)
    expected = CASES[name][1]
    assert (cost["errors"] == []) if expected is None else (expected in cost["errors"]), cost
    assert cost["peak_mb"] <= 200, cost
