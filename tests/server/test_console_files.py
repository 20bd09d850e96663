"""The console's files: what came from others is what was checked in, and nothing points off the machine."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest

from fanfold.server.console_files import FOLDER
from tests.server.conftest import Server

VENDORED = "a6d9f72f55c09b73f812a0009229f444e4a643b778873f448572dab3fc935840"
"""Of what `tools/vendor_console` writes; it changes with the versions there and with nothing else."""
OURS = sorted(file for file in FOLDER.rglob("*.js") if file.parent.name != "vendor")


def test_the_vendored_file_is_the_one_that_was_reviewed():
    assert sha256((FOLDER / "assets/vendor/preact.js").read_bytes()).hexdigest() == VENDORED
    licences = (FOLDER / "assets/vendor/LICENCES.txt").read_text()
    for name in ("preact", "@preact/signals", "@preact/signals-core", "htm"):
        assert f"== {name}\n" in licences


def test_no_file_names_another_host_or_makes_markup_from_text():
    texts = [*OURS, FOLDER / "index.html", *FOLDER.rglob("*.css")]
    assert len(texts) > 30
    for file in texts:
        text = file.read_text()
        hosts = [one for one in re.findall(r"https?://[\w.-]+", text) if "www.w3.org" not in one]
        assert hosts == [], file.name
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert word not in text, f"{file.name} uses {word}"
        assert "dangerouslySet" not in text


def test_every_module_that_is_imported_is_there():
    for file in OURS:
        for name in re.findall(r'from "(\.[^"]+)"', file.read_text()):
            assert (file.parent / name).resolve().is_file(), f"{file.name} imports {name}"


@pytest.mark.full
def test_every_page_of_the_console_is_the_same_file_and_its_parts_are_served(server: Server) -> None:
    page = server.client.get("/").text
    paths = (
        "/recipes",
        "/runs/abc?view=timeline",
        "/runs/abc/steps/a%2Fb",
        "/compare",
        "/compare/a/b",
        "/system",
    )
    for path in paths:
        assert server.client.get(path).text == page
    for part in re.findall(r'(?:src|href)="(/assets/[^"]+)"', page):
        assert server.client.get(part).status_code == 200, part
