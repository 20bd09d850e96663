"""Where the product suggests a command, and which tests carry it out.

Every text of `src` but docstrings is looked at, and the first files of a project. One that holds `fanfold`
and the name of a command is a place, with `{}` for what is put in. A test says which places its scenario
reaches:

    @suggested("api/changes.py: fanfold wait {}")

the end of the module's path, and a part of the text, or `=` and all of it. The `follow` fixture then wants
the text of each of these among what it was given to carry out. `test_every_suggestion.py` wants each place to
have such a test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple, TypeVar

from fanfold.api.system import RECIPE_NAME
from fanfold.cli.main import COMMANDS
from tools.tidy import ROOT

SOURCE = ROOT / "src" / "fanfold"
COMMAND = re.compile(rf"(?<![\w/.-])fanfold (?:{'|'.join(COMMANDS)}|\{{\}}|--help)(?![\w-])")
Test = TypeVar("Test", bound=Callable[..., object])

ABOUT = {
    "cli/main.py: fanfold {}": "the version, and the name of a command's own help page",
    "cli/agents.py: are for fanfold mcp install": "which command an option belongs to",
    "cli/agents.py: is for fanfold models {}": "which command an option belongs to",
    "first_files/config.toml: lists every setting": "a comment in a file that is written",
    "api/authoring.py: fanfold inspect {} shows its steps": "for logs without the text of a recipe",
    "api/permission.py: fanfold fork {} --from {}": "for a log that a test of attacks writes",
    "api/tool_registry.py: fanfold watch {}": "a note in a chat while the run goes on in it",
    "api/changes.py: fanfold pull {}": "needs a cluster: tests/cluster/test_workspaces.py pulls again",
    "api/workers.py: start fanfold worker --runs-on {}": "needs a cluster: tests/cluster/test_status.py",
    "api/workers.py: drives runs: start fanfold worker": "needs a cluster",
    "cli/run.py: fanfold cluster status": "needs a cluster",
    "cli/run.py: the workers continue the run": "needs a cluster",
    "cluster/status.py: start fanfold worker{}": "needs a cluster: tests/cluster/test_status.py starts one",
}
"""Texts that name a command and do not tell anybody to run it, and what they are instead."""

CLAIMS: dict[str, tuple[str, ...]] = {}
"""Which places each test reaches."""


class Place(NamedTuple):
    file: str
    text: str
    """With `{}` for what is put in."""

    @property
    def key(self) -> str:
        return f"{self.file}: {self.text}"

    def is_meant_by(self, claim: str) -> bool:
        file, _, part = claim.partition(": ")
        is_text = part[1:] == self.text if part.startswith("=") else part in self.text
        return self.file.endswith(file) and is_text

    def is_in(self, said: str) -> bool:
        """Whether something that was printed holds this text; a terminal breaks lines where it likes."""
        parts = [re.escape(" ".join(part.split())) for part in self.text.split("{}")]
        return re.search(r"\s?.*?\s?".join(parts), " ".join(said.split())) is not None


def filled(claim: str, *values: str) -> str:
    """The text of a place, with these put in: for what takes a broken disk or another kernel to be said."""
    (place,) = [one for one in places() if one.is_meant_by(claim)]
    assert place.text.count("{}") == len(values), place
    return place.text.replace("{}", "%s") % values


def suggested(*claims: str) -> Callable[[Test], Test]:
    """Say which places a test's scenario reaches."""

    def mark(test: Test) -> Test:
        CLAIMS[f"{test.__module__}.{test.__name__}"] = claims
        return test

    return mark


@cache
def places() -> tuple[Place, ...]:
    """Every place that suggests a command."""
    found: list[Place] = []
    for file in sorted(SOURCE.rglob("*.py")):
        name = str(file.relative_to(SOURCE))
        for text in _texts(ast.parse(file.read_text("utf-8"))):
            place = Place(name, text)
            if COMMAND.search(text) and place not in found:
                found.append(place)
    first = sorted((SOURCE / "api" / "first_files").iterdir())
    texts = [
        Place(str(file.relative_to(SOURCE)), file.read_text("utf-8").replace(RECIPE_NAME, "{}"))
        for file in first
    ]
    found += [place for place in texts if COMMAND.search(place.text)]
    return tuple(one for one in found if not any(one.is_meant_by(claim) for claim in ABOUT))


def _texts(node: ast.AST) -> Iterator[str]:
    """The texts below a node, `{}` for what is put in; no docstrings."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.List) and child.elts and _text(child.elts[0]) == "fanfold":
            yield " ".join("{}" if (text := _text(one)) is None else text for one in child.elts)
        text = _text(child)
        if text is not None:
            yield text
        if isinstance(child, ast.JoinedStr):
            for part in child.values:
                if isinstance(part, ast.FormattedValue):
                    yield from _texts(part)
        else:
            yield from _texts(child)


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None
