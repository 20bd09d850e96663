"""`make dist` and `make release`: the packages that are published, their SBOM, and the tag.

    python -m tools.release         build into dist, check, try the wheel
    python -m tools.release --tag   tag the commit that dist was built from

Rules
* The packages are built twice, in folders of different names. Different bytes are an error.
* Times inside the packages are the time of the commit, so every machine builds the same bytes.
* The wheel is tried in a new environment that has only the pinned packages: no checkout, no compiler.
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
PINS = ROOT / "requirements" / "run.txt"
MAX_PACKAGES = 70
MAX_INSTALLED_MB = 300


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
    return try_wheel(wheel)


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
        venv.create(folder / "venv", with_pip=True)
        python = str(folder / "venv" / "bin" / "python")
        pip = [
            python,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--no-input",
            "install",
            "-qq",
            "--only-binary=:all:",
        ]
        subprocess.run([*pip, "--require-hashes", "--requirement", str(PINS)], check=True)
        subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
        subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "check"], check=True)
        project, home = folder / "project", folder / "home"
        project.mkdir()
        home.mkdir()
        environment = {"PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}", "HOME": str(home)}
        for command in (
            ["fanfold", "--version"],
            ["fanfold", "smoke"],
            ["python", "-P", "-m", "fanfold", "--version"],
        ):
            subprocess.run(command, cwd=project, env=environment, check=True)
        installed = [
            file for file in (folder / "venv").rglob("*") if file.is_file() and not file.is_symlink()
        ]
        size_mb = sum(file.stat().st_size for file in installed if file.suffix != ".pyc") / 1e6
        packages = len(list((folder / "venv").rglob("*.dist-info")))
    print(f"installed: {packages} packages, {size_mb:.0f} MB")
    return int(packages > MAX_PACKAGES or size_mb > MAX_INSTALLED_MB)


def tag() -> int:
    """Tag the commit with the version of the package, if the checkout has no changes."""
    if _git("status", "--porcelain"):
        print("release: the checkout has changes: commit them first", file=sys.stderr)
        return 1
    version = next(file.name.split("-")[1] for file in DIST.glob("*.whl"))
    _git("tag", f"v{version}")
    print(f"tagged v{version}; publish dist with the tag")
    return 0


def _git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return result.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
