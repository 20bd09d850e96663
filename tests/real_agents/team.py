"""The recipe of the docs in which several agents work together, and its roles."""

from pathlib import Path

from tools import markdown
from tools.tidy import ROOT

FILES = ("team.yaml", ".fanfold/agents/architect.toml", ".fanfold/agents/coder.toml")


def write_team(project: Path) -> None:
    """Put the files of the page into a project, as a reader would."""
    page = (ROOT / "docs" / "agents.md").read_text("utf-8")
    for block in markdown.blocks(page):
        first, _, _ = block.text.partition("\n")
        if first.removeprefix("# ") in FILES:
            file = project / first.removeprefix("# ")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
    missing = [name for name in FILES if not (project / name).exists()]
    assert not missing, f"the page has no {missing}"
