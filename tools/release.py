"""`make dist` and `make release`: the packages that are published, their SBOM, and the tag.

    python -m tools.release         build into dist, check, try the wheel
    python -m tools.release --tag   tag the commit that dist was built from

Rules
* The packages are built twice, in folders of different names. Different bytes are an error.
* Times inside the packages are the time of the commit, so every machine builds the same bytes.
* The wheel is tried in a new environment that has only the pinned packages: no checkout, no compiler.
* The lines that the documentation gives for pip, pipx and uv are executed, each in an environment of its own,
  with the wheel in place of the name of the package.
* What is installed stays within MAX_PACKAGES and MAX_INSTALLED_MB, bytecode included.
* The SBOM lists every pinned package with its version and the hashes of its files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from tools.tidy import ROOT

DIST = ROOT / "dist"
PINS = ROOT / "requirements" / "package.txt"
INSTALLERS = ROOT / "requirements" / "audit.txt"
MAX_PACKAGES = 55
MAX_INSTALLED_MB = 250


def main(arguments: list[str]) -> int:
    if "--tag" in arguments:
        return tag()
    first, second = build("first"), build("a second folder")
    different = [name for name in first if first[name] != second.get(name)]
    if different or first.keys() != second.keys():
        print(f"release: two builds differ: {', '.join(different) or 'other file names'}", file=sys.stderr)
        return 1
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for name, content in first.items():
        (DIST / name).write_bytes(content)
    wheel = next(DIST.glob("*.whl"))
    version = wheel.name.split("-")[1]
    document = json.dumps(sbom(PINS.read_text(), version, wheel.read_bytes()), indent=1) + "\n"
    (DIST / f"fanfold-{version}.cdx.json").write_text(document)
    for file in sorted(DIST.iterdir()):
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}")
    return try_wheel(wheel) or try_installers(wheel)


def build(name: str) -> dict[str, bytes]:
    """Build the wheel and the source package in a folder of this name; return their contents by file name."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / name
        environment = {**os.environ, "SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct")}
        command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        return {file.name: file.read_bytes() for file in folder.iterdir()}


def sbom(pins: str, version: str, wheel: bytes) -> dict[str, Any]:
    """A CycloneDX 1.6 document of the package and of everything that is installed with it.

    >>> document = sbom("click==8.1.0 --hash=sha256:ab --hash=sha256:cd", "1.0", b"")
    >>> [(one["purl"], len(one["hashes"])) for one in document["components"]]
    [('pkg:pypi/click@8.1.0', 2)]
    """
    components = []
    for entry in re.finditer(r"^([\w.-]+)==([^\s;\\]+)((?:[^\n]*\\\n)*[^\n]*)", pins, re.MULTILINE):
        name, pinned, rest = entry.groups()
        hashes = [{"alg": "SHA-256", "content": found} for found in re.findall(r"sha256:(\w+)", rest)]
        purl = f"pkg:pypi/{name.lower()}@{pinned}"
        components.append(
            {
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": pinned,
                "purl": purl,
                "hashes": hashes,
            }
        )
    own = f"pkg:pypi/fanfold@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "fanfold",
                "version": version,
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel).hexdigest()}],
            }
        },
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [one["bom-ref"] for one in components]}],
    }


