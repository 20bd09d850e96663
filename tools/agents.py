"""Fetches the real agents for `make agents-test`, with the Node they need, into a folder that is kept.

`python -m tools.agents FOLDER [NAME…]`. Nothing is installed anywhere else. Each agent is installed from its
lock file in `tests/real_agents/programs`, which names the hash of every package; another one is refused.
`python -m tools.agents --upgrade [NAME…]` writes the lock files anew.

The Node of a system is often older than what these packages need; so the one of the development tools, which
is pinned by hash too, comes first on PATH.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from pathlib import Path

from tools.npm import environment, node
from tools.tidy import ROOT

LOCKS = ROOT / "tests/real_agents/programs"
NAMES = sorted(path.name for path in LOCKS.iterdir())
_NPM = ("npm", "--no-audit", "--no-fund", "--silent")


def fetch_node(folder: Path) -> None:
    """Have a folder for PATH that holds `node` alone."""
    own = folder / "node-bin"
    own.mkdir(exist_ok=True)
    (own / "node").unlink(missing_ok=True)
    (own / "node").symlink_to(node())


def fetch_agent(folder: Path, name: str) -> str:
    """Install one agent into a folder of its own, exactly as its lock file says; its version."""
    place = folder / name
    locked = (LOCKS / name / "package-lock.json").read_bytes()
    done = place / "installed-lock.json"
    if not done.exists() or done.read_bytes() != locked:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(LOCKS / name, place)
        for command in (["install", "--ignore-scripts"], ["rebuild"]):
            subprocess.run([*_NPM, *command], check=True, env=environment(), cwd=place)
            check_installed(place, locked)  # before any script of a package runs, and after
        done.write_bytes(locked)
    package = next(iter(json.loads((place / "package.json").read_text())["dependencies"]))
    manifest = place / "node_modules" / package / "package.json"
    version: str = json.loads(manifest.read_text())["version"]
    return version


def check_installed(place: Path, locked: bytes) -> None:
    """Refuse what the lock file does not name, or names with another hash."""
    expected = json.loads(locked)["packages"]
    for path, entry in json.loads((place / "node_modules/.package-lock.json").read_text())[
        "packages"
    ].items():
        if entry.get("integrity") is None or entry["integrity"] != expected.get(path, {}).get("integrity"):
            raise OSError(f"{path} is not what the lock file names")


def upgrade(name: str) -> None:
    """Lock the newest release of an agent and all that it needs."""
    package = next(iter(json.loads((LOCKS / name / "package.json").read_text())["dependencies"]))
    command = [
        *_NPM,
        "install",
        "--package-lock-only",
        "--ignore-scripts",
        "--save-exact",
        f"{package}@latest",
    ]
    subprocess.run(command, check=True, env=environment(), cwd=LOCKS / name)
    manifest = LOCKS / name / "package.json"
    manifest.write_text(manifest.read_text().rstrip() + "\n")  # npm leaves the line open


def main(arguments: list[str]) -> None:
    if arguments[0] == "--upgrade":
        for name in arguments[1:] or NAMES:
            upgrade(name)
        return
    folder = Path(arguments[0]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {name if name in NAMES else name.removesuffix("-acp") for name in arguments[1:] or NAMES}
    known = folder / "versions.json"
    with (folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # two fetches would remove the files of each other
        fetch_node(folder)
        versions: dict[str, str] = json.loads(known.read_text()) if known.exists() else {}
        for name in sorted(wanted):
            try:
                versions[name] = fetch_agent(folder, name)
            except (OSError, subprocess.CalledProcessError) as error:
                versions.pop(name, None)
                sys.stderr.write(f"agents: {name} cannot be fetched: {error}\n")
                continue
            sys.stdout.write(f"agents: {name} {versions[name]}\n")
        known.write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
