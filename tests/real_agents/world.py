"""Real agents on a scripted provider: what each user would have configured, and a project they work in."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.real_agents.provider import KEY

CACHE = Path(os.environ.get("AGENTS_CACHE", Path.home() / ".cache" / "fanfold" / "agents"))
SEEN = Path(__file__).parent / "seen.json"
WAIT_S = 600
COMMANDS = ("claude", "codex", "opencode", "copilot", "goose", "qwen", "gemini")
SPEAKING = tuple(f"{name}-acp" for name in COMMANDS)
SYSTEM = "/usr/local/bin:/usr/bin:/bin"
RECORDER = """#!/bin/bash
set -o pipefail
at=$(date +%s%N)
"{program}" "$@" 2> >(tee -a ~/said-$at.stderr >&2) | tee -a ~/said-$at.jsonl
"""
WRITER = """name = "{name}"
description = "Does what it is told"
developer_instructions = "Be careful."
backend = "{backend}"
{more}"""


class Outside:
    """The user's own folder and environment, with agents that are set up to talk to the provider."""

    def __init__(self, folder: Path, port: int, google: int) -> None:
        self.home = folder / "home"
        self._where = folder, port, google
        self.environment = {
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
            "ANTHROPIC_API_KEY": KEY,
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
            "OPENAI_MODEL": "m1",
            "GOOSE_PROVIDER": "openai",
            "GOOSE_MODEL": "m1",
            "OPENAI_HOST": f"http://127.0.0.1:{port}",
            "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{google}",
            "GEMINI_API_KEY": KEY,
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_BASE_URL": f"http://127.0.0.1:{port}/v1",
            "COPILOT_PROVIDER_API_KEY": KEY,
            "COPILOT_MODEL": "m1",
        }
        codex = f"""model = "scripted"\nmodel_provider = "x"\n[model_providers.x]\nname = "x"
base_url = "http://127.0.0.1:{port}/v1"\nwire_api = "responses"\nenv_key = "OPENAI_API_KEY"\n"""
        self.write(".codex/config.toml", codex)
        options = {"baseURL": f"http://127.0.0.1:{port}/v1", "apiKey": "{env:OPENAI_API_KEY}"}
        scripted = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"m1": {"name": "m1"}}}
        opencode = {"model": "scripted/m1", "provider": {"scripted": scripted}}
        self.write(".config/opencode/opencode.json", json.dumps(opencode))
        self.write(".gemini/settings.json", '{"security": {"auth": {"selectedType": "gemini-api-key"}}}')
        self.write(".qwen/settings.json", '{"security": {"auth": {"selectedType": "openai"}}}')
        keys = {
            "claude": "ANTHROPIC_API_KEY",
            "gemini": "GEMINI_API_KEY",
            "copilot": "COPILOT_PROVIDER_API_KEY",
        }
        for name in COMMANDS:
            key = f'credentials = ["{keys.get(name, "OPENAI_API_KEY")}"]\n'
            for file in (name, f"{name}-acp"):
                self.write(f".fanfold/backends/{file}.toml", key)

    def write(self, name: str, text: str) -> None:
        file = self.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def again(self) -> "Outside":
        """The same, set up anew."""
        return Outside(*self._where)

    def files(self) -> dict[str, bytes]:
        """Everything in the user's folder but what is Fanfold's own."""
        found = (path for path in self.home.rglob("*") if path.is_file())
        kept = [path for path in found if ".fanfold" not in path.relative_to(self.home).parts]
        return {str(path.relative_to(self.home)): path.read_bytes() for path in kept}


