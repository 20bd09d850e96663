"""What is installed is what was written, at the versions that were tested."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fanfold
from tools.tidy import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


def test_every_file_of_the_package_is_in_the_wheel(wheel: zipfile.ZipFile):
    files = (file for file in (ROOT / "src/fanfold").rglob("*") if file.is_file())
    written = {file.relative_to(ROOT / "src").as_posix() for file in files if file.suffix != ".pyc"}
    assert "fanfold/py.typed" in written
    assert written <= set(wheel.namelist())


def test_the_wheel_carries_its_version_licence_and_command(wheel: zipfile.ZipFile):
    (info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    assert info == f"fanfold-{fanfold.__version__}.dist-info"
    assert "Apache License" in wheel.read(f"{info}/licenses/LICENSE").decode()
    assert "fanfold = fanfold.cli.main:main" in wheel.read(f"{info}/entry_points.txt").decode()


def test_the_changelog_knows_this_version():
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert any(heading.split()[1] == fanfold.__version__ for heading in headings)


@pytest.mark.parametrize("line", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]])
def test_what_the_project_asks_for_is_pinned_at_a_version_it_accepts(line: str):
    requirement = Requirement(line)
    pinned = {canonicalize_name(name): version for name, version in PINS.items()}
    assert pinned[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("line", PROJECT["dependencies"])
def test_a_dependency_of_the_package_has_an_upper_bound(line: str):
    assert any(bound.operator == "<" for bound in Requirement(line).specifier)


def test_continuous_integration_runs_exactly_the_parts_of_make_check():
    (parts,) = re.findall(r"^check: (.*?) ##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    ran = re.findall(r"^make (?:--keep-going )?(\w+)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert ran == parts.split()


def test_importing_the_package_reads_no_metadata():
    code = "import sys, fanfold; sys.exit('importlib.metadata' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=Path("/"), check=True)
