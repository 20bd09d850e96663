"""What is installed is what was written, at the versions that were tested."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fanfold
from fanfold.workspace.sandbox import how_to_allow
from tools import release
from tools.agents import check_installed
from tools.audit import SOUND, UNKNOWN, VULNERABLE, judge
from tools.release import MAX_PACKAGES, build, sbom
from tools.tidy import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKED = sorted((ROOT / "requirements").glob("*.txt"))
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


@pytest.mark.full
def test_every_file_of_the_package_is_in_the_wheel(wheel: zipfile.ZipFile):
    files = (file for file in (ROOT / "src/fanfold").rglob("*") if file.is_file())
    written = {file.relative_to(ROOT / "src").as_posix() for file in files if file.suffix != ".pyc"}
    assert "fanfold/py.typed" in written
    assert written <= set(wheel.namelist())


@pytest.mark.full
def test_the_wheel_carries_its_version_licence_and_command(wheel: zipfile.ZipFile):
    (info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    assert info == f"fanfold-{fanfold.__version__}.dist-info"
    assert "Apache License" in wheel.read(f"{info}/licenses/LICENSE").decode()
    assert "fanfold = fanfold.cli.main:main" in wheel.read(f"{info}/entry_points.txt").decode()


def test_the_changelog_knows_this_version():
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert any(heading.split()[1] == fanfold.__version__ for heading in headings)


@pytest.mark.parametrize("line", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]])
def test_every_dependency_is_pinned_at_an_accepted_version(line: str):
    requirement = Requirement(line)
    pinned = {canonicalize_name(name): version for name, version in PINS.items()}
    assert pinned[canonicalize_name(requirement.name)] in requirement.specifier


@pytest.mark.parametrize("line", PROJECT["dependencies"])
def test_a_dependency_of_the_package_has_an_upper_bound(line: str):
    assert any(bound.operator == "<" for bound in Requirement(line).specifier)


def test_continuous_integration_runs_the_demo_and_then_exactly_the_parts_of_make_check():
    (parts,) = re.findall(r"^check: (.*?) ##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    ran = re.findall(r"^make (?:--\S+ (?:\d+ )?)*([\w-]+)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert ran == ["demo", *parts.split()]


@pytest.mark.full
def test_importing_the_package_reads_no_metadata():
    code = "import sys, fanfold; sys.exit('importlib.metadata' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=Path("/"), check=True)


@pytest.mark.parametrize("file", LOCKED, ids=lambda file: file.stem)
def test_every_pin_is_exact_and_has_its_hashes(file: Path):
    lines = file.read_text().replace("\\\n", " ").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 10
    wrong = [line for line in pins if not re.match(r"[\w.-]+==[^ ]+ .*--hash=sha256:[0-9a-f]{64}", line)]
    assert wrong == []


def test_nothing_is_installed_without_its_hash():
    for name in ("tools/setup", "tools/demo.py", "tools/lock", "Makefile"):
        text = (ROOT / name).read_text().replace("\\\n", " ")
        for line in text.splitlines():
            if re.search(r"(pip|pip\[@\]\}\")\b.*\binstall\b", line) and "apt-get" not in line:
                assert "--require-hashes" in line or "--no-deps" in line, f"{name}: {line}"


NPM_LOCKS = sorted(
    path
    for folder in ("tests/real_agents/programs", "tests/mcp/programs", "tools/typescript")
    for path in (ROOT / folder).rglob("package-lock.json")
)


@pytest.mark.parametrize("file", NPM_LOCKS, ids=lambda file: f"{file.parent.parent.name}-{file.parent.name}")
def test_everything_that_npm_fetches_is_named_by_its_hash(file: Path):
    packages = json.loads(file.read_text())["packages"]
    without = [
        name
        for name, entry in packages.items()
        if name and not entry.get("integrity", "").startswith("sha512-")
    ]
    assert without == []
    named = json.loads((file.parent / "package.json").read_text())["dependencies"]
    assert all(
        re.search(r"@?\d+\.\d+\.\d+[\w.-]*$", version) and version[0] not in "^~*"
        for version in named.values()
    )


def test_a_package_that_the_lock_file_does_not_name_is_refused(tmp_path: Path):
    locked = {"packages": {"node_modules/a": {"integrity": "sha512-a"}}}
    installed = tmp_path / "node_modules/.package-lock.json"
    installed.parent.mkdir()
    wrong: list[dict[str, dict[str, str]]] = [
        {"node_modules/a": {"integrity": "sha512-b"}},
        {"node_modules/b": {"integrity": "sha512-a"}},
        {"node_modules/a": {}},
    ]
    for found in wrong:
        installed.write_text(json.dumps({"packages": found}))
        with pytest.raises(OSError, match="not what the lock file names"):
            check_installed(tmp_path, json.dumps(locked).encode())
    installed.write_text(json.dumps(locked))
    check_installed(tmp_path, json.dumps(locked).encode())


@pytest.mark.full
def test_a_release_needs_an_audit_and_continuous_integration_does_not():
    makefile, script = (ROOT / "Makefile").read_text(), (ROOT / ".ci/run").read_text()
    assert re.search(r"^release: audit check dist ##.*\n\t.*tools.release --tag", makefile, re.MULTILINE)
    (line,) = (line for line in script.splitlines() if "tools.audit" in line)
    for status, ends in ((SOUND, 0), (VULNERABLE, 1), (UNKNOWN, 0)):
        tried = line.replace(".venv/bin/python -m tools.audit", f"(exit {status})")
        ended = subprocess.run(
            ["bash", "-ec", f"status=0\n{tried}\nexit $status"],
            check=False,
            cwd="/",
            stdin=subprocess.DEVNULL,
        )
        assert ended.returncode == ends


def flaw(name: str, *ids: str) -> dict[str, object]:
    vulnerabilities = [{"id": one, "fix_versions": ["2.0"]} for one in ids]
    return {"name": name, "version": "1.0", "vulns": vulnerabilities}


@pytest.mark.parametrize(
    ("rows", "status", "said"),
    [
        ([flaw("a"), flaw("b")], SOUND, "2 packages looked up, 0 known vulnerabilities"),
        ([flaw("a", "X-1"), flaw("a", "X-1")], VULNERABLE, "a 1.0: X-1, fixed in 2.0"),
        ([flaw("a"), {"name": "b", "skip_reason": "not found"}], UNKNOWN, "not looked up: b"),
        ([{"name": "b", "skip_reason": "not found"}], UNKNOWN, "the advisories could not be reached"),
    ],
)
def test_an_audit_never_takes_silence_for_soundness(rows: list[dict[str, object]], status: int, said: str):
    verdict = judge(rows)
    assert verdict.status == status
    assert said in "\n".join(verdict.lines)


@pytest.mark.full
@pytest.mark.parametrize(("flags", "status"), [([], 2), (["-P"], 0)])
def test_python_m_fanfold_runs_only_without_the_current_folder_on_the_import_path(
    flags: list[str], status: int, tmp_path: Path
):
    command = [sys.executable, *flags, "-m", "fanfold", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert ("python -P -m fanfold" in done.stderr) == (status == 2)


def test_the_installation_stays_within_its_documented_size():
    pins = re.findall(r"^([\w.-]+==[^\\\n]+)", (ROOT / "requirements/package.txt").read_text(), re.MULTILINE)
    here = {"sys_platform": "linux", "platform_system": "Linux", "python_version": "3.11"}
    here |= {"python_full_version": "3.11.9", "platform_python_implementation": "CPython", "os_name": "posix"}
    needed = [one for one in map(Requirement, pins) if one.marker is None or one.marker.evaluate(here)]
    assert len(needed) + 1 <= MAX_PACKAGES
    assert f"The package and the {len(needed)} it needs" in (ROOT / "docs/index.md").read_text()


def test_the_sbom_lists_every_package_that_is_installed():
    pins = (ROOT / "requirements/package.txt").read_text()
    document = sbom(pins, fanfold.__version__, b"wheel")
    assert len(document["components"]) == len(re.findall(r"^[\w.-]+==", pins, re.MULTILINE))
    assert all(component["hashes"] for component in document["components"])


@pytest.mark.full
def test_two_builds_of_the_packages_have_the_same_bytes():
    assert build("first") == build("second")


@pytest.mark.full
def test_a_commit_is_not_tagged_for_packages_that_were_built_from_another(
    tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.setattr(release, "DIST", tmp_path)
    assert release.tag() == 1
    (tmp_path / f"fanfold-{fanfold.__version__}-py3-none-any.whl").write_bytes(b"of another commit")
    assert release.tag() == 1
    assert capsys.readouterr().err.count("dist was not built from this commit") == 2


def test_the_entries_for_agents_and_registries_name_this_version_and_their_owner():
    server = json.loads((ROOT / "integrations/mcp/server.json").read_text())
    [package] = server["packages"]
    plugin = json.loads((ROOT / "integrations/claude-plugin/.claude-plugin/plugin.json").read_text())
    assert {server["version"], package["version"], plugin["version"]} == {fanfold.__version__}
    assert package["identifier"] == PROJECT["name"]
    assert [one["value"] for one in package["packageArguments"]] == ["mcp"]
    assert len(server["description"]) <= 100, "what the registry allows"
    assert f"<!-- mcp-name: {server['name']} -->" in (ROOT / "README.md").read_text()


def test_containers_get_what_doctor_asks_for(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.containerenv").touch()
    wanted = how_to_allow("bwrap", root=tmp_path)
    services = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    own = [service for service in services.values() if "build" in service]
    assert len(own) == 4
    for service in own:
        assert " ".join(f"--security-opt {option}" for option in service["security_opt"]) in wanted
