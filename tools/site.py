r"""`make site`: the documentation site, from the same pages that the repository shows.

    python -m tools.site [--out build/site]

Rules
* Pages are staged with links out of `docs` turned into links to the repository, and with `\|` in code
  of tables written as `|`, which the generator wants. Nothing else is changed.
* The generator runs in its own environment, `.venvs/site`, with the pinned packages of requirements/site.txt.
* A reader's browser makes no request to another host. Pages with diagrams get Mermaid from the site.
* The site has the schema of recipes, at the address that the catalogue entry for editors names.
* Every link and every anchor of the result is checked. A broken one fails the build.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fanfold.language.schema import json_schema
from tools import npm
from tools.tidy import ROOT

REPOSITORY = "https://github.com/fanfold/fanfold"
OUT = ROOT / "build" / "site"
ENVIRONMENT = ROOT / ".venvs" / "site"
PINS = ROOT / "requirements" / "site.txt"
SCHEMA_URL: str = json.loads((ROOT / "integrations" / "schemastore" / "catalog-entry.json").read_text())[
    "url"
]
MERMAID = "mermaid@12.3.0"
MERMAID_SHA512 = "4113TdXeLAsMruJ79OpFL5O8+LTFXhQqZ260rF3tgUmiNAtRm4Uume04I+65PRN6yZ69J4f8rVYWW8zRk65UYw=="
STYLE = """\
/* Tables of commands and figures are wider than a phone: they scroll by themselves. */
.md-typeset__table { min-width: 100%; }
.md-typeset table:not([class]) { display: table; width: 100%; }
.md-typeset table:not([class]) th:empty { padding: 0; }
.md-typeset table:not([class]) td:first-child code { white-space: nowrap; }
.md-typeset img { max-width: 100%; height: auto; }
/* The copy button of a transcript copies its commands, without prompts and output. */
[data-md-copying] .gp, [data-md-copying] .go { display: none; }
"""
_TABLE_CODE = re.compile(r"`[^`\n]*\\\|[^`\n]*`")
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")


def main(arguments: list[str]) -> int:
    out = Path(arguments[1]).resolve() if arguments[:1] == ["--out"] else OUT
    shutil.rmtree(out, ignore_errors=True)
    stage(out / "pages")
    shutil.copyfile(ROOT / "tools" / "site.toml", out / "zensical.toml")
    subprocess.run([generator(), "build", "--strict"], cwd=out, check=True)
    add_mermaid(out / "html")
    (out / "html" / SCHEMA_URL.rpartition("/")[2]).write_text(json.dumps(published_schema()))
    problems = [*broken_links(out / "html"), *requests_to_other_hosts(out / "html")]
    for problem in problems:
        print(f"site: {problem}", file=sys.stderr)
    pages = len(list((out / "html").rglob("*.html")))
    print(f"site: {pages} pages in {out / 'html'}, {len(problems)} problems")
    return int(bool(problems))


def published_schema() -> dict[str, Any]:
    """The schema of recipes for editors that have no Fanfold: without the roles of a project."""
    return {**json_schema(), "$id": SCHEMA_URL}


def stage(target: Path) -> None:
    """Copy `docs` to `target`, with links to files outside it turned into links to the repository."""
    shutil.copytree(ROOT / "docs", target)
    for page in target.rglob("*.md"):
        path = f"docs/{page.relative_to(target).as_posix()}"
        text = _TABLE_CODE.sub(
            lambda found: found[0].replace("\\|", "|"), with_repository_links(page.read_text("utf-8"), path)
        )
        page.write_text(text, "utf-8")
    (target / "site.css").write_text(STYLE)


def with_repository_links(text: str, path: str) -> str:
    """The text of the page at `path` with links that leave `docs` turned into links to the repository.

    >>> with_repository_links("[a](../LICENSE), [b](x.md), [c](https://d.e)", "docs/index.md")
    '[a](https://github.com/fanfold/fanfold/blob/main/LICENSE), [b](x.md), [c](https://d.e)'
    """

    def absolute(found: re.Match[str]) -> str:
        target, _, fragment = found[1].partition("#")
        whole = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if not target or urlsplit(target).scheme or whole.startswith("docs/"):
            return found[1]
        kind = "tree" if (ROOT / whole).is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/main/{whole}" + (f"#{fragment}" if fragment else "")

    return _LINK.sub(absolute, text)


def generator() -> str:
    """The site generator, installed from its pins if they have changed."""
    stamp = ENVIRONMENT / f".{hashlib.sha256(PINS.read_bytes()).hexdigest()[:16]}"
    if not stamp.exists():
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
        subprocess.run([*pip, "install", "-qq", "--require-hashes", "--requirement", str(PINS)], check=True)
        stamp.touch()
    return str(ENVIRONMENT / "bin" / "zensical")


def add_mermaid(site: Path) -> None:
    """Give the pages that have diagrams the program that draws them, from the site itself."""
    drawn = [page for page in site.rglob("*.html") if 'class="mermaid"' in page.read_text("utf-8")]
    if not drawn:
        return
    program = site / "assets" / "javascripts" / "mermaid.min.js"
    shutil.copyfile(fetch_mermaid(), program)
    for page in drawn:
        source = os.path.relpath(program, page.parent)
        tag = f'<script src="{source}"></script></head>'
        page.write_text(page.read_text("utf-8").replace("</head>", tag, 1), "utf-8")


def fetch_mermaid() -> Path:
    """The one file of Mermaid, fetched once by npm and compared with its recorded hash."""
    kept = ENVIRONMENT / f"{MERMAID}.js"
    if kept.exists():
        return kept
    cli = npm.node().parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [str(npm.node()), str(cli), "pack", MERMAID, "--silent", "--pack-destination", str(ENVIRONMENT)]
    subprocess.run(command, env=npm.environment(), cwd=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
    package = ENVIRONMENT / f"{MERMAID.replace('@', '-')}.tgz"
    found = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    if found != MERMAID_SHA512:
        raise ValueError(f"{package.name} has the hash {found}, expected {MERMAID_SHA512}")
    with tarfile.open(package) as archive:
        content = archive.extractfile("package/dist/mermaid.min.js")
        assert content is not None, "the package has its distribution file"
        kept.write_bytes(content.read())
    return kept


class _Page(HTMLParser):
    """The anchors of a page, its links, and what a browser fetches to show it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if "src" in values:
            self.fetched.append(values["src"])
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev", "alternate"):
            self.fetched.append(values.get("href", ""))


def broken_links(site: Path) -> list[str]:
    """Each local link, image, script and style sheet that leads nowhere, with its page."""
    pages = {file: _Page(file.read_text("utf-8")) for file in site.rglob("*.html")}
    problems = []
    for file, page in pages.items():
        for link in dict.fromkeys([*page.links, *page.fetched]):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or file.name == "404.html":
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            fragment = unquote(parts.fragment)
            if not target.is_file():
                problems.append(f"{file.relative_to(site)}: {link} does not exist")
            elif fragment and target in pages and fragment not in pages[target].anchors | {"__skip"}:
                problems.append(f"{file.relative_to(site)}: {link} names no heading")
    return problems


def requests_to_other_hosts(site: Path) -> list[str]:
    """Each file that a browser would fetch from another host to show a page, with the page."""
    return [
        f"{file.relative_to(site)}: fetches {address}"
        for file in sorted(site.rglob("*.html"))
        for address in _Page(file.read_text("utf-8")).fetched
        if urlsplit(address).netloc
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