class RealWorld:
    """A project with roles for real agents."""

    def __init__(self, folder: Path, outside: Outside, signs: Path) -> None:
        self.project = folder / "project"
        (self.project / ".fanfold" / "agents").mkdir(parents=True)
        self.outside = outside
        self.signs = signs
        asked = signs / "asked.jsonl"
        self._before = len(asked.read_text().splitlines()) if asked.exists() else 0
        self._started: list[subprocess.Popen[str]] = []
        self.fault()

    def role(self, name: str, backend: str, more: str = "") -> None:
        if backend == "claude":
            more += 'model = "claude-sonnet-4-5"\n'
        if backend.startswith("gemini"):
            more += 'model = "gemini-2.5-flash"\n'
        text = WRITER.format(name=name, backend=backend, more=more)
        (self.project / ".fanfold" / "agents" / f"{name}.toml").write_text(text)

    def fault(self, kind: str = "", **more: Any) -> None:
        """Have requests to the provider fail from now on; none: no more."""
        file = self.signs / "fault.json"
        (self.signs / "reset").unlink(missing_ok=True)
        if not kind:
            file.unlink(missing_ok=True)
            return
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps({"kind": kind, **more}))
        fresh.replace(file)

    def asked(self) -> list[dict[str, Any]]:
        """The requests that the provider got in this test: those with a task, or with a fault."""
        file = self.signs / "asked.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [one for one in map(json.loads, lines[self._before :]) if "DO {" in json.dumps(one["body"])]

    def environment(self) -> dict[str, str]:
        names = [path.name for path in CACHE.iterdir() if (path / "node_modules" / ".bin").is_dir()]
        programs = [str(CACHE / name / "node_modules" / ".bin") for name in sorted(names, key=len)]
        path = ":".join([*self._recorders(programs), str(CACHE / "node-bin"), *programs, SYSTEM])
        return {**self.outside.environment, "PATH": path}

    def _recorders(self, programs: list[str]) -> list[str]:
        """With `AGENTS_RECORD`, programs that keep what the agents say in the home of each session."""
        folders: list[str] = []
        for found in map(Path, programs if os.environ.get("AGENTS_RECORD") else ()):
            folder = found.with_name(".recorded")  # in the installation: a sandbox shows all of that
            folder.mkdir(exist_ok=True)
            for program in found.iterdir():
                if not (folder / program.name).exists():
                    (folder / program.name).write_text(RECORDER.format(program=program))
                    (folder / program.name).chmod(0o755)
            folders.append(str(folder))
        return folders

    def recorded(self) -> list[Path]:
        """What was kept of the calls, in their order."""
        found = self.project.glob(".fanfold/workspace/homes/*/*/said-*.jsonl")
        return sorted(found, key=lambda file: file.stat().st_mtime_ns)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fanfold.cli.main", *arguments]
        process = subprocess.Popen(
            command,
            cwd=self.project,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """End what a failed test left running."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def fanfold(self, *arguments: str) -> Any:
        """Run a command to its end; its document."""
        process = self.start(*arguments, "--json")
        out, err = process.communicate(timeout=WAIT_S)
        assert out, err
        return json.loads(out)

    def until(self, seen: Callable[[], Any], what: str) -> Any:
        return until(seen, what)

    def until_status(self, status: str) -> Any:
        """The latest run, once it has come to a status."""

        def look() -> Any:
            known = list(self.project.glob(".fanfold/*.db"))
            found = self.fanfold("inspect", "last") if known else {}
            assert found.get("status") not in ("failed", "completed", "paused"), found
            return found if found.get("status") == status else None

        return until(look, status)

    def recipe(self, *steps: dict[str, Any]) -> str:
        (self.project / "work.yaml").write_text(json.dumps({"name": "work", "steps": list(steps)}))
        return "work.yaml"


def task(*acts: dict[str, Any], say: str, **more: Any) -> str:
    """A prompt that the scripted model does."""
    return f"DO {json.dumps({'acts': list(acts), 'say': say, **more})} END"


def until(seen: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (found := seen()):
        assert time.monotonic() < deadline, f"still no {what}"
        time.sleep(0.1)
    return found


def free_port() -> socket.socket:
    """A port of the loopback on which somebody listens who is not the provider."""
    return socket.create_server(("127.0.0.1", 0))
