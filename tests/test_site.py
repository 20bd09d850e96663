"""The documentation site has every page, and its build notices what would not work for a reader."""

import json
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema_rs

from fanfold.api.authoring import RECIPE_GLOBS
from tools import site
from tools.markdown import blocks
from tools.tidy import ROOT

CONFIG = tomllib.loads((ROOT / "tools" / "site.toml").read_text())["project"]


def placed(entries: Any) -> Iterator[str]:
    """The pages that the navigation names."""
    for entry in [entries] if isinstance(entries, str) else entries:
        if isinstance(entry, str):
            yield entry
        else:
            for inside in entry.values():
                yield from placed(inside)


def test_every_page_has_exactly_one_place_in_the_navigation():
    pages = sorted(file.relative_to(ROOT / "docs").as_posix() for file in (ROOT / "docs").rglob("*.md"))
    assert sorted(placed(CONFIG["nav"])) == pages


def test_a_link_out_of_docs_leads_to_the_repository():
    page = "[a](../examples/nested) [b](../../SECURITY.md#x) [c](#here) [d](../concepts.md)"
    assert site.with_repository_links(page, "docs/how-to/ci.md") == (
        "[a](../examples/nested) [b](https://github.com/fanfold/fanfold/blob/main/SECURITY.md#x)"
        " [c](#here) [d](../concepts.md)"
    )
    folder = site.with_repository_links("[a](../examples/nested)", "docs/gallery.md")
    assert folder == "[a](https://github.com/fanfold/fanfold/tree/main/examples/nested)"


def test_a_link_that_leads_nowhere_is_reported(tmp_path: Path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "index.html").write_text('<h1 id="title">B</h1>')
    links = ["b/", "b/#title", "b/#other", "c/", "https://example.org/", "#top"]
    page = "".join(f'<a href="{link}">x</a>' for link in links)
    (tmp_path / "index.html").write_text(f'<h1 id="top">A</h1>{page}<img src="missing.png">')
    assert site.broken_links(tmp_path) == [
        "index.html: b/#other names no heading",
        "index.html: c/ does not exist",
        "index.html: missing.png does not exist",
    ]


def test_a_page_that_fetches_from_another_host_is_reported(tmp_path: Path):
    (tmp_path / "index.html").write_text(
        '<link rel="canonical" href="https://example.org/">'
        '<link rel="stylesheet" href="https://fonts.example.org/a.css"><script src="b.js"></script>'
    )
    assert site.requests_to_other_hosts(tmp_path) == ["index.html: fetches https://fonts.example.org/a.css"]


def test_editors_find_the_schema_of_recipes_at_the_address_of_the_catalogue_entry():
    entry = json.loads((ROOT / "integrations" / "schemastore" / "catalog-entry.json").read_text())
    schema = site.published_schema()
    assert entry["url"] == schema["$id"] == f"{CONFIG['site_url']}recipe.schema.json"
    assert [pattern.removeprefix("**/") for pattern in entry["fileMatch"]] == list(RECIPE_GLOBS)
    recipes = jsonschema_rs.validator_for(schema)
    steps = [{"id": "a", "agent": "a-role-of-some-project", "prompt": "b"}]
    assert recipes.is_valid({"name": "x", "steps": steps})
    assert not recipes.is_valid({"name": "x", "stepps": steps})


def copied(transcript: str) -> list[str]:
    """The lines that a copy button gives: the site hides what the highlighter takes for output."""
    tokens = import_module("pygments.lexers").get_lexer_by_name("console").get_tokens(transcript)
    hidden = ("Token.Generic.Prompt", "Token.Generic.Output")
    shown = (text for kind, text in tokens if str(kind) not in hidden)
    return [line for line in "".join(shown).splitlines() if line]


def test_the_copy_button_of_a_transcript_gives_its_commands_alone():
    assert copied("$ fanfold list\n# no command\n") == ["fanfold list", "no command"], "what this test is for"
    for page in (ROOT / "docs").rglob("*.md"):
        for block in blocks(page.read_text()):
            if block.language == "console":
                commands = [line.removeprefix("$ ") for line in block.text.splitlines() if line[:2] == "$ "]
                assert copied(block.text) == commands, page
