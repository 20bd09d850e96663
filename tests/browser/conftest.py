"""A real browser on a real server: Debian's Chromium, and nothing that leaves this machine.

Every page of a test is watched: an error on its console, a report of the content security policy, a request
to another host, or an answer that says the page asked for something wrong fails the test.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)

from tests.server.conftest import Serve, Server, run_command, serving

COMPLETE = os.environ.get("BROWSER") == "all"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MS = 90_000
"""How long anything is waited for: a busy machine is slow, and a test that passes does not notice."""
FILES = [f"src/module_{i:03}.py" for i in range(300)]

SWEEP = """\
name: sweep
description: Look at three hundred files, mend what is odd, ask before anything is published
inputs:
  - {name: reason, type: string, required: true, description: Why they are looked at}
  - {name: careful, type: boolean, default: true}
limits: {max_agents: 500, max_concurrency: 16}
steps:
  - {id: list, agent: explorer, prompt: "List files because {{inputs.reason}}", output_schema: {type: object}}
  - id: each
    agent: explorer
    for_each: steps.list.output.files
    prompt: "Look at {{item}}"
    on_failure: inline
  - {id: notes, workflow: two-sides@1, inputs: {topic: "{{inputs.reason}}"}, depends_on: [list]}
  - id: mend
    depends_on: [each]
    repeat: {until: "steps.check.output == 'good'", max_iterations: 3}
    steps:
      - {id: fix, agent: worker, write_set: ["src/*.py"], prompt: "Mend {{steps.each.output}}"}
      - {id: check, agent: critic, prompt: "Check it", depends_on: [fix]}
  - {id: release, approve: "Publish **three** fixes?", show: "{{steps.mend.output}}", depends_on: [notes]}
  - id: publish
    agent: worker
    write_set: [CHANGES.md]
    prompt: "Note {{steps.mend.output}}"
    depends_on: [release]
"""
TWO_SIDES = """\
name: two-sides
description: A closer look from two sides
version: 1
inputs: [{name: topic, required: true}]
steps:
  - {id: left, agent: explorer, prompt: "Look at {{inputs.topic}} from the left"}
  - {id: right, agent: explorer, prompt: "Look at {{inputs.topic}} from the right"}
  - {id: both, agent: summarizer, prompt: "{{steps.left.output}} {{steps.right.output}}"}
"""
SLOW = """\
name: slow
description: Takes its time
steps:
  - {id: first, agent: explorer, prompt: Think}
  - {id: second, agent: explorer, prompt: "Think about {{steps.first.output}}", depends_on: [first]}
"""
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\n\n"
    "![pixel](https://example.org/pixel.png) [click](javascript:document.title='owned') **bold**"
)


def spent(output: Any, delay_ms: int = 5) -> dict[str, Any]:
    return {"output": output, "delay_ms": delay_ms, "usage": {"input_tokens": 120, "output_tokens": 40}}


SWEEP_SCRIPT: dict[str, Any] = {
    "default": spent("Nothing odd in it, said the *quokka*."),
    "steps": {
        "list": spent({"files": FILES}, 400),
        "each[17]": {"fail": {"class": "agent", "message": "the file cannot be read"}},
        "notes/left": spent(HOSTILE),
        "mend#*/fix": {**spent("Mended"), "writes": {"src/module_001.py": "x = 1\ny = 2\n"}},
        "mend#1/check": spent("not yet"),
        "mend#2/check": spent("good"),
        "publish": {
            **spent("Noted"),
            "writes": {"CHANGES.md": "- three fixes\n", "artifacts/why.md": "odd\n"},
        },
    },
}
SLOW_SCRIPT: dict[str, Any] = {"default": spent("thought", 3_600_000)}
"""Ends only when somebody ends it, however long a page takes to be drawn."""


class Watch:
    """What pages did that they must not."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.wrong: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Words of messages that a test provokes: a browser, too, says that a server is gone."""

    def attach(self, context: BrowserContext) -> None:
        context.add_init_script(
            "addEventListener('securitypolicyviolation',"
            " event => console.error('policy: ' + event.violatedDirective + ' ' + event.blockedURI))"
        )
        context.on("console", self._console)
        context.on("weberror", lambda error: self._note(f"error: {error.error}"))
        context.on("request", self._request)
        context.on("response", self._response)

    def _note(self, text: str) -> None:
        if not any(word in text for word in self.expected):
            self.wrong.append(text)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._note(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.base, "data:", "blob:")):
            self._note(f"request off the machine: {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self._note(f"answer {response.status}: {response.url}")


class Console:
    """A browser that was let in."""

    def __init__(self, browser: Browser, server: Server, **options: Any) -> None:
        self.server = server
        self.base = server.url.rstrip("/")
        self.watch = Watch(self.base)
        self.context = browser.new_context(viewport={"width": 1440, "height": 900}, **options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.watch.attach(self.context)
        self.page = self.context.new_page()
        self.page.goto(f"{self.base}/?token={server.token}")

    def go(self, path: str) -> Page:
        self.page.goto(f"{self.base}{path}")
        return self.page

    def start(self, recipe: str, script: dict[str, Any], **inputs: Any) -> str:
        """A run that was begun elsewhere."""
        body = {"recipe": recipe, "inputs": inputs, "script": script, "yes": True}
        return str(self.server.post("/api/runs", body, 201)["run_id"])

    def status_of(self, run: str) -> str:
        return str(self.server.get(f"/api/runs/{run}/head")["status"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, and the event loop that drives it: while it runs, this thread can start no other."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM)
        yield chromium
        chromium.close()


def lay_out_console(folder: Path) -> None:
    recipes = folder / ".fanfold" / "workflows"
    recipes.mkdir(parents=True)
    for name, text in (("sweep", SWEEP), ("two-sides", TWO_SIDES), ("slow", SLOW)):
        (recipes / f"{name}.yaml").write_text(text)
    (folder / "src").mkdir()
    (folder / "src" / "module_001.py").write_text("x = 0\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("console")
    lay_out_console(made)
    return made


@pytest.fixture(scope="module")
def serve(folder: Path, home: Path) -> Iterator[Serve]:
    with serving(folder, home) as begin:
        yield begin


@pytest.fixture(scope="module")
def server(serve: Serve) -> Server:
    return serve()


@pytest.fixture(scope="module")
def swept(browser: Browser, server: Server, folder: Path, home: Path) -> str:
    """A run of `sweep` that waits for its approval."""
    (folder / "sweep.json").write_text(json.dumps(SWEEP_SCRIPT))
    run_command(folder, home, "run", "sweep", "-i", "reason=tests", "--script", "sweep.json", "--yes")
    return str(server.get("/api/runs/last/head")["run_id"])


@pytest.fixture
def console(browser: Browser, server: Server) -> Iterator[Console]:
    made = Console(browser, server)
    yield made
    made.context.close()
    assert made.watch.wrong == []