def try_wheel(wheel: Path) -> int:
    """Install the wheel with its pins in a new environment and run its self-test in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="fanfold-wheel.") as parent:
        folder = Path(parent)
        python = new_environment(folder / "venv", PINS)
        subprocess.run([*pip(python), "install", "-qq", "--no-deps", str(wheel)], check=True)
        subprocess.run([*pip(python), "check"], check=True)
        environment = clean_environment(folder, folder / "venv" / "bin")
        for command in (
            ["fanfold", "--version"],
            ["fanfold", "smoke"],
            ["python", "-P", "-m", "fanfold", "--version"],
        ):
            subprocess.run(command, cwd=folder / "project", env=environment, check=True)
        packages, files_mb, bytecode_mb = installed_size(next((folder / "venv" / "lib").glob("python*")))
    total_mb = files_mb + bytecode_mb
    print(f"installed: {packages} packages, {total_mb:.0f} MB, of which {bytecode_mb:.0f} MB is bytecode")
    return int(packages > MAX_PACKAGES or total_mb > MAX_INSTALLED_MB)


def try_installers(wheel: Path) -> int:
    """Execute the documented lines for pip, pipx and uv with the wheel, without pins, as a user does."""
    with tempfile.TemporaryDirectory(prefix="fanfold-installers.") as parent:
        folder = Path(parent)
        new_environment(folder / "tools", INSTALLERS)
        user = folder / "user-bin"
        environment = clean_environment(folder, user, folder / "tools" / "bin")
        environment |= {"PIPX_HOME": str(folder / "pipx"), "PIPX_BIN_DIR": str(user)}
        environment |= {"UV_TOOL_DIR": str(folder / "uv"), "UV_TOOL_BIN_DIR": str(user)}
        venv.create(folder / "plain", with_pip=True)
        program = folder / "plain" / "bin" / "fanfold"
        for installer, line, found in (
            ("pip", [str(folder / "plain" / "bin" / "pip"), "install", "--quiet"], program),
            ("pipx", ["pipx", "install", "--quiet"], user / "fanfold"),
            ("uv", ["uv", "tool", "install", "--quiet", "--force"], user / "fanfold"),
        ):
            found.unlink(missing_ok=True)
            subprocess.run([*line, str(wheel)], cwd=folder / "project", env=environment, check=True)
            subprocess.run([str(found), "smoke"], cwd=folder / "project", env=environment, check=True)
            print(f"{installer}: installs the wheel, and its self-test passes")
    return 0


def new_environment(folder: Path, pins: Path) -> str:
    """Make a virtual environment with the packages of a lock file, and return its Python."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    hashed = ["--only-binary=:all:", "--require-hashes", "--requirement", str(pins)]
    subprocess.run([*pip(python), "install", "-qq", *hashed], check=True)
    return python


def pip(python: str) -> list[str]:
    """The command of an environment's pip."""
    return [python, "-m", "pip", "--disable-pip-version-check", "--no-input"]


def clean_environment(folder: Path, *programs: Path) -> dict[str, str]:
    """An empty project, an empty home, and variables that name nothing of the user's."""
    for name in ("project", "home"):
        (folder / name).mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
    path = ":".join([*map(str, programs), os.environ["PATH"]])
    return {**kept, "PATH": path, "HOME": str(folder / "home"), "LANG": "C.UTF-8"}


def installed_size(library: Path) -> tuple[int, float, float]:
    """Packages, MB of files and MB of bytecode below `library`, without what every environment has."""
    packages, files, bytecode = 0, 0, 0
    for entry in (library / "site-packages").iterdir():
        if entry.name.partition("-")[0] in ("pip", "setuptools", "pkg_resources", "_distutils_hack"):
            continue
        packages += entry.name.endswith(".dist-info")
        for file in [entry] if entry.is_file() else entry.rglob("*"):
            if file.is_file() and not file.is_symlink():
                if file.suffix == ".pyc":
                    bytecode += file.stat().st_size
                else:
                    files += file.stat().st_size
    return packages, files / 1e6, bytecode / 1e6


def tag() -> int:
    """Tag the commit with the version of the package, if `dist` was built from exactly this commit."""
    wheel = next(DIST.glob("*.whl"), None)
    if wheel is None or build("of the commit").get(wheel.name) != wheel.read_bytes():
        problem = "dist was not built from this commit: make dist"
    elif _git("status", "--porcelain"):
        problem = "the checkout has changes: commit them first"
    elif _git("tag", "--list", version := f"v{wheel.name.split('-')[1]}"):
        problem = f"the tag {version} exists already: raise the version"
    else:
        _git("tag", version)
        print(f"tagged {version}; publish dist with the tag")
        return 0
    print(f"release: {problem}", file=sys.stderr)
    return 1


def _git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return result.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
