"""The import contracts allow what docs/architecture.md says, and forbid the rest.

A toy package with the real package's folders is laid out twice: once with every import that is allowed,
once with every import that is not. The contracts of pyproject.toml must accept the first whole and name each
import of the second.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.tidy import ROOT

pytestmark = pytest.mark.full

SURFACES = ("server", "cluster", "cli", "testing")
LEAVES = ("process_identity", "project_files", "errors")
BELOW_STEPS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "process_identity": ("errors",),
    "project_files": ("errors",),
    "kernel": ("errors",),
    "language": ("kernel", "project_files", "errors"),
    "store": ("kernel", *LEAVES),
    "workspace": ("kernel", *LEAVES),
    "agents": ("workspace", "language", "kernel", *LEAVES),
    "sessions": ("agents", "workspace", "store", "language", "kernel", *LEAVES),
}
INNER = (*BELOW_STEPS, "steps", "engine", "api")
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    **BELOW_STEPS,
    "steps": tuple(BELOW_STEPS),
    "engine": (*BELOW_STEPS, "steps"),
    "api": (*BELOW_STEPS, "steps", "engine"),
    **dict.fromkeys(SURFACES, INNER),
    "wiring": (*INNER, "server", "cluster", "testing"),
}
FORBIDDEN = sorted(
    (importer, imported)
    for importer, allowed in MAY_IMPORT.items()
    for imported in MAY_IMPORT
    if imported not in (importer, *allowed) and {importer, imported} != {"cli", "wiring"}
)
"""The command line asks wiring for what it runs. Layers let either know the other; the rule against cycles
leaves one of the two."""


def lay_out(root: Path, imports: dict[str, list[str]]) -> None:
    """A package `fanfold` below `root` whose modules hold the given import lines."""
    for name in MAY_IMPORT:
        (root / "fanfold" / name).mkdir(parents=True, exist_ok=True)
        for module in ("__init__", "leaf"):
            (root / "fanfold" / name / f"{module}.py").touch()
    (root / "fanfold" / "__init__.py").touch()
    for module, lines in imports.items():
        file = root / Path(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / "__init__.py").touch()
        file.write_text("\n".join(lines) + "\n")


def check_contracts(root: Path) -> tuple[int, str]:
    """What the contracts of this repository say about the package below `root`."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--config", ROOT / "pyproject.toml", "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_every_allowed_import_is_accepted(tmp_path: Path):
    lay_out(
        tmp_path,
        {
            f"fanfold.{importer}.user": [f"import fanfold.{imported}.leaf" for imported in allowed]
            for importer, allowed in MAY_IMPORT.items()
        }
        | {"fanfold.cli.main": ["import fanfold.wiring", "from fanfold import __version__"]}
        | {"fanfold.kernel.transitions": ["import re, enum, heapq, functools", "import msgspec"]}
        | {"fanfold.wiring.chooser": ["import fanfold.store.leaf"]},
    )
    (tmp_path / "fanfold/__init__.py").write_text("__version__ = '0'\n")
    status, report = check_contracts(tmp_path)
    assert status == 0, report


def test_every_other_import_between_layers_is_refused(tmp_path: Path):
    lay_out(
        tmp_path,
        {f"fanfold.{a}.reaches_{b}": [f"import fanfold.{b}.leaf"] for a, b in FORBIDDEN},
    )
    status, report = check_contracts(tmp_path)
    refused = set(re.findall(r"fanfold\.(\w+) is not allowed to import fanfold\.(\w+):", report))
    assert status == 1
    assert sorted(refused) == FORBIDDEN


@pytest.mark.parametrize(
    ("module", "line", "named"),
    [
        ("fanfold.kernel.clock", "import time", "fanfold.kernel is not allowed to import time"),
        ("fanfold.kernel.clock", "from datetime import datetime", "not allowed to import datetime"),
        ("fanfold.kernel.deep.loop", "import asyncio.events", "not allowed to import asyncio"),
        ("fanfold.kernel.dice", "def roll():\n    import random", "not allowed to import random"),
        ("fanfold.kernel.pool", "import concurrent.futures", "not allowed to import concurrent"),
        ("fanfold.errors.text", "import os", "fanfold.errors is not allowed to import os"),
        ("fanfold.language.version", "from fanfold import __version__", "not allowed to import fanfold"),
        ("fanfold.engine.loop", "import fanfold.store.sqlite", "protected package fanfold.store.sqlite"),
        ("fanfold.gadgets.thing", "", "not listed as layers"),
        ("fanfold.kernel.one", "import fanfold.kernel.two", "cycle"),
    ],
)
def test_changes_invisible_to_overlay_layers_are_refused(tmp_path: Path, module: str, line: str, named: str):
    lay_out(
        tmp_path,
        {
            "fanfold.store.sqlite": [],
            "fanfold.agents.models.session": [],
            "fanfold.kernel.two": ["import fanfold.kernel.one"],
            "fanfold.kernel.one": [],
            module: [line],
        },
    )
    status, report = check_contracts(tmp_path)
    assert status == 1
    assert named in report


def test_this_package_keeps_the_contracts():
    status, report = check_contracts(ROOT / "src")
    assert status == 0, report
